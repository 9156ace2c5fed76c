"""Tests of idle timeouts of client connections (connections.max.idle.ms)."""

from __future__ import annotations

import socket
import struct
import time
from datetime import timedelta

import pytest
import trio

from odradek.broker.network import connection
from odradek.broker.network.receive_buffer import BUSY_BYTES, ReceiveBuffer
from odradek.protocol import apis
from odradek.testing import Broker
from tests.broker.network.unread_responses import (
    VALUE_BYTES,
    VALUES,
    ask_for_everything,
    fill,
    numbers_in,
    wait_until_sending,
)
from tests.support.brokers import broker_fixture
from tests.support.client_quotas import set_client_quotas
from tests.support.produce_requests import produce_frame
from tests.support.raw_client import RawClient
from tests.support.raw_requests import (
    connect,
    fetch_frame,
    read_correlation_ids,
    read_frame,
    request_frame,
)

IDLE_SECONDS = 1.0
PAUSE_SECONDS = 0.004
GROUP = "of those that wait"


broker = broker_fixture(
    topics={"t": 1, "empty": 1, "small": 1, "few": 1},
    configs={"connections.max.idle.ms": str(int(1000 * IDLE_SECONDS))},
)


def drain(sock: socket.socket) -> int:
    """Number of bytes before the end of the stream or a reset."""
    count = 0
    try:
        while piece := sock.recv(1 << 20):
            count += len(piece)
    except ConnectionResetError:
        pass
    return count


def test_silent_connection_is_closed(broker: Broker) -> None:
    with connect(broker) as sock:
        assert drain(sock) == 0


def test_connection_idle_after_response_is_closed(broker: Broker) -> None:
    with connect(broker) as sock:
        for number in range(3):
            sock.sendall(produce_frame(number, topic="small"))
            assert read_correlation_ids(sock, 1) == [number]
        assert drain(sock) == 0


def test_client_that_stops_reading_is_closed_and_files_unpinned(broker: Broker) -> None:
    fill(broker)

    async def pins() -> int:
        log = (await broker.node.partitions.get("t", None, 0)).log
        return sum(segment.file.pins for segment in log.segments)

    async def until_let_go() -> None:
        with trio.fail_after(20):
            while await pins():
                await trio.sleep(0.01)

    with ask_for_everything(broker) as sock:
        broker._call(wait_until_sending, broker)
        broker._call(until_let_go)  # the client has read nothing meanwhile
        assert drain(sock) < VALUES * VALUE_BYTES


def test_slow_reader_is_not_closed(broker: Broker) -> None:
    began = time.monotonic()
    with ask_for_everything(broker) as sock:
        assert numbers_in(read_slowly(sock))[:VALUES] == list(range(VALUES))
    assert time.monotonic() - began > IDLE_SECONDS


def read_slowly(sock: socket.socket) -> bytes:
    """Read in pieces over a longer time than the limit."""
    data = bytearray()
    wanted = 4
    piece_bytes = int(VALUES * VALUE_BYTES * PAUSE_SECONDS / (2 * IDLE_SECONDS))
    while len(data) < wanted:
        data += sock.recv(piece_bytes)
        if len(data) >= 4:
            wanted = 4 + struct.unpack_from(">i", data)[0]
        time.sleep(PAUSE_SECONDS)
    return bytes(data[4:])


def test_waiting_fetch_after_response_is_not_closed(
    broker: Broker,
) -> None:
    """Both requests arrived together; the first was completed by an append."""
    with connect(broker) as sock, connect(broker) as producer:
        long_ms = int(3000 * IDLE_SECONDS)
        sock.sendall(
            fetch_frame(1, 0, long_ms, topic="few") + fetch_frame(2, 1, long_ms, topic="few")
        )
        time.sleep(IDLE_SECONDS / 4)
        producer.sendall(produce_frame(0, topic="few"))
        assert read_correlation_ids(producer, 1) == [0]
        assert read_correlation_ids(sock, 2) == [1, 2]


