"""The memory of incomplete requests is limited (queued.max.request.bytes)."""

from __future__ import annotations

import socket
import struct
import time
from concurrent.futures import ThreadPoolExecutor

from odradek.broker.network.receive_buffer import ReceiveBuffer
from odradek.broker.network.receive_memory import ReceiveMemory
from odradek.protocol import apis
from odradek.testing import Broker
from tests.support.produce_requests import produce_frame
from tests.support.raw_requests import connect, read_correlation_ids, request_frame
from tests.support.waiting import wait_until

MIB = 1 << 20
FRAME_BYTES = 4 * MIB


def test_size_of_a_large_incomplete_frame_is_known_from_its_prefix() -> None:
    buffer = ReceiveBuffer(FRAME_BYTES, is_limited=True)
    buffer.free_space()[:4] = FRAME_BYTES.to_bytes(4, "big")
    buffer.received(3)
    assert buffer.large_frame_bytes == 0
    buffer.received(1)
    assert buffer.large_frame_bytes == FRAME_BYTES + 4


def test_memory_is_exhausted_at_the_limit_until_a_release() -> None:
    memory = ReceiveMemory(MIB)
    memory.reserve(MIB - 1)
    assert not memory.is_exhausted
    memory.reserve(MIB)  # the total may exceed the limit by one request
    assert memory.is_exhausted
    memory.release(MIB)
    assert not memory.is_exhausted


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


def test_competing_large_requests_are_all_handled() -> None:
    configs = {"queued.max.request.bytes": "2000000", "socket.request.max.bytes": "2000000"}
    with Broker(topics={"t": 1}, configs=configs) as broker:

        def produce(number: int) -> None:
            with connect(broker) as sock:
                sock.settimeout(30)
                for request in range(3):
                    sock.sendall(produce_frame(request, size=900_000))
                    assert read_correlation_ids(sock, 1) == [request]

        with ThreadPoolExecutor(8) as pool:
            list(pool.map(produce, range(8)))
        memory = broker.node.services.receive_memory
        wait_until(lambda: memory.reserved_bytes == 0, 10, what="release of the memory")


def test_memory_of_a_disconnected_client_is_released() -> None:
    configs = {
        "queued.max.request.bytes": str(FRAME_BYTES),
        "socket.request.max.bytes": str(FRAME_BYTES),
    }
    with Broker(topics={"t": 1}, configs=configs) as broker:
        memory = broker.node.services.receive_memory
        stuck = [connect(broker) for _ in range(3)]
        for each in stuck:
            each.sendall(FRAME_BYTES.to_bytes(4, "big") + bytes(100_000))
        wait_until(lambda: memory.is_exhausted)
        for each in stuck:
            each.close()
        wait_until(lambda: memory.reserved_bytes == 0)
        with connect(broker) as sock:
            sock.settimeout(30)
            sock.sendall(produce_frame(1, size=900_000))
            assert read_correlation_ids(sock, 1) == [1]
