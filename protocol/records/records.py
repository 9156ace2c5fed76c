"""Decodes and encodes the records of a batch, for callers that need their contents.

A record: varint length of the rest, i8 attributes (unused), varlong timestamp delta, varint offset
delta, key and value (varint length, a negative one is null), varint header count, and of each header
a key and a nullable value. Varints are zigzag. As in Java, decoding rejects a batch with bytes outside its
records. Unlike Java, it also rejects offsets that do not increase or are outside the batch.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple, TypedDict, Unpack

from odradek.protocol.errors import CorruptBatch
from odradek.protocol.records.batch import (
    CONTROL_MASK,
    CRC_START,
    HEADER,
    HEADER_SIZE,
    LOG_APPEND_TIME,
    LOG_OVERHEAD,
    MAGIC,
    TIMESTAMP_TYPE_MASK,
    TRANSACTIONAL_MASK,
    Batch,
)
from odradek.protocol.records.compression import NONE, compress, decompress
from odradek.protocol.records.crc32c import crc32c
from odradek.seams.files import Buffer

Headers = tuple[tuple[str, bytes | None], ...]

MAX_DECOMPRESSED_BYTES = 1 << 28
"""Default limit in bytes of the decompressed records of one batch."""

_RECORD_MIN_BYTES = 7
_AS_IT_IS = "surrogateescape"  # Kafka does not check that the key of a header is UTF-8, so invalid bytes are kept


class Record(NamedTuple):
    """A decoded record. `timestamp` is in ms since the epoch.

    For `build_batch`, an offset of -1 means the offset after the previous record.
    """

    offset: int
    timestamp: int
    key: bytes | None
    value: bytes | None
    headers: Headers = ()


def decode(
    batch: Batch, *, max_bytes: int = MAX_DECOMPRESSED_BYTES, renumber: bool = False
) -> list[Record]:
    """Decode the records of a complete batch. Raises CorruptBatch if any byte is invalid.

    Raises DecompressedRecordsTooLarge if the decompressed records are larger than `max_bytes`. The CRC is not checked.
    `renumber` ignores the records' offsets and numbers them from the base offset on.
    """
    return list(decode_lazily(batch, max_bytes=max_bytes, renumber=renumber))


def decode_lazily(
    batch: Batch, *, max_bytes: int = MAX_DECOMPRESSED_BYTES, renumber: bool = False
) -> Iterator[Record]:
    """Decode records one at a time, for a caller that yields to other tasks in between.

    Unlike `decode`, it may raise CorruptBatch after it has returned some records.
    """
    if len(batch.view) != batch.size:
        raise CorruptBatch(f"{len(batch.view)} bytes of a batch of {batch.size}")
    count = batch.record_count
    body: Buffer = batch.view[HEADER_SIZE:]
    if batch.compression != NONE and count != 0:
        body = decompress(batch.compression, body, max_bytes)
    if not 0 <= count * _RECORD_MIN_BYTES <= len(body):
        raise CorruptBatch(f"{count} records in {len(body)} bytes")
    append_time = batch.max_timestamp if batch.timestamp_type == LOG_APPEND_TIME else None
    try:
        yield from _decode_records(bytes(body), batch, append_time, renumber)
    except IndexError:
        raise CorruptBatch("a record is cut short") from None


def _decode_records(
    body: bytes, batch: Batch, append_time: int | None, renumber: bool
) -> Iterator[Record]:
    base_offset, base_timestamp = batch.base_offset, batch.base_timestamp
    last_delta = batch.last_offset_delta
    position = 0
    previous = -1
    for _ in range(batch.record_count):
        size, position = read_varint(body, position)
        end = position + size
        if size < _RECORD_MIN_BYTES - 1 or end > len(body):
            raise CorruptBatch(f"a record of {size} bytes, {len(body) - position} are left")
        timestamp_delta, position = read_varlong(body, position + 1)
        offset_delta, position = read_varint(body, position)
        if renumber:
            offset_delta = previous + 1
        if not previous < offset_delta <= last_delta:
            raise CorruptBatch(f"offset delta {offset_delta} after {previous}, of {last_delta}")
        previous = offset_delta
        key, position = _bytes(body, position, end)
        value, position = _bytes(body, position, end)
        header_count, position = read_varint(body, position)
        headers: Headers = ()
        if header_count:
            headers, position = _headers(body, position, end, header_count)
        if position != end:
            raise CorruptBatch(f"a record of {size} bytes ends {end - position} bytes early")
        timestamp = base_timestamp + timestamp_delta if append_time is None else append_time
        yield Record(base_offset + offset_delta, timestamp, key, value, headers)
    if position != len(body):
        raise CorruptBatch(f"{len(body) - position} bytes after the last record")


def _headers(body: bytes, position: int, end: int, count: int) -> tuple[Headers, int]:
    if not 0 <= count * 2 <= end - position:
        raise CorruptBatch(f"{count} headers in {end - position} bytes")
    headers = []
    for _ in range(count):
        key, position = _bytes(body, position, end)
        if key is None:
            raise CorruptBatch("a header without a key")
        value, position = _bytes(body, position, end)
        headers.append((key.decode(errors=_AS_IT_IS), value))
    return tuple(headers), position


def _bytes(body: bytes, position: int, end: int) -> tuple[bytes | None, int]:
    size, position = read_varint(body, position)
    if size < 0:  # as in Kafka, any negative length is null
        return None, position
    after = position + size
    if after > end:
        raise CorruptBatch(f"a length of {size}, {end - position} bytes are left in the record")
    return body[position:after], after


def read_varint(body: bytes, position: int) -> tuple[int, int]:
    """Read a zigzag varint of 32 bits and the position after it. Raises IndexError if it is truncated."""
    raw = body[position]
    position += 1
    if raw < 0x80:
        return (raw >> 1) ^ -(raw & 1), position
    raw &= 0x7F
    for shift in (7, 14, 21, 28):
        byte = body[position]
        position += 1
        raw |= (byte & 0x7F) << shift
        if byte < 0x80:
            if raw > 0xFFFFFFFF:
                break
            return (raw >> 1) ^ -(raw & 1), position
    raise CorruptBatch("a varint of more than 32 bits")


def read_varlong(body: bytes, position: int) -> tuple[int, int]:
    """Read a zigzag varint of 64 bits and the position after it. Raises IndexError if it is truncated."""
    raw = shift = 0
    while shift < 70:
        byte = body[position]
        position += 1
        raw |= (byte & 0x7F) << shift
        if byte < 0x80:
            if raw >= 1 << 64:
                break
            return (raw >> 1) ^ -(raw & 1), position
        shift += 7
    raise CorruptBatch("a varint of more than 64 bits")


class Framing(TypedDict, total=False):
    """Header fields of a batch that do not depend on its records, and the compression level.

    Defaults: no compression, level of the codec, CreateTime, -1 for ids and epochs.
    """

    compression: int
    producer_id: int
    producer_epoch: int
    base_sequence: int
    leader_epoch: int
    transactional: bool
    control: bool
    timestamp_type: int
    level: int | None


def build_batch(
    records: Sequence[Record],
    *,
    base_offset: int = 0,
    **framing: Unpack[Framing],
) -> bytearray:
    """Build a batch of at least one record; `framing` are arguments of `frame_batch`.

    The offset of a record is at least `base_offset` and greater than that of the previous record; -1 means the next
    one. The base timestamp is that of the first record.
    """
    if not records:
        raise ValueError("a batch needs a record")
    base_timestamp = records[0].timestamp
    body = bytearray()
    last_delta = -1
    for record in records:
        delta = last_delta + 1 if record.offset == -1 else record.offset - base_offset
        if delta <= last_delta:
            raise ValueError(f"offset {record.offset} after delta {last_delta} of {base_offset}")
        last_delta = delta
        _encode_record(body, record, delta, record.timestamp - base_timestamp)
    return frame_batch(
        body,
        len(records),
        base_offset=base_offset,
        last_delta=last_delta,
        base_timestamp=base_timestamp,
        max_timestamp=max(record.timestamp for record in records),
        **framing,
    )


def frame_batch(
    body: Buffer,
    count: int,
    *,
    base_timestamp: int,
    max_timestamp: int,
    last_delta: int | None = None,
    base_offset: int = 0,
    **framing: Unpack[Framing],
) -> bytearray:
    """Build a batch of `count` encoded records. Without `last_delta`, their offsets are consecutive."""
    attributes = compression = framing.get("compression", NONE)
    if framing.get("timestamp_type") == LOG_APPEND_TIME:
        attributes |= TIMESTAMP_TYPE_MASK
    if framing.get("transactional"):
        attributes |= TRANSACTIONAL_MASK
    if framing.get("control"):
        attributes |= CONTROL_MASK
    payload: Buffer = (
        compress(compression, body, framing.get("level")) if compression != NONE else body
    )
    batch = bytearray(HEADER_SIZE)
    HEADER.pack_into(
        batch,
        0,
        base_offset,
        HEADER_SIZE - LOG_OVERHEAD + len(payload),
        framing.get("leader_epoch", -1),
        MAGIC,
        0,
        attributes,
        count - 1 if last_delta is None else last_delta,
        base_timestamp,
        max_timestamp,
        framing.get("producer_id", -1),
        framing.get("producer_epoch", -1),
        framing.get("base_sequence", -1),
        count,
    )
    batch += payload
    batch[17:21] = crc32c(memoryview(batch)[CRC_START:]).to_bytes(4, "big")
    return batch


def _encode_record(out: bytearray, record: Record, offset_delta: int, timestamp_delta: int) -> None:
    body = bytearray(1)
    _append_varint(body, timestamp_delta)
    _append_varint(body, offset_delta)
    _append_bytes(body, record.key)
    _append_bytes(body, record.value)
    _append_varint(body, len(record.headers))
    for key, value in record.headers:
        _append_bytes(body, key.encode(errors=_AS_IT_IS))
        _append_bytes(body, value)
    _append_varint(out, len(body))
    out += body


def _append_bytes(out: bytearray, data: Buffer | None) -> None:
    if data is None:
        out.append(1)  # -1 in zigzag encoding
    else:
        _append_varint(out, len(data))
        out += data


def _append_varint(out: bytearray, value: int) -> None:
    raw = (value << 1) ^ (value >> 63)
    while raw > 0x7F:
        out.append(raw & 0x7F | 0x80)
        raw >>= 7
    out.append(raw)
