"""Stored records: every version of every class, frames, and rejection of malformed records."""

from __future__ import annotations

import json
import random
from contextlib import suppress
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from odradek.protocol.codec.structure import record_structure
from odradek.protocol.schemas import control_records, serde
from odradek.protocol.schemas.consumer_group_records import ConsumerGroupMemberMetadataValue
from odradek.protocol.schemas.group_records import (
    GroupMetadataKey,
    GroupMetadataValue,
    OffsetCommitKey,
    OffsetCommitValue,
)
from odradek.protocol.schemas.metadata_records import (
    FAMILIES,
    PartitionChangeRecord,
    PartitionRecord,
    TopicRecord,
)
from odradek.protocol.schemas.remote_log_records import (
    RemoteLogSegmentId,
    RemoteLogSegmentMetadataRecord,
    SegmentLeaderEpoch,
    TopicIdPartition,
)
from odradek.protocol.schemas.serde import InvalidRecord, StringTooLong, UnknownRecord
from odradek.protocol.schemas.transaction_records import TransactionLogKey, TransactionLogValue
from tests.protocol.generated import as_kafka_json, draw_entity, without_case

BY_FAMILY = serde.all_record_types()
CONTROL = [
    control_records.EndTxnMarker,
    control_records.LeaderChangeMessage,
    control_records.SnapshotHeaderRecord,
    control_records.SnapshotFooterRecord,
    control_records.KRaftVersionRecord,
    control_records.VotersRecord,
]
EVERY = [
    (record_type, version)
    for record_type in [*(t for types in BY_FAMILY.values() for t in types), *CONTROL]
    for version in record_type.__versions__
]


def name_of(case: Any) -> str:
    return f"v{case}" if isinstance(case, int) else case.__name__


@pytest.mark.parametrize(("record_type", "version"), EVERY, ids=name_of)
def test_every_version_is_read_as_written(record_type: type[Any], version: int) -> None:
    structure = record_structure(record_type, version)
    for seed in range(10):
        source = random.Random(seed)
        record = record_type() if seed == 0 else draw_entity(structure, source)
        raw = serde.encode(record, version)
        assert serde.decode(record_type, version, raw) == record
        for end in range(len(raw)):
            with pytest.raises(InvalidRecord):
                serde.decode(record_type, version, raw[:end])
        with pytest.raises(InvalidRecord):
            serde.decode(record_type, version, raw + b"\0")
        for _ in range(20 if raw else 0):
            changed = bytearray(raw)
            changed[source.randrange(len(raw))] = source.randrange(256)
            with suppress(InvalidRecord):
                serde.decode(record_type, version, changed)


def test_every_metadata_record_is_in_the_table() -> None:
    names = {record_type.__name__ for record_type in BY_FAMILY["metadata"]}
    listed = {name for family in FAMILIES.values() for name in family if name.endswith("Record")}
    assert names == listed
    keys = [record_type.__api_key__ for record_type in BY_FAMILY["metadata"]]
    assert len(set(keys)) == len(keys) == 26


def test_metadata_record_has_a_frame() -> None:
    record = TopicRecord(name="foo", topic_id=UUID(int=1))
    raw = serde.encode_metadata_record(record)
    assert raw.hex() == "01" + "02" + "00" + "04666f6f" + "00" * 15 + "01" + "00"
    assert serde.framed_version(raw) == (2, 0)
    assert serde.decode_metadata_record(raw) == record
    assert serde.decode_metadata_record(memoryview(raw)) == record


def test_zero_uuid_in_an_array_is_kept() -> None:
    """The directory id MIGRATING is the zero UUID, and must stay an element of the array."""
    migrating, other = UUID(int=0), UUID(int=7)
    record = PartitionRecord(
        partition_id=0, topic_id=other, replicas=(1, 2), isr=(1,), directories=(migrating, other)
    )
    assert serde.decode_metadata_record(serde.encode_metadata_record(record)) == record


