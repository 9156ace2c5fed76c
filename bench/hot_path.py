"""The request path, rehearsed in a process of its own, for counting its instructions.

A whole broker runs over real files, on a clock that stands still so that nothing happens in the
background; `ClientConnection` is given requests by a connection that copies them out of memory and
drops the answers. What is counted is therefore ours, from the frame to the answer and back to the
next frame, with the interpreter under it, and without what the kernel and trio's wait for a socket
cost (`limits.py` and the workloads over real sockets know that). One case goes over loopback, a
`TcpConnection` and the `TcpSelector`, from a client in the same loop, whose part is in it.

    python -m odradek.bench.hot_path DIRECTORY

Each case runs once to warm up, then in two phases of N and 2N operations. Before and after each phase
stands a call of getppid(2), which nothing else here makes: callgrind dumps its counts there
(`instructions.py`). The phases are printed in their order as one JSON list.
"""

from __future__ import annotations

import gc
import json
import os
import random
import socket
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import trio

from odradek.broker.config.server_config import ServerConfig
from odradek.broker.fetch.purgatory import CompletableFetches
from odradek.broker.network.connection import ClientConnection
from odradek.broker.node import Node
from odradek.protocol import apis, messages
from odradek.protocol.apis import Api
from odradek.protocol.framing import frame_head, read_response_header, request_header
from odradek.protocol.records.records import Record, build_batch
from odradek.replication.partition.partition import Partition
from odradek.seams import Seams
from odradek.seams.entropy import SeededEntropy
from odradek.seams.files import Buffer, FileSlice
from odradek.seams.network import Address, Selector
from odradek.seams.processes import ProcessWorkers
from odradek.seams.real import open_real_objects
from odradek.seams.real_files import RealFiles
from odradek.seams.selector import EachAlone, TcpSelector
from odradek.seams.tcp import TcpConnection, TcpNetwork
from odradek.seams.threads import ThreadOffload
from odradek.testing.virtual_clock import VirtualClock

TOPIC = "rehearsed"
CLIENT_ID = "rehearsal"
PRODUCE_VERSION = 12
FETCH_VERSION = 12
METADATA_VERSION = 12
MAX_BYTES = 1 << 20
RESPONSE_BYTES = 1 << 16
NEXT_OFFSET = 0x1122334455667788
"""Stands in a request for the end of the log, which is put in its place each time."""


@dataclass(frozen=True)
class Case:
    """One kind of request: how it is written, how often it is made in the shorter phase, and what
    of its answer must be there for the count to mean anything."""

    name: str
    what: str
    api: Api
    version: int
    values: Callable[[], Mapping[str, Any]]
    operations: int
    good: Callable[[Any], bool]
    waits: bool = False
    """Whether it asks for the record that is appended once it waits for it."""
    over_sockets: bool = False

    def request(self) -> bytes:
        head = request_header(self.api, self.version, 1, CLIENT_ID)
        body = messages.write_request(self.api.key, self.version, self.values())
        return frame_head(head, [body])[0] + bytes(body)


def _records(count: int, size: int) -> bytes:
    filling = random.Random(1).randbytes(size)
    return bytes(build_batch([Record(offset, 0, None, filling, ()) for offset in range(count)]))


def _produce(records: bytes) -> Mapping[str, Any]:
    return {
        "transactional_id": None,
        "acks": 1,
        "timeout": 1000,
        "topic_data": [{"name": TOPIC, "partition_data": [{"index": 0, "records": records}]}],
    }


def _fetch(offset: int) -> Mapping[str, Any]:
    partition = {"partition": 0, "fetch_offset": offset, "partition_max_bytes": MAX_BYTES}
    return {
        "max_wait": 500,
        "min_bytes": 1,
        "max_bytes": MAX_BYTES,
        "topics": [{"topic": TOPIC, "partitions": [partition]}],
    }


def _was_produced(response: Any) -> bool:
    return all(
        not each.error_code and each.base_offset >= 0
        for topic in response.responses
        for each in topic.partition_responses
    )


def _was_fetched(response: Any) -> bool:
    return not response.error_code and all(
        not each.error_code and each.records
        for topic in response.responses
        for each in topic.partitions
    )


