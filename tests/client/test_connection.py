"""One connection: versions, pipelining, time-outs, and what is said when things go wrong."""

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
from tests.client.scripted_broker import (
    HANG_UP,
    SILENCE,
    Asked,
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


def nothing_special(asked: Asked) -> Any:
    return None


async def test_the_newest_common_version_is_spoken() -> None:
    async with talking_to(nothing_special, versions={METADATA: (0, 9)}) as (broker, connection):
        assert connection.version_of(METADATA) == 9
        assert connection.version_of(METADATA, at_most=4) == 4
        await connection.request(METADATA, {"topics": None})
        assert [asked.version for asked in broker.asked(METADATA)] == [9]
        assert {asked.client_id for asked in broker.requests} == {"odradek"}


async def test_what_the_broker_does_not_have_is_named() -> None:
    lacks = {METADATA: (20, 22), DESCRIBE_CLUSTER: (0, -1)}
    async with talking_to(nothing_special, versions=lacks) as (_, connection):
        with pytest.raises(
            Unsupported, match="supports versions 20 to 22 of Metadata; the client needs 0 to 13"
        ):
            await connection.request(METADATA, {"topics": None})
        with pytest.raises(Unsupported, match="does not support DescribeCluster"):
            await connection.request(DESCRIBE_CLUSTER, {})


async def test_an_older_broker_is_asked_again_in_its_version() -> None:
    """KIP-511: it answers UNSUPPORTED_VERSION in version 0, whatever it was asked in."""

    def script(asked: Asked) -> Any:
        if asked.api is API_VERSIONS and asked.version > 0:
            return {"version": 0, "error_code": ErrorCode.unsupported_version, "api_keys": []}
        return None

    async with talking_to(script) as (broker, connection):
        assert [asked.version for asked in broker.requests] == [API_VERSIONS.max_version, 0]
        assert connection.version_of(METADATA) == METADATA.max_version


def coordinator(asked: Asked) -> bytes:
    """The frame that answers FindCoordinator: its port is the group's name."""
    group = asked.body.coordinator_keys[0]
    row = {"key": group, "node_id": 1, "host": "h", "port": int(group), "error_code": 0}
    body = messages.write_response(
        asked.api.key, asked.version, {"coordinators": [{**row, "error_message": None}]}
    )
    whole = response_header(asked.api, asked.version, asked.correlation_id) + body
    return struct.pack(">i", len(whole)) + whole


async def test_requests_are_pipelined_and_answers_matched_by_correlation_id() -> None:
    waiting: list[Asked] = []

    def script(asked: Asked) -> Any:
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


async def test_a_broker_that_does_not_answer_in_time_is_given_up() -> None:
    """As Kafka's clients do: answers come in order, so nothing that is asked later is answered sooner."""

    def script(asked: Asked) -> Any:
        return SILENCE if asked.api is FIND_COORDINATOR else None

    async with talking_to(script) as (_, connection):
        with pytest.raises(TimedOut, match=r"did not respond to FindCoordinator in 0\.05 s"):
            await connection.request(FIND_COORDINATOR, FIND, timeout_s=0.05)
        assert connection.broken
        with pytest.raises(TimedOut, match="FindCoordinator"):
            await connection.request(METADATA, {"topics": None})


def test_each_is_waited_for_as_long_as_it_said() -> None:
    """Not as long as those who have their answers, or have gone."""
    world = VirtualWorld()
    world.clock.jumping = True
    heard: list[tuple[float, float]] = []

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
                heard.append((seconds, trio.current_time()))

            async with trio.open_nursery() as asking:
                for seconds in (float("inf"), 20.0, 10.0):
                    asking.start_soon(ask, seconds)
            nursery.cancel_scope.cancel()

    world.run(main)
    assert sorted(heard) == [(10.0, 10.5), (20.0, 10.5), (float("inf"), 10.5)]


def in_virtual_time(main: Callable[[Connection, BrokerConnection], Awaitable[None]]) -> None:
    """With the broker's end of a connection, where a test says what is sent, and ours, as it is before anything
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
def test_half_an_answer_is_kept_when_anothers_time_is_up(cut: int) -> None:
    """The reader stops for one who has gone by then, and goes on where it was."""

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


def test_who_is_sending_yet_is_given_up_and_who_waits_to_send() -> None:
    """To a broker that does not read."""
    heard: list[float] = []

    async def main(_: Connection, connection: BrokerConnection) -> None:
        async def ask(body: bytes, timeout_s: float) -> None:
            with pytest.raises(TimedOut, match="did not respond to FindCoordinator in 1 s"):
                await connection.exchange(FIND_COORDINATOR, 0, body, timeout_s=timeout_s)
            heard.append(trio.current_time())

        async with trio.open_nursery() as nursery:
            nursery.start_soon(ask, bytes(2 * WINDOW_BYTES), 1)
            await trio.sleep(0.1)
            nursery.start_soon(ask, b"", 10)

    in_virtual_time(main)
    assert heard == [1.0, 1.0]


@pytest.mark.parametrize("ending", ["hang up", "garbage", "not Kafka"])
async def test_whoever_waits_hears_that_the_connection_broke(ending: str) -> None:
    responses = {
        "hang up": HANG_UP,
        "garbage": struct.pack(">iib", 5, 2, 0),  # the id of the second request, and no body
        "not Kafka": b"HTTP/1.1 400 Bad Request\r\n\r\n",
    }

    def script(asked: Asked) -> Any:
        return responses[ending] if asked.api is FIND_COORDINATOR else None

    async with talking_to(script) as (broker, connection):
        with pytest.raises(Unreachable, match=str(broker.address)):
            await connection.request(FIND_COORDINATOR, FIND)
        assert connection.broken
        with pytest.raises(Unreachable):
            await connection.request(METADATA, {"topics": None})


async def test_cancelling_one_request_leaves_the_others() -> None:
    def script(asked: Asked) -> Any:
        return SILENCE if asked.api is FIND_COORDINATOR else None

    async with talking_to(script) as (_, connection):
        with trio.move_on_after(0.02):
            await connection.request(FIND_COORDINATOR, FIND)
        assert (await connection.request(METADATA, {"topics": None})).cluster_id == "scripted"


async def test_who_gave_up_is_forgotten_and_a_late_answer_is_for_nobody() -> None:
    """A request that is never answered costs no memory, if its asker does not wait for that either."""
    waiting: list[Asked] = []
    is_asked = trio.Event()

    def script(asked: Asked) -> Any:
        if asked.api is not FIND_COORDINATOR:
            return None
        waiting.append(asked)
        is_asked.set()
        return SILENCE if len(waiting) == 1 else b"".join(map(coordinator, waiting))

    async with talking_to(script) as (_, connection):

        async def ask(group: str) -> int:
            found = await connection.request(
                FIND_COORDINATOR, {"key_type": 0, "coordinator_keys": [group]}
            )
            return int(found.coordinators[0].port)

        async with trio.open_nursery() as leaving:
            leaving.start_soon(ask, "1")
            await is_asked.wait()
            leaving.cancel_scope.cancel()
        assert not connection._pending
        assert await ask("2") == 2


async def test_nobody_listens() -> None:
    (listener,) = await TcpNetwork().listen("127.0.0.1", 0)
    address = listener.address
    await listener.aclose()
    async with trio.open_nursery() as nursery:
        with pytest.raises(Refused, match=f"cannot connect to {address}"):
            await open_connection(TcpNetwork(), address, nursery)


async def test_somebody_listens_and_says_nothing() -> None:
    async with scripted_broker(lambda asked: SILENCE) as broker, trio.open_nursery() as nursery:
        with pytest.raises(TimedOut, match=r"timed out connecting to .* after 0\.05 s"):
            await open_connection(TcpNetwork(), broker.address, nursery, timeout_s=0.05)


async def test_a_broker_that_refuses_api_versions() -> None:
    refusal = {"error_code": ErrorCode.invalid_request, "api_keys": []}
    async with scripted_broker(lambda asked: refusal) as broker, trio.open_nursery() as nursery:
        with pytest.raises(Unreachable, match="failed: invalid_request"):
            await open_connection(TcpNetwork(), broker.address, nursery, timeout_s=2)


def test_addresses_read_as_people_write_them() -> None:
    assert str(Address("::1", 9092)) == "[::1]:9092"


async def test_an_answer_can_be_had_as_it_came() -> None:
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
