"""Throttle shared by several tasks: a rate in bytes per second."""

from __future__ import annotations

from collections.abc import Callable

from odradek.seams.clock import Clock

CHECK_RATE_SECONDS = 0.5
"""Interval at which a waiting task notices a changed rate."""
CREDIT_SECONDS = 0.2
"""Part of the time before a payment that is credited: reading or writing the bytes took time itself."""


class Throttle:
    """Delays tasks after they have read or written bytes, so that together they keep a rate.

    The debt is counted in bytes and decreases at the current rate: a higher rate ends the waiting of
    tasks early.
    """

    def __init__(self, clock: Clock, rate: Callable[[], float]) -> None:
        """`rate` returns the current rate in bytes per second; values below one count as one."""
        self._clock = clock
        self._rate = rate
        self._debt = 0.0
        self._since = clock.monotonic()

    async def pay(self, size: int) -> None:
        """Wait until these bytes and the debt of other tasks are paid off."""
        self.owe(size)
        while True:
            seconds = self._debt / max(1.0, self._rate())
            if seconds < 1e-6:
                return
            await self._clock.sleep(min(seconds, CHECK_RATE_SECONDS))
            self._settle()

    def owe(self, size: int) -> None:
        """Add these bytes to the debt without waiting."""
        self._settle()
        self._debt += size

    def _settle(self) -> None:
        now, rate = self._clock.monotonic(), max(1.0, self._rate())
        self._debt = max(-CREDIT_SECONDS * rate, self._debt - (now - self._since) * rate)
        self._since = now
