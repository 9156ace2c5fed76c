"""HTTP endpoint for Prometheus: GET /metrics on a listener of its own (HTTP/1.1).

h11 implements HTTP. The endpoint limits the number of connections and their idle time, and builds and sends the
page in pieces, so thousands of partitions do not block the event loop.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from http import HTTPStatus
from typing import TYPE_CHECKING

import h11
import trio

from odradek.broker.config.listeners import parse_address
from odradek.broker.lifecycle.errors import CannotStart
from odradek.broker.metrics.exposition import CONTENT_TYPE, exposition
from odradek.broker.metrics.node_gauges import register
from odradek.seams.network import Address, Connection, ConnectionLost, Listener, Network

if TYPE_CHECKING:
    from odradek.broker.metrics.registry import Metrics
    from odradek.broker.services import Services

log = logging.getLogger("odradek.metrics")

PATH = "/metrics"
CONNECTIONS_MAX = 16
TIMEOUT_SECONDS = 60.0
"""Maximum idle time of a connection, and maximum time to send a page."""
LINES_A_PIECE = 250
"""Lines that take about a millisecond to build."""
REQUEST_BYTES_MAX = 16 << 10
RECEIVED_BYTES = 4096
_PLAIN = (("Content-Type", "text/plain; charset=utf-8"),)


async def serve_metrics(services: Services, listener: str, nursery: trio.Nursery) -> Address:
    """Serve the metrics at `listener` (host:port) in the nursery; returns the bound address.

    Raises CannotStart if the address cannot be bound.
    """
    register(services)
    host, port = parse_address("odradek.metrics.listener", listener)
    endpoint = MetricsEndpoint(services.seams.network, services.metrics, host, port)
    try:
        await nursery.start(endpoint.run)
    except OSError as error:
        raise _cannot_serve(listener, error) from None
    return endpoint.address


async def check_address(network: Network, listener: str) -> None:
    """Bind `listener` (host:port) and close it. Raises CannotStart if it cannot be bound."""
    host, port = parse_address("odradek.metrics.listener", listener)
    try:
        listeners = await network.listen(host, port)
    except OSError as error:
        raise _cannot_serve(listener, error) from None
    for each in listeners:
        await each.aclose()


def _cannot_serve(listener: str, error: OSError) -> CannotStart:
    return CannotStart(f"can't serve metrics on {listener}: {error.strerror or error}")


class MetricsEndpoint:
    """Serves the metrics of a node. `address` is set once `run` has reported that it started."""

    address: Address

    def __init__(self, network: Network, metrics: Metrics, host: str, port: int) -> None:
        self._network = network
        self._metrics = metrics
        self._host = host
        self._port = port
        self._guests = 0

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Serve until cancelled. Raises OSError if the address cannot be bound."""
        listeners = await self._network.listen(self._host, self._port)
        try:
            self.address = listeners[0].address
            async with trio.open_nursery() as guests:
                for listener in listeners:
                    guests.start_soon(self._accept, listener, guests)
                task_status.started()
        finally:
            with trio.CancelScope(shield=True):
                for listener in listeners:
                    await listener.aclose()

    async def _accept(self, listener: Listener, guests: trio.Nursery) -> None:
        while True:
            connection = await listener.accept()
            if self._guests >= CONNECTIONS_MAX:
                log.warning(
                    "refused %s: %d connections read metrics already", connection.peer, self._guests
                )
                connection.abort()
            else:
                guests.start_soon(self._serve, connection)

    async def _serve(self, connection: Connection) -> None:
        self._guests += 1
        try:
            await _HttpConnection(connection, self._metrics).run()
        except ConnectionLost:
            pass  # the client disconnected
        except h11.RemoteProtocolError as error:
            log.warning("closed %s: invalid HTTP request: %s", connection.peer, error)
        except Exception:  # a failed gauge must not stop the endpoint
            log.exception("metrics could not be sent to %s", connection.peer)
        finally:
            self._guests -= 1
            connection.abort()


class _HttpConnection:
    """One HTTP connection and its requests."""

    def __init__(self, connection: Connection, metrics: Metrics) -> None:
        self._connection = connection
        self._metrics = metrics
        self._http = h11.Connection(h11.SERVER, max_incomplete_event_size=REQUEST_BYTES_MAX)

    async def run(self) -> None:
        """Serve requests until the connection ends. Raises ConnectionLost, and RemoteProtocolError for invalid
        HTTP."""
        while True:
            with trio.move_on_after(TIMEOUT_SECONDS):
                try:
                    request = await self._next_request()
                    if request is None:
                        break
                    await self._respond(request)
                except h11.RemoteProtocolError as error:
                    if self._http.our_state in (h11.IDLE, h11.SEND_RESPONSE):
                        await self._send_status(HTTPStatus(error.error_status_hint))
                        await self._connection.aclose()
                    raise
                if self._http.our_state is h11.DONE and self._http.their_state is h11.DONE:
                    self._http.start_next_cycle()
                    continue
            break
        await self._connection.aclose()

    async def _next_request(self) -> h11.Request | None:
        """Next request; None when the connection ends."""
        found = None
        while True:
            event = self._http.next_event()
            if event is h11.NEED_DATA:
                buffer = bytearray(RECEIVED_BYTES)
                count = await self._connection.receive_into(memoryview(buffer))
                self._http.receive_data(bytes(buffer[:count]))
            elif isinstance(event, h11.Request):
                found = event
            elif isinstance(event, h11.Data):
                pass  # a request body is ignored
            elif isinstance(event, h11.EndOfMessage):
                return found
            else:
                return None

    async def _respond(self, request: h11.Request) -> None:
        path = request.target.decode("ascii").partition("?")[0]
        is_head = request.method == b"HEAD"
        if request.method not in (b"GET", b"HEAD"):
            await self._send_status(HTTPStatus.METHOD_NOT_ALLOWED, ("Allow", "GET, HEAD"))
        elif path != PATH:
            await self._send_status(HTTPStatus.NOT_FOUND, silent=is_head)
        else:
            await self._metrics.prepare()
            await self._begin(HTTPStatus.OK, ("Content-Type", CONTENT_TYPE))
            if not is_head:
                for piece in _pieces(exposition(self._metrics)):
                    if piece:
                        await self._send(h11.Data(data=piece))
                    await trio.lowlevel.checkpoint()
            await self._send(h11.EndOfMessage())

    async def _send_status(
        self, status: HTTPStatus, *headers: tuple[str, str], silent: bool = False
    ) -> None:
        """Send a response that has only its status line as body."""
        await self._begin(status, *_PLAIN, *headers)
        if not silent:
            text = f"{status.value} {status.phrase}; metrics are at {PATH}\n"
            await self._send(h11.Data(data=text.encode()))
        await self._send(h11.EndOfMessage())

    async def _begin(self, status: HTTPStatus, *headers: tuple[str, str]) -> None:
        response = h11.Response(
            status_code=status.value, reason=status.phrase.encode(), headers=list(headers)
        )
        await self._send(response)

    async def _send(self, event: h11.Event) -> None:
        data = self._http.send(event)
        if data:
            await self._connection.send([data])


def _pieces(lines: Iterator[str]) -> Iterator[bytes]:
    """Text of one piece per turn; empty if no metric has values yet."""
    piece: list[str] = []
    for line in lines:
        piece.append(line)
        if not line or len(piece) == LINES_A_PIECE:
            yield "".join(piece).encode()
            piece.clear()
    if piece:
        yield "".join(piece).encode()
