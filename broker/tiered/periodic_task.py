"""A task of a partition that comes round every now and then: copies, expiry, what followers look up.

After a round that went well the next is an interval away (T-11); after one that failed it is tried
again with a pause that doubles each time, up to a limit, a part of it left to chance so that not all
partitions knock at a store that comes back in the same moment (T-12). No error ends it: a copier that
dies of one bad segment would let the disk fill without a word.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable

import trio

from odradek.broker.tiered.settings import RemoteLogSettings
from odradek.protocol.errors import KafkaError
from odradek.seams.clock import Clock
from odradek.seams.entropy import Entropy

log = logging.getLogger("odradek.tiered")


class TaskEnded(Exception):
    """There is nothing more to be done for this partition in its present role."""


class BackOff:
    """The next pause, in seconds."""

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
    one_round: Callable[[], Awaitable[bool]],
    *,
    pool: trio.CapacityLimiter,
    settings: RemoteLogSettings,
    clock: Clock,
    entropy: Entropy,
    on_outcome: Callable[[KafkaError | OSError | None], None] = lambda error: None,
) -> None:
    """Come round until cancelled, or TaskEnded is raised. `one_round` says whether there is more to be
    done at once; `on_outcome` hears what came of each: the error that is expected of stores and disks,
    or None."""
    back_off = BackOff(settings, entropy)
    while True:
        try:
            async with pool:
                more = await one_round()
        except TaskEnded as ended:
            log.error("%s ends: %s", what, ended)
            return
        except (KafkaError, OSError) as error:
            on_outcome(error)
            log.debug("%s: %s", what, error)
            pause = back_off.next()
        except Exception:  # ours, and this partition's alone
            log.exception("%s met an error of its own, and goes on", what)
            pause = back_off.next()
        else:
            on_outcome(None)
            back_off.reset()
            pause = 0.0 if more else settings.interval_seconds
        await clock.sleep(pause)
