"""Validation of appended records (Kafka 4.3's LogValidator), from the batch header alone if possible.

The common case reads 61 bytes and computes the CRC; no record is decoded and nothing is copied. Records
are decoded only if the topic's configs require it (keys of a compacted topic,
message.timestamp.before.max.ms, another compression.type than the producer's) or if the header is
implausible for the size. Unlike Kafka, which decodes every batch, this does not detect a header with a
too small largest timestamp, which affects only the topic's time index, and records that cannot be
decoded, which consumers detect.
"""

from __future__ import annotations

from collections.abc import Iterator
from struct import Struct

from odradek.protocol.errors import CorruptBatch, DecompressedRecordsTooLarge, KafkaError
from odradek.protocol.records.batch import (
    COMPRESSION_MASK,
    CONTROL_MASK,
    CREATE_TIME,
    HEADER_SIZE,
    LOG_APPEND_TIME,
    LOG_OVERHEAD,
    MAGIC,
    NO_TIMESTAMP,
    TIMESTAMP_TYPE_MASK,
    Batch,
    UnsupportedMagic,
    batches,
)
from odradek.protocol.records.compression import NAMES, NONE, decompress
from odradek.protocol.records.records import (
    MAX_DECOMPRESSED_BYTES,
    build_batch,
    decode,
    read_varint,
    read_varlong,
)
from odradek.seams.values import value_class
from odradek.storage.errors import (
    CorruptRecords,
    InvalidRecord,
    InvalidTimestamp,
    RecordListTooLarge,
    RecordTooLarge,
    UnexpectedOffset,
    UnsupportedCompression,
)
from odradek.storage.log.config import INT64_MAX, LogConfig
from odradek.storage.log.producer_state import read_marker


class ValidationTooSlow(Exception):
    """Validation of these records would block the event loop and must run in a worker thread."""


@value_class
class ScanBudget:
    """Limits for decoding a batch: records, bytes, and decompressed bytes. A few KiB may contain
    hundreds of MiB, and claim millions of records."""

    records: int
    bytes: int
    decompressed_bytes: int
    is_final: bool = False
    """Whether batches beyond the limits are refused; otherwise they are validated in a worker thread."""

    def check(self, batch: Batch) -> None:
        """Raise ValidationTooSlow, or RecordTooLarge, after which producers split the batch and retry."""
        if batch.record_count > self.records:
            raise self.exceeded(
                f"the record batch has {batch.record_count} records, which exceeds the limit of "
                f"{self.records} records for their validation"
            )
        if batch.size - HEADER_SIZE > self.bytes:
            raise self.exceeded(
                f"the record batch size is {batch.size} bytes, which exceeds the limit for the "
                f"validation of its records"
            )

    def exceeded(self, why: str) -> ValidationTooSlow | RecordTooLarge:
        return RecordTooLarge(why) if self.is_final else ValidationTooSlow(why)


ALL = ScanBudget(200_000, 1 << 31, 64 << 20, is_final=True)
LOOP_BUDGET = ScanBudget(2_000, 256 << 10, 1 << 20)
"""About 2 ms."""


def scan_records(batch: Batch, budget: ScanBudget = ALL) -> Iterator[tuple[int, bool]]:
    """CreateTime of each record, and whether it has a key.

    Raises CorruptBatch if the batch does not contain exactly `record_count` records, and the errors of
    `ScanBudget.check`.
    """
    budget.check(batch)
    body = batch.view[HEADER_SIZE:]
    if batch.compression != NONE:
        try:
            data = bytes(decompress(batch.compression, body, budget.decompressed_bytes))
        except DecompressedRecordsTooLarge as error:
            raise budget.exceeded(error.message) from error
    else:
        data = bytes(body)
    position, base = 0, batch.base_timestamp
    try:
        for _ in range(batch.record_count):
            size, start = read_varint(data, position)
            delta, at = read_varlong(data, start + 1)
            _, at = read_varint(data, at)
            yield base + delta, data[at] != 1  # a key of length -1
            position = start + size
            if size < 0 or position > len(data):
                raise CorruptBatch(
                    f"invalid record size {size}: only {len(data) - start} bytes remain"
                )
    except IndexError:
        raise CorruptBatch("incomplete record") from None
    if position != len(data):
        raise CorruptBatch(f"{len(data) - position} bytes remain after the last record")


