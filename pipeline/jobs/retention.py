"""What other retention would delete and keep, and what that costs: from the metadata of segments alone.

Brokers delete whole segments, from a partition's oldest on, as long as one after the other may go: its
newest record is older than `retention.ms` (the copy, where no record has a timestamp), or the log is
`retention.bytes` large without it (storage/tiered/remote_retention.py, KIP-405). The log's size is that of its remote
segments and of what is on its leader's disk alone (KIP-852); of the latter nothing goes in the answer:
which segments it has, no client is told.

The disk keeps what `local.retention.*` lets it of that (storage/log/retention.py, T-15): its segments that are copied are
those of the remote tier from where the leader's own log begins, and go by the same rule.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from odradek.pipeline.brokers import TopicPartition
from odradek.pipeline.decoding.schema import BATCH_SPARK_TYPES, BATCHES
from odradek.pipeline.errors import BadOption
from odradek.pipeline.options import OF_ROWS, parse_options, without
from odradek.pipeline.query import Query
from odradek.pipeline.segment_columns import Int64s, PackedSlices, SegmentSlices
from odradek.pipeline.source import NAME, register
from odradek.seams.values import value_class

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

GIB = 1 << 30
AS_RETENTION = -2


@value_class
class RetentionRule:
    """As in a topic's configs: ms and bytes a partition, -1 is no limit. Of a leader's disk -2 is what is kept in all,
    and so is None, of which nobody wants to know."""

    retention_ms: int = -1
    retention_bytes: int = -1
    local_retention_ms: int | None = None
    local_retention_bytes: int | None = None

    @property
    def is_local(self) -> bool:
        """Whether it says something of leaders' disks."""
        return (self.local_retention_ms, self.local_retention_bytes) != (None, None)

    @property
    def local_limits(self) -> tuple[int, int]:
        """ms and bytes."""
        ms, size = self.local_retention_ms, self.local_retention_bytes
        return (
            self.retention_ms if ms in (None, AS_RETENTION) else ms,
            self.retention_bytes if size in (None, AS_RETENTION) else size,
        )

    def check(self) -> None:
        """Raises BadOption where brokers would refuse it (INVALID_CONFIG, T-15)."""
        for name, total, local in (
            ("retention.ms", self.retention_ms, self.local_retention_ms),
            ("retention.bytes", self.retention_bytes, self.local_retention_bytes),
        ):
            if total < -1:
                raise BadOption(f"{name}={total} means nothing: -1 is no limit")
            if local is None or local == AS_RETENTION:
                continue
            if local < AS_RETENTION:
                raise BadOption(f"local.{name}={local} means nothing: -1 is no limit, -2 {name}")
            if total > -1 and not -1 < local <= total:
                raise BadOption(f"local.{name}={local} is beyond {name}={total}")


@dataclass(frozen=True, eq=False)
class PartitionLog:
    """A partition's log. Of its remote segments, oldest first: the offset behind the last, bytes, the newest
    timestamp in ms, -1 where there is none, and for these when they were copied."""

    topic: str
    partition: int
    start_offset: int
    ends: Int64s
    sizes: Int64s
    newest_ms: Int64s
    copied_ms: Int64s
    local_bytes: int = 0
    """That its leader's disk alone has."""
    local_start: int | None = None
    """Where the log on that disk begins; None where nobody asked."""

    @property
    def remote_bytes(self) -> int:
        return int(self.sizes.sum())


@value_class
class RetentionOutcome:
    """What a rule means for a partition. `start_offset` is where its log would begin; and of its leader's disk, where
    that was asked for, `local_start_offset` where that would, and the bytes it would have: copied segments and what
    is not copied yet."""

    topic: str
    partition: int
    rule: RetentionRule
    segments_deleted: int
    bytes_deleted: int
    offsets_deleted: int
    bytes_kept: int
    start_offset: int
    local_bytes_deleted: int | None = None
    local_bytes_kept: int | None = None
    local_start_offset: int | None = None

    def cost(self, price_a_gib: float) -> float:
        """Of what is kept, at a price for a GiB."""
        return self.bytes_kept / GIB * price_a_gib


def apply_rule(held: PartitionLog, rule: RetentionRule, now_ms: int) -> RetentionOutcome:
    """What a broker would make of it now."""
    total = held.remote_bytes + held.local_bytes
    count = _oldest(held, 0, rule.retention_ms, rule.retention_bytes, now_ms, least_excess=1)
    deleted = int(held.sizes[:count].sum())
    start = max(held.start_offset, int(held.ends[count - 1])) if count else held.start_offset
    outcome = RetentionOutcome(
        topic=held.topic,
        partition=held.partition,
        rule=rule,
        segments_deleted=count,
        bytes_deleted=deleted,
        offsets_deleted=start - held.start_offset,
        bytes_kept=total - deleted,
        start_offset=start,
    )
    if held.local_start is None or not rule.is_local:
        return outcome
    first = int(np.searchsorted(held.ends, held.local_start, "right"))
    on_disk = int(held.sizes[first:].sum()) + held.local_bytes
    left = max(first, count)
    left += _oldest(held, left, *rule.local_limits, now_ms, least_excess=0)
    kept = int(held.sizes[left:].sum()) + held.local_bytes
    local_start = max(held.local_start, start, int(held.ends[left - 1]) if left else 0)
    return replace(
        outcome,
        local_bytes_deleted=on_disk - kept,
        local_bytes_kept=kept,
        local_start_offset=local_start,
    )


