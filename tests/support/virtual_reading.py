"""The Spark source in a virtual world: what Spark would ask of it is asked here, by its own classes.

The driver's and the tasks' half run in a thread, as they do in Spark's workers; in that time the world
stands still, but for what they ask of brokers. Readers and tasks are pickled on their way, as Spark does.
"""

from __future__ import annotations

import json
import pickle
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from random import Random
from typing import Any, TypeVar

import pytest
import trio
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from odradek.client.consumer import (
    EARLIEST,
    Isolation,
    Reader,
    ReaderOptions,
    TopicPartition,
    list_offsets,
)
from odradek.client.errors import ClientError
from odradek.client.metadata import Cluster
from odradek.pipeline.brokers import Brokers
from odradek.pipeline.data_source import BatchReader
from odradek.pipeline.options import parse_options
from odradek.pipeline.store import Store
from odradek.pipeline.stream_reader import StreamReader
from odradek.protocol.errors import KafkaError
from odradek.seams.entropy import SeededEntropy
from odradek.storage.tiered.object_store import ObjectStoreStorage
from odradek.testing.virtual_object_store import VirtualObjectStore
from odradek.testing.virtual_world import VirtualWorld

T = TypeVar("T")

Row = tuple[int, int, int, int, bytes | None, bytes | None, tuple[tuple[str, bytes | None], ...]]
"""Partition, offset, timestamp in ms, its type, key, value, headers."""

POLL_S = 0.2
FULL = StructType(
    [
        StructField("partition", IntegerType()),
        StructField("offset", LongType()),
        StructField("timestamp", TimestampType()),
        StructField("timestampType", IntegerType()),
        StructField("key", BinaryType()),
        StructField("value", BinaryType()),
        StructField(
            "headers",
            ArrayType(
                StructType([StructField("key", StringType()), StructField("value", BinaryType())])
            ),
        ),
    ]
)

OFFSETS = StructType(FULL.fields[:2])


class Standstill:
    """Runs what is synchronous beside a world whose clock jumps: no time passes meanwhile."""

    def __init__(self, cluster_view: VirtualWorld) -> None:
        self._clock = cluster_view.clock
        self._token = trio.lowlevel.current_trio_token()
        self._responding = 0

    async def beside(self, act: Callable[[], T]) -> T:
        await self._stop()
        try:
            return await trio.to_thread.run_sync(act)
        finally:
            self._clock.jumping = True

    def call(self, question: Callable[[], Awaitable[T]]) -> T:
        """For the thread, and those it starts: time passes while the world answers."""
        return trio.from_thread.run(self._respond, question, trio_token=self._token)

    async def _respond(self, question: Callable[[], Awaitable[T]]) -> T:
        self._clock.jumping = True
        self._responding += 1
        try:
            return await question()
        finally:
            self._responding -= 1
            if not self._responding:
                await self._stop()

    async def _stop(self) -> None:
        self._clock.jumping = False
        await self._clock.settle()


class VirtualBrokers(Brokers):
    """Those of the world, instead of a loop's in a thread of its own."""

    def __init__(self, cluster: Cluster, still: Standstill) -> None:
        self._bootstrap = "the world"
        self._loop: Any = still
        self._cluster = cluster


class VirtualSource:
    """See the module. `cluster` is a client's; it must be open."""

    def __init__(self, cluster_view: VirtualWorld, cluster: Cluster, topic: str) -> None:
        self._still = Standstill(cluster_view)
        self._brokers = VirtualBrokers(cluster, self._still)
        objects = VirtualObjectStore(cluster_view.bucket)
        self._store = Store(objects, ObjectStoreStorage(objects, SeededEntropy(Random(1))))
        self._topic = topic

    @contextmanager
    def reachable(self) -> Iterator[None]:
        """The world's brokers and store are those that options name."""
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("odradek.pipeline.brokers.brokers_at", lambda *options: self._brokers)
            for module in ("query", "store"):
                patch.setattr(f"odradek.pipeline.{module}.store_at", lambda *options: self._store)
            yield

    def options(self, *, committed: bool = False, **more: Any) -> dict[str, str]:
        given = {
            "kafka.bootstrap.servers": "world:9092",
            "tiered.url": "memory:///",
            "subscribe": self._topic,
            "kafka.isolation.level": "read_committed" if committed else "read_uncommitted",
            **more,
        }
        return {name.lower(): str(value) for name, value in given.items() if value is not None}

    async def read(self, chance: Random, *, pause_s: float = 0.0, **options: Any) -> list[Row]:
        """All rows of a query, which plans, waits so long, and reads its tasks in any order. Raises
        PipelineError."""
        reader = BatchReader(parse_options(self.options(**options), streaming=False), FULL)
        tasks = list(await self.aside(reader.partitions))
        await trio.sleep(pause_s)
        return await self.rows(reader, tasks, chance)

    async def offsets(self, chance: Random, **options: Any) -> list[tuple[int, int]]:
        """(partition, offset) of all rows of a query that asks for no more, likewise."""
        reader = BatchReader(parse_options(self.options(**options), streaming=False), OFFSETS)
        tasks = list(await self.aside(reader.partitions))
        found: list[tuple[int, int]] = []
        for task in chance.sample(tasks, len(tasks)):
            tables = await self.aside(lambda task=task: list(reader.read(task)))  # type: ignore[misc]
            for each in tables:
                found += zip(*each.to_pydict().values(), strict=True)
        return sorted(found)

    async def rows(
        self, reader: BatchReader | StreamReader, tasks: Sequence[Any], chance: Random
    ) -> list[Row]:
        rows: list[Row] = []
        for task in chance.sample(tasks, len(tasks)):
            rows += await self.aside(lambda task=task: rows_of(reader, task))  # type: ignore[misc]
        return sorted(rows, key=lambda row: row[:2])

    async def aside(self, act: Callable[[], T]) -> T:
        """`act()` where brokers and store may be asked synchronously."""
        with self.reachable():
            return await self._still.beside(act)


