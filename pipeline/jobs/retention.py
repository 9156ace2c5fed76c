"""Computes what other retention settings would delete and keep, and its cost, from segment metadata alone.

Brokers delete whole segments from the start of a partition, as long as the oldest one may be deleted: its max
timestamp is older than `retention.ms` (or its copy, if no record has a timestamp), or the log without it is still
at least `retention.bytes` large (storage/tiered/remote_retention.py, KIP-405). The size of a log is that of its
remote segments and of the bytes that are only on the leader's disk (KIP-852). Deletion of the latter is not
computed, because clients cannot list local segments.

Local retention follows `local.retention.*` (storage/log/retention.py, T-15). The local segments that are copied are
the remote segments from the local log start offset on, and the same rules apply to them.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from odradek.pipeline.data_source import NAME, register
from odradek.pipeline.decoding.schema import BATCH_SPARK_TYPES, BATCHES
from odradek.pipeline.errors import BadOption
from odradek.pipeline.options import OF_ROWS, parse_options, without_prefixes
from odradek.pipeline.query import Query
from odradek.pipeline.segment_columns import Int64s, PackedSlices, SegmentSlices
from odradek.protocol.topics import TopicPartition
from odradek.seams.values import value_class

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

GIB = 1 << 30
AS_RETENTION = -2


@value_class
class RetentionRule:
    """Retention configs of a topic: ms and bytes per partition; -1 is no limit. For local retention, -2 means the
    value of the total retention; None means not computed.
    """

    retention_ms: int = -1
    retention_bytes: int = -1
    local_retention_ms: int | None = None
    local_retention_bytes: int | None = None

    @property
    def is_local(self) -> bool:
        """Whether local retention is computed."""
        return (self.local_retention_ms, self.local_retention_bytes) != (None, None)

    @property
    def local_limits(self) -> tuple[int, int]:
        """Return the local limits, in ms and bytes."""
        ms, size = self.local_retention_ms, self.local_retention_bytes
        return (
            self.retention_ms if ms in (None, AS_RETENTION) else ms,
            self.retention_bytes if size in (None, AS_RETENTION) else size,
        )

    def check(self) -> None:
        """Check the rule as brokers do (INVALID_CONFIG, T-15). Raises BadOption."""
        for name, total, local in (
            ("retention.ms", self.retention_ms, self.local_retention_ms),
            ("retention.bytes", self.retention_bytes, self.local_retention_bytes),
        ):
            if total < -1:
                raise BadOption(f"{name}={total} is invalid: -1 is no limit")
            if local is None or local == AS_RETENTION:
                continue
            if local < AS_RETENTION:
                raise BadOption(f"local.{name}={local} is invalid: -1 is no limit, -2 uses {name}")
            if total > -1 and not -1 < local <= total:
                raise BadOption(f"local.{name}={local} must not exceed {name}={total}")


@dataclass(frozen=True, eq=False)
class PartitionLog:
    """A partition's log: its remote segments, oldest first, with end offsets (exclusive), sizes in bytes, max
    timestamps in ms (-1: none), and copy times in ms.
    """

    topic: str
    partition: int
    start_offset: int
    ends: Int64s
    sizes: Int64s
    newest_ms: Int64s
    copied_ms: Int64s
    local_bytes: int = 0
    """Bytes that are only on the leader's disk."""
    local_start: int | None = None
    """Local log start offset; None if it was not requested."""

    @property
    def remote_bytes(self) -> int:
        return int(self.sizes.sum())


@value_class
class RetentionOutcome:
    """Effect of a rule on a partition. `start_offset` is the resulting log start offset. With local retention,
    `local_start_offset` is the resulting local log start offset, and the local bytes are those of copied
    segments and of what is not copied yet.
    """

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
        """Return the cost of the kept bytes at a price per GiB."""
        return self.bytes_kept / GIB * price_a_gib


def apply_rule(held: PartitionLog, rule: RetentionRule, now_ms: int) -> RetentionOutcome:
    """Compute what a broker would delete now."""
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
    """Return how many segments would be deleted from segment `first` on.

    By size, a segment is deleted if the excess before it is at least `least_excess`, which matters for empty
    segments, and at least the segment's size.
    """
    sizes = held.sizes[first:]
    oldest_ms = now_ms - limit_ms if limit_ms >= 0 else -1
    is_deleted = np.where(held.newest_ms >= 0, held.newest_ms, held.copied_ms)[first:] < oldest_ms
    if limit_bytes >= 0:
        excess = int(sizes.sum()) + held.local_bytes - limit_bytes
        deleted = np.cumsum(sizes)
        is_deleted |= (deleted <= excess) & (deleted - sizes + least_excess <= excess)
    return len(is_deleted) if is_deleted.all() else int(np.argmin(is_deleted))


