"""Decodes the bytes of a log to Arrow record batches.

A decoder is fed consecutive pieces of one log, from an object store, a file or Fetch responses. A batch that a
piece ends in waits for the next piece. A batch of a segment also waits until the base offset of the next batch is
known: the CRC does not cover the base offset, so it is checked against the adjacent batches. Data that the query
does not need is skipped early: batches by their headers, records by offset and time, and columns entirely. If only
offsets are needed, no record is decoded as long as the header has one record for each offset.

A wrong CRC, offsets that do not increase and invalid records raise `CorruptSegment`, with the object and the byte
position. Nothing is skipped silently.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import cached_property
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from odradek.pipeline.decoding.arrow_columns import (
    TYPES,
    BinaryColumn,
    HeadersColumn,
    arrow_schema,
    empty_array,
    numbers,
    repeated,
)
from odradek.pipeline.decoding.batch_headers import find_batches
from odradek.pipeline.decoding.record_selection import (
    INT64_MAX,
    INT64_MIN,
    AbortedTransaction,
    RecordSelection,
)
from odradek.pipeline.errors import CorruptSegment
from odradek.protocol.errors import CorruptBatch
from odradek.protocol.records.batch import HEADER_SIZE, LOG_OVERHEAD
from odradek.protocol.records.compression import NONE
from odradek.protocol.records.crc32c import crc32c
from odradek.seams.files import Buffer

if TYPE_CHECKING:
    from odradek.pipeline.decoding.decompression import DecompressionBuffer

__all__ = ["AbortedTransaction", "RecordDecoder", "RecordSelection"]

GROUP_BYTES = 8 << 20
"""Approximate size, in bytes of decompressed records, of an Arrow batch."""
TOPIC_BYTES_MAX = 64 << 20
"""Maximum bytes of the topic column in an Arrow batch, whose offsets have 32 bits. A batch of a few MB may
decompress to tens of millions of records, each with the topic's name.
"""
HEADERS_AT_ONCE = 1 << 14
OFFSET_BYTES = 16
"""Approximate bytes of a row that has little more than an offset."""
OFFSETS_AT_ONCE = GROUP_BYTES // OFFSET_BYTES
_FIRST_OFFSET_BYTES = 8
"""Size of the base offset, with which a batch begins."""
_RECORD_BYTES_MIN = 7
"""Minimum size of a record: no key, value or headers."""

COMPRESSION, LOG_APPEND_TIME, TRANSACTIONAL, CONTROL = 0x07, 0x08, 0x10, 0x20
_CRC_START = 21
MS_MAX = INT64_MAX // 1000
"""Latest timestamp (ms) of a column in microseconds; later timestamps are replaced by it."""

_WRONG_OFFSETS = "the batch's offsets are not in the expected range"


class RecordDecoder:
    """Decodes the records of one log. `source` names the log in errors."""

    def __init__(self, wanted: RecordSelection, source: str, *, check_crcs: bool = True) -> None:
        self.wanted = wanted
        self.source = source
        self.schema = arrow_schema(wanted.columns, wanted.rows)
        self.next_offset = wanted.low
        """All wanted records below this offset were returned, or do not exist."""
        self._check_crcs = check_crcs
        self._position = 0
        """Position in the source of the next byte."""
        self._rest: bytes = b""
        self._aborted = sorted(wanted.aborted, key=lambda each: each.first_offset)
        self._bounds = (0, INT64_MAX)
        self._last_offset = -1
        """Last offset of the previous batch, wanted or not."""
        self._begins_by: int | None = None
        self._ahead = 0
        """Bytes after a batch that must be known before it is decoded."""

    @cached_property
    def _buffer(self) -> DecompressionBuffer:
        from odradek.pipeline.decoding.decompression import DecompressionBuffer

        return DecompressionBuffer(GROUP_BYTES)

    @property
    def is_done(self) -> bool:
        """Whether all wanted records have been decoded."""
        return self.next_offset >= self.wanted.high

    def seek(self, position: int) -> None:
        """Set the position in the source at which the next piece begins; it is only used in error messages."""
        self._position = position

    def within(self, first: int, last: int, begins_by: int | None = None) -> None:
        """Declare that the input is a segment with offsets from `first` to `last` (inclusive).

        Batches with other offsets are corrupt. A batch is decoded only when the base offset of the next one is
        known, or after `end`. The first batch must begin at or before `begins_by`, otherwise an earlier batch was
        missed.
        """
        self._bounds, self._last_offset = (first, last), first - 1
        self._begins_by = begins_by
        self._ahead = _FIRST_OFFSET_BYTES

    def feed(self, piece: Buffer, headroom: int = 0) -> Iterator[pa.RecordBatch]:
        """Decode the batches that are complete with this piece; the returned batches do not refer to the piece's
        memory.

        The first `headroom` bytes of the piece are writable memory without data: the rest of earlier pieces is copied
        there if it fits, so that it is decoded together with this piece. Raises CorruptSegment.
        """
        view = memoryview(piece)
        left = len(self._rest)
        if headroom and left <= headroom:
            view[headroom - left : headroom] = self._rest
            view, self._rest = view[headroom - left :], b""
        else:
            view = view[headroom:]
        while self._rest and len(view):
            taken = max(_size(self._rest) + self._ahead - len(self._rest), 0)
            joined, self._rest = self._rest + view[:taken], b""
            whole = _size(joined)
            if len(joined) < whole + self._ahead:
                self._rest, view = joined, view[taken:]
                continue
            # bytes of this piece that belong to later batches
            carried = min(len(joined) - whole, taken)
            yield from self._feed(memoryview(joined))
            if self.is_done:
                return
            self._rest = self._rest[: len(self._rest) - carried]
            view = view[taken - carried :]
        if len(view):
            yield from self._feed(view)

    def rows_without_reading(self, low: int, high: int) -> Iterator[pa.RecordBatch]:
        """Return rows for the offsets low <= offset < high, each of which is known to have a record, without
        reading them.
        """
        low, high = max(low, self.wanted.low), min(high, self.wanted.high)
        for first in range(low, high, OFFSETS_AT_ONCE):
            end = min(first + OFFSETS_AT_ONCE, high)
            yield from self._tables(end - first, {"offset": np.arange(first, end)})

    def end(self) -> Iterator[pa.RecordBatch]:
        """Decode the batch that waited for more bytes, at the end of the input. Raises CorruptSegment, also if the
        input ends within a batch.
        """
        self._ahead = 0
        whole, self._rest = self._rest, b""
        if whole and not self.is_done:
            yield from self._feed(memoryview(whole))
        if self._rest and not self.is_done:
            raise self._corrupt("the last batch is incomplete", 0)

    def _feed(self, view: memoryview) -> Iterator[pa.RecordBatch]:
        data = np.frombuffer(view, dtype=np.uint8)
        position = 0
        while True:
            found, after, wrong = find_batches(view, position, HEADERS_AT_ONCE)
            is_all = len(found) < HEADERS_AT_ONCE
            if self._ahead and len(found) and len(view) - after < self._ahead:
                found, after = found[:-1], int(found["position"][-1])
            count = len(found)
            ahead = view[after : after + self._ahead] if count else b""
            following = int.from_bytes(ahead, "big", signed=True) if ahead else INT64_MAX
            if count and self._begins_by is not None:
                if found["base_offset"][0] > self._begins_by:
                    raise self._corrupt(_WRONG_OFFSETS, int(found["position"][0]))
                self._begins_by = None
            good = self._in_order(found, following) if count else 0
            if good:
                next_offset = following if good == count else INT64_MAX
                yield from self._decode(data, found[:good], next_offset)
                self._advance_past(found[:good])
            if good < count and not (self.is_done and self._is_within(found[good])):
                raise self._corrupt(_WRONG_OFFSETS, int(found["position"][good]))
            position = after
            if ahead and self.is_done and following > self._bounds[1]:
                raise self._corrupt(_WRONG_OFFSETS, position)
            if wrong and not self.is_done:
                raise self._corrupt(wrong, position)
            if self.is_done or is_all:
                break
        if not self.is_done:
            self._rest = bytes(view[position:])
        self._position += position

    def _in_order(self, found: Any, following: int) -> int:
        """Return how many batches, from the first on, have valid offsets, which the CRC does not cover entirely.

        Of two overlapping batches, the one that does not continue the previous offsets is wrong. `following` is the
        base offset of the batch after them.
        """
        base, last = np.append(found["base_offset"], following), found["last_offset"]
        before = np.append(self._last_offset, last)
        first, end = self._bounds
        self._last_offset = int(last[-1])
        wrong = base <= before
        wrong[:-1] |= (base[:-1] < first) | (last > end) | (last < base[:-1])
        if not wrong.any():
            return len(found)
        at = int(np.argmax(wrong))
        overlaps = at > 0 and base[at] <= before[at]
        return at - 1 if overlaps and base[at - 1] != before[at - 1] + 1 else at

    def _is_within(self, batch: Any) -> bool:
        first, end = self._bounds
        return bool(first <= batch["base_offset"] and batch["last_offset"] <= end)

    def _advance_past(self, batches: Any) -> None:
        self.next_offset = max(self.next_offset, int(batches["last_offset"][-1]) + 1)

    def _corrupt(self, what: str, position: int) -> CorruptSegment:
        return CorruptSegment(f"{self.source}, byte {self._position + position}: {what}")

    # Batches

    def _decode(self, data: Any, found: Any, following: int) -> Iterator[pa.RecordBatch]:
        found = self._in_range(found, following)
        broken = self._first_broken(data, found) if self._check_crcs else None
        if broken is not None:
            if broken:
                yield from self._decode_whole(data, found[:broken])
                self._advance_past(found[:broken])
            position = int(found["position"][broken])
            raise self._corrupt("the batch's CRC does not match its bytes", position)
        yield from self._decode_whole(data, found)

    def _in_range(self, found: Any, following: int) -> Any:
        """Return the batches that overlap the wanted offsets; errors in other batches do not matter. The last batch
        is skipped only if `following`, the base offset of the next batch, confirms its last offset, since one
        header may be wrong.
        """
        bases = np.append(found["base_offset"], max(following, int(found["last_offset"][-1]) + 1))
        if bases[0] < self.wanted.low and (bases[1:] >= bases[:-1]).all():
            first = int(np.searchsorted(bases, self.wanted.low, side="right")) - 1
            found = found[max(first, 0) :]
        high = self.wanted.high if self.wanted.low < self.wanted.high else -1
        return found[found["base_offset"] < high]

    def _decode_whole(self, data: Any, found: Any) -> Iterator[pa.RecordBatch]:
        """Decode batches whose CRC and offsets were checked."""
        batches = found[self._is_wanted(found)]
        if self.wanted.needs_records:
            yield from self._decode_bodies(data, batches)
            return
        dense = batches["count"] == batches["last_offset"] - batches["base_offset"] + 1
        if dense.all():
            yield from self._from_headers(batches)
        else:
            yield from self._decode_bodies(data, batches)

    def _is_wanted(self, found: Any) -> Any:
        """Return a mask of the wanted batches. Their CRCs were checked, so that a flipped bit is not decoded as a
        control batch or a timestamp.
        """
        wanted = self.wanted
        is_control = found["attributes"] & CONTROL != 0
        keep = (
            ~is_control
            & (found["last_offset"] >= wanted.low)
            & ((found["count"] != 0) | (found["size"] > HEADER_SIZE))
        )
        if wanted.since_ms > INT64_MIN:
            keep &= found["max_timestamp"] >= wanted.since_ms
        # Without log append time, the header does not have the earliest timestamp
        if wanted.until_ms < INT64_MAX:
            is_append = found["attributes"] & LOG_APPEND_TIME != 0
            keep &= ~is_append | (found["max_timestamp"] < wanted.until_ms)
        if self._aborted and len(found):
            first, last = int(found["base_offset"][0]), int(found["last_offset"][-1])
            self._aborted = [each for each in self._aborted if each.last_offset >= first]
            transactional = found["attributes"] & TRANSACTIONAL != 0
            for number, each in enumerate(self._aborted):
                if each.first_offset > last:
                    break
                its = (
                    (found["producer_id"] == each.producer_id)
                    & (found["base_offset"] >= each.first_offset)
                    & (found["base_offset"] <= each.last_offset)
                )
                marker = np.flatnonzero(its & is_control)
                if len(marker):
                    its[marker[0] :] = False
                    self._aborted[number] = replace(
                        each, last_offset=int(found["base_offset"][marker[0]])
                    )
                keep &= ~(transactional & its)
        return keep

    def _first_broken(self, data: Any, batches: Any) -> int | None:
        begins = (batches["position"] + _CRC_START).tolist()
        ends = (batches["position"] + batches["size"]).tolist()
        covered = map(memoryview(data).__getitem__, map(slice, begins, ends))
        wrong = np.fromiter(map(crc32c, covered), np.uint32, len(batches)) != batches["crc"]
        return int(np.argmax(wrong)) if wrong.any() else None

    def _from_headers(self, batches: Any) -> Iterator[pa.RecordBatch]:
        wanted = self.wanted
        low = np.maximum(batches["base_offset"], wanted.low)
        high = np.minimum(batches["last_offset"] + 1, wanted.high)
        counts = high - low
        for part in _groups(counts * OFFSET_BYTES, GROUP_BYTES):
            ends = np.cumsum(counts[part])
            total = int(ends[-1])
            steps = empty_array(np.int64, total)
            steps.fill(1)
            steps[0] = low[part][0]
            steps[ends[:-1]] = low[part][1:] - high[part][:-1] + 1
            columns = {"offset": np.cumsum(steps, out=steps)}
            if "timestampType" in wanted.columns:
                is_append = (batches["attributes"][part] & LOG_APPEND_TIME != 0).astype(np.int32)
                columns["timestampType"] = np.repeat(is_append, counts[part])
            yield from self._tables(total, columns)

    # Records

    def _decode_bodies(self, data: Any, batches: Any) -> Iterator[pa.RecordBatch]:
        compressed = batches["attributes"] & COMPRESSION != NONE
        for part in _groups(batches["size"], GROUP_BYTES):
            chosen = batches[part]
            if compressed[part].any():
                for each, bodies, starts, ends in self._decompress(data, chosen):
                    yield from self._columns(bodies, each, starts, ends)
                    self._advance_past(each)
            else:
                starts = chosen["position"] + HEADER_SIZE
                ends = chosen["position"] + chosen["size"]
                yield from self._columns(data, chosen, starts, ends)
                self._advance_past(chosen)

    def _decompress(self, data: Any, batches: Any) -> Iterator[tuple[Any, Any, Any, Any]]:
        """Decompress the batches' records, one after the other, a few batches at a time, because the decompressed
        size is not known in advance.
        """
        view = memoryview(data)
        codecs = batches["attributes"] & COMPRESSION
        starts, ends = batches["position"] + HEADER_SIZE, batches["position"] + batches["size"]
        first = number = 0
        while number < len(batches):
            number += self._buffer.add_frames(data, codecs[number:], starts[number:], ends[number:])
            if number < len(batches) and not self._buffer.is_full:
                body = view[int(starts[number]) : int(ends[number])]
                try:
                    self._buffer.add(int(codecs[number]), body)
                except CorruptBatch as error:
                    raise self._corrupt(str(error), int(batches["position"][number])) from None
                number += 1
            if number == len(batches) or self._buffer.is_full:
                bodies, body_ends = self._buffer.take()
                body_starts = np.concatenate(([0], body_ends[:-1]))
                yield batches[first:number], bodies, body_starts, body_ends
                first = number

    def _columns(self, data: Any, batches: Any, starts: Any, ends: Any) -> Iterator[pa.RecordBatch]:
        from odradek.pipeline.decoding import record_kernels as kernels

        wanted = self.wanted
        has = {name: name in wanted.columns for name in TYPES}
        counts = batches["count"]
        # A negative count would reduce the memory of the other batches; a record has at least _RECORD_BYTES_MIN
        # bytes.
        wrong = (counts < 0) | (counts.astype(np.int64) * _RECORD_BYTES_MIN > ends - starts)
        if wrong.any():
            yield from self._columns_before(
                int(np.argmax(wrong)), kernels.BAD_COUNT, data, batches, starts, ends
            )
        rows, size = int(counts.sum(dtype=np.int64)), int((ends - starts).sum())
        keys = BinaryColumn(rows, size, has["key"])
        values = BinaryColumn(rows, size, has["value"])
        headers = HeadersColumn(rows, size, has["headers"])
        offsets, timestamps = empty_array(np.int64, rows), empty_array(np.int64, rows)
        kinds = empty_array(np.int32, rows)
        kept, header_count, error, which = kernels.decode_records(
            (data, starts, ends),
            batches.view(np.recarray),
            (wanted.low, wanted.high, wanted.since_ms, wanted.until_ms),
            (has["key"], has["value"], has["headers"]),
            (offsets, timestamps, kinds),
            keys.arrays,
            values.arrays,
            headers.arrays,
        )
        if error:
            yield from self._columns_before(int(which), error, data, batches, starts, ends)
        columns: dict[str, Any] = {
            "offset": offsets[:kept],
            "timestamp": timestamps[:kept],
            "timestampType": kinds[:kept],
        }
        if has["key"]:
            columns["key"] = keys.column(kept)
        if has["value"]:
            columns["value"] = values.column(kept)
        if has["headers"]:
            columns["headers"] = headers.column(kept, header_count)
        yield from self._tables(kept, columns)

    def _columns_before(
        self, which: int, error: int, data: Any, batches: Any, starts: Any, ends: Any
    ) -> Iterator[pa.RecordBatch]:
        """Decode the batches before the corrupt one. Raises CorruptSegment."""
        from odradek.pipeline.decoding import record_kernels as kernels

        if which:
            yield from self._columns(data, batches[:which], starts[:which], ends[:which])
            self._advance_past(batches[:which])
        raise self._corrupt(kernels.WRONG[error], int(batches["position"][which]))

    def _tables(self, rows: int, columns: dict[str, Any]) -> Iterator[pa.RecordBatch]:
        """Return one Arrow batch, or several if the topic column would be too large."""
        at_most = TOPIC_BYTES_MAX // len(self.wanted.topic)
        if rows <= at_most:
            yield self._table(rows, columns)
            return
        for first in range(0, rows, at_most):
            end = min(first + at_most, rows)
            yield self._table(
                end - first, {name: each[first:end] for name, each in columns.items()}
            )

    def _table(self, rows: int, columns: dict[str, Any]) -> pa.RecordBatch:
        wanted = self.wanted
        made = []
        for name in wanted.columns:
            column: Any = columns.get(name)
            if name == "topic":
                column = repeated(wanted.topic, rows)
            elif name == "partition":
                number = empty_array(np.int32, rows)
                number.fill(wanted.partition)
                column = numbers(number, TYPES["partition"])
            elif name == "timestamp":
                micros = np.clip(column, -MS_MAX, MS_MAX, out=empty_array(np.int64, rows))
                micros *= 1000
                column = numbers(micros, TYPES["timestamp"])
            elif not isinstance(column, pa.Array):
                column = numbers(column, self.schema.field(name).type)
            made.append(column)
        if not made:
            return pa.RecordBatch.from_struct_array(pa.array([{}] * rows, pa.struct([])))
        return pa.RecordBatch.from_arrays(made, schema=self.schema)


def _size(rest: bytes) -> int:
    """Return the size of the batch that begins with these bytes, at least that of a header."""
    length = int.from_bytes(rest[8:12], "big", signed=True) if len(rest) >= HEADER_SIZE else 0
    return max(HEADER_SIZE, LOG_OVERHEAD + length)


def _groups(sizes: Any, limit: int) -> Iterator[slice]:
    """Group consecutive items into slices with sums of about `limit`, at least one item each, and similar sums."""
    if not len(sizes):
        return
    ends = np.cumsum(sizes)
    share = ends[-1] / max(1, round(ends[-1] / limit))
    of_group = (ends - sizes / 2) // share
    bounds = [0, *(np.flatnonzero(np.diff(of_group)) + 1).tolist(), len(sizes)]
    for first, end in pairwise(bounds):
        yield slice(first, end)