_RECORD_MIN_BYTES = 7
_LENGTH_AT, _MAGIC_AT = 8, 16
_LENGTH = Struct(">i")
_LENGTH_MIN = 14
"""Smallest value of the length field: that of an empty message with magic 0."""
_REWRITTEN = ScanBudget(200_000, 1 << 31, MAX_DECOMPRESSED_BYTES, is_final=True)
"""Limits for records that are decoded and compressed again: the largest batch that clients can read."""
_REWRITTEN_AT_ONCE = ScanBudget(200, 64 << 10, 64 << 10)
"""About 2 ms."""


def check_produced(
    records: memoryview,
    config: LogConfig,
    now_ms: int,
    *,
    from_client: bool,
    at_once: bool = False,
) -> Batch:
    """Validate the only batch in `records`; the caller assigns offsets and appends `Batch.view`.

    The view is `records` itself, changed in place (LogAppendTime), or a new buffer if the topic has
    another compression type. Raises InvalidRecord, InvalidTimestamp, CorruptRecords, CorruptBatch,
    RecordTooLarge, RecordListTooLarge, UnsupportedCompression. With `at_once`, on the loop, raises
    ValidationTooSlow with nothing changed if the validation must run in a worker thread.
    """
    try:
        batch = Batch(records)
    except CorruptBatch as error:
        raise _as_found(records, error) from error
    size = batch.size
    if size != len(records):
        _check_rest(batch, records)
    if size > config.max_message_bytes:
        raise _too_large(size, config)
    if at_once and config.inspects_records:
        _check_budgets(batch, config, from_client)
    batch.check()
    if from_client:
        _check_client(batch, at_once)
    if config.compression_type != "producer" or batch.attributes & COMPRESSION_MASK >= len(NAMES):
        batch = _compressed_as(batch, config, at_once)
    if from_client and config.compact:
        _check_keys(batch, at_once)
    if config.log_append_time:
        if batch.timestamp_type == LOG_APPEND_TIME:
            raise InvalidTimestamp("producer should not set timestamp type to LogAppendTime")
        batch.set_max_timestamp(LOG_APPEND_TIME, now_ms)
    else:
        _check_create_time(batch, config, now_ms, at_once)
    if batch.size > config.max_segment_bytes:
        raise _too_large_for_segment(batch, config)
    return batch


def _is_batch_there(records: memoryview, position: int = 0) -> bool:
    """Whether Kafka's ByteBufferLogInputStream finds a complete batch or message of any format.

    It is complete if its own length fits. Raises CorruptRecords for an invalid length or magic.
    """
    left = len(records) - position
    if left < LOG_OVERHEAD:
        return False
    (length,) = _LENGTH.unpack_from(records, position + _LENGTH_AT)
    if length < _LENGTH_MIN:
        raise CorruptRecords(
            f"found record size {length} smaller than minimum record overhead ({_LENGTH_MIN})"
        )
    if left <= _MAGIC_AT:
        return False
    if records[position + _MAGIC_AT] > MAGIC:
        raise CorruptRecords(f"invalid magic found in record: {records[position + _MAGIC_AT]}")
    return bool(length + LOG_OVERHEAD <= left)


def _as_found(records: memoryview, error: CorruptBatch) -> KafkaError:
    """Error for bytes that contain no valid batch, as Kafka classifies it."""
    if not _is_batch_there(records):
        return InvalidRecord(f"no complete record batch in {len(records)} bytes")
    if isinstance(error, UnsupportedMagic):
        return InvalidRecord(f"only record batches with magic {MAGIC} are supported: {error}")
    return error


def _check_rest(batch: Batch, records: memoryview) -> None:
    """Check that the batch is complete and the only one; an incomplete second batch is ignored, as in
    Kafka."""
    if batch.size > len(records):
        raise InvalidRecord(f"incomplete record batch: {len(records)} of {batch.size} bytes")
    if _is_batch_there(records, batch.size):
        raise InvalidRecord("exactly one record batch per partition is allowed")


