"""The data source as a stream, which a query of Spark reads (readStream).

Offsets in a checkpoint have the form of Spark's Kafka source, with topic ids and, in the first batch's end offsets,
its start (`stream_offsets.py`). A repeated batch has the same offsets, and offsets deleted meanwhile are reported.
Micro-batches are limited as in Spark's source: `maxOffsetsPerTrigger` is divided among the partitions in proportion
to their lag; `minOffsetsPerTrigger` delays a batch until there are that many offsets, or `maxTriggerDelay` has
passed since the previous one; the first batch of a run is not delayed. Offsets that were tiered since the last
batch are read from the store.
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

from odradek.client.special_timestamps import EARLIEST, LATEST
from odradek.pipeline.errors import DataLoss
from odradek.pipeline.filters import PushedFilters
from odradek.pipeline.options import OffsetSpec, SourceOptions
from odradek.pipeline.query import Query
from odradek.pipeline.stream_offsets import Offsets, OffsetsJson, StreamOffsets
from odradek.pipeline.table_reader import TableReader
from odradek.protocol.topics import TopicPartition
from odradek.seams.clock import Clock, RealClock

if TYPE_CHECKING:
    import pyarrow as pa

log = logging.getLogger("odradek.pipeline")

ENDS = OffsetSpec(everywhere=LATEST)


class StreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Reader of a stream. Spark keeps one instance per query, and a copy in each task."""

    def __init__(self, options: SourceOptions, schema: StructType) -> None:
        self._options = options
        self._table = TableReader(options, schema)
        self._target: StreamOffsets | None = None
        """End offsets of a query with Trigger.AvailableNow."""
        self._clock: Clock = RealClock()
        self._triggered_at: float | None = None
        """Monotonic time, in seconds, of the last batch that was not delayed."""
        self._initial: OffsetsJson | None = None

    def initialOffset(self) -> OffsetsJson:  # noqa: N802 - Spark's name
        """Return the start of the first batch. Spark does not store it, and requests it until that batch is
        committed, so it is cached for the query. A later run uses the start in the batch's end offsets.
        """
        if self._initial is None:
            starting = self._options.starting or OffsetSpec(everywhere=LATEST)
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
        if self._is_below_min_offsets(sum(max(0, latest[tp] - begin[tp]) for tp in latest)):
            end = replace(begun, begin=None)
        else:
            if isinstance(limit, ReadMaxRows):
                latest = limit_offsets(begin, latest, limit.max_rows)
            end = StreamOffsets(latest, {**begun.topic_ids, **ids})
        if start == self._initial:
            return replace(end, begin=known).to_json()
        # The start of the first batch alone does not make the offsets new.
        return start if end == replace(begun, begin=None) else end.to_json()

    def partitions(self, start: OffsetsJson, end: OffsetsJson) -> Sequence[InputPartition]:
        begun, until = StreamOffsets.parse(start), StreamOffsets.parse(end)
        begin = self._begin(start, begun, until)
        query = Query(self._options)
        recreated = self._recreated_topics(until, query.topic_ids)
        for tp, offset in until.offsets.items():
            self._check_forward(tp, begin.get(tp, 0), offset)
        ranges = {}
        for tp, offset in until.offsets.items():
            low = begin.get(tp, 0)
            if tp.topic in recreated:
                query.record_loss(tp, low, offset, recreated[tp.topic])
            elif tp in query.partitions:
                ranges[tp] = (low, offset)
            else:
                query.record_loss(tp, low, offset, self._removal_reason(tp))
        return self._table.tasks(query.plan(query.left(ranges)))

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return self._table.read(partition, PushedFilters())

    def _removal_reason(self, tp: TopicPartition) -> str:
        """Explain why a partition that the stream has read is no longer part of the query."""
        if self._options.includes_partition(*tp):
            return f"{tp} was deleted while it was read"
        return (
            f"the stream has read {tp}, which is no longer part of its options (subscribe,"
            " assign): add it again, or use a new checkpoint"
        )

    def _begin(self, start: OffsetsJson, begun: StreamOffsets, until: StreamOffsets) -> Offsets:
        """Return the start of a batch; for the first one, from its end offsets if they have it. Raises DataLoss."""
        if begun.begin is None and until.begin is not None:
            return until.begin
        begin = begun.excluding(self._recreated_topics(begun, until.topic_ids))
        if start != self._initial or not self._options.starts_at_latest:
            return begin
        # An empty batch of an earlier version, which ends where it began.
        return {tp: min(at, until.offsets.get(tp, at)) for tp, at in begin.items()}

    def _recreated_topics(self, known: StreamOffsets, now: Mapping[str, UUID]) -> dict[str, str]:
        """Return the topics that were recreated since the `known` offsets. They are read from their start, and
        later records of the old topics are lost. Raises DataLoss.
        """
        again = known.recreated_topics(now)
        if again and self._options.fail_on_data_loss:
            raise DataLoss(
                f"{'; '.join(again.values())} (failOnDataLoss=false reads the new topic from"
                " its beginning)"
            )
        for text in again.values():
            log.error("%s; the new topic is read from its beginning", text)
        return again

    def _new_partition_starts(
        self, query: Query, begin: Offsets, seen: Iterable[TopicPartition]
    ) -> Offsets:
        """Return the starts of partitions that were added since the query began: 0, so that offsets deleted by
        retention are reported as lost (`partitions`), or the log start offset with failOnDataLoss=false.
        """
        new = [tp for tp in seen if tp not in begin]
        if self._options.fail_on_data_loss or not new:
            return dict.fromkeys(new, 0)
        return query.resolve(new, OffsetSpec(everywhere=EARLIEST))

    def _truncated_ends(self, query: Query, begin: Offsets, latest: Offsets) -> Offsets:
        """Return the ends of partitions that were recreated or truncated. Raises DataLoss."""
        before = [tp for tp, offset in latest.items() if offset < begin.get(tp, 0)]
        # A query with Trigger.AvailableNow may begin after the end offsets that it determined earlier.
        now = query.resolve(before, OffsetSpec(everywhere=LATEST))
        for tp in before:
            self._check_forward(tp, begin[tp], now[tp])
        return {tp: min(begin[tp], now[tp]) for tp in before}

    def _check_forward(self, tp: TopicPartition, begin: int, end: int) -> None:
        if end >= begin:
            return
        text = (
            f"{tp} ends at offset {end}, and the stream was at {begin}: it was recreated or"
            " truncated"
        )
        if self._options.fail_on_data_loss:
            raise DataLoss(f"{text} (failOnDataLoss=false continues at its end)")
        log.error("%s; the stream continues at its end", text)

    def _is_below_min_offsets(self, count: int) -> bool:
        """Whether a batch of `count` offsets is delayed (minOffsetsPerTrigger), as in Spark's source."""
        least, before = self._options.min_offsets_per_trigger, self._triggered_at
        if least is None or self._target is not None:
            return False
        now, delay_s = self._clock.monotonic(), self._options.max_trigger_delay_ms / 1000
        if count < least and before is not None and now - before < delay_s:
            return True
        self._triggered_at = now
        return False


def limit_offsets(begin: Offsets, latest: Offsets, limit: int) -> Offsets:
    """Return the ends of a batch of about `limit` offsets, divided in proportion to each partition's lag, at least
    one for each partition with a lag. The end of a truncated partition is its new log end offset.
    """
    lags = {tp: latest[tp] - begin[tp] for tp in latest}
    total = sum(count for count in lags.values() if count > 0)
    if total <= limit:
        return latest
    found = {}
    for tp, count in lags.items():
        share = max(1, int(limit * count / total))
        found[tp] = begin[tp] + min(count, share)
    return found


def _at(query: Query, position: OffsetSpec) -> StreamOffsets:
    """Resolve a position for all partitions of a query."""
    return StreamOffsets(query.resolve(list(query.partitions), position), query.topic_ids)
