"""Bytes that are being sent stay what they were: roll, deletion and truncation under a slow reader.

A raw client asks for megabytes and reads none of them until the log was changed underneath.
"""

from __future__ import annotations

import socket
import struct
from collections.abc import Callable, Iterator

import pytest
import trio
from confluent_kafka import Producer

from odradek.protocol import apis, messages
from odradek.protocol.framing import read_response_header
from odradek.protocol.records.batch import batches
from odradek.replication.controller.topics import delete_topics
from odradek.testing import Broker
from tests.support.raw_requests import request_frame

VALUES = 400
VALUE_BYTES = 20_000
FETCH_VERSION = 12


@pytest.fixture
def broker() -> Iterator[Broker]:
    with Broker(topics={"t": 1}, configs={"log.initial.task.delay.ms": "86400000"}) as broker:
        yield broker


def value(number: int) -> bytes:
    return number.to_bytes(4, "big") * (VALUE_BYTES // 4)


def fill(broker: Broker) -> None:
    producer = Producer({"bootstrap.servers": broker.bootstrap})
    for number in range(VALUES):
        producer.produce("t", value(number), partition=0)
    assert producer.flush(20) == 0


def ask_for_everything(broker: Broker) -> socket.socket:
    sock = socket.socket()
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 16 * 1024)
    sock.settimeout(20)
    sock.connect((broker.host, broker.port))
    request = request_frame(
        apis.FETCH,
        FETCH_VERSION,
        1,
        {
            "replica_id": -1,
            "max_wait": 0,
            "min_bytes": 1,
            "topics": [
                {
                    "topic": "t",
                    "partitions": [
                        {"partition": 0, "fetch_offset": 0, "partition_max_bytes": 2**30}
                    ],
                }
            ],
            "forgotten_topics_data": [],
        },
    )
    sock.sendall(request)
    return sock


def decode_response(sock: socket.socket) -> bytes:
    def exactly(count: int) -> bytes:
        data = bytearray()
        while len(data) < count:
            piece = sock.recv(count - len(data))
            assert piece, f"cut off after {len(data)} of {count} bytes"
            data += piece
        return bytes(data)

    return exactly(struct.unpack(">i", exactly(4))[0])


def numbers_in(response: bytes) -> list[int]:
    """Values of a response, checked byte by byte."""
    from odradek.protocol.records.records import decode

    view = memoryview(response)
    _, start = read_response_header(apis.FETCH, FETCH_VERSION, view)
    response = messages.read_response(apis.FETCH.key, FETCH_VERSION, view, start)
    (topic,) = response.responses
    (partition,) = topic.partitions
    assert partition.error_code == 0
    found = []
    for batch in batches(memoryview(partition.records), check=True):
        for record in decode(batch):
            assert record.value is not None
            number = int.from_bytes(record.value[:4], "big")
            assert record.value == value(number)
            found.append(number)
    return found


async def wait_until_sending(broker: Broker) -> None:
    """Until a slice of the partition's segment is pinned by the answer."""
    log = (await broker.node.partitions.get("t", None, 0)).log
    while not any(segment.file.pins for segment in log.segments):
        await trio.sleep(0.001)


async def roll(broker: Broker) -> None:
    (await broker.node.partitions.get("t", None, 0)).log.roll()


async def truncate(broker: Broker) -> None:
    log = (await broker.node.partitions.get("t", None, 0)).log
    log.truncate_to(100)


async def expire(broker: Broker) -> None:
    log = (await broker.node.partitions.get("t", None, 0)).log
    log.roll()
    log.advance_log_start(log.high_watermark, "test")
    now = broker.node.seams.clock.wall_ms()
    assert log.delete_expired(now) > 0
    assert log.remove_deleted(now + 3_600_000) > 0


async def delete_topic(broker: Broker) -> None:
    await broker.node.metadata.perform(lambda image: delete_topics(image, ["t"]))
    while broker.node.partitions.opened("t", 0) is not None:
        await trio.sleep(0.001)


@pytest.mark.parametrize("change", [roll, truncate, expire, delete_topic])
def test_response_being_sent_is_completed_at_shutdown(
    broker: Broker, change: Callable[..., object]
) -> None:
    fill(broker)
    with ask_for_everything(broker) as sock:
        broker._call(wait_until_sending, broker)
        broker._call(change, broker)  # type: ignore[arg-type]
        if change is truncate:
            fill(broker)  # other bytes where the old ones were
        assert numbers_in(decode_response(sock)) == list(range(VALUES))


def test_half_closed_client_gets_complete_response(broker: Broker) -> None:
    """It has closed its side, and reads on."""
    fill(broker)
    with ask_for_everything(broker) as sock:
        sock.shutdown(socket.SHUT_WR)
        assert numbers_in(decode_response(sock)) == list(range(VALUES))
