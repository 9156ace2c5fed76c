"""Tests of a connection: versions, pipelining, timeouts and errors."""

from __future__ import annotations

import struct
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest
import trio

from odradek.client.connection import BrokerConnection, open_connection
from odradek.client.errors import Refused, TimedOut, Unreachable, Unsupported
from odradek.protocol import messages
from odradek.protocol.apis import API_VERSIONS, DESCRIBE_CLUSTER, FIND_COORDINATOR, METADATA
from odradek.protocol.errors import ErrorCode
from odradek.protocol.framing import response_header
from odradek.seams.network import Address, Connection
from odradek.seams.tcp import TcpNetwork
from odradek.testing.virtual_network import WINDOW_BYTES
from odradek.testing.virtual_world import VirtualWorld
from tests.support.scripted_broker import (
    HANG_UP,
    SILENCE,
    ReceivedRequest,
    Script,
    ScriptedBroker,
    scripted_broker,
)

FIND = {"key": "g", "key_type": 0, "coordinator_keys": ["g"]}


@asynccontextmanager
async def talking_to(
    script: Script, **more: Any
) -> AsyncIterator[tuple[ScriptedBroker, BrokerConnection]]:
    async with scripted_broker(script, **more) as broker, trio.open_nursery() as nursery:
        connection = await open_connection(TcpNetwork(), broker.address, nursery, timeout_s=2)
        yield broker, connection
        connection.abort()


def nothing_special(asked: ReceivedRequest) -> Any:
    return None


async def test_newest_common_version_is_used() -> None:
    async with talking_to(nothing_special, versions={METADATA: (0, 9)}) as (broker, connection):
        assert connection.version_of(METADATA) == 9
        assert connection.version_of(METADATA, at_most=4) == 4
        await connection.request(METADATA, {"topics": None})
        assert [asked.version for asked in broker.requests_of(METADATA)] == [9]
        assert {asked.client_id for asked in broker.requests} == {"odradek"}


async def test_unsupported_versions_are_reported() -> None:
    lacks = {METADATA: (20, 22), DESCRIBE_CLUSTER: (0, -1)}
    async with talking_to(nothing_special, versions=lacks) as (_, connection):
        with pytest.raises(
            Unsupported, match="supports versions 20 to 22 of Metadata; the client needs 0 to 13"
        ):
            await connection.request(METADATA, {"topics": None})
        with pytest.raises(Unsupported, match="does not support DescribeCluster"):
            await connection.request(DESCRIBE_CLUSTER, {})


async def test_older_broker_gets_api_versions_0() -> None:
    """KIP-511: the UNSUPPORTED_VERSION response has version 0 for every request version."""

    def script(asked: ReceivedRequest) -> Any:
        if asked.api is API_VERSIONS and asked.version > 0:
            return {"version": 0, "error_code": ErrorCode.unsupported_version, "api_keys": []}
        return None

    async with talking_to(script) as (broker, connection):
        assert [asked.version for asked in broker.requests] == [API_VERSIONS.max_version, 0]
        assert connection.version_of(METADATA) == METADATA.max_version


def coordinator(asked: ReceivedRequest) -> bytes:
    """Encode a FindCoordinator response whose port is the group's name."""
    group = asked.body.coordinator_keys[0]
    row = {"key": group, "node_id": 1, "host": "h", "port": int(group), "error_code": 0}
    body = messages.write_response(
        asked.api.key, asked.version, {"coordinators": [{**row, "error_message": None}]}
    )
    whole = response_header(asked.api, asked.version, asked.correlation_id) + body
    return struct.pack(">i", len(whole)) + whole


async def test_pipelined_responses_are_matched_by_correlation_id() -> None:
    waiting: list[ReceivedRequest] = []

    def script(asked: ReceivedRequest) -> Any:
        if asked.api is not FIND_COORDINATOR:
            return None
        waiting.append(asked)
        if len(waiting) < 3:
            return SILENCE
        # all three at once, the last one first
        return b"".join(coordinator(each) for each in reversed(waiting))

    async with talking_to(script) as (_, connection):
        ports: dict[str, int] = {}

        async def ask(group: str) -> None:
            found = await connection.request(
                FIND_COORDINATOR, {"key_type": 0, "coordinator_keys": [group]}
            )
            ports[group] = found.coordinators[0].port

        async with trio.open_nursery() as nursery:
            for group in ("1", "2", "3"):
                nursery.start_soon(ask, group)
        assert ports == {"1": 1, "2": 2, "3": 3}


