"""Connections inside one process, between named hosts, in virtual time.

`VirtualWires` is the network; `host(name)` returns the `Network` seam of one machine. Bytes arrive
in order, after a delay drawn from the entropy, and may be split into pieces of any size
(`fragment`).

- A partition, of both directions or one, delays bytes and connection attempts without loss until it
  heals, as TCP does.
- `cut` resets connections. `drop` resets them too, but bytes that were sent before still arrive and
  are processed, and the sender gets no response.
- When a host's power is cut, its peers see resets, and new connections are refused, as after the
  end of a process. A host that was silenced before does not respond at all, as after the failure of
  a machine, until `unsilence`; it then has no state of earlier connections.

File slices are read in pieces while they are sent, as sendfile(2) does: if the file changes while
the peer is slow, the changed bytes are sent here too.
"""

from __future__ import annotations

import errno
import os
import zlib
from collections import deque
from collections.abc import Iterator, Sequence

import trio

from odradek.seams.entropy import Entropy
from odradek.seams.files import Buffer, FileSlice
from odradek.seams.network import (
    DEFAULT_OPTIONS,
    Address,
    Connection,
    ConnectionLost,
    ConnectionRefused,
    Listener,
    Selector,
    SocketOptions,
)
from odradek.seams.selector import EachAlone
from odradek.testing.power import Power
from odradek.testing.virtual_clock import VirtualClock
from odradek.testing.virtual_network_faults import NetworkFault, NetworkFaults

PIECE_BYTES = 64 << 10
WINDOW_BYTES = 256 << 10
"""Bytes in flight or unread in one direction before the sender waits."""

_THIS_HOST = frozenset(("", "localhost", "127.0.0.1", "::1", "0.0.0.0", "::"))
_FIRST_PORT = 32_768


class VirtualDirection:
    """The bytes from one end of a virtual connection to the other, in order; an end or a loss is
    last."""

    def __init__(self, wires: VirtualWires, sender: str, receiver: str) -> None:
        self._wires = wires
        self._hosts = (sender, receiver)
        self._arrivals: deque[tuple[float, bytes | ConnectionLost]] = deque()  # b"": the end
        self._last_at = 0.0
        self.in_flight_bytes = 0
        self.closed_by_receiver = False
        self.changed = trio.lowlevel.ParkingLot()

    def put(self, what: bytes | ConnectionLost) -> None:
        if isinstance(what, ConnectionLost):
            self._arrivals.clear()  # a reset discards unread bytes
            self.in_flight_bytes = 0
        self.append(what)

    def append(self, what: bytes | ConnectionLost) -> None:
        """Queue bytes, an end or a loss behind all that is in flight."""
        wires = self._wires
        wires.messages += 1
        if isinstance(what, bytes):
            self.in_flight_bytes += len(what)
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
        """Wake the tasks that wait for this direction; return whether there were any."""
        return bool(self.changed and self.changed.unpark_all())

    def arrived(self) -> bytes | ConnectionLost | None:
        """The first arrived item that was not taken; None if there is none yet."""
        if not self._arrivals or self._wires.faults.is_blocked(*self._hosts):
            return None
        at, what = self._arrivals[0]
        return what if at <= self._wires.now_s() else None

    @property
    def has_ended(self) -> bool:
        """Whether the end or the loss has arrived, even if bytes before it were not taken."""
        if not self._arrivals or self._wires.faults.is_partitioned(*self._hosts):
            return False
        at, what = self._arrivals[-1]
        return at <= self._wires.now_s() and (isinstance(what, ConnectionLost) or not what)

    def take(self, size: int) -> None:
        at, what = self._arrivals.popleft()
        assert isinstance(what, bytes)
        if size < len(what):
            self._arrivals.appendleft((at, what[size:]))
        self.in_flight_bytes -= size
        self.wake()

    async def wait(self) -> None:
        """Wait until the state may have changed."""
        if self._wires.faults.is_partitioned(*self._hosts):
            await self._wires.changed.park()
            return
        clock = self._wires.clock
        if not self._arrivals or (clock is not None and clock.jumping):
            await self.changed.park()
            return
        with trio.move_on_at(self._arrivals[0][0]):
            await self.changed.park()


