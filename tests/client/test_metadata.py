"""Tests of cluster metadata with unresponsive, unreachable and partitioned brokers."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from functools import partial
from typing import Any
from uuid import UUID

import pytest
import trio

from odradek.client import admin
from odradek.client.errors import ClientError, TimedOut, Unreachable
from odradek.client.metadata import Cluster, open_cluster
from odradek.protocol.apis import API_VERSIONS, CREATE_TOPICS, FIND_COORDINATOR, METADATA, Api
from odradek.protocol.errors import KafkaError
from odradek.seams.network import Address
from odradek.seams.tcp import TcpNetwork
from tests.support.scripted_broker import SILENCE, ReceivedRequest, ScriptedBroker, scripted_broker

TIMEOUT_S = 2.0


@asynccontextmanager
async def silent_brokers(count: int) -> AsyncIterator[list[Address]]:
    """Suspended brokers, whose hosts accept connections."""
    async with AsyncExitStack() as stack:
        brokers = [
            await stack.enter_async_context(scripted_broker(lambda asked: SILENCE))
            for _ in range(count)
        ]
        yield [broker.address for broker in brokers]


async def nowhere() -> Address:
    """An address without a listener."""
    (listener,) = await TcpNetwork().listen("127.0.0.1", 0)
    await listener.aclose()
    return listener.address


@asynccontextmanager
async def two_brokers_with_metadata(
    leaders: dict[int, tuple[int, int]],
) -> AsyncIterator[tuple[ScriptedBroker, ScriptedBroker]]:
    """Brokers 1 and 2 with the leader and epoch of t-0 in their metadata."""

    def script(me: int, asked: ReceivedRequest) -> Any:
        if asked.api is not METADATA:
            return None
        brokers = [
            {"node_id": number, "host": each.address.host, "port": each.address.port, "rack": None}
            for number, each in enumerate((first, second), 1)
        ]
        response = {**first.metadata(asked), "brokers": brokers}
        leader, epoch = leaders[me]
        for topic in response["topics"]:
            topic["topic_id"] = UUID(int=1)
            topic["partitions"][0] |= {"leader_id": leader, "leader_epoch": epoch}
        return response

    async with (
        scripted_broker(partial(script, 1), topics={"t": 1}) as first,
        scripted_broker(partial(script, 2), topics={"t": 1}) as second,
    ):
        yield first, second


async def leader_now(cluster: Cluster) -> int | None:
    """Leader and epoch of t-0 in the next Metadata response."""
    cluster.forget("t")
    with suppress(KafkaError):
        return await cluster.leader("t", 0)
    return None


async def test_several_unresponsive_brokers_share_one_timeout() -> None:
    async with silent_brokers(3) as silent:
        async with open_cluster(TcpNetwork(), silent, timeout_s=TIMEOUT_S) as cluster:
            begun = trio.current_time()
            with pytest.raises(
                Unreachable, match=r"timed out connecting to .*; timed out connecting to "
            ):
                await cluster.any_node()
            assert trio.current_time() - begun < 2 * TIMEOUT_S


async def test_connection_attempts_share_the_timeout() -> None:
    async with silent_brokers(1) as silent, scripted_broker(lambda asked: None) as broker:
        broker.topics["t"] = 1
        addresses = [*silent, broker.address]
        async with open_cluster(TcpNetwork(), addresses, timeout_s=TIMEOUT_S) as cluster:
            assert (await cluster.retrying(lambda: cluster.topic("t"))).name == "t"


@pytest.mark.parametrize("silent_on", [API_VERSIONS, FIND_COORDINATOR])
async def test_timeout_names_the_unresponsive_broker(silent_on: Api) -> None:
    """One request may use the timeout of all attempts."""

    def script(asked: ReceivedRequest) -> Any:
        return SILENCE if asked.api is silent_on else None

    async with (
        scripted_broker(script) as broker,
        open_cluster(TcpNetwork(), [broker.address], timeout_s=0.3) as cluster,
    ):
        with pytest.raises(
            ClientError, match=rf"{broker.address} (did not respond to .* in|after) 0\.3 s"
        ):
            await cluster.retrying(lambda: cluster.coordinator("g"))


async def test_failed_address_is_tried_last() -> None:
    async with silent_brokers(1) as silent, scripted_broker(lambda asked: None) as broker:
        addresses = [*silent, broker.address]
        async with open_cluster(TcpNetwork(), addresses, timeout_s=60) as cluster:
            with pytest.raises(TimedOut):
                await cluster.retrying(cluster.any_node, timeout_s=0.05)
            with trio.fail_after(10):
                await cluster.any_node()


async def test_unresponsive_connection_is_avoided(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("odradek.client.connection.UNRESPONSIVE_S", 0.0)

    def script(asked: ReceivedRequest) -> Any:
        return SILENCE if asked.api in (METADATA, FIND_COORDINATOR) else None

    async with (
        scripted_broker(script) as hanging,
        scripted_broker(lambda asked: None, topics={"t": 1}) as broker,
        open_cluster(TcpNetwork(), [broker.address], timeout_s=60) as cluster,
        trio.open_nursery() as nursery,
    ):
        await cluster.any_node()
        asked = await cluster.connect(hanging.address)
        nursery.start_soon(asked.request, FIND_COORDINATOR, {"key": "g", "key_type": 0})
        while not hanging.requests_of(FIND_COORDINATOR):
            await trio.sleep(0.01)
        with trio.fail_after(5):
            for _ in range(3):
                await cluster.topic("t")
        nursery.cancel_scope.cancel()


@pytest.mark.parametrize("how", ["gone", "silent"])
async def test_unreachable_controller_falls_back_to_any_broker(how: str) -> None:
    def script(asked: ReceivedRequest) -> Any:
        if asked.api is METADATA:
            response = broker.metadata(asked)
            dead = {"node_id": 2, "host": gone.host, "port": gone.port, "rack": None}
            return {**response, "brokers": [*response["brokers"], dead], "controller_id": 2}
        if asked.api is CREATE_TOPICS:
            made = {"topic_id": None, "error_code": 0, "error_message": None}
            made |= {"num_partitions": 1, "replication_factor": 1, "configs": []}
            return {"topics": [{"name": topic.name, **made} for topic in asked.body.topics]}
        return None

    async with (
        silent_brokers(1) as silent,
        scripted_broker(script) as broker,
        open_cluster(TcpNetwork(), [broker.address], timeout_s=TIMEOUT_S) as cluster,
    ):
        gone = await nowhere() if how == "gone" else silent[0]
        (made,) = await admin.create_topics(cluster, [admin.NewTopic("t")])
        assert made.name == "t"


async def test_metadata_requests_alternate_between_brokers() -> None:
    """A former leader still has itself as the leader in its metadata."""
    async with (
        two_brokers_with_metadata({1: (1, 4), 2: (2, 4)}) as (cut_off, _),
        open_cluster(TcpNetwork(), [cut_off.address], timeout_s=TIMEOUT_S) as cluster,
    ):
        assert await cluster.leader("t", 0) == 1
        await cluster.node(2)  # which leads others
        cluster.forget("t")
        assert await cluster.leader("t", 0) == 2


async def test_leader_with_older_epoch_is_ignored() -> None:
    """A recreated topic starts with new epochs (KIP-320, KIP-516)."""
    leaders: tuple[int, int, UUID] = (1, 4, UUID(int=1))

    def script(asked: ReceivedRequest) -> Any:
        if asked.api is not METADATA:
            return None
        response = broker.metadata(asked)
        leader, epoch, topic_id = leaders
        for topic in response["topics"]:
            topic["topic_id"] = topic_id
            topic["partitions"][0] |= {"leader_id": leader, "leader_epoch": epoch}
        return response

    async with (
        scripted_broker(script, topics={"t": 1}) as broker,
        open_cluster(TcpNetwork(), [broker.address], timeout_s=TIMEOUT_S) as cluster,
    ):
        assert await cluster.leader("t", 0) == 1
        leaders = (2, 5, UUID(int=1))
        cluster.forget("t")
        assert await cluster.leader("t", 0) == 2
        leaders = (1, 4, UUID(int=1))
        cluster.forget("t")
        for _ in range(2):
            with pytest.raises(KafkaError, match="t-0 has no leader"):
                await cluster.leader("t", 0)
        leaders = (1, 5, UUID(int=1))
        assert await cluster.leader("t", 0) == 1
        leaders = (3, 0, UUID(int=2))
        cluster.forget("t")
        assert await cluster.leader("t", 0) == 3


async def test_metadata_source_with_older_epoch_is_avoided() -> None:
    """It is avoided even if it has the only open connection."""
    leaders = {1: (1, 4), 2: (2, 5)}
    async with (
        two_brokers_with_metadata(leaders) as (cut_off, _),
        open_cluster(TcpNetwork(), [cut_off.address], timeout_s=TIMEOUT_S) as cluster,
    ):
        assert await leader_now(cluster) == 1
        leaders[1] = 1, 3
        assert await leader_now(cluster) is None
        assert await leader_now(cluster) == 2


async def test_broker_with_current_metadata_is_preferred_again() -> None:
    """The outdated broker has caught up, and the other one is partitioned."""
    leaders = {1: (1, 4), 2: (1, 3)}
    async with (
        two_brokers_with_metadata(leaders) as (first, _),
        open_cluster(TcpNetwork(), [first.address], timeout_s=TIMEOUT_S) as cluster,
    ):
        assert await leader_now(cluster) == 1
        await cluster.node(2)
        assert await leader_now(cluster) is None
        assert await leader_now(cluster) == 1
        leaders[2] = 2, 5
        assert 2 in [await leader_now(cluster) for _ in range(3)]


async def test_metadata_alternates_if_all_brokers_are_outdated() -> None:
    """The first broker is partitioned, and another one has the new leader."""
    leaders = {1: (2, 5), 2: (2, 5)}
    async with (
        two_brokers_with_metadata(leaders) as (first, second),
        open_cluster(TcpNetwork(), [first.address, second.address], timeout_s=TIMEOUT_S) as cluster,
    ):
        assert await leader_now(cluster) == 2
        leaders |= {1: (1, 4), 2: (1, 4)}
        assert [await leader_now(cluster) for _ in range(3)] == [None] * 3
        leaders[2] = 2, 5
        assert 2 in [await leader_now(cluster) for _ in range(3)]
