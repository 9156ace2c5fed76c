"""Large requests pass one at a time, with a pass of the loop between them.

A request of a MiB occupies the loop for milliseconds. Were each of many producers given a turn in
every pass of the loop, a small request would wait for all of them; so it waits for one.
"""

from __future__ import annotations

import trio

from odradek.seams.locks import PromptLock

LARGE_BYTES = 64 * 1024


class LargeRequestQueue:
    def __init__(self) -> None:
        self._gate = PromptLock()

    async def wait_turn(self) -> None:
        """Wait for one's turn, first come first served; handle the large request right after."""
        async with self._gate:
            await trio.lowlevel.checkpoint()  # whoever else is ready runs before this one
