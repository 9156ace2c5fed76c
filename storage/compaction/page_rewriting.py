"""Bytes of a page after compaction: batches unchanged, with fewer records, or empty.

- A batch that keeps all records is copied unchanged.
- A batch that loses records is rebuilt from the bytes of the rest. Base and last offset, base timestamp,
  producer, epoch and sequence stay the same; count, largest timestamp and CRC are new; compressed data
  is compressed again with the same codec.
- A batch that gets a delete horizon has it as base timestamp (KIP-534), to which the timestamps of its
  records are relative: they are encoded again, record by record.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

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
from odradek.seams.files import Buffer
from odradek.seams.values import value_class
from odradek.storage.compaction import varint_columns
from odradek.storage.compaction.record_columns import BatchPage
from odradek.storage.compaction.record_filter import FilterResult

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

    def __init__(self, page: BatchPage, filtered: FilterResult, horizon_ms: int) -> None:
        """`horizon_ms` is the delete horizon of batches that get one in this pass."""
        self._page = page
        self._filtered = filtered
        self._horizon_ms = horizon_ms
        self._view = memoryview(page.data)
        self.parts: list[Buffer] = []
        self.batches: list[RewrittenBatch] = []
        self._run_start = self._run_end = 0
        self._rewrite()

    def _rewrite(self) -> None:
        page, filtered = self._page, self._filtered
        is_whole = (filtered.kept_count == page.record_count) & ~filtered.sets_horizon
        is_copied = (is_whole & (filtered.kept_count > 0)).tolist()
        kept_count, stays_empty = filtered.kept_count.tolist(), filtered.stays_empty.tolist()
        last_offsets, max_timestamps = page.last_offset.tolist(), page.max_timestamp.tolist()
        rebuilt = iter(self._rebuilt_bodies(~is_whole & (filtered.kept_count > 0)))
        for number, (start, end) in enumerate(zip(page.starts, page.ends, strict=True)):
            if is_copied[number]:
                self._copy(start, end)
                self.batches.append(
                    RewrittenBatch(last_offsets[number], max_timestamps[number], end - start)
                )
            elif kept_count[number]:
                old = Batch(self._view, start)
                sets_horizon = bool(filtered.sets_horizon[number])
                self._rebuild(old, kept_count[number], *next(rebuilt), sets_horizon=sets_horizon)
            elif stays_empty[number]:
                self._empty(Batch(self._view, start))
        self._end_run()

    def _copy(self, start: int, end: int) -> None:
        """Copy adjacent batches as one part."""
        if start != self._run_end:
            self._end_run()
            self._run_start = start
        self._run_end = end

    def _end_run(self) -> None:
        if self._run_end > self._run_start:
            self.parts.append(self._view[self._run_start : self._run_end])
        self._run_start = self._run_end = 0

    def _add(
        self,
        old: Batch,
        attributes: int,
        base_timestamp: int,
        max_timestamp: int,
        count: int,
        payload: bytes,
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
        self._end_run()
        self.parts += (header, payload)
        self.batches.append(
            RewrittenBatch(old.last_offset, max_timestamp, HEADER_SIZE + len(payload))
        )

    def _empty(self, old: Batch) -> None:
        """Add the batch without records: offsets, producer and largest timestamp stay."""
        self._add(old, old.attributes & _KEPT_WHEN_EMPTY, NO_TIMESTAMP, old.max_timestamp, 0, b"")

    # Batches with fewer records

    def _rebuild(
        self, old: Batch, count: int, body: bytes, latest: int, *, sets_horizon: bool
    ) -> None:
        attributes = old.attributes & _UNCHANGED
        base_timestamp = old.base_timestamp
        max_timestamp = base_timestamp + latest
        if attributes & TIMESTAMP_TYPE_MASK:
            max_timestamp = old.max_timestamp
        if sets_horizon:
            attributes |= DELETE_HORIZON_MASK
            base_timestamp = self._horizon_ms
        codec = attributes & COMPRESSION_MASK
        payload = body if codec == NONE else compress(codec, body)
        self._add(old, attributes, base_timestamp, max_timestamp, count, payload)

    def _rebuilt_bodies(self, wanted: varint_columns.Flags) -> Iterator[tuple[bytes, int]]:
        """Remaining records of each wanted batch, in order, and their largest timestamp, relative to
        the old base timestamp."""
        records, data = self._filtered.records, self._page.data
        rows = np.flatnonzero(self._filtered.kept_records & wanted[records.batch])
        if not rows.size:
            return
        batch, start, end = records.batch[rows], records.start[rows], records.end[rows]
        first = _starts_of_runs(batch[1:] != batch[:-1])
        latest = np.maximum.reduceat(records.timestamp_delta[rows], first).tolist()
        # Adjacent records are copied as one piece.
        piece = _starts_of_runs((batch[1:] != batch[:-1]) | (start[1:] != end[:-1]))
        pieces = [
            data[begin:stop]
            for begin, stop in zip(
                start[piece].tolist(),
                end[np.append(piece[1:], len(rows)) - 1].tolist(),
                strict=True,
            )
        ]
        bounds = np.append(np.searchsorted(piece, first), len(piece)).tolist()
        rows_bounds = np.append(first, len(rows)).tolist()
        for index, number in enumerate(batch[first].tolist()):
            if self._filtered.sets_horizon[number]:
                mine = rows[rows_bounds[index] : rows_bounds[index + 1]]
                yield self._with_horizon(number, mine), latest[index]
            else:
                yield b"".join(pieces[bounds[index] : bounds[index + 1]]), latest[index]

    def _with_horizon(self, number: int, rows: varint_columns.Ints) -> bytes:
        """Records with timestamps relative to the delete horizon."""
        records, data = self._filtered.records, self._page.data
        shift = int(self._page.base_timestamp[number]) - self._horizon_ms
        out: list[bytes] = []
        encode = varint_columns.encode
        for delta, rest, end in zip(
            records.timestamp_delta[rows].tolist(),
            records.timestamp_end[rows].tolist(),
            records.end[rows].tolist(),
            strict=True,
        ):
            timestamp = encode(delta + shift)
            out += (encode(1 + len(timestamp) + end - rest), b"\0", timestamp, data[rest:end])
        return b"".join(out)


def _starts_of_runs(differs: varint_columns.Flags) -> varint_columns.Ints:
    """Start of each run of equal values; `differs` compares each element but the first with its
    predecessor."""
    return np.concatenate(([0], np.flatnonzero(differs) + 1))
