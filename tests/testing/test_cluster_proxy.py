"""Latency, rate limits, partitions and the end of connections through a cluster's proxies."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import dataclass
from functools import partial

import pytest
import trio
import trio.testing
from trio.testing import MockClock

from odradek.testing.cluster.connection_owner import (
    find_connection_owner,
    find_owner_with_lsof,
)
from odradek.testing.cluster.links import CLIENTS, LinkDirection, LinkEnd, Links, LinkShape
from odradek.testing.cluster.proxy import Proxy, join


@dataclass
class Joined:
    """Two streams with a proxied connection between them; `there` is from `left` to `right`."""

    left: trio.abc.HalfCloseableStream
    right: trio.abc.HalfCloseableStream
    there: LinkDirection
    back: LinkDirection


@pytest.fixture
def clock(autojump_clock: MockClock) -> MockClock:
    """Virtual time that advances whenever all tasks are blocked."""
    return autojump_clock


@pytest.fixture
async def joined(nursery: trio.Nursery) -> AsyncIterator[Joined]:
    left, client = trio.testing.memory_stream_pair()
    server, right = trio.testing.memory_stream_pair()
    made = Joined(left, right, LinkDirection(), LinkDirection())
    nursery.start_soon(join, client, server, made.there, made.back)
    yield made
    nursery.cancel_scope.cancel()


async def receive(stream: trio.abc.ReceiveStream, size: int) -> bytes:
    found = bytearray()
    while len(found) < size:
        piece = await stream.receive_some()
        assert piece, f"the end after {len(found)} of {size} bytes"
        found += piece
    return bytes(found)


async def nothing_comes(stream: trio.abc.ReceiveStream) -> None:
    with trio.move_on_after(60) as scope:
        piece = await stream.receive_some()
        raise AssertionError(f"{piece!r} came")
    assert scope.cancelled_caught


async def test_proxy_forwards_bytes_and_ends_in_both_directions(
    joined: Joined, clock: MockClock
) -> None:
    await joined.left.send_all(b"question")
    await joined.left.send_eof()
    assert await receive(joined.right, 8) == b"question"
    assert await joined.right.receive_some() == b""
    await joined.right.send_all(b"answer")
    await joined.right.send_eof()
    assert await receive(joined.left, 6) == b"answer"
    assert await joined.left.receive_some() == b""


async def test_latency_does_not_reduce_throughput(joined: Joined, clock: MockClock) -> None:
    joined.there.shape = LinkShape(delay_s=0.1)
    start = trio.current_time()
    for _ in range(20):
        await joined.left.send_all(b"piece")
    await receive(joined.right, 100)
    assert trio.current_time() - start == pytest.approx(0.1)
    await joined.right.send_all(b"back")
    await receive(joined.left, 4)
    assert trio.current_time() - start == pytest.approx(0.1), "the way back is not delayed"


async def test_connections_share_the_rate_limit_of_a_direction(clock: MockClock) -> None:
    shared, back = LinkDirection(), LinkDirection()
    shared.shape = LinkShape(bytes_per_s=10_000)
    async with trio.open_nursery() as nursery:
        ends = []
        for _ in range(2):
            left, client = trio.testing.memory_stream_pair()
            server, right = trio.testing.memory_stream_pair()
            nursery.start_soon(join, client, server, shared, back)
            ends.append(right)
            await left.send_all(bytes(20_000))
        start = trio.current_time()
        async with trio.open_nursery() as receiving:
            for right in ends:
                receiving.start_soon(receive, right, 20_000)
        assert trio.current_time() - start == pytest.approx(4, abs=0.2)
        nursery.cancel_scope.cancel()


async def test_bytes_held_by_a_partition_arrive_after_heal(
    joined: Joined, clock: MockClock
) -> None:
    joined.there.close()
    await joined.left.send_all(b"late")
    await joined.left.send_eof()
    await nothing_comes(joined.right)
    await joined.right.send_all(b"one way")
    assert await receive(joined.left, 7) == b"one way"
    joined.there.open()
    assert await receive(joined.right, 4) == b"late"
    assert await joined.right.receive_some() == b""


async def test_partition_hides_a_closed_connection(joined: Joined, clock: MockClock) -> None:
    joined.there.close()
    joined.back.close()
    await trio.aclose_forcefully(joined.right)
    await nothing_comes(joined.left)
    joined.there.open()
    await nothing_comes(joined.left)
    joined.back.open()
    assert await joined.left.receive_some() == b""


async def test_delayed_bytes_wait_for_the_end_of_a_partition(
    joined: Joined, clock: MockClock
) -> None:
    joined.there.shape = LinkShape(delay_s=1)
    await joined.left.send_all(b"under way")
    await trio.sleep(0.5)
    joined.there.close()
    await nothing_comes(joined.right)
    joined.there.open()
    assert await receive(joined.right, 9) == b"under way"


def test_partition_blocks_only_nodes_by_default() -> None:
    links = Links([1, 2, 3])
    links.partition([1])
    assert closed(links) == {(1, 2), (2, 1), (1, 3), (3, 1)}
    links.heal()
    links.partition([2], [CLIENTS])
    assert closed(links) == {(2, CLIENTS), (CLIENTS, 2)}
    links.heal()
    links.partition([1, 2], one_way=True)
    assert closed(links) == {(1, 3), (2, 3)}
    links.heal()
    assert closed(links) == set()


def closed(links: Links) -> set[tuple[LinkEnd, LinkEnd]]:
    ends: list[LinkEnd] = [*links.nodes, CLIENTS]
    pairs = [(source, to) for source in ends for to in ends]
    return {pair for pair in pairs if not links.direction(*pair).is_open}


def test_link_shape_applies_between_different_nodes() -> None:
    links, slow = Links([1, 2]), LinkShape(delay_s=0.1)
    links.shape(slow)
    assert links.direction(1, 2).shape == links.direction(2, 1).shape == slow
    for pair in ((1, 1), (1, CLIENTS), (CLIENTS, 1)):
        assert links.direction(*pair).shape == LinkShape()


SPEAKER = """
import socket, sys
with socket.create_connection(("127.0.0.1", int(sys.argv[1]))) as s:
    s.sendall(b"hello")
    sys.stdout.write(s.recv(100).decode())
