"""Clocks that freezegun and time-machine do not change.

A broker in the process of a test must not stop, and must accept its clients' timestamps, while the test freezes or
moves Python's clocks. freezegun replaces the functions of `time` in all modules, but not in attributes of objects.
time-machine changes the functions of the wall clock in place, so the C library is called instead.
"""

from __future__ import annotations

import ctypes
import time
from collections.abc import Callable

import trio
import trio.abc


class _Timespec(ctypes.Structure):
    _fields_ = (("seconds", ctypes.c_long), ("nanoseconds", ctypes.c_long))


def _new_wall_clock() -> Callable[[], int]:
    clock_gettime = ctypes.PyDLL(None, use_errno=True).clock_gettime
    clock_id = ctypes.c_int(time.CLOCK_REALTIME)
    pointer = ctypes.pointer

    def wall_ms() -> int:
        now = _Timespec()
        clock_gettime(clock_id, pointer(now))
        return int(now.seconds * 1000 + now.nanoseconds // 1_000_000)

    return wall_ms


class UnpatchedClock:
    """The clock seam of an embedded broker."""

    def __init__(self) -> None:
        self.monotonic = time.monotonic
        self.wall_ms = _new_wall_clock()

    async def sleep(self, seconds: float) -> None:
        await trio.sleep(seconds)


class UnpatchedTrioClock(trio.abc.Clock):
    """The clock of a trio loop, like trio's own."""

    def __init__(self) -> None:
        self._now = time.perf_counter

    def start_clock(self) -> None:
        pass

    def current_time(self) -> float:
        return self._now()

    def deadline_to_sleep_time(self, deadline: float) -> float:
        return deadline - self._now()