def _oldest(
    held: PartitionLog,
    first: int,
    limit_ms: int,
    limit_bytes: int,
    now_ms: int,
    *,
    least_excess: int,
) -> int:
    """How many segments go, from that one on, with all that is behind it. By size, as long as there is so much too much
    before one, which tells of those that are empty, and not less than it has."""
    sizes = held.sizes[first:]
    oldest_ms = now_ms - limit_ms if limit_ms >= 0 else -1
    goes = np.where(held.newest_ms >= 0, held.newest_ms, held.copied_ms)[first:] < oldest_ms
    if limit_bytes >= 0:
        excess = int(sizes.sum()) + held.local_bytes - limit_bytes
        deleted = np.cumsum(sizes)
        goes |= (deleted <= excess) & (deleted - sizes + least_excess <= excess)
    return len(goes) if goes.all() else int(np.argmin(goes))


def retention(
    spark: SparkSession, source: Mapping[str, str], rules: Sequence[RetentionRule], now_ms: int
) -> list[RetentionOutcome]:
    """For all partitions of the table that `source` describes what each rule means, once for each that is given.

    It is about whole logs: what `source` says of where to begin and to end, of transactions, and of how rows
    look is passed over. Raises BadOption, and PipelineError."""
    for rule in rules:
        rule.check()
    whole = whole_logs(source)
    logs = list(read_partition_logs(whole, lambda ends: _local_bytes(spark, whole, ends)))
    if any(rule.is_local for rule in rules):
        logs = _with_local_starts(whole, logs)
    return [apply_rule(held, rule, now_ms) for rule in dict.fromkeys(rules) for held in logs]


_OF_A_PART = ("starting", "ending", "kafka.isolation.level")
"""Options begin so that say which part of a log is read."""
_NOT_FOR_BROKERS = ("tiered.", "subscribe", "assign", "oncorruptsegment")


def whole_logs(source: Mapping[str, str]) -> dict[str, str]:
    """The options of the same logs, of all that is in them; names in small letters. Raises BadOption."""
    parse_options(source, streaming=False)
    return without(source, *_OF_A_PART, *OF_ROWS)


Ends = Mapping[TopicPartition, int]


def read_partition_logs(
    source: Mapping[str, str], local_bytes: Callable[[Ends], Ends]
) -> Iterator[PartitionLog]:
    """By the metadata. `local_bytes` are those of partitions from these offsets on, asked for where there are
    brokers. Raises PipelineError."""
    options = parse_options(source, streaming=False)
    query = Query(options)
    ranges = query.ranges()
    tiered: dict[TopicPartition, list[SegmentSlices]] = {where: [] for where in ranges}
    for piece in query.plan(ranges).pieces:
        if isinstance(piece, PackedSlices):
            where = TopicPartition(piece.partition.topic, piece.partition.partition)
            tiered[where].append(piece.unpacked())
    tiered_to = {
        where: runs[-1].high if runs else ranges[where][0] for where, runs in tiered.items()
    }
    local = local_bytes(tiered_to) if tiered_to and options.bootstrap is not None else {}
    for where, runs in tiered.items():
        ends, sizes, newest, copied = (
            np.concatenate([_NONE, *(run.rows[name].astype(np.int64) for run in runs)])
            for name in ("high", "size", "newest", "copied")
        )
        yield PartitionLog(
            *where, ranges[where][0], ends, sizes, newest, copied, local.get(where, 0)
        )


_NONE = np.zeros(0, np.int64)


def _with_local_starts(
    source: Mapping[str, str], logs: Sequence[PartitionLog]
) -> list[PartitionLog]:
    """With where they begin on their leaders' disks. Raises BadOption, BrokersUnavailable."""
    from odradek.pipeline.brokers import brokers_at

    options = parse_options(source, streaming=False)
    if options.bootstrap is None:
        raise BadOption(
            "local.retention is of leaders' disks: kafka.bootstrap.servers (--bootstrap) names those to ask"
        )
    brokers = brokers_at(options.bootstrap, options.request_timeout_ms)
    starts = brokers.local_starts(TopicPartition(each.topic, each.partition) for each in logs)
    return [
        replace(each, local_start=starts.get(TopicPartition(each.topic, each.partition)))
        for each in logs
    ]


def _local_bytes(spark: SparkSession, source: Mapping[str, str], ends: Ends) -> Ends:
    """What is behind the remote segments, by its batches."""
    from pyspark.sql import functions as f

    register(spark)
    names = ("topic", "partition", "bytes")
    columns = ", ".join(f"{name} {BATCH_SPARK_TYPES[name]}" for name in names)
    rows = (
        spark.read.format(NAME)
        .options(**behind(source, ends))
        .schema(columns)
        .load()
        .groupBy("topic", "partition")
        .agg(f.sum("bytes").alias("bytes"))
        .collect()
    )
    return {TopicPartition(row["topic"], row["partition"]): row["bytes"] for row in rows}


def behind(source: Mapping[str, str], ends: Ends) -> dict[str, str]:
    """The options of the batches that brokers alone have, of exactly these partitions, from these offsets on: what
    retention takes of them meanwhile is not there."""
    offsets: dict[str, dict[int, int]] = {}
    for (topic, partition), end in ends.items():
        offsets.setdefault(topic, {})[partition] = end
    is_strict = source.get("oncorruptsegment", "fail").lower() == "fail"
    return {
        **without(source, *_NOT_FOR_BROKERS),
        "rows": BATCHES,
        "assign": json.dumps({topic: list(its) for topic, its in offsets.items()}),
        "startingoffsets": json.dumps(offsets),
        "failondataloss": "false",
        "oncorruptsegment": "fail" if is_strict else "skip",
    }
