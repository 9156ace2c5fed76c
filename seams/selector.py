"""One task that receives the bytes of many connections.

A task that waits for its own socket passes through the scheduler each time, which is a third of the cost of a small
request. Connections whose requests need no task wait here instead. One iteration receives from all readable
connections, passes the bytes to each `Receiver`, and then lets each of them send. Clients on the same machine are
therefore woken one directly after the other.
"""

from __future__ import annotations

import select
from collections.abc import Callable, Iterable
from typing import Protocol, cast

import trio

from odradek.seams.network import Connection, ConnectionLost, Receiver

HAS_EPOLL = hasattr(select, "epoll")
"""Whether the platform has epoll, which `TcpSelector` needs. macOS has none, and uses `EachAlone`."""

TURN_CONNECTIONS = 8
TURN_BYTES = 4096
"""Limits of an iteration in connections and bytes: the first response waits for the last request."""


class EachAlone:
    """Selector for connections of any kind; each waits in its own task."""

    async def run(self) -> None:
        await trio.sleep_forever()

    async def receive(self, connection: Connection, receiver: Receiver) -> None:
        while True:
            received = await connection.receive_into(receiver.free_space())
            if not (receiver.take(received) and receiver.end_turn()):
                return


class SelectableConnection(Protocol):
    """A connection with a descriptor that epoll can wait for (`tcp.TcpConnection`)."""

    on_close: Callable[[], None] | None

    def fileno(self) -> int: ...

    def receive_nowait(self, view: memoryview) -> int | None: ...


class _Member:
    """A connection that waits in the selector."""

    __slots__ = ("connection", "failure", "fd", "receiver", "task")

    def __init__(self, connection: SelectableConnection, receiver: Receiver) -> None:
        self.connection = connection
        self.fd = connection.fileno()
        self.receiver = receiver
        self.task = trio.lowlevel.current_task()
        self.failure: Exception | None = None


class TcpSelector:
    """Selector with its own epoll, which is readable when one of its sockets is."""

    def __init__(self) -> None:
        self._epoll = select.epoll()
        self._members: dict[int, _Member] = {}

    async def run(self) -> None:
        try:
            while True:
                await trio.lowlevel.wait_readable(self._epoll.fileno())
                self._turn()
        finally:
            self._epoll.close()

    async def receive(self, connection: Connection, receiver: Receiver) -> None:
        if self._epoll.closed:  # tasks that were running when it ended arrive later
            raise ConnectionLost("the selector has ended")
        member = _Member(cast(SelectableConnection, connection), receiver)
        self._epoll.register(member.fd, select.EPOLLIN)
        self._members[member.fd] = member

        def close() -> None:
            self._dismiss(member, ConnectionLost("the connection was closed on this side"))

        def abort(_: object) -> trio.lowlevel.Abort:
            self._forget(member)
            return trio.lowlevel.Abort.SUCCEEDED

        member.connection.on_close = close
        await trio.lowlevel.wait_task_rescheduled(abort)
        if member.failure is not None:
            raise member.failure

    def _turn(self) -> None:
        taken: list[_Member] = []
        size_bytes = 0
        for fd, _ in self._epoll.poll(0, TURN_CONNECTIONS):
            member = self._members.get(fd)
            if member is None:
                continue  # another receiver has closed it
            taken.append(member)
            size_bytes += self._take(member)
            if size_bytes > TURN_BYTES:
                self._end(taken)
                taken, size_bytes = [], 0
        self._end(taken)

    def _take(self, member: _Member) -> int:
        """Receive for a connection and return the bytes. Errors are passed to its task."""
        receiver = member.receiver
        try:
            received = member.connection.receive_nowait(receiver.free_space())
            if received is None:
                return 0
            goes_on = receiver.take(received)
        except Exception as failure:
            self._dismiss(member, failure)
            return 0
        if not goes_on:
            self._dismiss(member)
        return received

    def _end(self, members: Iterable[_Member]) -> None:
        for member in members:
            if self._members.get(member.fd) is not member:
                continue  # its task continues
            try:
                goes_on = member.receiver.end_turn()
            except Exception as failure:
                self._dismiss(member, failure)
            else:
                if not goes_on:
                    self._dismiss(member)

    def _dismiss(self, member: _Member, failure: Exception | None = None) -> None:
        """Remove a connection and wake its task."""
        if self._forget(member):
            member.failure = failure
            trio.lowlevel.reschedule(member.task)

    def _forget(self, member: _Member) -> bool:
        """Remove a connection; return False if it was removed before."""
        if self._members.get(member.fd) is not member:
            return False
        del self._members[member.fd]
        member.connection.on_close = None
        if not self._epoll.closed:
            self._epoll.unregister(member.fd)
        return True
