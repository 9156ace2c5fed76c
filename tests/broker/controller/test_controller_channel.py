"""Tests of the channel to the active controller: local, remote, and after failover."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from types import SimpleNamespace
from typing import Any

import pytest
import trio
import trio.lowlevel

from odradek.broker.controller.controller_channel import ControllerChannel
from odradek.protocol.apis import ALLOCATE_PRODUCER_IDS, ASSIGN_REPLICAS_TO_DIRS, Api
from odradek.protocol.errors import ErrorCode, KafkaError
from odradek.replication.raft.errors import NotController
from odradek.seams.network import Address
from odradek.seams.tcp import TcpNetwork
from tests.support.scripted_broker import (
    HANG_UP,
    SILENCE,
    ReceivedRequest,
    ScriptedBroker,
    scripted_broker,
)

SERVES = {ALLOCATE_PRODUCER_IDS: (0, 0)}
WANTED = {"broker_id": 1, "broker_epoch": 5}


class Quorum:
    """Quorum state as the metadata manager exposes it."""

    def __init__(self) -> None:
        self.is_active = False
        self.leader_address: tuple[str, int] | None = None
        self.moved: Callable[[], None] = lambda: None

    def on_leader(self, callback: Callable[[], None]) -> None:
        self.moved = callback

    def led_by(self, broker: ScriptedBroker) -> None:
        self.leader_address = (broker.address.host, broker.address.port)
        self.moved()


@asynccontextmanager
async def channel_to(quorum: Quorum, here: Any = None) -> AsyncIterator[ControllerChannel]:
    async with trio.open_nursery() as nursery:
        channel = ControllerChannel(TcpNetwork(), lambda: quorum, here)
        channel.start(nursery)
        yield channel
        nursery.cancel_scope.cancel()


def block(start: int) -> dict[str, Any]:
    return {"error_code": ErrorCode.none, "producer_id_start": start, "producer_id_len": 1000}


def refusal() -> dict[str, Any]:
    return {**block(-1), "error_code": ErrorCode.not_controller}


def controller(*responses: Any) -> Any:
    """Handler that returns the given results in order, and repeats the last one."""
    left = list(responses)

    def script(asked: ReceivedRequest) -> Any:
        if asked.api is not ALLOCATE_PRODUCER_IDS:
            return None
        response = left.pop(0) if len(left) > 1 else left[0]
        return dict(response) if isinstance(response, dict) else response

    return script


async def ask(channel: ControllerChannel, timeout_s: float = 10) -> int:
    response = await channel.request(ALLOCATE_PRODUCER_IDS, WANTED, timeout_s=timeout_s)
    assert response.error_code == ErrorCode.none
    return int(response.producer_id_start)


async def test_active_controller_handles_its_own_requests() -> None:
    quorum = Quorum()
    quorum.is_active = True

    async def here(api: Api, values: Mapping[str, Any]) -> Any:
        assert (api, values) == (ALLOCATE_PRODUCER_IDS, WANTED)
        return SimpleNamespace(**block(7))

    async with channel_to(quorum, here) as channel:
        assert await ask(channel) == 7


async def test_requests_to_controller_share_one_connection() -> None:
    quorum = Quorum()
    async with (
        scripted_broker(controller(block(0), block(1000)), versions=SERVES) as broker,
        channel_to(quorum) as channel,
    ):
        quorum.led_by(broker)
        assert [await ask(channel), await ask(channel)] == [0, 1000]
        assert broker.connections == 1


async def test_requests_are_concurrent() -> None:
    """They use several connections, because a controller serves the requests of one connection in order."""
    quorum = Quorum()
    async with (
        scripted_broker(controller(SILENCE, block(2)), versions=SERVES) as broker,
        channel_to(quorum) as channel,
        trio.open_nursery() as nursery,
    ):
        quorum.led_by(broker)
        nursery.start_soon(ask, channel)
        while not broker.requests_of(ALLOCATE_PRODUCER_IDS):
            await trio.lowlevel.checkpoint()
        assert await ask(channel) == 2
        assert broker.connections == 2
        nursery.cancel_scope.cancel()


@pytest.mark.parametrize("first", [HANG_UP, refusal()], ids=["connection lost", "not controller"])
async def test_failed_request_is_retried(first: Any) -> None:
    quorum = Quorum()
    async with (
        scripted_broker(controller(first, block(3)), versions=SERVES) as broker,
        channel_to(quorum) as channel,
    ):
        quorum.led_by(broker)
        assert await ask(channel) == 3
        assert len(broker.requests_of(ALLOCATE_PRODUCER_IDS)) == 2


async def test_request_to_hanging_controller_moves_to_new_leader() -> None:
    quorum = Quorum()
    async with (
        scripted_broker(controller(SILENCE), versions=SERVES) as old,
        scripted_broker(controller(block(4)), versions=SERVES) as new,
        channel_to(quorum) as channel,
        trio.open_nursery() as nursery,
    ):
        quorum.led_by(old)

        async def elect() -> None:
            while not old.requests_of(ALLOCATE_PRODUCER_IDS):
                await trio.lowlevel.checkpoint()
            quorum.led_by(new)

        nursery.start_soon(elect)
        assert await ask(channel) == 4


async def test_pending_request_is_handled_locally_after_failover() -> None:
    quorum = Quorum()
    quorum.is_active = True
    asked = 0

    async def here(api: Api, values: Mapping[str, Any]) -> Any:
        nonlocal asked
        asked += 1
        if asked == 1:
            raise NotController("not any more")
        return SimpleNamespace(**block(6))

    async with channel_to(quorum, here) as channel:
        assert await ask(channel) == 6


async def test_request_without_controller_times_out() -> None:
    async with channel_to(Quorum()) as channel:
        with pytest.raises(KafkaError, match="AllocateProducerIds") as failed:
            await ask(channel, timeout_s=0.1)
        assert failed.value.code is ErrorCode.request_timed_out


async def test_unsupported_api_is_not_retried() -> None:
    quorum = Quorum()
    lacks = {ASSIGN_REPLICAS_TO_DIRS: (0, -1)}
    async with (
        scripted_broker(controller(block(0)), versions=lacks) as broker,
        channel_to(quorum) as channel,
    ):
        quorum.led_by(broker)
        with pytest.raises(KafkaError) as failed:
            await channel.request(ASSIGN_REPLICAS_TO_DIRS, {}, timeout_s=10)
        assert failed.value.code is ErrorCode.unsupported_version


async def test_refused_connection_is_retried_until_timeout() -> None:
    quorum = Quorum()
    async with channel_to(quorum) as channel, trio.open_nursery() as nursery:
        (listener,) = await TcpNetwork().listen("127.0.0.1", 0)
        gone: Address = listener.address
        await listener.aclose()
        quorum.leader_address = (gone.host, gone.port)
        async with scripted_broker(controller(block(9)), versions=SERVES) as broker:

            async def elect() -> None:
                await trio.sleep(0.01)
                quorum.led_by(broker)

            nursery.start_soon(elect)
            assert await ask(channel) == 9
