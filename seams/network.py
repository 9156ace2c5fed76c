"""Connections: interfaces. The real ones are in `tcp.py`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from odradek.seams.files import Buffer, FileSlice


@dataclass(frozen=True, slots=True)
class Address:
    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


class ConnectionLost(Exception):
    """The peer is gone, or the connection was closed or aborted on this side."""


class Connection(Protocol):
    @property
    def local(self) -> Address: ...

    @property
    def peer(self) -> Address: ...

    async def receive_into(self, view: memoryview) -> int:
        """Wait for bytes and put them into `view`; how many, 0 at the end. ConnectionLost on error."""
        ...

    async def send(self, parts: Sequence[Buffer | FileSlice]) -> None:
        """Send all parts in order. One sender at a time.

        TCP sends a slice by sendfile and yields at least every MiB. Whatever fails or is cancelled
        after the first byte aborts the connection: half a frame is never followed by another. The
        caller keeps the slices' files pinned until this returns or raises.
        """
        ...

    def abort(self) -> None:
        """Close at once; pending calls raise ConnectionLost."""
        ...

    async def aclose(self) -> None: ...


class Listener(Protocol):
    @property
    def address(self) -> Address:
        """Where it listens, the port that was picked for port 0 included."""
        ...

    async def accept(self) -> Connection: ...

    async def aclose(self) -> None: ...


class Network(Protocol):
    async def listen(self, host: str, port: int) -> list[Listener]:
        """Listen on every address of `host` ('' is all, IPv4 and IPv6); one port for all of them."""
        ...

    async def connect(self, host: str, port: int) -> Connection:
        """ConnectionLost if nobody answers."""
        ...
