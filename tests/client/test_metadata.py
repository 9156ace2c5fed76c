"""A cluster some of whose brokers are silent, or not there any more."""

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
from tests.client.scripted_broker import SILENCE, Asked, ScriptedBroker, scripted_broker

TIMEOUT_S = 2.0


@asynccontextmanager
async def silent_brokers(count: int) -> AsyncIterator[list[Address]]:
    """Brokers that stand still: their hosts accept connections."""
    async with AsyncExitStack() as stack:
        brokers = [
            await stack.enter_async_context(scripted_broker(lambda asked: SILENCE))
            for _ in range(count)
        ]
        yield [broker.address for broker in brokers]


async def nowhere() -> Address:
    """An address at which nobody listens."""
    (listener,) = await TcpNetwork().listen("127.0.0.1", 0)
    await listener.aclose()
    return listener.address


@asynccontextmanager
async def two_that_tell(
    tells: dict[int, tuple[int, int]],
) -> AsyncIterator[tuple[ScriptedBroker, ScriptedBroker]]:
    """Brokers 1 and 2, and which leader of t-0 each tells of, in which epoch."""

    def script(me: int, asked: Asked) -> Any:
        if asked.api is not METADATA:
            return None
        brokers = [
            {"node_id": number, "host": each.address.host, "port": each.address.port, "rack": None}
            for number, each in enumerate((first, second), 1)
        ]
        respond = {**first.metadata(asked), "brokers": brokers}
        leader, epoch = tells[me]
        for topic in respond["topics"]:
            topic["topic_id"] = UUID(int=1)
            topic["partitions"][0] |= {"leader_id": leader, "leader_epoch": epoch}
        return respond

    async with (
        scripted_broker(partial(script, 1), topics={"t": 1}) as first,
        scripted_broker(partial(script, 2), topics={"t": 1}) as second,
    ):
        yield first, second


async def leader_now(cluster: Cluster) -> int | None:
    """What the next one tells of t-0 that is asked."""
    cluster.forget("t")
    with suppress(KafkaError):
        return await cluster.leader("t", 0)
    return None


async def test_silent_brokers_together_are_waited_for_as_long_as_one() -> None:
    async with silent_brokers(3) as silent:
        async with open_cluster(TcpNetwork(), silent, timeout_s=TIMEOUT_S) as cluster:
            begun = trio.current_time()
            with pytest.raises(
                Unreachable, match=r"timed out connecting to .*; timed out connecting to "
            ):
                await cluster.any_node()
            assert trio.current_time() - begun < 2 * TIMEOUT_S


async def test_patience_with_a_silent_broker_leaves_time_for_another() -> None:
    async with silent_brokers(1) as silent, scripted_broker(lambda asked: None) as broker:
        broker.topics["t"] = 1
        addresses = [*silent, broker.address]
        async with open_cluster(TcpNetwork(), addresses, timeout_s=TIMEOUT_S) as cluster:
            assert (await cluster.retrying(lambda: cluster.topic("t"))).name == "t"


@pytest.mark.parametrize("silent_on", [API_VERSIONS, FIND_COORDINATOR])
async def test_who_was_waited_for_in_vain_is_named(silent_on: Api) -> None:
    """A request may take as long as all attempts together may."""

    def script(asked: Asked) -> Any:
        return SILENCE if asked.api is silent_on else None

    async with (
        scripted_broker(script) as broker,
        open_cluster(TcpNetwork(), [broker.address], timeout_s=0.3) as cluster,
    ):
        with pytest.raises(
            ClientError, match=rf"{broker.address} (did not respond to .* in|after) 0\.3 s"
        ):
            await cluster.retrying(lambda: cluster.coordinator("g"))


async def test_who_was_waited_for_in_vain_is_not_the_first_to_be_asked_again() -> None:
    async with silent_brokers(1) as silent, scripted_broker(lambda asked: None) as broker:
        addresses = [*silent, broker.address]
        async with open_cluster(TcpNetwork(), addresses, timeout_s=60) as cluster:
            with pytest.raises(TimedOut):
                await cluster.retrying(cluster.any_node, timeout_s=0.05)
            with trio.fail_after(10):
                await cluster.any_node()


async def test_nor_is_one_on_whose_answer_somebody_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("odradek.client.connection.UNRESPONSIVE_S", 0.0)

    def script(asked: Asked) -> Any:
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
        while not hanging.asked(FIND_COORDINATOR):
            await trio.sleep(0.01)
        with trio.fail_after(5):
            for _ in range(3):
                await cluster.topic("t")
        nursery.cancel_scope.cancel()


