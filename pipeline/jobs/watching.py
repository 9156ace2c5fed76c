"""How far Spark is with what a job waits for, where that is one query: its tasks are all there is to count."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from threading import Event, Thread
from typing import TYPE_CHECKING

from odradek.pipeline.jobs.progress import Progress
from odradek.seams.clock import RealClock

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

EVERY_SECONDS = 1.0


@contextmanager
def watched(
    spark: SparkSession, on_progress: Callable[[Progress], None], every_s: float | None = None
) -> Iterator[None]:
    """While the block lasts, `on_progress` is told now and then how many tasks were done since it began, from a thread
    of its own. How many there will be Spark finds out on its way. `every_s` is EVERY_SECONDS unless it is given."""
    pause_s = EVERY_SECONDS if every_s is None else every_s
    tracker, clock = spark.sparkContext.statusTracker(), RealClock()
    before = set(tracker.getJobIdsForGroup())
    begun_at = clock.monotonic()
    has_ended = Event()
    done: dict[int, int] = {}
    """By stage."""

    def tell() -> None:
        while not has_ended.wait(pause_s):
            jobs = map(tracker.getJobInfo, set(tracker.getJobIdsForGroup()) - before)
            stages = {number for job in jobs if job is not None for number in job.stageIds}
            for stage in map(tracker.getStageInfo, stages):
                if stage is not None:
                    done[stage.stageId] = stage.numCompletedTasks
            on_progress(Progress(sum(done.values()), 0, clock.monotonic() - begun_at))

    thread = Thread(target=tell, name="odradek-watch")
    thread.start()
    try:
        yield
    finally:
        has_ended.set()
        thread.join()
