"""Counts the Python calls that a broker makes for one request.

A broker runs in this process, in threads that all report their calls to a profile function. A client
sends each request over a socket from another thread, whose calls are not counted. What is counted
runs from the arrival of the request until the broker is idle again, and includes each resumption of
a coroutine. Every request is first sent a few times to warm up. Then it is sent in several rounds, of
which the most frequent count is taken: a timer of the broker may fall into one of them.

The client uses `odradek.testing.Broker` and kio alone, so that modules may move.
"""

from __future__ import annotations

import io
import os
import socket
import struct
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, fields, is_dataclass
from datetime import UTC, datetime, timedelta
from functools import cache
from types import CodeType, FrameType
from typing import Any

from kio.index import load_response_schema
from kio.records.schema import NewRecordBatch, Record
from kio.records.writers import write_batch
from kio.schema.create_topics.v7 import request as create_topics
from kio.schema.fetch.v12 import request as fetch
from kio.schema.find_coordinator.v2 import request as find_coordinator
from kio.schema.heartbeat.v4 import request as heartbeat
from kio.schema.join_group.v3 import request as join_group
from kio.schema.metadata.v12 import request as metadata
from kio.schema.produce.v12 import request as produce
from kio.schema.sync_group.v3 import request as sync_group
from kio.serial import entity_reader, entity_writer

from odradek.testing import Broker
from tests.structure.sources import ROOT, product_folders

WARM_UP_ROUNDS = 5
ROUNDS = 15
QUIET_SECONDS = 0.02
TIMEOUT_SECONDS = 10.0
RECORD_BYTES = 100
MAX_BYTES = 1 << 20
PRODUCED, FETCHED = "produced", "fetched"
GROUP = "group"


class RequestFailed(Exception):
    """A request failed, so that nothing can be counted."""


@dataclass(frozen=True)
class Cost:
    """The Python calls of one request: in the product's own files, and in all Python code (trio, kio, the
    standard library and generated functions included)."""

    calls: int
    files: tuple[str, ...]
    all_calls: int
    all_files: int


class Recorder:
    """A profile function that records the calls of every thread which starts while it is installed."""

    def __init__(self) -> None:
        self._codes: list[CodeType] = []
        self._is_recording = False

    def __call__(self, frame: FrameType, event: str, _: object) -> None:
        if self._is_recording and event == "call":
            self._codes.append(frame.f_code)

    @contextmanager
    def installed(self) -> Iterator[None]:
        threading.setprofile(self)
        try:
            yield
        finally:
            threading.setprofile(None)

    @contextmanager
    def recording(self) -> Iterator[list[CodeType]]:
        """Yield the calls that are made in it, until no thread makes any more."""
        codes: list[CodeType] = []
        self._codes = codes
        self._is_recording = True
        self._wait_until_idle()
        codes.clear()
        try:
            yield codes
            self._wait_until_idle()
        finally:
            self._is_recording = False

    def _wait_until_idle(self) -> None:
        before = -1
        while before != len(self._codes):
            before = len(self._codes)
            time.sleep(QUIET_SECONDS)


class Client:
    """A client that blocks, with one request in flight."""

    def __init__(self, host: str, port: int) -> None:
        self._socket = socket.create_connection((host, port), timeout=TIMEOUT_SECONDS)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *_: object) -> None:
        self._socket.close()

    def ask(self, request: Any) -> Any:
        """Return the response to a request. It raises RequestFailed if that has an error."""
        return read_response(request, self.exchange(frame(request)))

    def request_until_success(self, request: Any) -> Any:
        """Repeat a request while the response has an error, until a timeout:
        a coordinator has to load first."""
        until = time.monotonic() + TIMEOUT_SECONDS
        while True:
            try:
                return self.ask(request)
            except RequestFailed:
                if time.monotonic() > until:
                    raise
                time.sleep(QUIET_SECONDS)

    def exchange(self, sent: bytes) -> bytes:
        """Send a frame and return the response to it, without its size."""
        self._socket.sendall(sent)
        (size,) = struct.unpack(">i", self._receive(4))
        return self._receive(size)

    def _receive(self, size: int) -> bytes:
        found = bytearray()
        while len(found) < size:
            piece = self._socket.recv(size - len(found))
            if not piece:
                raise RequestFailed("the broker closed the connection")
            found += piece
        return bytes(found)


def frame(request: Any) -> bytes:
    """Return a request with its size and header."""
    header = request.__header_schema__(
        request_api_key=request.__api_key__,
        request_api_version=request.__version__,
        correlation_id=1,
        client_id="measure",
    )
    written = io.BytesIO()
    for each in (header, request):
        entity_writer(type(each))(written, each)
    return struct.pack(">i", len(written.getvalue())) + written.getvalue()


def read_response(request: Any, response: bytes) -> Any:
    """Return the response to a request. It raises RequestFailed if that has an error."""
    schema: Any = load_response_schema(request.__api_key__, request.__version__)
    _, start = entity_reader(schema.__header_schema__)(response, 0)
    values, _ = entity_reader(schema)(response, start)
    if any(_error_codes(values)):
        raise RequestFailed(f"{type(request).__name__} has the response {values}")
    return values


