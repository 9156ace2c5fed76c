"""The same source as a stream: `spark.readStream.format("odradek")`.

Offsets in a checkpoint are those of Spark's own Kafka source, with the topics' ids and, in the first batch's, where that
begins (`stream_offsets.py`): a batch that is made again has the same offsets, and what is gone of them meanwhile is
told. How much a micro-batch takes is decided as there: `maxOffsetsPerTrigger` is shared out among partitions by how
far each is behind, `minOffsetsPerTrigger` waits until there is that much, or the batch before is `maxTriggerDelay`
ago; the first batch of a run waits for nothing. What was tiered since the last batch is read from the store.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING
from uuid import UUID

from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)
from pyspark.sql.types import StructType

from odradek.client.positions import EARLIEST, LATEST, TopicPartition
from odradek.pipeline.errors import DataLoss
from odradek.pipeline.filters import PushedFilters
from odradek.pipeline.options import Options, Position
from odradek.pipeline.query import Query
from odradek.pipeline.stream_offsets import Offsets, OffsetsJson, StreamOffsets
from odradek.pipeline.table_reader import TableReader
from odradek.seams.clock import Clock, RealClock

if TYPE_CHECKING:
    import pyarrow as pa

log = logging.getLogger("odradek.pipeline")

ENDS = Position(everywhere=LATEST)


class StreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """See the module. Spark keeps one of it for a query's life, and a copy in each task."""

    def __init__(self, options: Options, schema: StructType) -> None:
        self._options = options
        self._table = TableReader(options, schema)
        self._target: StreamOffsets | None = None
        """Where a query with Trigger.AvailableNow ends."""
        self._clock: Clock = RealClock()
        self._triggered_at: float | None = None
        """When a batch was not put off the last time, in seconds of that clock."""
        self._initial: OffsetsJson | None = None

    def initialOffset(self) -> OffsetsJson:  # noqa: N802 - Spark's name
        """Where the first batch begins. Spark keeps it nowhere, and asks again until that batch is done: it is
        the same as long as the query runs. Its next run goes by what that batch's end says of it."""
        if self._initial is None:
            starting = self._options.starting or Position(everywhere=LATEST)
            self._initial = _at(Query(self._options), starting).to_json()
        return self._initial

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        limit = self._options.max_offsets_per_trigger
        return ReadAllAvailable() if limit is None else ReadMaxRows(limit)

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        self._target = _at(Query(self._options), ENDS)

    def reportLatestOffset(self) -> OffsetsJson | None:  # noqa: N802
        return _at(Query(self._options), ENDS).to_json()

    def latestOffset(self, start: OffsetsJson, limit: ReadLimit) -> OffsetsJson:  # noqa: N802
        begun, query = StreamOffsets.parse(start), Query(self._options)
        ids = query.topic_ids
        known = begin = begun.excluding(self._recreated_topics(begun, ids))
        if self._target is not None and self._recreated_topics(self._target, ids):
            self._target = _at(query, ENDS)
        ends = (self._target or _at(query, ENDS)).offsets
        latest = {**begin, **ends, **self._truncated_ends(query, begin, ends)}
        begin = {**self._new_partition_starts(query, begin, latest), **begin}
        if self._is_below_min_offsets(
            sum(max(0, latest[where] - begin[where]) for where in latest)
        ):
            end = replace(begun, begin=None)
        else:
            if isinstance(limit, ReadMaxRows):
                latest = limit_offsets(begin, latest, limit.max_rows)
            end = StreamOffsets(latest, {**begun.topic_ids, **ids})
        if start == self._initial:
            return replace(end, begin=known).to_json()
        # Where the first batch began is no reason for another one.
        return start if end == replace(begun, begin=None) else end.to_json()

    def partitions(self, start: OffsetsJson, end: OffsetsJson) -> Sequence[InputPartition]:
        begun, until = StreamOffsets.parse(start), StreamOffsets.parse(end)
        begin = self._begin(start, begun, until)
        query = Query(self._options)
        gone = self._recreated_topics(until, query.topic_ids)
        for where, offset in until.offsets.items():
            self._check_forward(where, begin.get(where, 0), offset)
        ranges = {}
        for where, offset in until.offsets.items():
            low = begin.get(where, 0)
            if where.topic in gone:
                query.record_loss(where, low, offset, gone[where.topic])
            elif where in query.partitions:
                ranges[where] = (low, offset)
            else:
                query.record_loss(where, low, offset, self._why_not(where))
        return self._table.tasks(query.plan(query.left(ranges)))

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return self._table.read(partition, PushedFilters())

    def _why_not(self, where: TopicPartition) -> str:
        """A partition that the stream has read is not one of the query's."""
        if self._options.includes_partition(*where):
            return f"{where} was deleted while it was read"
        return (
            f"the stream has read {where}, which its options do not name any more (subscribe, assign):"
            " name it again, or begin with a checkpoint of its own"
        )

    def _begin(self, start: OffsetsJson, begun: StreamOffsets, until: StreamOffsets) -> Offsets:
        """Where a batch begins: the first one where its end says, if it does. Raises DataLoss."""
        if begun.begin is None and until.begin is not None:
            return until.begin
        begin = begun.excluding(self._recreated_topics(begun, until.topic_ids))
        if start != self._initial or not self._options.starts_at_latest:
            return begin
        # An earlier version's, which was empty: where it ends is where that one began.
        return {where: min(at, until.offsets.get(where, at)) for where, at in begin.items()}

    def _recreated_topics(self, known: StreamOffsets, now: Mapping[str, UUID]) -> dict[str, str]:
        """The topics that are others now than those that offsets are `known` of: these begin anew, and what
        the old ones had beyond these offsets is lost, however much it was. Raises DataLoss."""
        again = known.recreated_topics(now)
        if again and self._options.fail_on_data_loss:
            raise DataLoss(
                f"{'; '.join(again.values())} (failOnDataLoss=false reads that one from its beginning)"
            )
        for text in again.values():
            log.error("%s; that one is read from its beginning", text)
        return again

    def _new_partition_starts(
        self, query: Query, begin: Offsets, seen: Iterable[TopicPartition]
    ) -> Offsets:
        """Where partitions begin that came since the query did: at 0, and what retention has taken of them
        by now is lost as any other (`partitions`); where that is allowed, it does not count as read."""
        new = [where for where in seen if where not in begin]
        if self._options.fail_on_data_loss or not new:
            return dict.fromkeys(new, 0)
        return query.resolve(new, Position(everywhere=EARLIEST))

    def _truncated_ends(self, query: Query, begin: Offsets, latest: Offsets) -> Offsets:
        """The ends of partitions that were made again, or truncated. Raises DataLoss."""
        before = [where for where, offset in latest.items() if offset < begin.get(where, 0)]
        # A query with Trigger.AvailableNow may begin behind the end that was found before.
        now = query.resolve(before, Position(everywhere=LATEST))
        for where in before:
            self._check_forward(where, begin[where], now[where])
        return {where: min(begin[where], now[where]) for where in before}

    def _check_forward(self, where: TopicPartition, begin: int, end: int) -> None:
        if end >= begin:
            return
        text = (
            f"{where} ended at offset {end}, and the stream was at {begin}: it was made again, or has"
            " lost what it had"
        )
        if self._options.fail_on_data_loss:
            raise DataLoss(f"{text} (failOnDataLoss=false goes back to where it ended)")
        log.error("%s; it is read from where it ended on", text)

    def _is_below_min_offsets(self, count: int) -> bool:
        """Whether a batch of so many offsets is put off (minOffsetsPerTrigger), as Spark's source has it."""
        least, before = self._options.min_offsets_per_trigger, self._triggered_at
        if least is None or self._target is not None:
            return False
        now, delay_s = self._clock.monotonic(), self._options.max_trigger_delay_ms / 1000
        if count < least and before is not None and now - before < delay_s:
            return True
        self._triggered_at = now
        return False


def limit_offsets(begin: Offsets, latest: Offsets, limit: int) -> Offsets:
    """Ends of a batch of about `limit` offsets: each partition gives in proportion to what it has, and
    at least one of those that have any; what goes back goes back at once."""
    behind = {where: latest[where] - begin[where] for where in latest}
    total = sum(count for count in behind.values() if count > 0)
    if total <= limit:
        return latest
    found = {}
    for where, count in behind.items():
        share = max(1, int(limit * count / total))
        found[where] = begin[where] + min(count, share)
    return found


def _at(query: Query, position: Position) -> StreamOffsets:
    """All of a query's partitions."""
    return StreamOffsets(query.resolve(list(query.partitions), position), query.topic_ids)
