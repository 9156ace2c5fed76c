"""Plans a query: its partitions, their offsets, and the tier that each offset is read from.

Offsets in remote segments are read from the store, by the lineage of the partition leader; the others are fetched
from brokers. Without brokers only the store is read: the lineage is that of the last segment, and read_committed
ends before the first transaction that is open there.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING
from uuid import UUID

import numpy as np

from odradek.client.special_timestamps import EARLIEST, LATEST
from odradek.pipeline.decoding.record_selection import INT64_MAX, INT64_MIN, AbortedTransaction
from odradek.pipeline.errors import BadOption, DataLoss, with_skip_hint
from odradek.pipeline.filters import PushedFilters
from odradek.pipeline.leader_epoch_lineage import UnresolvedOffsets, overlapping
from odradek.pipeline.missing_segments import MissingSegments, copied_ends
from odradek.pipeline.options import OffsetSpec, SourceOptions
from odradek.pipeline.planning import BrokerRange, LostOffsets, PlannedRange
from odradek.pipeline.segment_columns import PackedSlices, SegmentSlices
from odradek.pipeline.store import FirstPage, Store, store_at
from odradek.pipeline.stored_partitions import StoredPartitions
from odradek.pipeline.stream_offsets import StreamOffsets
from odradek.protocol.topics import TopicPartition
from odradek.storage.tiered.segment_metadata import TopicIdPartition

if TYPE_CHECKING:
    from odradek.pipeline.brokers import Brokers

log = logging.getLogger("odradek.pipeline")

Ranges = Mapping[TopicPartition, tuple[int, int]]
"""Offsets (start, exclusive end) by partition."""


@dataclass
class QueryPlan:
    """Ranges in the order of partitions and offsets, and the aborted transactions in them."""

    pieces: list[PlannedRange] = field(default_factory=list)
    aborted: dict[tuple[str, int], list[AbortedTransaction]] = field(default_factory=dict)


class Query:
    """View of brokers and store for one query, cached at first use, of the partitions that `filtered` selects."""

    def __init__(
        self,
        options: SourceOptions,
        filtered: PushedFilters = PushedFilters(),  # noqa: B008 - a value
        *,
        store: Store | None = None,
    ) -> None:
        """`store` replaces the one of the options."""
        self._given_store = store
        self._options = options
        self._filtered = filtered
        self._first_pages: dict[TopicPartition, FirstPage] = {}
        self._lost: dict[TopicPartition, list[LostOffsets]] = {}
        self._missing: MissingSegments | None = None
        """Of the current plan; None if only the store or only brokers are read."""

    @cached_property
    def _brokers(self) -> Brokers | None:
        options = self._options
        if options.bootstrap is None:
            return None
        from odradek.pipeline.brokers import brokers_at

        return brokers_at(options.bootstrap, options.request_timeout_ms)

    @cached_property
    def _store(self) -> Store | None:
        options = self._options
        if self._given_store is not None or options.tiered_url is None:
            return self._given_store
        return store_at(options.tiered_url, tuple(sorted(options.store_options.items())))

    @cached_property
    def _stored(self) -> StoredPartitions:
        partitions = self.partitions  # lists the store first
        return StoredPartitions(
            self._options, partitions, self._store, self._brokers, self._first_pages
        )

    @cached_property
    def _named(self) -> dict[TopicPartition, TopicIdPartition | None]:
        """Return the named partitions with their topic ids."""
        options = self._options
        found: dict[TopicPartition, TopicIdPartition | None] = {}
        if self._brokers is not None:
            for name, topic in sorted(self._brokers.topics().items()):
                is_meant = options.includes_topic(name) and not (topic.internal and options.pattern)
                for index in topic.partitions if is_meant else ():
                    id = topic.topic_id
                    tiered = None if id is None else TopicIdPartition(id, name, index)
                    found[TopicPartition(name, index)] = tiered
        else:
            assert self._store is not None
            partitions = self._store.partitions(options.includes_topic, self._is_read)
            for each, first_page in partitions.items():
                tp = TopicPartition(each.topic, each.partition)
                is_first = found.setdefault(tp, each) == each
                if first_page is None:
                    continue
                self._first_pages[tp] = first_page
                if not is_first:
                    raise BadOption(
                        f"the store has two topics called {each.topic}, and one of them was deleted:"
                        " set kafka.bootstrap.servers to select it"
                    )
        missing = {*options.subscribe, *options.assign} - {tp.topic for tp in found}
        if missing:
            raise BadOption(f"there is no topic {', '.join(sorted(missing))} {self._location_text}")
        if options.assign:
            requested = {
                TopicPartition(name, n) for name, all in options.assign.items() for n in all
            }
            if requested - found.keys():
                raise BadOption(
                    f"there is no partition {_listed(requested - found.keys())} {self._location_text}"
                )
            found = {tp: found[tp] for tp in requested}
        return dict(sorted(found.items()))

    @property
    def _location_text(self) -> str:
        """Return where a topic was not found, and what to do."""
        options = self._options
        if options.bootstrap is not None:
            return f"at {options.bootstrap}: create it, or give another one (subscribe, assign)"
        return (
            f"with a finished segment in {self._location_of_store}: set kafka.bootstrap.servers to read records that are"
            " not tiered yet, or name other topics (subscribe, assign)"
        )

    @property
    def _location_of_store(self) -> str:
        return "the store" if self._store is None else self._store.url

    def _is_read(self, partition: TopicIdPartition) -> bool:
        tp = (partition.topic, partition.partition)
        return self._options.includes_partition(*tp) and self._filtered.has_partition(*tp)

    @cached_property
    def partitions(self) -> dict[TopicPartition, TopicIdPartition | None]:
        """Return the named partitions that pass the filters."""
        passes = self._filtered.has_partition
        return {tp: id for tp, id in self._named.items() if passes(*tp)}

    @property
    def topic_ids(self) -> dict[str, UUID]:
        """Return the topic ids, as far as brokers or the store have them."""
        return {each.topic: each.topic_id for each in self.partitions.values() if each is not None}

    # Start and end offsets

    def ranges(self) -> dict[TopicPartition, tuple[int, int]]:
        """Return the offsets that a batch query reads of each partition. Raises DataLoss."""
        options = self._options
        partitions = list(self.partitions)
        # Ends first: a record that is appended between the requests must not be before a start at the log end.
        ends = self.resolve(partitions, options.ending, is_end=True)
        starts = self.resolve(partitions, options.starting or OffsetSpec(everywhere=EARLIEST))
        self._check_named_starts(starts, ends)
        requested = {tp: (starts[tp], max(starts[tp], ends[tp])) for tp in partitions}
        return self.left(self._below_last_stable(requested))

    def _check_named_starts(
        self, starts: Mapping[TopicPartition, int], ends: Mapping[TopicPartition, int]
    ) -> None:
        """Check named starting offsets against the log end: one beyond it was in a log that was truncated. Raises
        DataLoss.
        """
        if self._options.starting is None or self._options.starting.offsets is None:
            return
        beyond_end = [tp for tp, start in starts.items() if start > ends[tp]]
        for tp, end in self._log_ends(beyond_end).items():
            if starts[tp] <= end:  # beyond a named end or the last stable offset only
                continue
            text = f"{_ends_at(tp, end, False)}, and the query starts at {starts[tp]}"
            if self._options.fail_on_data_loss:
                raise DataLoss(f"{text} (failOnDataLoss=false reads nothing)")
            log.error("%s: the partition is not read", text)

    def _log_ends(self, partitions: Sequence[TopicPartition]) -> dict[TopicPartition, int]:
        """Return the log end offsets, also of unstable records."""
        if self._brokers is None:
            return self._stored.limits(partitions, LATEST, committed=False)
        return self._brokers.offsets(dict.fromkeys(partitions, LATEST))

    def left(self, requested: Ranges) -> dict[TopicPartition, tuple[int, int]]:
        """Return the offsets that still exist; earlier ones are recorded as lost. Raises DataLoss."""
        earliest = self._limits(list(requested), EARLIEST)
        found = {}
        for tp, (low, high) in requested.items():
            first = min(earliest[tp], high)
            if low < first:
                begins = f"{tp} now starts at offset {earliest[tp]}"
                self.record_loss(tp, low, first, f"{begins}, and the query starts at {low}")
            found[tp] = (max(low, first), high)
        return found

    def record_loss(self, tp: TopicPartition, low: int, high: int, text: str) -> None:
        """Record offsets as lost. Raises DataLoss unless `failOnDataLoss` is false."""
        if self._options.fail_on_data_loss:
            raise DataLoss(f"{text} (failOnDataLoss=false reads what is available)")
        self._lost.setdefault(tp, []).append(LostOffsets(*tp, low, high, text))

    def _below_last_stable(self, requested: Ranges) -> Ranges:
        """Limit the ranges to the last readable offset. Raises DataLoss if the end was named."""
        options = self._options
        is_named = options.ending.offsets is not None
        if not (options.read_committed if self._brokers is None else is_named):
            return requested
        limits = self._limits(list(requested), LATEST)
        found = {}
        for tp, (low, high) in requested.items():
            end = min(high, max(low, limits[tp]))
            if end < high and is_named:
                text = _ends_at(tp, limits[tp], options.read_committed)
                self.record_loss(tp, end, high, f"{text}, and the query ends at {high}")
            found[tp] = (low, end)
        return found

    def resolve(
        self, partitions: Sequence[TopicPartition], position: OffsetSpec, *, is_end: bool = False
    ) -> dict[TopicPartition, int]:
        """Return the offset of each partition for a position. Raises BadOption."""
        _check_position(position, self._named)
        if again := StreamOffsets({}, position.topic_ids).recreated_topics(self.topic_ids):
            raise BadOption(f"{'; '.join(again.values())}: give offsets of the new topic")
        if position.everywhere is not None:
            return self._limits(partitions, position.everywhere)
        if position.offsets is not None:
            return self._named_offsets(partitions, position.offsets)
        times = position.timestamps_ms
        wanted = {
            tp: position.timestamp_ms if times is None else _given(times, tp, "a timestamp")
            for tp in partitions
        }
        requested = {tp: at for tp, at in wanted.items() if at is not None}
        found = self._at_times(requested, is_end=is_end)
        latest = self._limits(partitions, LATEST)
        for tp, offset in found.items():
            if offset >= 0:
                continue
            if not is_end and not self._options.missing_timestamp_is_latest:
                raise BadOption(
                    f"{tp} has no record with timestamp {wanted[tp]} or later"
                    " (startingOffsetsByTimestampStrategy=latest starts at its end)"
                )
            found[tp] = latest[tp]
        return found

    def _named_offsets(
        self, partitions: Sequence[TopicPartition], offsets: Mapping[str, Mapping[int, int]]
    ) -> dict[TopicPartition, int]:
        named = {tp: _given(offsets, tp, "an offset") for tp in partitions}
        found = dict(named)
        for special in (EARLIEST, LATEST):
            requested = [tp for tp, offset in named.items() if offset == special]
            found.update(self._limits(requested, special))
        return found

    def _limits(
        self, partitions: Sequence[TopicPartition], which: int
    ) -> dict[TopicPartition, int]:
        if self._brokers is None:
            committed = self._options.read_committed
            return self._stored.limits(partitions, which, committed=committed)
        wanted = dict.fromkeys(partitions, which)
        return self._brokers.offsets(wanted, read_committed=self._options.read_committed)

    def _at_times(
        self, wanted: Mapping[TopicPartition, int], *, is_end: bool = False
    ) -> dict[TopicPartition, int]:
        if self._brokers is None:
            return self._stored.offsets_for_times(wanted, is_end=is_end)
        return self._brokers.offsets(wanted, read_committed=self._options.read_committed)

    # Assignment of offsets to the store and the brokers

    def plan(self, ranges: Ranges, filtered: PushedFilters | None = None) -> QueryPlan:
        """Plan the ranges, as far as they pass the filters."""
        plan = QueryPlan()
        filtered = filtered or self._filtered
        left = {tp: filtered.offsets(*tp, *ends) for tp, ends in sorted(ranges.items())}
        left = {tp: (low, high) for tp, (low, high) in left.items() if low < high}
        if self._store is None:
            left = self._between_times(left, filtered)
        tiered = self._possibly_tiered(left)
        self._stored.look_up(list(tiered))
        planned = self._plan_stored(tiered, filtered)
        for tp in sorted({*left, *self._lost}):
            low, high = left.get(tp, ranges.get(tp, (0, 0)))
            self._plan_lost(plan, tp, filtered, 0, high)
            if tp in tiered:
                of_it = next(planned)
                plan.pieces += of_it.pieces
                plan.aborted |= of_it.aborted
            elif tp in left:
                plan.pieces.append(self._at_brokers(tp, low, high))
            self._plan_lost(plan, tp, filtered, high, INT64_MAX)
        if self._store is not None:
            plan.pieces = self._narrowed(self._store, plan.pieces, filtered)
        plan.pieces = self._with_epochs(plan.pieces)
        return plan

    def _at_brokers(self, tp: TopicPartition, low: int, high: int) -> BrokerRange:
        id = self.partitions.get(tp)
        return BrokerRange(*tp, low, high, None if id is None else id.topic_id)

    def _with_epochs(self, pieces: list[PlannedRange]) -> list[PlannedRange]:
        """Add the leader epochs, which are requested last: everything that is read was written in these or earlier
        epochs.
        """
        requested = {
            TopicPartition(e.topic, e.partition) for e in pieces if isinstance(e, BrokerRange)
        }
        if self._brokers is None or not requested:
            return pieces
        epochs = self._brokers.leader_epochs(sorted(requested))

        def with_epoch(piece: PlannedRange) -> PlannedRange:
            if not isinstance(piece, BrokerRange):
                return piece
            return replace(
                piece, leader_epoch=epochs.get(TopicPartition(piece.topic, piece.partition))
            )

        return [with_epoch(piece) for piece in pieces]

    def _between_times(
        self, ranges: Ranges, filtered: PushedFilters
    ) -> dict[TopicPartition, tuple[int, int]]:
        """Narrow the ranges by time, by offsets for times from the leaders."""
        found = dict(ranges)
        for tp, first in self._offsets_at_time(ranges, filtered.since_ms).items():
            low, high = found[tp]
            found[tp] = max(low, first if first >= 0 else high), high
        for tp, first in self._offsets_at_time(ranges, self._too_late_ms(filtered)).items():
            low, high = found[tp]
            found[tp] = low, min(high, first if first >= 0 else high)
        return {tp: (low, high) for tp, (low, high) in found.items() if low < high}

    def _offsets_at_time(self, ranges: Ranges, at_ms: int) -> dict[TopicPartition, int]:
        """Return the offset for a filter's time; nothing for an unbounded one, or before 1970, which has a special
        meaning in ListOffsets.
        """
        is_time = 0 <= at_ms < INT64_MAX
        return self._at_times(dict.fromkeys(ranges, at_ms)) if is_time else {}

    def _narrowed(
        self, store: Store, pieces: list[PlannedRange], filtered: PushedFilters
    ) -> list[PlannedRange]:
        """Narrow single-segment ranges by their time indexes."""
        if not self._is_timed(filtered):
            return pieces
        from odradek.pipeline.segment_reader import narrowed

        since_ms, too_late_ms = filtered.since_ms, self._too_late_ms(filtered)

        def narrow(piece: PlannedRange) -> list[PlannedRange]:
            if not isinstance(piece, PackedSlices) or len(piece) > 1:
                return [piece]
            whole = piece.unpacked()
            found = narrowed(store.storage, whole.last, since_ms, too_late_ms)
            left = whole.between(found.low, found.high)
            return [left.packed()] if len(left) else []

        return [each for found in store.run_concurrently(narrow, pieces) for each in found]

    def _too_late_ms(self, filtered: PushedFilters) -> int:
        return filtered.too_late_ms(self._options.max_lateness_ms)

    def _first_too_late(self, slices: SegmentSlices, filtered: PushedFilters) -> int | None:
        """Return the first slice with a record that is too late; None if unknown."""
        too_late_ms = self._too_late_ms(filtered)
        for number in np.flatnonzero(slices.have_record_at_or_after(too_late_ms)).tolist():
            from odradek.pipeline.segment_reader import has_record_at_or_after

            assert self._store is not None, "slices are from a store"
            if has_record_at_or_after(self._store.storage, slices[: number + 1].last, too_late_ms):
                found: int = number
                return found
        return None

    def _is_timed(self, filtered: PushedFilters) -> bool:
        """Return whether the filters exclude records by time."""
        return filtered.since_ms > INT64_MIN or self._too_late_ms(filtered) < INT64_MAX

    def _possibly_tiered(self, ranges: Ranges) -> Ranges:
        """Return the ranges that may be tiered, so that a stream at the log end does not use the store."""
        if self._brokers is None or self._store is None or not ranges:
            return ranges
        ends = self._brokers.remote_log_end_offsets(ranges)
        tiered = {tp: each for tp, each in ranges.items() if each[0] < ends.get(tp, INT64_MAX)}
        self._missing = MissingSegments(
            self._store, self._brokers, copied_ends(self._brokers, ends, tiered)
        )
        return tiered

    def _plan_lost(
        self,
        plan: QueryPlan,
        tp: TopicPartition,
        filtered: PushedFilters,
        since: int,
        until: int,
    ) -> None:
        """Add the lost offsets that start in `since` <= offset < `until`."""
        for lost in self._lost.get(tp, ()):
            low, high = filtered.offsets(*tp, lost.low, lost.high)
            if low < high and since <= low < until:
                plan.pieces.append(replace(lost, low=low, high=high))

    def _plan_stored(self, ranges: Ranges, filtered: PushedFilters) -> Iterator[QueryPlan]:
        """Plan partitions in order; concurrently if transaction indexes are read."""

        def planned(tp: TopicPartition) -> QueryPlan:
            plan = QueryPlan()
            self._plan_partition(plan, tp, *ranges[tp], filtered)
            self._stored.forget(tp)  # frees memory
            return plan

        if self._store is not None and self._options.leaves_out_aborted:
            return iter(self._store.run_concurrently(planned, sorted(ranges)))
        return map(planned, sorted(ranges))

    def _plan_partition(
        self, plan: QueryPlan, tp: TopicPartition, low: int, high: int, filtered: PushedFilters
    ) -> None:
        slices = self._stored.below_last_stable(tp, low, high)
        late = self._first_too_late(slices, filtered)
        if late is not None:
            slices = slices[: late + 1]
            high = slices.high
        unresolved = [*self._stored.unresolved(tp), *self._missing_segments(tp, slices, low, high)]
        read = slices[slices.may_have_record_at_or_after(filtered.since_ms)]
        if self._options.leaves_out_aborted and len(read):
            aborted = self._stored.aborted(tp, read.low, read.high, unresolved)
            plan.aborted[tp.topic, tp.partition] = aborted
        unresolved = overlapping(unresolved, low, high)
        if unresolved and self._options.corrupt_segments == "fail":
            raise with_skip_hint(unresolved[0].error)
        for unresolved_range in unresolved:
            slices = slices.without(unresolved_range.low, unresolved_range.high)
        gaps = slices.gaps(low, high)
        lacking = [self._lacking(tp, begin, end, unresolved) for begin, end, _ in gaps]
        lost = [e for each in lacking for e in each if isinstance(e, LostOffsets) and e.key is None]
        if lost and self._options.fail_on_data_loss:
            reasons = "; ".join(each.reason for each in lost)
            raise DataLoss(f"{reasons} (failOnDataLoss=false reads what is available)")
        passing = slices.may_have_record_at_or_after(filtered.since_ms)
        cursor = 0
        for number, (_, _, at) in enumerate([*gaps, (high, high, len(slices))]):
            run = slices[cursor:at]
            run = run if passing[cursor:at].all() else run[passing[cursor:at]]
            # The first and the last slice are narrowed by their time indexes, so they are ranges of their own.
            cuts = (slice(1), slice(1, -1), slice(max(1, len(run) - 1), None))
            parts = [run[cut] for cut in cuts] if self._is_timed(filtered) else [run]
            plan.pieces += [part.packed() for part in parts if len(part)]
            plan.pieces += lacking[number] if number < len(lacking) else ()
            cursor = at

    def _missing_segments(
        self, tp: TopicPartition, slices: SegmentSlices, low: int, high: int
    ) -> list[UnresolvedOffsets]:
        """Return the offsets of copied segments that the store does not have. Raises BrokersUnavailable."""
        id = self.partitions.get(tp)
        if self._missing is None or id is None:
            return []
        missing = self._missing
        return [
            each
            for begin, end, _ in slices.gaps(low, high)
            for each in missing.among(id, begin, end)
        ]

    def _lacking(
        self, tp: TopicPartition, low: int, high: int, unresolved: Sequence[UnresolvedOffsets]
    ) -> list[BrokerRange | LostOffsets]:
        """Return ranges for offsets that no slice has."""
        found: list[BrokerRange | LostOffsets] = []
        for unresolved_range in unresolved:
            begin, end = max(low, unresolved_range.low), min(high, unresolved_range.high)
            if begin >= end:
                continue
            if low < begin:
                found.append(self._gap(tp, low, begin))
            found.append(
                LostOffsets(
                    *tp, begin, end, str(unresolved_range.error), unresolved_range.error.key
                )
            )
            low = end
        return [*found, self._gap(tp, low, high)] if low < high else found

    def _gap(self, tp: TopicPartition, low: int, high: int) -> BrokerRange | LostOffsets:
        """Return the range for offsets that are not in the store."""
        if self._brokers is not None:
            return self._at_brokers(tp, low, high)
        covered = self._stored.covered
        for start, error in self._stored.unreadable(tp):
            if start < high and (start >= low or not len(covered(tp, start, low))):
                return LostOffsets(*tp, low, high, str(error), error.key)
        text = f"the store has no segment with offsets {low} to {high - 1} of {tp}"
        if self._options.read_committed:
            text += ", or the outcome of their transactions"
        return LostOffsets(*tp, low, high, text)


def _ends_at(tp: TopicPartition, limit: int, committed: bool) -> str:
    """Describe the last readable offset."""
    if not committed:
        return f"{tp} now ends at offset {limit}"
    return f"the last stable offset of {tp} is {limit}"


def _check_position(position: OffsetSpec, partitions: Collection[TopicPartition]) -> None:
    """Check that positions name only partitions that are read. Raises BadOption."""
    given = position.offsets or position.timestamps_ms
    others = {TopicPartition(name, n) for name, all in (given or {}).items() for n in all}
    others.difference_update(partitions)
    if others:
        raise BadOption(
            f"offsets or timestamps are given for {_listed(others)}, which are not read: remove"
            " them, or add these partitions (subscribe, assign)"
        )


def _listed(partitions: Iterable[TopicPartition]) -> str:
    return ", ".join(str(each) for each in sorted(partitions))


def _given(values: Mapping[str, Mapping[int, int]], tp: TopicPartition, what: str) -> int:
    try:
        return values[tp.topic][tp.partition]
    except KeyError:
        raise BadOption(
            f"{what} is missing for {tp}: add it, or exclude the partition (assign)"
        ) from None
