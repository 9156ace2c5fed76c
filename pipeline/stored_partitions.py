"""The offsets that the store has of a query's partitions, their ends, and their aborted transactions.

Segments and leader epochs of a partition are read once, of several partitions concurrently. The lineage is the
leader's, or without brokers that of the last segment. Unreadable objects only matter to queries for the offsets
that depend on them: a manifest, leader epochs that no other segment proves, a transaction index, a producer
snapshot.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING
from uuid import UUID

import numpy as np

from odradek.client.special_timestamps import EARLIEST, LATEST
from odradek.pipeline.decoding.record_selection import AbortedTransaction
from odradek.pipeline.errors import DataLoss, UnreadableSegment
from odradek.pipeline.leader_epoch_lineage import UnresolvedOffsets, select_slices
from odradek.pipeline.options import SourceOptions
from odradek.pipeline.segment_columns import Segments, SegmentSlices
from odradek.pipeline.store import FirstPage, Store
from odradek.protocol.errors import ErrorCode, KafkaError
from odradek.protocol.topics import TopicPartition
from odradek.storage.log.leader_epoch_cache import EpochStart
from odradek.storage.tiered.object_names import parse_key
from odradek.storage.tiered.partition_summary import decode
from odradek.storage.tiered.segment_metadata import TopicIdPartition

if TYPE_CHECKING:
    from odradek.pipeline.brokers import Brokers

log = logging.getLogger("odradek.pipeline")

SNAPSHOTS_MAX = 8
"""Maximum number of producer snapshots that are read if the last one is unreadable."""


class StoredPartitions:
    """Offsets of partitions in the store. `ids` are the partitions with their topic ids; None for one without."""

    def __init__(
        self,
        options: SourceOptions,
        ids: Mapping[TopicPartition, TopicIdPartition | None],
        store: Store | None,
        brokers: Brokers | None,
        first_pages: dict[TopicPartition, FirstPage],
    ) -> None:
        """`first_pages` has the listings that exist already; `look_up` removes those that it uses."""
        self._options = options
        self._ids = ids
        self._store = store
        self._brokers = brokers
        self._first_pages = first_pages
        self._segments: dict[TopicPartition, bytes] = {}
        """Packed, because there may be millions of segments."""
        self._lineages: dict[TopicPartition, list[EpochStart]] = {}
        self._unproven_lineages: dict[TopicPartition, UnresolvedOffsets] = {}
        self._unstable: dict[TopicPartition, dict[int, UnresolvedOffsets]] = {}
        """By end offset."""
        self._known_ends: dict[TopicPartition, SegmentSlices] = {}
        self._unreadable: dict[TopicPartition, list[UnreadableSegment]] = {}
        """Unreadable manifests that did not end the query."""

    def look_up(self, partitions: Sequence[TopicPartition]) -> None:
        """Read segments and lineages of partitions, concurrently. Raises PipelineError."""
        unknown = [tp for tp in partitions if tp not in self._segments]
        if self._store is None:
            self._segments.update((tp, b"") for tp in unknown)
            self._lineages.update((tp, []) for tp in unknown)
            return
        for tp, found in zip(
            unknown, self._store.run_concurrently(self._find, unknown), strict=True
        ):
            self._segments[tp], self._lineages[tp] = found

    def forget(self, tp: TopicPartition) -> None:
        """Free the memory of a partition's segments; a later use reads them again."""
        self._segments.pop(tp, None)

    def covered(self, tp: TopicPartition, low: int, high: int) -> SegmentSlices:
        """Return the slices of the offsets `low` <= offset < `high`."""
        self.look_up([tp])
        id = self._ids[tp]
        if id is None or not self._segments[tp]:
            return select_slices(_NOTHING, [], low, high)
        segments = Segments.from_summary(id, decode(self._segments[tp]))
        return select_slices(segments, self._lineages[tp], low, high)

    def below_last_stable(self, tp: TopicPartition, low: int, high: int) -> SegmentSlices:
        """Return the slices below the last stable offset, with read_committed and without brokers.

        After a gap, the offsets before it end at its first unstable offset.
        """
        slices = self.covered(tp, low, high)
        store = self._store
        if self._brokers is not None or store is None or not self._options.read_committed:
            return slices
        rows = slices.rows.copy()
        for _, _, before in slices.gaps(low, high):
            if before:
                first = self._first_unstable_offset(tp, slices[:before])
                rows["high"][:before] = np.minimum(rows["high"][:before], first)
        return replace(slices, rows=rows[rows["low"] < rows["high"]])

    def unresolved(self, tp: TopicPartition) -> list[UnresolvedOffsets]:
        """Return the offsets with unknown lineage or unknown transactions, with the unreadable object."""
        unproven_lineage = self._unproven_lineages.get(tp)
        found = [] if unproven_lineage is None else [unproven_lineage]
        return [*found, *self._unstable.get(tp, {}).values()]

    def _first_unstable_offset(self, tp: TopicPartition, slices: SegmentSlices) -> int:
        """Return the first unstable offset at the end of the slices; their end if no transaction is open.

        If the producer snapshot is unreadable and does not end the query, an earlier snapshot gives a lower bound,
        and the offsets from there are unresolved. Raises UnreadableSegment.
        """
        assert self._store is not None
        (last,) = slices[-1:]
        if last.high in self._unstable.get(tp, ()):
            return last.high
        try:
            return self._store.first_unstable_offset(last.segment)
        except UnreadableSegment as error:
            if self._options.corrupt_segments == "fail":
                raise
            before = self.covered(tp, 0, last.low)
            certain = before.low if len(before) else last.low
            for each in reversed(list(before[-SNAPSHOTS_MAX:])):
                with suppress(UnreadableSegment):
                    certain = self._store.first_unstable_offset(each.segment)
                    break
            unresolved = self._unstable.setdefault(tp, {})
            unresolved[last.high] = UnresolvedOffsets(min(certain, last.low), last.high, error)
            return last.high

    def unreadable(self, tp: TopicPartition) -> list[tuple[int, UnreadableSegment]]:
        """Return skipped manifests and the start offsets of their segments."""
        return [(_start_offset(error), error) for error in self._unreadable.get(tp, ())]

    def aborted(
        self, tp: TopicPartition, low: int, high: int, unresolved: list[UnresolvedOffsets]
    ) -> list[AbortedTransaction]:
        """Return the aborted transactions of the stored offsets from `low` on.

        Their markers may be in later segments, or only on the broker, which then reports transactions that extend
        beyond the store or into its gaps. What is unknown is added to `unresolved`.
        """
        assert self._store is not None
        covering = self.covered(tp, low, 1 << 62)
        found, all_before = self._store.aborted(covering, high, unresolved)
        if self._brokers is not None:
            ends = [begin for begin, _, before in covering.gaps(low, covering.high) if before]
            for end in (*ends, covering.high):
                if all_before is None or end < all_before:
                    found += self._aborted_across(self._brokers, tp, end)
        return found

    # Without brokers

    def limits(
        self, partitions: Sequence[TopicPartition], which: int, *, committed: bool
    ) -> dict[TopicPartition, int]:
        """Return the readable start (EARLIEST) or end (LATEST) of each partition."""
        store = self._store
        assert store is not None

        def limit(tp: TopicPartition) -> int:
            slices = self._ends(tp)
            if not len(slices):
                return 0
            if which == EARLIEST:
                unproven_lineage = self._unproven_lineages.get(tp)
                return slices.low if unproven_lineage is None else unproven_lineage.low
            return self._first_unstable_offset(tp, self._ends(tp)) if committed else slices.high

        self.look_up(partitions)
        return dict(zip(partitions, store.run_concurrently(limit, partitions), strict=True))

    def offsets_for_times(
        self, wanted: Mapping[TopicPartition, int], *, is_end: bool
    ) -> dict[TopicPartition, int]:
        """Return the first offset of each partition with at least that timestamp (ms); -1 for none.

        If a segment that may have it is unreadable and does not end the query, a start is that segment's start, and
        an end is not before it.
        """
        assert self._store is not None
        self.look_up(list(wanted))
        found = self._store.run_concurrently(
            lambda each: self._first_at(*each, is_end=is_end), list(wanted.items())
        )
        return dict(zip(wanted, found, strict=True))

    def _first_at(self, tp: TopicPartition, at_ms: int, *, is_end: bool) -> int:
        from odradek.pipeline.decoding.record_selection import RecordSelection
        from odradek.pipeline.segment_reader import narrowed_to_time, read_slice

        assert self._store is not None
        storage = self._store.storage
        slices = self.covered(tp, 0, 1 << 62)
        fails = self._options.corrupt_segments == "fail"
        unproven_lineage = self._unproven_lineages.get(tp)
        if unproven_lineage is not None:
            if fails:
                raise unproven_lineage.error
            first_unresolved = self._first_unresolved_at(tp, unproven_lineage, at_ms)
            if first_unresolved is not None and not is_end:
                return first_unresolved
            slices = slices.without(unproven_lineage.low, unproven_lineage.high)
        wanted = RecordSelection(*tp, ("offset",), since_ms=at_ms)
        for each in slices[slices.rows["newest"] >= at_ms]:
            try:
                narrow = narrowed_to_time(storage, each, at_ms)
                for segment_slice in (narrow, each) if narrow is not each else (each,):
                    for table in read_slice(storage, segment_slice, wanted):
                        if table.num_rows:
                            return int(table.column(0)[0].as_py())
            except UnreadableSegment:
                if fails:
                    raise
                if not is_end:
                    return each.low
        return -1

    def _first_unresolved_at(
        self, tp: TopicPartition, unresolved_range: UnresolvedOffsets, at_ms: int
    ) -> int | None:
        """Return the first unresolved offset of a segment with records as late as `at_ms`."""
        id = self._ids[tp]
        assert id is not None
        rows = Segments.from_summary(id, decode(self._segments[tp])).rows
        late = rows[(rows["start"] < unresolved_range.high) & (rows["newest"] >= at_ms)]
        return max(unresolved_range.low, int(late["start"].min())) if len(late) else None

    # Requests to the store and the brokers

    def _ends(self, tp: TopicPartition) -> SegmentSlices:
        """Return the first and the last slice of the partition, cached."""
        if tp not in self._known_ends:
            slices = self.covered(tp, 0, 1 << 62)
            count = len(slices)
            self._known_ends[tp] = slices[np.unique([0, count - 1])] if count else slices
        return self._known_ends[tp]

    def _find(self, tp: TopicPartition) -> tuple[bytes, list[EpochStart]]:
        """Return the packed segments and the leader epochs."""
        assert self._store is not None
        tiered = self._ids[tp]
        if tiered is None:
            return b"", []
        unreadable: list[UnreadableSegment] = []
        fails = self._options.corrupt_segments == "fail"
        segments = self._store.segments(
            tiered, self._first_pages.pop(tp, None), None if fails else unreadable.append
        )
        for error in unreadable:
            log.error("a segment of %s is skipped: %s", tp, error)
        self._unreadable[tp] = unreadable
        if not len(segments):
            return b"", []
        if self._brokers is None:
            lineage, unproven_lineage = self._store.lineage_and_unresolved(segments)
            if unproven_lineage is not None:
                self._unproven_lineages[tp] = unproven_lineage
            return segments.packed(), lineage
        return segments.packed(), self._brokers.lineage(tp, segments.epochs())

    def _aborted_across(
        self, brokers: Brokers, tp: TopicPartition, end: int
    ) -> list[AbortedTransaction]:
        id = self._ids[tp]
        try:
            fetched = brokers.fetch(
                tp,
                end,
                topic_id=None if id is None else id.topic_id,
                read_committed=True,
                max_bytes=1,
            )
        except KafkaError as error:
            if error.code is ErrorCode.inconsistent_topic_id:
                raise DataLoss(f"{error.message}: run the query again") from None
            if end > brokers.offsets({tp: LATEST})[tp]:
                return []  # the store extends beyond the log's end, so its transactions are complete
            text = f"{tp} lost offset {end} while the query was planned: run it again"
            raise DataLoss(text) from None
        return [
            AbortedTransaction(id, first, end - 1) for id, first in fetched.aborted if first < end
        ]


_NOTHING = Segments.of(TopicIdPartition(UUID(int=0), "", 0), ())


def _start_offset(error: UnreadableSegment) -> int:
    """Return the start offset in the name of a manifest."""
    name = parse_key(error.key or "")
    assert name is not None, "it was listed as a manifest"
    return name.start_offset