def _was_described(response: Any) -> bool:
    return len(response.brokers) == 1 and all(
        not topic.error_code and len(topic.partitions) == 1 for topic in response.topics
    )


CASES = (
    Case(
        "produce-100B",
        "a Produce request with one record of 100 bytes, acks=1",
        apis.PRODUCE,
        PRODUCE_VERSION,
        lambda: _produce(_records(1, 100)),
        400,
        _was_produced,
    ),
    Case(
        "produce-100B-socket",
        "the same over loopback, with its client and what the loop does in between",
        apis.PRODUCE,
        PRODUCE_VERSION,
        lambda: _produce(_records(1, 100)),
        400,
        _was_produced,
        over_sockets=True,
    ),
    Case(
        "produce-1MB",
        "a Produce request with one batch of 1,000 records of 1,000 bytes, acks=1",
        apis.PRODUCE,
        PRODUCE_VERSION,
        lambda: _produce(_records(1000, 1000)),
        20,
        _was_produced,
    ),
    Case(
        "fetch-ready",
        "a Fetch request that finds a slice of up to 1 MiB ready",
        apis.FETCH,
        FETCH_VERSION,
        lambda: _fetch(0),
        400,
        _was_fetched,
    ),
    Case(
        "fetch-woken",
        "a Fetch request that waits, and is answered when a record of 100 bytes is appended; the "
        "append and two passes of the loop are in it",
        apis.FETCH,
        FETCH_VERSION,
        lambda: _fetch(NEXT_OFFSET),
        400,
        _was_fetched,
        waits=True,
    ),
    Case(
        "metadata",
        "a Metadata request for one topic of one partition",
        apis.METADATA,
        METADATA_VERSION,
        lambda: {"topics": [{"name": TOPIC, "topic_id": None}], "allow_auto_topic_creation": False},
        400,
        _was_described,
    ),
)


class Rehearsal:
    """A `Connection` whose peer asks the same again and again, each time once it was answered."""

    local = peer = Address("127.0.0.1", 1)
    is_hung_up = False

    def __init__(self, request: Buffer, times: int) -> None:
        self._request = memoryview(request)
        self._left = self._request[:0]
        self._times = times
        self.sent_bytes = 0
        self.responses = 0
        self._responded = trio.Event()
        self.last: list[Buffer | FileSlice] = []

    async def receive_into(self, view: memoryview) -> int:
        if not self._left:
            if not self._times:
                return 0
            self._times -= 1
            self._left = self._request
        size = min(len(view), len(self._left))
        view[:size] = self._left[:size]
        self._left = self._left[size:]
        return size

    async def wait_readable(self) -> None:
        self._responded = trio.Event()
        await self._responded.wait()

    def interrupt(self) -> None:
        self._responded.set()

    async def send(self, parts: Sequence[Buffer | FileSlice]) -> None:
        self.responses += 1
        self.last = list(parts)

    def send_nowait(self, data: Buffer) -> int:
        self.responses += 1
        self.last = [data]
        self._responded.set()
        return len(data)

    def abort(self) -> None:
        pass

    async def aclose(self) -> None:
        pass


class Waiting(Rehearsal):
    """Asks for the next record of the partition, and has it appended when the loop comes around:
    whoever answers waits for it by then."""

    def __init__(
        self, request: bytes, times: int, partition: Partition, due: CompletableFetches
    ) -> None:
        whole = bytearray(request)
        super().__init__(whole, times)
        at = whole.index(NEXT_OFFSET.to_bytes(8, "big"))
        self._offset = memoryview(whole)[at : at + 8]
        self._partition = partition
        self._due = due
        self._records = _records(1, 100)
        self._is_asked = False

    async def receive_into(self, view: memoryview) -> int:
        self._offset[:] = self._partition.log.end_offset.to_bytes(8, "big")
        self._is_asked = True
        return await super().receive_into(view)

    async def append_when_asked(self) -> None:
        while True:
            await trio.lowlevel.checkpoint()
            if self._is_asked:
                self._is_asked = False
                records = memoryview(bytearray(self._records))  # stamped in place
                self._due.has_active_connection = True
                self._partition.append(records, acks=1, now_ms=0)
                self._due.respond()  # as a connection does