"""


NEEDS_LSOF = pytest.mark.skipif(shutil.which("lsof") is None, reason="no lsof")


@pytest.mark.parametrize(
    "find", [find_connection_owner, pytest.param(find_owner_with_lsof, marks=NEEDS_LSOF)]
)
async def test_connection_owner_is_found_by_its_ports(
    nursery: trio.Nursery, find: Callable[[int, int, Mapping[int, int]], int | None]
) -> None:
    """The kernel distinguishes two connecting processes: only the node is known, and partitioned."""
    links, pids, port = Links([1, 2]), {}, 0

    async def echo(stream: trio.SocketStream) -> None:
        async for piece in stream:
            await stream.send_all(piece)

    def who(peer_port: int) -> LinkEnd:
        found = find(peer_port, port, pids)
        return CLIENTS if found is None else found

    [listener] = await nursery.start(partial(trio.serve_tcp, echo, 0, host="127.0.0.1"))
    proxy = Proxy(2, listener.socket.getsockname()[:2], links, who)
    port = await nursery.start(proxy.serve, "127.0.0.1", 0)
    links.partition([1])

    def speaker() -> subprocess.Popen[str]:
        return subprocess.Popen(
            [sys.executable, "-c", SPEAKER, str(port)], stdout=subprocess.PIPE, text=True
        )

    node = speaker()
    pids[1] = node.pid
    with speaker() as client:
        words = await trio.to_thread.run_sync(client.communicate)
        assert words[0] == "hello"
    assert node.poll() is None, "the node's bytes should be held back"
    links.heal()
    assert (await trio.to_thread.run_sync(node.communicate))[0] == "hello"
    nursery.cancel_scope.cancel()