def retention(
    spark: SparkSession, source: Mapping[str, str], rules: Sequence[RetentionRule], now_ms: int
) -> list[RetentionOutcome]:
    """Return the effect of each distinct rule on all partitions of the source.

    Whole logs are considered: options for starting and ending offsets, isolation and row format are ignored. Raises
    BadOption, PipelineError.
    """
    for rule in rules:
        rule.check()
    whole = whole_log_options(source)
    logs = list(read_partition_logs(whole, lambda ends: _local_bytes(spark, whole, ends)))
    if any(rule.is_local for rule in rules):
        logs = _with_local_starts(whole, logs)
    return [apply_rule(held, rule, now_ms) for rule in dict.fromkeys(rules) for held in logs]


_OF_A_PART = ("starting", "ending", "kafka.isolation.level")
"""Prefixes of options that restrict the offsets read."""
_NOT_FOR_BROKERS = ("tiered.", "subscribe", "assign", "oncorruptsegment")


def whole_log_options(source: Mapping[str, str]) -> dict[str, str]:
    """Return the options, with lower-case names, for reading the same logs completely. Raises BadOption."""
    parse_options(source, streaming=False)
    return without_prefixes(source, *_OF_A_PART, *OF_ROWS)


Ends = Mapping[TopicPartition, int]


def read_partition_logs(
    source: Mapping[str, str], local_bytes: Callable[[Ends], Ends]
) -> Iterator[PartitionLog]:
    """Read the logs of partitions from the metadata. `local_bytes` returns the size of partitions from these
    offsets on; it is used only with brokers. Raises PipelineError.
    """
    options = parse_options(source, streaming=False)
    query = Query(options)
    ranges = query.ranges()
    tiered: dict[TopicPartition, list[SegmentSlices]] = {tp: [] for tp in ranges}
    for piece in query.plan(ranges).pieces:
        if isinstance(piece, PackedSlices):
            tp = TopicPartition(piece.partition.topic, piece.partition.partition)
            tiered[tp].append(piece.unpacked())
    tiered_to = {tp: runs[-1].high if runs else ranges[tp][0] for tp, runs in tiered.items()}
    local = local_bytes(tiered_to) if tiered_to and options.bootstrap is not None else {}
    for tp, runs in tiered.items():
        ends, sizes, newest, copied = (
            np.concatenate([_NONE, *(run.rows[name].astype(np.int64) for run in runs)])
            for name in ("high", "size", "newest", "copied")
        )
        yield PartitionLog(*tp, ranges[tp][0], ends, sizes, newest, copied, local.get(tp, 0))


_NONE = np.zeros(0, np.int64)


def _with_local_starts(
    source: Mapping[str, str], logs: Sequence[PartitionLog]
) -> list[PartitionLog]:
    """Add the local log start offsets. Raises BadOption, BrokersUnavailable."""
    from odradek.pipeline.brokers import brokers_at

    options = parse_options(source, streaming=False)
    if options.bootstrap is None:
        raise BadOption(
            "local.retention applies to the leaders' local logs: give the brokers with"
            " kafka.bootstrap.servers (--bootstrap)"
        )
    brokers = brokers_at(options.bootstrap, options.request_timeout_ms)
    starts = brokers.local_log_start_offsets(
        TopicPartition(each.topic, each.partition) for each in logs
    )
    return [
        replace(each, local_start=starts.get(TopicPartition(each.topic, each.partition)))
        for each in logs
    ]


def _local_bytes(spark: SparkSession, source: Mapping[str, str], ends: Ends) -> Ends:
    """Return the sizes of the batches after the remote segments."""
    from pyspark.sql import functions as f

    register(spark)
    names = ("topic", "partition", "bytes")
    columns = ", ".join(f"{name} {BATCH_SPARK_TYPES[name]}" for name in names)
    rows = (
        spark.read.format(NAME)
        .options(**untiered_options(source, ends))
        .schema(columns)
        .load()
        .groupBy("topic", "partition")
        .agg(f.sum("bytes").alias("bytes"))
        .collect()
    )
    return {TopicPartition(row["topic"], row["partition"]): row["bytes"] for row in rows}


def untiered_options(source: Mapping[str, str], ends: Ends) -> dict[str, str]:
    """Return the options for batches that only brokers have, of exactly these partitions from these offsets on;
    what retention deletes meanwhile is ignored.
    """
    offsets: dict[str, dict[int, int]] = {}
    for (topic, partition), end in ends.items():
        offsets.setdefault(topic, {})[partition] = end
    is_strict = source.get("oncorruptsegment", "fail").lower() == "fail"
    return {
        **without_prefixes(source, *_NOT_FOR_BROKERS),
        "rows": BATCHES,
        "assign": json.dumps({topic: list(its) for topic, its in offsets.items()}),
        "startingoffsets": json.dumps(offsets),
        "failondataloss": "false",
        "oncorruptsegment": "fail" if is_strict else "skip",
    }