class VirtualWires:
    """The network between all hosts of a world."""

    def __init__(
        self,
        entropy: Entropy | None = None,
        *,
        fragment: bool = False,
        clock: VirtualClock | None = None,
    ) -> None:
        """`entropy` decides delays and fragments; without it there are none.

        A `clock` that jumps delivers the bytes in flight.
        """
        if fragment and entropy is None:
            raise ValueError("fragments are drawn from an entropy")
        self.entropy = entropy
        self.fragment = fragment
        self.clock = clock
        self.sleep = trio.sleep if clock is None else clock.sleep
        self.listeners: dict[tuple[str, int], VirtualListener] = {}
        self.connections: list[VirtualConnection] = []
        self.messages = 0
        """The number of byte pieces, ends and resets that were sent."""
        self.checksum = 0
        """CRC-32 of all bytes that were sent, in order."""
        self.changed = trio.lowlevel.ParkingLot()
        self._silent: dict[str, list[VirtualConnection]] = {}
        self._delay_seconds = (0.0, 0.0)
        self.faults = NetworkFaults()
        self._next_port = _FIRST_PORT

    def host(self, name: str, power: Power | None = None) -> VirtualNetwork:
        """The network seam of a machine; a restarted node uses the same name."""
        return VirtualNetwork(self, name, power or Power())

    def set_delay(self, low_seconds: float, high_seconds: float) -> None:
        """Set the delay of later sends; bytes in flight keep their arrival time."""
        self._delay_seconds = (low_seconds, high_seconds)

    def slow(self, one: str, other: str, low_seconds: float, high_seconds: float) -> NetworkFault:
        """Set the delay between two hosts until `heal`; of two such delays, the longer one applies."""
        pairs = frozenset({(one, other), (other, one)})
        return self.faults.add(NetworkFault(pairs, (low_seconds, high_seconds)))

    def partition(self, one: str, other: str, *, one_way: bool = False) -> NetworkFault:
        """Block traffic between two hosts, or only from `one` to `other`, until `heal`."""
        pairs = {(one, other)} if one_way else {(one, other), (other, one)}
        return self.faults.add(NetworkFault(frozenset(pairs)))

    def heal(self, fault: NetworkFault | None = None) -> None:
        """End one fault, or all; delayed bytes arrive unless another fault delays them."""
        self.faults.heal(fault)
        self.changed.unpark_all()
        for connection in self.connections:
            connection.wake()

    def silence(self, host: str) -> None:
        """Make the host's next power cut invisible to its peers until `unsilence`."""
        self._silent.setdefault(host, [])

    def unsilence(self, host: str) -> None:
        """End `silence`: the host runs again, and resets the connections that it does not know."""
        for connection in self._silent.pop(host, ()):
            connection.reset_after_restart()
        self.changed.unpark_all()

    def is_silent(self, host: str) -> bool:
        return host in self._silent

    def remember_lost_connection(self, connection: VirtualConnection) -> None:
        """Remember a connection whose end at a silent host is lost."""
        self._silent[connection.local.host].append(connection)

    def cut(self, one: str, other: str) -> None:
        """Reset every connection between two hosts; new connections are possible."""
        for connection in self._between(one, other):
            connection.reset()

    def drop(self, sender: str, receiver: str) -> int:
        """Reset the connections from `sender` to `receiver` at the sender; return their number.

        The receiver gets the bytes that were sent, and then the reset.
        """
        lost = [each for each in self._between(sender, receiver) if each.local.host == sender]
        for connection in lost:
            connection.drop()
        return len(lost)

    def _between(self, one: str, other: str) -> list[VirtualConnection]:
        return [
            connection
            for connection in self.connections
            if {connection.local.host, connection.peer.host} == {one, other}
        ]

    def delay_seconds(self, one: str, other: str) -> float:
        low, high = self.faults.delay_seconds(one, other) or self._delay_seconds
        if high <= 0 or self.entropy is None:
            return high
        return self.entropy.uniform(low, high)

    def now_s(self) -> float:
        clock = self.clock
        return clock.monotonic() if clock is not None and clock.jumping else trio.current_time()

    def free_port(self) -> int:
        self._next_port += 1
        return self._next_port


