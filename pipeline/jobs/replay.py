"""Replays a range of a topic into a topic, each record once, even if runs are killed.

Keys, values, headers, timestamps and the order within a partition are kept. The range is fixed on a job's first
run, before anything is written, and stored with the progress as offsets of groups `odradek-replay.JOB.PARTITION` in
the target's cluster (`replay_target.py`). A later run continues from there, or finds that the job is done. The same
range under another job name is replayed again.

One task reads and writes a source partition in order (`replay_task.py`), in transactions, so that read_committed
consumers see each record once. Rate limits are divided among the tasks that run concurrently.
"""

from __future__ import annotations

import hashlib
import json
import logging
import math
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from concurrent.futures import TimeoutError as StillRunning
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from odradek.pipeline.decoding.schema import RECORDS
from odradek.pipeline.errors import BadOption, PipelineError, spark_error_message
from odradek.pipeline.jobs.job_progress import JobProgress
from odradek.pipeline.jobs.replay_target import (
    PartitionProgress,
    ReplayState,
    ReplayTarget,
    is_complete,
    progress_expired,
    replay_target_at,
)
from odradek.pipeline.jobs.replay_task import ReplayedPartition, ReplayTask, run_replay_task
from odradek.pipeline.options import REPORT, parse_options
from odradek.pipeline.query import Query
from odradek.protocol.records.compression import NAMES
from odradek.protocol.uuids import uuid_to_text
from odradek.seams.clock import RealClock
from odradek.seams.entropy import RealEntropy
from odradek.seams.values import value_class

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

log = logging.getLogger("odradek.pipeline")

PROGRESS_S = 1.0
BY = ("partition", "key")
ISOLATION = "kafka.isolation.level"


@value_class
class ReplayJob:
    """Settings of a replay. `source` are the options of the source (docs/pipeline.md), of one topic;
    read_committed by default.
    """

    source: Mapping[str, str]
    topic: str
    """Target topic."""
    bootstrap: str
    """Brokers of the target's cluster."""
    name: str | None = None
    """Job name; None for one derived from the range."""
    by: str = "partition"
    """"partition": a record keeps its partition number. "key": the partition is chosen by the key, or as before
    without one.
    """
    compression: str = "lz4"
    records_per_s: float | None = None
    bytes_per_s: float | None = None
    """Limit for keys, values and headers before compression."""
    tasks: int | None = None
    """Number of concurrent tasks; by default the number of Spark's cores."""

    def options(self) -> dict[str, str]:
        """Return the options of the source."""
        return {
            ISOLATION: "read_committed",
            "startingOffsetsByTimestampStrategy": "latest",
            **self.source,
        }

    def check(self) -> None:
        """Check the job's settings. Raises BadOption."""
        if self.by not in BY:
            raise BadOption(
                f"records are assigned to partitions by {' or by '.join(BY)}, not by {self.by}"
            )
        if self.compression not in NAMES:
            raise BadOption(f"the compression is one of {', '.join(NAMES)}, not {self.compression}")
        for rate in (self.records_per_s, self.bytes_per_s):
            if rate is not None and not 0 < rate < math.inf:
                raise BadOption(f"a rate must be above 0, not {rate}")
        if self.tasks is not None and self.tasks < 1:
            raise BadOption(f"the number of tasks must be at least 1, not {self.tasks}")
        options = parse_options(self.options(), streaming=False)
        if options.rows != RECORDS or options.corrupt_segments == REPORT:
            raise BadOption(
                "only records can be replayed: rows=batches and onCorruptSegment=report are not"
                " allowed"
            )


@value_class
class ReplayResult:
    """Result of a run; counts are of this run only."""

    job: str
    partitions: Sequence[ReplayedPartition]
    progress: JobProgress

    @property
    def records(self) -> int:
        return sum(each.records for each in self.partitions)

    @property
    def size_bytes(self) -> int:
        return sum(each.size_bytes for each in self.partitions)


