"""Delays, partitions, resets and crashes on virtual networks, in virtual time."""

from __future__ import annotations

import pytest
import trio
import trio.testing

from odradek.seams.network import Connection, ConnectionLost
from odradek.testing.power import NodeCrashed
from odradek.testing.virtual_clock import VirtualClock
from odradek.testing.virtual_network import WINDOW_BYTES
from odradek.testing.virtual_world import VirtualNode, VirtualWorld


@pytest.fixture
def world() -> VirtualWorld:
    return VirtualWorld(seed=1)


@pytest.fixture
def clock(world: VirtualWorld) -> VirtualClock:
    return world.clock


async def connected(world: VirtualWorld) -> tuple[VirtualNode, Connection, VirtualNode, Connection]:
    a, b = world.node("a"), world.node("b")
    [listener] = await b.network.listen("b", 9092)
    client = await a.network.connect("b", 9092)
    return a, client, b, await listener.accept()


class Receiver:
    """Records the received bytes, with their times."""

    def __init__(self, world: VirtualWorld, connection: Connection) -> None:
        self.clock = world.clock
        self.connection = connection
        self.came: list[tuple[bytes, float]] = []
        self.end: str | None = None

    async def run(self) -> None:
        buffer = memoryview(bytearray(1 << 20))
        try:
            while got := await self.connection.receive_into(buffer):
                self.came.append((bytes(buffer[:got]), self.clock.monotonic()))
            self.end = "end"
        except ConnectionLost:
            self.end = "lost"


async def test_bytes_arrive_delayed_and_in_order(world: VirtualWorld, clock: VirtualClock) -> None:
    _, client, _, server = await connected(world)
    world.wires.set_delay(0.5, 2.0)
    receiver = Receiver(world, server)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(receiver.run)
        for n in range(20):
            await client.send([b"%d" % (n % 10)])
        await clock.run_for(0.4)
        assert receiver.came == []
        await clock.run_for(2)
        nursery.cancel_scope.cancel()
    assert b"".join(data for data, _ in receiver.came) == b"01234567890123456789"
    assert all(0.5 <= at <= 2.0 for _, at in receiver.came)


async def test_partition_delays_bytes_without_loss(
    world: VirtualWorld, clock: VirtualClock
) -> None:
    _, client, _, server = await connected(world)
    receiver = Receiver(world, server)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(receiver.run)
        await client.send([b"before"])
        await clock.run_for(1)
        world.wires.partition("a", "b")
        await client.send([b"during"])
        await client.aclose()
        await clock.run_for(100)
        assert receiver.came == [(b"before", 0.0)]
        assert receiver.end is None
        world.wires.heal()
        await clock.run_for(1)
    assert receiver.came == [(b"before", 0.0), (b"during", 101.0)]
    assert receiver.end == "end"


async def test_connect_waits_for_the_end_of_a_partition(
    world: VirtualWorld, clock: VirtualClock
) -> None:
    a, b = world.node("a"), world.node("b")
    [listener] = await b.network.listen("", 9092)
    world.wires.partition("a", "b")
    with trio.move_on_after(30) as scope:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(clock.run_for, 40)
            await a.network.connect("b", 9092)
    assert scope.cancelled_caught
    async with trio.open_nursery() as nursery:
        nursery.start_soon(a.network.connect, "b", 9092)
        await clock.run_for(5)
        world.wires.heal()
        connection = await listener.accept()
    assert connection.peer.host == "a"


async def test_sender_waits_for_a_slow_receiver(world: VirtualWorld, clock: VirtualClock) -> None:
    _, client, _, server = await connected(world)
    sent = trio.Event()

    async def send() -> None:
        await client.send([bytes(2 * WINDOW_BYTES)])
        sent.set()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(send)
        await clock.run_for(1)
        assert not sent.is_set()
        nursery.start_soon(Receiver(world, server).run)
        await clock.run_for(1)
        assert sent.is_set()
        nursery.cancel_scope.cancel()


async def test_cut_resets_connections_and_allows_new_ones(
    world: VirtualWorld, clock: VirtualClock
) -> None:
    a, client, b, server = await connected(world)
    receiver = Receiver(world, server)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(receiver.run)
        await clock.run_for(1)
        world.wires.cut("a", "b")
        with pytest.raises(ConnectionLost):
            await client.send([b"x"])
        with pytest.raises(ConnectionLost):
            await client.receive_into(memoryview(bytearray(1)))
    assert receiver.end == "lost"
    [listener] = await b.network.listen("b", 9093)
    await a.network.connect("b", 9093)
    await listener.accept()