async def test_request_timeout_aborts_connection() -> None:
    """As in Kafka's clients: responses are in order, so later requests cannot complete first."""

    def script(asked: ReceivedRequest) -> Any:
        return SILENCE if asked.api is FIND_COORDINATOR else None

    async with talking_to(script) as (_, connection):
        with pytest.raises(TimedOut, match=r"did not respond to FindCoordinator in 0\.05 s"):
            await connection.request(FIND_COORDINATOR, FIND, timeout_s=0.05)
        assert connection.broken
        with pytest.raises(TimedOut, match="FindCoordinator"):
            await connection.request(METADATA, {"topics": None})


def test_requests_have_their_own_timeouts() -> None:
    """Completed and cancelled requests do not extend the timeout."""
    world = VirtualWorld()
    world.clock.jumping = True
    received: list[tuple[float, float]] = []

    async def main() -> None:
        broker = ScriptedBroker(lambda asked: SILENCE if asked.api is FIND_COORDINATOR else None)
        (listener,) = await world.node("broker").network.listen("", 9092)
        address = Address("broker", 9092)

        async def accept() -> None:
            await broker.serve(await listener.accept())

        async with trio.open_nursery() as nursery:
            nursery.start_soon(accept)
            connection = await open_connection(world.node("client").network, address, nursery)
            await connection.request(METADATA, {"topics": None}, timeout_s=1)
            with trio.move_on_after(0.5):
                await connection.request(FIND_COORDINATOR, FIND, timeout_s=2)

            async def ask(seconds: float) -> None:
                with pytest.raises(TimedOut, match="did not respond to FindCoordinator in 10 s"):
                    await connection.request(FIND_COORDINATOR, FIND, timeout_s=seconds)
                received.append((seconds, trio.current_time()))

            async with trio.open_nursery() as asking:
                for seconds in (float("inf"), 20.0, 10.0):
                    asking.start_soon(ask, seconds)
            nursery.cancel_scope.cancel()

    world.run(main)
    assert sorted(received) == [(10.0, 10.5), (20.0, 10.5), (float("inf"), 10.5)]


def in_virtual_time(main: Callable[[Connection, BrokerConnection], Awaitable[None]]) -> None:
    """With the broker's end of a connection, where a test sends bytes, and the client's end, before anything
    is negotiated."""
    world = VirtualWorld()
    world.clock.jumping = True

    async def run() -> None:
        (listener,) = await world.node("broker").network.listen("", 9092)
        stream = await world.node("client").network.connect("broker", 9092)
        connection = BrokerConnection(stream, Address("broker", 9092))
        async with trio.open_nursery() as nursery:
            nursery.start_soon(connection.run)
            with trio.fail_after(60):
                await main(await listener.accept(), connection)
            nursery.cancel_scope.cancel()

    world.run(run)


@pytest.mark.parametrize("cut", [2, 7])
def test_partial_response_survives_timeout_of_cancelled_request(cut: int) -> None:
    """The receive is interrupted for a cancelled request, and continues in the same response."""

    async def main(broker: Connection, connection: BrokerConnection) -> None:
        async def respond_the_second() -> None:
            frame = struct.pack(">ii", 9, 2) + b"whole"
            await trio.sleep_until(0.2)
            await broker.send([frame[:cut]])
            await trio.sleep_until(0.8)
            await broker.send([frame[cut:]])

        async with trio.open_nursery() as nursery:
            nursery.start_soon(respond_the_second)
            with trio.move_on_after(0.1):
                await connection.exchange(FIND_COORDINATOR, 0, b"", timeout_s=0.5)
            body = await connection.exchange(FIND_COORDINATOR, 0, b"", timeout_s=2)
            assert (bytes(body), trio.current_time()) == (b"whole", 0.8)

    in_virtual_time(main)


def test_send_timeout_fails_sending_and_waiting_requests() -> None:
    """The broker does not receive."""
    received: list[float] = []

    async def main(_: Connection, connection: BrokerConnection) -> None:
        async def ask(body: bytes, timeout_s: float) -> None:
            with pytest.raises(TimedOut, match="did not respond to FindCoordinator in 1 s"):
                await connection.exchange(FIND_COORDINATOR, 0, body, timeout_s=timeout_s)
            received.append(trio.current_time())

        async with trio.open_nursery() as nursery:
            nursery.start_soon(ask, bytes(2 * WINDOW_BYTES), 1)
            await trio.sleep(0.1)
            nursery.start_soon(ask, b"", 10)

    in_virtual_time(main)
    assert received == [1.0, 1.0]


