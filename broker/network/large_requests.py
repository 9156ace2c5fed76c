"""Large requests are handled one at a time, with a pass of the event loop between them.

A request of 1 MiB occupies the event loop for milliseconds. If many producers sent such requests and each were handled
in every pass, a small request would wait for all of them; with this queue it waits for one.
"""

from __future__ import annotations

import trio

from odradek.seams.locks import PromptLock

LARGE_BYTES = 64 * 1024


class LargeRequestQueue:
    """Queue of the connections that have received a large request."""

    def __init__(self) -> None:
        self._lock = PromptLock()

    async def wait_turn(self) -> None:
        """Wait in order of arrival; the caller handles its large request right after."""
        async with self._lock:
            await trio.lowlevel.checkpoint()  # other ready tasks run first