class Asking:
    """A client at the other end of a connection, that asks the same again once it was answered."""

    def __init__(self, request: bytes, times: int) -> None:
        with socket.create_server(("127.0.0.1", 0)) as server:
            self._socket = socket.create_connection(server.getsockname())
            accepted, _ = server.accept()
        self._socket.setblocking(False)
        self.connection = TcpConnection(accepted, Address("127.0.0.1", 1))
        self._request = request
        self._times = times
        self.responses = 0
        self.last: list[Buffer] = []

    async def ask(self) -> None:
        with self._socket:
            for _ in range(self._times):
                self._socket.send(self._request)
                await trio.lowlevel.wait_readable(self._socket)
                self.last = [self._socket.recv(RESPONSE_BYTES)]
                self.responses += 1


class NotResponded(Exception):
    """The broker did not answer as it should: there is nothing to count."""


async def rehearse(broker: Node, case: Case, times: int) -> None:
    """Have the broker answer a case so many times on one connection; NoResponse if it doesn't."""
    selector: Selector = EachAlone()
    peer: Rehearsal | Asking = Rehearsal(case.request(), times)
    if case.waits:
        partition = await broker.partitions.get(TOPIC, None, 0)
        peer = Waiting(case.request(), times, partition, broker.services.completable_fetches)
    elif case.over_sockets:
        peer, selector = Asking(case.request(), times), TcpSelector()
    connection = peer.connection if isinstance(peer, Asking) else peer
    client = ClientConnection(connection, broker.endpoints[0], broker.services, selector)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(selector.run)
        if isinstance(peer, Waiting):
            nursery.start_soon(peer.append_when_asked)
        if isinstance(peer, Asking):
            nursery.start_soon(peer.ask)
        _mark()
        await client.talk()
        _mark()
        nursery.cancel_scope.cancel()
    if peer.responses != times:
        raise NotResponded(f"{case.name}: {peer.responses} answers to {times} requests")
    response = memoryview(b"".join(_bytes_of(peer.last)))[4:]
    _, start = read_response_header(case.api, case.version, response)
    values = messages.read_response(case.api.key, case.version, response, start)
    if not case.good(values):
        raise NotResponded(f"{case.name}: answered {values}")


def _bytes_of(parts: Sequence[Buffer | FileSlice]) -> Iterator[Buffer]:
    for part in parts:
        yield part.file.read_at(part.position, part.size) if isinstance(part, FileSlice) else part


def _mark() -> None:
    """Callgrind dumps and begins anew here."""
    os.getppid()


def run(directory: str, cases: Sequence[Case] = CASES) -> list[tuple[str, int]]:
    """Rehearse every case; returns the phases in the order in which they ran, as (case, times).

    The clock is trio's too: nothing that a broker does now and then (retention) comes in between,
    however slowly this goes.
    """
    clock = VirtualClock()
    return trio.run(_run, clock, directory, cases, clock=clock)


async def _run(clock: VirtualClock, directory: str, cases: Sequence[Case]) -> list[tuple[str, int]]:
    seams = Seams(
        clock,
        SeededEntropy(random.Random(1)),
        TcpNetwork(),
        RealFiles(),
        ThreadOffload(),
        ProcessWorkers(),
        open_real_objects,
    )
    config = ServerConfig.from_properties(
        {"listeners": "PLAINTEXT://127.0.0.1:0", "log.dirs": directory}, test_node=True
    )
    phases = []
    broker = Node(seams, config)
    async with trio.open_nursery() as nursery:
        await nursery.start(broker.run)
        await broker.ensure_topic(TOPIC, 1)
        for case in cases:
            for times in (case.operations, case.operations, 2 * case.operations):
                gc.collect()
                await rehearse(broker, case, times)
                phases.append((case.name, times))
        broker.stop()
    return phases


def main() -> int:
    gc.disable()  # when it runs depends on all that lives; the path itself makes no cycles to collect
    json.dump(run(sys.argv[1]), sys.stdout)
    return 0


if __name__ == "__main__":
    sys.exit(main())
