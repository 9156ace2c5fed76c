"""What a query reads, decided by the driver: partitions, offsets, and what of them is in which tier.

Remote segments are read from the store as far as they reach, in the lineage that the partition's leader
knows; brokers are asked for what is left. Without brokers the store is all there is: the lineage is the
last segment's, and read_committed ends where the first transaction is not decided.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

from odradek.pipeline.brokers import EARLIEST, LATEST, Brokers, TopicPartition, brokers_at
from odradek.pipeline.decoding.decoder import Aborted
from odradek.pipeline.errors import BadOption, DataLoss
from odradek.pipeline.filters import Filtered
from odradek.pipeline.history import Stretch, cover
from odradek.pipeline.options import Options, Position
from odradek.pipeline.planning import BrokerRange, Piece
from odradek.pipeline.store import Store, store_at
from odradek.protocol.errors import KafkaError
from odradek.storage.log.epochs import EpochStart
from odradek.storage.tiered.metadata import RemoteLogSegmentMetadata, TopicIdPartition

Ranges = Mapping[TopicPartition, tuple[int, int]]
"""Offsets from the first on, before the second."""


@dataclass
class Plan:
    """Pieces in the order of partitions and offsets, and what of them is not read."""

    pieces: list[Piece] = field(default_factory=list)
    aborted: dict[tuple[str, int], list[Aborted]] = field(default_factory=dict)


class Query:
    """One query's view of brokers and store, as they are when it first asks for each."""

    def __init__(self, options: Options) -> None:
        self._options = options
        self._segments: dict[TopicPartition, list[RemoteLogSegmentMetadata]] = {}
        self._lineages: dict[TopicPartition, list[EpochStart]] = {}

    @cached_property
    def _brokers(self) -> Brokers | None:
        options = self._options
        if options.bootstrap is None:
            return None
        return brokers_at(options.bootstrap, options.request_timeout_ms)

    @cached_property
    def _store(self) -> Store | None:
        options = self._options
        if options.tiered_url is None:
            return None
        return store_at(options.tiered_url, tuple(sorted(options.store_options.items())))

    @cached_property
    def partitions(self) -> dict[TopicPartition, TopicIdPartition | None]:
        """The partitions that the query names, as they are now, and as the store calls them."""
        options = self._options
        found: dict[TopicPartition, TopicIdPartition | None] = {}
        if self._brokers is not None:
            for name, topic in sorted(self._brokers.topics().items()):
                for index in topic.partitions if options.wants(name) else ():
                    id = topic.topic_id
                    tiered = None if id is None else TopicIdPartition(id, name, index)
                    found[TopicPartition(name, index)] = tiered
        else:
            assert self._store is not None
            for each in self._store.partitions(options.wants):
                where = TopicPartition(each.topic, each.partition)
                if found.setdefault(where, each) != each:
                    raise BadOption(
                        f"the store has two topics called {each.topic}, of which one was deleted:"
                        " kafka.bootstrap.servers would tell which"
                    )
        if options.assign:
            found = {w: id for w, id in found.items() if w.partition in options.assign[w.topic]}
        asked = {*options.subscribe, *options.assign}
        missing = asked - {where.topic for where in found}
        if missing:
            raise BadOption(f"there is no topic {', '.join(sorted(missing))}")
        return dict(sorted(found.items()))

    # Where it begins and ends

    def ranges(self) -> dict[TopicPartition, tuple[int, int]]:
        """The offsets that a batch query reads of each partition. Raises DataLoss."""
        options = self._options
        partitions = list(self.partitions)
        starts = self.resolve(partitions, options.starting or Position(everywhere=EARLIEST))
        ends = self.resolve(partitions, options.ending, is_end=True)
        earliest = self._limits(partitions, EARLIEST)
        found = {}
        for where in partitions:
            low, first = starts[where], earliest[where]
            if low < first:
                text = f"{where} begins at offset {first} now, and the query at {low}"
                if options.fail_on_data_loss:
                    raise DataLoss(f"{text} (failOnDataLoss=false reads what is left)")
                low = first
            found[where] = (low, max(low, ends[where]))
        return found

    def resolve(
        self, partitions: Sequence[TopicPartition], position: Position, *, is_end: bool = False
    ) -> dict[TopicPartition, int]:
        """The offsets that a position means."""
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
        assert self._store is not None
        found = {}
        for where in partitions:
            stretches = self._covered(where, 0, 1 << 62)
            if which == EARLIEST:
                found[where] = stretches[0].low if stretches else 0
            elif not stretches:
                found[where] = 0
            elif committed:
                found[where] = self._store.undecided_from(stretches[-1].segment)
            else:
                found[where] = stretches[-1].high
        return found

    def _at_times(self, wanted: Mapping[TopicPartition, int]) -> dict[TopicPartition, int]:
        if self._brokers is not None:
            return self._brokers.offsets(wanted)
        return {where: self._first_at(where, at_ms) for where, at_ms in wanted.items()}

    def _first_at(self, where: TopicPartition, at_ms: int) -> int:
        """The first offset with a timestamp of at least that, in the store; -1 for none."""
        from odradek.pipeline.decoding.decoder import Wanted
        from odradek.pipeline.segments import read_stretch

        assert self._store is not None
        for each in self._covered(where, 0, 1 << 62):
            if each.segment.max_timestamp_ms >= at_ms:
                wanted = Wanted(*where, ("offset",), since_ms=at_ms)
                for table in read_stretch(self._store.storage, each, wanted):
                    if table.num_rows:
                        return int(table.column(0)[0].as_py())
        return -1

    # What of it is where

    def plan(self, ranges: Ranges, filtered: Filtered | None = None) -> Plan:
        """Who has these offsets, as far as the filters let them through."""
        plan = Plan()
        filtered = filtered or Filtered()
        for where, (low, high) in sorted(ranges.items()):
            low, high = filtered.offsets(*where, low, high)
            if low < high:
                self._plan_partition(plan, where, low, high, filtered)
        return plan

    def _plan_partition(
        self, plan: Plan, where: TopicPartition, low: int, high: int, filtered: Filtered
    ) -> None:
        cursor = low
        stretches = self._covered(where, low, high)
        broker_ranges = []
        for each in stretches:
            if each.low > cursor:
                broker_ranges.append(BrokerRange(*where, cursor, each.low))
                plan.pieces.append(broker_ranges[-1])
            if each.segment.max_timestamp_ms < 0 or not filtered.is_before(
                each.segment.max_timestamp_ms
            ):
                plan.pieces.append(each)
            cursor = each.high
        if cursor < high:
            broker_ranges.append(BrokerRange(*where, cursor, high))
            plan.pieces.append(broker_ranges[-1])
        if broker_ranges and self._brokers is None:
            if self._options.fail_on_data_loss:
                gaps = ", ".join(f"{each.low} to {each.high - 1}" for each in broker_ranges)
                raise DataLoss(f"the store lacks offsets {gaps} of {where}")
            plan.pieces = [each for each in plan.pieces if each not in broker_ranges]
        if self._options.read_committed and stretches:
            plan.aborted[where.topic, where.partition] = self._aborted(where, low)

    def _covered(self, where: TopicPartition, low: int, high: int) -> list[Stretch]:
        """What the store has of these offsets."""
        segments = self._segments_of(where)
        if self._store is None or not segments:
            return []
        if where not in self._lineages:
            if self._brokers is None:
                lineage = self._store.lineage(segments)
            else:
                epochs = {epoch.epoch for each in segments for epoch in each.epochs}
                lineage = self._brokers.lineage(where, epochs)
            self._lineages[where] = lineage
        return cover(segments, self._lineages[where], low, high)

    def _segments_of(self, where: TopicPartition) -> list[RemoteLogSegmentMetadata]:
        if self._store is None:
            return []
        if where not in self._segments:
            tiered = self.partitions[where]
            self._segments[where] = [] if tiered is None else self._store.segments(tiered)
        return self._segments[where]

    def _aborted(self, where: TopicPartition, low: int) -> list[Aborted]:
        """Of the offsets in the store from `low` on: markers may lie in later segments, or only on the
        broker, which then names the transactions that reach over the end of the store."""
        assert self._store is not None
        covering = self._covered(where, low, 1 << 62)
        found = self._store.aborted(covering)
        if self._brokers is not None:
            end = covering[-1].high
            try:
                fetched = self._brokers.fetch(where, end, read_committed=True, max_bytes=1)
            except KafkaError:
                pass  # the store reaches further than the log does now: all of it is decided
            else:
                found += [
                    Aborted(id, first, end - 1) for id, first in fetched.aborted if first < end
                ]
        return found


def _given(values: Mapping[str, Mapping[int, int]], where: TopicPartition, what: str) -> int:
    try:
        return values[where.topic][where.partition]
    except KeyError:
        raise BadOption(f"{what} is given for others, and not for {where}") from None
