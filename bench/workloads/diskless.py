"""Diskless topics (KIP-1163, KIP-1164): produce latency, throughput, and commits of one coordinator.

Three brokers and one controller run on the machine of their clients. The object store is a directory whose files are
synced. Configs of the brokers are the defaults: a broker writes an object every 250 ms or 8 MiB.

- `DisklessLatency`: time from when a record was due until its acknowledgement, at a fixed rate. At the same time, the
  benchmark itself puts objects of the size of the brokers' into the same directory. `excess_ms` is what remains of the
  p99 without the commit interval and the p99 of these puts.
- `DisklessThroughput`: a producer at full speed, with a diskless topic and with a classic topic with three replicas
  in the same cluster. The classic topic comes first in every second run of a peer. The producer has many requests in
  flight. `diskless_idempotent_mb_per_s` is that of an idempotent producer, which has five of at most 1 MB, so that it
  waits for the commit interval most of the time.
- `DisklessCommits`: DisklessCommitFile requests with batches for one partition, without objects, on many connections to
  the broker that leads its coordinator. The CPU time is that of all brokers: the log of the coordinator has three replicas.
"""

from __future__ import annotations

import itertools
import threading
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from statistics import quantiles
from uuid import UUID

import trio

from odradek.bench.load import run_load
from odradek.bench.model import (
    DISKLESS_OBJECTS,
    Feature,
    Metric,
    Parameter,
    Stage,
    Target,
    WorkloadFailed,
    WorkloadOutcome,
)
from odradek.bench.peers.topics import not_yet, with_cluster
from odradek.bench.workloads.latency import percentile_us
from odradek.bench.workloads.streams import background_stream
from odradek.client.admin import NewTopic, create_topics
from odradek.client.connection import BrokerConnection
from odradek.client.diskless_admin import DisklessAdmin
from odradek.client.metadata import Cluster
from odradek.protocol import apis, messages
from odradek.protocol.errors import ErrorCode
from odradek.protocol.schemas.diskless_apis import (
    DisklessCommitBatch,
    DisklessCommitFileRequest,
    DisklessCommitFileResponse,
)
from odradek.seams.object_store import open_objects
from odradek.storage.diskless.object_key import object_key
from odradek.storage.diskless.wal_file import WRITE_AHEAD_MULTI_SEGMENT

RECORD_BYTES = 1024
REPLICAS = 3
COMMIT_INTERVAL_MS = 250
"""Default of `diskless.append.commit.interval.ms`."""
LINGER_MS = 5
RATE = 1000
"""Records a second: 1 MB/s."""
LATENCY_S = 20.0
WARM_UP_S = 5.0
PUT_EVERY_S = 0.05
RECORDS = 500_000
THROUGHPUT_S = 20.0
PARTITIONS = 6
COMMITS_S = 10.0
COMMITS_AT_ONCE = 32
BATCHES_PER_COMMIT = 10
COMMIT = apis.DISKLESS_COMMIT_FILE

_numbers = itertools.count(1)
_runs: Counter[str] = Counter()
"""Number of throughput runs so far, by peer."""


@contextmanager
def _topic(target: Target, name: str, partitions: int, *, diskless: bool) -> Iterator[str]:
    """Create a topic for a `with` block."""
    topic = f"{name}-{next(_numbers)}"
    configs = {"diskless.enable": "true"} if diskless else {"min.insync.replicas": "2"}

    async def create(cluster: Cluster) -> None:
        replicas = -1 if diskless else REPLICAS
        await create_topics(cluster, [NewTopic(topic, partitions, replicas, configs)])
        for index in range(partitions):
            await cluster.retrying(partial(cluster.leader, topic, index), also=not_yet)

    with_cluster(target.bootstrap, create)
    try:
        yield topic
    finally:
        target.topics.delete(topic)


class _Puts:
    """Puts objects of one size into the store of the brokers, and measures each, until `end`."""

    def __init__(self, target: Target, size_bytes: int) -> None:
        self._objects = open_objects(f"file://{target.settings[DISKLESS_OBJECTS]}")
        self._data = b"x" * size_bytes
        self._enough = threading.Event()
        self._seconds: list[float] = []
        self._failure: Exception | None = None
        self._thread = threading.Thread(target=self._run, name="puts")
        self._thread.start()

    def _run(self) -> None:
        try:
            for number in itertools.count():
                if self._enough.wait(PUT_EVERY_S):
                    return
                key = f"bench/{number}"
                began = time.monotonic()
                self._objects.put(key, (self._data,))
                self._seconds.append(time.monotonic() - began)
                self._objects.delete(key)
        except Exception as failure:
            self._failure = failure

    def end(self) -> Sequence[float]:
        """Stop, and return the seconds of each put."""
        self._enough.set()
        self._thread.join()
        if self._failure is not None:
            raise WorkloadFailed(f"puts into the object store: {self._failure}")
        return self._seconds


