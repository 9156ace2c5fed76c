"""A TCP proxy before one listener of a node: what passes it obeys the links of the cluster.

Each connection is two pumps. A pump reads, is told by its `Direction` when the bytes are due, and a
second task hands them over then: reading goes on during the delay, so that latency is not paid with
throughput. While a direction is closed nothing is read from it and nothing handed over, not even the
end of a stream or a reset: the other side sees silence, as when packets are dropped.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from contextlib import suppress

import trio
from trio.abc import HalfCloseableStream

from odradek.testing.cluster.links import Direction, End, Links

READ_BYTES = 64 << 10
PIECES_MAX = 64
"""Pieces under way in one direction of a connection; then its sender has to wait."""

_GONE = (trio.BrokenResourceError, trio.ClosedResourceError)


class Proxy:
    """Forwards connections to `target` = (host, port), the listener of node `node`.

    `who(port)` says which end opened the connection that comes from that port of this machine.
    """

    def __init__(
        self, node: int, target: tuple[str, int], links: Links, who: Callable[[int], End]
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
        """Listen at `host`:`port` (0: a free one) until cancelled; reports the port."""
        listeners = await trio.open_tcp_listeners(port, host=host)
        task_status.started(listeners[0].socket.getsockname()[1])
        await trio.serve_listeners(self._forward, listeners)

    async def _forward(self, client: trio.SocketStream) -> None:
        """One connection, from its opening to its end on both sides."""
        try:
            source = self._who(client.socket.getpeername()[1])
        except OSError:  # gone already
            await trio.aclose_forcefully(client)
            return
        there = self._links.direction(source, self._node)
        back = self._links.direction(self._node, source)
        async with client:
            await there.wait_open()
            await back.wait_open()
            try:
                server = await trio.open_tcp_stream(*self._target, happy_eyeballs_delay=math.inf)
            except OSError:  # nobody listens: closing says so, a moment later than a refusal would
                return
            async with server:
                await join(client, server, there, back)


async def join(
    client: HalfCloseableStream, server: HalfCloseableStream, there: Direction, back: Direction
) -> None:
    """Pump both ways until both have ended, or one side is broken; then both are closed."""
    try:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(_pump, client, server, there)
            nursery.start_soon(_pump, server, client, back)
    except* _GONE:
        pass  # reset by one side
    await there.wait_open()  # the news of it travels the same way
    await back.wait_open()
    await trio.aclose_forcefully(client)
    await trio.aclose_forcefully(server)


async def _pump(
    source: HalfCloseableStream, sink: HalfCloseableStream, direction: Direction
) -> None:
    """All that `source` sends, to `sink`, as the direction lets it pass; then the end."""
    pieces_in, pieces_out = trio.open_memory_channel[tuple[float, bytes]](PIECES_MAX)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(_hand_over, pieces_out, sink, direction)
        async with pieces_in:
            while True:
                await direction.wait_open()
                await trio.sleep_until(direction.busy_until(trio.current_time()))
                piece = await source.receive_some(direction.piece_bytes(READ_BYTES))
                await pieces_in.send(
                    (direction.take(len(piece), trio.current_time()), bytes(piece))
                )
                if not piece:
                    return


async def _hand_over(
    pieces: trio.MemoryReceiveChannel[tuple[float, bytes]],
    sink: HalfCloseableStream,
    direction: Direction,
) -> None:
    async for due_at, piece in pieces:
        await trio.sleep_until(due_at)
        await direction.wait_open()
        if piece:
            await sink.send_all(piece)
        else:
            with suppress(*_GONE):  # it has gone before: that is its own news
                await sink.send_eof()
