"""Two hosts of a network, for the contract of the network seam."""

from __future__ import annotations

import socket
from dataclasses import dataclass

from odradek.seams.network import Connection, Network


@dataclass
class TwoHosts:
    """A network as a server has it and as a client has it, and what the client calls the server."""

    server: Network
    client: Network
    name: str
    whole_frame_bytes: int
    """A frame so small that a full network takes it whole or not at all."""

    async def connected(self) -> tuple[Connection, Connection]:
        """(the client's end, the server's end)"""
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
    """Exactly `size` bytes, or what came before the end."""
    room = memoryview(bytearray(size))
    got = 0
    while got < size:
        more = await connection.receive_into(room[got:])
        if not more:
            break
        got += more
    return bytes(room[:got])
