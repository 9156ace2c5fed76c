"""Validation of appended batches, after Kafka 4.3's LogValidatorTest and ProduceRequest's checks."""

from __future__ import annotations

import dataclasses
import struct
from contextlib import suppress

import pytest
from crc32c import crc32c
from hypothesis import given
from hypothesis import strategies as st

from odradek.protocol.errors import CorruptBatch, ErrorCode, KafkaError
from odradek.protocol.records.batch import HEADER_SIZE, Batch
from odradek.protocol.records.compression import NAMES, compress
from odradek.protocol.records.records import Record, build_batch, decode
from odradek.storage.errors import (
    CorruptRecords,
    InvalidCompression,
    InvalidRecord,
    InvalidTimestamp,
    RecordListTooLarge,
    RecordTooLarge,
    UnexpectedOffset,
    UnsupportedCompression,
)
from odradek.storage.log import batch_validation
from odradek.storage.log.batch_validation import (
    ValidationTooSlow,
    check_produced,
    check_raft,
    check_replicated,
)
from odradek.storage.log.config import LogConfig
from tests.support.partition_logs import NOW_MS, batch, idempotent, marker

CONFIG = LogConfig()


def config(**changes: object) -> LogConfig:
    return dataclasses.replace(CONFIG, **changes)  # type: ignore[arg-type]


def produced(data: memoryview, settings: LogConfig = CONFIG, *, client: bool = True) -> Batch:
    return check_produced(data, settings, NOW_MS, from_client=client)


def patched(data: memoryview, at: int, layout: str, value: int, *, crc: bool = True) -> memoryview:
    """The batch with one header field changed and a valid CRC."""
    struct.pack_into(layout, data, at, value)
    if crc:
        struct.pack_into(">I", data, 17, crc32c(data[21:]))
    return data


def test_valid_batch_is_accepted_unchanged() -> None:
    data = batch(3)
    before = bytes(data)
    found = produced(data)
    assert found.view.obj is data.obj
    assert bytes(data) == before


@pytest.mark.parametrize(
    ("data", "error"),
    [
        pytest.param(memoryview(b""), KafkaError, id="nothing"),
        pytest.param(memoryview(bytes(60)), KafkaError, id="less than a header"),
        pytest.param(patched(batch(), 16, ">b", 1), InvalidRecord, id="magic 1"),
        pytest.param(patched(batch(), 16, ">b", 3), CorruptRecords, id="magic 3"),
        pytest.param(patched(batch(), 16, ">b", -1), CorruptRecords, id="magic -1"),
        pytest.param(memoryview(b"\xff" * 100), CorruptRecords, id="garbage"),
        pytest.param(memoryview(b"garbage " * 100), CorruptRecords, id="text"),
        pytest.param(memoryview(b"x" * 11), InvalidRecord, id="too short for a length"),
        pytest.param(patched(batch(), 8, ">i", 13), CorruptRecords, id="length 13"),
        pytest.param(patched(batch(), 8, ">i", 14), CorruptBatch, id="shorter than its header"),
        pytest.param(
            memoryview(bytearray(batch()) + bytes(12)), CorruptRecords, id="a batch, then garbage"
        ),
        pytest.param(batch()[:-1], InvalidRecord, id="cut off"),
        pytest.param(memoryview(bytearray(batch()) + batch()), InvalidRecord, id="two batches"),
        pytest.param(patched(batch(), 61, ">b", 1, crc=False), KafkaError, id="wrong CRC"),
        pytest.param(patched(batch(), 0, ">q", 1), InvalidRecord, id="base offset not 0"),
        pytest.param(
            patched(batch(2), 57, ">i", 1), InvalidRecord, id="fewer records than offsets"
        ),
        pytest.param(patched(batch(2), 57, ">i", 0), InvalidRecord, id="no records"),
        pytest.param(patched(batch(), 23, ">i", -1), InvalidRecord, id="negative delta"),
        pytest.param(
            patched(patched(batch(), 23, ">i", 2**31 - 2), 57, ">i", 2**31 - 1),
            InvalidRecord,
            id="more records than bytes",
        ),
        pytest.param(batch(control=True), InvalidRecord, id="control batch"),
        pytest.param(idempotent(5, -1), InvalidRecord, id="producer without sequence"),
        pytest.param(patched(batch(), 21, ">h", 5), UnsupportedCompression, id="codec 5"),
    ],
)
def test_invalid_batch_is_refused(data: memoryview, error: type[KafkaError]) -> None:
    with pytest.raises(error):
        produced(data)


