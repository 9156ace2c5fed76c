"""Bytes of a page after compaction: batches unchanged, with fewer records, or empty.

- A batch that keeps all records is copied unchanged.
- A batch that loses records is rebuilt from the bytes of the rest. Base and last offset, base timestamp,
  producer, epoch and sequence stay the same; count, largest timestamp and CRC are new; compressed data
  is compressed again with the same codec.
- A batch that gets a delete horizon has it as base timestamp (KIP-534), to which the timestamps of its
  records are relative: they are encoded again, record by record.
"""

from __future__ import annotations

from odradek.protocol.records.batch import (
    COMPRESSION_MASK,
    CONTROL_MASK,
    CRC_START,
    DELETE_HORIZON_MASK,
    HEADER,
    HEADER_SIZE,
    LOG_OVERHEAD,
    MAGIC,
    NO_TIMESTAMP,
    TIMESTAMP_TYPE_MASK,
    TRANSACTIONAL_MASK,
    Batch,
)
from odradek.protocol.records.compression import NONE, compress
from odradek.protocol.records.crc32c import crc32c
from odradek.protocol.records.records import read_varint, read_varlong
from odradek.seams.files import Buffer
from odradek.seams.values import value_class
from odradek.storage.compaction.record_filter import FilteredBatch

_KEPT_WHEN_EMPTY = TIMESTAMP_TYPE_MASK | TRANSACTIONAL_MASK | CONTROL_MASK
_UNCHANGED = _KEPT_WHEN_EMPTY | COMPRESSION_MASK | DELETE_HORIZON_MASK


@value_class
class RewrittenBatch:
    """One batch of the result, for the indexes."""

    last_offset: int
    max_timestamp: int
    size: int


class RewrittenPage:
    """A page after compaction: `parts` are its bytes, `batches` describe them."""

    def __init__(self, data: memoryview, horizon_ms: int) -> None:
        """`data` are the bytes of the page; `horizon_ms` is the delete horizon of batches that get one in this pass."""
        self._data = data
        self._horizon_ms = horizon_ms
        self.parts: list[Buffer] = []
        self.batches: list[RewrittenBatch] = []
        self._run_start = self._run_end = 0

    def add(self, batch: Batch, filtered: FilteredBatch) -> None:
        """Add the next batch of the page."""
        if filtered.is_unchanged:
            self._copy(batch)
        elif filtered.kept_count:
            self._rebuild(batch, filtered)
        elif filtered.stays_empty:
            self._empty(batch)

    def finish(self) -> None:
        """Complete `parts` after the last batch."""
        if self._run_end > self._run_start:
            self.parts.append(self._data[self._run_start : self._run_end])
        self._run_start = self._run_end = 0

    def _copy(self, batch: Batch) -> None:
        """Copy adjacent batches as one part."""
        if batch.position != self._run_end:
            self.finish()
            self._run_start = batch.position
        self._run_end = batch.position + batch.size
        self.batches.append(RewrittenBatch(batch.last_offset, batch.max_timestamp, batch.size))

    def _add(
        self,
        old: Batch,
        attributes: int,
        base_timestamp: int,
        max_timestamp: int,
        count: int,
        payload: Buffer,
    ) -> None:
        """Add a rebuilt batch with a new header; fields that are not given stay the same."""
        header = bytearray(HEADER_SIZE)
        HEADER.pack_into(
            header,
            0,
            old.base_offset,
            HEADER_SIZE - LOG_OVERHEAD + len(payload),
            old.leader_epoch,
            MAGIC,
            0,
            attributes,
            old.last_offset_delta,
            base_timestamp,
            max_timestamp,
            old.producer_id,
            old.producer_epoch,
            old.base_sequence,
            count,
        )
        crc = crc32c(payload, crc32c(memoryview(header)[CRC_START:]))
        header[17:21] = crc.to_bytes(4, "big")
        self.finish()
        self.parts += (header, payload)
        self.batches.append(
            RewrittenBatch(old.last_offset, max_timestamp, HEADER_SIZE + len(payload))
        )

    def _empty(self, old: Batch) -> None:
        """Add the batch without records: offsets, producer and largest timestamp stay."""
        self._add(old, old.attributes & _KEPT_WHEN_EMPTY, NO_TIMESTAMP, old.max_timestamp, 0, b"")

    def _rebuild(self, old: Batch, filtered: FilteredBatch) -> None:
        attributes = old.attributes & _UNCHANGED
        base_timestamp = old.base_timestamp
        if attributes & TIMESTAMP_TYPE_MASK:
            max_timestamp = old.max_timestamp
        else:
            max_timestamp = _wrapped(base_timestamp + filtered.latest_delta)
        body = filtered.body
        if filtered.sets_horizon:
            attributes |= DELETE_HORIZON_MASK
            body = _shifted(body, base_timestamp - self._horizon_ms)
            base_timestamp = self._horizon_ms
        codec = attributes & COMPRESSION_MASK
        payload = body if codec == NONE else compress(codec, body)
        self._add(old, attributes, base_timestamp, max_timestamp, filtered.kept_count, payload)


def _shifted(body: Buffer, shift: int) -> bytes:
    """Valid records with `shift` ms added to their timestamp deltas."""
    data = bytes(body)
    parts: list[bytes] = []
    position = 0
    while position < len(data):
        size, start = read_varint(data, position)
        position = start + size
        timestamp_delta, rest = read_varlong(data, start + 1)
        encoded = _varlong(timestamp_delta + shift)
        parts += (
            _varlong(1 + len(encoded) + position - rest),
            b"\0",  # the attributes of a record are unused
            encoded,
            data[rest:position],
        )
    return b"".join(parts)


def _varlong(value: int) -> bytes:
    """One signed value as a zigzag varint."""
    value = _wrapped(value)
    raw = ((value << 1) ^ (value >> 63)) & 0xFFFFFFFFFFFFFFFF
    encoded = bytearray()
    while raw > 0x7F:
        encoded.append(raw & 0x7F | 0x80)
        raw >>= 7
    encoded.append(raw)
    return bytes(encoded)


def _wrapped(value: int) -> int:
    """The value in 64 bits, as Java computes it."""
    return (value + 2**63) % 2**64 - 2**63
