"""The memory of incomplete requests is limited (queued.max.request.bytes)."""

from __future__ import annotations

import socket
import struct
import time

from odradek.broker.network.receive_buffer import FIRST_BYTES, ReceiveBuffer
from odradek.broker.network.receive_memory import ReceiveMemory
from odradek.protocol import apis
from odradek.testing import Broker
from tests.support.raw_requests import connect, request_frame

MIB = 1 << 20
FRAME_BYTES = 4 * MIB


def receive(buffer: ReceiveBuffer, data: bytes) -> None:
    while data:
        space = buffer.free_space()
        piece, data = data[: len(space)], data[len(space) :]
        space[: len(piece)] = piece
        buffer.received(len(piece))


def test_buffer_counts_its_memory_until_it_is_given_back() -> None:
    memory = ReceiveMemory(MIB)
    buffer = ReceiveBuffer(FRAME_BYTES, memory)
    assert memory.used_bytes == 0
    receive(buffer, (FRAME_BYTES // 2).to_bytes(4, "big") + bytes(FIRST_BYTES))
    assert buffer.must_grow
    receive(buffer, bytes(FRAME_BYTES // 2 - FIRST_BYTES))
    assert memory.used_bytes >= FRAME_BYTES // 2
    assert memory.is_exhausted
    assert buffer.next_frame() is not None
    buffer.give_back()
    assert (memory.used_bytes, memory.is_exhausted) == (0, False)
    receive(buffer, (10).to_bytes(4, "big") + bytes(10))
    assert memory.used_bytes >= FRAME_BYTES // 2  # its memory is in use again
    buffer.close()
    assert memory.used_bytes == 0


def metadata(number: int) -> bytes:
    return request_frame(apis.METADATA, 9, number, {"topics": None})


def sent_bytes(connection: socket.socket, data: bytes) -> int:
    """Send until the broker reads no more; the number of bytes that were accepted."""
    connection.settimeout(0.5)
    sent = 0
    try:
        while sent < len(data):
            sent += connection.send(data[sent : sent + MIB // 4])
    except TimeoutError:
        pass
    return sent


def test_incomplete_requests_at_the_memory_limit_wait_and_small_ones_do_not() -> None:
    configs = {
        "queued.max.request.bytes": str(FRAME_BYTES),
        "socket.request.max.bytes": str(FRAME_BYTES),
        "socket.receive.buffer.bytes": "65536",
    }
    part = FRAME_BYTES.to_bytes(4, "big") + bytes(FRAME_BYTES * 3 // 4)
    with Broker(configs=configs) as broker:
        stuck = [connect(broker) for _ in range(6)]
        for each in stuck:
            each.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 65_536)
        accepted = [sent_bytes(each, part) for each in stuck]
        assert accepted[0] == len(part)
        assert min(accepted) < len(part) // 2
        with connect(broker) as small:
            small.settimeout(10)
            small.sendall(metadata(7))
            (size,) = struct.unpack(">i", small.recv(4, socket.MSG_WAITALL))
            assert small.recv(size, socket.MSG_WAITALL)[:4] == (7).to_bytes(4, "big")
        last = stuck.pop()
        for each in stuck:
            each.close()
        rest, deadline = part[accepted[-1] :], time.monotonic() + 20
        while rest and time.monotonic() < deadline:
            rest = rest[sent_bytes(last, rest) :]
        assert not rest  # the memory of the closed connections is free
        last.close()
