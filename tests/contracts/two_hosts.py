"""Two hosts of a network, for the contract of the network seam."""

from __future__ import annotations

import socket
from dataclasses import dataclass

from odradek.seams.network import Connection, Network


@dataclass
class TwoHosts:
    """The networks of a server and of a client, and the server's host name for the client."""

    server: Network
    client: Network
    name: str
    whole_frame_bytes: int
    """Size of a frame that a full network accepts as a whole or not at all (bytes)."""

    async def connected(self) -> tuple[Connection, Connection]:
        """Return the client's connection and the server's."""
        [listener] = await self.server.listen(self.name, 0)
        client = await self.client.connect(self.name, listener.address.port)
        server = await listener.accept()
        await listener.aclose()
        return client, server


def has_ipv6() -> bool:
    try:
        with socket.socket(socket.AF_INET6) as probe:
            probe.bind(("::1", 0))
    except OSError:
        return False
    return True


async def receive(connection: Connection, size: int) -> bytes:
    """Return `size` bytes, or the bytes before the end of the stream."""
    buffer = memoryview(bytearray(size))
    got = 0
    while got < size:
        more = await connection.receive_into(buffer[got:])
        if not more:
            break
        got += more
    return bytes(buffer[:got])
