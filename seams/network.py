"""Connections: interfaces. The real ones are in `tcp.py`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from odradek.seams.files import Buffer, FileSlice
from odradek.seams.values import value_class


@value_class
class Address:
    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


class ConnectionLost(Exception):
    """The peer is gone, or the connection was closed or aborted on this side."""


class ConnectionRefused(ConnectionLost):
    """The host answers, and nobody listens there."""


class Connection(Protocol):
    @property
    def local(self) -> Address: ...

    @property
    def peer(self) -> Address: ...

    @property
    def sent_bytes(self) -> int:
        """How much the transport took so far: tells a slow reader from one that stopped reading."""
        ...

    async def receive_into(self, view: memoryview) -> int:
        """Wait for bytes and put them into `view`; how many, 0 at the end. ConnectionLost on error.

        Cancelled, it has taken none. Yields at least every MiB and every 64 calls. After the end
        (the peer may have closed its sending half only) sending still works.
        """
        ...

    async def wait_readable(self) -> None:
        """Return when there is something to receive, the end and an error of the peer's included, or at
        `interrupt`. ConnectionLost where it is closed on this side. Not beside `receive_into`."""
        ...

    def interrupt(self) -> None:
        """Have whoever is in `wait_readable` return; nothing if nobody is."""
        ...

    @property
    def is_hung_up(self) -> bool:
        """Whether the peer has closed, aborted or lost the connection, or its sending half of it: seen without
        receiving, also behind bytes that nobody has received yet. False once closed on this side."""
        ...

    async def send(self, parts: Sequence[Buffer | FileSlice]) -> None:
        """Send all parts in order. One sender at a time.

        TCP sends a large slice by sendfile and yields at least every MiB. Whatever fails or is
        cancelled after the first byte aborts the connection: half a frame is never followed by
        another. The caller keeps the slices' files pinned until this returns or raises.

        ConnectionLost also when a file ends inside its slice (it was truncated); OSError when the
        disk fails, or no descriptor is to be had; trio.BusyResourceError for a second sender.
        """
        ...

    def send_nowait(self, data: Buffer) -> int:
        """Send what the transport takes at once; how many bytes, from the first on.

        The rest, if any, is the caller's to `send` next. ConnectionLost and trio.BusyResourceError
        as for `send`, with nothing sent.
        """
        ...

    def abort(self) -> None:
        """Close at once, by a reset; pending calls raise ConnectionLost. Idempotent."""
        ...

    async def aclose(self) -> None:
        """Close; what was sent is still delivered, but where that ends inside a frame: then as `abort`.

        Pending calls raise ConnectionLost. Idempotent.
        """
        ...


class Receiver(Protocol):
    """Who takes what a connection receives without a task for it; called on the loop, synchronously."""

    def room(self) -> memoryview:
        """Where to receive next; never empty."""
        ...

    def take(self, size_bytes: int) -> bool:
        """So much was received; 0 is the end. False where a task has to go on with it."""
        ...

    def end_turn(self) -> bool:
        """Whoever else had received something has taken it, too; in the same step as `take`, if that said
        True. False where a task has to go on."""
        ...


class Selector(Protocol):
    """Receives on many connections; a connection is with one of them or received on by itself."""

    async def run(self) -> None:
        """Receive for all, until cancelled."""
        ...

    async def receive(self, connection: Connection, receiver: Receiver) -> None:
        """Have `receiver` take what comes on a connection of the same network, until it says False.

        ConnectionLost on error; what the receiver raises is raised here. Cancelled, no bytes are lost.
        """
        ...


class Listener(Protocol):
    @property
    def address(self) -> Address:
        """Where it listens, the port that was picked for port 0 included."""
        ...

    async def accept(self) -> Connection:
        """The next connection; ConnectionLost once the listener is closed.

        Nothing that a peer does is an error here, nor is running out of descriptors: that is
        logged and waited for.
        """
        ...

    async def aclose(self) -> None:
        """Stop listening. Idempotent."""
        ...


@value_class
class SocketOptions:
    """What accepted connections get; -1 leaves a buffer to the operating system.

    A send buffer that the system lets grow takes a slice of a MiB in one call; in one of 100 KiB the
    same slice is six calls and three passes of the loop, each ended by the peer's reading.
    """

    send_buffer_bytes: int = -1
    receive_buffer_bytes: int = -1
    backlog: int = 1024
    """How many connections may wait to be accepted."""


DEFAULT_OPTIONS = SocketOptions()


class Network(Protocol):
    async def listen(
        self, host: str, port: int, options: SocketOptions = DEFAULT_OPTIONS
    ) -> list[Listener]:
        """Listen on every address of `host` ('' is all, IPv4 and IPv6); one port for all of them.

        OSError as bind(2) has it (EADDRINUSE, EADDRNOTAVAIL, EACCES) or as the resolver has it. An
        address of a family that this machine lacks is left out if another is there.
        """
        ...

    async def connect(self, host: str, port: int) -> Connection:
        """ConnectionRefused where nobody listens; ConnectionLost if nobody answers, or none can be made."""
        ...

    async def own_name(self) -> str:
        """What this machine is called, by which others may find it; localhost if it does not know itself."""
        ...

    def selector(self) -> Selector: ...
