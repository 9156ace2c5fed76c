"""Tests of requests to other brokers: connections that are reused, fail, or belong to fenced brokers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import trio

from odradek.broker.network.broker_connections import BrokerConnections
from odradek.client.errors import ClientError, TimedOut, Unreachable, Unsupported
from odradek.protocol.apis import LIST_GROUPS
from odradek.replication.controller.image import BrokerImage
from odradek.seams.network import Address
from odradek.seams.tcp import TcpNetwork
from tests.support.broker_connections import ConnectedBroker, a_broker, asking
from tests.support.scripted_broker import HANG_UP, SILENCE, ReceivedRequest, scripted_broker


def groups(asked: ReceivedRequest) -> Any:
    return {"error_code": 0, "groups": []} if asked.api is LIST_GROUPS else None


async def list_groups(world: ConnectedBroker, timeout_s: float = 5.0) -> Any:
    return await world.peers.request(2, LIST_GROUPS, {}, timeout_s=timeout_s)


async def test_callers_share_one_connection() -> None:
    async with scripted_broker(groups) as broker, asking() as world:
        world.knows(a_broker(2, broker.address))
        async with trio.open_nursery() as nursery:
            for _ in range(5):
                nursery.start_soon(list_groups, world)
        assert broker.connections == 1
        assert len(broker.requests_of(LIST_GROUPS)) == 5
        assert {each.client_id for each in broker.requests} == {"test"}


async def test_broken_connection_is_reopened() -> None:
    responses: list[Any] = [HANG_UP, {"error_code": 0, "groups": []}]

    def script(asked: ReceivedRequest) -> Any:
        return responses.pop(0) if asked.api is LIST_GROUPS else None

    async with scripted_broker(script) as broker, asking() as world:
        world.knows(a_broker(2, broker.address))
        with pytest.raises(Unreachable):
            await list_groups(world)
        assert (await list_groups(world)).error_code == 0
        assert broker.connections == 2


@pytest.mark.parametrize(
    ("change", "error"),
    [
        (lambda world, where: world.forgets(2), "broker 2 is not registered"),
        (lambda world, where: world.knows(a_broker(2, where, fenced=True)), "broker 2 is fenced"),
        (
            lambda world, where: world.knows(a_broker(2, Address("127.0.0.1", 1))),
            "broker 2 has the new address 127.0.0.1:1",
        ),
    ],
    ids=["gone", "fenced", "elsewhere"],
)
async def test_request_to_fenced_broker_fails_at_once(
    change: Callable[[ConnectedBroker, Address], None], error: str
) -> None:
    asked = trio.Event()

    def script(request: ReceivedRequest) -> Any:
        if request.api is LIST_GROUPS:
            asked.set()
            return SILENCE
        return None

    failures: list[ClientError] = []

    async def ask(world: ConnectedBroker) -> None:
        try:
            await list_groups(world, timeout_s=3600)
        except ClientError as error:
            failures.append(error)

    async with scripted_broker(script) as broker, asking() as world:
        world.knows(a_broker(2, broker.address))
        with trio.fail_after(10):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(ask, world)
                await asked.wait()
                change(world, broker.address)
        assert [str(each) for each in failures] == [error]


@pytest.mark.parametrize(
    "change",
    [
        lambda where: a_broker(2, where, fenced=True),
        lambda where: a_broker(2, Address("127.0.0.1", 1)),
    ],
    ids=["fenced", "elsewhere"],
)
async def test_connection_attempt_ends_when_broker_is_fenced(
    change: Callable[[Address], BrokerImage],
) -> None:
    """The broker does not respond to ApiVersions, so the connection is never open."""
    called = trio.Event()

    def script(request: ReceivedRequest) -> Any:
        called.set()
        return SILENCE

    async with scripted_broker(script) as broker, asking() as world:
        world.knows(a_broker(2, broker.address))

        async def leave() -> None:
            await called.wait()
            world.knows(change(broker.address))

        world.nursery.start_soon(leave)
        with (
            trio.fail_after(5),
            pytest.raises(Unreachable, match="was fenced or moved during the connection attempt"),
        ):
            await list_groups(world)


async def test_fenced_or_unknown_broker_is_unreachable() -> None:
    async with scripted_broker(groups) as broker, asking() as world:
        with pytest.raises(Unreachable, match="not registered"):
            await list_groups(world)
        world.knows(a_broker(2, broker.address, fenced=True))
        with pytest.raises(Unreachable, match="fenced"):
            await list_groups(world)
        assert broker.connections == 0


async def test_controller_without_the_listener_name_uses_another_listener() -> None:
    async with scripted_broker(groups) as broker, asking() as world:
        known = a_broker(2, broker.address)
        world.knows(replace(known, endpoints=(replace(known.endpoints[1], name="REPLICATION"),)))
        with pytest.raises(Unreachable, match="no listener"):
            await list_groups(world)
        world.peers = BrokerConnections(
            TcpNetwork(),
            lambda: world.image,
            lambda: "PLAINTEXT",
            client_id="controller",
            any_listener=True,
        )
        world.peers.start(world.nursery)
        assert (await list_groups(world)).error_code == 0


async def test_late_response_times_out() -> None:
    def script(asked: ReceivedRequest) -> Any:
        return SILENCE if asked.api is LIST_GROUPS else None

    async with scripted_broker(script) as broker, asking() as world:
        world.knows(a_broker(2, broker.address))
        with pytest.raises(TimedOut):
            await list_groups(world, timeout_s=0.05)


async def test_older_broker_is_unsupported() -> None:
    async with scripted_broker(groups, versions={LIST_GROUPS: (0, 3)}) as broker, asking() as world:
        world.knows(a_broker(2, broker.address))
        with pytest.raises(Unsupported, match="up to version 3 only"):
            await world.peers.request(2, LIST_GROUPS, {}, timeout_s=5, at_least=4)
        await world.peers.request(2, LIST_GROUPS, {}, timeout_s=5, at_least=3)
        assert [each.version for each in broker.requests_of(LIST_GROUPS)] == [3]
