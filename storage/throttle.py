"""A rate in bytes a second that several tasks keep together."""

from __future__ import annotations

from collections.abc import Callable

from odradek.seams.clock import Clock

LOOK_AGAIN_SECONDS = 0.5
"""How soon a changed rate is noticed by who waits."""
CREDIT_SECONDS = 0.2
"""How much of the time before a payment counts for it: what was paid for took time itself."""


class Throttle:
    """Whoever has read or written bytes pays for them, afterwards, with time.

    The debt is in bytes: it is paid off at the rate of the moment, so that a higher rate sets free
    who waits for a lower one.
    """

    def __init__(self, clock: Clock, rate: Callable[[], float]) -> None:
        """`rate`: bytes a second, as of now; less than one counts as one."""
        self._clock = clock
        self._rate = rate
        self._debt = 0.0
        self._since = clock.monotonic()

    async def pay(self, size: int) -> None:
        """Wait until these bytes, and what others owe, have had their time."""
        self.owe(size)
        while True:
            seconds = self._debt / max(1.0, self._rate())
            if seconds < 1e-6:
                return
            await self._clock.sleep(min(seconds, LOOK_AGAIN_SECONDS))
            self._settle()

    def owe(self, size: int) -> None:
        """Leave these bytes to whoever pays next."""
        self._settle()
        self._debt += size

    def _settle(self) -> None:
        now, rate = self._clock.monotonic(), max(1.0, self._rate())
        self._debt = max(-CREDIT_SECONDS * rate, self._debt - (now - self._since) * rate)
        self._since = now