@pytest.mark.parametrize("ending", ["hang up", "garbage", "not Kafka"])
async def test_lost_connection_fails_pending_requests(ending: str) -> None:
    responses = {
        "hang up": HANG_UP,
        "garbage": struct.pack(">iib", 5, 2, 0),  # the id of the second request, and no body
        "not Kafka": b"HTTP/1.1 400 Bad Request\r\n\r\n",
    }

    def script(asked: ReceivedRequest) -> Any:
        return responses[ending] if asked.api is FIND_COORDINATOR else None

    async with talking_to(script) as (broker, connection):
        with pytest.raises(Unreachable, match=str(broker.address)):
            await connection.request(FIND_COORDINATOR, FIND)
        assert connection.broken
        with pytest.raises(Unreachable):
            await connection.request(METADATA, {"topics": None})


async def test_cancelled_request_keeps_other_requests() -> None:
    def script(asked: ReceivedRequest) -> Any:
        return SILENCE if asked.api is FIND_COORDINATOR else None

    async with talking_to(script) as (_, connection):
        with trio.move_on_after(0.02):
            await connection.request(FIND_COORDINATOR, FIND)
        assert (await connection.request(METADATA, {"topics": None})).cluster_id == "scripted"


async def test_late_response_of_cancelled_request_is_dropped() -> None:
    """A cancelled request without a response leaves no memory in use."""
    waiting: list[ReceivedRequest] = []
    is_requested = trio.Event()

    def script(asked: ReceivedRequest) -> Any:
        if asked.api is not FIND_COORDINATOR:
            return None
        waiting.append(asked)
        is_requested.set()
        return SILENCE if len(waiting) == 1 else b"".join(map(coordinator, waiting))

    async with talking_to(script) as (_, connection):

        async def ask(group: str) -> int:
            found = await connection.request(
                FIND_COORDINATOR, {"key_type": 0, "coordinator_keys": [group]}
            )
            return int(found.coordinators[0].port)

        async with trio.open_nursery() as leaving:
            leaving.start_soon(ask, "1")
            await is_requested.wait()
            leaving.cancel_scope.cancel()
        assert not connection._pending
        assert await ask("2") == 2


async def test_refused_connection() -> None:
    (listener,) = await TcpNetwork().listen("127.0.0.1", 0)
    address = listener.address
    await listener.aclose()
    async with trio.open_nursery() as nursery:
        with pytest.raises(Refused, match=f"^cannot connect to {address}: Connection refused$"):
            await open_connection(TcpNetwork(), address, nursery)


async def test_listener_without_response_times_out() -> None:
    async with scripted_broker(lambda asked: SILENCE) as broker, trio.open_nursery() as nursery:
        with pytest.raises(TimedOut, match=r"timed out connecting to .* after 0\.05 s"):
            await open_connection(TcpNetwork(), broker.address, nursery, timeout_s=0.05)


async def test_api_versions_error_is_unreachable() -> None:
    refusal = {"error_code": ErrorCode.invalid_request, "api_keys": []}
    async with scripted_broker(lambda asked: refusal) as broker, trio.open_nursery() as nursery:
        with pytest.raises(Unreachable, match="failed: invalid_request"):
            await open_connection(TcpNetwork(), broker.address, nursery, timeout_s=2)


def test_ipv6_address_is_printed_in_brackets() -> None:
    assert str(Address("::1", 9092)) == "[::1]:9092"


async def test_exchange_returns_encoded_response() -> None:
    async with talking_to(nothing_special) as (_, connection):
        version = connection.version_of(METADATA)
        body = messages.write_request(METADATA.key, version, {"topics": None})
        raw = await connection.exchange(METADATA, version, body, timeout_s=2)
        assert messages.read_response(METADATA.key, version, raw).brokers
        assert str(connection.invalid_response(METADATA, ValueError("no such tag"))).endswith(
            ": no such tag"
        )
        with pytest.raises(Unreachable, match="invalid Metadata response"):
            await connection.exchange(METADATA, version, body, timeout_s=2)
