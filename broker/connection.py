"""One client's connection: frames in, handlers called, answers out, in the order of the requests.

Requests are handled one at a time, as Kafka does: while one waits (a long poll, a rebalance) the
next stays in the socket, which is the back-pressure. What has been received is handled before the
next wait for bytes, and the answers of `prompt` handlers are sent together; after a budget of
requests or bytes the loop is given to others, and large requests take turns (turnstile.py).

A frame that can't be read, an API or a version that is not served, or a handler that breaks costs
this one connection, and one line in the log.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import TYPE_CHECKING

import trio

from odradek.broker.apis.api_versions import unsupported_version_answer
from odradek.broker.context import RequestContext
from odradek.broker.dispatch import Route, find_route
from odradek.broker.receive_buffer import ReceiveBuffer
from odradek.broker.turnstile import LARGE_BYTES
from odradek.protocol import apis
from odradek.protocol.errors import InvalidFrame
from odradek.protocol.framing import frame_head, read_request_header, response_header
from odradek.seams.files import Buffer, FileSlice
from odradek.seams.network import Connection, ConnectionLost

if TYPE_CHECKING:
    from odradek.broker.node import Broker
    from odradek.broker.server import Endpoint

log = logging.getLogger("odradek.connection")

REQUESTS_BEFORE_YIELD = 64
BYTES_BEFORE_YIELD = 1024 * 1024
UNSENT_BYTES_MAX = 256 * 1024

Parts = Sequence[Buffer | FileSlice]


class ClientConnection:
    def __init__(self, connection: Connection, endpoint: Endpoint, broker: Broker) -> None:
        self._connection = connection
        self._endpoint = endpoint
        self._broker = broker
        self._buffer = ReceiveBuffer(broker.config.get_int("socket.request.max.bytes"))
        self._unsent: list[Buffer | FileSlice] = []
        self._unsent_bytes = 0
        self.waiting_since: float | None = broker.seams.clock.monotonic()
        """Monotonic seconds since when the client owes us bytes; None while it is being served."""
        self._sending = False
        self._stalled_since: float | None = None
        self._stalled_at_bytes = 0

    async def talk(self) -> None:
        """Serve the client until it leaves, misbehaves or the broker stops."""
        try:
            await self._serve()
        except ConnectionLost:
            pass  # clients come and go
        except (InvalidFrame, OSError) as reason:  # garbage, or a file that can't be sent
            log.warning("closed %s: %s", self._connection.peer, reason)
        except Exception:
            log.exception(
                "closed %s: a request failed in a way that is ours", self._connection.peer
            )
        finally:
            self._drop_unsent()
            self._connection.abort()

    async def _serve(self) -> None:
        clock, buffer = self._broker.seams.clock, self._buffer
        requests = size_bytes = 0
        while True:
            frame_view = buffer.next_frame()
            if frame_view is None:
                await self.flush()
                self.waiting_since = clock.monotonic()
                received = await self._connection.receive_into(buffer.room())
                if received == 0:
                    return
                self.waiting_since = None
                buffer.received(received)
                continue
            if len(frame_view) >= LARGE_BYTES:
                await self._broker.turnstile.pass_through()
                requests = size_bytes = 0
            requests += 1
            size_bytes += len(frame_view)
            await self._answer(frame_view)
            if requests >= REQUESTS_BEFORE_YIELD or size_bytes >= BYTES_BEFORE_YIELD:
                requests = size_bytes = 0
                await trio.lowlevel.checkpoint()

    async def _answer(self, frame_view: memoryview) -> None:
        header = read_request_header(frame_view)
        api = header.api
        route = find_route(api.key)
        if route is None:
            raise InvalidFrame(f"{api.title} is not served here")
        if not api.serves(header.api_version):
            await self._answer_unsupported(api, header.api_version, header.correlation_id)
            return
        ctx = RequestContext(
            self._broker,
            api,
            header.api_version,
            header.correlation_id,
            header.client_id,
            self._endpoint,
            self._connection.peer,
            self.flush,
            self._broker.authorizer,
        )
        if not route.prompt:
            await self.flush()
        request = route.read(api.key, header.api_version, frame_view, header.body)
        values = await route.handler(request, ctx)
        if values is not None:
            await self._reply(route, ctx, values)

    async def _reply(self, route: Route, ctx: RequestContext, values: object) -> None:
        body = route.write(ctx.api.key, ctx.api_version, values)
        parts: Parts = (body,) if isinstance(body, (bytes, bytearray, memoryview)) else body
        head = response_header(ctx.api, ctx.api_version, ctx.correlation_id)
        head, size_bytes = frame_head(head, parts)
        self._unsent.append(head)
        self._unsent.extend(parts)
        self._unsent_bytes += size_bytes
        if self._unsent_bytes > UNSENT_BYTES_MAX:
            await self.flush()

    async def _answer_unsupported(self, api: apis.Api, version: int, correlation_id: int) -> None:
        if api is not apis.API_VERSIONS:
            raise InvalidFrame(f"{api.title} has no version {version} here")
        answer = unsupported_version_answer(self._broker)
        head, _ = frame_head(response_header(api, 0, correlation_id), [answer])
        self._unsent.extend((head, answer))
        await self.flush()

    async def flush(self) -> None:
        """Send the answers that were held back."""
        if not self._unsent:
            return
        parts, self._unsent, self._unsent_bytes = self._unsent, [], 0
        self._sending = True
        try:
            await self._connection.send(parts)
        finally:
            self._sending = False
            self._stalled_since = None
            unpin(parts)

    def _drop_unsent(self) -> None:
        parts, self._unsent = self._unsent, []
        unpin(parts)

    # For the server that owns the connection

    def idle_seconds(self, now: float) -> float:
        """For how long the client has neither sent what it owes nor read what it is sent.

        Asked again and again: a client that reads is seen to have read since the last time.
        """
        if self.waiting_since is not None and not self._sending:
            return now - self.waiting_since
        if not self._sending:
            return 0.0
        sent_bytes = self._connection.sent_bytes
        if self._stalled_since is None or sent_bytes != self._stalled_at_bytes:
            self._stalled_since, self._stalled_at_bytes = now, sent_bytes
        return now - self._stalled_since

    def abort(self) -> None:
        self._connection.abort()


def unpin(parts: Parts) -> None:
    """Let go of the files whose slices were sent or given up."""
    for part in parts:
        if isinstance(part, FileSlice):
            part.file.unpin()
