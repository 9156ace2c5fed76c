"""Tasks of `replay`: source partitions one after the other, each in order, in transactions.

1. Become the only producer for the partition: a dead task's open transaction is aborted, and a task that is
   still running is fenced.
2. Read the group's committed offset, which no other task can change from now on.
3. Read from there, write, and commit records and offset together; repeat until the end of the range.

So each record is visible once, wherever the task stops, and a later task continues from the committed offset.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from itertools import zip_longest
from typing import Any

import numpy as np

from odradek.pipeline.decoding.record_decoder import MS_MAX
from odradek.pipeline.errors import PipelineError
from odradek.pipeline.jobs.replay_target import (
    PartitionProgress,
    ReplayState,
    ReplayTarget,
    ReplayWriter,
    advance,
    progress_expired,
    replay_target_at,
)
from odradek.pipeline.options import TOPIC_ID, parse_options
from odradek.pipeline.record_encoding import COLUMNS, RecordEncoder, cut
from odradek.seams.clock import RealClock
from odradek.seams.values import value_class


class RateLimiter:
    """Limits records and bytes per second; None is no limit. Times are in seconds of one monotonic clock."""

    def __init__(self, records_per_s: float | None, bytes_per_s: float | None) -> None:
        self._records_per_s = records_per_s
        self._bytes_per_s = bytes_per_s
        self._free_at = 0.0

    def records_per_write(self, most: int) -> int:
        """Return the maximum records of a write: at most one second's worth."""
        return most if self._records_per_s is None else max(1, min(most, int(self._records_per_s)))

    def bytes_per_write(self, most: int) -> int:
        return most if self._bytes_per_s is None else max(1, min(most, int(self._bytes_per_s)))

    def used(self, now_s: float, records: int, size_bytes: int) -> None:
        """Account for records that were just written."""
        took = 0.0
        if self._records_per_s is not None:
            took = records / self._records_per_s
        if self._bytes_per_s is not None:
            took = max(took, size_bytes / self._bytes_per_s)
        self._free_at = max(self._free_at, now_s) + took

    def wait_s(self, now_s: float) -> float:
        """Return the seconds until the next write."""
        return max(0.0, self._free_at - now_s)


BATCH_BYTES = 512 << 10
"""Uncompressed bytes of a batch, below the default max.message.bytes of about 1 MB."""
BATCH_RECORDS = 100_000
AT_ONCE = 16
"""Maximum number of partitions in one write, if records are partitioned by key."""
COMMIT_BYTES = 64 << 20
"""Bytes after which a transaction is committed, which a crash may repeat."""


@value_class
class ReplayTask:
    """The source partitions that one task replays, and how; rate limits are per task."""

    source: Mapping[str, str]
    state: ReplayState
    partitions: Sequence[int]
    bootstrap: str
    timeout_ms: int
    by_key: bool
    compression: int
    records_per_s: float | None = None
    bytes_per_s: float | None = None
    commit_s: float = 5.0
    """Age in seconds at which a transaction is committed."""


@value_class
class ReplayedPartition:
    """Result of this run for one source partition."""

    partition: int
    records: int
    size_bytes: int
    transactions: int


def run_replay_task(replay_task: ReplayTask) -> list[ReplayedPartition]:
    """Replay the task's partitions. Raises PipelineError."""
    target = replay_target_at(replay_task.bootstrap, replay_task.timeout_ms)
    limiter = RateLimiter(replay_task.records_per_s, replay_task.bytes_per_s)
    return [
        _Replay(replay_task, target, limiter, partition).run()
        for partition in replay_task.partitions
    ]


