"""Large requests pass one at a time, with a pass of the loop between them.

A request of a MiB occupies the loop for milliseconds. Were each of many producers given a turn in
every pass of the loop, a small request would wait for all of them; so it waits for one.
"""

from __future__ import annotations

import trio

LARGE_BYTES = 64 * 1024


class Turnstile:
    def __init__(self) -> None:
        self._gate = trio.Lock()

    async def pass_through(self) -> None:
        """Wait for one's turn, first come first served; handle the large request right after."""
        try:
            self._gate.acquire_nowait()  # `acquire` would yield where nobody is before us, too
        except trio.WouldBlock:
            await self._gate.acquire()
        try:
            await trio.lowlevel.checkpoint()  # whoever else is ready runs before this one
        finally:
            self._gate.release()
