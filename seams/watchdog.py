"""Ends the process when its loop stands still: a write that hangs can't be cancelled or waited out.

A thread counts its own ticks in which the loop did not move; a machine that was suspended stops the
thread too, and so does not trip it. The process ends without the mark of a clean shutdown, and the
next start recovers.
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
    """Run beside the loop until cancelled; ends the process after a stall of that many seconds."""
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
            give_up(f"the loop stands still for {still:.0f} s (a write that hangs?)")


def give_up(reason: str) -> NoReturn:
    """End the process at once, without the mark of a clean shutdown."""
    log.critical("%s: ending without a clean shutdown", reason)
    faulthandler.dump_traceback(sys.stderr)
    os._exit(EXIT_STATUS)
