"""Fuzzes a broker process with request frames of all APIs and versions: `python -m tests.fuzz.frames`.

A frame is a valid request with random fields, or a mutation of one: changed bytes, numbers at the limits of their
types, a truncated or spliced body, another version or API. At the end the broker must serve a producer and a consumer,
and stop cleanly. Its log must have no traceback.
"""

from __future__ import annotations

import argparse
import random
import socket
import struct
import sys
import tempfile
from collections.abc import Iterator
from itertools import islice
from pathlib import Path

import trio

from odradek.client.admin import NewTopic, create_topics
from odradek.client.consumer import Reader
from odradek.client.metadata import open_cluster
from odradek.client.producer import ProducerOptions, open_producer
from odradek.protocol import apis
from odradek.protocol.framing import request_header
from odradek.protocol.topics import TopicPartition
from odradek.seams.clock import RealClock
from odradek.seams.entropy import RealEntropy
from odradek.seams.tcp import TcpNetwork
from tests.fuzz.report import Observer
from tests.support.odradek_process import start_odradek
from tests.support.sample_requests import sample_request

VARIANTS = 4
"""Valid requests of each API and version; the frames are these and their mutations."""
RESPONSE_SECONDS = 0.02
EXTREMES = (
    b"\xff\xff\xff\xff",
    b"\x7f\xff\xff\xff",
    b"\x80\0\0\0",
    b"\0\0\0\0",
    b"\xff\x7f",
    b"\x80",
)
MUTATED_SHARE = 0.6


def valid_requests(source: random.Random) -> list[bytes]:
    return [
        request_header(api, version, 1, "fuzz") + sample_request(api.key, version, source)
        for api in (*apis.APIS.values(), *apis.PRIVATE_APIS.values())
        for version in api.versions
        for _ in range(VARIANTS)
    ]


def frames(seed: int) -> Iterator[bytes]:
    """Frames with their sizes; there is no last one."""
    source = random.Random(seed)
    requests = valid_requests(source)
    while True:
        request = source.choice(requests)
        if source.random() < MUTATED_SHARE:
            request = mutated(request, source.choice(requests), source)
        size = len(request)
        if source.random() < 0.01:  # a size that the frame does not have
            size = source.choice((-1, 0, size - 1, size + 1, 2**31 - 1))
        yield struct.pack(">i", size) + request


def mutated(request: bytes, other: bytes, source: random.Random) -> bytes:
    changed = bytearray(request)
    for _ in range(source.randrange(1, 5)):
        at = source.randrange(len(changed)) if changed else 0
        match source.randrange(7):
            case 0:
                del changed[at:]
            case 1 if changed:
                changed[at] ^= 1 << source.randrange(8)
            case 2:
                extreme = source.choice(EXTREMES)
                changed[at : at + len(extreme)] = extreme
            case 3:
                changed[2:4] = struct.pack(">h", source.randrange(-1, 20))
            case 4:
                changed[at:] = other[source.randrange(len(other)) :]
            case 5:
                changed[at:at] = source.randbytes(source.randrange(20))
            case _:
                changed[at : at + 1] = bytes([source.randrange(256)])
    return bytes(changed)


class Sender:
    """Sends frames one after the other; a new connection follows one that was closed or whose response waits."""

    def __init__(self, address: tuple[str, int]) -> None:
        self._address = address
        self._connection: socket.socket | None = None
        self.responses = 0

    def send(self, frame: bytes) -> None:
        connection = self._connection
        if connection is None:
            connection = self._connection = socket.create_connection(self._address, timeout=10)
        try:
            connection.settimeout(10)
            connection.sendall(frame)
            connection.settimeout(RESPONSE_SECONDS)
            is_open = bool(connection.recv(1 << 20))
            self.responses += is_open
        except (OSError, TimeoutError):
            is_open = False
        if not is_open:
            self.close()

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None


async def produce_and_read(bootstrap: str) -> None:
    """Create a topic, and read what was produced to it."""
    async with open_cluster(TcpNetwork(), bootstrap, timeout_s=30) as cluster:
        await create_topics(cluster, [NewTopic("afterwards", 1, 1)])
        options = ProducerOptions()
        async with open_producer(cluster, RealClock(), RealEntropy(), options) as producer:
            await producer.send("afterwards", b"value", partition=0)
        reader = Reader(cluster)
        reader.assign({TopicPartition("afterwards", 0): 0})
        found = []
        with trio.fail_after(30):
            while not found:
                found = [record.value for record in await reader.poll()]
        assert found == [b"value"], found


def fuzz(count: int, seed: int, directory: Path) -> Observer:
    """Run a fuzz against a new broker process."""
    broker = start_odradek(directory, config={"node.id": "77", "num.partitions": "2"})
    observer = Observer(count, broker.process.pid)
    try:
        host, port = broker.bootstrap.rsplit(":", 1)
        source = frames(seed)
        sender = Sender((host, int(port)))
        for frame in islice(source, count):
            sender.send(frame)
            observer.advance(1)
        sender.close()
        assert broker.process.poll() is None, f"the broker has ended\n{broker.log()}"
        observer.lines["response"] = sender.responses
        trio.run(produce_and_read, broker.bootstrap)
        broker.stop()
    finally:
        if broker.process.poll() is None:
            broker.kill()
        text = broker.log_file.read_text(errors="replace")
        observer.tracebacks += text.split("Traceback (most recent call last)")[1:]
        for line in text.splitlines():
            for level in ("WARNING", "ERROR", "CRITICAL"):
                observer.lines[level] += level in line
    return observer


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="tests.fuzz.frames", description=(__doc__ or "").split("\n\n")[0]
    )
    parser.add_argument("--frames", type=int, default=100_000)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as directory:
        observer = fuzz(options.frames, options.seed, Path(directory) / "broker")
    observer.print(f"frames, seed {options.seed}", "frames")
    sys.exit(not observer.is_good)


if __name__ == "__main__":
    main()
