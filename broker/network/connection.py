"""One client's connection: frames in, handlers called, answers out, in the order of the requests.

Requests are handled one at a time, as Kafka does: while one waits (a long poll, a rebalance) the
next stays in the socket, which is the back-pressure. What has been received is handled before the
next wait for bytes, and the answers of `batches_responses` handlers are sent together; after a budget of
requests or bytes the loop is given to others, and large requests take turns (large_requests.py). Fetches
that were woken meanwhile are answered before these answers are sent (fetch_wait.py).

A request whose handler has it done at once needs no task: where the last one was such, the connection
waits with all others that are alike (seams/selector.py), and its task sleeps until one has to wait.

A frame that can't be read, an API or a version that is not served, or a handler that breaks costs
this one connection, and one line in the log; the answers of the requests before it are still sent.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any, cast

import trio

from odradek.broker.apis.api_versions import unsupported_version_response
from odradek.broker.network.large_requests import LARGE_BYTES
from odradek.broker.network.receive_buffer import ReceiveBuffer
from odradek.broker.requests.context import RequestContext
from odradek.broker.requests.dispatch import find_controller_route, find_route
from odradek.broker.requests.route import WOULD_BLOCK
from odradek.protocol import apis
from odradek.protocol.errors import InvalidFrame
from odradek.protocol.framing import parts_bytes, read_request_header, respond_head
from odradek.seams.files import Buffer, FileSlice
from odradek.seams.network import Address, Connection, ConnectionLost, Selector

if TYPE_CHECKING:
    from odradek.broker.network.listeners import Endpoint
    from odradek.broker.quotas.client_quotas import ClientQuotas
    from odradek.broker.requests.route import Route
    from odradek.broker.services import Services

log = logging.getLogger("odradek.connection")

REQUESTS_A_TURN = 64
BYTES_A_TURN = 1024 * 1024
UNSENT_BYTES_MAX = 256 * 1024
JOINED_BYTES_MAX = 4096
"""A body of so much is copied behind its head, and answers behind one another: fewer buffers to send."""
MEMORY_KEPT_SECONDS = 10.0
"""How long the memory of requests is kept for the next ones."""

Parts = Sequence[Buffer | FileSlice]


class ClientConnection:
    def __init__(
        self, connection: Connection, endpoint: Endpoint, services: Services, selector: Selector
    ) -> None:
        self._connection = connection
        self.endpoint = endpoint
        self._services = services
        self._selector = selector
        self._due_fetches = services.completable_fetches
        self._find_route = find_controller_route if endpoint.of_controller else find_route
        self._buffer = ReceiveBuffer(services.config.get_int("socket.request.max.bytes"))
        self._rest: Awaitable[object] | None = None
        """What the task has to await before the next request: an answer that takes a wait."""
        self._needs_no_task = False
        """The last request was answered as it came: so will be the next, mostly."""
        self._is_over = False
        self._turn_requests = self._turn_bytes = 0
        """Answered in this turn, which a wait in between does not end."""
        self._unsent: list[Buffer | FileSlice] = []
        self._unsent_bytes = 0
        self.waiting_since: float | None = services.seams.clock.monotonic()
        """Monotonic seconds since when the client owes us bytes; None while it is being served."""
        self._gave_back_since: float | None = None
        """The time from which on the client was waited for when its memory was given back."""
        self._is_asleep = False
        """The task waits for the next request, which the client sends once it has the answer to this one."""
        self._sending = False
        self._hung_up_since: float | None = None
        """The time at which it was first seen that the client has gone while it is being served."""
        self._stalled_since: float | None = None
        self._stalled_at_bytes = 0

    async def talk(self) -> None:
        """Serve the client until it leaves, misbehaves or the broker stops."""
        try:
            await self._serve()
        except ConnectionLost:
            pass  # clients come and go
        except OSError as reason:  # a file that can't be sent
            log.warning("closed %s: %s", self._connection.peer, reason)
        except InvalidFrame as reason:
            log.warning("closed %s: %s", self._connection.peer, reason)
            await self._send_the_last()
        except Exception:
            log.exception(
                "closed %s: a request failed in a way that is ours", self._connection.peer
            )
            await self._send_the_last()
        finally:
            self._drop_unsent()
            await self._connection.aclose()

    async def _send_the_last(self) -> None:
        """The answers that were held back belong to requests that were carried out."""
        with suppress(ConnectionLost, OSError):
            await self.flush()

    async def _serve(self) -> None:
        """Each round waits once: for a request to be answered, or for the next ones to come."""
        while not self._is_over:
            rest, self._rest = self._rest, None
            if rest is not None:
                await rest
                self._rest = self._respond_received()
                continue
            if not self.end_turn():
                await self.flush()
                self.waiting_since = self._services.seams.clock.monotonic()
            if self._needs_no_task:
                await self._selector.receive(self._connection, self)
            else:
                self.take(await self._connection.receive_into(self._buffer.room()))

    # For the selector, while requests are answered as they come; and for this connection's own task

    def room(self) -> memoryview:
        return self._buffer.room()

    def take(self, size_bytes: int) -> bool:
        """Answer what was received; False where the rest is for the task. Fetches that this wakes are
        answered at the end of the turn, or now, where none will follow in this step."""
        self.waiting_since = None
        self._is_over = size_bytes == 0
        self._buffer.received(size_bytes)
        self._due_fetches.has_active_connection = True
        goes_on = False
        try:
            self._rest = self._respond_received()
            goes_on = self._rest is None and not self._is_over
        finally:
            if not goes_on:
                self._due_fetches.respond()
        return goes_on

    def end_turn(self) -> bool:
        """Send the answers that were held back; False where the rest is for the task."""
        self._due_fetches.respond()
        self.waiting_since = self._services.seams.clock.monotonic()
        return not self._unsent or self._send_at_once()

    def _respond_received(self) -> Awaitable[object] | None:
        """Answer the requests that are there, up to one that has to be waited for, or until others are
        to have the loop; what is to be awaited then."""
        while self._turn_requests < REQUESTS_A_TURN and self._turn_bytes < BYTES_A_TURN:
            frame_view = self._buffer.next_frame()
            if frame_view is None:
                return None
            frame_bytes = len(frame_view)
            self._turn_requests += 1
            self._turn_bytes += frame_bytes
            is_large = frame_bytes >= LARGE_BYTES
            rest = self._respond_large(frame_view) if is_large else self._respond(frame_view)
            self._needs_no_task = rest is None
            if rest is not None:
                return rest
        return self._let_others_run()

    async def _respond_large(self, frame_view: memoryview) -> None:
        await self._services.large_requests.wait_turn()
        self._turn_requests, self._turn_bytes = 1, len(frame_view)
        rest = self._respond(frame_view)
        if rest is not None:
            await rest

    async def _let_others_run(self) -> None:
        self._turn_requests = self._turn_bytes = 0
        await trio.lowlevel.checkpoint()

    def _respond(self, frame_view: memoryview) -> Awaitable[None] | None:
        """Answer a request; where that takes a wait, what is to be awaited for it."""
        header = read_request_header(frame_view)
        api, version = header.api, header.api_version
        route = self._find_route(api.key)
        if route is None:
            raise InvalidFrame(f"{api.title} is not served here")
        if not api.min_version <= version <= api.max_version:
            return self._respond_unsupported(api, version, header.correlation_id)
        services = self._services
        ctx = RequestContext(
            services,
            api,
            version,
            header.correlation_id,
            header.client_id,
            self.endpoint,
            self._connection.peer,
            self.flush,
            services.authorizer,
            connection=self,
        )
        request = route.read(api.key, version, frame_view, header.body)
        quotas = services.client_quotas
        if quotas is not None and not self.endpoint.of_controller:
            return self._respond_within_quotas(quotas, route, request, len(frame_view), ctx)
        if route.handler_nowait is None:
            return self._respond_later(route, request, ctx)
        values = route.handler_nowait(request, ctx)
        if values is WOULD_BLOCK:
            return self._respond_later(route, request, ctx)
        if values is not None:
            self._add(api, version, header.correlation_id, route.write(api.key, version, values))
            if self._unsent_bytes > UNSENT_BYTES_MAX:
                return self.flush()
        return None

    async def _respond_later(self, route: Route, request: Any, ctx: RequestContext) -> None:
        if not route.batches_responses:
            await self.flush()
        values = await route.handler(request, ctx)
        if values is None:
            return
        api, version = ctx.api, ctx.api_version
        self._add(api, version, ctx.correlation_id, route.write(api.key, version, values))
        if self._unsent_bytes > UNSENT_BYTES_MAX:
            await self.flush()

    async def _respond_within_quotas(
        self,
        quotas: ClientQuotas,
        route: Route,
        request: Any,
        request_bytes: int,
        ctx: RequestContext,
    ) -> None:
        """Within the quotas of when the request came; there may be none any more when its turn comes."""
        from odradek.broker.quotas.request_throttling import respond_within

        if not route.batches_responses:
            await self.flush()
        body, wait_ms = await respond_within(quotas, route, request, request_bytes, ctx)
        if body is not None:
            self._add(ctx.api, ctx.api_version, ctx.correlation_id, body)
        if wait_ms > 0:
            await self.flush()
            await self._leave_alone(wait_ms / 1000)
        elif self._unsent_bytes > UNSENT_BYTES_MAX:
            await self.flush()

    async def _leave_alone(self, seconds: float) -> None:
        """Read nothing for so long: whether the client is still there is not seen meanwhile. A connection
        may not be idle for longer either."""
        idle_max_seconds = self._services.config.get_int("connections.max.idle.ms") / 1000
        if 0 <= idle_max_seconds < seconds:
            await trio.sleep(idle_max_seconds)
            raise ConnectionLost(f"throttled for {seconds:.0f} s")
        await trio.sleep(seconds)

    # For the fetches of this connection that wait

    def respond_nowait(self, ctx: RequestContext, values: Any) -> None:
        """See `RequestConnection`. What the socket does not take at once, the next flush sends."""
        route = self._find_route(ctx.api.key)
        assert route is not None
        assert not self._unsent, "a handler flushes before it waits"
        version = ctx.api_version
        body = route.write(ctx.api.key, version, values)
        if not isinstance(body, (bytes, bytearray, memoryview)):
            body = b"".join(cast("Sequence[Buffer]", body))
        respond = respond_head(ctx.api, version, ctx.correlation_id, len(body)) + body
        try:
            sent_bytes = self._connection.send_nowait(respond)
        except ConnectionLost:
            sent_bytes = 0  # the flush will tell
        if sent_bytes < len(respond):
            self._unsent.append(memoryview(respond)[sent_bytes:])
            self._unsent_bytes = len(respond) - sent_bytes
            self.wake()
        elif self._is_asleep:
            self.waiting_since = self._services.seams.clock.monotonic()

    async def wait_for_next_request(self) -> None:
        if self._buffer.holds_bytes:
            return
        self._is_asleep = True
        try:
            await self._connection.wait_readable()
        finally:
            self._is_asleep = False

    def wake(self) -> None:
        if self._is_asleep:
            self._connection.interrupt()

    def _add(self, api: apis.Api, version: int, correlation_id: int, body: Buffer | Parts) -> None:
        """Have an answer sent by the next flush; a small one in one piece."""
        if isinstance(body, (bytes, bytearray, memoryview)):
            size_bytes = len(body)
            head = respond_head(api, version, correlation_id, size_bytes)
            if size_bytes <= JOINED_BYTES_MAX:
                self._unsent.append(head + body)
            else:
                self._unsent += (head, body)
        else:
            size_bytes = parts_bytes(body)
            self._unsent.append(respond_head(api, version, correlation_id, size_bytes))
            self._unsent += body
        self._unsent_bytes += size_bytes

    async def _respond_unsupported(self, api: apis.Api, version: int, correlation_id: int) -> None:
        if api is not apis.API_VERSIONS:
            raise InvalidFrame(f"{api.title} has no version {version} here")
        self._add(api, 0, correlation_id, unsupported_version_response())
        await self.flush()

    def _send_at_once(self) -> bool:
        """Send the answers that were held back, where they are small and the connection takes them; what
        it does not take is left."""
        unsent = self._unsent
        if len(unsent) == 1:
            respond = unsent[0]
        elif self._unsent_bytes <= JOINED_BYTES_MAX and not any(map(_is_slice, unsent)):
            respond = b"".join(cast("list[Buffer]", unsent))
        else:
            return False
        if isinstance(respond, FileSlice):
            return False
        sent_bytes = self._connection.send_nowait(respond)
        if sent_bytes < len(respond):
            self._unsent = [memoryview(respond)[sent_bytes:]]
            return False
        self._unsent = []
        self._unsent_bytes = 0
        return True

    async def flush(self) -> None:
        """Send the answers that were held back."""
        if not self._unsent or self._send_at_once():
            return
        parts, self._unsent, self._unsent_bytes = self._unsent, [], 0
        self._sending = True
        try:
            await self._connection.send(parts)
        except OSError as error:
            self._blame_file(error, parts)
            raise
        finally:
            self._sending = False
            self._stalled_since = None
            release_files(parts)

    def _blame_file(self, error: OSError, parts: Parts) -> None:
        """A file could not be read while it was sent: that is its directory's affair too."""
        for part in parts:
            if isinstance(part, FileSlice) and str(part.file.path) == error.filename:
                if self._services.config.is_broker:
                    self._services.logs.report_at(part.file.path, error)
                return

    def _drop_unsent(self) -> None:
        parts, self._unsent = self._unsent, []
        release_files(parts)

    # For the server that owns the connection

    @property
    def peer(self) -> Address:
        return self._connection.peer

    def idle_seconds(self, now: float) -> float:
        """For how long the client has neither sent what it owes nor read what it is sent, or is gone though an
        answer to it is waited for.

        Asked again and again: a client that reads is seen to have read since the last time, and one that
        hangs up to have done so.
        """
        if self.waiting_since is not None and not self._sending:
            return now - self.waiting_since
        if not self._sending:
            return self._hung_up_seconds(now)
        sent_bytes = self._connection.sent_bytes
        if self._stalled_since is None or sent_bytes != self._stalled_at_bytes:
            self._stalled_since, self._stalled_at_bytes = now, sent_bytes
        return now - self._stalled_since

    def _hung_up_seconds(self, now: float) -> float:
        if not self._connection.is_hung_up:
            return 0.0
        if self._hung_up_since is None:
            self._hung_up_since = now
        return now - self._hung_up_since

    def give_memory_back(self, now: float) -> None:
        """Keep no memory for requests where none has come for long."""
        since = self.waiting_since
        if since is None or since == self._gave_back_since or now - since < MEMORY_KEPT_SECONDS:
            return
        self._gave_back_since = since
        self._buffer.give_back()

    def abort(self) -> None:
        self._connection.abort()

    async def aclose(self) -> None:
        await self._connection.aclose()


def _is_slice(part: Buffer | FileSlice) -> bool:
    return isinstance(part, FileSlice)


def release_files(parts: Parts) -> None:
    """Let go of the files whose slices were sent or given up."""
    for part in parts:
        if isinstance(part, FileSlice):
            part.file.unpin()
