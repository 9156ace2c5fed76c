"""Finished segments of a partition, and slices of them, in numpy arrays: there may be ten million.

A segment is a row of a structured array, in the form of the summary (`storage/tiered/partition_summary.py`).
Operations on many segments use numpy; an object is created only for a segment that is read.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from uuid import UUID

import numpy as np
import numpy.typing as npt
import zstandard

from odradek.storage.tiered.custom_metadata import is_dense
from odradek.storage.tiered.partition_summary import (
    TXN_INDEX_EMPTY,
    PartitionSummary,
    PartitionSummaryBuilder,
    encode,
)
from odradek.storage.tiered.segment_metadata import (
    EpochStart,
    RemoteLogSegmentId,
    RemoteLogSegmentMetadata,
    SegmentState,
    TopicIdPartition,
)

Array = npt.NDArray[np.void]
Int64s = npt.NDArray[np.int64]

ROW = np.dtype(
    [
        ("id", "V16"),
        ("start", "<i8"),
        ("last", "<u4"),
        ("newest", "<i8"),
        ("copied", "<i8"),
        ("size", "<u4"),
        ("broker", "<i4"),
        ("epoch", "<i4"),
        ("custom", "<u2"),
        ("flags", "u1"),
    ]
)
"""Row of a segment table, as in `storage.tiered.segment_row`; `last` is the last offset relative to `start`."""
SPAN = np.dtype([("row", "<u4"), ("epoch", "<i4"), ("start", "<i8")])
READ = np.dtype(
    [
        ("id", "V16"),
        ("start", "<i8"),
        ("last", "<u4"),
        ("newest", "<i8"),
        ("copied", "<i8"),
        ("size", "<u4"),
        ("custom", "<u2"),
        ("flags", "u1"),
        ("low", "<i8"),
        ("high", "<i8"),
    ]
)
"""A slice: what is needed to read the segment, and the offsets low <= offset < high. `copied` is 0 if the segment
has a timestamp, because it is not used then and zeros compress well.
"""
_OF_SEGMENT = ("id", "start", "last", "newest", "size", "custom", "flags")
DENSE_RECORD_BYTES = 100
"""Bytes that Spark reads in the time of processing a record that is known without reading."""


@dataclass(frozen=True, slots=True)
class SegmentSlice:
    """Offsets low <= offset < high of a partition that are read from one segment."""

    segment: RemoteLogSegmentMetadata
    """As far as reading needs it: without the leader epochs and the time of the copy."""
    low: int
    high: int

    @property
    def size_bytes(self) -> int:
        """Approximate size in bytes, as if all records of the segment had the same size."""
        offsets = self.segment.end_offset - self.segment.start_offset + 1
        return self.segment.size_bytes * (self.high - self.low) // max(1, offsets)


@dataclass(frozen=True, eq=False)
class Segments:
    """Segments of one partition, by ascending start offset."""

    partition: TopicIdPartition
    rows: Array
    """Array of ROW."""
    spans: Array
    """Array of SPAN: the epochs of segments that do not have one epoch from their start on."""
    customs: tuple[bytes, ...] = ()
    """Custom metadata; a row has the index + 1."""

    @classmethod
    def of(
        cls, partition: TopicIdPartition, metadata: Iterable[RemoteLogSegmentMetadata]
    ) -> Segments:
        ordered = sorted(metadata, key=lambda each: (each.start_offset, each.id.id.bytes))
        return cls.from_summary(partition, PartitionSummaryBuilder(ordered).taken())

    @classmethod
    def from_summary(cls, partition: TopicIdPartition, summary: PartitionSummary) -> Segments:
        return cls(
            partition,
            np.frombuffer(summary.rows, ROW),
            np.frombuffer(summary.spans, SPAN),
            summary.customs,
        )

    def __len__(self) -> int:
        return len(self.rows)

    def __iter__(self) -> Iterator[RemoteLogSegmentMetadata]:
        summary = PartitionSummary(self.rows.tobytes(), self.spans.tobytes(), self.customs)
        return summary.segments(self.partition)

    def __getitem__(self, at: int) -> RemoteLogSegmentMetadata:
        (found,) = self.only(np.array([range(len(self))[at]]))
        return found

    def packed(self) -> bytes:
        """Encode the segments as a summary, in about 25 bytes each."""
        return encode(PartitionSummary(self.rows.tobytes(), self.spans.tobytes(), self.customs))

    def only(self, chosen: npt.NDArray[np.integer]) -> Segments:
        """Return the segments with these ascending indexes."""
        place = np.full(len(self.rows), -1, np.int64)
        place[chosen] = np.arange(len(chosen))
        spans = self.spans[place[self.spans["row"]] >= 0]
        if len(spans):
            spans["row"] = place[spans["row"]]
        return Segments(self.partition, self.rows[chosen], spans, self.customs)

    def ids_at(self, start_offset: int) -> set[bytes]:
        """Return the ids of the segments that start at an offset."""
        return {bytes(each) for each in self.rows["id"][self.rows["start"] == start_offset]}

    def starting_from(self, offset: int) -> Segments:
        at = int(np.searchsorted(self.rows["start"], offset))
        return self if at == 0 else self.only(np.arange(at, len(self)))

    def extended_by(self, more: Iterable[RemoteLogSegmentMetadata]) -> Segments:
        added = Segments.of(self.partition, more)
        if not len(added):
            return self
        customs = tuple(dict.fromkeys((*self.customs, *added.customs)))
        numbers = np.array([0, *(customs.index(each) + 1 for each in added.customs)], np.uint16)
        rows = np.concatenate([self.rows, added.rows])
        rows["custom"][len(self) :] = numbers[added.rows["custom"]]
        spans = np.concatenate([self.spans, added.spans])
        spans["row"][len(self.spans) :] += len(self)
        found = Segments(self.partition, rows, spans, customs)
        is_behind = not len(self) or added.rows["start"][0] > self.rows["start"][-1]
        return found if is_behind else found._in_order()

    def _in_order(self) -> Segments:
        """Sort by start offset, then id."""
        ids = np.frombuffer(self.rows["id"].tobytes(), ">u8").reshape(-1, 2)
        order = np.lexsort((ids[:, 1], ids[:, 0], self.rows["start"]))
        place = np.empty(len(self), np.int64)
        place[order] = np.arange(len(self))
        spans = self.spans.copy()
        spans["row"] = place[spans["row"]]
        spans = spans[np.argsort(spans["row"], kind="stable")]
        return Segments(self.partition, self.rows[order], spans, self.customs)

    def epochs(self) -> list[int]:
        """Return the epochs that have records."""
        found = np.union1d(self.rows["epoch"], self.spans["epoch"])
        return [int(each) for each in found]

    def latest(self) -> RemoteLogSegmentMetadata:
        """Return the last segment of the latest epoch."""
        return self.latest_first(1)[0]

    def latest_first(self, count: int) -> list[RemoteLogSegmentMetadata]:
        """Return `count` segments, the last one of the latest epoch first."""
        ends = self.rows["start"] + self.rows["last"]
        order = np.lexsort((ends, self.rows["epoch"]))[::-1]
        return [self[int(each)] for each in order[:count]]

    def slices(self, chosen: npt.NDArray[np.integer], low: Int64s, high: Int64s) -> SegmentSlices:
        found = np.empty(len(chosen), READ)
        for name in _OF_SEGMENT:
            found[name] = self.rows[name][chosen]
        found["copied"] = np.where(found["newest"] < 0, self.rows["copied"][chosen], 0)
        found["low"], found["high"] = low, high
        return SegmentSlices(self.partition, found, self.customs)


@dataclass(frozen=True, eq=False)
class SegmentSlices:
    """Slices of one partition, by ascending offset. Iteration yields each as a SegmentSlice."""

    partition: TopicIdPartition
    rows: Array
    """Array of READ."""
    customs: tuple[bytes, ...] = ()

    def __len__(self) -> int:
        return len(self.rows)

    def __iter__(self) -> Iterator[SegmentSlice]:
        for row in self.rows.tolist():
            id_, start, last, newest, _, size, custom, flags, low, high = row
            segment = RemoteLogSegmentMetadata(
                RemoteLogSegmentId(self.partition, UUID(bytes=bytes(id_))),
                start,
                start + last,
                -1,
                newest,
                0,
                (EpochStart(-1, start),),
                size,
                SegmentState.COPY_SEGMENT_FINISHED,
                self.customs[custom - 1] if custom else None,
                bool(flags & TXN_INDEX_EMPTY),
            )
            yield SegmentSlice(segment, low, high)

    def __getitem__(self, part: slice | npt.NDArray[np.generic]) -> SegmentSlices:
        return SegmentSlices(self.partition, self.rows[part], self.customs)

    @property
    def low(self) -> int:
        return int(self.rows["low"][0])

    @property
    def high(self) -> int:
        """End offset (exclusive) of the last slice."""
        return int(self.rows["high"][-1])

    def have_record_at_or_after(self, at_ms: int) -> npt.NDArray[np.bool_]:
        """Whether each slice has a record at or after `at_ms`, if its records have timestamps. Slices that end
        before their segment do not count, because the segment's newest record may be after their end.
        """
        is_complete = self.rows["high"] == self.rows["start"] + self.rows["last"] + 1
        found: npt.NDArray[np.bool_] = is_complete & (self.rows["newest"] >= at_ms)
        return found

    def may_have_record_at_or_after(self, at_ms: int) -> npt.NDArray[np.bool_]:
        """Whether each slice may have a record at or after `at_ms`, by its segment's max timestamp."""
        newest = self.rows["newest"]
        found: npt.NDArray[np.bool_] = (newest < 0) | (newest >= at_ms)
        return found

    @property
    def last(self) -> SegmentSlice:
        (found,) = self[-1:]
        return found

    def gaps(self, low: int, high: int) -> list[tuple[int, int, int]]:
        """Return the offset ranges between `low` and `high` that no slice has (start, exclusive end), and the
        number of slices before each.
        """
        begins = np.append(self.rows["low"], high)
        ends = np.append(low, self.rows["high"])
        at = np.flatnonzero(begins > ends)
        return list(zip(ends[at].tolist(), begins[at].tolist(), at.tolist(), strict=True))

    def between(self, low: int, high: int) -> SegmentSlices:
        """Return the slices restricted to the offsets low <= offset < high."""
        rows = self.rows.copy()
        rows["low"] = np.maximum(rows["low"], low)
        rows["high"] = np.minimum(rows["high"], high)
        return SegmentSlices(self.partition, rows[rows["low"] < rows["high"]], self.customs)

    def without(self, low: int, high: int) -> SegmentSlices:
        """Return the slices without the offsets low <= offset < high."""
        before, after = self.rows.copy(), self.rows.copy()
        before["high"] = np.minimum(before["high"], low)
        after["low"] = np.maximum(after["low"], high)
        rows = np.concatenate([before, after])
        rows = rows[rows["low"] < rows["high"]]
        order = np.argsort(rows["low"], kind="stable")
        return SegmentSlices(self.partition, rows[order], self.customs)

    def sizes(self) -> Int64s:
        """Approximate size of each slice in bytes, as if all records of a segment had the same size."""
        offsets = self.rows["high"] - self.rows["low"]
        sizes: Int64s = (
            self.rows["size"].astype(np.int64) * offsets // (self.rows["last"].astype(np.int64) + 1)
        )
        return sizes

    @property
    def size_bytes(self) -> int:
        return int(self.sizes().sum())

    def work(self) -> Int64s:
        """Sizes in bytes if the records of dense segments are not read."""
        offsets = self.rows["high"] - self.rows["low"]
        is_known = np.array([False, *map(is_dense, self.customs)])[self.rows["custom"]]
        work: Int64s = np.where(is_known, offsets * DENSE_RECORD_BYTES, self.sizes())
        return work

    def cut(self, parts: Int64s) -> SegmentSlices:
        """Split each slice into as many parts, with about equal numbers of offsets."""
        rows = np.repeat(self.rows, parts)
        each = np.repeat(parts, parts)
        number = np.arange(len(rows)) - np.repeat(np.cumsum(parts) - parts, parts)
        low, offsets = rows["low"].copy(), rows["high"] - rows["low"]
        rows["low"] = low + offsets * number // each
        rows["high"] = low + offsets * (number + 1) // each
        return SegmentSlices(self.partition, rows, self.customs)

    def packed(self) -> PackedSlices:
        return PackedSlices.of(self)


