"""Reads of an exact number of bytes from a connection."""

from __future__ import annotations

from odradek.seams.network import (
    Connection,
)


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
