"""What other retention would delete and keep, and what that costs: from the metadata of segments alone.

Brokers delete whole segments, from a partition's oldest on, as long as one after the other may go: its
newest record is older than `retention.ms` (the copy, where no record has a timestamp), or the log is
`retention.bytes` large without it (storage/tiered/expiry.py, KIP-405). The log's size is that of its remote
segments and of what is on its leader's disk alone (KIP-852); of the latter nothing goes in the answer:
which segments it has, no client is told.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from odradek.pipeline.brokers import TopicPartition
from odradek.pipeline.decoding.schema import BATCH_SPARK_TYPES, BATCHES
from odradek.pipeline.options import OF_ROWS, parse_options, without
from odradek.pipeline.query import Query
from odradek.pipeline.segment_columns import Int64s, PackedStretches, Stretches
from odradek.pipeline.source import NAME, register
from odradek.seams.values import value_class

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

GIB = 1 << 30


@value_class
class Rule:
    """As in a topic's configs: ms and bytes a partition, -1 is no limit."""

    retention_ms: int = -1
    retention_bytes: int = -1


@dataclass(frozen=True, eq=False)
class Held:
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

    @property
    def remote_bytes(self) -> int:
        return int(self.sizes.sum())


@value_class
class Outcome:
    """What a rule means for a partition. `start_offset` is where its log would begin."""

    topic: str
    partition: int
    rule: Rule
    segments_deleted: int
    bytes_deleted: int
    offsets_deleted: int
    bytes_kept: int
    start_offset: int

    def cost(self, price_a_gib: float) -> float:
        """Of what is kept, at a price for a GiB."""
        return self.bytes_kept / GIB * price_a_gib


def what_if(held: Held, rule: Rule, now_ms: int) -> Outcome:
    """What a broker would make of it now."""
    oldest_ms = now_ms - rule.retention_ms if rule.retention_ms >= 0 else -1
    total = held.remote_bytes + held.local_bytes
    excess = total - rule.retention_bytes if rule.retention_bytes >= 0 else 0
    gone = np.cumsum(held.sizes)
    goes = np.where(held.newest_ms >= 0, held.newest_ms, held.copied_ms) < oldest_ms
    goes |= (held.sizes > 0) & (gone <= excess)
    count = len(goes) if goes.all() else int(np.argmin(goes))
    deleted = int(gone[count - 1]) if count else 0
    start = max(held.start_offset, int(held.ends[count - 1])) if count else held.start_offset
    return Outcome(
        topic=held.topic,
        partition=held.partition,
        rule=rule,
        segments_deleted=count,
        bytes_deleted=deleted,
        offsets_deleted=start - held.start_offset,
        bytes_kept=total - deleted,
        start_offset=start,
    )


def retention(
    spark: SparkSession, source: Mapping[str, str], rules: Sequence[Rule], now_ms: int
) -> list[Outcome]:
    """For all partitions of the table that `source` describes what each rule means, once for each that is given.

    It is about whole logs: what `source` says of where to begin and to end, of transactions, and of how rows
    look is passed over. Raises BadOption, and PipelineError."""
    whole = whole_logs(source)
    logs = list(held_logs(whole, lambda ends: _local_bytes(spark, whole, ends)))
    return [what_if(held, rule, now_ms) for rule in dict.fromkeys(rules) for held in logs]


_OF_A_PART = ("starting", "ending", "kafka.isolation.level")
"""Options begin so that say which part of a log is read."""
_NOT_FOR_BROKERS = ("tiered.", "subscribe", "assign", "oncorruptsegment")


def whole_logs(source: Mapping[str, str]) -> dict[str, str]:
    """The options of the same logs, of all that is in them; names in small letters. Raises BadOption."""
    parse_options(source, streaming=False)
    return without(source, *_OF_A_PART, *OF_ROWS)


Ends = Mapping[TopicPartition, int]


def held_logs(source: Mapping[str, str], local_bytes: Callable[[Ends], Ends]) -> Iterator[Held]:
    """By the metadata. `local_bytes` are those of partitions from these offsets on, asked for where there are
    brokers. Raises PipelineError."""
    options = parse_options(source, streaming=False)
    query = Query(options)
    ranges = query.ranges()
    tiered: dict[TopicPartition, list[Stretches]] = {where: [] for where in ranges}
    for piece in query.plan(ranges).pieces:
        if isinstance(piece, PackedStretches):
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
        yield Held(*where, ranges[where][0], ends, sizes, newest, copied, local.get(where, 0))


_NONE = np.zeros(0, np.int64)


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
