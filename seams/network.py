"""Network seam: connections, listeners and selectors. `tcp.py` implements it. Also yields the CPU to clients on this machine."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
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
    """The peer disconnected, or this side closed or aborted the connection."""


class ConnectionRefused(ConnectionLost):
    """The host refused the connection, because no process listens on the port."""


class Connection(Protocol):
    @property
    def local(self) -> Address: ...

    @property
    def peer(self) -> Address: ...

    @property
    def sent_bytes(self) -> int:
        """Bytes that the transport has accepted. They distinguish a slow reader from one that has stopped reading."""
        ...

    async def receive_into(self, view: memoryview) -> int:
        """Wait for bytes and store them in `view`; return how many, 0 at the end of the stream.

        Raises ConnectionLost. A cancelled call has received nothing. It is a checkpoint at least every MiB and every 64
        calls. After the end of the stream, sending still works, because the peer may have closed only its sending half.
        """
        ...

    async def wait_readable(self) -> None:
        """Wait until bytes, the end of the stream or an error can be received, or until `interrupt` is called.

        Raises ConnectionLost if this side has closed the connection. Do not call it while `receive_into` runs.
        """
        ...

    def interrupt(self) -> None:
        """Make a running `wait_readable` return."""
        ...

    @property
    def is_hung_up(self) -> bool:
        """Whether the peer has closed or aborted the connection, or closed its sending half.

        It does not receive, and it also detects the end after unreceived bytes. False after this side has closed.
        """
        ...

    async def send(self, parts: Sequence[Buffer | FileSlice]) -> None:
        """Send all parts in order. Only one task may send at a time.

        TCP sends a large slice with sendfile and yields at least every MiB. An error or a cancellation after the first
        byte aborts the connection, so that no frame follows an incomplete one. The caller keeps the files of slices
        pinned until the call ends.

        Raises ConnectionLost, also if a file was truncated inside its slice; OSError if the disk fails or no descriptor
        is available; trio.BusyResourceError for a second sender.
        """
        ...

    def send_nowait(self, data: Buffer) -> int:
        """Send the bytes that the transport accepts without waiting; return how many.

        The caller must send the rest with `send` next. Raises ConnectionLost and trio.BusyResourceError like `send`,
        without sending.
        """
        ...

    def abort(self) -> None:
        """Reset the connection; pending calls raise ConnectionLost. Idempotent."""
        ...

    async def aclose(self) -> None:
        """Close the connection after delivering sent bytes, or abort it after an incomplete frame.

        Pending calls raise ConnectionLost. Idempotent.
        """
        ...


class Receiver(Protocol):
    """Receives the bytes of a connection without a task; the event loop calls it synchronously."""

    def free_space(self) -> memoryview:
        """Return the buffer for the next bytes; it is never empty."""
        ...

    def take(self, size_bytes: int) -> bool:
        """Process received bytes (0: end of the stream). Returns False if a task must continue."""
        ...

    def end_turn(self) -> bool:
        """Run after all receivers of this step have processed their bytes, if `take` returned True.

        Returns False if a task must continue.
        """
        ...


class Selector(Protocol):
    """Receives on many connections in one task. A connection is received by a selector or by its own task."""

    async def run(self) -> None:
        """Receive on all connections until cancelled."""
        ...

    async def receive(self, connection: Connection, receiver: Receiver) -> None:
        """Pass the bytes of a connection of the same network to `receiver` until it returns False.

        Raises ConnectionLost, and the receiver's errors. A cancellation loses no bytes.
        """
        ...


class Listener(Protocol):
    @property
    def address(self) -> Address:
        """Address of the listener, with the selected port if port 0 was requested."""
        ...

    async def accept(self) -> Connection:
        """Accept the next connection. Raises ConnectionLost after the listener is closed.

        Errors of peers are ignored. If no descriptor is available, it logs that and waits.
        """
        ...

    async def aclose(self) -> None:
        """Stop listening and close the socket. Idempotent."""
        ...


@value_class
class SocketOptions:
    """Options of accepted connections; -1 leaves a buffer size to the operating system.

    A send buffer that the system grows accepts a slice of 1 MiB in one call. With a buffer of 100 KiB, the same slice
    needs six calls in three iterations of the loop.
    """

    send_buffer_bytes: int = -1
    receive_buffer_bytes: int = -1
    backlog: int = 1024
    """Length of the queue of connections that are not accepted yet."""


DEFAULT_OPTIONS = SocketOptions()


class Network(Protocol):
    async def listen(
        self, host: str, port: int, options: SocketOptions = DEFAULT_OPTIONS
    ) -> list[Listener]:
        """Listen on every address of `host` ('' is all, IPv4 and IPv6) with the same port.

        Raises OSError of bind(2) (EADDRINUSE, EADDRNOTAVAIL, EACCES) or of the resolver. Addresses of a family that the
        machine does not support are skipped if there is another one.
        """
        ...

    async def connect(self, host: str, port: int) -> Connection:
        """Connect. Raises ConnectionRefused if no process listens, ConnectionLost for other errors."""
        ...

    async def own_name(self) -> str:
        """Return the host name for other machines, or localhost if it cannot be resolved."""
        ...

    def selector(self) -> Selector: ...


let_others_run: Callable[[], None] = getattr(os, "sched_yield", lambda: None)
"""Yield this CPU to other runnable processes: half a microsecond without any, milliseconds if one computes.

The kernel usually wakes the receiver of data on the sender's CPU, because it expects the sender to sleep soon. Without
a yield, the receiver waits until the sender sleeps.
"""