@dataclass(frozen=True, slots=True)
class PackedSlices:
    """Slices in about 25 bytes each, for plans and for tasks in transit. Iteration yields each as a SegmentSlice."""

    partition: TopicIdPartition
    low: int
    high: int
    """The first offset, and the end offset (exclusive)."""
    size_bytes: int
    work_bytes: int
    """As in `SegmentSlices`."""
    count: int
    customs: tuple[bytes, ...]
    data: bytes

    @classmethod
    def of(cls, slices: SegmentSlices) -> PackedSlices:
        rows = slices.rows.copy()
        rows["high"] -= rows["start"] + rows["last"] + 1
        rows["low"] -= rows["start"]
        rows["start"][1:] -= slices.rows["start"][:-1]
        rows["newest"][1:] -= slices.rows["newest"][:-1]
        columns = rows.view(np.uint8).reshape(len(rows), READ.itemsize).T.tobytes()
        data = zstandard.ZstdCompressor(1).compress(columns)
        return cls(
            slices.partition,
            slices.low,
            slices.high,
            slices.size_bytes,
            int(slices.work().sum()),
            len(rows),
            slices.customs,
            data,
        )

    def unpacked(self) -> SegmentSlices:
        columns = np.frombuffer(zstandard.ZstdDecompressor().decompress(self.data), np.uint8)
        rows = columns.reshape(READ.itemsize, -1).T.copy().view(READ).reshape(-1)
        for name in ("start", "newest"):
            rows[name] = np.cumsum(rows[name])
        rows["low"] += rows["start"]
        rows["high"] += rows["start"] + rows["last"] + 1
        return SegmentSlices(self.partition, rows, self.customs)

    def __len__(self) -> int:
        return self.count

    def __iter__(self) -> Iterator[SegmentSlice]:
        return iter(self.unpacked())
