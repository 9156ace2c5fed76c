"""Connection of one client: reads frames, calls handlers, and sends the responses in the order of the requests.

Requests are handled one at a time, as in Kafka. While one waits (a long poll, a rebalance) the next stays in
the socket, which limits the client. Only Produce requests to diskless topics overlap: their responses wait for a commit
while the next requests are handled (`respond_when_done`).

Received requests are handled before the next wait for bytes, and responses of `batches_responses` handlers are sent
together. After a number of requests, bytes or ms the event loop runs other connections; this turn, and large requests,
are queued (`BusyConnectionQueue`). Fetches that these requests complete are sent before the responses (purgatory.py).

A request whose handler does not wait needs no task: after such a request the connection waits in the selector
that all connections share (seams/selector.py), and its task sleeps until a handler must wait.

An invalid frame, an unsupported API or version, or a failed handler closes only this connection and is logged;
responses of earlier requests are still sent.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any, cast

import trio

from odradek.broker.network.receive_buffer import ReceiveBuffer
from odradek.broker.requests.context import RequestContext
from odradek.broker.requests.dispatch import (
    find_controller_route,
    find_route,
    unsupported_version_response,
)
from odradek.broker.requests.route import WOULD_BLOCK
from odradek.broker.timers import LARGE_BYTES, RequestSteps
from odradek.protocol import apis
from odradek.protocol.errors import InvalidFrame
from odradek.protocol.framing import parts_bytes, read_request_header, response_head
from odradek.seams.files import Buffer, FileSlice
from odradek.seams.network import Address, Connection, ConnectionLost, Selector
from odradek.seams.values import state_class

if TYPE_CHECKING:
    from odradek.broker.network.listeners import BoundListener
    from odradek.broker.quotas.client_quotas import ClientQuotas
    from odradek.broker.requests.context import DeferredResponse
    from odradek.broker.requests.route import Route
    from odradek.broker.services import Services

log = logging.getLogger("odradek.network")
request_log = logging.getLogger("odradek.request")

REQUESTS_PER_STEP = 64
BYTES_PER_STEP = 1024 * 1024
SECONDS_PER_STEP = 0.002
HANG_UP_CHECK_SECONDS = 1.0
"""Interval of checks whether a client has disconnected while its request waits for memory."""
UNSENT_BYTES_MAX = 256 * 1024
JOINED_BYTES_MAX = 4096
"""Up to this size a body is copied behind its header, and responses are joined: fewer buffers to send."""
MEMORY_KEPT_SECONDS = 10.0
"""Time after the last request until the memory of the buffer is released."""

DEFERRED_MAX = 256
"""Responses of one connection that wait until they are done, before the next request is read."""

CANCELLED_APIS = frozenset(
    (apis.PRODUCE, apis.FETCH, apis.DELETE_RECORDS, apis.JOIN_GROUP, apis.SYNC_GROUP)
)
"""APIs whose handlers may wait for as long as the client requests, and only for a response to send.