class _Replay:
    """Replay of one source partition."""

    def __init__(
        self, replay_task: ReplayTask, target: ReplayTarget, limiter: RateLimiter, partition: int
    ) -> None:
        self._task = replay_task
        self._target = target
        self._limiter = limiter
        self._partition = partition
        self._clock = RealClock()
        self._records = self._bytes = self._transactions = 0
        self._uncommitted_bytes = 0
        self._begun_at: float | None = None
        """When the current transaction began."""

    def run(self) -> ReplayedPartition:
        replay_task, number = self._task, self._partition
        with self._target.writing(replay_task.state, number, replay_task.compression) as writer:
            progress = self._target.progress(replay_task.state, [number]).get(number)
            if progress is None:
                raise progress_expired(replay_task.state)
            if progress.next < progress.high:
                for table in read(replay_task.source, progress.topic, number, progress):
                    progress = self._replay(writer, RecordEncoder(table), progress)
                self._commit(writer, advance(progress, progress.high))
        return ReplayedPartition(number, self._records, self._bytes, self._transactions)

    def _replay(
        self, writer: ReplayWriter, records: RecordEncoder, progress: PartitionProgress
    ) -> PartitionProgress:
        replay_task, limiter = self._task, self._limiter
        beyond = records.beyond(MS_MAX)
        if len(beyond):
            raise PipelineError(
                f"the record at offset {beyond[0]} of partition {self._partition} has a"
                " timestamp beyond the maximum of Spark's timestamps, so it cannot be"
                " replayed unchanged (exclude it with --offsets)"
            )
        limit = limiter.bytes_per_write(BATCH_BYTES * (AT_ONCE if replay_task.by_key else 1))
        for low, high in cut(records.sizes, limit, limiter.records_per_write(BATCH_RECORDS)):
            self._wait(writer, progress)
            if self._begun_at is None:
                self._begun_at = self._clock.monotonic()
            self._write(writer, records, low, high)
            size = int(records.sizes[low:high].sum())
            limiter.used(self._clock.monotonic(), high - low, size)
            self._records += high - low
            self._bytes += size
            self._uncommitted_bytes += size
            progress = advance(progress, int(records.offsets[high - 1]) + 1)
            if self._uncommitted_bytes >= COMMIT_BYTES or self._age_s() >= replay_task.commit_s:
                self._commit(writer, progress)
        return progress

    def _write(self, writer: ReplayWriter, records: RecordEncoder, low: int, high: int) -> None:
        rows = np.arange(low, high)
        if not self._task.by_key:
            self._write_batches(writer, records, {self._partition: rows})
            return
        count = self._task.state.partitions
        chosen = records.by_key(count, self._partition % count, low, high)
        mine = {int(each): rows[chosen == each] for each in np.unique(chosen)}
        batches = {
            partition: [its[a:b] for a, b in cut(records.sizes[its], BATCH_BYTES, BATCH_RECORDS)]
            for partition, its in mine.items()
        }
        for lease in zip_longest(*batches.values()):
            parts = zip(batches, lease, strict=True)
            self._write_batches(writer, records, {p: each for p, each in parts if each is not None})

    def _write_batches(
        self, writer: ReplayWriter, records: RecordEncoder, rows: Mapping[int, Any]
    ) -> None:
        broker_error = writer.write({p: records.encode(each) for p, each in rows.items()})
        for partition in broker_error:
            mine = rows[partition]
            if len(mine) == 1:
                raise PipelineError(
                    f"{self._task.state.topic} refuses the record at offset"
                    f" {records.offsets[mine[0]]} of partition {self._partition} because of"
                    " its size (max.message.bytes)"
                )
            middle = len(mine) // 2
            self._write_batches(writer, records, {partition: mine[:middle]})
            self._write_batches(writer, records, {partition: mine[middle:]})

    def _wait(self, writer: ReplayWriter, progress: PartitionProgress) -> None:
        """Wait as the rate limit requires. A transaction is committed before the wait if it would become too old."""
        wait_s = self._limiter.wait_s(self._clock.monotonic())
        if self._begun_at is not None and self._age_s() + wait_s > self._task.commit_s:
            self._commit(writer, progress)
        if wait_s:
            self._target.pause(wait_s)

    def _commit(self, writer: ReplayWriter, progress: PartitionProgress) -> None:
        writer.commit(progress)
        self._transactions += 1
        self._uncommitted_bytes, self._begun_at = 0, None

    def _age_s(self) -> float:
        return 0.0 if self._begun_at is None else self._clock.monotonic() - self._begun_at


def read(
    source: Mapping[str, str], topic: str, partition: int, progress: PartitionProgress
) -> Iterator[Any]:
    """Read the rest of a partition's range in order, as Arrow batches. Raises BadOption if the topic was recreated
    before.
    """
    from pyspark.sql.pandas.types import from_arrow_schema

    from odradek.pipeline.data_source import BatchReader
    from odradek.pipeline.decoding.arrow_columns import arrow_schema

    def at(offset: int) -> str:
        id = {TOPIC_ID: progress.topic_id} if progress.topic_id else {}
        return json.dumps({topic: {str(partition): offset, **id}})

    options = parse_options(
        {
            **source,
            "assign": f'{{"{topic}":[{partition}]}}',
            "startingOffsets": at(progress.next),
            "endingOffsets": at(progress.high),
        },
        streaming=False,
    )
    reader = BatchReader(options, from_arrow_schema(arrow_schema(COLUMNS)))
    for task in reader.partitions():
        yield from reader.read(task)
