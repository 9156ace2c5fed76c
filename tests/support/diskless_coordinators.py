"""One coordinator of diskless topics on a log in memory, whose high watermark a test controls."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from typing import Any
from uuid import UUID

import pytest
import trio

from odradek.broker.diskless.coordinator import CoordinatorEnvironment, DisklessCoordinator
from odradek.broker.diskless.snapshots import SnapshotEnvironment
from odradek.protocol.errors import ErrorCode, KafkaError
from odradek.protocol.records import records as log_records
from odradek.protocol.records.batch import batches
from odradek.protocol.schemas.diskless_apis import (
    DisklessCommitBatch,
    DisklessCommitFileRequest,
    DisklessCommitFileResponse,
)
from odradek.replication.controller.image import MetadataImage, PartitionImage, TopicImage
from odradek.seams.containment import Containment
from odradek.storage.diskless.memory_state import MemoryDisklessState
from odradek.storage.diskless.object_key import object_key
from odradek.storage.diskless.state import DisklessState, LogEntry
from odradek.testing.virtual_clock import VirtualClock
from odradek.testing.virtual_offload import VirtualOffload

METADATA_ID = UUID(int=900)
TOPIC_ID = UUID(int=1)
NOW_MS = 1_700_000_000_000


class MemoryReplicaLog:
    """`ReplicaLog` in memory. Several replicas have it in turn, as if each had a copy."""

    def __init__(self) -> None:
        self.data = bytearray()
        self.start_offset = 0
        self.end_offset = 0
        self.high_watermark = 0
        self.batch_bytes_max = 1 << 20
        self.leader_epoch = 0
        self.directory = "/data"
        self.fails_with: KafkaError | None = None
        self.commits_at_once = False
        self.appended: list[int] = []
        """First offsets of the batches."""

    def append(self, batch: bytearray, now_ms: int) -> int:
        if self.fails_with is not None:
            raise self.fails_with
        (header,) = batches(memoryview(batch), check=True)
        first = self.end_offset
        header.stamp(first, 0)
        self.data += batch
        self.end_offset = first + header.record_count
        self.appended.append(first)
        if self.commits_at_once:
            self.high_watermark = self.end_offset
        return first

    @property
    def size_bytes(self) -> int:
        return len(self.data)

    def delete_before(self, offset: int) -> None:
        self.start_offset = max(self.start_offset, offset)

    def append_raw(self, value: bytes) -> None:
        """Append a record that no coordinator has written."""
        self.append(log_records.build_batch([log_records.Record(0, NOW_MS, None, value)]), NOW_MS)

    async def read(self, offset: int, max_bytes: int) -> bytes:
        position = 0
        for batch in batches(memoryview(bytes(self.data))):
            if batch.last_offset >= offset:
                return bytes(self.data[position : position + max(max_bytes, batch.size)])
            position += batch.size
        return b""

    def truncate(self, offset: int) -> None:
        """Remove the records from `offset` on, as a follower of another leader does."""
        kept = bytearray()
        for batch in batches(memoryview(bytes(self.data))):
            if batch.last_offset < offset:
                kept += batch.view
        self.data, self.end_offset = kept, offset


class RecordedState(MemoryDisklessState):
    """State that records every transaction."""

    def __init__(self, coordinator_id: int) -> None:
        super().__init__(coordinator_id)
        self.transactions: list[tuple[int, int]] = []
        """Number of records and offset of each transaction."""
        self.fails_with: Exception | None = None
        self.is_closed = False

    def apply(self, entries: Sequence[LogEntry], through_offset: int) -> None:
        if self.fails_with is not None:
            raise self.fails_with
        super().apply(entries, through_offset)
        self.transactions.append((len(entries), through_offset))

    def close(self) -> None:
        self.is_closed = True


class KeptStates:
    """`StateStore` that keeps the state of each log directory."""

    def __init__(self) -> None:
        self.states: dict[str, RecordedState] = {}

    def open(self, coordinator_id: int, topic_id: UUID, directory: str) -> DisklessState:
        return self.states.setdefault(directory, RecordedState(coordinator_id))

    def remove(self, coordinator_id: int, directory: str) -> None:
        del self.states[directory]


def diskless_partition(coordinator_id: int) -> PartitionImage:
    return PartitionImage((), (), (), -1, 0, 0, diskless_coordinator=coordinator_id)


def image_of(topics: dict[UUID, tuple[str, Sequence[int]]]) -> MetadataImage:
    """Image with diskless topics: name, and the coordinator of each partition."""
    by_id = {
        topic_id: TopicImage(
            name, topic_id, {n: diskless_partition(each) for n, each in enumerate(coordinators)}
        )
        for topic_id, (name, coordinators) in topics.items()
    }
    return MetadataImage(
        topics_by_id=by_id,
        topics_by_name={topic.name: topic for topic in by_id.values()},
        diskless_topics={topic_id: topic.name for topic_id, topic in by_id.items()},
    )


@dataclass
class Replica:
    """A running coordinator on `log`."""

    coordinator: DisklessCoordinator
    log: MemoryReplicaLog
    states: Any
    """`KeptStates`, unless the test has a real store."""
    clock: VirtualClock
    applied: list[tuple[UUID, int]] = field(default_factory=list)
    """Partitions that the commit listeners were called with."""
    image: MetadataImage = field(default_factory=MetadataImage)
    errors: list[Exception] = field(default_factory=list)

    @property
    def state(self) -> RecordedState:
        state: RecordedState = self.states.states[self.log.directory]
        return state

    def commit_through(self, offset: int) -> None:
        """Advance the high watermark past `offset`."""
        self.log.high_watermark = offset + 1
        self.coordinator.wake()


def new_replica(
    log: MemoryReplicaLog | None = None,
    states: Any = None,
    *,
    image: MetadataImage | None = None,
    coordinator_id: int = 0,
    clock: VirtualClock | None = None,
    snapshots: SnapshotEnvironment | None = None,
) -> Replica:
    """A replica that does not run yet. Its image has the topic `t` with one partition at coordinator 0."""
    log, states = log or MemoryReplicaLog(), states or KeptStates()
    clock = clock or VirtualClock()
    applied: list[tuple[UUID, int]] = []
    replica: Replica
    environment = CoordinatorEnvironment(
        1,
        clock,
        VirtualOffload(),
        states,
        lambda: replica.image,
        86_400_000,
        lambda topic_id, index: applied.append((topic_id, index)),
    )
    coordinator = DisklessCoordinator(coordinator_id, METADATA_ID, log, environment, snapshots)
    replica = Replica(coordinator, log, states, clock, applied)
    replica.image = image or image_of({TOPIC_ID: ("t", [0])})
    return replica


async def settle() -> None:
    """Let all tasks run until they wait."""
    for _ in range(60):
        await trio.lowlevel.checkpoint()


def commit_request(
    now_ms: int,
    *batches: DisklessCommitBatch,
    number: int = 0,
    owners: Sequence[int] = (0,),
) -> DisklessCommitFileRequest:
    """Commit of a file that broker 7 has uploaded at `now_ms`."""
    return DisklessCommitFileRequest(
        object_key=object_key(now_ms, 7, UUID(int=number)),
        object_format=1,
        file_size=1000,
        owner_ids=tuple(owners),
        batches=batches,
    )


def commit_batch(
    records: int = 1,
    *,
    topic_id: UUID = TOPIC_ID,
    index: int = 0,
    byte_offset: int = 0,
    producer_id: int = -1,
    sequence: int = -1,
    timestamp_ms: int = NOW_MS,
) -> DisklessCommitBatch:
    """A batch of 100 bytes."""
    return DisklessCommitBatch(
        magic=2,
        request_id=0,
        topic_id=topic_id,
        partition_index=index,
        byte_offset=byte_offset,
        size=100,
        base_offset=0,
        last_offset=records - 1,
        batch_max_timestamp=timestamp_ms,
        timestamp_type=0,
        producer_id=producer_id,
        producer_epoch=0 if producer_id >= 0 else -1,
        base_sequence=sequence,
        last_sequence=sequence + records - 1 if sequence >= 0 else -1,
    )


@contextmanager
def refused(code: ErrorCode) -> Iterator[None]:
    """Expect a KafkaError with this code."""
    with pytest.raises(KafkaError) as error:
        yield
    assert error.value.code is code, error.value


@asynccontextmanager
async def running(replica: Replica) -> AsyncIterator[Replica]:
    """Run the coordinator as `DisklessCoordinators` does."""
    tasks: Containment[Any] = Containment(
        "the coordinator of diskless topics",
        type(replica.coordinator).mark_failed,
        name=lambda coordinator: coordinator.name,
        consequence="…",
    )
    async with trio.open_nursery() as nursery:
        nursery.start_soon(tasks.keep_running, replica.coordinator, replica.coordinator.run)
        await settle()
        yield replica
        nursery.cancel_scope.cancel()


@asynccontextmanager
async def leading(replica: Replica | None = None, **more: Any) -> AsyncIterator[Replica]:
    """A leader that has created the partition of `t` and serves."""
    replica = replica or new_replica(**more)
    replica.coordinator.lead_since(0)
    async with running(replica):
        replica.commit_through(replica.log.end_offset - 1)
        await settle()
        yield replica


class Call:
    """A call of an operation in a task."""

    def __init__(self, nursery: trio.Nursery, call: Callable[[], Awaitable[Any]]) -> None:
        self.result: Any = None
        self.error: KafkaError | None = None
        nursery.start_soon(self._run, call)

    async def _run(self, call: Callable[[], Awaitable[Any]]) -> None:
        try:
            self.result = await call()
        except KafkaError as error:
            self.error = error

    @property
    def is_done(self) -> bool:
        return self.result is not None or self.error is not None


def begin_commit(nursery: trio.Nursery, replica: Replica, number: int = 0, **batch: Any) -> Call:
    request = commit_request(replica.clock.wall_ms(), commit_batch(**batch), number=number)
    return Call(nursery, lambda: replica.coordinator.commit_file(request))


def offsets(call: Call) -> list[int]:
    response: DisklessCommitFileResponse = call.result
    return [result.assigned_base_offset for result in response.batches]