def _budget(at_once: bool) -> ScanBudget:
    return LOOP_BUDGET if at_once else ALL


def _check_budgets(batch: Batch, config: LogConfig, from_client: bool) -> None:
    """Check the decoding limits against the header. Raises ValidationTooSlow."""
    if _wanted_compression(batch, config) is not None:
        _REWRITTEN_AT_ONCE.check(batch)
    limits_age = config.message_timestamp_before_max_ms != INT64_MAX and not config.log_append_time
    if limits_age or (from_client and config.compact):
        LOOP_BUDGET.check(batch)


def _check_client(batch: Batch, at_once: bool) -> None:
    """Check the rules that apply only to batches of clients."""
    if batch.base_offset != 0:
        raise InvalidRecord(
            f"the baseOffset of the record batch should be 0, but it is {batch.base_offset}"
        )
    count = batch.record_count
    if count <= 0 or count != batch.last_offset_delta + 1:
        raise InvalidRecord(
            f"inconsistent last offset delta {batch.last_offset_delta} and count of records {count}"
        )
    if batch.attributes & CONTROL_MASK:
        raise InvalidRecord("clients are not allowed to write control records")
    if batch.producer_id >= 0 and batch.base_sequence < 0:
        raise InvalidRecord(
            f"invalid sequence number {batch.base_sequence} in record batch with producerId "
            f"{batch.producer_id}"
        )
    body_bytes = batch.size - HEADER_SIZE
    if count * _RECORD_MIN_BYTES > body_bytes:
        # A compressed batch may contain that many equal records.
        if batch.compression == NONE:
            raise InvalidRecord(f"{count} records cannot be in {body_bytes} bytes")
        if count > body_bytes:
            for _ in scan_records(batch, _budget(at_once)):
                pass


def _wanted_compression(batch: Batch, config: LogConfig) -> int | None:
    """Codec to compress the batch with; None if its own is kept."""
    source, name = batch.compression, config.compression_type
    if name == "producer" or (source == NONE and batch.is_control):
        return None
    target = NONE if name == "uncompressed" else NAMES.index(name)
    return None if target == source else target


def _compressed_as(batch: Batch, config: LogConfig, at_once: bool) -> Batch:
    """`batch`, or its records compressed with the topic's compression type."""
    source = batch.compression
    if source >= len(NAMES):
        raise UnsupportedCompression(f"unknown compression type id: {source}")
    target, name = _wanted_compression(batch, config), config.compression_type
    if target is None:
        return batch
    budget = _REWRITTEN_AT_ONCE if at_once else _REWRITTEN
    budget.check(batch)
    try:
        records = decode(batch, max_bytes=budget.decompressed_bytes)
    except DecompressedRecordsTooLarge as error:
        raise budget.exceeded(error.message) from error
    data = build_batch(
        records,
        base_offset=batch.base_offset,
        compression=target,
        level=_level(config, name),
        producer_id=batch.producer_id,
        producer_epoch=batch.producer_epoch,
        base_sequence=batch.base_sequence,
        transactional=batch.is_transactional,
        control=batch.is_control,
        timestamp_type=batch.timestamp_type,
    )
    if len(data) > config.max_message_bytes:
        raise RecordTooLarge(
            f"the record batch size is {len(data)} bytes after compression with {name}, which "
            f"exceeds the maximum configured value of {config.max_message_bytes} (max.message.bytes)"
        )
    return Batch(memoryview(data))


def _level(config: LogConfig, codec: str) -> int | None:
    levels = {
        "gzip": config.compression_gzip_level,
        "lz4": config.compression_lz4_level,
        "zstd": config.compression_zstd_level,
    }
    return levels.get(codec)


def _check_keys(batch: Batch, at_once: bool) -> None:
    found = scan_records(batch, _budget(at_once))
    without = [index for index, (_, has_key) in enumerate(found) if not has_key]
    if without:
        raise InvalidRecord(
            "compacted topic cannot accept message without key",
            tuple(
                (index, "compacted topic cannot accept message without key") for index in without
            ),
        )


