"""This module counts the Python calls that a broker makes to answer one request.

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


class NotAnswered(Exception):
    """The broker did not answer as it should, so that there is nothing to count."""


@dataclass(frozen=True)
class Cost:
    """What one request costs: in the product's own files, and in all Python code (trio, kio, the
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
        """This context manager yields the calls that are made in it, until no thread makes any more."""
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
    """A client that blocks, with one request under way."""

    def __init__(self, host: str, port: int) -> None:
        self._socket = socket.create_connection((host, port), timeout=TIMEOUT_SECONDS)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *_: object) -> None:
        self._socket.close()

    def ask(self, request: Any) -> Any:
        """This method returns the answer to a request. It raises NotAnswered if that has an error."""
        return read_answer(request, self.exchange(frame(request)))

    def ask_until_answered(self, request: Any) -> Any:
        """This method repeats a request while the answer has an error, for as long as it has patience:
        a coordinator takes a moment to load."""
        until = time.monotonic() + TIMEOUT_SECONDS
        while True:
            try:
                return self.ask(request)
            except NotAnswered:
                if time.monotonic() > until:
                    raise
                time.sleep(QUIET_SECONDS)

    def exchange(self, sent: bytes) -> bytes:
        """This method sends a frame and returns the answer to it, without its size."""
        self._socket.sendall(sent)
        (size,) = struct.unpack(">i", self._receive(4))
        return self._receive(size)

    def _receive(self, size: int) -> bytes:
        found = bytearray()
        while len(found) < size:
            piece = self._socket.recv(size - len(found))
            if not piece:
                raise NotAnswered("the broker closed the connection")
            found += piece
        return bytes(found)


def frame(request: Any) -> bytes:
    """This function returns a request with its header, behind its size."""
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


def read_answer(request: Any, answer: bytes) -> Any:
    """This function returns the answer to a request. It raises NotAnswered if that has an error."""
    schema: Any = load_response_schema(request.__api_key__, request.__version__)
    _, start = entity_reader(schema.__header_schema__)(answer, 0)
    values, _ = entity_reader(schema)(answer, start)
    if any(_error_codes(values)):
        raise NotAnswered(f"{type(request).__name__} is answered by {values}")
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
    """This function returns the cost of each measured request, by the name of its API."""
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
            answer = client.exchange(frame(request))
        read_answer(request, answer)
        rounds.append(codes)
    own = [sum(own_path(code.co_filename) is not None for code in codes) for codes in rounds]
    calls = _most_frequent(own)
    if not calls:
        raise NotAnswered(f"the broker that runs here is not the one in {ROOT}")
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
    """This function returns a product file's path from the root, or None for any other file."""
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
        max_wait=timedelta(seconds=2 * TIMEOUT_SECONDS),  # an empty answer comes too late
        min_bytes=1,
        topics=(fetch.FetchTopic(topic=FETCHED, partitions=(partition,)),),
        forgotten_topics_data=(),
    )


def _metadata() -> Any:
    topic = metadata.MetadataRequestTopic(topic_id=None, name=PRODUCED)
    return metadata.MetadataRequest(topics=(topic,), include_topic_authorized_operations=False)


class _TopicCreation:
    """This object makes requests that each create another topic, with a name of the same length."""

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
    """This function joins a group and returns what its member says of itself in a heartbeat."""
    client.ask_until_answered(find_coordinator.FindCoordinatorRequest(key=GROUP, key_type=0))
    joined = client.ask_until_answered(
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
