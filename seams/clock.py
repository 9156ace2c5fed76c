"""Time, as the rest of the house may know it.

Durations are measured on `monotonic`, stamped on records by `wall_ms`. Waiting goes through trio
(`trio.move_on_after`, `Clock.sleep`), whose own clock a simulation replaces together with this one.
"""

from __future__ import annotations

import time
from typing import Protocol


class Clock(Protocol):
    def monotonic(self) -> float:
        """Seconds since some fixed point; never goes back."""
        ...

    def wall_ms(self) -> int:
        """Milliseconds since the Unix epoch; may jump."""
        ...

    async def sleep(self, seconds: float) -> None: ...


class RealClock:
    def monotonic(self) -> float:
        return time.monotonic()

    def wall_ms(self) -> int:
        return time.time_ns() // 1_000_000

    async def sleep(self, seconds: float) -> None:
        import trio  # who asks for the time alone, as Spark's workers do, need not wait for it

        await trio.sleep(seconds)