def _check_create_time(batch: Batch, config: LogConfig, now_ms: int, at_once: bool) -> None:
    """Check the records' CreateTime against the limits (KIP-937)."""
    latest = now_ms + config.message_timestamp_after_max_ms
    before_max_ms = config.message_timestamp_before_max_ms
    if batch.max_timestamp > latest or before_max_ms != INT64_MAX:
        earliest = now_ms - before_max_ms
        outside = [
            (
                index,
                f"timestamp {timestamp} is out of range: it should be within [{earliest}, {latest}]",
            )
            for index, (timestamp, _) in enumerate(scan_records(batch, _budget(at_once)))
            if timestamp != NO_TIMESTAMP and not earliest <= timestamp <= latest
        ]
        if outside:
            raise InvalidTimestamp(
                "one or more records have been rejected due to invalid timestamp "
                "(message.timestamp.before.max.ms, message.timestamp.after.max.ms)",
                tuple(outside),
            )
    if batch.attributes & TIMESTAMP_TYPE_MASK:
        if batch.max_timestamp == NO_TIMESTAMP:
            raise InvalidTimestamp("producer should not set timestamp type to LogAppendTime")
        batch.set_max_timestamp(CREATE_TIME, batch.max_timestamp)


def check_raft(
    records: memoryview, config: LogConfig, leader_epoch: int, end_offset: int
) -> list[Batch]:
    """Validate the batches of a Raft leader, which have offsets and an epoch. Raises the errors of
    `check_produced`."""
    found = _check_given(records, end_offset, allow_partial=False)
    for batch in found:
        if batch.leader_epoch != leader_epoch:
            raise InvalidRecord(
                f"a record batch has leader epoch {batch.leader_epoch} in leader epoch {leader_epoch}"
            )
        if batch.size > config.max_message_bytes:
            raise _too_large(batch.size, config)
        if batch.size > config.max_segment_bytes:
            raise _too_large_for_segment(batch, config)
    return found


def check_replicated(records: memoryview, end_offset: int, leader_epoch: int | None) -> list[Batch]:
    """Complete batches of a leader's Fetch response, up to `leader_epoch` (KAFKA-18723).

    An incomplete last batch is skipped, and so are batches of a later epoch than that of the request:
    the sender was no longer the leader. Sizes are not limited, because the leader may have accepted the
    batches under larger limits (KAFKA-17375). Raises CorruptBatch, CorruptRecords, UnexpectedOffset.
    """
    found = _check_given(records, end_offset, allow_partial=True)
    if leader_epoch is not None:
        for number, batch in enumerate(found):
            if batch.leader_epoch > leader_epoch:
                del found[number:]
                break
    return found


def _check_given(records: memoryview, end_offset: int, *, allow_partial: bool) -> list[Batch]:
    """Check batches with offsets: complete, valid CRCs, consecutive from the log end on."""
    found: list[Batch] = []
    next_offset = -1
    for batch in batches(records, check=True, allow_partial=allow_partial):
        if batch.last_offset_delta < 0 or batch.base_offset < next_offset:
            raise CorruptRecords(
                f"offsets {batch.base_offset} to {batch.last_offset} do not follow offset {next_offset - 1}"
            )
        next_offset = batch.last_offset + 1
        if batch.is_control and batch.producer_id >= 0:
            read_marker(batch)
        found.append(batch)
    if found and found[0].base_offset < end_offset:
        raise UnexpectedOffset(
            f"unexpected offset in append: first offset {found[0].base_offset} is less than the next "
            f"offset {end_offset} (last offset {found[-1].last_offset})",
            found[0].base_offset,
            found[-1].last_offset,
        )
    return found


def _too_large(size: int, config: LogConfig) -> RecordTooLarge:
    return RecordTooLarge(
        f"the record batch size is {size} bytes, which exceeds the maximum configured value of "
        f"{config.max_message_bytes} (max.message.bytes)"
    )


def _too_large_for_segment(batch: Batch, config: LogConfig) -> RecordListTooLarge:
    return RecordListTooLarge(
        f"message batch size is {batch.size} bytes, which exceeds the maximum configured segment "
        f"size of {config.max_segment_bytes}"
    )
