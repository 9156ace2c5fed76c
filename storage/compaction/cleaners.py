"""Compaction while the broker serves: who is next, the pass in a worker, the swaps on the loop.

There are `log.cleaner.threads` tasks. Each takes the log with the largest dirty part, relative to its
size, of those that are due, compacts it, and goes on until none is due; then its worker process ends,
and it looks again in `log.cleaner.backoff.ms`.

A log that its own content keeps from being compacted is left alone until the next start, as in Kafka.
What a pass needs (one_pass.py) is loaded, in a thread, when a log is due for the first time.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TYPE_CHECKING

import trio

from odradek.protocol.errors import KafkaError
from odradek.seams.entropy import Entropy
from odradek.seams.values import state_class
from odradek.seams.workers import Worker, WorkerDied, Workers
from odradek.storage.compaction.settings import CleanerSettings
from odradek.storage.log.partition_log import PartitionLog
from odradek.storage.log_manager.services import LogServices
from odradek.storage.throttle import Throttle

if TYPE_CHECKING:
    from odradek.storage.compaction.plan import Statistics
    from odradek.storage.compaction.scheduling import Dirt

log = logging.getLogger(__name__)


@state_class
class CleanerStatistics:
    """As of now, for whoever shows them; Kafka's metrics in brackets."""

    passes: int = 0
    given_up: int = 0
    bytes_read: int = 0
    bytes_written: int = 0
    max_dirty_ratio: float = 0.0
    """(max-dirty-percent) of the dirtiest log when it was last looked."""
    last_round_ms: int = -1
    """(time-since-last-run-ms) when it was last looked, by the wall clock."""
    last_pass_seconds: float = 0.0
    """(max-clean-time-secs)"""
    last_map_filled: float = 0.0
    """(max-buffer-utilization-percent)"""
    last_recopied: float = 0.0
    """(cleaner-recopy-percent) bytes written for a byte read."""
    uncleanable: int = 0
    """(uncleanable-partitions-count)"""


