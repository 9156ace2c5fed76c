"""The clocks of an embedded broker while freezegun and time-machine change those of the test."""

from __future__ import annotations

import time

import pytest
import time_machine
from freezegun import freeze_time

from odradek.testing.unpatched_clock import UnpatchedClock, UnpatchedTrioClock


def check_clocks(clock: UnpatchedClock, trio_clock: UnpatchedTrioClock, wall_ms: int) -> None:
    """The wall clock is near `wall_ms`, and the others advance."""
    assert wall_ms <= clock.wall_ms() < wall_ms + 60_000
    monotonic, in_trio = clock.monotonic(), trio_clock.current_time()
    sleep_s = trio_clock.deadline_to_sleep_time(in_trio)
    assert clock.monotonic() > monotonic
    assert trio_clock.current_time() > in_trio
    assert -60 < sleep_s < 0


def test_wall_clock_is_that_of_python() -> None:
    before = time.time_ns() // 1_000_000
    now = UnpatchedClock().wall_ms()
    assert before <= now <= time.time_ns() // 1_000_000


def test_freezegun_does_not_stop_the_clocks() -> None:
    clock, trio_clock, now_ms = UnpatchedClock(), UnpatchedTrioClock(), time.time_ns() // 1_000_000
    with freeze_time("2020-02-02"):
        assert time.monotonic() == time.monotonic()  # is frozen
        check_clocks(clock, trio_clock, now_ms)


@pytest.mark.parametrize("destination", ["2020-02-02", "2050-02-02"])
def test_time_machine_does_not_move_the_clocks(destination: str) -> None:
    clock, trio_clock, now_ms = UnpatchedClock(), UnpatchedTrioClock(), time.time_ns() // 1_000_000
    with time_machine.travel(destination, tick=False):
        assert time.time_ns() == time.time_ns()  # is moved, and frozen
        check_clocks(clock, trio_clock, now_ms)
    check_clocks(clock, trio_clock, now_ms)
