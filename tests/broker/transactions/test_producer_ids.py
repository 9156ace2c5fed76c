"""Producer ids are unique under concurrent allocation, and errors are retriable."""

from __future__ import annotations

import pytest
import trio
import trio.testing

from odradek.broker.transactions.producer_ids import WAIT_SECONDS, ProducerIds
from odradek.protocol.errors import ErrorCode, KafkaError

SIZE = 10


class Blocks:
    """A fake controller: the blocks that it has allocated, and failures."""

    def __init__(self) -> None:
        self.reserved: list[int] = []
        self.may_response = trio.Event()
        self.may_response.set()
        self.failure: Exception | None = None

    async def reserve(self) -> range:
        await trio.lowlevel.checkpoint()
        first = 1000 * len(self.reserved)
        self.reserved.append(first)
        await self.may_response.wait()
        if self.failure is not None:
            raise self.failure
        return range(first, first + SIZE)

    def ids(self, nursery: trio.Nursery) -> ProducerIds:
        ids = ProducerIds(self.reserve)
        ids.start(nursery)
        return ids


async def test_concurrent_calls_get_distinct_ids_of_one_block(
    autojump_clock: trio.testing.MockClock,
) -> None:
    blocks = Blocks()
    given: list[int] = []

    async def ask() -> None:
        given.append(await ids.next())

    async with trio.open_nursery() as nursery:
        ids = blocks.ids(nursery)
        for _ in range(25):
            nursery.start_soon(ask)
    assert len(set(given)) == 25
    assert blocks.reserved == [0, 1000, 2000]


async def test_next_block_is_allocated_before_current_one_is_used_up(
    autojump_clock: trio.testing.MockClock,
) -> None:
    blocks = Blocks()
    async with trio.open_nursery() as nursery:
        ids = blocks.ids(nursery)
        for number in range(SIZE - 2):
            assert await ids.next() == number
        assert blocks.reserved == [0]
        assert await ids.next() == SIZE - 2
        await trio.testing.wait_all_tasks_blocked()
        assert blocks.reserved == [0, 1000]
        began = trio.current_time()
        assert [await ids.next(), await ids.next()] == [SIZE - 1, 1000]
        assert trio.current_time() == began


@pytest.mark.parametrize(
    "failure",
    [
        KafkaError(ErrorCode.request_timed_out),
        KafkaError(ErrorCode.stale_broker_epoch),
        KafkaError(ErrorCode.cluster_authorization_failed),
        ZeroDivisionError("a bug"),
    ],
    ids=repr,
)
async def test_failed_allocation_returns_retriable_error(
    autojump_clock: trio.testing.MockClock, failure: Exception
) -> None:
    blocks = Blocks()
    blocks.failure = failure
    async with trio.open_nursery() as nursery:
        ids = blocks.ids(nursery)
        with pytest.raises(KafkaError) as received:
            await ids.next()
        assert received.value.code is ErrorCode.coordinator_load_in_progress
        blocks.failure = None
        assert await ids.next() == 1000


async def test_allocation_without_response_times_out(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """No second request is sent meanwhile, and the late block is used."""
    blocks = Blocks()
    blocks.may_response = trio.Event()
    refused: list[ErrorCode] = []

    async def ask() -> None:
        with pytest.raises(KafkaError) as received:
            await ids.next()
        refused.append(received.value.code)

    async with trio.open_nursery() as nursery:
        ids = blocks.ids(nursery)
        async with trio.open_nursery() as asking:
            for _ in range(5):
                asking.start_soon(ask)
        assert trio.current_time() == pytest.approx(WAIT_SECONDS)
        assert refused == [ErrorCode.coordinator_load_in_progress] * 5
        assert blocks.reserved == [0]
        blocks.may_response.set()
        await trio.testing.wait_all_tasks_blocked()
        assert await ids.next() == 0