def test_fields_of_later_versions_are_omitted() -> None:
    record = PartitionRecord(partition_id=1, replicas=(1,), directories=(UUID(int=9),))
    read = serde.decode_metadata_record(serde.encode_metadata_record(record, 0))
    assert read.replicas == (1,)
    assert read.directories == ()
    with pytest.raises(KeyError):
        serde.encode_metadata_record(record, 3)


def test_string_above_the_limit_is_not_written() -> None:
    """The limit also applies to compact lengths, which could encode a longer string."""
    for length, is_written in ((32_767, True), (32_768, False)):
        name = "n" * length
        for record, version in (
            (TopicRecord(name=name), 0),
            (ConsumerGroupMemberMetadataValue(client_id=name), 0),
            (GroupMetadataValue(protocol_type=name), 3),
        ):
            if is_written:
                assert serde.decode(type(record), version, serde.encode(record, version)) == record
            else:
                with pytest.raises(StringTooLong, match=type(record).__name__):
                    serde.encode(record, version)


def test_unchanged_tagged_fields_are_not_written() -> None:
    record = PartitionChangeRecord(partition_id=1, topic_id=UUID(int=1))
    assert len(serde.encode_metadata_record(record)) == 3 + 4 + 16 + 1
    gone = PartitionChangeRecord(partition_id=1, topic_id=UUID(int=1), isr=(), leader=-1)
    assert serde.decode_metadata_record(serde.encode_metadata_record(gone)) == gone


@pytest.mark.parametrize(
    "raw",
    [b"", b"\1", b"\1\2", b"\1\2\0", b"\1\2\0\4fo", b"\1\xff\xff\xff\xff\x0f\0", b"\x80" * 6],
)
def test_malformed_metadata_record_is_invalid(raw: bytes) -> None:
    with pytest.raises(InvalidRecord):
        serde.decode_metadata_record(raw)


@pytest.mark.parametrize("raw", [b"\0\2\0", b"\2\2\0", b"\1\x06\0", b"\1\x63\0", b"\1\2\1\1"])
def test_unknown_metadata_record_is_distinguished(raw: bytes) -> None:
    with pytest.raises(UnknownRecord):
        serde.decode_metadata_record(raw)


@given(raw=st.binary(max_size=60))
def test_random_bytes_are_a_record_or_invalid(raw: bytes) -> None:
    for decode in (
        serde.decode_metadata_record,
        serde.decode_remote_log_record,
        serde.decode_group_key,
        serde.decode_transaction_key,
        serde.decode_transaction_value,
        lambda data: serde.decode_group_value(OffsetCommitKey(), data),
        lambda data: serde.decode_group_value(GroupMetadataKey(), data),
    ):
        with suppress(InvalidRecord):
            decode(raw)


def test_offset_commit_is_read_as_written() -> None:
    key = OffsetCommitKey(group="g", topic="t", partition=3)
    raw_key = serde.encode_coordinator_key(key)
    assert raw_key.hex() == "0001" + "000167" + "000174" + "00000003"
    assert serde.decode_group_key(raw_key) == key
    value = OffsetCommitValue(offset=5, leader_epoch=2, metadata="m", commit_timestamp=9)
    raw = serde.encode_coordinator_value(value)
    assert raw[:2] == b"\0\4"
    assert serde.decode_group_value(key, raw) == value
    with_topic = OffsetCommitValue(offset=5, topic_id=UUID(int=4))
    assert serde.decode_group_value(key, serde.encode_coordinator_value(with_topic)) == with_topic


def test_offset_with_expire_timestamp_has_version_1() -> None:
    value = OffsetCommitValue(offset=5, commit_timestamp=9, expire_timestamp=19)
    raw = serde.encode_coordinator_value(value)
    assert raw.hex() == "0001" + "0000000000000005" + "0000" + f"{9:016x}" + f"{19:016x}"
    assert serde.decode_group_value(OffsetCommitKey(), raw) == value


def test_group_metadata_has_version_3() -> None:
    value = GroupMetadataValue(protocol_type="consumer", generation=1, protocol=None, leader=None)
    raw = serde.encode_coordinator_value(value)
    assert raw[:2] == b"\0\3"
    assert serde.decode_group_value(GroupMetadataKey(group="g"), raw) == value
    assert serde.encode_coordinator_value(value, 4)[:2] == b"\0\4"


