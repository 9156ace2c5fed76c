"""What a query reads, decided by the driver: partitions, offsets, and what of them is in which tier.

Remote segments are read from the store as far as they reach, in the lineage that the partition's leader
knows; brokers are asked for what is left. Without brokers the store is all there is: the lineage is the
last segment's, and read_committed ends where the first transaction is not decided, whatever end is asked
for: what became of later records, nobody there knows.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from uuid import UUID

import numpy as np

from odradek.pipeline.brokers import EARLIEST, LATEST, Brokers, TopicPartition, brokers_at
from odradek.pipeline.decoding.wanted import INT64_MAX, Aborted
from odradek.pipeline.doubts import Doubt, concerning
from odradek.pipeline.errors import BadOption, DataLoss, UnreadableSegment, or_without
from odradek.pipeline.filters import Filtered
from odradek.pipeline.history import cover
from odradek.pipeline.options import Options, Position
from odradek.pipeline.planning import BrokerRange, Lost, Piece
from odradek.pipeline.segment_columns import Segments, Stretches
from odradek.pipeline.store import Beginning, Store, store_at
from odradek.pipeline.stream_offsets import StreamOffsets
from odradek.protocol.errors import KafkaError
from odradek.storage.log.epochs import EpochStart
from odradek.storage.tiered.metadata import TopicIdPartition
from odradek.storage.tiered.object_names import parse_key
from odradek.storage.tiered.summary import decode

log = logging.getLogger("odradek.pipeline")

Ranges = Mapping[TopicPartition, tuple[int, int]]
"""Offsets from the first on, before the second."""


@dataclass
class Plan:
    """Pieces in the order of partitions and offsets, and what of them is not read."""

    pieces: list[Piece] = field(default_factory=list)
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
        self._segments: dict[TopicPartition, bytes] = {}
        """Packed: there may be millions of them."""
        self._lineages: dict[TopicPartition, list[EpochStart]] = {}
        self._unproven: dict[TopicPartition, Doubt] = {}
        """What the lineage does not reach back to, without the object that had it."""
        self._known_ends: dict[TopicPartition, Stretches] = {}
        self._lost: dict[TopicPartition, list[Lost]] = {}
        self._unreadable: dict[TopicPartition, list[UnreadableSegment]] = {}
        """Manifests, where they end no query."""

    @cached_property
    def _brokers(self) -> Brokers | None:
        options = self._options
        if options.bootstrap is None:
            return None
        return brokers_at(options.bootstrap, options.request_timeout_ms)

    @cached_property
    def _store(self) -> Store | None:
        options = self._options
        if self._given_store is not None or options.tiered_url is None:
            return self._given_store
        return store_at(options.tiered_url, tuple(sorted(options.store_options.items())))

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
            raise BadOption(f"there is no topic {', '.join(sorted(missing))}")
        if options.assign:
            asked = {TopicPartition(name, n) for name, all in options.assign.items() for n in all}
            if asked - found.keys():
                raise BadOption(f"there is no {_listed(asked - found.keys())}")
            found = {where: found[where] for where in asked}
        return dict(sorted(found.items()))

    def _is_read(self, partition: TopicIdPartition) -> bool:
        assign, index = self._options.assign, partition.partition
        is_named = not assign or index in assign.get(partition.topic, ())
        return is_named and self._filtered.has_partition(partition.topic, index)

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
        starts = self.resolve(partitions, options.starting or Position(everywhere=EARLIEST))
        ends = self.resolve(partitions, options.ending, is_end=True)
        asked = {where: (starts[where], max(starts[where], ends[where])) for where in partitions}
        return self.left(self._decided(asked))

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
        found = self._at_times({where: at for where, at in wanted.items() if at is not None})
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
        committed = self._options.read_committed
        if self._brokers is not None:
            wanted = dict.fromkeys(partitions, which)
            return self._brokers.offsets(wanted, read_committed=committed)
        store = self._store
        assert store is not None

        def limit(where: TopicPartition) -> int:
            stretches = self._ends(where)
            if not len(stretches):
                return 0
            if which == EARLIEST:
                unproven = self._unproven.get(where)
                return stretches.low if unproven is None else unproven.low
            return store.undecided_from(stretches.last.segment) if committed else stretches.high

        self._look_up(partitions)
        return dict(zip(partitions, store.at_once(limit, partitions), strict=True))

    def _at_times(self, wanted: Mapping[TopicPartition, int]) -> dict[TopicPartition, int]:
        if self._brokers is not None:
            return self._brokers.offsets(wanted, read_committed=self._options.read_committed)
        assert self._store is not None
        self._look_up(list(wanted))
        found = self._store.at_once(lambda each: self._first_at(*each), list(wanted.items()))
        return dict(zip(wanted, found, strict=True))

    def _first_at(self, where: TopicPartition, at_ms: int) -> int:
        """The first offset with a timestamp of at least that, in the store; -1 for none."""
        from odradek.pipeline.decoding.wanted import Wanted
        from odradek.pipeline.segments import narrowed_to_time, read_stretch

        assert self._store is not None
        storage = self._store.storage
        stretches = self._covered(where, 0, 1 << 62)
        if where in self._unproven:
            raise self._unproven[where].error
        wanted = Wanted(*where, ("offset",), since_ms=at_ms)
        for each in stretches[stretches.rows["newest"] >= at_ms]:
            narrow = narrowed_to_time(storage, each, at_ms)
            for stretch in (narrow, each) if narrow is not each else (each,):
                for table in read_stretch(storage, stretch, wanted):
                    if table.num_rows:
                        return int(table.column(0)[0].as_py())
        return -1

    # What of it is where

    def plan(self, ranges: Ranges, filtered: Filtered | None = None) -> Plan:
        """Who has these offsets, as far as the filters let them through."""
        plan = Plan()
        filtered = filtered or self._filtered
        left = {where: filtered.offsets(*where, *ends) for where, ends in sorted(ranges.items())}
        left = {where: (low, high) for where, (low, high) in left.items() if low < high}
        tiered = self._not_behind_the_store(left)
        self._look_up(list(tiered))
        for where in sorted({*left, *self._lost}):
            low, high = left.get(where, ranges.get(where, (0, 0)))
            self._plan_lost(plan, where, filtered, 0, high)
            if where in tiered:
                self._plan_partition(plan, where, low, high, filtered)
            elif where in left:
                plan.pieces.append(BrokerRange(*where, low, high))
            self._plan_lost(plan, where, filtered, high, INT64_MAX)
            self._segments.pop(where, None)  # the plan has what is needed of them
        return plan

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

    def _plan_partition(
        self, plan: Plan, where: TopicPartition, low: int, high: int, filtered: Filtered
    ) -> None:
        stretches = self._decided_before_gaps(self._covered(where, low, high), low, high)
        too_late_ms = filtered.too_late_ms(self._options.max_lateness_ms)
        late = np.flatnonzero(stretches.are_as_late(too_late_ms))
        if len(late):
            stretches = stretches[: late[0] + 1]
            high = stretches.high
        doubts = [self._unproven[where]] if where in self._unproven else []
        read = stretches[stretches.may_be_as_late(filtered.since_ms)]
        if self._options.read_committed and len(read):
            aborted = self._aborted(where, read.low, read.high, doubts)
            plan.aborted[where.topic, where.partition] = aborted
        doubts = concerning(doubts, low, high)
        if doubts and self._options.corrupt_segments == "fail":
            raise or_without(doubts[0].error)
        for doubt in doubts:
            stretches = stretches.without(doubt.low, doubt.high)
        gaps = _gaps(stretches, low, high)
        lacking = [self._lacking(where, begin, end, doubts) for begin, end, _ in gaps]
        lost = [e for each in lacking for e in each if isinstance(e, Lost) and e.key is None]
        if lost and self._options.fail_on_data_loss:
            raise DataLoss("; ".join(each.reason for each in lost))
        passing = stretches.may_be_as_late(filtered.since_ms)
        cursor = 0
        for number, (_, _, at) in enumerate([*gaps, (high, high, len(stretches))]):
            run = stretches[cursor:at]
            run = run if passing[cursor:at].all() else run[passing[cursor:at]]
            if len(run):
                plan.pieces.append(run.packed())
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
            return BrokerRange(*where, low, high)
        begins = ((_start_offset(error), error) for error in self._unreadable.get(where, ()))
        for start, error in begins:
            if start < high and (start >= low or not len(self._covered(where, start, low))):
                return Lost(*where, low, high, str(error), error.key)
        text = f"the store lacks offsets {low} to {high - 1} of {where}"
        if self._options.read_committed:
            text += ", or does not tell how transactions there ended"
        return Lost(*where, low, high, text)

    def _decided_before_gaps(self, stretches: Stretches, low: int, high: int) -> Stretches:
        """Without what is of transactions, of read_committed, that may have ended where nobody can look:
        what the store alone lacks begins with the first of these."""
        store = self._store
        if self._brokers is not None or store is None or not self._options.read_committed:
            return stretches
        rows = stretches.rows.copy()
        for _, _, before in _gaps(stretches, low, high):
            if before:
                (last,) = stretches[before - 1 : before]
                first = store.undecided_from(last.segment)
                rows["high"][:before] = np.minimum(rows["high"][:before], first)
        return replace(stretches, rows=rows[rows["low"] < rows["high"]])

    def _covered(self, where: TopicPartition, low: int, high: int) -> Stretches:
        """What the store has of these offsets."""
        self._look_up([where])
        id = self.partitions[where]
        if id is None or not self._segments[where]:
            return cover(_NOTHING, [], low, high)
        segments = Segments.summarised(id, decode(self._segments[where]))
        return cover(segments, self._lineages[where], low, high)

    def _ends(self, where: TopicPartition) -> Stretches:
        """The first and the last stretch of all that the store has; asked for again and again."""
        if where not in self._known_ends:
            stretches = self._covered(where, 0, 1 << 62)
            count = len(stretches)
            self._known_ends[where] = stretches[np.unique([0, count - 1])] if count else stretches
        return self._known_ends[where]

    def _look_up(self, partitions: Sequence[TopicPartition]) -> None:
        """What the store has of them, several at once."""
        unknown = [where for where in partitions if where not in self._segments]
        store, _ = self._store, self.partitions  # found out before there are threads
        if store is None:
            self._segments.update((where, b"") for where in unknown)
            self._lineages.update((where, []) for where in unknown)
            return
        for where, found in zip(unknown, store.at_once(self._find, unknown), strict=True):
            self._segments[where], self._lineages[where] = found

    def _find(self, where: TopicPartition) -> tuple[bytes, list[EpochStart]]:
        """The segments, packed, and the partition's leader epochs."""
        assert self._store is not None
        tiered = self.partitions[where]
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

    def _aborted(
        self, where: TopicPartition, low: int, high: int, doubts: list[Doubt]
    ) -> list[Aborted]:
        """Of the offsets in the store from `low` on: markers may lie in later segments, or only on the
        broker, which then names the transactions that reach over the end of the store, or into what
        it lacks. What cannot be told is added to the doubts."""
        assert self._store is not None
        covering = self._covered(where, low, 1 << 62)
        found, is_all = self._store.aborted(covering, high, doubts)
        if self._brokers is not None:
            ends = [begin for begin, _, before in _gaps(covering, low, covering.high) if before]
            for end in ends if is_all else (*ends, covering.high):
                found += self._aborted_across(self._brokers, where, end)
        return found

    def _aborted_across(self, brokers: Brokers, where: TopicPartition, end: int) -> list[Aborted]:
        try:
            fetched = brokers.fetch(where, end, read_committed=True, max_bytes=1)
        except KafkaError:
            if end > brokers.offsets({where: LATEST})[where]:
                return []  # the store reaches further than the log does now: all of it is decided
            text = f"{where} has lost offset {end} while a query was planned: run it again"
            raise DataLoss(text) from None
        return [Aborted(id, first, end - 1) for id, first in fetched.aborted if first < end]