class Cleaners:
    """All of a node's compaction. Its tasks are `run`'s."""

    def __init__(
        self,
        services: LogServices,
        workers: Workers,
        entropy: Entropy,
        settings: Callable[[], CleanerSettings],
    ) -> None:
        self._services = services
        self.workers = workers
        self._entropy = entropy
        self._settings = settings
        self._settings_changed = trio.Event()
        self._throttle = Throttle(services.clock, lambda: settings().io_max_bytes_per_second)
        self._in_progress: set[PartitionLog] = set()
        self._paused: set[PartitionLog] = set()
        self._one_left = trio.Event()
        self._waiting: set[PartitionLog] = set()
        """For the end of a round: there was no room for them."""
        self._uncleanable: set[PartitionLog] = set()
        self.statistics = CleanerStatistics()

    async def run(self) -> None:
        """Until cancelled; starts as many cleaners as the settings ask for, now and later."""
        running: set[int] = set()
        async with trio.open_nursery() as nursery:

            async def cleaner(number: int) -> None:
                running.add(number)
                try:
                    await self._cleaner(number)
                finally:
                    running.discard(number)

            while True:
                for number in range(self._threads()):
                    if number not in running:
                        nursery.start_soon(cleaner, number)
                await self._pause()

    async def pause(self, which: PartitionLog) -> None:
        """It is not compacted until `resume` (it moves to another directory, J-12); on return no
        pass of it is under way."""
        self._paused.add(which)
        while which in self._in_progress:
            await self._one_left.wait()

    def resume(self, which: PartitionLog) -> None:
        self._paused.discard(which)

    def _left(self, which: PartitionLog) -> None:
        self._in_progress.discard(which)
        self._one_left.set()
        self._one_left = trio.Event()

    def settings_changed(self) -> None:
        """Whoever pauses looks again: a shorter back-off, or more cleaners, apply at once."""
        self._settings_changed.set()
        self._settings_changed = trio.Event()

    def _threads(self) -> int:
        settings = self._settings()
        return settings.threads if settings.enable else 0

    async def _pause(self) -> None:
        with trio.move_on_after(max(1, self._settings().backoff_ms) / 1000):
            await self._settings_changed.wait()

    async def _cleaner(self, number: int) -> None:
        while number < self._threads():
            try:
                await self.clean_what_is_due()
            except WorkerDied as error:
                log.warning("compaction is tried again later: %s", error)
            await self._pause()

    # A round

    async def clean_what_is_due(self, passes_max: int | None = None) -> int:
        """Compact until no log is due; how many passes there were. Raises WorkerDied.

        A log that there is no room for waits for the next round, and holds up no other.
        """
        found = await self._take_filthiest()
        if found is None:
            return 0
        passes = 0
        waiting: set[PartitionLog] = set()
        try:
            async with self.workers.open() as worker:
                while found is not None:
                    passes += 1
                    if not await self._clean(worker, *found):
                        waiting.add(found[0])
                        self._waiting.add(found[0])
                    self._left(found[0])
                    found = None if passes == passes_max else await self._take_filthiest()
        finally:
            if found is not None:
                self._left(found[0])
            self._waiting -= waiting
        return passes

    async def _take_filthiest(self) -> tuple[PartitionLog, Dirt] | None:
        """The due log with the largest dirty part; it is `_in_progress` from here on."""
        now_ms = self._services.clock.wall_ms()
        best: tuple[PartitionLog, Dirt] | None = None
        dirtiest = 0.0
        self._uncleanable.intersection_update(self._services.logs())
        for which in self._services.logs():
            if not self._is_candidate(which):
                continue
            dirt = await self._survey(which, now_ms)
            if dirt is None or not self._is_candidate(which):
                continue
            dirtiest = max(dirtiest, dirt.ratio)
            if dirt.is_due(which.config) and (best is None or dirt.ratio > best[1].ratio):
                if best is not None:
                    self._left(best[0])
                best = which, dirt
                self._in_progress.add(which)  # or another task would choose it meanwhile
        self.statistics.max_dirty_ratio = dirtiest
        self.statistics.last_round_ms = now_ms
        self.statistics.uncleanable = len(self._uncleanable)
        return best

    def _is_candidate(self, which: PartitionLog) -> bool:
        """Whether it is worth a call to a thread: all that can be told without a look at files."""
        if not which.config.compact or which.failure is not None or len(which.segment_list) < 2:
            return False
        if which in self._paused or which in self._waiting:
            return False
        active = which.segment_list.active.base_offset
        is_clean = which.cleaned_to is not None and active <= which.cleaned_to <= which.end_offset
        return not is_clean and which not in self._in_progress and which not in self._uncleanable

    async def _survey(self, which: PartitionLog, now_ms: int) -> Dirt | None:
        """In a thread: sizes and timestamps of segments may have to be read."""

        def look() -> Dirt:
            from odradek.storage.compaction import one_pass  # noqa: F401 - what may come next
            from odradek.storage.compaction.scheduling import Bounds, survey

            bounds = Bounds(
                which.log_start_offset,
                which.last_stable_offset,
                which.recovery_point,
                which.end_offset,
                which.cleaned_to,
            )
            return survey(which.segments, bounds, which.config, now_ms)

        lane = self._services.lane_of(which)
        try:
            return await self._services.offload.run(look, lane=lane)
        except (OSError, ValueError, KafkaError) as error:
            # It was changed meanwhile, or its disk fails, which others will notice too.
            log.debug("%s is not looked at for compaction: %s", which.directory, error)
            return None

    # A pass

    async def _clean(self, worker: Worker, which: PartitionLog, dirt: Dirt) -> bool:
        """One pass; False if it is to be tried again, but not at once."""
        from odradek.storage.compaction.one_pass import GivenUp, Pass, describe

        started = self._services.clock.monotonic()
        one = Pass(self._services, which, dirt, self._settings(), self._entropy, self._paused)
        name = f"{which.topic}-{which.partition}"
        try:
            statistics = await one.run(worker, self._throttle)
        except GivenUp as reason:
            self.statistics.given_up += 1
            log.info("compaction of %s is given up: %s", name, reason)
        except WorkerDied:
            await one.tidy_up()
            raise
        except OSError as error:
            log.warning("compaction of %s failed: %s", name, error)
            self._services.report(which, error, undone=True)
            await one.tidy_up()
            return False
        except Exception as error:
            expected = isinstance(error, KafkaError)
            log.error(
                "%s can't be compacted, and is left as it is until the next start: %s",
                name,
                error,
                exc_info=None if expected else error,
            )
            self._uncleanable.add(which)
            await one.tidy_up()
        else:
            seconds = self._services.clock.monotonic() - started
            self._count(statistics, seconds)
            log.info("compacted %s: %s", name, describe(one, statistics, seconds))
        return True

    def _count(self, one: Statistics, seconds: float) -> None:
        total = self.statistics
        total.passes += 1
        total.bytes_read += one.bytes_read
        total.bytes_written += one.bytes_written
        total.last_pass_seconds = seconds
        total.last_map_filled = one.map_filled
        total.last_recopied = one.bytes_written / max(1, one.bytes_read)