@pytest.mark.parametrize("codec", [5, 7])
def test_unknown_codec_has_the_error_code_of_kafka(codec: int) -> None:
    """CompressionType.forId raises IllegalArgumentException, for which Kafka's code is -1."""
    with pytest.raises(UnsupportedCompression) as refused:
        produced(patched(batch(), 21, ">h", codec))
    assert refused.value.code is ErrorCode.unknown_server_error


def test_incomplete_second_batch_is_ignored() -> None:
    data = batch()
    for more in (1, 11, 16, 17, len(data) - 1):
        found = produced(memoryview(bytearray(data) + bytes(batch()[:more])))
        assert bytes(found.view) == bytes(data)


def test_coordinator_may_write_control_batches() -> None:
    produced(marker(1, commit=True), client=False)


def test_batch_size_limits() -> None:
    data = batch(10, size=100)
    produced(data, config(max_message_bytes=len(data)))
    with pytest.raises(RecordTooLarge):
        produced(data, config(max_message_bytes=len(data) - 1))
    with pytest.raises(RecordListTooLarge):
        produced(data, config(internal_segment_bytes=len(data) - 1))


def test_compressed_batch_may_have_more_records_than_bytes() -> None:
    data = batch(2000, size=0, keys=False, compression=4)
    assert len(data) - 61 < 2000
    produced(data)
    claim = patched(
        patched(batch(2000, size=0, keys=False, compression=4), 23, ">i", 2000), 57, ">i", 2001
    )
    with pytest.raises(KafkaError):
        produced(claim)


def test_compacted_topic_refuses_records_without_key() -> None:
    compacted = config(cleanup_policy=("compact",))
    produced(batch(3), compacted)
    for codec in (0, 1, 4):
        with pytest.raises(InvalidRecord) as caught:
            produced(batch(3, keys=False, compression=codec), compacted)
        assert [index for index, _ in caught.value.record_errors] == [0, 1, 2]


@pytest.mark.parametrize("codec", range(5))
def test_create_time_outside_limits_is_refused(codec: int) -> None:
    limits = config(message_timestamp_before_max_ms=1000, message_timestamp_after_max_ms=500)
    fine = [NOW_MS - 1000, NOW_MS + 500, -1]
    produced(batch(timestamps=fine, count=3, compression=codec), limits)
    for outside in (NOW_MS - 1001, NOW_MS + 501):
        with pytest.raises(InvalidTimestamp) as caught:
            produced(batch(timestamps=[NOW_MS, outside], count=2, compression=codec), limits)
        assert [index for index, _ in caught.value.record_errors] == [1]


def test_default_create_time_limit_is_one_hour_ahead() -> None:
    produced(batch(timestamps=0))
    produced(batch(timestamps=NOW_MS + 3_600_000))
    with pytest.raises(InvalidTimestamp):
        produced(batch(timestamps=NOW_MS + 3_600_001))


def test_log_append_time_is_set_in_place() -> None:
    data = batch(2, timestamps=5)
    found = produced(data, config(message_timestamp_type="LogAppendTime"))
    assert (found.timestamp_type, found.max_timestamp) == (1, NOW_MS)
    Batch(data).check()
    assert [record.timestamp for record in decode(Batch(data))] == [NOW_MS] * 2


def test_log_append_time_from_producer_is_refused() -> None:
    with pytest.raises(InvalidTimestamp):
        produced(batch(timestamp_type=1), config(message_timestamp_type="LogAppendTime"))
    with pytest.raises(InvalidTimestamp):
        produced(batch(timestamp_type=1, timestamps=-1))
    # With a timestamp the topic's timestamp type applies.
    found = produced(batch(timestamp_type=1))
    assert found.timestamp_type == 0
    found.check()


