"""Progress of a job, in the same form for all jobs."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from threading import Event, Thread
from typing import TYPE_CHECKING

from odradek.seams.clock import RealClock
from odradek.seams.values import value_class

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@value_class
class JobProgress:
    """`done` of `total` items, which are mostly offsets; the total is 0 if unknown. `done_before` of them were done
    by earlier runs. `seconds` is the time since this run began.
    """

    done: int
    total: int
    seconds: float
    done_before: int = 0

    @property
    def percent(self) -> float | None:
        return min(100.0, 100.0 * self.done / self.total) if self.total else None

    @property
    def per_second(self) -> float:
        return (self.done - self.done_before) / self.seconds if self.seconds > 0 else 0.0

    @property
    def seconds_left(self) -> float | None:
        """Estimate the remaining seconds at the average rate."""
        if not self.total or self.per_second <= 0:
            return None
        return max(0, self.total - self.done) / self.per_second

    def text(self, what: str) -> str:
        """Format the progress in one line; `what` names the items."""
        rate = f"{self.per_second:,.0f} {what}/s"
        if self.percent is None:
            return f"{self.done:,} {what}, {rate}"
        left = self.seconds_left
        until = "" if left is None else f", {_duration(left)} left"
        return f"{self.percent:5.1f}% {self.done:,} of {self.total:,} {what}, {rate}{until}"

    def row(self) -> dict[str, object]:
        """Return a row for JSON output."""
        percent = self.percent
        return {
            "done": self.done,
            "total": self.total or None,
            "percent": None if percent is None else round(percent, 1),
            "perSecond": round(self.per_second, 1),
            "seconds": round(self.seconds, 1),
        }


def _duration(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"


EVERY_SECONDS = 1.0


@contextmanager
def report_spark_tasks(
    spark: SparkSession, on_progress: Callable[[JobProgress], None], every_s: float | None = None
) -> Iterator[None]:
    """Within the block, report the number of completed Spark tasks from a separate thread, every `every_s` seconds
    (default EVERY_SECONDS). The total is not known in advance.
    """
    pause_s = EVERY_SECONDS if every_s is None else every_s
    tracker, clock = spark.sparkContext.statusTracker(), RealClock()
    before = set(tracker.getJobIdsForGroup())
    begun_at = clock.monotonic()
    has_ended = Event()
    done: dict[int, int] = {}
    """Completed tasks by stage."""

    def report() -> None:
        while not has_ended.wait(pause_s):
            jobs = map(tracker.getJobInfo, set(tracker.getJobIdsForGroup()) - before)
            stages = {number for job in jobs if job is not None for number in job.stageIds}
            for stage in map(tracker.getStageInfo, stages):
                if stage is not None:
                    done[stage.stageId] = stage.numCompletedTasks
            on_progress(JobProgress(sum(done.values()), 0, clock.monotonic() - begun_at))

    thread = Thread(target=report, name="odradek-watch")
    thread.start()
    try:
        yield
    finally:
        has_ended.set()
        thread.join()