@pytest.mark.parametrize("how", ["gone", "silent"])
async def test_any_broker_is_asked_while_the_one_that_is_named_as_controller_is(how: str) -> None:
    def script(asked: Asked) -> Any:
        if asked.api is METADATA:
            respond = broker.metadata(asked)
            dead = {"node_id": 2, "host": gone.host, "port": gone.port, "rack": None}
            return {**respond, "brokers": [*respond["brokers"], dead], "controller_id": 2}
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


async def test_not_only_a_broker_that_is_cut_off_is_asked_who_leads() -> None:
    """It takes itself for the leader, of which others know that another broker is it by now."""
    async with (
        two_that_tell({1: (1, 4), 2: (2, 4)}) as (cut_off, _),
        open_cluster(TcpNetwork(), [cut_off.address], timeout_s=TIMEOUT_S) as cluster,
    ):
        assert await cluster.leader("t", 0) == 1
        await cluster.node(2)  # which leads others
        cluster.forget("t")
        assert await cluster.leader("t", 0) == 2


async def test_a_leader_of_an_older_epoch_than_was_heard_of_is_none() -> None:
    """Unless it is of a topic that was made anew, by the same name (KIP-320, KIP-516)."""
    tells: tuple[int, int, UUID] = (1, 4, UUID(int=1))

    def script(asked: Asked) -> Any:
        if asked.api is not METADATA:
            return None
        respond = broker.metadata(asked)
        leader, epoch, topic_id = tells
        for topic in respond["topics"]:
            topic["topic_id"] = topic_id
            topic["partitions"][0] |= {"leader_id": leader, "leader_epoch": epoch}
        return respond

    async with (
        scripted_broker(script, topics={"t": 1}) as broker,
        open_cluster(TcpNetwork(), [broker.address], timeout_s=TIMEOUT_S) as cluster,
    ):
        assert await cluster.leader("t", 0) == 1
        tells = (2, 5, UUID(int=1))
        cluster.forget("t")
        assert await cluster.leader("t", 0) == 2
        tells = (1, 4, UUID(int=1))
        cluster.forget("t")
        for _ in range(2):
            with pytest.raises(KafkaError, match="t-0 has no leader"):
                await cluster.leader("t", 0)
        tells = (1, 5, UUID(int=1))
        assert await cluster.leader("t", 0) == 1
        tells = (3, 0, UUID(int=2))
        cluster.forget("t")
        assert await cluster.leader("t", 0) == 3


async def test_another_is_asked_than_who_tells_of_an_older_epoch() -> None:
    """Though it is the only one to which there is a connection."""
    tells = {1: (1, 4), 2: (2, 5)}
    async with (
        two_that_tell(tells) as (cut_off, _),
        open_cluster(TcpNetwork(), [cut_off.address], timeout_s=TIMEOUT_S) as cluster,
    ):
        assert await leader_now(cluster) == 1
        tells[1] = 1, 3
        assert await leader_now(cluster) is None
        assert await leader_now(cluster) == 2


async def test_who_told_of_an_older_epoch_once_is_asked_again() -> None:
    """It lagged behind, and has learned since; and the other one is cut off now."""
    tells = {1: (1, 4), 2: (1, 3)}
    async with (
        two_that_tell(tells) as (first, _),
        open_cluster(TcpNetwork(), [first.address], timeout_s=TIMEOUT_S) as cluster,
    ):
        assert await leader_now(cluster) == 1
        await cluster.node(2)
        assert await leader_now(cluster) is None
        assert await leader_now(cluster) == 1
        tells[2] = 2, 5
        assert 2 in [await leader_now(cluster) for _ in range(3)]


async def test_where_all_told_of_older_epochs_not_one_alone_is_asked_again() -> None:
    """It is cut off, and another one learns."""
    tells = {1: (2, 5), 2: (2, 5)}
    async with (
        two_that_tell(tells) as (first, second),
        open_cluster(TcpNetwork(), [first.address, second.address], timeout_s=TIMEOUT_S) as cluster,
    ):
        assert await leader_now(cluster) == 2
        tells |= {1: (1, 4), 2: (1, 4)}
        assert [await leader_now(cluster) for _ in range(3)] == [None] * 3
        tells[2] = 2, 5
        assert 2 in [await leader_now(cluster) for _ in range(3)]
