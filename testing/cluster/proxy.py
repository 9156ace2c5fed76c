"""A TCP proxy in front of one listener of a node; it applies the cluster's links to the traffic.

Each connection has two pumps, one for each direction. A pump reads bytes and gets from its
`LinkDirection` when they are due; a second task writes them then. Reading continues during the delay,
so that latency does not reduce throughput. While a direction is closed, nothing is read or written
in it, not even the end of a stream or a reset: the peer sees no traffic, as when packets are
dropped.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from contextlib import suppress

import trio
from trio.abc import HalfCloseableStream

from odradek.testing.cluster.links import LinkDirection, LinkEnd, Links

READ_BYTES = 64 << 10
PIECES_MAX = 64
"""The maximum number of chunks in flight in one direction of a connection; then its sender waits.
"""

_GONE = (trio.BrokenResourceError, trio.ClosedResourceError)


class Proxy:
    """Forwards connections to `target` = (host, port), the listener of node `node`.

    `who(port)` returns the end that opened the connection from that local port.
    """

    def __init__(
        self, node: int, target: tuple[str, int], links: Links, who: Callable[[int], LinkEnd]
    ) -> None:
        self._node = node
        self._target = target
        self._links = links
        self._who = who

    async def serve(
        self,
        host: str,
        port: int,
        *,
        task_status: trio.TaskStatus[int] = trio.TASK_STATUS_IGNORED,
    ) -> None:
        """Listen on `host`:`port` (0: any free port) until cancelled; reports the port."""
        listeners = await trio.open_tcp_listeners(port, host=host)
        task_status.started(listeners[0].socket.getsockname()[1])
        await trio.serve_listeners(self._forward, listeners)

    async def _forward(self, client: trio.SocketStream) -> None:
        """Forward one connection until both directions have ended."""
        try:
            source = self._who(client.socket.getpeername()[1])
        except OSError:  # disconnected already
            await trio.aclose_forcefully(client)
            return
        there = self._links.direction(source, self._node)
        back = self._links.direction(self._node, source)
        async with client:
            await there.wait_open()
            await back.wait_open()
            try:
                server = await trio.open_tcp_stream(*self._target, happy_eyeballs_delay=math.inf)
            except OSError:  # connection refused: the proxy can only close, slightly later
                return
            async with server:
                await join(client, server, there, back)


async def join(
    client: HalfCloseableStream,
    server: HalfCloseableStream,
    there: LinkDirection,
    back: LinkDirection,
) -> None:
    """Forward in both directions until both have ended or one connection breaks; then close both."""
    try:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(_pump, client, server, there)
            nursery.start_soon(_pump, server, client, back)
    except* _GONE:
        pass  # reset by one of the peers
    await there.wait_open()  # the reset travels through the same links
    await back.wait_open()
    await trio.aclose_forcefully(client)
    await trio.aclose_forcefully(server)


async def _pump(
    source: HalfCloseableStream, sink: HalfCloseableStream, direction: LinkDirection
) -> None:
    """Forward everything from `source` to `sink`, as `direction` permits, and then the end."""
    pieces_in, pieces_out = trio.open_memory_channel[tuple[float, bytes]](PIECES_MAX)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(_hand_over, pieces_out, sink, direction)
        async with pieces_in:
            while True:
                await direction.wait_open()
                await trio.sleep_until(direction.busy_until(trio.current_time()))
                piece = await source.receive_some(direction.read_bytes_max(READ_BYTES))
                await pieces_in.send(
                    (direction.take(len(piece), trio.current_time()), bytes(piece))
                )
                if not piece:
                    return


async def _hand_over(
    pieces: trio.MemoryReceiveChannel[tuple[float, bytes]],
    sink: HalfCloseableStream,
    direction: LinkDirection,
) -> None:
    async for due_at, piece in pieces:
        await trio.sleep_until(due_at)
        await direction.wait_open()
        if piece:
            await sink.send_all(piece)
        else:
            with suppress(*_GONE):  # closed before: the other pump handles it
                await sink.send_eof()
