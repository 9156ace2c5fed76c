"""In-flight requests: at most one per node, with timeout and backoff (Kafka's `RequestManager`).

Each request has a number. Responses to requests that were completed, have timed out, or were sent
in an earlier role are ignored.
"""

from __future__ import annotations

from typing import Final

from odradek.replication.raft.messages import Request
from odradek.seams.values import state_class, value_class

BOOTSTRAP_SERVER: Final = -2


@value_class
class PendingRequest:
    number: int
    to: int
    request: Request


@state_class
class _Line:
    """The connection state of one node. `until_ms`: end of the request timeout or of the
    backoff."""

    asked: PendingRequest | None
    until_ms: int


class RequestManager:
    def __init__(self, *, timeout_ms: int, backoff_ms: int) -> None:
        self._timeout_ms = timeout_ms
        self._backoff_ms = backoff_ms
        self._lines: dict[int, _Line] = {}
        self._next = 1

    def may_ask(self, to: int) -> bool:
        return to not in self._lines

    def backs_off(self, to: int) -> bool:
        line = self._lines.get(to)
        return line is not None and line.asked is None

    @property
    def any_waiting(self) -> bool:
        return any(line.asked is not None for line in self._lines.values())

    def asked(self, to: int, request: Request, now_ms: int) -> int:
        """Register a request that is sent now; returns its number."""
        number, self._next = self._next, self._next + 1
        self._lines[to] = _Line(PendingRequest(number, to, request), now_ms + self._timeout_ms)
        return number

    def take(self, number: int) -> PendingRequest | None:
        """Remove and return the in-flight request with this number, if any."""
        for to, line in self._lines.items():
            if line.asked is not None and line.asked.number == number:
                del self._lines[to]
                return line.asked
        return None

    def back_off(self, to: int, now_ms: int) -> None:
        """Send no request to this node during the retry backoff."""
        if to not in self._lines:
            self._lines[to] = _Line(None, now_ms + self._backoff_ms)

    def expire(self, now_ms: int) -> None:
        """End expired backoffs; a request that timed out starts a backoff."""
        for to, line in list(self._lines.items()):
            if now_ms >= line.until_ms:
                del self._lines[to]
                if line.asked is not None:
                    self.back_off(to, now_ms)

    def forget_all(self) -> None:
        self._lines.clear()

    @property
    def deadline_ms(self) -> int | None:
        return min((line.until_ms for line in self._lines.values()), default=None)