def test_waiting_fetch_is_not_closed(broker: Broker) -> None:
    request = request_frame(
        apis.FETCH,
        12,
        1,
        {
            "replica_id": -1,
            "max_wait": int(3000 * IDLE_SECONDS),
            "min_bytes": 1,
            "topics": [
                {
                    "topic": "empty",
                    "partitions": [{"partition": 0, "fetch_offset": 0, "partition_max_bytes": 100}],
                }
            ],
            "forgotten_topics_data": [],
        },
    )
    with connect(broker) as sock:
        sock.sendall(request)
        assert read_frame(sock) != b""


def test_fetch_wait_is_limited_by_max_idle(broker: Broker) -> None:
    """So a client that disconnects meanwhile is noticed, even if it requested a wait of weeks."""
    weeks_ms = 2**31 - 1
    with connect(broker) as sock:
        sock.sendall(fetch_frame(1, 0, weeks_ms, topic="empty"))
        assert read_correlation_ids(sock, 1) == [1]


def test_client_that_disconnects_during_a_fetch_is_removed(broker: Broker) -> None:
    """JoinGroup waits for another member with an unlimited rebalance timeout."""
    server = broker.node.server
    with connect(broker) as first, connect(broker) as second:
        find = {"key": GROUP, "key_type": 0}
        first.sendall(request_frame(apis.FIND_COORDINATOR, 3, 1, find) + join(2))
        assert read_correlation_ids(first, 2) == [1, 2]
        second.sendall(join(3))
        time.sleep(2.5 * IDLE_SECONDS)
        assert len(server._connections) == 1  # it is connected; the other one was idle
        second.sendall(produce_frame(4, topic="small"))  # later requests do not hide the disconnect
    deadline = time.monotonic() + 10 * IDLE_SECONDS
    while server._connections:
        assert time.monotonic() < deadline
        time.sleep(PAUSE_SECONDS)
    assert not server._per_host


def join(number: int) -> bytes:
    long = timedelta(minutes=5)
    values = {
        "group_id": GROUP,
        "session_timeout": long,
        "rebalance_timeout": long,
        "member_id": "",
        "protocol_type": "consumer",
        "protocols": [{"name": "range", "metadata": b""}],
    }
    return request_frame(apis.JOIN_GROUP, 3, number, values)


def test_idle_connection_releases_its_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection, "MEMORY_KEPT_SECONDS", IDLE_SECONDS / 10)
    given_back: list[ReceiveBuffer] = []
    monkeypatch.setattr(ReceiveBuffer, "give_back", lambda buffer: given_back.append(buffer))
    configs = {"connections.max.idle.ms": str(int(4 * 1000 * IDLE_SECONDS))}
    with Broker(topics={"t": 1}, configs=configs) as broker, connect(broker) as sock:
        for number in (1, 2):
            sock.sendall(produce_frame(number, size=BUSY_BYTES // 2, topic="t"))
            assert read_correlation_ids(sock, 1) == [number]
            (client,) = broker.node.server._connections
            time.sleep(2.5 * IDLE_SECONDS)  # it is checked two or three times
            assert given_back.count(client._buffer) == number, "once for each time of silence"


def test_connection_throttled_beyond_max_idle_is_closed(broker: Broker) -> None:
    """A throttled connection is not read, so a disconnect would not be noticed for days."""
    with RawClient(broker.bootstrap) as client:
        set_client_quotas(client, producer_byte_rate=1.0)
    try:
        with connect(broker) as sock:
            sock.sendall(produce_frame(1, size=1000, topic="small"))
            assert read_correlation_ids(sock, 1) == [1]
            assert drain(sock) == 0
    finally:
        with RawClient(broker.bootstrap) as client:  # the other one was idle for the same time
            set_client_quotas(client)


def test_negative_max_idle_closes_no_connection() -> None:
    configs = {"connections.max.idle.ms": "-1"}
    with Broker(topics={"small": 1}, configs=configs) as running, connect(running) as sock:
        time.sleep(0.2)
        sock.sendall(produce_frame(1, topic="small"))
        assert read_correlation_ids(sock, 1) == [1]
