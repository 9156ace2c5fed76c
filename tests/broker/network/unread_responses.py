"""Client that fetches a whole partition and does not read the response."""

from __future__ import annotations

import socket

import trio
from confluent_kafka import Producer

from odradek.protocol import apis, messages
from odradek.protocol.framing import read_response_header
from odradek.protocol.records.batch import batches
from odradek.testing import Broker
from tests.support.raw_requests import request_frame

VALUES = 400


VALUE_BYTES = 20_000


FETCH_VERSION = 12


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


def numbers_in(response: bytes) -> list[int]:
    """Values of a response, which is checked byte by byte."""
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
    """Wait until a slice of the partition's segment is pinned by the response."""
    log = (await broker.node.partitions.get("t", None, 0)).log
    while not any(segment.file.pins for segment in log.segments):
        await trio.sleep(0.001)