@pytest.mark.parametrize("target", [*NAMES[1:], "uncompressed"])
@pytest.mark.parametrize("source", range(5))
def test_batch_is_recompressed_with_compression_type_of_topic(source: int, target: str) -> None:
    data = idempotent(9, 4, 5, size=50, compression=source, transactional=True, producer_epoch=3)
    found = produced(data, config(compression_type=target))
    wanted = 0 if target == "uncompressed" else NAMES.index(target)
    assert found.compression == wanted
    assert (found.view.obj is data.obj) == (source == wanted)
    found.check()
    assert (found.producer_id, found.producer_epoch, found.base_sequence) == (9, 3, 4)
    assert found.is_transactional
    assert decode(found) == decode(Batch(data))


def test_recompressed_batch_may_be_too_large() -> None:
    data = batch(20, size=200, compression=4)
    with pytest.raises(RecordTooLarge, match="uncompressed"):
        produced(data, config(compression_type="uncompressed", max_message_bytes=len(data) + 100))


def test_markers_are_not_recompressed() -> None:
    found = produced(marker(1, commit=True), config(compression_type="zstd"), client=False)
    assert found.compression == 0


def stamped(offset: int, count: int = 1, epoch: int = 0) -> bytes:
    found = Batch(batch(count))
    found.stamp(offset, epoch)
    return bytes(found.view)


def joined(*parts: bytes) -> memoryview:
    return memoryview(bytearray(b"".join(parts)))


def test_incomplete_last_replicated_batch_is_skipped() -> None:
    data = joined(stamped(5, 2), stamped(9), stamped(10)[:-3])
    found = check_replicated(data, 5, None)
    assert [each.base_offset for each in found] == [5, 9]
    assert check_replicated(joined(stamped(5)[:30]), 5, None) == []


@pytest.mark.parametrize(
    ("parts", "error"),
    [
        pytest.param([stamped(4)], UnexpectedOffset, id="below the end"),
        pytest.param([stamped(9), stamped(9)], CorruptRecords, id="an offset twice"),
        pytest.param([stamped(9, 3), stamped(10)], CorruptRecords, id="offsets overlap"),
        pytest.param([stamped(9)[:-1] + b"\xee", stamped(10)], KafkaError, id="wrong CRC"),
        pytest.param([stamped(9), bytes(100)], KafkaError, id="garbage"),
    ],
)
def test_invalid_replicated_batches_are_refused(
    parts: list[bytes], error: type[KafkaError]
) -> None:
    with pytest.raises(error):
        check_replicated(joined(*parts), 5, None)


def test_replicated_batches_of_later_epoch_are_skipped() -> None:
    data = joined(stamped(5, epoch=1), stamped(6, epoch=2), stamped(7, epoch=1))
    found = check_replicated(data, 5, 1)
    assert [each.base_offset for each in found] == [5]


def test_raft_batches_need_offsets_and_leader_epoch() -> None:
    found = check_raft(joined(stamped(5, epoch=3), stamped(6, epoch=3)), CONFIG, 3, 5)
    assert [each.base_offset for each in found] == [5, 6]
    with pytest.raises(InvalidRecord):
        check_raft(joined(stamped(5, epoch=2)), CONFIG, 3, 5)
    with pytest.raises(UnexpectedOffset):
        check_raft(joined(stamped(4, epoch=3)), CONFIG, 3, 5)


@given(st.binary(max_size=300), st.booleans())
def test_random_bytes_raise_only_kafka_errors(data: bytes, client: bool) -> None:
    with pytest.raises(KafkaError):
        produced(memoryview(bytearray(data)), client=client)


