"""Bytes on their way from one end of a virtual connection to the other, in order; the last thing may be an end."""

from __future__ import annotations

import zlib
from collections import deque
from typing import TYPE_CHECKING

import trio

from odradek.seams.network import ConnectionLost

if TYPE_CHECKING:
    from odradek.testing.virtual_network import VirtualWires


class Direction:
    def __init__(self, wires: VirtualWires, sender: str, receiver: str) -> None:
        self._wires = wires
        self._hosts = (sender, receiver)
        self._arrivals: deque[tuple[float, bytes | ConnectionLost]] = deque()  # b"": the end
        self._last_at = 0.0
        self.held_bytes = 0
        self.closed_by_receiver = False
        self.changed = trio.lowlevel.ParkingLot()

    def put(self, what: bytes | ConnectionLost) -> None:
        if isinstance(what, ConnectionLost):
            self._arrivals.clear()  # a reset takes what was not read with it
            self.held_bytes = 0
        self.append(what)

    def append(self, what: bytes | ConnectionLost) -> None:
        """Behind all that is under way."""
        wires = self._wires
        wires.messages += 1
        if isinstance(what, bytes):
            self.held_bytes += len(what)
            wires.checksum = zlib.crc32(what, wires.checksum)
        at = wires.now_s() + wires.delay_seconds(*self._hosts)
        self._last_at = max(self._last_at, at)
        self._arrivals.append((self._last_at, what))
        clock = wires.clock
        if clock is not None and clock.jumping:
            clock.call_at(self._last_at, self.wake)
        else:
            self.wake()

    def wake(self) -> bool:
        """Have whoever waits look again; whether anybody does."""
        return bool(self.changed and self.changed.unpark_all())

    def arrived(self) -> bytes | ConnectionLost | None:
        """What has come and was not taken; None: nothing yet."""
        if not self._arrivals or self._wires.troubles.hold_back(*self._hosts):
            return None
        at, what = self._arrivals[0]
        return what if at <= self._wires.now_s() else None

    @property
    def has_ended(self) -> bool:
        """Whether the end, or the loss, has come, behind whatever was not taken."""
        if not self._arrivals or self._wires.troubles.parted(*self._hosts):
            return False
        at, what = self._arrivals[-1]
        return at <= self._wires.now_s() and (isinstance(what, ConnectionLost) or not what)

    def take(self, size: int) -> None:
        at, what = self._arrivals.popleft()
        assert isinstance(what, bytes)
        if size < len(what):
            self._arrivals.appendleft((at, what[size:]))
        self.held_bytes -= size
        self.wake()

    async def wait(self) -> None:
        """Until something may have changed."""
        if self._wires.troubles.parted(*self._hosts):
            await self._wires.changed.park()
            return
        clock = self._wires.clock
        if not self._arrivals or (clock is not None and clock.jumping):
            await self.changed.park()
            return
        with trio.move_on_at(self._arrivals[0][0]):
            await self.changed.park()
