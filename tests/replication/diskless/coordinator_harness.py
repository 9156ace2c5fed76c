"""A coordinator's state machine with an in-memory state, whose operations a test applies."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any, TypeVar
from uuid import UUID

from odradek.protocol.schemas.diskless_apis import (
    DisklessCommitBatch,
    DisklessCommitBatchResult,
    DisklessCommitFileRequest,
    DisklessCreatablePartitions,
    DisklessCreatablePartitionsResult,
    DisklessCreatePartitionsRequest,
    DisklessDeletableTopicResult,
    DisklessDeletableTopicState,
    DisklessDeleteRecordsPartition,
    DisklessDeleteRecordsPartitionResult,
    DisklessDeleteRecordsRequest,
    DisklessDeleteRecordsTopic,
    DisklessDeleteTopicsRequest,
    DisklessHandOverFileRequest,
    DisklessHandOverFileResponse,
)
from odradek.replication.diskless.coordinator_state_machine import (
    CoordinatorStateMachine,
    ImageTopic,
    Operation,
    RemoveFile,
    Request,
    read_state,
)
from odradek.storage.diskless.memory_state import MemoryDisklessState
from odradek.storage.diskless.object_key import object_key
from odradek.storage.diskless.state import DisklessState, LogEntry

R = TypeVar("R")
COORDINATOR = 3
START_MS = 1_000_000
WINDOW_MS = 30_000
EXPIRATION_MS = 60_000
FILE_SIZE = 1 << 20


def file_key(number: int, uploaded_ms: int = START_MS, broker_id: int = 1) -> str:
    return object_key(uploaded_ms, broker_id, UUID(int=number))


def commit_batch(
    topic_id: UUID, index: int, byte_offset: int, **values: Any
) -> DisklessCommitBatch:
    """A batch of `records` records, with a producer if it is given as `producer=(id, epoch, base sequence)`."""
    count = values.pop("records", 1)
    producer_id, epoch, sequence = values.pop("producer", (-1, -1, -1))
    fields: dict[str, Any] = {
        "magic": 2,
        "request_id": 1,
        "size": 10,
        "base_offset": 0,
        "last_offset": count - 1,
        "batch_max_timestamp": 77,
        "timestamp_type": 0,
        "producer_id": producer_id,
        "producer_epoch": epoch,
        "base_sequence": sequence,
        "last_sequence": -1 if producer_id < 0 else (sequence + count - 1) & 0x7FFFFFFF,
    }
    return DisklessCommitBatch(
        topic_id=topic_id, partition_index=index, byte_offset=byte_offset, **(fields | values)
    )


def commit_request(
    key: str, *batches: DisklessCommitBatch, owner_ids: tuple[int, ...] = (COORDINATOR, 1)
) -> DisklessCommitFileRequest:
    return DisklessCommitFileRequest(
        object_key=key,
        object_format=1,
        file_size=FILE_SIZE,
        owner_ids=owner_ids,
        batches=batches,
    )


class CoordinatorHarness:
    """Decides requests one after another. `while_reading` is called whenever the machine reads the state."""

    def __init__(self, state: DisklessState | None = None, **options: Any) -> None:
        """`state` is an empty state; in memory by default."""
        defaults = {"commit_window_ms": WINDOW_MS, "producer_expiration_ms": EXPIRATION_MS}
        self._options: dict[str, Any] = defaults | options
        self.machine = CoordinatorStateMachine(COORDINATOR, **self._options)
        self.state = state or MemoryDisklessState(COORDINATOR, producer_expiration_ms=EXPIRATION_MS)
        self.now_ms = START_MS
        self.records: list[Any] = []
        """All records, which have the offsets from 0."""
        self.pending: deque[list[LogEntry]] = deque()
        self.while_reading: Callable[[], None] = lambda: None
        self.reads = 0
        """How often the machine read the state."""
        self._is_deciding = False
        self._unreported_offset = -1

    def run(self, request: Request, decide: Callable[[], Operation[R]]) -> R:
        self._is_deciding = True
        response = self._run(request, decide)
        self._is_deciding = False
        if self._unreported_offset >= 0:
            self.machine.applied(self._unreported_offset)
            self._unreported_offset = -1
        return response

    def _run(self, request: Request, decide: Callable[[], Operation[R]]) -> R:
        while reads := self.machine.missing_reads(request):
            self.reads += 1
            values = read_state(self.state, reads)
            self.while_reading()
            self.machine.fill(values)
        operation = decide()
        if operation.records:
            first = len(self.records)
            self.records += operation.records
            self.pending.append(
                [
                    LogEntry(first + position, operation.append_ms, record)
                    for position, record in enumerate(operation.records)
                ]
            )
            self.machine.accept(operation, len(self.records) - 1)
        return operation.response

    def apply(self, operations: int | None = None) -> None:
        """Apply the oldest pending operations, by default all. The machine gets the offset after the current decision,
        as from `Leadership.applied`."""
        for _ in range(len(self.pending) if operations is None else operations):
            entries = self.pending.popleft()
            self.state.apply(entries, entries[-1].offset)
            if self._is_deciding:
                self._unreported_offset = entries[-1].offset
            else:
                self.machine.applied(entries[-1].offset)

    def remove_deleted_batches(self) -> None:
        while self.state.remove_deleted_batches():
            pass

    def become_leader(self) -> None:
        """Start as a new leader does: everything is applied, and nothing is in memory."""
        self.apply()
        self.machine = CoordinatorStateMachine(
            COORDINATOR, **{**self._options, "elected_ms": self.now_ms}
        )

    def commit(self, request: DisklessCommitFileRequest) -> tuple[DisklessCommitBatchResult, ...]:
        decide = self.machine.decide_commit_file
        return self.run(request, lambda: decide(request, self.now_ms)).batches

    def create(
        self, topic_id: UUID, *indexes: int, in_image: bool = True, partitions: int = 1000
    ) -> DisklessCreatablePartitionsResult:
        topic = DisklessCreatablePartitions(topic_id=topic_id, name="t", num_partitions=partitions)
        request = DisklessCreatePartitionsRequest(topics=(topic,))
        image = {topic_id: ImageTopic("t", indexes)} if in_image else {}
        decide = self.machine.decide_create_partitions
        return self.run(request, lambda: decide(request, image, self.now_ms)).topics[0]

    def delete_topic(self, topic_id: UUID) -> DisklessDeletableTopicResult:
        request = DisklessDeleteTopicsRequest(
            topics=(DisklessDeletableTopicState(topic_id=topic_id),)
        )
        decide = self.machine.decide_delete_topics
        return self.run(request, lambda: decide(request, self.now_ms)).responses[0]

    def delete_records(
        self, topic_id: UUID, index: int, offset: int
    ) -> DisklessDeleteRecordsPartitionResult:
        partition = DisklessDeleteRecordsPartition(partition_index=index, offset=offset)
        topic = DisklessDeleteRecordsTopic(topic_id=topic_id, partitions=(partition,))
        request = DisklessDeleteRecordsRequest(topics=(topic,))
        decide = self.machine.decide_delete_records
        return self.run(request, lambda: decide(request, self.now_ms)).topics[0].partitions[0]

    def take_ownership(self, key: str, owner_ids: tuple[int, ...]) -> DisklessHandOverFileResponse:
        request = DisklessHandOverFileRequest(
            coordinator_id=COORDINATOR,
            object_key=key,
            object_format=1,
            file_size=FILE_SIZE,
            owner_ids=owner_ids,
        )
        decide = self.machine.decide_take_ownership
        return self.run(request, lambda: decide(request, self.now_ms))

    def remove_file(self, key: str) -> bool:
        request = RemoveFile(key)
        decide = self.machine.decide_remove_file
        return self.run(request, lambda: decide(request, self.now_ms))
