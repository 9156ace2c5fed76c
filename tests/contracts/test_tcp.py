"""Behavior of TCP alone: address families, half-closed peers, resets, and descriptor exhaustion."""

from __future__ import annotations

import logging
import socket

import pytest
import trio
import trio.testing

from odradek.seams import tcp
from odradek.seams.network import (
    Address,
    ConnectionLost,
    ConnectionRefused,
    Selector,
    SocketOptions,
)
from odradek.seams.selector import TURN_BYTES, TURN_CONNECTIONS
from odradek.seams.tcp import TcpConnection, TcpNetwork
from tests.contracts.descriptors import descriptors_left
from tests.contracts.two_hosts import has_ipv6, receive

needs_ipv6 = pytest.mark.skipif(not has_ipv6(), reason="no IPv6 on this machine")


async def accepted() -> tuple[socket.socket, TcpConnection]:
    """Return a peer that is a plain socket, and the accepted connection."""
    [listener] = await TcpNetwork().listen("127.0.0.1", 0)
    peer = socket.create_connection(("127.0.0.1", listener.address.port))
    connection = await listener.accept()
    await listener.aclose()
    assert isinstance(connection, TcpConnection)
    return peer, connection


@needs_ipv6
async def test_all_addresses_have_both_families_on_one_port() -> None:
    listeners = await TcpNetwork().listen("", 0)
    port = listeners[0].address.port
    assert {listener.address for listener in listeners} == {
        Address("0.0.0.0", port),
        Address("::", port),
    }
    for host in ("127.0.0.1", "::1"):
        client = await TcpNetwork().connect(host, port)
        assert client.peer == Address(host, port)
        await client.aclose()
    for listener in listeners:
        await listener.aclose()


@needs_ipv6
async def test_free_port_is_free_in_both_families() -> None:
    """Both families get the same port, whichever the kernel selects."""
    with socket.socket(socket.AF_INET6) as other:
        other.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        other.bind(("::", 0))
        with pytest.raises(OSError, match="in use"):
            await TcpNetwork().listen("", other.getsockname()[1])
        listeners = await TcpNetwork().listen("", 0)
    assert len({listener.address.port for listener in listeners}) == 1
    for listener in listeners:
        await listener.aclose()


async def test_listen_on_foreign_address_fails() -> None:
    with pytest.raises(OSError):
        await TcpNetwork().listen("192.0.2.1", 0)


@pytest.mark.parametrize("event", [tcp._HALF_CLOSED, None])
async def test_half_closed_peer_is_hung_up_with_and_without_the_event_of_linux(
    monkeypatch: pytest.MonkeyPatch, event: int | None
) -> None:
    monkeypatch.setattr(tcp, "_HALF_CLOSED", event)
    peer, connection = await accepted()
    with peer:
        assert not connection.is_hung_up
        peer.shutdown(socket.SHUT_WR)
        await connection.wait_readable()
        assert connection.is_hung_up
    await connection.aclose()


async def test_half_closed_peer_gets_its_response() -> None:
    """`printf … | nc` closes its sending half and waits for the response."""
    peer, connection = await accepted()
    with peer:
        peer.sendall(b"question")
        peer.shutdown(socket.SHUT_WR)
        assert await receive(connection, 100) == b"question"
        await connection.send([b"answer"])
        await connection.aclose()
        assert peer.recv(100) == b"answer"
        assert peer.recv(100) == b""


async def test_abort_resets_the_connection() -> None:
    peer, connection = await accepted()
    with peer:
        await connection.send([b"half an ans"])
        connection.abort()
        with pytest.raises(ConnectionResetError):
            b"".join(iter(lambda: peer.recv(100), b""))


async def test_reset_by_peer_raises_connection_lost() -> None:
    peer, connection = await accepted()
    peer.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
    peer.close()
    with pytest.raises(ConnectionLost, match="reset"):
        await connection.receive_into(memoryview(bytearray(1)))


async def test_connect_without_descriptors_is_not_refused() -> None:
    with descriptors_left(0), pytest.raises(ConnectionLost) as lost:
        await TcpNetwork().connect("127.0.0.1", 1)
    assert not isinstance(lost.value, ConnectionRefused)


@needs_ipv6
@pytest.mark.parametrize("host", ["a..b", 70 * "a", "\udcff"], ids=["empty", "long", "no text"])
async def test_invalid_host_name_does_not_resolve(host: str) -> None:
    with pytest.raises(ConnectionLost, match="no host is named so"):
        await TcpNetwork().connect(host, 9092)
    with pytest.raises(OSError, match=r"no host is named so|Name or service not known"):
        await TcpNetwork().listen(host, 0)


async def test_connect_is_refused_by_every_address_of_a_host() -> None:
    [listener, *others] = await TcpNetwork().listen("localhost", 0)
    for each in (listener, *others):
        await each.aclose()
    with pytest.raises(ConnectionRefused):
        await TcpNetwork().connect("localhost", listener.address.port)


async def test_accept_continues_after_descriptor_exhaustion(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.WARNING)
    [listener] = await TcpNetwork().listen("127.0.0.1", 0)
    peers = [socket.create_connection(("127.0.0.1", listener.address.port)) for _ in range(3)]
    taken: list[object] = []

    async def accept_all() -> None:
        while len(taken) < len(peers):
            taken.append(await listener.accept())

    async with trio.open_nursery() as nursery:
        with descriptors_left(0):
            nursery.start_soon(accept_all)
            with trio.move_on_after(0.35):
                await trio.sleep_forever()
            assert taken == []
            assert len(caplog.records) == 1
            assert "cannot accept" in caplog.text
    assert len(taken) == 3
    for peer in peers:
        peer.close()
    await listener.aclose()


