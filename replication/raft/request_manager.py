"""In-flight requests: at most one per node, with timeout and backoff (Kafka's `RequestManager`).

Each request has a number. Responses to requests that were completed, have timed out, or were sent
in an earlier role are ignored.
"""

from __future__ import annotations

from typing import Final

from odradek.replication.raft.messages import RaftRequest
from odradek.seams.values import state_class, value_class

BOOTSTRAP_SERVER: Final = -2


@value_class
class PendingRequest:
    number: int
    to: int
    request: RaftRequest


@state_class
class ConnectionState:
    """The connection state of one node. `until_ms`: end of the request timeout or of the
    backoff."""

    in_flight: PendingRequest | None
    until_ms: int


class RequestManager:
    def __init__(self, *, timeout_ms: int, backoff_ms: int) -> None:
        self._timeout_ms = timeout_ms
        self._backoff_ms = backoff_ms
        self._connections: dict[int, ConnectionState] = {}
        self._next = 1

    def is_ready(self, to: int) -> bool:
        return to not in self._connections

    def is_backing_off(self, to: int) -> bool:
        connection = self._connections.get(to)
        return connection is not None and connection.in_flight is None

    @property
    def has_any_inflight_request(self) -> bool:
        return any(connection.in_flight is not None for connection in self._connections.values())

    def on_request_sent(self, to: int, request: RaftRequest, now_ms: int) -> int:
        """Register a request that is sent now; returns its number."""
        number, self._next = self._next, self._next + 1
        self._connections[to] = ConnectionState(
            PendingRequest(number, to, request), now_ms + self._timeout_ms
        )
        return number

    def take(self, number: int) -> PendingRequest | None:
        """Remove and return the in-flight request with this number, if any."""
        for to, connection in self._connections.items():
            if connection.in_flight is not None and connection.in_flight.number == number:
                del self._connections[to]
                return connection.in_flight
        return None

    def back_off(self, to: int, now_ms: int) -> None:
        """Send no request to this node during the retry backoff."""
        if to not in self._connections:
            self._connections[to] = ConnectionState(None, now_ms + self._backoff_ms)

    def expire(self, now_ms: int) -> None:
        """End expired backoffs; a request that timed out starts a backoff."""
        for to, connection in list(self._connections.items()):
            if now_ms >= connection.until_ms:
                del self._connections[to]
                if connection.in_flight is not None:
                    self.back_off(to, now_ms)

    def reset_all(self) -> None:
        self._connections.clear()

    @property
    def deadline_ms(self) -> int | None:
        return min((connection.until_ms for connection in self._connections.values()), default=None)
