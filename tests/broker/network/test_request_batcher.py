"""Tests of items for a broker that are sent together in one request at a time."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import trio

from odradek.broker.network.request_batcher import ITEMS_MAX, RequestBatcher
from odradek.client.errors import ClientError, Unreachable


class Peer:
    """Broker that responds in upper case, once it is allowed to."""

    def __init__(self) -> None:
        self.requests: list[tuple[int, list[str]]] = []
        self.may_respond = trio.Event()
        self.failure: Exception | None = None

    async def send_request(self, broker_id: int, items: Sequence[str]) -> list[str]:
        self.requests.append((broker_id, list(items)))
        await self.may_respond.wait()
        if self.failure is not None:
            raise self.failure
        return [each.upper() for each in items]


async def send_all(peer: Peer, *items: tuple[int, str, str]) -> dict[str, str]:
    """Submit (broker, key, item) tuples in order; returns results, or the texts of errors, by item."""
    responses: dict[str, str] = {}

    async def one(batcher: RequestBatcher[str, str], broker: int, key: str, item: str) -> None:
        try:
            responses[item] = await batcher.send(broker, key, item)
        except ClientError as error:
            responses[item] = str(error)

    async with trio.open_nursery() as nursery:
        batcher = RequestBatcher[str, str](peer.send_request, nursery)
        async with trio.open_nursery() as nursery:
            for each in items:
                nursery.start_soon(one, batcher, *each)
                await trio.testing.wait_all_tasks_blocked()
            peer.may_respond.set()
    return responses


async def test_items_during_a_request_are_batched() -> None:
    peer = Peer()
    responses = await send_all(peer, (2, "k", "a"), (2, "l", "b"), (3, "k", "c"), (2, "m", "d"))
    assert peer.requests == [(2, ["a"]), (3, ["c"]), (2, ["b", "d"])]
    assert responses == {"a": "A", "b": "B", "c": "C", "d": "D"}


async def test_request_has_one_item_per_key_in_order() -> None:
    peer = Peer()
    asked = [(2, "x", "0"), *((2, key, f"{key}{n}") for n in (1, 2, 3) for key in "ab")]
    responses = await send_all(peer, *asked)
    assert [together for _, together in peer.requests] == [
        ["0"],
        ["a1", "b1"],
        ["a2", "b2"],
        ["a3", "b3"],
    ]
    assert len(responses) == 7


async def test_request_has_limit_of_items() -> None:
    peer = Peer()
    peer.may_respond.set()
    async with trio.open_nursery() as nursery:
        batcher = RequestBatcher[str, str](peer.send_request, nursery)
        async with trio.open_nursery() as nursery:
            for number in range(2 * ITEMS_MAX + 1):
                nursery.start_soon(batcher.send, 2, number, str(number))
    assert sum(len(together) for _, together in peer.requests) == 2 * ITEMS_MAX + 1
    assert max(len(together) for _, together in peer.requests) == ITEMS_MAX


@pytest.mark.parametrize(
    ("failure", "expected"),
    [
        (Unreachable("no connection"), "no connection"),
        (KeyError("x"), "Unexpected error in a request to broker 2"),
    ],
)
async def test_failed_request_fails_its_items(
    failure: Exception, expected: str, caplog: pytest.LogCaptureFixture
) -> None:
    peer = Peer()
    peer.failure = failure
    responses = await send_all(peer, (2, "k", "a"), (2, "l", "b"))
    assert all(expected in text for text in responses.values())
    assert len(peer.requests) == 2


async def test_cancelled_caller_does_not_affect_others() -> None:
    peer = Peer()
    async with trio.open_nursery() as nursery:
        batcher = RequestBatcher[str, str](peer.send_request, nursery)
        with trio.move_on_after(0) as cancelled:
            await batcher.send(2, "k", "a")
        assert cancelled.cancelled_caught
        peer.may_respond.set()
        assert await batcher.send(2, "l", "b") == "B"
