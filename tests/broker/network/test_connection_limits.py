"""Tests of max.connections and max.connections.per.ip."""

from __future__ import annotations

from typing import Any, cast

import pytest
import trio
import trio.testing

from odradek.broker.network.listeners import BoundListener
from odradek.broker.network.server import Server
from odradek.client.connection import BrokerConnection, open_connection
from odradek.client.errors import Unreachable
from odradek.seams.network import Address, Connection, ConnectionLost
from odradek.testing import Broker
from tests.support.virtual_cluster import BOTH, Nodes, alter, run

LIMIT = 3


class SilentConnection:
    """Connection that sends nothing."""

    def __init__(self) -> None:
        self.peer = Address("10.0.0.1", 1)
        self.is_over = trio.Event()

    async def receive_into(self, view: memoryview) -> int:
        await self.is_over.wait()
        raise ConnectionLost("it was closed")

    def abort(self) -> None:
        self.is_over.set()

    async def aclose(self) -> None:
        self.is_over.set()
        await trio.lowlevel.checkpoint()


class ListenerStub:
    """Listener that has all connections when it is opened."""

    address = Address("10.0.0.9", 9092)

    def __init__(self, callers: list[SilentConnection]) -> None:
        self._callers = list(callers)

    async def accept(self) -> Connection:
        if not self._callers:
            await trio.sleep_forever()
        return cast(Connection, self._callers.pop(0))

    async def aclose(self) -> None:
        pass


@pytest.mark.parametrize("limit", ["max.connections", "max.connections.per.ip"])
def test_connections_above_max_connections_are_refused(limit: str) -> None:
    async def let_in(broker: Broker) -> int:
        callers = [SilentConnection() for _ in range(3 * LIMIT)]
        endpoint = BoundListener("PLAINTEXT", "PLAINTEXT", ListenerStub.address, None)
        async with trio.open_nursery() as nursery:
            opened: Any = [(endpoint, [ListenerStub(callers)])]
            await nursery.start(Server(broker.node.services).serve, opened)
            await trio.testing.wait_all_tasks_blocked()
            found = sum(not each.is_over.is_set() for each in callers)
            nursery.cancel_scope.cancel()
        return found

    with Broker(configs={limit: str(LIMIT)}) as broker:
        assert broker._call(let_in, broker) == LIMIT


def test_inter_broker_connections_are_accepted_above_the_limit() -> None:
    """On their own listener, each closes the client connection that has been idle for the longest time."""
    configs = {
        "listeners": "OUTSIDE://node-1:9092,INSIDE://node-1:9094,CONTROLLER://node-1:9093",
        "listener_security_protocol_map": "OUTSIDE:PLAINTEXT,INSIDE:PLAINTEXT,CONTROLLER:PLAINTEXT",
        "inter_broker_listener_name": "INSIDE",
        "max_connections": str(LIMIT),
    }

    async def main(nodes: Nodes) -> None:
        await nodes.start(1)
        async with trio.open_nursery() as nursery:

            async def come(port: int) -> BrokerConnection:
                network = nodes.world.wires.host("client")
                await trio.sleep(1)
                return await open_connection(network, Address("node-1", port), nursery)

            clients = [await come(9092) for _ in range(LIMIT)]
            with pytest.raises(Unreachable):
                await come(9092)
            brokers = [await come(9094) for _ in range(LIMIT - 1)]
            await trio.sleep(1)
            assert [each.broken for each in clients] == [True, True, False]
            assert not any(each.broken for each in brokers)
            nursery.cancel_scope.cancel()

    run(main, {1: BOTH}, configs=configs)


def test_listener_limit_applies_to_its_connections() -> None:
    configs = {
        "listeners": "OUTSIDE://node-1:9092,INSIDE://node-1:9094,CONTROLLER://node-1:9093",
        "listener_security_protocol_map": "OUTSIDE:PLAINTEXT,INSIDE:PLAINTEXT,CONTROLLER:PLAINTEXT",
        "inter_broker_listener_name": "INSIDE",
    }

    async def main(nodes: Nodes) -> None:
        await nodes.start(1)
        await alter(nodes, "listener.name.outside.max.connections", "2")
        async with trio.open_nursery() as nursery:
            network = nodes.world.wires.host("client")

            async def come(port: int) -> BrokerConnection:
                return await open_connection(network, Address("node-1", port), nursery)

            clients = [await come(9092) for _ in range(2)]
            with pytest.raises(Unreachable):
                await come(9092)
            await come(9094)
            clients[0].abort()
            await trio.sleep(1)
            await come(9092)
            nursery.cancel_scope.cancel()

    run(main, {1: BOTH}, configs=configs)


def test_lowered_limit_closes_idle_connections() -> None:
    async def main(nodes: Nodes) -> None:
        await nodes.start(1)
        async with trio.open_nursery() as nursery:
            network = nodes.world.wires.host("client")
            clients = []
            for _ in range(LIMIT):
                clients.append(await open_connection(network, Address("node-1", 9092), nursery))
                await trio.sleep(1)
            await alter(nodes, "max.connections", "2")  # by another connection, which is not idle
            await trio.sleep(1)
            assert [each.broken for each in clients] == [True, True, False]
            nursery.cancel_scope.cancel()

    run(main, {1: BOTH})
