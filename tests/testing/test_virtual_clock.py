"""Virtual time for trio and the Clock seam moves only when the test moves it."""

from __future__ import annotations

import pytest
import trio
import trio.testing

from odradek.testing.virtual_clock import VirtualClock


@pytest.fixture
def clock() -> VirtualClock:
    """pytest-trio runs the test on this clock."""
    return VirtualClock(epoch_ms=1_000_000)


async def test_virtual_time_does_not_advance_by_itself(clock: VirtualClock) -> None:
    woken = []

    async def sleeper() -> None:
        await clock.sleep(1)
        woken.append(clock.monotonic())

    async with trio.open_nursery() as nursery:
        nursery.start_soon(sleeper)
        for _ in range(100):
            await trio.testing.wait_all_tasks_blocked()
        assert woken == []
        assert (clock.monotonic(), trio.current_time(), clock.wall_ms()) == (0.0, 0.0, 1_000_000)
        clock.advance(1.5)
        await clock.settle()
        assert woken == [1.5]
    assert clock.wall_ms() == 1_001_500


async def test_run_for_stops_at_each_deadline(clock: VirtualClock) -> None:
    seen: list[tuple[str, float]] = []

    async def tick() -> None:
        for _ in range(3):
            await trio.sleep(0.1)
            seen.append(("tick", round(clock.monotonic(), 3)))

    async def give_up() -> None:
        with trio.move_on_after(0.25):
            await trio.sleep_forever()
        seen.append(("gave up", clock.monotonic()))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(tick)
        nursery.start_soon(give_up)
        await clock.run_for(0.2)
        assert seen == [("tick", 0.1), ("tick", 0.2)]
        await clock.run_for(10)
    assert seen == [("tick", 0.1), ("tick", 0.2), ("gave up", 0.25), ("tick", 0.3)]
    assert clock.monotonic() == 10.2


async def test_run_for_advances_past_rounding_errors(clock: VirtualClock) -> None:
    clock.advance(1e7 + 0.1)
    woken = []

    async def sleeper(seconds: float) -> None:
        await trio.sleep(seconds)
        woken.append(seconds)

    async with trio.open_nursery() as nursery:
        for seconds in (1e-9, 0.1 + 0.2, 1 / 3, 0.7):
            nursery.start_soon(sleeper, seconds)
        await clock.run_for(1)
    assert woken == [1e-9, 0.1 + 0.2, 1 / 3, 0.7]


async def test_wall_clock_can_be_set(clock: VirtualClock) -> None:
    clock.advance(2)
    clock.set_wall_ms(500)
    assert (clock.wall_ms(), clock.monotonic()) == (500, 2.0)
    clock.advance(0.25)
    assert (clock.wall_ms(), clock.monotonic()) == (750, 2.25)
    with pytest.raises(ValueError):
        clock.advance(-1)


def test_calls_that_wake_no_task_run_without_a_loop_pass() -> None:
    clock = VirtualClock()
    clock.jumping = True
    made: list[float] = []

    def call() -> bool:
        made.append(clock.monotonic())
        return len(made) == 3

    for when in (1.0, 2.0, 3.0, 4.0):
        clock.call_at(when, call)
    assert clock.deadline_to_sleep_time(10.0) == 0.0
    assert made == [1.0, 2.0, 3.0]
    assert clock.deadline_to_sleep_time(10.0) == 0.0
    assert (made, clock.monotonic()) == ([1.0, 2.0, 3.0, 4.0], 10.0)


def test_sleep_with_jumping_wakes_in_time_or_is_cancelled() -> None:
    clock = VirtualClock()
    clock.jumping = True
    woken: list[tuple[str, float]] = []

    async def sleep(name: str, seconds: float) -> None:
        await clock.sleep(seconds)
        woken.append((name, clock.monotonic()))

    async def main() -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(sleep, "long", 3)
            nursery.start_soon(sleep, "short", 1)
            with trio.move_on_after(2):
                await sleep("cancelled", 250)
            nursery.start_soon(sleep, "not at all", 0)

    trio.run(main, clock=clock)
    assert woken == [("short", 1.0), ("not at all", 2.0), ("long", 3.0)]
    assert clock.monotonic() == 3.0


async def test_sleep_started_with_jumping_waits_after_jumping_ends(clock: VirtualClock) -> None:
    clock.jumping = True
    async with trio.open_nursery() as nursery:
        nursery.start_soon(clock.sleep, 3)
        for _ in range(2):  # now it sleeps, in any order of the tasks
            await trio.lowlevel.checkpoint()
        clock.jumping = False
        await clock.settle()
        assert clock.monotonic() == 0.0
        clock.advance(3)
    assert clock.monotonic() == 3.0
