"""Validation of appended records (Kafka 4.3's LogValidator).

A batch of a client is checked as a whole: header, CRC, and the structure, keys and timestamps of its records,
which are scanned and not decoded (protocol.records.record_scan). The largest timestamp in the header is that of
the records afterwards, because clients set it wrongly and the time index, retention and ListOffsets use it.
Records are decoded only to compress them with another codec or to correct their offsets.

The event loop scans what takes at most about 2 ms (`LOOP_BUDGET`); more is for a worker thread.
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
from odradek.protocol.records.record_scan import is_compiled, scan_records
from odradek.protocol.records.records import (
    MAX_DECOMPRESSED_BYTES,
    build_batch,
    decode,
    read_varint,
    read_varlong,
)
from odradek.seams.files import Buffer
from odradek.seams.values import value_class
from odradek.storage.errors import (
    CorruptRecords,
    InvalidCompression,
    InvalidRecord,
    InvalidTimestamp,
    NotOneBatch,
    RecordListTooLarge,
    RecordTooLarge,
    UnexpectedOffset,
    UnsupportedCompression,
)
from odradek.storage.log.config import INT64_MAX, LogConfig
from odradek.storage.log.producer_state import read_marker


class ValidationTooSlow(Exception):
    """Validation of these records would block the event loop and must run in a worker thread."""


INT32_MAX = 2**31 - 1


@value_class
class ScanBudget:
    """Limits for scanning a batch: records, bytes of a compressed batch, and decompressed bytes.

    A few KiB may contain hundreds of MiB, and claim millions of records.
    """

    records: int
    compressed_bytes: int
    decompressed_bytes: int
    is_final: bool = False
    """Whether a larger batch is refused; otherwise a worker thread scans it."""

    def check(self, batch: Batch) -> None:
        """Raises ValidationTooSlow or RecordTooLarge, after which producers split a batch and retry."""
        if batch.record_count > self.records:
            raise self.exceeded(
                f"the record batch has {batch.record_count} records, which exceeds the limit of {self.records}"
            )
        if batch.attributes & COMPRESSION_MASK and batch.size > self.compressed_bytes:
            raise self.exceeded(f"the compressed record batch size is {batch.size} bytes")

    def exceeded(self, why: str) -> ValidationTooSlow | RecordTooLarge:
        return RecordTooLarge(why) if self.is_final else ValidationTooSlow(why)


_DECODED_MAX = 200_000
"""Number of records that are decoded in Python, which takes about a second in a worker thread."""
FINAL_BUDGET = ScanBudget(
    INT32_MAX if is_compiled else _DECODED_MAX, INT32_MAX, MAX_DECOMPRESSED_BYTES, is_final=True
)
"""Limits of what is appended: consumers and the log cleaner cannot read larger batches."""
LOOP_BUDGET = ScanBudget(100_000 if is_compiled else 2_000, 256 << 10, 1 << 20)
"""About 2 ms."""
_DECODING_FINAL_BUDGET = ScanBudget(_DECODED_MAX, INT32_MAX, MAX_DECOMPRESSED_BYTES, is_final=True)
_DECODING_BUDGET = ScanBudget(200, 64 << 10, 64 << 10)
"""About 2 ms where the records are decoded, too."""
_LISTED_ON_LOOP = 2_000
"""Number of records among which the event loop looks for the invalid ones."""


def _decompressed(batch: Batch, at_once: bool) -> Buffer:
    """The records of a compressed batch. Raises InvalidCompression, RecordTooLarge and ValidationTooSlow."""
    budget = LOOP_BUDGET if at_once else FINAL_BUDGET
    if batch.compression >= len(NAMES):
        raise UnsupportedCompression(f"unknown compression type id: {batch.compression}")
    try:
        return decompress(batch.compression, batch.view[HEADER_SIZE:], budget.decompressed_bytes)
    except DecompressedRecordsTooLarge as error:
        raise budget.exceeded(error.message) from error
    except CorruptBatch as error:
        raise InvalidCompression(f"Failed to decompress record stream: {error.message}") from error


def _timestamps_and_keys(batch: Batch, body: Buffer) -> Iterator[tuple[int, bool]]:
    """Timestamp of each record of a scanned batch, and whether the record has a key."""
    data = bytes(body)
    position, base = 0, batch.base_timestamp
    append_time = batch.max_timestamp if batch.timestamp_type == LOG_APPEND_TIME else None
    for _ in range(batch.record_count):
        size, start = read_varint(data, position)
        delta, at = read_varlong(data, start + 1)
        _, at = read_varint(data, at)
        key_length, _ = read_varint(data, at)
        yield base + delta if append_time is None else append_time, key_length >= 0
        position = start + size


_LENGTH_AT, _MAGIC_AT = 8, 16
_LENGTH = Struct(">i")
_LENGTH_MIN = 14
"""Smallest value of the length field: that of an empty message with magic 0."""


def check_produced(
    records: memoryview,
    config: LogConfig,
    now_ms: int,
    *,
    from_client: bool,
    at_once: bool = False,
) -> Batch:
    """Validate the only batch in `records`; the caller assigns offsets and appends `Batch.view`.

    That is `records` itself, changed in place (largest timestamp), or a new buffer where the topic's
    compression type differs from the batch's or offsets are not consecutive. Raises InvalidRecord, InvalidTimestamp,
    CorruptRecords, CorruptBatch, RecordTooLarge, RecordListTooLarge, UnsupportedCompression; `at_once`,
    on the loop, ValidationTooSlow where that is for a thread, with nothing changed.
    """
    batch = only_batch(records)
    size = batch.size
    if size > config.max_message_bytes:
        raise _too_large(size, config)
    if at_once and from_client:
        LOOP_BUDGET.check(batch)  # before the CRC, which a worker thread computes otherwise
    batch.check()
    if from_client:
        batch = _check_client_batch(batch, config, now_ms, at_once)
    elif config.compression_type != "producer":
        batch = _recompressed(batch, config, at_once)
    if config.log_append_time:
        batch.set_max_timestamp(LOG_APPEND_TIME, now_ms)
    if batch.size > config.max_segment_bytes:
        raise _too_large_for_segment(batch, config)
    return batch


def only_batch(records: memoryview) -> Batch:
    """Return the only batch in `records`, whose header is valid. Raises NotOneBatch, CorruptRecords or
    CorruptBatch."""
    try:
        batch = Batch(records)
    except CorruptBatch as error:
        raise _as_found(records, error) from error
    if batch.size != len(records):
        _check_rest(batch, records)
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
        return NotOneBatch(f"no complete record batch in {len(records)} bytes")
    if isinstance(error, UnsupportedMagic):
        return NotOneBatch(f"only record batches with magic {MAGIC} are supported: {error}")
    return error


def _check_rest(batch: Batch, records: memoryview) -> None:
    """Check that the batch is complete and the only one; an incomplete second batch is ignored, as in
    Kafka."""
    if batch.size > len(records):
        raise NotOneBatch(f"incomplete record batch: {len(records)} of {batch.size} bytes")
    if _is_batch_there(records, batch.size):
        raise NotOneBatch("exactly one record batch per partition is allowed")


def _check_client_batch(batch: Batch, config: LogConfig, now_ms: int, at_once: bool) -> Batch:
    """Check a client's batch and its records; compress them again if necessary, and correct the largest
    timestamp."""
    _check_client_header(batch)
    if not at_once:
        FINAL_BUDGET.check(batch)
    attributes = batch.attributes
    body = (
        _decompressed(batch, at_once) if attributes & COMPRESSION_MASK else batch.view[HEADER_SIZE:]
    )
    try:
        latest, earliest, keyless, consecutive = scan_records(
            body, batch.record_count, batch.base_timestamp
        )
    except ValueError as error:
        raise InvalidRecord(f"invalid records: {error}") from None
    has_append_time = attributes & TIMESTAMP_TYPE_MASK
    if has_append_time:  # the records' own timestamps do not count
        latest = batch.max_timestamp
        earliest = latest if latest != NO_TIMESTAMP else INT64_MAX
    if (
        has_append_time
        or (keyless and config.compact)
        or latest > now_ms + config.message_timestamp_after_max_ms
        or earliest < now_ms - config.message_timestamp_before_max_ms
    ):
        _check_each_record(batch, body, config, now_ms, at_once)
    if not consecutive or config.compression_type != "producer":
        batch = _recompressed(batch, config, at_once, renumber=not consecutive)
    if latest != batch.max_timestamp or has_append_time:
        batch.set_max_timestamp(CREATE_TIME, latest)
    return batch


def _check_each_record(
    batch: Batch, body: Buffer, config: LogConfig, now_ms: int, at_once: bool
) -> None:
    """Raises InvalidRecord or InvalidTimestamp with all records that have no key in a compacted topic or a
    timestamp outside the limits (KIP-937)."""
    if at_once and batch.record_count > _LISTED_ON_LOOP:
        raise ValidationTooSlow(f"{batch.record_count} records")
    lower = now_ms - config.message_timestamp_before_max_ms
    upper = now_ms + config.message_timestamp_after_max_ms
    errors: list[tuple[int, str]] = []
    invalid_timestamps = 0
    for index, (timestamp, has_key) in enumerate(_timestamps_and_keys(batch, body)):
        if config.compact and not has_key:
            errors.append((index, "Compacted topic cannot accept message without key"))
        elif not config.log_append_time and timestamp != NO_TIMESTAMP:
            if not lower <= timestamp <= upper:
                invalid_timestamps += 1
                errors.append((index, _OUT_OF_RANGE.format(timestamp, index, lower, upper)))
        elif batch.timestamp_type == LOG_APPEND_TIME:
            invalid_timestamps += 1
            errors.append((index, _APPEND_TIME_OF_PRODUCER))
    if invalid_timestamps:
        raise InvalidTimestamp(
            "One or more records have been rejected due to invalid timestamp", tuple(errors)
        )
    if errors:
        raise InvalidRecord(
            f"One or more records have been rejected due to {len(errors)} record errors",
            tuple(errors),
        )


_OUT_OF_RANGE = (
    "Timestamp {} of message with offset {} is out of range. "
    "The timestamp should be within [{}, {}]"
)
_APPEND_TIME_OF_PRODUCER = (
    "Invalid timestamp type in message. Producer should not set timestamp type to LogAppendTime."
)


def _check_client_header(batch: Batch) -> None:
    """Check the rules that apply only to headers of clients' batches."""
    if batch.base_offset != 0:
        raise InvalidRecord(
            f"the baseOffset of the record batch should be 0, but it is {batch.base_offset}"
        )
    count = batch.record_count
    if count <= 0 or count != batch.last_offset_delta + 1:
        raise InvalidRecord(
            f"inconsistent last offset delta {batch.last_offset_delta} and count of records {count}"
        )
    if count > batch.size and not batch.attributes & COMPRESSION_MASK:
        raise InvalidRecord(f"{count} records cannot be in {batch.size} bytes")
    if batch.attributes & CONTROL_MASK:
        raise InvalidRecord("clients are not allowed to write control records")
    if batch.producer_id >= 0 and batch.base_sequence < 0:
        raise InvalidRecord(
            f"invalid sequence number {batch.base_sequence} in record batch with producerId "
            f"{batch.producer_id}"
        )


def _wanted_compression(batch: Batch, config: LogConfig) -> int | None:
    """Codec to compress the batch with; None if its own is kept."""
    source, name = batch.compression, config.compression_type
    if name == "producer" or (source == NONE and batch.is_control):
        return None
    target = NONE if name == "uncompressed" else NAMES.index(name)
    return None if target == source else target


def _recompressed(
    batch: Batch, config: LogConfig, at_once: bool, *, renumber: bool = False
) -> Batch:
    """`batch`, or a batch of the same records if the topic's compression type differs from the batch's or
    the offsets must be corrected."""
    target, name = _wanted_compression(batch, config), config.compression_type
    if target is None:
        if not renumber:
            return batch
        target, name = batch.compression, NAMES[batch.compression]
    budget = _DECODING_BUDGET if at_once else _DECODING_FINAL_BUDGET
    budget.check(batch)
    if at_once and batch.size > budget.compressed_bytes:
        raise ValidationTooSlow(f"the record batch size is {batch.size} bytes")
    try:
        records = decode(batch, max_bytes=budget.decompressed_bytes, renumber=renumber)
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