@dataclass(frozen=True)
class DisklessLatency:
    """Measures the acknowledgements of a stream through one diskless partition."""

    name: str = "diskless-latency"
    title: str = "produce latency of a diskless topic, acks=all"
    default: bool = False
    needs: frozenset[Feature] = frozenset({Feature.DISKLESS})
    stage: Stage = Stage.DISKLESS
    metrics: Sequence[Metric] = (
        Metric("p50_ms", "ms", "lower"),
        Metric("p99_ms", "ms", "lower"),
        Metric("put_p50_ms", "ms", "lower", diagnostic=True),
        Metric("put_p99_ms", "ms", "lower", diagnostic=True),
        Metric("excess_ms", "ms", "lower"),
    )

    @property
    def parameters(self) -> Mapping[str, Parameter]:
        return {
            "commit_interval_ms": COMMIT_INTERVAL_MS,
            "record_bytes": RECORD_BYTES,
            "records_per_s": RATE,
            "linger_ms": LINGER_MS,
            "seconds": LATENCY_S,
            "warm_up_s": WARM_UP_S,
        }

    def run(self, target: Target) -> WorkloadOutcome:
        words = ["--acknowledged", "1", "-X", f"linger.ms={LINGER_MS}"]
        longest_s = 2 * (WARM_UP_S + LATENCY_S)
        with (
            _topic(target, self.name, 1, diskless=True) as topic,
            background_stream(target, topic, RATE, longest_s=longest_s, words=words) as stream,
        ):
            time.sleep(WARM_UP_S)
            puts = _Puts(target, RATE * RECORD_BYTES * COMMIT_INTERVAL_MS // 1000)
            began = time.monotonic()
            time.sleep(LATENCY_S)
            ended = time.monotonic()
            put_s = quantiles(puts.end(), n=100)
        latencies = stream.result().between(began, ended)
        p50_ms, p99_ms = (percentile_us(latencies, part) / 1000 for part in (50, 99))
        return WorkloadOutcome(
            {
                "p50_ms": p50_ms,
                "p99_ms": p99_ms,
                "put_p50_ms": put_s[49] * 1000,
                "put_p99_ms": put_s[98] * 1000,
                "excess_ms": max(0.0, p99_ms - COMMIT_INTERVAL_MS - put_s[98] * 1000),
            }
        )


@dataclass(frozen=True)
class DisklessThroughput:
    """Measures a producer with six partitions, diskless and classic."""

    name: str = "diskless-1k-p6"
    title: str = "produce, 1 KiB records, 6 partitions, diskless and with 3 replicas, acks=all"
    default: bool = False
    needs: frozenset[Feature] = frozenset({Feature.DISKLESS})
    stage: Stage = Stage.DISKLESS
    metrics: Sequence[Metric] = (
        Metric("diskless_mb_per_s", "MB/s", "higher"),
        Metric("classic_mb_per_s", "MB/s", "higher"),
        Metric("diskless_idempotent_mb_per_s", "MB/s", "higher"),
        Metric("diskless_cpu_s_per_gb", "s/GB", "lower"),
        Metric("classic_cpu_s_per_gb", "s/GB", "lower"),
    )

    @property
    def parameters(self) -> Mapping[str, Parameter]:
        return {
            "record_bytes": RECORD_BYTES,
            "records": RECORDS,
            "partitions": PARTITIONS,
            "warm_up_s_most": WARM_UP_S,
            "seconds_most": THROUGHPUT_S,
        }

    def run(self, target: Target) -> WorkloadOutcome:
        values: dict[str, float] = {}
        _runs[target.peer] += 1
        kinds = ("classic", "diskless") if _runs[target.peer] % 2 else ("diskless", "classic")
        for kind in (*kinds, "diskless_idempotent"):
            is_diskless = kind != "classic"
            idempotence = "true" if kind == "diskless_idempotent" else "false"
            with _topic(target, self.name, PARTITIONS, diskless=is_diskless) as topic:
                load = run_load(
                    [
                        "produce", "--bootstrap", target.bootstrap, "--topic", topic,
                        "--count", str(RECORDS),
                        "--size", str(RECORD_BYTES),
                        "--partitions", str(PARTITIONS),
                        "--seconds", str(THROUGHPUT_S),
                        "--warm-up", str(WARM_UP_S),
                        "-X", "acks=all",
                        "-X", f"enable.idempotence={idempotence}",
                    ],
                    target.process,
                )  # fmt: skip
            gb = load.report["bytes"] / 1e9
            values[f"{kind}_mb_per_s"] = gb * 1000 / load.seconds
            if load.broker_cpu_s is not None:
                values[f"{kind}_cpu_s_per_gb"] = load.broker_cpu_s / gb
        values.pop("diskless_idempotent_cpu_s_per_gb", None)
        return WorkloadOutcome(values)


@dataclass(frozen=True)
class DisklessCommits:
    """Measures the commits of one coordinator."""

    name: str = "diskless-commits"
    title: str = f"commits of one diskless coordinator, {BATCHES_PER_COMMIT} batches each"
    default: bool = False
    needs: frozenset[Feature] = frozenset({Feature.DISKLESS})
    stage: Stage = Stage.DISKLESS
    metrics: Sequence[Metric] = (
        Metric("commits_per_s", "/s", "higher"),
        Metric("broker_cpu_ms", "ms", "lower"),
    )

    @property
    def parameters(self) -> Mapping[str, Parameter]:
        return {
            "batches": BATCHES_PER_COMMIT,
            "at_once": COMMITS_AT_ONCE,
            "seconds": COMMITS_S,
        }

    def run(self, target: Target) -> WorkloadOutcome:
        with _topic(target, self.name, 1, diskless=True) as topic:
            commits, seconds, cpu_s = with_cluster(
                target.bootstrap, lambda cluster: _commit_files(cluster, topic, target)
            )
        return WorkloadOutcome(
            {"commits_per_s": commits / seconds, "broker_cpu_ms": cpu_s * 1000 / commits}
        )


@dataclass(frozen=True)
class _CommitTarget:
    """A partition with its coordinator, and a connection to the broker that leads it."""

    topic_id: UUID
    coordinator_id: int
    connection: BrokerConnection

    def body(self, number: int) -> bytes:
        """A request that commits file `number`, encoded."""
        now_ms = time.time_ns() // 1_000_000
        request = DisklessCommitFileRequest(
            object_key=object_key(now_ms, 1, UUID(int=number)),
            object_format=WRITE_AHEAD_MULTI_SEGMENT,
            file_size=BATCHES_PER_COMMIT * RECORD_BYTES,
            owner_ids=(self.coordinator_id,),
            batches=tuple(
                DisklessCommitBatch(
                    magic=2,
                    request_id=number,
                    topic_id=self.topic_id,
                    partition_index=0,
                    byte_offset=position * RECORD_BYTES,
                    size=RECORD_BYTES,
                    base_offset=0,
                    last_offset=0,
                    batch_max_timestamp=now_ms,
                    timestamp_type=0,
                    producer_id=-1,
                    producer_epoch=-1,
                    base_sequence=-1,
                    last_sequence=-1,
                )
                for position in range(BATCHES_PER_COMMIT)
            ),
        )
        return messages.write_request(COMMIT.key, 0, request)

    async def commit(self, body: bytes, connection: BrokerConnection | None = None) -> ErrorCode:
        """Send a request; returns the error of its first batch."""
        view = await (connection or self.connection).exchange(COMMIT, 0, body)
        response: DisklessCommitFileResponse = messages.read_response(COMMIT.key, 0, view, 0)
        return response.batches[0].error_code


async def _find_coordinator(cluster: Cluster, topic: str) -> _CommitTarget:
    """Find the coordinator of the topic's partition: only this one accepts a commit."""
    topic_id = (await cluster.topic(topic)).topic_id
    assert topic_id is not None
    numbers = itertools.count()
    with trio.fail_after(30):
        while True:
            for found in await DisklessAdmin(cluster).describe_coordinators():
                if found.leader >= 0:
                    connection = await cluster.node(found.leader)
                    tried = _CommitTarget(topic_id, found.coordinator_id, connection)
                    if await tried.commit(tried.body(next(numbers))) is ErrorCode.none:
                        return tried
            await trio.sleep(0.1)


async def _commit_files(cluster: Cluster, topic: str, target: Target) -> tuple[int, float, float]:
    """Commit files as fast as possible; returns their number, the seconds, and the brokers' CPU seconds."""
    coordinator = await _find_coordinator(cluster, topic)
    process = target.known_process
    address = coordinator.connection.address
    connections = [await cluster.connect(address, owner=n) for n in range(COMMITS_AT_ONCE)]
    numbers = itertools.count(1000)
    commits = 0

    async def commit(connection: BrokerConnection, ends: float) -> None:
        nonlocal commits
        while time.monotonic() < ends:
            error = await coordinator.commit(coordinator.body(next(numbers)), connection)
            if error is not ErrorCode.none:
                raise WorkloadFailed(f"a commit failed: {error.name}")
            commits += 1

    began, cpu_before = time.monotonic(), process.cpu_seconds()
    async with trio.open_nursery() as nursery:
        for connection in connections:
            nursery.start_soon(commit, connection, began + COMMITS_S)
    return commits, time.monotonic() - began, process.cpu_seconds() - cpu_before


WORKLOADS = (DisklessLatency(), DisklessThroughput(), DisklessCommits())