class VirtualConnection:
    """One end of a connection. `VirtualNetwork.connect` creates it, and the listener the other end."""

    def __init__(
        self,
        wires: VirtualWires,
        power: Power,
        ends: tuple[Address, Address],
        incoming: VirtualDirection,
        outgoing: VirtualDirection,
    ) -> None:
        self._wires = wires
        self._power = power
        self._local, self._peer = ends
        self._incoming = incoming
        self._outgoing = outgoing
        self._closed = False
        self._sending = False
        self._frame_begun = False
        self._is_cut_short = False
        self._sent_bytes = 0
        self._wait: trio.CancelScope | None = None
        wires.connections.append(self)

    @property
    def sent_bytes(self) -> int:
        return self._sent_bytes

    @property
    def local(self) -> Address:
        return self._local

    @property
    def peer(self) -> Address:
        return self._peer

    @property
    def power(self) -> Power:
        return self._power

    async def receive_into(self, view: memoryview) -> int:
        if not view:
            raise ValueError("the buffer to receive into is empty")
        self._check()
        what = self._incoming.arrived()
        if what is not None:
            await trio.lowlevel.checkpoint()
            self._check()
            what = self._incoming.arrived()
        while what is None:
            await self._incoming.wait()
            self._check()
            what = self._incoming.arrived()
        if isinstance(what, ConnectionLost):
            raise what
        if not what:
            return 0
        size = min(len(what), len(view))
        if self._wires.fragment and self._wires.entropy is not None:
            size = 1 + self._wires.entropy.below(size)
        view[:size] = what[:size]
        self._incoming.take(size)
        return size

    async def wait_readable(self) -> None:
        self._check()
        try:
            with trio.CancelScope() as self._wait:
                if self._incoming.arrived() is not None:
                    await trio.lowlevel.checkpoint()
                while self._incoming.arrived() is None:
                    await self._incoming.wait()
                    self._check()
        finally:
            self._wait = None

    def interrupt(self) -> None:
        if self._wait is not None:
            self._wait.cancel()

    @property
    def is_hung_up(self) -> bool:
        return not self._closed and self._incoming.has_ended

    async def send(self, parts: Sequence[Buffer | FileSlice]) -> None:
        if self._sending:
            raise trio.BusyResourceError("another task is sending on this connection")
        self._check()
        self._sending = True
        self._frame_begun, self._is_cut_short = self._is_cut_short, False
        try:
            for piece in self._pieces(parts):
                await self._wait_for_window()
                self._outgoing.put(piece)
                self._sent_bytes += len(piece)
                self._frame_begun = True
        except BaseException:
            if self._frame_begun and self._power.on:
                self.abort()
            raise
        finally:
            self._sending = False

    def send_nowait(self, data: Buffer) -> int:
        if self._sending:
            raise trio.BusyResourceError("another task is sending on this connection")
        sent = 0
        for piece in self._pieces([data]):
            if not self._has_window():
                self._is_cut_short = self._is_cut_short or sent > 0
                break
            self._outgoing.put(piece)
            sent += len(piece)
        self._sent_bytes += sent
        return sent

    def abort(self) -> None:
        self._power.check()
        if not self._closed:
            self._close(ConnectionLost(f"{self._local}: connection reset by peer"))

    async def aclose(self) -> None:
        self._power.check()
        if self._frame_begun if self._sending else self._is_cut_short:
            self.abort()
        if not self._closed:
            self._close(b"")
        await trio.lowlevel.checkpoint()

    def reset(self) -> None:
        """Reset the connection from outside: both ends lose it."""
        lost = ConnectionLost(f"{self._peer}: connection reset")
        self._incoming.put(lost)
        self._outgoing.put(lost)
        self._incoming.closed_by_receiver = self._outgoing.closed_by_receiver = True
        self._forget()

    def drop(self) -> None:
        """Reset this end from outside; the peer sees the reset after the bytes that were sent."""
        self._incoming.put(ConnectionLost(f"{self._peer}: connection reset"))
        self._outgoing.append(ConnectionLost(f"{self._local}: connection reset by peer"))
        self._incoming.closed_by_receiver = True
        self._forget()

    def lose_power(self) -> None:
        """Handle a power cut: the peer sees a reset, or nothing if the host is silent."""
        if self._wires.is_silent(self._local.host):
            self._wires.remember_lost_connection(self)
            self._forget()
        elif not self._closed:
            self._outgoing.put(ConnectionLost(f"{self._local}: connection reset by peer"))
            self._incoming.closed_by_receiver = True
            self._forget()

    def reset_after_restart(self) -> None:
        """Reset the connection if the peer has unacknowledged bytes, which it retransmits.

        Another peer gets the reset when it sends.
        """
        self._incoming.closed_by_receiver = True
        if self._incoming.in_flight_bytes and not self._closed:
            self._outgoing.put(ConnectionLost(f"{self._local}: connection reset by peer"))
        self.wake()

    def wake(self) -> None:
        """Wake the tasks that wait for either direction."""
        self._incoming.wake()
        self._outgoing.wake()

    def _receives_from_peer(self) -> bool:
        return not self._wires.faults.is_partitioned(self._peer.host, self._local.host)

    def _close(self, final_item: bytes | ConnectionLost) -> None:
        self._closed = True
        self._outgoing.put(final_item)
        self._incoming.closed_by_receiver = True
        self.wake()
        self._wires.changed.unpark_all()
        self._forget()

    def _forget(self) -> None:
        if self in self._wires.connections:
            self._wires.connections.remove(self)

    def _check(self) -> None:
        self._power.check()
        if self._closed:
            raise ConnectionLost("the connection was closed on this side")

    async def _wait_for_window(self) -> None:
        while not self._has_window():
            await self._outgoing.changed.park()

    def _has_window(self) -> bool:
        self._check()
        if self._outgoing.closed_by_receiver and self._receives_from_peer():
            raise ConnectionLost(f"{self._peer}: connection reset by peer")
        return self._outgoing.in_flight_bytes < WINDOW_BYTES

    def _pieces(self, parts: Sequence[Buffer | FileSlice]) -> Iterator[bytes]:
        """Split `parts` into the byte strings that are sent together.

        Adjacent small buffers are joined, as by writev(2); each piece of a file slice is separate.
        """
        joined = b""
        for part in parts:
            if not isinstance(part, FileSlice) and len(joined) + len(part) <= PIECE_BYTES:
                joined += part
                continue
            if joined:
                yield joined
                joined = b""
            size = part.size if isinstance(part, FileSlice) else len(part)
            for start in range(0, size, PIECE_BYTES):
                wanted = min(PIECE_BYTES, size - start)
                if not isinstance(part, FileSlice):
                    yield bytes(memoryview(part)[start : start + wanted])
                    continue
                piece = part.file.read_at(part.position + start, wanted)
                if len(piece) < wanted:
                    self.abort()
                    raise ConnectionLost(f"{part.file.path} ended inside a slice of it")
                yield bytes(piece)
        if joined:
            yield joined