def test_unknown_coordinator_record_is_distinguished() -> None:
    with pytest.raises(UnknownRecord):
        serde.decode_group_key(b"\0\x63")
    with pytest.raises(UnknownRecord):
        serde.decode_group_value(OffsetCommitKey(), b"\0\5")
    with pytest.raises(UnknownRecord):
        serde.decode_group_value(OffsetCommitKey(), b"\xff\xff")
    with pytest.raises(UnknownRecord):
        serde.decode_transaction_key(b"\0\1")
    with pytest.raises(InvalidRecord):
        serde.decode_group_key(b"\0")


def test_member_of_consumer_protocol_has_no_classic_metadata() -> None:
    """None is written, because it is not the default of this tagged field."""
    value = ConsumerGroupMemberMetadataValue(client_id="c", classic_member_metadata=None)
    raw = serde.encode(value, 0)
    assert raw.endswith(b"\1\0\1\0")
    assert serde.decode(ConsumerGroupMemberMetadataValue, 0, raw) == value


@pytest.mark.parametrize("version", [0, 1])
def test_transaction_state_is_read_as_written(version: int) -> None:
    key = TransactionLogKey(transactional_id="id")
    assert serde.decode_transaction_key(serde.encode_coordinator_key(key)) == key
    value = TransactionLogValue(producer_id=5, producer_epoch=1, transaction_partitions=None)
    raw = serde.encode_coordinator_value(value, version)
    assert serde.decode_transaction_value(raw) == value


def test_remote_log_metadata_equals_the_vector() -> None:
    """The vector of REQUIREMENTS C (T-45, T-46)."""
    record = RemoteLogSegmentMetadataRecord(
        remote_log_segment_id=RemoteLogSegmentId(
            topic_id_partition=TopicIdPartition(name="foo", id=UUID(int=1), partition=0),
            id=UUID(int=2),
        ),
        start_offset=0,
        end_offset=100,
        broker_id=1,
        max_timestamp_ms=-1,
        event_timestamp_ms=123,
        segment_leader_epochs=(SegmentLeaderEpoch(leader_epoch=0, offset=0),),
        segment_size_in_bytes=1024,
        custom_metadata=None,
        remote_log_segment_state=0,
        txn_index_empty=True,
    )
    raw = serde.encode_remote_log_record(record)
    assert raw.hex() == (
        "010000"
        "04666f6f" + "00000000000000000000000000000001" + "00000000" + "00"
        "00000000000000000000000000000002" + "00"
        "0000000000000000" + "0000000000000064" + "00000001"
        "ffffffffffffffff" + "000000000000007b"
        "02" + "00000000" + "0000000000000000" + "00"
        "00000400" + "00" + "00" + "01" + "00" + "01" + "01"
    )
    assert serde.decode_remote_log_record(raw) == record


VECTORS = json.loads((Path(__file__).parent / "kafka_vectors.json").read_text())


@pytest.mark.parametrize("vector", VECTORS["records"], ids=lambda v: f"{v['name']}-v{v['version']}")
def test_records_written_by_kafka_are_rewritten_identically(vector: dict[str, Any]) -> None:
    """Bytes and JSON from Kafka 4.3's serializers, written by `kafka_codec.py`."""
    record_type = next(t for t, _ in EVERY if t.__name__ == vector["name"])
    version = vector["version"]
    raw = bytes.fromhex(vector["bytes"])
    record = serde.decode(record_type, version, raw)
    assert serde.encode(record, version) == raw
    structure = record_structure(record_type, version)
    assert as_kafka_json(record, structure) == without_case(vector["json"])


def test_every_version_has_a_vector() -> None:
    """Kafka 4.3 has no diskless records: `test_diskless_messages.py` has theirs."""
    kept = {(vector["name"], vector["version"]) for vector in VECTORS["records"]}
    diskless = {(record_type.__name__, 0) for record_type in BY_FAMILY["diskless"]}
    written = {(record_type.__name__, version) for record_type, version in EVERY}
    assert kept == written - diskless
    assert diskless <= written