def _error_codes(values: Any) -> Iterator[int]:
    if isinstance(values, tuple):
        for each in values:
            yield from _error_codes(each)
    elif is_dataclass(values):
        for field in fields(values):
            value = getattr(values, field.name)
            yield from [int(value)] if field.name == "error_code" else _error_codes(value)


def count_requests() -> dict[str, Cost]:
    """Return the cost of each measured request, by the name of its API."""
    recorder = Recorder()
    with (
        recorder.installed(),
        Broker(topics={PRODUCED: 1, FETCHED: 1}) as broker,
        Client(broker.host, broker.port) as client,
    ):
        client.ask(_produce(FETCHED))
        requests = _requests(_join(client))
        for _ in range(WARM_UP_ROUNDS):
            for request in requests.values():
                client.ask(request())
        return {api: _count(recorder, client, make) for api, make in requests.items()}


def _count(recorder: Recorder, client: Client, make: Callable[[], Any]) -> Cost:
    rounds = []
    for _ in range(ROUNDS):
        request = make()
        with recorder.recording() as codes:
            response = client.exchange(frame(request))
        read_response(request, response)
        rounds.append(codes)
    own = [sum(own_path(code.co_filename) is not None for code in codes) for codes in rounds]
    calls = _most_frequent(own)
    if not calls:
        raise RequestFailed(f"the broker that runs here is not the one in {ROOT}")
    usual = [codes for codes, number in zip(rounds, own, strict=True) if number == calls]
    all_calls = _most_frequent([len(codes) for codes in usual])
    codes = next(codes for codes in usual if len(codes) == all_calls)
    files = {code.co_filename for code in codes if not code.co_filename.startswith("<")}
    own_files = {path for path in map(own_path, files) if path is not None}
    return Cost(calls, tuple(sorted(own_files)), all_calls, len(files))


def _most_frequent(numbers: list[int]) -> int:
    counts = Counter(numbers)
    return min(counts, key=lambda number: (-counts[number], number))


@cache
def own_path(filename: str) -> str | None:
    """Return a product file's path from the root, or None for any other file."""
    path = os.path.relpath(os.path.realpath(filename), ROOT)
    folders = {folder.name for folder in product_folders()}
    return path if path.partition(os.sep)[0] in folders else None


# The requests


def _requests(member: dict[str, Any]) -> dict[str, Callable[[], Any]]:
    return {
        "Produce": lambda: _produce(PRODUCED),
        "Fetch": _fetch,
        "Heartbeat": lambda: heartbeat.HeartbeatRequest(**member),
        "Metadata": _metadata,
        "CreateTopics": _TopicCreation(),
    }


def _produce(topic: str) -> Any:
    partition = produce.PartitionProduceData(index=0, records=_batch())
    data = produce.TopicProduceData(name=topic, partition_data=(partition,))
    return produce.ProduceRequest(acks=-1, timeout=timedelta(seconds=1), topic_data=(data,))


def _batch() -> bytes:
    record = Record(
        attributes=0,
        timestamp=datetime.now(UTC),
        offset=0,
        key=None,
        value=bytes(RECORD_BYTES),
        headers=(),
    )
    batch = NewRecordBatch(
        producer_id=-1, producer_epoch=-1, base_sequence=-1, records=(record,), attributes=0
    )
    written = io.BytesIO()
    write_batch(written, batch)
    return written.getvalue()


def _fetch() -> Any:
    partition = fetch.FetchPartition(partition=0, fetch_offset=0, partition_max_bytes=MAX_BYTES)
    return fetch.FetchRequest(
        max_wait=timedelta(seconds=2 * TIMEOUT_SECONDS),  # an empty response comes too late
        min_bytes=1,
        topics=(fetch.FetchTopic(topic=FETCHED, partitions=(partition,)),),
        forgotten_topics_data=(),
    )


def _metadata() -> Any:
    topic = metadata.MetadataRequestTopic(topic_id=None, name=PRODUCED)
    return metadata.MetadataRequest(topics=(topic,), include_topic_authorized_operations=False)


class _TopicCreation:
    """Creates requests that each create another topic, with a name of the same length."""

    def __init__(self) -> None:
        self._number = 0

    def __call__(self) -> Any:
        self._number += 1
        topic = create_topics.CreatableTopic(
            name=f"created-{self._number:04}",
            num_partitions=1,
            replication_factor=1,
            assignments=(),
            configs=(),
        )
        return create_topics.CreateTopicsRequest(topics=(topic,))


def _join(client: Client) -> dict[str, Any]:
    """Join a group and return its fields of a heartbeat."""
    client.request_until_success(find_coordinator.FindCoordinatorRequest(key=GROUP, key_type=0))
    joined = client.request_until_success(
        join_group.JoinGroupRequest(
            group_id=GROUP,
            session_timeout=timedelta(minutes=5),
            rebalance_timeout=timedelta(minutes=5),
            member_id="",
            protocol_type="consumer",
            protocols=(join_group.JoinGroupRequestProtocol(name="range", metadata=b""),),
        )
    )
    member = {
        "group_id": GROUP,
        "generation_id": joined.generation_id,
        "member_id": joined.member_id,
    }
    own = sync_group.SyncGroupRequestAssignment(member_id=joined.member_id, assignment=b"")
    client.ask(sync_group.SyncGroupRequest(**member, assignments=(own,)))
    return member