_NOTHING = Segments.of(TopicIdPartition(UUID(int=0), "", 0), ())


def _gaps(stretches: Stretches, low: int, high: int) -> list[tuple[int, int, int]]:
    """Offsets between `low` and `high` that no stretch has (from, before), and how many stretches lie
    before them."""
    begins = np.append(stretches.rows["low"], high)
    ends = np.append(low, stretches.rows["high"])
    at = np.flatnonzero(begins > ends)
    return list(zip(ends[at].tolist(), begins[at].tolist(), at.tolist(), strict=True))


def _ends_at(where: TopicPartition, limit: int, committed: bool) -> str:
    """In words: up to where it can be read now."""
    if not committed:
        return f"{where} ends at offset {limit} now"
    return f"how transactions of {where} ended is known before offset {limit}"


def _start_offset(error: UnreadableSegment) -> int:
    """Of the segment whose manifest it is."""
    name = parse_key(error.key or "")
    assert name is not None, "it was listed as a manifest"
    return name.start_offset


def _check_position(position: Position, partitions: Collection[TopicPartition]) -> None:
    """Offsets and times are of partitions that are read. Raises BadOption."""
    given = position.offsets or position.timestamps_ms
    others = {TopicPartition(name, n) for name, all in (given or {}).items() for n in all}
    others.difference_update(partitions)
    if others:
        raise BadOption(
            f"offsets or timestamps are given for {_listed(others)}: nothing is read there"
        )


def _listed(partitions: Iterable[TopicPartition]) -> str:
    return ", ".join(str(each) for each in sorted(partitions))


def _given(values: Mapping[str, Mapping[int, int]], where: TopicPartition, what: str) -> int:
    try:
        return values[where.topic][where.partition]
    except KeyError:
        raise BadOption(f"{what} is given for others, and not for {where}") from None
