"""Tests of pipelined requests, and of requests that are handled without a task."""

from __future__ import annotations

import socket
import struct

import pytest
import trio
import trio.testing

from odradek.broker.network import connection as connection_module
from odradek.broker.timers import BusyConnectionQueue
from odradek.protocol import apis
from odradek.seams.tcp import TcpNetwork
from odradek.testing import Broker
from tests.support.brokers import broker_fixture
from tests.support.produce_requests import produce_frame
from tests.support.raw_requests import connect, fetch_frame, read_correlation_ids, request_frame

LARGE_BYTES = 100_000
TIMEOUT_SECONDS = 20


broker = broker_fixture(
    scope="function", topics={"t": 1}, configs={"socket.send.buffer.bytes": "4096"}
)


def metadata(number: int) -> bytes:
    return request_frame(apis.METADATA, 9, number, {"topics": None})


def mixed() -> list[bytes]:
    """Requests numbered by position: immediate, with disk access, with a yield, and with a wait."""
    return [
        produce_frame(0),
        produce_frame(1),
        metadata(2),
        produce_frame(3),
        fetch_frame(4, 0),
        produce_frame(5, size=LARGE_BYTES),
        produce_frame(6),
        produce_frame(7, acks=-1),
        fetch_frame(8, 6, wait_ms=50),
        produce_frame(9),
        produce_frame(10, topic="there is no such topic"),
        produce_frame(11),
    ]


def end_offset(broker: Broker) -> int:
    async def end() -> int:
        return (await broker.node.partitions.get("t", None, 0)).log.end_offset

    return broker._call(end)


def test_responses_keep_the_order_of_pipelined_requests(broker: Broker) -> None:
    requests = mixed()
    with connect(broker) as sock:
        sock.sendall(b"".join(requests))
        assert read_correlation_ids(sock, len(requests)) == list(range(len(requests)))
    assert end_offset(broker) == 8


def test_sequential_requests_get_responses(broker: Broker) -> None:
    with connect(broker) as sock:
        for _ in range(2):
            for number, request in enumerate(mixed()):
                sock.sendall(request)
                assert read_correlation_ids(sock, 1) == [number]
    assert end_offset(broker) == 16


def test_fragmented_requests_get_responses(broker: Broker) -> None:
    both = produce_frame(0) + produce_frame(1)
    with connect(broker) as sock:
        sock.sendall(produce_frame(9))
        assert read_correlation_ids(sock, 1) == [9]
        for position in range(0, len(both), 7):
            sock.sendall(both[position : position + 7])
        assert read_correlation_ids(sock, 2) == [0, 1]


def test_client_that_reads_late_gets_all_responses(broker: Broker) -> None:
    """More responses than the socket buffers hold."""
    count = 400
    with connect(broker) as sock:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        sock.sendall(produce_frame(count))
        assert read_correlation_ids(sock, 1) == [count]
        for number in range(count):
            sock.sendall(produce_frame(number))
        assert read_correlation_ids(sock, count) == list(range(count))


def test_responses_before_invalid_frame_are_sent(broker: Broker) -> None:
    with connect(broker) as sock:
        sock.sendall(produce_frame(0))
        assert read_correlation_ids(sock, 1) == [0]
        sock.sendall(produce_frame(1) + struct.pack(">i", -1))
        assert read_correlation_ids(sock, 1) == [1]
        assert sock.recv(1) == b""


def test_acks_0_error_closes_the_connection(broker: Broker) -> None:
    with connect(broker) as sock:
        sock.sendall(produce_frame(0) + produce_frame(1, acks=0) + produce_frame(2))
        assert read_correlation_ids(sock, 2) == [0, 2]
        sock.sendall(produce_frame(3) + frame_with_broken_records())
        assert read_correlation_ids(sock, 1) == [3]
        assert sock.recv(1) == b""


def frame_with_broken_records() -> bytes:
    broken = bytearray(produce_frame(4, acks=0))
    broken[-10] ^= 1
    return bytes(broken)


class Steps(trio.abc.Instrument):
    """Counts the steps of the tasks of connections."""

    def __init__(self) -> None:
        self.count = 0

    def before_task_step(self, task: trio.lowlevel.Task) -> None:
        self.count += task.name.endswith("Server._talk")


def test_request_during_waiting_fetch_is_handled_in_order(broker: Broker) -> None:
    with connect(broker) as consumer, connect(broker) as producer:
        for offset in range(20):
            consumer.sendall(fetch_frame(offset, offset, wait_ms=TIMEOUT_SECONDS * 1000))
            if offset % 2:
                consumer.sendall(metadata(100))
            producer.sendall(produce_frame(0))
            assert read_correlation_ids(producer, 1) == [0]
            assert read_correlation_ids(consumer, 1) == [offset]
            if offset % 2:
                assert read_correlation_ids(consumer, 1) == [100]


async def test_completed_fetch_takes_one_task_step() -> None:
    """The task runs at the next request, not at the response."""
    async with Broker(topics={"t": 1}) as broker:
        consumer = await TcpNetwork().connect(broker.host, broker.port)
        producer = await TcpNetwork().connect(broker.host, broker.port)
        buffer = memoryview(bytearray(4096))
        steps, count = Steps(), 20
        with trio.fail_after(TIMEOUT_SECONDS):
            for offset in range(count):
                await consumer.send([fetch_frame(offset, offset, wait_ms=TIMEOUT_SECONDS * 1000)])
                await trio.testing.wait_all_tasks_blocked(0.01)
                if offset == 2:
                    trio.lowlevel.add_instrument(steps)
                await producer.send([produce_frame(offset)])
                assert await producer.receive_into(buffer)
                assert await consumer.receive_into(buffer)
        trio.lowlevel.remove_instrument(steps)
        assert steps.count <= count
        await consumer.aclose()
        await producer.aclose()


async def test_request_that_does_not_wait_takes_no_task() -> None:
    async with Broker(topics={"t": 1}) as broker:
        client = await TcpNetwork().connect(broker.host, broker.port)
        buffer = memoryview(bytearray(4096))

        async def ask(request: bytes) -> None:
            await client.send([request])
            assert await client.receive_into(buffer)

        steps = Steps()
        with trio.fail_after(TIMEOUT_SECONDS):
            for number in range(3):
                await ask(produce_frame(number))
            trio.lowlevel.add_instrument(steps)
            for number in range(20):
                await ask(produce_frame(number))
            assert steps.count == 0
            await ask(metadata(0))
            assert steps.count > 0
        trio.lowlevel.remove_instrument(steps)
        await client.aclose()


def test_connection_with_many_received_requests_is_queued_after_its_time(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Other clients are served between the requests of a connection that pipelines expensive ones."""
    monkeypatch.setattr(connection_module, "SECONDS_PER_STEP", 0)
    turns = 0
    wait_turn = BusyConnectionQueue.wait_turn

    async def counted(queue: BusyConnectionQueue) -> None:
        nonlocal turns
        turns += 1
        await wait_turn(queue)

    monkeypatch.setattr(BusyConnectionQueue, "wait_turn", counted)
    with connect(broker) as sock:
        sock.sendall(b"".join(metadata(number) for number in range(10)))
        assert read_correlation_ids(sock, 10) == list(range(10))
    assert turns >= 4