class VirtualListener:
    def __init__(self, network: VirtualNetwork, address: Address) -> None:
        self._network = network
        self._address = address
        self._waiting: deque[VirtualConnection] = deque()
        self._changed = trio.lowlevel.ParkingLot()
        self._closed = False

    @property
    def address(self) -> Address:
        return self._address

    @property
    def power(self) -> Power:
        return self._network.power

    async def accept(self) -> Connection:
        self.power.check()
        await trio.lowlevel.checkpoint()
        while not self._waiting:
            if self._closed:
                raise ConnectionLost("the listener was closed")
            await self._changed.park()
            self.power.check()
        return self._waiting.popleft()

    async def aclose(self) -> None:
        self.power.check()
        self.forget()
        while self._waiting:
            self._waiting.popleft().abort()
        await trio.lowlevel.checkpoint()

    def forget(self) -> None:
        """Remove the listener from the network, and wake its waiting tasks."""
        self._closed = True
        listeners = self._network.wires.listeners
        key = (self._address.host, self._address.port)
        if listeners.get(key) is self:
            del listeners[key]
        self._changed.unpark_all()

    def offer(self, connection: VirtualConnection) -> None:
        self._waiting.append(connection)
        self._changed.unpark_all()


class VirtualNetwork:
    """The `Network` seam of one host."""

    def __init__(self, wires: VirtualWires, name: str, power: Power) -> None:
        self.wires = wires
        self.name = name
        self.power = power
        power.on_cut(self._lose_power)

    async def listen(
        self, host: str, port: int, options: SocketOptions = DEFAULT_OPTIONS
    ) -> list[Listener]:
        self.power.check()
        if self._resolve(host) != self.name:
            raise OSError(errno.EADDRNOTAVAIL, os.strerror(errno.EADDRNOTAVAIL), host)
        await trio.lowlevel.checkpoint()  # first: a cancelled caller binds nothing
        address = Address(self.name, port or self.wires.free_port())
        if (address.host, address.port) in self.wires.listeners:
            raise OSError(errno.EADDRINUSE, os.strerror(errno.EADDRINUSE), str(address))
        listener = VirtualListener(self, address)
        self.wires.listeners[address.host, address.port] = listener
        return [listener]

    async def connect(self, host: str, port: int) -> VirtualConnection:
        self.power.check()
        there = Address(self._resolve(host), port)
        here = Address(self.name, self.wires.free_port())
        await self.wires.sleep(2 * self.wires.delay_seconds(here.host, there.host))
        while (
            self.wires.is_silent(there.host)
            or self.wires.faults.is_blocked(here.host, there.host)
            or self.wires.faults.is_blocked(there.host, here.host)
        ):
            await self.wires.changed.park()
        self.power.check()
        listener = self.wires.listeners.get((there.host, there.port))
        if listener is None:
            raise ConnectionRefused(f"{there}: connection refused")
        there_to_here = VirtualDirection(self.wires, there.host, here.host)
        here_to_there = VirtualDirection(self.wires, here.host, there.host)
        theirs = VirtualConnection(
            self.wires, listener.power, (there, here), here_to_there, there_to_here
        )
        listener.offer(theirs)
        return VirtualConnection(
            self.wires, self.power, (here, there), there_to_here, here_to_there
        )

    async def own_name(self) -> str:
        return self.name

    def selector(self) -> Selector:
        return EachAlone()

    def _resolve(self, host: str) -> str:
        return self.name if host in _THIS_HOST else host

    def _lose_power(self) -> None:
        for listener in list(self.wires.listeners.values()):
            if listener.power is self.power:
                listener.forget()
        for connection in list(self.wires.connections):
            if connection.power is self.power:
                connection.lose_power()
