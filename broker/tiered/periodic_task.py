"""Runs a task of a partition periodically: copy, expiration and follower tasks.

The next run starts one interval after a success (T-11). After a failure it is retried with
exponential backoff and jitter, so that not all partitions send requests at the same time when the
store is available again (T-12). No error ends the task, because a copy task that ends lets the disk
fill.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable

import trio

from odradek.broker.tiered.settings import RemoteLogSettings
from odradek.protocol.errors import KafkaError
from odradek.seams.clock import Clock
from odradek.seams.containment import Containment
from odradek.seams.entropy import Entropy

log = logging.getLogger("odradek.tiered")


class TaskEnded(Exception):
    """The task ends for the current role of the partition."""


class BackOff:
    """Computes the next backoff, in seconds."""

    def __init__(self, settings: RemoteLogSettings, entropy: Entropy) -> None:
        self._settings = settings
        self._entropy = entropy
        self._failures = 0

    def next(self) -> float:
        settings = self._settings
        doubled = settings.back_off_seconds * 2.0 ** min(self._failures, 30)
        self._failures += 1
        pause = min(doubled, settings.back_off_max_seconds)
        return pause * self._entropy.uniform(1 - settings.jitter, 1 + settings.jitter)

    def reset(self) -> None:
        self._failures = 0


async def run_periodically(
    what: str,
    run_once: Callable[[], Awaitable[bool]],
    *,
    pool: trio.CapacityLimiter,
    settings: RemoteLogSettings,
    clock: Clock,
    entropy: Entropy,
    on_outcome: Callable[[KafkaError | OSError | None], None] = lambda error: None,
    woken: Callable[[], Awaitable[object]] | None = None,
) -> None:
    """Run until cancelled or TaskEnded is raised. `run_once` returns whether to run again at once.
    `on_outcome` receives the error of each run (of the store or the disk), or None. `woken` returns when the next run
    should not wait for the interval; a backoff is not shortened."""
    back_off = BackOff(settings, entropy)

    async def run_in_pool() -> bool:
        async with pool:
            return await run_once()

    containment: Containment[str] = Containment(
        "a task",
        consequence="it runs again after a pause",
        expected=(TaskEnded, KafkaError, OSError),
    )
    while True:
        try:
            more = await containment.run(what, run_in_pool)
        except TaskEnded as ended:
            log.error("%s stopped: %s", what, ended)
            return
        except (KafkaError, OSError) as error:
            on_outcome(error)
            log.debug("%s: %s", what, error)
            pause = back_off.next()
        else:
            if more is None:  # an unexpected error
                pause = back_off.next()
            else:
                on_outcome(None)
                back_off.reset()
                if not more and woken is not None:
                    await _sleep_until_woken(clock, settings.interval_seconds, woken)
                    continue
                pause = 0.0 if more else settings.interval_seconds
        await clock.sleep(pause)


async def _sleep_until_woken(
    clock: Clock, seconds: float, woken: Callable[[], Awaitable[object]]
) -> None:
    async with trio.open_nursery() as nursery:

        async def sleep() -> None:
            await clock.sleep(seconds)
            nursery.cancel_scope.cancel()

        nursery.start_soon(sleep)
        await woken()
        nursery.cancel_scope.cancel()
