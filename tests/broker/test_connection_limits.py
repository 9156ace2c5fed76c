"""max.connections and max.connections.per.ip: how many are let in at once."""

from __future__ import annotations

from typing import Any, cast

import pytest
import trio
import trio.testing

from odradek.broker.server import Endpoint, Server
from odradek.seams.network import Address, Connection, ConnectionLost
from odradek.testing import Broker

LIMIT = 3


class Caller:
    """A connection on which nothing is ever sent."""

    def __init__(self) -> None:
        self.peer = Address("10.0.0.1", 1)
        self.is_over = trio.Event()

    async def receive_into(self, view: memoryview) -> int:
        await self.is_over.wait()
        raise ConnectionLost("it was closed")

    def abort(self) -> None:
        self.is_over.set()


class Door:
    """A listener at which all of them stand when it is opened."""

    address = Address("10.0.0.9", 9092)

    def __init__(self, callers: list[Caller]) -> None:
        self._callers = list(callers)

    async def accept(self) -> Connection:
        if not self._callers:
            await trio.sleep_forever()
        return cast(Connection, self._callers.pop(0))

    async def aclose(self) -> None:
        pass


@pytest.mark.parametrize("limit", ["max.connections", "max.connections.per.ip"])
def test_of_a_crowd_no_more_are_let_in_than_may_be(limit: str) -> None:
    async def let_in(broker: Broker) -> int:
        callers = [Caller() for _ in range(3 * LIMIT)]
        endpoint = Endpoint("PLAINTEXT", "PLAINTEXT", Door.address, None)
        async with trio.open_nursery() as nursery:
            opened: Any = [(endpoint, [Door(callers)])]
            await nursery.start(Server(broker.node).serve, opened)
            await trio.testing.wait_all_tasks_blocked()
            found = sum(not each.is_over.is_set() for each in callers)
            nursery.cancel_scope.cancel()
        return found

    with Broker(configs={limit: str(LIMIT)}) as broker:
        assert broker._call(let_in, broker) == LIMIT