@given(st.data())
def test_batch_with_random_header_is_accepted_or_refused(data: st.DataObject) -> None:
    """Random header fields with a valid CRC, as a hostile client may send them."""
    spoiled = batch(3, compression=data.draw(st.integers(0, 4)))
    for at, layout, low, high in [
        (21, ">h", -(2**15), 2**15 - 1),
        (23, ">i", -(2**31), 2**31 - 1),
        (27, ">q", -(2**63), 2**63 - 1),
        (35, ">q", -(2**63), 2**63 - 1),
        (43, ">q", -(2**63), 2**63 - 1),
        (51, ">h", -(2**15), 2**15 - 1),
        (53, ">i", -(2**31), 2**31 - 1),
        (57, ">i", -(2**31), 2**31 - 1),
    ]:
        if data.draw(st.booleans()):
            patched(spoiled, at, layout, data.draw(st.integers(low, high)))
    settings = config(
        compression_type=data.draw(st.sampled_from(["producer", "lz4", "uncompressed"])),
        cleanup_policy=data.draw(st.sampled_from([("delete",), ("compact",)])),
        message_timestamp_before_max_ms=data.draw(st.sampled_from([1000, 2**63 - 1])),
    )
    with suppress(KafkaError):
        produced(spoiled, settings, client=data.draw(st.booleans()))


def bomb(codec: str, *, record_bytes: int, count: int = 1) -> memoryview:
    """A few KiB that decompress to `count` records of that size."""
    return batch(count, size=record_bytes, compression=NAMES.index(codec))


@pytest.mark.parametrize("codec", NAMES[1:])
@pytest.mark.parametrize(
    "settings",
    [CONFIG, config(cleanup_policy=("compact",)), config(compression_type="uncompressed")],
    ids=["default", "compacted", "another compression"],
)
def test_batch_with_large_decompressed_size_is_not_validated_on_the_loop(
    codec: str, settings: LogConfig
) -> None:
    data = bomb(codec, record_bytes=8 << 20)
    before = bytes(data)
    assert len(data) < 1 << 20
    with pytest.raises(ValidationTooSlow):
        check_produced(data, settings, NOW_MS, from_client=True, at_once=True)
    assert bytes(data) == before
    few = bomb(codec, record_bytes=1000)
    assert check_produced(few, settings, NOW_MS, from_client=True, at_once=True).record_count == 1