class VirtualStream:
    """A query that reads along, as Spark runs one: a batch is planned, written down, begun, and done. Before
    each its driver may be another, which goes by what is written down."""

    def __init__(self, source: VirtualSource, **options: Any) -> None:
        self.rows: list[Row] = []
        self._source = source
        given = source.options(**{"startingOffsets": "earliest", **options})
        self._options = parse_options(given, streaming=True)
        self._reader = StreamReader(self._options, FULL)
        self._planned: str | None = None
        self._done: str | None = None

    async def advance(self, chance: Random) -> bool:
        """A micro-batch; whether there was anything. Raises PipelineError; the same batch is tried next
        then."""
        self._perhaps_kill(chance)
        if self._planned == self._done:
            planned = await self._source.aside(self._plan)
            if planned == self._done:
                return False
            self._planned = planned
            self._perhaps_kill(chance)
        tasks = await self._source.aside(self._begin)
        self.rows += await self._source.rows(self._reader, tasks, chance)
        self._done = self._planned
        return True

    def _perhaps_kill(self, chance: Random) -> None:
        if chance.random() < 0.2:
            self._reader = StreamReader(self._options, FULL)

    def _plan(self) -> str:
        reader = self._reader
        return json.dumps(reader.latestOffset(self._start(), reader.getDefaultReadLimit()))

    def _begin(self) -> Sequence[Any]:
        assert self._planned is not None
        return list(self._reader.partitions(self._start(), json.loads(self._planned)))

    def _start(self) -> Any:
        """Of the batch under way. Where the first begins Spark asks each time."""
        return self._reader.initialOffset() if self._done is None else json.loads(self._done)


def rows_of(reader: BatchReader | StreamReader, task: Any) -> list[Row]:
    """What a task reads; it and its reader are pickled on their way, as Spark does."""
    sent, given = pickle.loads(pickle.dumps((reader, task)))
    found: list[Row] = []
    for table in sent.read(given):
        columns = table.to_pydict()
        columns["timestamp"] = [each.timestamp() for each in columns["timestamp"]]
        found += [
            (partition, offset, round(at * 1000), kind, key, value, _headers(headers))
            for partition, offset, at, kind, key, value, headers in zip(
                *(columns[name] for name in FULL.fieldNames()), strict=True
            )
        ]
    return found


def _headers(headers: Sequence[dict[str, Any]] | None) -> tuple[tuple[str, bytes | None], ...]:
    return tuple((each["key"], each["value"]) for each in headers or ())


async def consumed(
    cluster: Cluster, topic: str, partitions: Sequence[int], *, committed: bool
) -> list[Row]:
    """All that a consumer gets from the first offsets to the ends."""
    return await patiently(
        partial(_consumed, cluster, topic, partitions, committed=committed), cluster, topic
    )


async def first_offsets(
    cluster: Cluster, topic: str, partitions: Sequence[int]
) -> dict[TopicPartition, int]:
    wanted = dict.fromkeys((TopicPartition(topic, each) for each in partitions), EARLIEST)
    found = await patiently(partial(list_offsets, cluster, wanted), cluster, topic)
    return {where: each.offset for where, each in found.items()}


async def patiently(act: Callable[[], Awaitable[T]], cluster: Cluster, topic: str) -> T:
    """What comes of it once nodes have come back, and what was deleted on the way is known to be."""
    while True:
        try:
            return await act()
        except (KafkaError, ClientError):
            cluster.forget(topic)
            await trio.sleep(0.1)


async def _consumed(
    cluster: Cluster, topic: str, partitions: Sequence[int], *, committed: bool
) -> list[Row]:
    isolation = Isolation.READ_COMMITTED if committed else Isolation.READ_UNCOMMITTED
    reader = Reader(cluster, ReaderOptions(isolation))
    reader.assign(await first_offsets(cluster, topic, partitions))
    rows: list[Row] = []
    while not await reader.at_end():
        rows += [
            (
                each.partition,
                each.offset,
                each.timestamp,
                each.timestamp_type,
                each.key,
                each.value,
                tuple(each.headers),
            )
            for each in await reader.poll(POLL_S)
        ]
    return sorted(rows, key=lambda row: row[:2])


GAP = StructType().add("lastOffset", LongType()).add("object", StringType()).add("reason", "string")
