"""Waits for a condition, with a time limit: in a thread, and in a trio task."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TypeVar

import trio

T = TypeVar("T")


@contextmanager
def deadline(seconds: float, waiting_for: str) -> Iterator[DeadlineCheck]:
    """Limit a loop that polls: `with deadline(…) as check: while not …: check()`."""
    yield DeadlineCheck(time.monotonic() + seconds, waiting_for)


class DeadlineCheck:
    """Raises AssertionError after a time limit."""

    def __init__(self, end: float, waiting_for: str) -> None:
        self._end = end
        self._waiting_for = waiting_for

    def __call__(self, pause: float = 0.02) -> None:
        """Sleep for `pause` seconds, or raise AssertionError after the time limit."""
        if time.monotonic() > self._end:
            raise AssertionError(f"timed out waiting for {self._waiting_for}")
        time.sleep(pause)


def wait_until(
    condition: Callable[[], T],
    seconds: float = 60,
    *,
    pause: float = 0.02,
    what: str = "a condition",
) -> T:
    """Call `condition` until its result is true, and return the result. The thread sleeps between the calls."""
    with deadline(seconds, what) as check:
        while not (result := condition()):
            check(pause)
    return result


async def wait_until_async(
    condition: Callable[[], object], seconds: float = 30, *, pause: float = 0.05
) -> None:
    """Call `condition` in a trio task until its result is true. The time is that of the trio clock."""
    with trio.fail_after(seconds):
        while not condition():
            await trio.sleep(pause)
