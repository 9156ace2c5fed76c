"""Runs the request path in a separate process, so that its instructions can be counted.

A complete broker runs on real files. Its clock is stopped, so no background work runs. `ClientConnection` receives
requests from a connection that copies them from memory and discards the responses. The counts therefore include the
broker's code and the interpreter, and exclude the kernel and trio's wait for a socket, which `limits.py` and the
workloads over real sockets measure. One case uses loopback, a `TcpConnection` and the `TcpSelector`; its counts
include a client in the same event loop.

    python -m odradek.bench.hot_path DIRECTORY

Each case has a warm-up phase, and then two phases of N and 2N operations. getppid(2) is called only before and after
each phase; callgrind writes a dump of its counts at each call (`instructions.py`). The phases are printed in order
as a JSON list.
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
"""Placeholder in a request, which is replaced by the current log end offset."""


@dataclass(frozen=True)
class Case:
    """One kind of request: its fields, its number in the shorter phase, and a check of its response."""

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
        "a Fetch request that waits until a record of 100 bytes is appended, including the append "
        "and two passes of the event loop",
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


class RepeatingPeer:
    """A `Connection` whose peer sends the same request again after each response."""

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


class AppendingPeer(RepeatingPeer):
    """Requests the next record of the partition, and appends it in the next pass of the event loop.

    The Fetch request is waiting in the purgatory by then.
    """

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
        self._is_requested = False

    async def receive_into(self, view: memoryview) -> int:
        self._offset[:] = self._partition.log.end_offset.to_bytes(8, "big")
        self._is_requested = True
        return await super().receive_into(view)

    async def append_when_requested(self) -> None:
        while True:
            await trio.lowlevel.checkpoint()
            if self._is_requested:
                self._is_requested = False
                records = memoryview(bytearray(self._records))  # stamped in place
                self._due.has_active_connection = True
                self._partition.append(records, acks=1, now_ms=0)
                self._due.respond()  # as a connection does


class TcpClient:
    """A client over loopback that sends the same request again after each response."""

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

    async def run(self) -> None:
        with self._socket:
            for _ in range(self._times):
                self._socket.send(self._request)
                await trio.lowlevel.wait_readable(self._socket)
                self.last = [self._socket.recv(RESPONSE_BYTES)]
                self.responses += 1


class NotResponded(Exception):
    """The broker did not send the expected responses."""


async def run_case(broker: Node, case: Case, times: int) -> None:
    """Send the request of a case `times` times on one connection.

    Raises NotResponded if a response is missing or the last one is not as expected.
    """
    selector: Selector = EachAlone()
    peer: RepeatingPeer | TcpClient = RepeatingPeer(case.request(), times)
    if case.waits:
        partition = await broker.partitions.get(TOPIC, None, 0)
        peer = AppendingPeer(case.request(), times, partition, broker.services.completable_fetches)
    elif case.over_sockets:
        peer, selector = TcpClient(case.request(), times), TcpSelector()
    connection = peer.connection if isinstance(peer, TcpClient) else peer
    client = ClientConnection(connection, broker.endpoints[0], broker.services, selector)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(selector.run)
        if isinstance(peer, AppendingPeer):
            nursery.start_soon(peer.append_when_requested)
        if isinstance(peer, TcpClient):
            nursery.start_soon(peer.run)
        _mark()
        await client.talk()
        _mark()
        nursery.cancel_scope.cancel()
    if peer.responses != times:
        raise NotResponded(f"{case.name}: {peer.responses} responses to {times} requests")
    response = memoryview(b"".join(_bytes_of(peer.last)))[4:]
    _, start = read_response_header(case.api, case.version, response)
    values = messages.read_response(case.api.key, case.version, response, start)
    if not case.good(values):
        raise NotResponded(f"{case.name}: unexpected response {values}")


def _bytes_of(parts: Sequence[Buffer | FileSlice]) -> Iterator[Buffer]:
    for part in parts:
        yield part.file.read_at(part.position, part.size) if isinstance(part, FileSlice) else part


def _mark() -> None:
    """Make callgrind dump its counts and reset them."""
    os.getppid()


def run(directory: str, cases: Sequence[Case] = CASES) -> list[tuple[str, int]]:
    """Run every case. Returns the phases in the order in which they ran, as (case, times).

    trio uses the same stopped clock, so no periodic task (such as retention) runs during a phase.
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
                await run_case(broker, case, times)
                phases.append((case.name, times))
        broker.stop()
    return phases


def main() -> int:
    gc.disable()  # its runs depend on all live objects; the request path creates no cycles
    json.dump(run(sys.argv[1]), sys.stdout)
    return 0


if __name__ == "__main__":
    sys.exit(main())
