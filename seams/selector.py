"""Many connections that wait for bytes, and one task that takes them for all.

A task that waits for its own socket passes through the scheduler each time, which is a third of what a
small request costs. A connection whose requests need no task waits here instead: one pass receives for
all that have something, has each `Receiver` take it, and only then has each end its turn, which is when
it sends. So peers on this machine are woken one right after the other, not each by itself in between.
"""

from __future__ import annotations

import select
from collections.abc import Iterable
from typing import TYPE_CHECKING, cast

import trio

from odradek.seams.network import Connection, ConnectionLost, Receiver

if TYPE_CHECKING:
    from odradek.seams.tcp import TcpConnection

TURN_CONNECTIONS = 8
TURN_BYTES = 4096
"""How many take their turn together, and how much: the answers of the first wait for the last."""


class EachAlone:
    """`Selector` for connections of any kind, which wait in their own tasks."""

    async def run(self) -> None:
        await trio.sleep_forever()

    async def receive(self, connection: Connection, receiver: Receiver) -> None:
        while True:
            received = await connection.receive_into(receiver.room())
            if not (receiver.take(received) and receiver.end_turn()):
                return


class _Member:
    """A connection that waits, for as long as it does."""

    __slots__ = ("connection", "failure", "fd", "receiver", "task")

    def __init__(self, connection: TcpConnection, receiver: Receiver) -> None:
        self.connection = connection
        self.fd = connection.fileno()
        self.receiver = receiver
        self.task = trio.lowlevel.current_task()
        self.failure: Exception | None = None


class TcpSelector:
    """Over an epoll of its own, which is readable where one of its sockets is."""

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
        if self._epoll.closed:  # whoever was at work when it ended comes afterwards
            raise ConnectionLost("nobody waits for connections any more")
        member = _Member(cast("TcpConnection", connection), receiver)
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
                continue  # somebody else's turn has closed it
            taken.append(member)
            size_bytes += self._take(member)
            if size_bytes > TURN_BYTES:
                self._end(taken)
                taken, size_bytes = [], 0
        self._end(taken)

    def _take(self, member: _Member) -> int:
        """How much it was. What goes wrong is its own task's affair."""
        receiver = member.receiver
        try:
            received = member.connection.receive_nowait(receiver.room())
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
                continue  # its task goes on with it
            try:
                goes_on = member.receiver.end_turn()
            except Exception as failure:
                self._dismiss(member, failure)
            else:
                if not goes_on:
                    self._dismiss(member)

    def _dismiss(self, member: _Member, failure: Exception | None = None) -> None:
        """Have its task go on."""
        if self._forget(member):
            member.failure = failure
            trio.lowlevel.reschedule(member.task)

    def _forget(self, member: _Member) -> bool:
        """False if it was forgotten before."""
        if self._members.get(member.fd) is not member:
            return False
        del self._members[member.fd]
        member.connection.on_close = None
        if not self._epoll.closed:
            self._epoll.unregister(member.fd)
        return True
