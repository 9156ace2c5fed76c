"""A move of a log to which a producer appends faster than the mover copies."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import trio

from odradek.protocol.topics import TopicPartition
from odradek.storage.log.config import LogConfig
from tests.support.log_managers import ONE, A, B, LogManagerWorld, append

VALUE = "x" * (400 << 10)
"""More bytes than the first turn of the swap may copy."""


async def test_swap_completes_despite_fast_producer() -> None:
    """After each round there is more data to copy, so the limit of a turn increases."""
    world = LogManagerWorld(default=LogConfig(segment_bytes=8 << 20))
    async with world.running(housekeeping=True) as manager:
        a = manager.registry.logs_by_directory[A].directory
        log = await manager.create("t", 0, ONE, directory_id=a.id)
        run, written = manager.offload.run, 0

        async def ahead(act: Callable[..., Any], *args: Any, **more: Any) -> Any:
            nonlocal written
            result = await run(act, *args, **more)
            if manager.mover.moves():
                append(log, VALUE)
                written += 1
            return result

        manager.offload.run = ahead  # type: ignore[method-assign]
        append(log, VALUE)
        await manager.mover.move(TopicPartition("t", 0), B)
        with trio.fail_after(20):
            while manager.mover.moves():
                await trio.sleep(0.001)
        assert log.directory.parent == B
        assert written < 60
