"""What was asked and is not answered yet: one request at a time to each node, and pauses after failures.

A request has a number. Once it is answered, timed out, or forgotten because the role has changed, an
answer with its number means nothing any more.
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
    """To one node. `until_ms`: the request times out then, or the pause is over."""

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
        """The number of the request that is sent now."""
        number, self._next = self._next, self._next + 1
        self._lines[to] = _Line(PendingRequest(number, to, request), now_ms + self._timeout_ms)
        return number

    def take(self, number: int) -> PendingRequest | None:
        """What was asked under this number, if an answer is still waited for; now it is not."""
        for to, line in self._lines.items():
            if line.asked is not None and line.asked.number == number:
                del self._lines[to]
                return line.asked
        return None

    def back_off(self, to: int, now_ms: int) -> None:
        """Ask this node nothing for a while."""
        if to not in self._lines:
            self._lines[to] = _Line(None, now_ms + self._backoff_ms)

    def expire(self, now_ms: int) -> None:
        """Pauses that are over end; who has not answered in time is left alone for a pause."""
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