When the broker closes the connection of a client that has disconnected, it cancels these handlers. Other handlers
continue to their end, because a cancellation could leave a change incomplete.
"""

Parts = Sequence[Buffer | FileSlice]


@state_class
class _Deferred:
    """A response that is not done, and the context of its request."""

    ctx: RequestContext
    response: DeferredResponse

    @property
    def is_due(self) -> bool:
        """Whether the response can be sent."""
        return self.response.is_done or trio.current_time() >= self.response.deadline


class ClientConnection:
    def __init__(
        self,
        connection: Connection,
        endpoint: BoundListener,
        services: Services,
        selector: Selector,
    ) -> None:
        self._connection = connection
        self.endpoint = endpoint
        self._services = services
        self._clock = services.seams.clock
        self._selector = selector
        self._completable_fetches = services.completable_fetches
        self._find_route: Callable[[int], Route | None] = (
            find_controller_route if endpoint.of_controller else find_route
        )
        if request_log.isEnabledFor(logging.DEBUG):
            from odradek.broker.requests.request_log import LoggedRoutes

            self._find_route = LoggedRoutes(self._find_route, connection.peer).find
        self._memory = services.receive_memory
        self._buffer = ReceiveBuffer(
            services.config.get_int("socket.request.max.bytes"), is_limited=self._memory.is_limited
        )
        self._reserved_bytes = 0
        """Bytes that this connection has reserved of the memory of all connections."""
        self._rest: Awaitable[object] | None = None
        """Awaitable that the task awaits before the next request, for a response that must wait."""
        self._needs_no_task = False
        """Whether the last request needed no task; the next one probably does not either."""
        self._is_over = False
        self._step_requests = self._step_bytes = 0
        """Requests and bytes handled in this turn; a wait does not end the turn."""
        self._step_ends: float | None = None
        """Monotonic seconds when the turn ends: 0 after its first request, None before it."""
        self._unsent: list[Buffer | FileSlice] = []
        self._unsent_bytes = 0
        self.waiting_since: float | None = services.seams.clock.monotonic()
        """Monotonic seconds since when the client is expected to send; None while a request is handled."""
        self._released_since: float | None = None
        """`waiting_since` at which the memory was released."""
        self._is_asleep = False
        """Whether the task waits for the next request of a client that still waits for a response."""
        self._sending = False
        self._hung_up_since: float | None = None
        """Monotonic seconds when the client was first seen to have disconnected during a request."""
        self._stalled_since: float | None = None
        self._stalled_at_bytes = 0
        self._scope = trio.CancelScope()
        self._waiting_api: apis.Api | None = None
        """API of the last request whose handler was awaited."""
        self._deferred: deque[_Deferred | Parts] | None = None
        """While responses wait until they are done: these, and later responses, in the order of the requests."""

    async def talk(self) -> None:
        """Serve the client until it disconnects, sends an invalid request, or the broker stops."""
        with self._scope:
            await self._talk()

    async def _talk(self) -> None:
        try:
            await self._serve()
        except ConnectionLost:
            pass  # the client disconnected
        except OSError as reason:
            log.warning("closed %s: reading a segment failed: %s", self._connection.peer, reason)
        except InvalidFrame as reason:
            log.warning("closed %s: invalid request: %s", self._connection.peer, reason)
            await self._send_held_back()
        except Exception:
            log.exception("closed %s: unexpected error in a request handler", self._connection.peer)
            await self._send_held_back()
        finally:
            self._drop_unsent()
            self._release_memory()
            await self._connection.aclose()

    async def _send_held_back(self) -> None:
        """Send held-back responses of requests that were handled."""
        with suppress(ConnectionLost, OSError):
            await self.flush()

    async def _serve(self) -> None:
        """Handle requests; each iteration waits once, for a response or for bytes."""
        while not self._is_over:
            rest, self._rest = self._rest, None
            if rest is not None:
                await rest
                self._rest = self._respond_received()
                continue
            if not self.end_turn():
                await self.flush()
                self.waiting_since = self._clock.monotonic()
            if self._memory.is_limited:
                await self._reserve_memory()
            if self._needs_no_task:
                await self._selector.receive(self._connection, self)
            else:
                self.take(await self._connection.receive_into(self._buffer.free_space()))

    async def _reserve_memory(self) -> None:
        """Reserve the size of a large request, of which only a part is received, and release that of an earlier
        one."""
        size_bytes = self._buffer.large_frame_bytes
        if size_bytes == self._reserved_bytes:
            return
        self._release_memory()
        self._buffer.shrink()
        if not size_bytes:
            return
        while self._memory.is_exhausted:
            with trio.move_on_after(HANG_UP_CHECK_SECONDS):
                await self._memory.wait_for_release()
            if self._connection.is_hung_up:
                raise ConnectionLost("disconnected while its request waited for memory")
        self._memory.reserve(size_bytes)
        self._reserved_bytes = size_bytes

    def _release_memory(self) -> None:
        if self._reserved_bytes:
            self._memory.release(self._reserved_bytes)
            self._reserved_bytes = 0

    # Called by the selector, and by the task of this connection

    def free_space(self) -> memoryview:
        return self._buffer.free_space()

    def take(self, size_bytes: int) -> bool:
        """Handle the received requests; False if the task must continue. Fetches that they complete are sent at
        the end of the turn, or now if none follows in this step."""
        self.waiting_since = None
        self._is_over = size_bytes == 0
        self._buffer.received(size_bytes)
        self._completable_fetches.has_active_connection = True
        continues = False
        try:
            self._rest = self._respond_received()
            continues = self._rest is None and not self._is_over
        finally:
            if not continues:
                self._completable_fetches.respond()
        return continues

    def end_turn(self) -> bool:
        """Send held-back responses; False if the task must continue."""
        self._completable_fetches.respond()
        self.waiting_since = self._clock.monotonic()
        if self._memory.is_limited and self._buffer.large_frame_bytes != self._reserved_bytes:
            return False
        return not self._unsent or self._send_at_once()

    def _respond_received(self) -> Awaitable[object] | None:
        """Handle the received requests, up to one that must wait or the end of the turn. Returns the awaitable
        to continue with, or None."""
        while self._step_requests < REQUESTS_PER_STEP and self._step_bytes < BYTES_PER_STEP:
            ends = self._step_ends
            if ends and self._clock.monotonic() >= ends:
                break
            frame_view = self._buffer.next_frame()
            if frame_view is None:
                self._step_ends = None
                return None
            if ends is None:
                self._step_ends = 0.0
            elif not ends:
                self._step_ends = self._clock.monotonic() + SECONDS_PER_STEP
            frame_bytes = len(frame_view)
            self._step_requests += 1
            self._step_bytes += frame_bytes
            is_large = frame_bytes >= LARGE_BYTES
            rest = self._respond_large(frame_view) if is_large else self._respond(frame_view)
            self._needs_no_task = rest is None
            if rest is not None:
                return rest
        return self._let_others_run()

    async def _respond_large(self, frame_view: memoryview) -> None:
        await self._services.busy_connections.wait_turn()
        self._step_requests, self._step_bytes = 1, len(frame_view)
        rest = self._respond(frame_view, await self._read_in_steps(frame_view))
        if rest is not None:
            await rest

    async def _read_in_steps(self, frame_view: memoryview) -> Any:
        """Read a large request, whose arrays may be long; None if its API reads it at once."""
        header = read_request_header(frame_view)
        api, version = header.api, header.api_version
        route = self._find_route(api.key)
        if route is None or route.read_steps is None or not api.serves(version):
            return None
        steps = RequestSteps(self._clock, self._services.busy_connections)
        try:
            return await steps.run(route.read_steps(api.key, version, frame_view, header.body))
        except InvalidFrame as error:
            raise InvalidFrame(f"{api.title} version {version}: {error}") from error

    async def _let_others_run(self) -> None:
        self._step_requests = self._step_bytes = 0
        self._step_ends = None
        await self._services.busy_connections.wait_turn()

    def _respond(self, frame_view: memoryview, request: Any = None) -> Awaitable[None] | None:
        """Handle a request, which is read unless it is given; returns an awaitable if it must wait."""
        header = read_request_header(frame_view)
        api, version = header.api, header.api_version
        route = self._find_route(api.key)
        if route is None:
            raise InvalidFrame(f"{api.title} is not supported on this listener")
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
        if request is None:
            try:
                request = route.read(api.key, version, frame_view, header.body)
            except InvalidFrame as error:
                raise InvalidFrame(f"{api.title} version {version}: {error}") from error
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
        self._waiting_api = ctx.api
        if not route.batches_responses:
            await self.flush()
        values = await route.handler(request, ctx)
        if values is None:
            return
        api, version = ctx.api, ctx.api_version
        write_steps = route.write_steps
        steps = None if write_steps is None else write_steps(api.key, version, values)
        if steps is None:
            body = route.write(api.key, version, values)
        else:
            body = await RequestSteps(self._clock, self._services.busy_connections).run(steps)
        self._add(api, version, ctx.correlation_id, body)
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
        """Handle a request with the quotas at its arrival; they may be removed while it waits."""
        from odradek.broker.quotas.request_throttling import respond_within

        self._waiting_api = ctx.api
        if not route.batches_responses:
            await self.flush()
        body, wait_ms = await respond_within(quotas, route, request, request_bytes, ctx)
        if body is not None:
            self._add(ctx.api, ctx.api_version, ctx.correlation_id, body)
        if wait_ms > 0:
            await self.flush()
            await self._mute(wait_ms / 1000)
        elif self._unsent_bytes > UNSENT_BYTES_MAX:
            await self.flush()

    async def _mute(self, seconds: float) -> None:
        """Mute the connection for the throttle time, during which a disconnect is not noticed; at most
        connections.max.idle.ms."""
        idle_max_seconds = self._services.config.get_int("connections.max.idle.ms") / 1000
        if 0 <= idle_max_seconds < seconds:
            await trio.sleep(idle_max_seconds)
            log.info(
                "closed %s: throttled for %.0f s, longer than connections.max.idle.ms",
                self._connection.peer,
                seconds,
            )
            raise ConnectionLost(f"throttled for {seconds:.0f} s")
        await trio.sleep(seconds)

    # Called by waiting fetches of this connection

    def respond_nowait(self, ctx: RequestContext, values: Any) -> None:
        """Send a response now; the rest that the socket does not accept is sent by the next flush."""
        route = self._find_route(ctx.api.key)
        assert route is not None
        assert not self._unsent, "a handler flushes before it waits"
        version = ctx.api_version
        body = route.write(ctx.api.key, version, values)
        if not isinstance(body, (bytes, bytearray, memoryview)):
            body = b"".join(cast("Sequence[Buffer]", body))
        response = response_head(ctx.api, version, ctx.correlation_id, len(body)) + body
        try:
            sent_bytes = self._connection.send_nowait(response)
        except ConnectionLost:
            sent_bytes = 0  # the flush raises it again
        if sent_bytes < len(response):
            self._unsent.append(memoryview(response)[sent_bytes:])
            self._unsent_bytes = len(response) - sent_bytes
            self.wake()
        elif self._is_asleep:
            self.waiting_since = self._clock.monotonic()

    # Called by handlers whose responses wait, while the next requests are handled

    async def respond_when_done(self, ctx: RequestContext, response: DeferredResponse) -> None:
        """Defer a response. The first one handles the next requests here until no response is deferred."""
        if self._deferred is not None:  # called by a request that `_serve_while_deferred` handles
            self._defer_unsent(self._deferred)
            self._deferred.append(_Deferred(ctx, response))
            return
        await self.flush()
        deferred = self._deferred = deque([_Deferred(ctx, response)])
        # Handlers that flush before they wait, and other responses, wait for all deferred ones.
        self.flush = self._flush_deferred  # type: ignore[method-assign]
        try:
            await self._serve_while_deferred(deferred)
        finally:
            del self.flush
            self._deferred = None
            for each in deferred:
                if not isinstance(each, _Deferred):
                    release_files(each)

    async def _serve_while_deferred(self, deferred: deque[_Deferred | Parts]) -> None:
        """Handle requests, and send responses in order, until no response is deferred."""
        while True:
            await self._send_due(deferred)
            if not deferred:
                if self._is_over:
                    self._step_requests = self._step_bytes = 0  # no turn follows
                return
            if self._is_over or len(deferred) >= DEFERRED_MAX:
                await self._wait_until_due(deferred, receives=False)
                continue
            try:
                rest = self._respond_received()
                if rest is not None:
                    await rest
            except (ConnectionLost, OSError):
                raise
            except Exception:
                await self._flush_deferred()  # responses of earlier requests
                raise
            self._defer_unsent(deferred)
            if rest is None:
                self._completable_fetches.respond()
                if self._memory.is_limited:
                    await self._reserve_memory()
                await self._wait_until_due(deferred, receives=True)

    async def _send_due(self, deferred: deque[_Deferred | Parts]) -> None:
        """Send the first responses that are done."""
        while deferred:
            first = deferred[0]
            if isinstance(first, _Deferred):
                if not first.is_due:
                    break
                deferred.popleft()
                self._add_deferred(first)
            else:
                deferred.popleft()
                self._unsent += first
                self._unsent_bytes += parts_bytes(first)
        await ClientConnection.flush(self)

    def _add_deferred(self, due: _Deferred) -> None:
        values = due.response.values()
        if values is not None:
            api, version = due.ctx.api, due.ctx.api_version
            route = self._find_route(api.key)
            assert route is not None
            self._add(api, version, due.ctx.correlation_id, route.write(api.key, version, values))

    async def _wait_until_due(self, deferred: deque[_Deferred | Parts], *, receives: bool) -> None:
        """Wait until the first response can be sent, or until bytes are received."""
        first = deferred[0]
        if not isinstance(first, _Deferred) or first.is_due:
            return
        with trio.CancelScope(deadline=first.response.deadline) as scope:
            first.response.on_done(scope.cancel)
            if not receives:
                await trio.sleep_forever()
            size_bytes = await self._connection.receive_into(self._buffer.free_space())
            self._is_over = size_bytes == 0
            self._buffer.received(size_bytes)

    def _defer_unsent(self, deferred: deque[_Deferred | Parts]) -> None:
        """Keep the responses of requests that were handled meanwhile until the deferred ones are sent."""
        if self._unsent and deferred:
            deferred.append(self._unsent)
            self._unsent, self._unsent_bytes = [], 0

    async def _flush_deferred(self) -> None:
        """Send all responses, after waiting for the deferred ones."""
        deferred = self._deferred
        assert deferred is not None
        self._defer_unsent(deferred)
        while deferred:
            await self._wait_until_due(deferred, receives=False)
            await self._send_due(deferred)
        await ClientConnection.flush(self)

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
        """Add a response to those that the next flush sends; a small one in one buffer."""
        if isinstance(body, (bytes, bytearray, memoryview)):
            size_bytes = len(body)
            head = response_head(api, version, correlation_id, size_bytes)
            if size_bytes <= JOINED_BYTES_MAX:
                self._unsent.append(head + body)
            else:
                self._unsent += (head, body)
        else:
            size_bytes = parts_bytes(body)
            self._unsent.append(response_head(api, version, correlation_id, size_bytes))
            self._unsent += body
        self._unsent_bytes += size_bytes

    async def _respond_unsupported(self, api: apis.Api, version: int, correlation_id: int) -> None:
        if api is not apis.API_VERSIONS:
            raise InvalidFrame(f"{api.title} version {version} is not supported")
        self._add(api, 0, correlation_id, unsupported_version_response())
        await self.flush()

    def _send_at_once(self) -> bool:
        """Send held-back responses without waiting, if they are small. False if the socket did not accept all;
        the rest is kept."""
        unsent = self._unsent
        if len(unsent) == 1:
            response = unsent[0]
        elif self._unsent_bytes <= JOINED_BYTES_MAX and not any(map(_is_slice, unsent)):
            response = b"".join(cast("list[Buffer]", unsent))
        else:
            return False
        if isinstance(response, FileSlice):
            return False
        sent_bytes = self._connection.send_nowait(response)
        if sent_bytes < len(response):
            self._unsent = [memoryview(response)[sent_bytes:]]
            return False
        self._unsent = []
        self._unsent_bytes = 0
        return True

    async def flush(self) -> None:
        """Send held-back responses; waits until the socket has accepted them."""
        if not self._unsent or self._send_at_once():
            return
        parts, self._unsent, self._unsent_bytes = self._unsent, [], 0
        self._sending = True
        try:
            await self._connection.send(parts)
        except OSError as error:
            self._report_file_error(error, parts)
            raise
        finally:
            self._sending = False
            self._stalled_since = None
            release_files(parts)

    def _report_file_error(self, error: OSError, parts: Parts) -> None:
        """Report a read error to the log directory of the file that was being sent."""
        for part in parts:
            if isinstance(part, FileSlice) and str(part.file.path) == error.filename:
                if self._services.config.is_broker:
                    self._services.logs.report_at(part.file.path, error)
                return

    def _drop_unsent(self) -> None:
        parts, self._unsent = self._unsent, []
        release_files(parts)

    # Called by the server

    @property
    def peer(self) -> Address:
        return self._connection.peer

    def idle_seconds(self, now: float) -> float:
        """Seconds for which the client has neither sent nor read, or is disconnected while a request is
        handled.

        The server calls it repeatedly; progress is measured since the last call.
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

    def release_memory(self, now: float) -> None:
        """Release the memory of the buffer after a time without requests."""
        since = self.waiting_since
        if since is None or since == self._released_since or now - since < MEMORY_KEPT_SECONDS:
            return
        self._released_since = since
        self._buffer.give_back()

    def abort(self) -> None:
        self._cancel_wait()
        self._connection.abort()

    async def aclose(self) -> None:
        self._cancel_wait()
        await self._connection.aclose()

    def _cancel_wait(self) -> None:
        """Cancel a handler that waits only to send a response, which the client cannot receive any more."""
        is_handling = self.waiting_since is None and not self._sending
        if is_handling and self._waiting_api in CANCELLED_APIS:
            self._scope.cancel()


def _is_slice(part: Buffer | FileSlice) -> bool:
    return isinstance(part, FileSlice)


def release_files(parts: Parts) -> None:
    """Unpin the files of slices that were sent or dropped."""
    for part in parts:
        if isinstance(part, FileSlice):
            part.file.unpin()
