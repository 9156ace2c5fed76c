"""Requests as bytes, and the blocking sockets that tests send them over."""

from __future__ import annotations

import socket
import struct
from collections.abc import Mapping
from typing import Any

from odradek.protocol import apis, messages
from odradek.protocol.apis import Api
from odradek.protocol.framing import read_response_header, request_header
from odradek.testing import Broker

RESPONSE_SECONDS = 5.0


def framed(request: bytes) -> bytes:
    """Return the request after its size."""
    return struct.pack(">i", len(request)) + request


def request_frame(api: Api, version: int, correlation_id: int, values: Mapping[str, Any]) -> bytes:
    """Return a request as it is sent, its size included."""
    head = request_header(api, version, correlation_id, "test")
    return framed(head + messages.write_request(api.key, version, values))


def fetch_frame(correlation_id: int, offset: int, wait_ms: int = 0, *, topic: str = "t") -> bytes:
    """Return a Fetch request for at most 1 MiB of partition 0."""
    partition = {"partition": 0, "fetch_offset": offset, "partition_max_bytes": 2**20}
    return request_frame(
        apis.FETCH,
        12,
        correlation_id,
        {
            "max_wait": wait_ms,
            "min_bytes": 1,
            "max_bytes": 2**20,
            "topics": [{"topic": topic, "partitions": [partition]}],
        },
    )


def connect(broker: Broker) -> socket.socket:
    """Connect to the broker; a read fails after RESPONSE_SECONDS."""
    sock = socket.create_connection((broker.host, broker.port), timeout=RESPONSE_SECONDS)
    sock.settimeout(RESPONSE_SECONDS)
    return sock


def receive_exactly(sock: socket.socket, size: int) -> bytes:
    """Read `size` bytes; AssertionError if the connection ends before."""
    data = bytearray()
    while len(data) < size:
        piece = sock.recv(size - len(data))
        assert piece, f"the connection was closed after {len(data)} of {size} bytes"
        data += piece
    return bytes(data)


def receive_frame(sock: socket.socket) -> bytes:
    """Read one response, without its size; AssertionError if the connection ends before."""
    (size,) = struct.unpack(">i", receive_exactly(sock, 4))
    return receive_exactly(sock, size)


def read_frame(sock: socket.socket) -> bytes:
    """Read one response, without its size; empty if the broker closed the connection."""
    data = b""
    try:
        while len(data) < 4 or len(data) < 4 + struct.unpack_from(">i", data)[0]:
            piece = sock.recv(65536)
            if not piece:
                return b""
            data += piece
    except ConnectionResetError:
        return b""
    return data[4:]


def read_correlation_ids(sock: socket.socket, count: int) -> list[int]:
    """Read the next responses; return their correlation ids."""
    return [int.from_bytes(receive_frame(sock)[:4], "big") for _ in range(count)]


def ask(broker: Broker, api: apis.Api, version: int, values: dict[str, Any]) -> Any:
    """Send one request on a new connection; return its response, or None if the broker closed the connection."""
    with connect(broker) as sock:
        sock.sendall(request_frame(api, version, 5, values))
        view = memoryview(read_frame(sock))
    if not view:
        return None
    _, start = read_response_header(api, version, view)
    return messages.read_response(api.key, version, view, start)