async def test_crashed_host_resets_its_peers_and_has_no_effect(
    world: VirtualWorld, clock: VirtualClock
) -> None:
    a, client, b, server = await connected(world)
    receiver = Receiver(world, client)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(receiver.run)
        await clock.run_for(1)
        b.power.cut()
        await clock.run_for(1)
    assert receiver.end == "lost"
    with pytest.raises(ConnectionLost):
        await a.network.connect("b", 9092)
    for use in (
        lambda: server.send([b"x"]),
        lambda: server.receive_into(memoryview(bytearray(1))),
        server.aclose,
        lambda: b.network.listen("", 0),
        lambda: b.network.connect("a", 1),
    ):
        with pytest.raises(NodeCrashed):
            await use()
    with pytest.raises(NodeCrashed):
        server.abort()


async def test_task_cancelled_after_the_crash_sends_nothing(
    world: VirtualWorld, clock: VirtualClock
) -> None:
    """A simulated crash cuts the power first, and cancels the nursery then."""
    _, client, b, server = await connected(world)
    receiver = Receiver(world, client)
    events: list[str] = []

    async def serve() -> None:
        try:
            await server.receive_into(memoryview(bytearray(1)))
        finally:
            with pytest.raises(NodeCrashed):
                server.abort()
            events.append("could not even abort")

    async with trio.open_nursery() as outer:
        outer.start_soon(receiver.run)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(serve)
            await clock.run_for(1)
            b.power.cut()
            nursery.cancel_scope.cancel()
        await clock.run_for(1)
    assert events == ["could not even abort"]
    assert receiver.came == []


async def test_silenced_host_does_not_respond_until_its_restart(
    world: VirtualWorld, clock: VirtualClock
) -> None:
    a, client, b, _ = await connected(world)
    idle = await a.network.connect("b", 9092)
    waiting, idling = Receiver(world, client), Receiver(world, idle)
    connecting: list[str] = []

    async def connect() -> None:
        await a.network.connect("b", 9092)
        connecting.append("connected")

    async with trio.open_nursery() as nursery:
        nursery.start_soon(waiting.run)
        nursery.start_soon(idling.run)
        world.wires.silence("b")
        b.power.cut()
        nursery.start_soon(connect)
        await client.send([b"request"])
        await clock.run_for(60)
        assert (waiting.end, idling.end, connecting) == (None, None, [])
        [_] = await world.node("b").network.listen("b", 9092)
        world.wires.unsilence("b")
        await clock.run_for(1)
        assert (waiting.end, idling.end, connecting) == ("lost", None, ["connected"])
        with pytest.raises(ConnectionLost):
            await idle.send([b"another request"])
        nursery.cancel_scope.cancel()


async def test_crash_after_unsilence_resets_peers(world: VirtualWorld, clock: VirtualClock) -> None:
    world.wires.silence("b")
    world.wires.unsilence("b")
    _, client, b, _ = await connected(world)
    receiver = Receiver(world, client)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(receiver.run)
        b.power.cut()
    assert receiver.end == "lost"


async def test_overlapping_network_faults_end_separately(
    world: VirtualWorld, clock: VirtualClock
) -> None:
    _, client, _, server = await connected(world)
    receiver = Receiver(world, server)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(receiver.run)
        wholly = world.wires.partition("a", "b")
        back = world.wires.partition("b", "a", one_way=True)
        slow = world.wires.slow("a", "b", 2.0, 2.0)
        await client.send([b"held back"])
        await clock.run_for(3)
        world.wires.heal(back)
        await clock.run_for(1)
        assert receiver.came == []
        world.wires.heal(wholly)
        await clock.run_for(1)
        assert receiver.came == [(b"held back", 4.0)]
        await client.send([b"slow"])
        await clock.run_for(3)
        assert receiver.came[1:] == [(b"slow", 7.0)]
        assert (wholly.had_effect, back.had_effect, slow.had_effect) == (True, False, True)
        world.wires.heal(slow)
        await client.send([b"quick"])
        await clock.run_for(1)
        assert receiver.came[2:] == [(b"quick", 8.0)]
        nursery.cancel_scope.cancel()
