"""What the store has of a query's partitions: which offsets, from where to where, and what was aborted there.

Of each partition it is found out once, of several at the same time: its segments, and the leader epochs that
say which of their records count (the leader's; without brokers the last segment's). What the store cannot tell
of them is told with its offsets, and concerns who asks for these: a manifest that cannot be read, epochs that
nobody proves, a transaction index that is gone.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING
from uuid import UUID

import numpy as np

from odradek.client.positions import EARLIEST, LATEST, TopicPartition
from odradek.pipeline.decoding.selection import Aborted
from odradek.pipeline.errors import DataLoss, UnreadableSegment
from odradek.pipeline.lineage import Doubt, cover
from odradek.pipeline.options import Options
from odradek.pipeline.segment_columns import Segments, Stretches
from odradek.pipeline.store import Beginning, Store
from odradek.protocol.errors import ErrorCode, KafkaError
from odradek.storage.log.epochs import EpochStart
from odradek.storage.tiered.metadata import TopicIdPartition
from odradek.storage.tiered.object_names import parse_key
from odradek.storage.tiered.summary import decode

if TYPE_CHECKING:
    from odradek.pipeline.brokers import Brokers

log = logging.getLogger("odradek.pipeline")

SNAPSHOTS_MAX = 8
"""So many segments are asked which transactions were open at their ends, where the last one does not tell."""


class StoredPartitions:
    """See the module. Synchronous. `ids` are the partitions, as the store calls them; None for one that it
    cannot have. Without a store nothing is there of any."""

    def __init__(
        self,
        options: Options,
        ids: Mapping[TopicPartition, TopicIdPartition | None],
        store: Store | None,
        brokers: Brokers | None,
        beginnings: dict[TopicPartition, Beginning],
    ) -> None:
        """`beginnings`: of those that were listed before; each is taken out when it is used."""
        self._options = options
        self._ids = ids
        self._store = store
        self._brokers = brokers
        self._beginnings = beginnings
        self._segments: dict[TopicPartition, bytes] = {}
        """Packed: there may be millions of them."""
        self._lineages: dict[TopicPartition, list[EpochStart]] = {}
        self._unproven: dict[TopicPartition, Doubt] = {}
        self._undecided: dict[TopicPartition, dict[int, Doubt]] = {}
        """By where they end."""
        self._known_ends: dict[TopicPartition, Stretches] = {}
        self._unreadable: dict[TopicPartition, list[UnreadableSegment]] = {}
        """Manifests, where they end no query."""

    def look_up(self, partitions: Sequence[TopicPartition]) -> None:
        """Find out what there is of them, of several at once. Raises PipelineError."""
        unknown = [where for where in partitions if where not in self._segments]
        if self._store is None:
            self._segments.update((where, b"") for where in unknown)
            self._lineages.update((where, []) for where in unknown)
            return
        for where, found in zip(unknown, self._store.at_once(self._find, unknown), strict=True):
            self._segments[where], self._lineages[where] = found

    def forget(self, where: TopicPartition) -> None:
        """Its segments, which take room; whoever asks for them again waits for the store."""
        self._segments.pop(where, None)

    def covered(self, where: TopicPartition, low: int, high: int) -> Stretches:
        """What there is of the offsets from `low` on, before `high`."""
        self.look_up([where])
        id = self._ids[where]
        if id is None or not self._segments[where]:
            return cover(_NOTHING, [], low, high)
        segments = Segments.summarised(id, decode(self._segments[where]))
        return cover(segments, self._lineages[where], low, high)

    def decided(self, where: TopicPartition, low: int, high: int) -> Stretches:
        """The same without what is of transactions, of read_committed, that may have ended where nobody can
        look: what the store alone lacks begins with the first of these."""
        stretches = self.covered(where, low, high)
        store = self._store
        if self._brokers is not None or store is None or not self._options.read_committed:
            return stretches
        rows = stretches.rows.copy()
        for _, _, before in stretches.gaps(low, high):
            if before:
                first = self._undecided_from(where, stretches[:before])
                rows["high"][:before] = np.minimum(rows["high"][:before], first)
        return replace(stretches, rows=rows[rows["low"] < rows["high"]])

    def doubts(self, where: TopicPartition) -> list[Doubt]:
        """What its leader epochs do not reach back to, and what may be of transactions that were open where
        nobody can look, each without the object that told it."""
        unproven = self._unproven.get(where)
        found = [] if unproven is None else [unproven]
        return [*found, *self._undecided.get(where, {}).values()]

    def _undecided_from(self, where: TopicPartition, stretches: Stretches) -> int:
        """The first offset of a transaction that was open where they end; the offset behind them if there is none.
        Where what told it can't be read, and ends no query, what the segments before it tell is certain, and the
        rest is in doubt. Raises UnreadableSegment."""
        assert self._store is not None
        (last,) = stretches[-1:]
        if last.high in self._undecided.get(where, ()):
            return last.high
        try:
            return self._store.undecided_from(last.segment)
        except UnreadableSegment as error:
            if self._options.corrupt_segments == "fail":
                raise
            before = self.covered(where, 0, last.low)
            certain = before.low if len(before) else last.low
            for each in reversed(list(before[-SNAPSHOTS_MAX:])):
                with suppress(UnreadableSegment):
                    certain = self._store.undecided_from(each.segment)
                    break
            doubts = self._undecided.setdefault(where, {})
            doubts[last.high] = Doubt(min(certain, last.low), last.high, error)
            return last.high

    def unreadable(self, where: TopicPartition) -> list[tuple[int, UnreadableSegment]]:
        """Manifests that were passed over, and where their segments begin."""
        return [(_start_offset(error), error) for error in self._unreadable.get(where, ())]

    def aborted(
        self, where: TopicPartition, low: int, high: int, doubts: list[Doubt]
    ) -> list[Aborted]:
        """Of the offsets in the store from `low` on: markers may lie in later segments, or only on the
        broker, which then names the transactions that reach over the end of the store, or into what
        it lacks. What cannot be told is added to the doubts."""
        assert self._store is not None
        covering = self.covered(where, low, 1 << 62)
        found, all_before = self._store.aborted(covering, high, doubts)
        if self._brokers is not None:
            ends = [begin for begin, _, before in covering.gaps(low, covering.high) if before]
            for end in (*ends, covering.high):
                if all_before is None or end < all_before:
                    found += self._aborted_across(self._brokers, where, end)
        return found

    # Without brokers

    def limits(
        self, partitions: Sequence[TopicPartition], which: int, *, committed: bool
    ) -> dict[TopicPartition, int]:
        """Where they begin (EARLIEST) or end (LATEST), as far as that can be read."""
        store = self._store
        assert store is not None

        def limit(where: TopicPartition) -> int:
            stretches = self._ends(where)
            if not len(stretches):
                return 0
            if which == EARLIEST:
                unproven = self._unproven.get(where)
                return stretches.low if unproven is None else unproven.low
            return self._undecided_from(where, self._ends(where)) if committed else stretches.high

        self.look_up(partitions)
        return dict(zip(partitions, store.at_once(limit, partitions), strict=True))

    def first_as_late(
        self, wanted: Mapping[TopicPartition, int], *, is_end: bool
    ) -> dict[TopicPartition, int]:
        """The first offset of each with at least that timestamp (ms); -1 for none. Where a segment that may have
        it can't be read, and ends no query, it is read, or asked for, and told as a gap: a read begins with it, or
        does not end with it."""
        assert self._store is not None
        self.look_up(list(wanted))
        found = self._store.at_once(
            lambda each: self._first_at(*each, is_end=is_end), list(wanted.items())
        )
        return dict(zip(wanted, found, strict=True))

    def _first_at(self, where: TopicPartition, at_ms: int, *, is_end: bool) -> int:
        from odradek.pipeline.decoding.selection import Wanted
        from odradek.pipeline.segments import narrowed_to_time, read_stretch

        assert self._store is not None
        storage = self._store.storage
        stretches = self.covered(where, 0, 1 << 62)
        fails = self._options.corrupt_segments == "fail"
        unproven = self._unproven.get(where)
        if unproven is not None:
            if fails:
                raise unproven.error
            doubtful = self._in_doubt(where, unproven, at_ms)
            if doubtful is not None and not is_end:
                return doubtful
            stretches = stretches.without(unproven.low, unproven.high)
        wanted = Wanted(*where, ("offset",), since_ms=at_ms)
        for each in stretches[stretches.rows["newest"] >= at_ms]:
            try:
                narrow = narrowed_to_time(storage, each, at_ms)
                for stretch in (narrow, each) if narrow is not each else (each,):
                    for table in read_stretch(storage, stretch, wanted):
                        if table.num_rows:
                            return int(table.column(0)[0].as_py())
            except UnreadableSegment:
                if fails:
                    raise
                if not is_end:
                    return each.low
        return -1

    def _in_doubt(self, where: TopicPartition, doubt: Doubt, at_ms: int) -> int | None:
        """The first offset in doubt of a segment that has something as late."""
        id = self._ids[where]
        assert id is not None
        rows = Segments.summarised(id, decode(self._segments[where])).rows
        late = rows[(rows["start"] < doubt.high) & (rows["newest"] >= at_ms)]
        return max(doubt.low, int(late["start"].min())) if len(late) else None

    # What is asked of the store, and of brokers

    def _ends(self, where: TopicPartition) -> Stretches:
        """The first and the last stretch of all that there is; asked for again and again."""
        if where not in self._known_ends:
            stretches = self.covered(where, 0, 1 << 62)
            count = len(stretches)
            self._known_ends[where] = stretches[np.unique([0, count - 1])] if count else stretches
        return self._known_ends[where]

    def _find(self, where: TopicPartition) -> tuple[bytes, list[EpochStart]]:
        """The segments, packed, and the partition's leader epochs."""
        assert self._store is not None
        tiered = self._ids[where]
        if tiered is None:
            return b"", []
        unreadable: list[UnreadableSegment] = []
        fails = self._options.corrupt_segments == "fail"
        segments = self._store.segments(
            tiered, self._beginnings.pop(where, None), None if fails else unreadable.append
        )
        for error in unreadable:
            log.error("a segment of %s is passed over: %s", where, error)
        self._unreadable[where] = unreadable
        if not len(segments):
            return b"", []
        if self._brokers is None:
            lineage, unproven = self._store.lineage_and_doubt(segments)
            if unproven is not None:
                self._unproven[where] = unproven
            return segments.packed(), lineage
        return segments.packed(), self._brokers.lineage(where, segments.epochs())

    def _aborted_across(self, brokers: Brokers, where: TopicPartition, end: int) -> list[Aborted]:
        id = self._ids[where]
        try:
            fetched = brokers.fetch(
                where,
                end,
                topic_id=None if id is None else id.topic_id,
                read_committed=True,
                max_bytes=1,
            )
        except KafkaError as error:
            if error.code is ErrorCode.inconsistent_topic_id:
                raise DataLoss(f"{error.message}: run the query again") from None
            if end > brokers.offsets({where: LATEST})[where]:
                return []  # the store reaches further than the log does now: all of it is decided
            text = f"{where} has lost offset {end} while a query was planned: run it again"
            raise DataLoss(text) from None
        return [Aborted(id, first, end - 1) for id, first in fetched.aborted if first < end]


_NOTHING = Segments.of(TopicIdPartition(UUID(int=0), "", 0), ())


def _start_offset(error: UnreadableSegment) -> int:
    """Of the segment whose manifest it is."""
    name = parse_key(error.key or "")
    assert name is not None, "it was listed as a manifest"
    return name.start_offset
