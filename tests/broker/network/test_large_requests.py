"""Tests of the queue of large requests: small requests are handled between them."""

from __future__ import annotations

import itertools

import trio

from odradek.broker.timers import BusyConnectionQueue


async def test_event_loop_runs_between_large_requests() -> None:
    queue = BusyConnectionQueue()
    story: list[str] = []

    async def large(name: str) -> None:
        for _ in range(3):
            await queue.wait_turn()
            story.append(name)

    async def small() -> None:
        while story.count("small") < 100:
            await trio.lowlevel.checkpoint()
            story.append("small")

    async with trio.open_nursery() as nursery:
        for name in "abcd":
            nursery.start_soon(large, name)
        nursery.start_soon(small)
    assert sum(name in "abcd" for name in story) == 12
    assert [pair for pair in itertools.pairwise(story) if "small" not in pair] == []


async def test_large_requests_are_handled_in_order() -> None:
    queue = BusyConnectionQueue()
    order: list[int] = []

    async def large(number: int) -> None:
        await queue.wait_turn()
        order.append(number)

    async with trio.open_nursery() as nursery:
        for number in range(5):
            nursery.start_soon(large, number)
            await trio.lowlevel.checkpoint()
    assert order == [0, 1, 2, 3, 4]
