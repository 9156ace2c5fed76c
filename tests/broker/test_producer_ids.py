"""Producer ids are never given twice, however many ask at once."""

from __future__ import annotations

import trio

from odradek.broker.producer_ids import ProducerIds


async def test_concurrent_askers_share_a_block_and_get_distinct_ids() -> None:
    reserved = []

    async def reserve() -> range:
        await trio.lowlevel.checkpoint()
        first = 1000 * len(reserved)
        reserved.append(first)
        return range(first, first + 10)

    ids = ProducerIds(reserve)
    given: list[int] = []

    async def ask() -> None:
        given.append(await ids.next())

    async with trio.open_nursery() as nursery:
        for _ in range(25):
            nursery.start_soon(ask)
    assert len(set(given)) == 25
    assert reserved == [0, 1000, 2000]
