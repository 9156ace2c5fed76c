"""What a query reads, decided by the driver: partitions, offsets, and what of them is in which tier.

Remote segments are read from the store as far as they reach, in the lineage that the partition's leader
knows; brokers are asked for what is left. Without brokers the store is all there is: the lineage is the
last segment's, and read_committed ends where the first transaction is not decided, whatever end is asked
for: what became of later records, nobody there knows.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING
from uuid import UUID

import numpy as np

from odradek.client.positions import EARLIEST, LATEST, TopicPartition
from odradek.pipeline.decoding.selection import INT64_MAX, INT64_MIN, Aborted
from odradek.pipeline.errors import BadOption, DataLoss, or_without
from odradek.pipeline.filters import Filtered
from odradek.pipeline.lineage import Doubt, concerning
from odradek.pipeline.options import Options, Position
from odradek.pipeline.planning import BrokerRange, Lost, SegmentRange
from odradek.pipeline.segment_columns import PackedStretches, Stretches
from odradek.pipeline.store import Beginning, Store, store_at
from odradek.pipeline.stored_partitions import StoredPartitions
from odradek.pipeline.stream_offsets import StreamOffsets
from odradek.storage.tiered.metadata import TopicIdPartition

if TYPE_CHECKING:
    from odradek.pipeline.brokers import Brokers

log = logging.getLogger("odradek.pipeline")

Ranges = Mapping[TopicPartition, tuple[int, int]]
"""Offsets from the first on, before the second."""


@dataclass
class Plan:
    """Pieces in the order of partitions and offsets, and what of them is not read."""

    pieces: list[SegmentRange] = field(default_factory=list)
    aborted: dict[tuple[str, int], list[Aborted]] = field(default_factory=dict)


class Query:
    """One query's view of brokers and store, as they are when it first asks for each; of the partitions
    that `filtered` lets through."""

    def __init__(
        self,
        options: Options,
        filtered: Filtered = Filtered(),  # noqa: B008 - a value
        *,
        store: Store | None = None,
    ) -> None:
        """`store`: in place of the one that the options name."""
        self._given_store = store
        self._options = options
        self._filtered = filtered
        self._beginnings: dict[TopicPartition, Beginning] = {}
        self._lost: dict[TopicPartition, list[Lost]] = {}

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
        partitions = self.partitions  # the store was listed then
        return StoredPartitions(
            self._options, partitions, self._store, self._brokers, self._beginnings
        )

    @cached_property
    def _named(self) -> dict[TopicPartition, TopicIdPartition | None]:
        """The partitions that the query names, as they are now, and as the store calls them."""
        options = self._options
        found: dict[TopicPartition, TopicIdPartition | None] = {}
        if self._brokers is not None:
            for name, topic in sorted(self._brokers.topics().items()):
                is_meant = options.wants(name) and not (topic.internal and options.pattern)
                for index in topic.partitions if is_meant else ():
                    id = topic.topic_id
                    tiered = None if id is None else TopicIdPartition(id, name, index)
                    found[TopicPartition(name, index)] = tiered
        else:
            assert self._store is not None
            partitions = self._store.partitions(options.wants, self._is_read)
            for each, beginning in partitions.items():
                where = TopicPartition(each.topic, each.partition)
                is_first = found.setdefault(where, each) == each
                if beginning is None:
                    continue
                self._beginnings[where] = beginning
                if not is_first:
                    raise BadOption(
                        f"the store has two topics called {each.topic}, of which one was deleted:"
                        " kafka.bootstrap.servers would tell which"
                    )
        missing = {*options.subscribe, *options.assign} - {where.topic for where in found}
        if missing:
            raise BadOption(f"there is no topic {', '.join(sorted(missing))} {self._looked_in}")
        if options.assign:
            asked = {TopicPartition(name, n) for name, all in options.assign.items() for n in all}
            if asked - found.keys():
                raise BadOption(f"there is no {_listed(asked - found.keys())} {self._looked_in}")
            found = {where: found[where] for where in asked}
        return dict(sorted(found.items()))

    @property
    def _looked_in(self) -> str:
        """Where a topic or partition is not, and what can be done about that."""
        options = self._options
        if options.bootstrap is not None:
            return f"at {options.bootstrap}: create it, or name others (subscribe, assign)"
        return (
            f"with a finished segment in {options.tiered_url}: kafka.bootstrap.servers would have what is"
            " not tiered yet, or name others (subscribe, assign)"
        )

    def _is_read(self, partition: TopicIdPartition) -> bool:
        where = (partition.topic, partition.partition)
        return self._options.wants_partition(*where) and self._filtered.has_partition(*where)

    @cached_property
    def partitions(self) -> dict[TopicPartition, TopicIdPartition | None]:
        """Those of them that the filters let through."""
        passes = self._filtered.has_partition
        return {where: id for where, id in self._named.items() if passes(*where)}

    @property
    def topic_ids(self) -> dict[str, UUID]:
        """Of these partitions' topics, as far as brokers, or the store, have any."""
        return {each.topic: each.topic_id for each in self.partitions.values() if each is not None}

    # Where it begins and ends

    def ranges(self) -> dict[TopicPartition, tuple[int, int]]:
        """The offsets that a batch query reads of each partition. Raises DataLoss."""
        options = self._options
        partitions = list(self.partitions)
        # The ends first: what comes between the two questions is behind a start that is where the log ends.
        ends = self.resolve(partitions, options.ending, is_end=True)
        starts = self.resolve(partitions, options.starting or Position(everywhere=EARLIEST))
        self._check_named_starts(starts, ends)
        asked = {where: (starts[where], max(starts[where], ends[where])) for where in partitions}
        return self.left(self._decided(asked))

    def _check_named_starts(
        self, starts: Mapping[TopicPartition, int], ends: Mapping[TopicPartition, int]
    ) -> None:
        """An offset that was one of a log which ends before it now is not the same as nothing new. Raises
        DataLoss."""
        if self._options.starting is None or self._options.starting.offsets is None:
            return
        behind = [where for where, start in starts.items() if start > ends[where]]
        for where, end in self._log_ends(behind).items():
            if starts[where] <= end:  # it is behind an end that was named, or is not decided yet
                continue
            text = f"{_ends_at(where, end, False)}, and what is read begins at {starts[where]}"
            if self._options.fail_on_data_loss:
                raise DataLoss(f"{text} (failOnDataLoss=false reads nothing of it)")
            log.error("%s: nothing of it is read", text)

    def _log_ends(self, partitions: Sequence[TopicPartition]) -> dict[TopicPartition, int]:
        """Whatever is decided of it."""
        if self._brokers is None:
            return self._stored.limits(partitions, LATEST, committed=False)
        return self._brokers.offsets(dict.fromkeys(partitions, LATEST))

    def left(self, asked: Ranges) -> dict[TopicPartition, tuple[int, int]]:
        """What there is of these offsets now; the plan tells of those before. Raises DataLoss."""
        earliest = self._limits(list(asked), EARLIEST)
        found = {}
        for where, (low, high) in asked.items():
            first = min(earliest[where], high)
            if low < first:
                begins = f"{where} begins at offset {earliest[where]} now"
                self.lose(where, low, first, f"{begins}, and what is read at {low}")
            found[where] = (max(low, first), high)
        return found

    def lose(self, where: TopicPartition, low: int, high: int, text: str) -> None:
        """These offsets are gone. Raises DataLoss, unless that is to be told by who reads them."""
        if self._options.fail_on_data_loss:
            raise DataLoss(f"{text} (failOnDataLoss=false reads what is left)")
        self._lost.setdefault(where, []).append(Lost(*where, low, high, text))

    def _decided(self, asked: Ranges) -> Ranges:
        """As far as it can be read by now. Raises DataLoss, where an end was named."""
        options = self._options
        is_named = options.ending.offsets is not None
        if not (options.read_committed if self._brokers is None else is_named):
            return asked
        limits = self._limits(list(asked), LATEST)
        found = {}
        for where, (low, high) in asked.items():
            end = min(high, max(low, limits[where]))
            if end < high and is_named:
                tells = _ends_at(where, limits[where], options.read_committed)
                self.lose(where, end, high, f"{tells}, and what is read ends at {high}")
            found[where] = (low, end)
        return found

    def resolve(
        self, partitions: Sequence[TopicPartition], position: Position, *, is_end: bool = False
    ) -> dict[TopicPartition, int]:
        """The offsets that a position means."""
        _check_position(position, self._named)
        if again := StreamOffsets({}, position.topic_ids).made_again(self.topic_ids):
            raise BadOption(f"{'; '.join(again.values())}: give some of that one")
        if position.everywhere is not None:
            return self._limits(partitions, position.everywhere)
        if position.offsets is not None:
            return self._named_offsets(partitions, position.offsets)
        times = position.timestamps_ms
        wanted = {
            where: position.timestamp_ms if times is None else _given(times, where, "a timestamp")
            for where in partitions
        }
        asked = {where: at for where, at in wanted.items() if at is not None}
        found = self._at_times(asked, is_end=is_end)
        latest = self._limits(partitions, LATEST)
        for where, offset in found.items():
            if offset >= 0:
                continue
            if not is_end and not self._options.missing_timestamp_is_latest:
                raise BadOption(
                    f"{where} has no record as late as {wanted[where]}"
                    " (startingOffsetsByTimestampStrategy=latest begins at its end)"
                )
            found[where] = latest[where]
        return found

    def _named_offsets(
        self, partitions: Sequence[TopicPartition], offsets: Mapping[str, Mapping[int, int]]
    ) -> dict[TopicPartition, int]:
        named = {where: _given(offsets, where, "an offset") for where in partitions}
        found = dict(named)
        for special in (EARLIEST, LATEST):
            asked = [where for where, offset in named.items() if offset == special]
            found.update(self._limits(asked, special))
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
            return self._stored.first_as_late(wanted, is_end=is_end)
        return self._brokers.offsets(wanted, read_committed=self._options.read_committed)

    # What of it is where

    def plan(self, ranges: Ranges, filtered: Filtered | None = None) -> Plan:
        """Who has these offsets, as far as the filters let them through."""
        plan = Plan()
        filtered = filtered or self._filtered
        left = {where: filtered.offsets(*where, *ends) for where, ends in sorted(ranges.items())}
        left = {where: (low, high) for where, (low, high) in left.items() if low < high}
        if self._store is None:
            left = self._between_times(left, filtered)
        tiered = self._not_behind_the_store(left)
        self._stored.look_up(list(tiered))
        planned = self._plan_stored(tiered, filtered)
        for where in sorted({*left, *self._lost}):
            low, high = left.get(where, ranges.get(where, (0, 0)))
            self._plan_lost(plan, where, filtered, 0, high)
            if where in tiered:
                of_it = next(planned)
                plan.pieces += of_it.pieces
                plan.aborted |= of_it.aborted
            elif where in left:
                plan.pieces.append(self._at_brokers(where, low, high))
            self._plan_lost(plan, where, filtered, high, INT64_MAX)
        if self._store is not None:
            plan.pieces = self._narrowed(self._store, plan.pieces, filtered)
        plan.pieces = self._with_epochs(plan.pieces)
        return plan

    def _at_brokers(self, where: TopicPartition, low: int, high: int) -> BrokerRange:
        id = self.partitions.get(where)
        return BrokerRange(*where, low, high, None if id is None else id.topic_id)

    def _with_epochs(self, pieces: list[SegmentRange]) -> list[SegmentRange]:
        """Leaders are asked for theirs once all else is known: no offset that is read was written later."""
        asked = {TopicPartition(e.topic, e.partition) for e in pieces if isinstance(e, BrokerRange)}
        if self._brokers is None or not asked:
            return pieces
        epochs = self._brokers.leader_epochs(sorted(asked))

        def with_epoch(piece: SegmentRange) -> SegmentRange:
            if not isinstance(piece, BrokerRange):
                return piece
            return replace(
                piece, leader_epoch=epochs.get(TopicPartition(piece.topic, piece.partition))
            )

        return [with_epoch(piece) for piece in pieces]

    def _between_times(
        self, ranges: Ranges, filtered: Filtered
    ) -> dict[TopicPartition, tuple[int, int]]:
        """What the leaders, of whom all is asked, tell to be neither too early nor too late."""
        found = dict(ranges)
        for where, first in self._first_as_late(ranges, filtered.since_ms).items():
            low, high = found[where]
            found[where] = max(low, first if first >= 0 else high), high
        for where, first in self._first_as_late(ranges, self._too_late_ms(filtered)).items():
            low, high = found[where]
            found[where] = low, min(high, first if first >= 0 else high)
        return {where: (low, high) for where, (low, high) in found.items() if low < high}

    def _first_as_late(self, ranges: Ranges, at_ms: int) -> dict[TopicPartition, int]:
        """What brokers are asked of a filter's time: nothing where it has none. Those before 1970 mean
        something else to them."""
        is_time = 0 <= at_ms < INT64_MAX
        return self._at_times(dict.fromkeys(ranges, at_ms)) if is_time else {}

    def _narrowed(
        self, store: Store, pieces: list[SegmentRange], filtered: Filtered
    ) -> list[SegmentRange]:
        """Without what the time indexes tell to be too early or too late in segments that are pieces by
        themselves."""
        if not self._is_timed(filtered):
            return pieces
        from odradek.pipeline.segments import narrowed

        since_ms, too_late_ms = filtered.since_ms, self._too_late_ms(filtered)

        def narrow(piece: SegmentRange) -> list[SegmentRange]:
            if not isinstance(piece, PackedStretches) or len(piece) > 1:
                return [piece]
            whole = piece.unpacked()
            found = narrowed(store.storage, whole.last, since_ms, too_late_ms)
            left = whole.between(found.low, found.high)
            return [left.packed()] if len(left) else []

        return [each for found in store.at_once(narrow, pieces) for each in found]

    def _too_late_ms(self, filtered: Filtered) -> int:
        return filtered.too_late_ms(self._options.max_lateness_ms)

    def _first_too_late(self, stretches: Stretches, filtered: Filtered) -> int | None:
        """Which is the first that is known to have a record that is too late."""
        too_late_ms = self._too_late_ms(filtered)
        for number in np.flatnonzero(stretches.are_as_late(too_late_ms)).tolist():
            from odradek.pipeline.segments import has_as_late

            assert self._store is not None, "nobody else has stretches"
            if has_as_late(self._store.storage, stretches[: number + 1].last, too_late_ms):
                found: int = number
                return found
        return None

    def _is_timed(self, filtered: Filtered) -> bool:
        """Whether something is known to be too early or too late."""
        return filtered.since_ms > INT64_MIN or self._too_late_ms(filtered) < INT64_MAX

    def _not_behind_the_store(self, ranges: Ranges) -> Ranges:
        """Those of which the store may have something: a stream at the end of a log asks it for nothing."""
        if self._brokers is None or self._store is None or not ranges:
            return ranges
        ends = self._brokers.tiered_ends(ranges)
        return {
            where: each for where, each in ranges.items() if each[0] < ends.get(where, INT64_MAX)
        }

    def _plan_lost(
        self, plan: Plan, where: TopicPartition, filtered: Filtered, since: int, until: int
    ) -> None:
        """What is known to be gone and begins there."""
        for lost in self._lost.get(where, ()):
            low, high = filtered.offsets(*where, lost.low, lost.high)
            if low < high and since <= low < until:
                plan.pieces.append(replace(lost, low=low, high=high))

    def _plan_stored(self, ranges: Ranges, filtered: Filtered) -> Iterator[Plan]:
        """Of each partition in their order. Several at once where the store is asked how transactions ended."""

        def planned(where: TopicPartition) -> Plan:
            plan = Plan()
            self._plan_partition(plan, where, *ranges[where], filtered)
            self._stored.forget(where)  # the plan has what is needed of it
            return plan

        if self._store is not None and self._options.leaves_out_aborted:
            return iter(self._store.at_once(planned, sorted(ranges)))
        return map(planned, sorted(ranges))

    def _plan_partition(
        self, plan: Plan, where: TopicPartition, low: int, high: int, filtered: Filtered
    ) -> None:
        stretches = self._stored.decided(where, low, high)
        late = self._first_too_late(stretches, filtered)
        if late is not None:
            stretches = stretches[: late + 1]
            high = stretches.high
        doubts = self._stored.doubts(where)
        read = stretches[stretches.may_be_as_late(filtered.since_ms)]
        if self._options.leaves_out_aborted and len(read):
            aborted = self._stored.aborted(where, read.low, read.high, doubts)
            plan.aborted[where.topic, where.partition] = aborted
        doubts = concerning(doubts, low, high)
        if doubts and self._options.corrupt_segments == "fail":
            raise or_without(doubts[0].error)
        for doubt in doubts:
            stretches = stretches.without(doubt.low, doubt.high)
        gaps = stretches.gaps(low, high)
        lacking = [self._lacking(where, begin, end, doubts) for begin, end, _ in gaps]
        lost = [e for each in lacking for e in each if isinstance(e, Lost) and e.key is None]
        if lost and self._options.fail_on_data_loss:
            told = "; ".join(each.reason for each in lost)
            raise DataLoss(f"{told} (failOnDataLoss=false reads what is left)")
        passing = stretches.may_be_as_late(filtered.since_ms)
        cursor = 0
        for number, (_, _, at) in enumerate([*gaps, (high, high, len(stretches))]):
            run = stretches[cursor:at]
            run = run if passing[cursor:at].all() else run[passing[cursor:at]]
            # The first and the last are looked into.
            cuts = (slice(1), slice(1, -1), slice(max(1, len(run) - 1), None))
            parts = [run[cut] for cut in cuts] if self._is_timed(filtered) else [run]
            plan.pieces += [part.packed() for part in parts if len(part)]
            plan.pieces += lacking[number] if number < len(lacking) else ()
            cursor = at

    def _lacking(
        self, where: TopicPartition, low: int, high: int, doubts: Sequence[Doubt]
    ) -> list[BrokerRange | Lost]:
        """What stands for offsets that no stretch has."""
        found: list[BrokerRange | Lost] = []
        for doubt in doubts:
            begin, end = max(low, doubt.low), min(high, doubt.high)
            if begin >= end:
                continue
            if low < begin:
                found.append(self._gap(where, low, begin))
            found.append(Lost(*where, begin, end, str(doubt.error), doubt.error.key))
            low = end
        return [*found, self._gap(where, low, high)] if low < high else found

    def _gap(self, where: TopicPartition, low: int, high: int) -> BrokerRange | Lost:
        """What the store lacks."""
        if self._brokers is not None:
            return self._at_brokers(where, low, high)
        covered = self._stored.covered
        for start, error in self._stored.unreadable(where):
            if start < high and (start >= low or not len(covered(where, start, low))):
                return Lost(*where, low, high, str(error), error.key)
        text = f"the store lacks offsets {low} to {high - 1} of {where}"
        if self._options.read_committed:
            text += ", or does not tell how transactions there ended"
        return Lost(*where, low, high, text)


def _ends_at(where: TopicPartition, limit: int, committed: bool) -> str:
    """In words: up to where it can be read now."""
    if not committed:
        return f"{where} ends at offset {limit} now"
    return f"how transactions of {where} ended is known before offset {limit}"


def _check_position(position: Position, partitions: Collection[TopicPartition]) -> None:
    """Offsets and times are of partitions that are read. Raises BadOption."""
    given = position.offsets or position.timestamps_ms
    others = {TopicPartition(name, n) for name, all in (given or {}).items() for n in all}
    others.difference_update(partitions)
    if others:
        raise BadOption(
            f"offsets or timestamps are given for {_listed(others)}: nothing is read there, so leave"
            " them out, or name these to be read (subscribe, assign)"
        )


def _listed(partitions: Iterable[TopicPartition]) -> str:
    return ", ".join(str(each) for each in sorted(partitions))


def _given(values: Mapping[str, Mapping[int, int]], where: TopicPartition, what: str) -> int:
    try:
        return values[where.topic][where.partition]
    except KeyError:
        raise BadOption(
            f"{what} is given for others, and not for {where}: give it one, or leave that out (assign)"
        ) from None