def test_batch_of_many_records_is_not_validated_on_the_loop(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    few = dataclasses.replace(batch_validation.LOOP_BUDGET, records=4999)
    monkeypatch.setattr(batch_validation, "LOOP_BUDGET", few)
    data = batch(5000, size=1, compression=0)
    with pytest.raises(ValidationTooSlow):
        check_produced(data, CONFIG, NOW_MS, from_client=True, at_once=True)
    assert check_produced(data, CONFIG, NOW_MS, from_client=True).record_count == 5000


@pytest.mark.parametrize(
    "settings",
    [CONFIG, config(cleanup_policy=("compact",)), config(compression_type="uncompressed")],
    ids=["default", "compacted", "another compression"],
)
def test_batch_with_too_large_decompressed_size_is_record_too_large(
    settings: LogConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not as corrupt, which producers retry: they split a batch that is too large."""
    small = dataclasses.replace(batch_validation.FINAL_BUDGET, decompressed_bytes=64 << 20)
    monkeypatch.setattr(batch_validation, "FINAL_BUDGET", small)
    with pytest.raises(RecordTooLarge) as refused:
        produced(bomb("zstd", record_bytes=65 << 20), settings)
    assert "corrupt" not in str(refused.value)


def test_any_readable_batch_can_be_recompressed() -> None:
    data = bomb("gzip", record_bytes=70 << 20)
    assert produced(data, config(compression_type="lz4")).compression == NAMES.index("lz4")


MAX_TIMESTAMP_AT = 35
RECORD_COUNT_AT, LAST_OFFSET_DELTA_AT = 57, 23


def with_timestamps(*timestamps: int, compression: int = 0) -> memoryview:
    records = [Record(-1, timestamp, b"k", b"v") for timestamp in timestamps]
    return memoryview(build_batch(records, compression=compression))


def with_body(data: memoryview, body: bytes) -> memoryview:
    """A batch with the header of `data`, other records and a valid CRC."""
    whole = memoryview(bytearray(bytes(data[:HEADER_SIZE]) + body))
    return patched(whole, 8, ">i", len(whole) - 12)


@pytest.mark.parametrize("codec", range(5), ids=NAMES)
@pytest.mark.parametrize("header_value", [0, -1, NOW_MS - 3000, NOW_MS + 1, 2**63 - 1, -(2**63)])
def test_max_timestamp_of_the_header_is_replaced_by_that_of_the_records(
    codec: int, header_value: int
) -> None:
    """kafkajs and earlier versions of sarama set other values."""
    data = with_timestamps(NOW_MS - 3000, NOW_MS, NOW_MS - 1000, compression=codec)
    found = produced(patched(data, MAX_TIMESTAMP_AT, ">q", header_value))
    assert found.max_timestamp == NOW_MS
    stored = Batch(found.view)
    stored.check()
    assert stored.max_timestamp == NOW_MS


def test_max_timestamp_of_records_without_timestamps_is_minus_one() -> None:
    assert produced(with_timestamps(-1, -1)).max_timestamp == -1
    assert produced(with_timestamps(-7, -7)).max_timestamp == -1  # as in Kafka
    assert produced(with_timestamps(-1, NOW_MS)).max_timestamp == NOW_MS


@pytest.mark.parametrize("codec", [0, 3])
def test_record_ahead_of_the_limit_is_refused_for_any_header(codec: int) -> None:
    data = with_timestamps(NOW_MS, NOW_MS + 7_200_000, compression=codec)
    with pytest.raises(InvalidTimestamp) as refused:
        produced(patched(data, MAX_TIMESTAMP_AT, ">q", NOW_MS))
    assert [index for index, _ in refused.value.record_errors] == [1]


def test_keyless_record_and_late_record_are_both_listed_in_the_error() -> None:
    records = [Record(-1, NOW_MS, None, b""), Record(-1, NOW_MS + 2**40, b"k", b"")]
    with pytest.raises(InvalidTimestamp) as refused:
        produced(memoryview(build_batch(records)), config(cleanup_policy=("compact",)))
    assert [index for index, _ in refused.value.record_errors] == [0, 1]


NOISE = bytes(range(1, 51))


@pytest.mark.parametrize("body", [b"", bytes(50), NOISE], ids=["empty", "zeros", "noise"])
def test_raw_batch_with_invalid_records_is_refused_as_invalid(body: bytes) -> None:
    with pytest.raises(InvalidRecord):
        produced(with_body(batch(3, compression=0), body))


@pytest.mark.parametrize("codec", range(1, 5), ids=NAMES[1:])
@pytest.mark.parametrize("damage", ["noise", "cut off"])
def test_batch_that_cannot_be_decompressed_is_refused_with_kafkas_error(
    codec: int, damage: str
) -> None:
    data = batch(3, compression=codec)
    body = NOISE if damage == "noise" else bytes(data[HEADER_SIZE:-4])
    with pytest.raises(InvalidCompression) as refused:
        produced(with_body(data, body))
    assert refused.value.code == ErrorCode.unknown_server_error


@pytest.mark.parametrize("codec", range(5), ids=NAMES)
@pytest.mark.parametrize("count", [2, 4])
def test_batch_with_a_wrong_record_count_is_refused_as_invalid(codec: int, count: int) -> None:
    data = patched(batch(3, compression=codec), RECORD_COUNT_AT, ">i", count)
    with pytest.raises(InvalidRecord):
        produced(patched(data, LAST_OFFSET_DELTA_AT, ">i", count - 1))


@pytest.mark.parametrize("codec", [0, 3])
def test_offset_deltas_that_are_not_consecutive_are_corrected(codec: int) -> None:
    records = [Record(offset, NOW_MS, b"k", b"v") for offset in (0, 2, 5)]
    data = patched(memoryview(build_batch(records)), LAST_OFFSET_DELTA_AT, ">i", 2)
    if codec:
        body = compress(codec, data[HEADER_SIZE:])
        data = patched(with_body(data, body), 21, ">h", codec)
    found = produced(data)
    found.check()
    assert found.compression == codec
    assert [record.offset for record in decode(found)] == [0, 1, 2]


def test_record_with_a_key_length_of_minus_two_has_no_key() -> None:
    key_length_of_minus_two = bytes([14, 0, 0, 0, 3, 2, 65, 0])
    found = produced(with_body(with_timestamps(NOW_MS), key_length_of_minus_two))
    (record,) = decode(found)
    assert (record.key, record.value) == (None, b"A")
