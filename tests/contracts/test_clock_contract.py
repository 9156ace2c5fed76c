"""Contract of `Clock`, for the real clock and the virtual one."""

from __future__ import annotations

import trio

from odradek.seams.clock import Clock, RealClock
from odradek.testing.virtual_clock import VirtualClock


async def keeps_time(clock: Clock) -> None:
    before, wall_before = clock.monotonic(), clock.wall_ms()
    await clock.sleep(0.002)
    assert clock.monotonic() - before >= 0.002
    assert clock.wall_ms() - wall_before >= 1
    assert wall_before > 1_600_000_000_000
    await clock.sleep(0)


async def test_real_clock_keeps_time() -> None:
    await keeps_time(RealClock())


def test_virtual_clock_keeps_time() -> None:
    clock = VirtualClock()

    async def main() -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(keeps_time, clock)
            await clock.run_for(1)

    trio.run(main, clock=clock)
