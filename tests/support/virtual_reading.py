"""The Spark source in a virtual cluster, called as Spark calls it.

The driver's and the tasks' parts run in a thread, as in Spark's workers. Meanwhile the virtual cluster runs only to
respond to their requests. Readers and tasks are pickled as by Spark.
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

from odradek.client.consumer import EARLIEST, IsolationLevel, Reader, ReaderOptions, list_offsets
from odradek.client.errors import ClientError
from odradek.client.metadata import Cluster
from odradek.pipeline.brokers import Brokers
from odradek.pipeline.data_source import BatchReader
from odradek.pipeline.options import parse_options
from odradek.pipeline.store import Store
from odradek.pipeline.stream_reader import StreamReader
from odradek.protocol.errors import KafkaError
from odradek.protocol.topics import TopicPartition
from odradek.seams.entropy import SeededEntropy
from odradek.storage.tiered.object_store import ObjectStoreStorage
from odradek.testing.virtual_object_store import VirtualObjectStore
from odradek.testing.virtual_world import VirtualWorld

T = TypeVar("T")

Row = tuple[int, int, int, int, bytes | None, bytes | None, tuple[tuple[str, bytes | None], ...]]
"""Partition, offset, timestamp in ms, timestamp type, key, value and headers of a record."""

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


class FrozenClock:
    """Runs synchronous code while the virtual clock does not advance."""

    def __init__(self, virtual_world: VirtualWorld) -> None:
        self._clock = virtual_world.clock
        self._token = trio.lowlevel.current_trio_token()
        self._responding = 0

    async def run_frozen(self, act: Callable[[], T]) -> T:
        await self._stop()
        try:
            return await trio.to_thread.run_sync(act)
        finally:
            self._clock.jumping = True

    def call(self, question: Callable[[], Awaitable[T]]) -> T:
        """Run an async function for the thread or one that it has started; the clock advances meanwhile."""
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
    """Brokers of the virtual cluster, in place of a client in its own thread."""

    def __init__(self, cluster: Cluster, still: FrozenClock) -> None:
        self._bootstrap = "the world"
        self._loop: Any = still
        self._cluster = cluster


class VirtualSource:
    """Source that reads the virtual cluster. `cluster` is an open client."""

    def __init__(self, virtual_world: VirtualWorld, cluster: Cluster, topic: str) -> None:
        self._still = FrozenClock(virtual_world)
        self._brokers = VirtualBrokers(cluster, self._still)
        objects = VirtualObjectStore(virtual_world.bucket)
        self._store = Store(objects, ObjectStoreStorage(objects, SeededEntropy(Random(1))))
        self._topic = topic

    @contextmanager
    def reachable(self) -> Iterator[None]:
        """Replace the brokers and the store that options name by the virtual ones."""
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
        """Return all rows of a query: plan, wait, then read its tasks in any order. Raises PipelineError."""
        reader = BatchReader(parse_options(self.options(**options), streaming=False), FULL)
        tasks = list(await self.run_synchronously(reader.partitions))
        await trio.sleep(pause_s)
        return await self.rows(reader, tasks, chance)

    async def offsets(self, chance: Random, **options: Any) -> list[tuple[int, int]]:
        """Return (partition, offset) of all rows of a query with only these columns, in the same way."""
        reader = BatchReader(parse_options(self.options(**options), streaming=False), OFFSETS)
        tasks = list(await self.run_synchronously(reader.partitions))
        found: list[tuple[int, int]] = []
        for task in chance.sample(tasks, len(tasks)):
            tables = await self.run_synchronously(lambda task=task: list(reader.read(task)))  # type: ignore[misc]
            for each in tables:
                found += zip(*each.to_pydict().values(), strict=True)
        return sorted(found)

    async def rows(
        self, reader: BatchReader | StreamReader, tasks: Sequence[Any], chance: Random
    ) -> list[Row]:
        rows: list[Row] = []
        for task in chance.sample(tasks, len(tasks)):
            rows += await self.run_synchronously(lambda task=task: rows_of(reader, task))  # type: ignore[misc]
        return sorted(rows, key=lambda row: row[:2])

    async def run_synchronously(self, act: Callable[[], T]) -> T:
        """Call `act` with synchronous access to brokers and store."""
        with self.reachable():
            return await self._still.run_frozen(act)


class VirtualStream:
    """Stream as Spark runs it: each batch is planned, logged, started and committed. Before each step
    another driver may replace this one and continue from the log."""

    def __init__(self, source: VirtualSource, **options: Any) -> None:
        self.rows: list[Row] = []
        self._source = source
        given = source.options(**{"startingOffsets": "earliest", **options})
        self._options = parse_options(given, streaming=True)
        self._reader = StreamReader(self._options, FULL)
        self._planned: str | None = None
        self._done: str | None = None

    async def advance(self, chance: Random) -> bool:
        """Run a micro-batch; return whether it had offsets. Raises PipelineError; the next call repeats the
        batch."""
        self._perhaps_kill(chance)
        if self._planned == self._done:
            planned = await self._source.run_synchronously(self._plan)
            if planned == self._done:
                return False
            self._planned = planned
            self._perhaps_kill(chance)
        tasks = await self._source.run_synchronously(self._begin)
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
        """Return the start of the current batch. Spark requests the initial offsets for the first one each time."""
        return self._reader.initialOffset() if self._done is None else json.loads(self._done)


def rows_of(reader: BatchReader | StreamReader, task: Any) -> list[Row]:
    """Return the rows of a task; the task and its reader are pickled as by Spark."""
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
    """Return all records that a consumer reads from the log start offsets to the log end offsets."""
    return await retried(
        partial(_consumed, cluster, topic, partitions, committed=committed), cluster, topic
    )


async def first_offsets(
    cluster: Cluster, topic: str, partitions: Sequence[int]
) -> dict[TopicPartition, int]:
    wanted = dict.fromkeys((TopicPartition(topic, each) for each in partitions), EARLIEST)
    found = await retried(partial(list_offsets, cluster, wanted), cluster, topic)
    return {where: each.offset for where, each in found.items()}


async def retried(act: Callable[[], Awaitable[T]], cluster: Cluster, topic: str) -> T:
    """Repeat a call until nodes have restarted and deletions are known."""
    while True:
        try:
            return await act()
        except (KafkaError, ClientError):
            cluster.forget(topic)
            await trio.sleep(0.1)


async def _consumed(
    cluster: Cluster, topic: str, partitions: Sequence[int], *, committed: bool
) -> list[Row]:
    isolation = IsolationLevel.READ_COMMITTED if committed else IsolationLevel.READ_UNCOMMITTED
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
