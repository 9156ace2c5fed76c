"""Requests as bytes, for tests that send them over sockets of their own."""

from __future__ import annotations

import socket
import struct
from collections.abc import Mapping
from typing import Any

from odradek.protocol import apis, messages
from odradek.protocol.apis import Api
from odradek.protocol.framing import read_response_header, request_header
from odradek.protocol.records.records import Record, build_batch
from odradek.testing import Broker


def framed(request: bytes) -> bytes:
    """Behind its size."""
    return struct.pack(">i", len(request)) + request


def request_frame(api: Api, version: int, number: int, values: Mapping[str, Any]) -> bytes:
    """A whole request; `number` is its correlation id."""
    head = request_header(api, version, number, "test")
    return framed(head + messages.write_request(api.key, version, values))


RESPONSE_SECONDS = 5.0


def connect(broker: Broker) -> socket.socket:
    sock = socket.create_connection((broker.host, broker.port), timeout=RESPONSE_SECONDS)
    sock.settimeout(RESPONSE_SECONDS)
    return sock


def read_frame(sock: socket.socket) -> bytes:
    """One response; empty if the broker closed the connection."""
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


def ask(broker: Broker, api: apis.Api, version: int, values: dict[str, Any]) -> Any:
    """One request on a connection of its own; None where the broker closed it."""
    request = request_frame(api, version, 5, values)
    with connect(broker) as sock:
        sock.sendall(request)
        view = memoryview(read_frame(sock))
    if not view:
        return None
    _, start = read_response_header(api, version, view)
    return messages.read_response(api.key, version, view, start)


PRODUCE_VERSION = 9


def produce_frame(number: int, *, size: int = 10, acks: int = 1, topic: str = "t") -> bytes:
    records = bytes(build_batch([Record(0, 1_700_000_000_000, None, b"v" * size, ())]))
    return request_frame(
        apis.PRODUCE,
        PRODUCE_VERSION,
        number,
        {
            "transactional_id": None,
            "acks": acks,
            "timeout": 1000,
            "topic_data": [{"name": topic, "partition_data": [{"index": 0, "records": records}]}],
        },
    )


def fetch_frame(number: int, offset: int, wait_ms: int = 0, *, topic: str = "t") -> bytes:
    partition = {"partition": 0, "fetch_offset": offset, "partition_max_bytes": 2**20}
    return request_frame(
        apis.FETCH,
        12,
        number,
        {
            "max_wait": wait_ms,
            "min_bytes": 1,
            "max_bytes": 2**20,
            "topics": [{"topic": topic, "partitions": [partition]}],
        },
    )


def read_correlation_ids(sock: socket.socket, count: int) -> list[int]:
    """Correlation ids of the next responses."""
    found = []
    for _ in range(count):
        (size,) = struct.unpack(">i", exactly(sock, 4))
        found.append(int.from_bytes(exactly(sock, size)[:4], "big"))
    return found


def exactly(sock: socket.socket, count: int) -> bytes:
    data = b""
    while len(data) < count:
        piece = sock.recv(count - len(data))
        assert piece, f"closed after {len(data)} of {count} bytes"
        data += piece
    return data
