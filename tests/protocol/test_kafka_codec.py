"""Odradek's codec is compared with Kafka's in a JVM: stored records and batches, in both directions."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

import pytest

from odradek.protocol.codec.structure import record_structure
from odradek.protocol.records.batch import Batch, batches
from odradek.protocol.records.compression import NAMES
from odradek.protocol.records.control import end_marker
from odradek.protocol.records.records import Record, build_batch, decode
from odradek.protocol.schemas import serde
from tests.protocol.generated import as_kafka_json, draw_entity, without_case
from tests.protocol.kafka_codec import KafkaCodec, stored_types
from tests.support.kafka_dist import KafkaUnavailable

pytestmark = pytest.mark.interop


@pytest.fixture(scope="module")
def kafka() -> Iterator[KafkaCodec]:
    try:
        with KafkaCodec() as running:
            yield running
    except KafkaUnavailable as unavailable:
        pytest.fail(str(unavailable), pytrace=False)


def test_kafka_rewrites_every_stored_record_identically(kafka: KafkaCodec) -> None:
    for java_class, record_type, version in stored_types():
        structure = record_structure(record_type, version)
        for seed in range(20):
            record = draw_entity(structure, random.Random(seed)) if seed else record_type()
            raw = serde.encode(record, version)
            written, shown = kafka.message(java_class, version, raw)
            assert written == raw, (java_class, version, record)
            own = {
                name
                for name in as_kafka_json(record, structure)
                if name.startswith(("tiered", "diskless"))
            }
            assert without_case(shown) == {
                name: value
                for name, value in as_kafka_json(record, structure).items()
                if name not in own  # Kafka keeps tagged fields that it does not know
            }


def shown(batch: Batch) -> dict[str, Any]:
    """Convert a batch to the JSON of CodecOracle."""
    return {
        "baseOffset": batch.base_offset,
        "lastOffset": batch.last_offset,
        "leaderEpoch": batch.leader_epoch,
        "producerId": batch.producer_id,
        "producerEpoch": batch.producer_epoch,
        "baseSequence": batch.base_sequence,
        "lastSequence": batch.last_sequence,
        "maxTimestamp": batch.max_timestamp,
        "timestampType": batch.timestamp_type,
        "compression": batch.compression,
        "transactional": batch.is_transactional,
        "control": batch.is_control,
        "records": [
            [
                record.offset,
                record.timestamp,
                None if record.key is None else record.key.hex(),
                None if record.value is None else record.value.hex(),
                [[key, None if value is None else value.hex()] for key, value in record.headers],
            ]
            for record in decode(batch)
        ],
    }


@pytest.mark.parametrize("codec", range(5), ids=lambda codec: NAMES[codec])
def test_kafka_reads_odradek_batches(kafka: KafkaCodec, codec: int) -> None:
    source = random.Random(codec)
    raw = bytearray()
    for size in (0, 1, 100, 40_000, 100_000):
        records = [
            Record(-1, 10**12 + i, None if i % 3 else b"key", source.randbytes(7) * (size // 7))
            for i in range(3)
        ]
        records.append(Record(-1, 5, b"", None, (("h", None), ("", b""), ("größer", b"x"))))
        raw += build_batch(
            records,
            base_offset=source.randrange(2**40),
            compression=codec,
            producer_id=4,
            producer_epoch=2,
            base_sequence=2**31 - 2,
            leader_epoch=8,
            transactional=True,
            timestamp_type=size % 2,
        )
    assert kafka.records(raw) == [shown(batch) for batch in batches(memoryview(raw))]


def test_kafka_reads_fields_set_in_place(kafka: KafkaCodec) -> None:
    raw = build_batch([Record(-1, 5, b"k", b"v"), Record(-1, 6, b"k", b"v")], compression=2)
    batch = Batch(memoryview(raw))
    batch.stamp(10**15, 77)
    batch.set_max_timestamp(1, 12345)
    (read,) = kafka.records(raw)
    assert read == shown(batch)
    assert (read["baseOffset"], read["leaderEpoch"], read["maxTimestamp"]) == (10**15, 77, 12345)


def test_kafka_reads_odradek_transaction_markers(kafka: KafkaCodec) -> None:
    raw = end_marker(
        commit=True, producer_id=1, producer_epoch=0, coordinator_epoch=3, timestamp_ms=9
    )
    (read,) = kafka.records(raw)
    assert read["control"]
    assert read["records"] == [[0, 9, "00000001", "000000000003", []]]


@pytest.mark.parametrize("codec", range(5), ids=lambda codec: NAMES[codec])
def test_odradek_reads_and_rebuilds_kafka_batches(kafka: KafkaCodec, codec: int) -> None:
    values = [b"", b"value", bytes(20_000), random.Random(1).randbytes(30_000)]
    raw = kafka.build(NAMES[codec], values)
    (batch,) = batches(memoryview(raw), check=True)
    assert batch.compression == codec
    assert [record.value for record in decode(batch)] == values
    assert kafka.records(raw) == [shown(batch)]
    rebuilt = build_batch(
        decode(batch),
        base_offset=1000,
        compression=codec,
        producer_id=77,
        producer_epoch=3,
        base_sequence=5,
        leader_epoch=9,
        transactional=True,
    )
    assert kafka.records(rebuilt) == kafka.records(raw)
    if codec == 0:
        assert rebuilt == raw