@value_class
class ReplayPlan:
    """Work of a run."""

    target: ReplayTarget
    state: ReplayState
    partitions: Sequence[int]
    """Source partitions, including completed ones."""
    total: int
    """Number of offsets in the range."""
    replay_tasks: Sequence[ReplayTask]

    def done(self, *, stable: bool = True) -> int:
        """Return the number of offsets already replayed; with `stable`, wait for transactions that are being
        completed.
        """
        now = self.target.progress(self.state, self.partitions, stable=stable)
        return sum(each.next - each.low for each in now.values())


def replay(
    spark: SparkSession,
    job: ReplayJob,
    on_progress: Callable[[JobProgress], None] = lambda progress: None,
) -> ReplayResult:
    """Replay the rest of the job. Raises BadOption, DataLoss if the source no longer has all offsets,
    PipelineError.
    """
    plan = plan_replay(job, job.tasks or max(1, spark.sparkContext.defaultParallelism))
    clock = RealClock()
    begun_at, before = clock.monotonic(), plan.done(stable=False)

    def report(*, ended: bool = False) -> JobProgress:
        progress = JobProgress(
            plan.done(stable=ended), plan.total, clock.monotonic() - begun_at, before
        )
        on_progress(progress)
        return progress

    replayed = _run(spark, plan, report) if plan.replay_tasks else []
    return ReplayResult(plan.state.job, replayed, report(ended=True))


def plan_replay(job: ReplayJob, tasks_max: int) -> ReplayPlan:
    """Plan the rest of the job for at most `tasks_max` tasks; the ranges are fixed when this returns."""
    job.check()
    source = job.options()
    options = parse_options(source, streaming=False)
    target = replay_target_at(job.bootstrap, options.request_timeout_ms)
    what = _digest(job, source)
    name = job.name or f"{job.topic}.{what}"
    state = ReplayState(name, job.topic, target.partitions(job.topic))
    progress = _load_or_start_job(
        Query(options), target, state, what, keeps_partitions=job.by == "partition"
    )
    left = {number: each for number, each in progress.items() if each.next < each.high}
    replay_task = ReplayTask(
        source={name: value for name, value in source.items() if not _is_range(name)},
        state=state,
        partitions=(),
        bootstrap=job.bootstrap,
        timeout_ms=options.request_timeout_ms,
        by_key=job.by == "key",
        compression=NAMES.index(job.compression),
        records_per_s=job.records_per_s,
        bytes_per_s=job.bytes_per_s,
    )
    total = sum(each.high - each.low for each in progress.values())
    return ReplayPlan(
        target, state, list(progress), total, _split_into_tasks(replay_task, left, tasks_max)
    )


def _digest(job: ReplayJob, source: Mapping[str, str]) -> str:
    """Return a digest of the range, the target topic and the partitioning; addresses and read options do not affect
    it.
    """
    matters = {
        name.lower(): value
        for name, value in source.items()
        if _is_range(name) or name.lower() == ISOLATION
    }
    text = json.dumps([sorted(matters.items()), job.topic, job.by])
    return hashlib.sha256(text.encode()).hexdigest()[:12]


