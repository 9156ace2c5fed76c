"""Watchdog that ends the process when its event loop is blocked, because a hanging write cannot be cancelled.

A thread counts its ticks without progress of the loop. Suspending the machine stops the thread too and does not
trigger the watchdog. The process exits without a clean shutdown file, and the next start recovers its logs.
"""

from __future__ import annotations

import faulthandler
import logging
import os
import sys
import threading
import time
from typing import NoReturn

import trio

log = logging.getLogger("odradek.watchdog")

TICK_SECONDS = 1.0
EXIT_STATUS = 70


async def watch(stalled_seconds_max: float) -> None:
    """Watch the event loop until cancelled; end the process after a stall of `stalled_seconds_max`."""
    moves = [0]
    done = threading.Event()
    thread = threading.Thread(
        target=_count, args=(moves, done, stalled_seconds_max), daemon=True, name="watchdog"
    )
    thread.start()
    try:
        while True:
            moves[0] += 1
            await trio.sleep(TICK_SECONDS)
    finally:
        done.set()


def _count(moves: list[int], done: threading.Event, stalled_seconds_max: float) -> None:
    last, still = -1, 0.0
    while not done.is_set():
        time.sleep(TICK_SECONDS)
        still = still + TICK_SECONDS if moves[0] == last else 0.0
        last = moves[0]
        if still > stalled_seconds_max:
            give_up(f"the event loop has been blocked for {still:.0f} s (a hanging write?)")


def give_up(reason: str) -> NoReturn:
    """End the process at once without a clean shutdown."""
    log.critical("%s: ending without a clean shutdown", reason)
    faulthandler.dump_traceback(sys.stderr)
    os._exit(EXIT_STATUS)
