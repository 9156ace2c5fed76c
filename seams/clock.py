"""Clock seam.

Durations are measured with `monotonic`, and records get timestamps from `wall_ms`. Waiting uses trio's
move_on_after and `Clock.sleep`. A simulation replaces trio's clock together with this one.
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
        import trio  # callers that only read the time, such as Spark's workers, do not import trio

        await trio.sleep(seconds)