def _load_or_start_job(
    query: Query, target: ReplayTarget, state: ReplayState, what: str, *, keeps_partitions: bool
) -> dict[int, PartitionProgress]:
    """Return the progress of each source partition, after fixing the range on the first run."""
    ids = {
        tp: "" if id is None else uuid_to_text(id.topic_id) for tp, id in query.partitions.items()
    }
    topics = {tp.topic for tp in ids}
    if len(topics) != 1:
        raise BadOption(
            "exactly one topic can be replayed at a time, not"
            f" {', '.join(sorted(topics)) or 'none'}"
        )

    def fix() -> dict[int, PartitionProgress]:
        last = max(tp.partition for tp in ids)
        if keeps_partitions and last >= state.partitions:
            raise BadOption(
                f"{state.topic} has {state.partitions} partitions, but partition {last} is"
                " replayed: add partitions, or use --by key"
            )
        fixed = partial(PartitionProgress, into=state.partitions, what=what, count=len(ids))
        return {
            each.partition: fixed(each.topic, ids[each], each.partition, low, high, next=low)
            for each, (low, high) in query.ranges().items()
        }

    found = target.begin(state, [tp.partition for tp in ids], fix)
    for tp, id in ids.items():
        if tp.partition in found:
            _check_known(found[tp.partition], tp.topic, id, state, what)
    if not is_complete(found):
        raise progress_expired(state)
    into = next(iter(found.values())).into
    if not keeps_partitions and into != state.partitions:
        raise BadOption(
            f"{state.topic} had {into} partitions when job {state.job} started, and has"
            f" {state.partitions} now: keys would be assigned to other partitions than before"
        )
    return found


def _check_known(
    known: PartitionProgress, topic: str, id: str, state: ReplayState, what: str
) -> None:
    """Check that the stored progress is of the same job. Raises BadOption."""
    if known.what != what:
        raise BadOption(
            f"job {state.job} was started with another range, --by or --isolation: give"
            " another name with --job"
        )
    if (known.topic, known.topic_id) != (topic, id):
        raise BadOption(
            f"job {state.job} replays {known.topic} ({known.topic_id}), not {topic} ({id}):"
            " give another name with --job"
        )


def _split_into_tasks(
    replay_task: ReplayTask, left: Mapping[int, PartitionProgress], most: int
) -> list[ReplayTask]:
    """Distribute partitions over tasks with about the same number of offsets each."""
    count = min(most, len(left))
    hands: list[list[int]] = [[] for _ in range(count)]
    sizes = [0] * count
    for number, each in sorted(left.items(), key=lambda one: one[1].next - one[1].high):
        least = sizes.index(min(sizes))
        hands[least].append(number)
        sizes[least] += each.high - each.next
    return [
        replace(
            replay_task,
            partitions=tuple(hand),
            records_per_s=_share(replay_task.records_per_s, count),
            bytes_per_s=_share(replay_task.bytes_per_s, count),
        )
        for hand in hands
    ]


def _is_range(option: str) -> bool:
    """Whether the option selects offsets, which are fixed on the first run."""
    name = option.lower()
    return name in ("subscribe", "subscribepattern", "assign") or name.startswith(
        ("starting", "ending")
    )


def _share(rate: float | None, count: int) -> float | None:
    return None if rate is None else rate / count


def _run(
    spark: SparkSession, plan: ReplayPlan, report: Callable[[], object]
) -> list[ReplayedPartition]:
    """Run the tasks. If the progress cannot be read because brokers do not respond, it is reported later: tasks
    retry for longer and end the job if necessary. Other jobs of the Spark session are not affected.
    """
    from py4j.protocol import Py4JJavaError
    from pyspark.errors import PySparkException

    context, tag = spark.sparkContext, f"odradek-replay-{RealEntropy().uuid()}"
    work = context.parallelize(plan.replay_tasks, len(plan.replay_tasks)).flatMap(run_replay_task)

    def collect() -> list[ReplayedPartition]:
        context.addJobTag(tag)  # tags jobs of this thread
        return work.collect()

    with ThreadPoolExecutor(1, thread_name_prefix="odradek-replay") as pool:
        running = pool.submit(collect)
        try:
            while True:
                try:
                    return sorted(running.result(PROGRESS_S), key=lambda each: each.partition)
                except StillRunning:
                    _report_if_available(report)
        except (PySparkException, Py4JJavaError) as error:
            raise PipelineError(f"the replay failed: {spark_error_message(error)}") from error
        finally:
            if not running.done():
                context.cancelJobsWithTag(tag)


def _report_if_available(report: Callable[[], object]) -> None:
    try:
        report()
    except PipelineError as error:
        log.info("the progress of the replay could not be read: %s", error)