async def test_accepted_connection_has_configured_buffers() -> None:
    options = SocketOptions(send_buffer_bytes=50_000, receive_buffer_bytes=70_000)
    [listener] = await TcpNetwork().listen("127.0.0.1", 0, options)
    with socket.create_connection(("127.0.0.1", listener.address.port)):
        connection = await listener.accept()
        assert isinstance(connection, TcpConnection)
        for option, wanted in ((socket.SO_SNDBUF, 50_000), (socket.SO_RCVBUF, 70_000)):
            size = connection._sock.getsockopt(socket.SOL_SOCKET, option)
            assert size == 2 * wanted  # Linux doubles the value for its bookkeeping
        connection.abort()
    await listener.aclose()


@pytest.mark.skipif(not hasattr(socket, "TCP_CONGESTION"), reason="Linux has it")
async def test_loopback_connection_uses_reno_congestion_control() -> None:
    """BBR, which the system may have as default, would pace by a timer."""
    [listener] = await TcpNetwork().listen("127.0.0.1", 0)
    with socket.create_connection(("127.0.0.1", listener.address.port)):
        connection = await listener.accept()
        assert isinstance(connection, TcpConnection)
        chosen = connection._sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, 16)
        assert chosen.rstrip(b"\0") == b"reno"
        connection.abort()
    await listener.aclose()


async def test_peer_that_resets_before_accept_does_not_block_the_next() -> None:
    """The reset connection is accepted and lost, or not accepted; the next one is served."""
    [listener] = await TcpNetwork().listen("127.0.0.1", 0)
    early = socket.create_connection(("127.0.0.1", listener.address.port))
    early.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
    early.close()
    late = socket.create_connection(("127.0.0.1", listener.address.port))
    late.sendall(b"x")
    while True:
        connection = await listener.accept()
        try:
            assert await receive(connection, 1) == b"x"
            break
        except ConnectionLost:
            continue
    late.close()
    await listener.aclose()


class Noted:
    """A `Receiver` that records its calls."""

    def __init__(self, name: int, story: list[str]) -> None:
        self.name = name
        self.story = story
        self._room = memoryview(bytearray(2 * TURN_BYTES))

    def free_space(self) -> memoryview:
        return self._room

    def take(self, size_bytes: int) -> bool:
        self.story.append(f"{self.name} takes {size_bytes}")
        return True

    def end_turn(self) -> bool:
        self.story.append(f"{self.name} ends")
        return True


async def what_happens(connections: int, size_bytes: int) -> list[str]:
    """Return the calls of receivers whose connections all have this number of bytes before the selector runs."""
    selector, story = TcpNetwork().selector(), list[str]()
    pairs = [await accepted() for _ in range(connections)]
    async with trio.open_nursery() as nursery:
        for number, (peer, connection) in enumerate(pairs):
            nursery.start_soon(selector.receive, connection, Noted(number, story))
            peer.sendall(bytes(size_bytes))
        await trio.testing.wait_all_tasks_blocked()
        nursery.start_soon(selector.run)
        await trio.testing.wait_all_tasks_blocked(0.01)
        nursery.cancel_scope.cancel()
    for peer, connection in pairs:
        peer.close()
        connection.abort()
    return story


async def test_readable_connections_receive_before_the_first_turn_ends() -> None:
    story = await what_happens(2 * TURN_CONNECTIONS, 1)
    first = [line.split()[0] for line in story[:TURN_CONNECTIONS]]
    assert story[: 2 * TURN_CONNECTIONS] == [
        *(f"{name} takes 1" for name in first),
        *(f"{name} ends" for name in first),
    ]
    assert len(set(story)) == len(story) == 4 * TURN_CONNECTIONS


async def test_connection_with_many_bytes_ends_its_turn_before_others_receive() -> None:
    size_bytes = TURN_BYTES + 1
    story = await what_happens(3, size_bytes)
    order = [int(line.split()[0]) for line in story[::2]]
    assert sorted(order) == [0, 1, 2]
    assert story == [
        line for name in order for line in (f"{name} takes {size_bytes}", f"{name} ends")
    ]


async def test_reused_descriptor_number_does_not_confuse_the_selector() -> None:
    """The descriptor of a connection that was closed during a turn is soon used by another connection."""
    selector, story = TcpNetwork().selector(), list[str]()
    peer, connection = await accepted()
    with trio.fail_after(20):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(selector.run)
            for number in range(20):
                async with trio.open_nursery() as receiving:
                    receiving.start_soon(_until_lost, selector, connection, Noted(number, story))
                    await trio.testing.wait_all_tasks_blocked()
                    peer.close()
                    connection.abort()
                    peer, connection = await accepted()
            nursery.cancel_scope.cancel()
    assert not story
    peer.close()
    connection.abort()


async def test_receive_after_end_of_selector_raises_connection_lost() -> None:
    selector = TcpNetwork().selector()
    peer, connection = await accepted()
    with trio.fail_after(20):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(selector.run)
            await trio.testing.wait_all_tasks_blocked()
            nursery.cancel_scope.cancel()
        await _until_lost(selector, connection, Noted(1, []))
    peer.close()
    connection.abort()


async def _until_lost(selector: Selector, connection: TcpConnection, receiver: Noted) -> None:
    with pytest.raises(ConnectionLost):
        await selector.receive(connection, receiver)
