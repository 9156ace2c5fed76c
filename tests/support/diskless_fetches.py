"""Fetches of diskless partitions without a broker: the fetch handler, a coordinator in memory and a virtual store."""

from __future__ import annotations

import random
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from datetime import timedelta
from types import SimpleNamespace
from typing import Any
from uuid import UUID

import trio

from odradek.broker.apis.delete_records import delete_records
from odradek.broker.apis.fetch import FetchResponse, fetch
from odradek.broker.apis.list_offsets import list_offsets, offset_for_leader_epoch
from odradek.broker.diskless.coordinator_service import DeletePosition
from odradek.broker.diskless.log_reader import DisklessLogReader
from odradek.broker.diskless.offset_queries import DisklessOffsets
from odradek.broker.fetch.purgatory import CompletableFetches, fetch_timers
from odradek.broker.fetch.session_cache import FetchSessionCache
from odradek.broker.requests.context import RequestContext
from odradek.protocol.errors import ErrorCode
from odradek.protocol.fetch_request_reader import FetchPartition, FetchRequest, FetchTopic
from odradek.protocol.fetch_response_writer import FetchedPartition
from odradek.protocol.records.batch import Batch, batches
from odradek.protocol.records.records import Record, build_batch, decode
from odradek.protocol.schemas.diskless_apis import (
    DisklessDeleteRecordsPartitionResult,
    DisklessFindBatchesPartitionResponse,
    DisklessListOffsetsPartitionResponse,
)
from odradek.protocol.schemas.diskless_records import (
    DisklessCommittedBatch,
    DisklessCommittedPartition,
    DisklessCommittedTopic,
    DisklessFileCommittedRecord,
    DisklessPartitionCreatedRecord,
    DisklessRecordsDeletedRecord,
    DisklessTopicDeletedRecord,
)
from odradek.replication.controller.image import MetadataImage, PartitionImage, TopicImage
from odradek.replication.errors import NotLeader, UnknownPartition, UnknownTopicId
from odradek.replication.partition.partition import PartitionTraffic
from odradek.seams.entropy import SeededEntropy
from odradek.seams.files import FileSlice
from odradek.storage.diskless import queries
from odradek.storage.diskless.memory_state import MemoryDisklessState
from odradek.storage.diskless.object_cache import ObjectCache
from odradek.storage.diskless.object_key import object_key
from odradek.storage.diskless.queries import FindPosition, TimestampPosition
from odradek.storage.diskless.state import LogEntry
from odradek.storage.diskless.wal_file import WalFile
from odradek.testing.virtual_object_store import VirtualBucket, VirtualObjectStore
from odradek.testing.virtual_offload import VirtualOffload
from tests.support.controller_node import TrioClock

TOPIC_ID = UUID(int=100)
NOW_MS = 1_700_000_000_000
VERSION = 17
POLL_INTERVAL_MS = 50
_NO_COORDINATOR = ErrorCode.coordinator_not_available


class SleepingClock(TrioClock):
    async def sleep(self, seconds: float) -> None:
        await trio.sleep(seconds)


def diskless_topic(name: str, topic_id: UUID, partitions: int) -> TopicImage:
    return TopicImage(
        name,
        topic_id,
        {
            index: PartitionImage((), (), (), -1, 0, 0, diskless_coordinator=0)
            for index in range(partitions)
        },
    )


class FakeCoordinator:
    """The coordinator of all partitions, as `BatchFinder`: the state of its leader, and of a replica that may be behind."""

    def __init__(self) -> None:
        self.leader = MemoryDisklessState(0)
        self.replica: MemoryDisklessState | None = None
        """State of the replica on the broker of the reader; None: the broker has none."""
        self.is_available = True
        self.hanging: set[int] = set()
        """Partitions whose coordinator does not respond before the time limit."""
        self.zombie: MemoryDisklessState | None = None
        """State of a former leader, which does not know that it was replaced and cannot reach the other replicas."""
        self.lagging: MemoryDisklessState | None = None
        """State of a new leader that has not applied its whole log; its strict reads wait until it has."""
        self.calls: list[tuple[list[FindPosition], bool]] = []
        """Positions and strictness of every request."""
        self._entries: list[LogEntry] = []

    def apply(self, record: Any) -> None:
        entry = LogEntry(len(self._entries), NOW_MS, record)
        self._entries.append(entry)
        self.leader.apply([entry], entry.offset)

    def catch_up(self) -> None:
        """Apply everything to the replica."""
        if self.replica is None:
            self.replica = MemoryDisklessState(0)
        self.replica.apply(self._entries, len(self._entries) - 1)

    def coordinator_of(self, topic_id: UUID, index: int) -> int | None:
        return 0 if index < 2 else 1

    def leader_of(self, coordinator_id: int) -> int:
        return 1

    async def find_batches(
        self,
        positions: Sequence[FindPosition],
        *,
        max_bytes: int,
        max_batches: int,
        strict: bool = False,
        timeout_s: float = 10.0,
    ) -> Sequence[DisklessFindBatchesPartitionResponse]:
        self.calls.append((list(positions), strict))
        await trio.sleep(0.002)
        if any(each.index in self.hanging for each in positions):
            await trio.sleep(timeout_s)
        is_local = self.replica is not None and not strict
        if not self.is_available and not is_local:
            return [
                DisklessFindBatchesPartitionResponse(
                    partition_index=each.index, error_code=_NO_COORDINATOR
                )
                for each in positions
            ]
        state = self.replica if is_local else (self.lagging or self.zombie or self.leader)
        assert state is not None
        found = queries.find_batches(state, positions, max_bytes=max_bytes, max_batches=max_batches)
        return [
            DisklessFindBatchesPartitionResponse(
                partition_index=each.partition_index, error_code=_NO_COORDINATOR
            )
            if each.partition_index in self.hanging
            else each
            for each in found
        ]

    async def find_at_isr(
        self, positions: Sequence[FindPosition], *, timeout_s: float = 10.0
    ) -> Sequence[Sequence[DisklessFindBatchesPartitionResponse]]:
        states = [each for each in (self.zombie, self.leader, self.replica) if each is not None]
        of_states = [
            queries.find_batches(state, positions, max_bytes=1, max_batches=1) for state in states
        ]
        found = [list(each) for each in zip(*of_states, strict=True)]
        if self.zombie is not None:
            for number, position in enumerate(positions):
                found[number][1] = DisklessFindBatchesPartitionResponse(
                    partition_index=position.index, error_code=ErrorCode.network_exception
                )
        return found

    async def list_offsets(
        self, positions: Sequence[TimestampPosition], *, timeout_s: float = 10.0
    ) -> Sequence[DisklessListOffsetsPartitionResponse]:
        await trio.sleep(0.002)
        if not self.is_available or self.lagging is not None:
            return [
                DisklessListOffsetsPartitionResponse(
                    partition_index=each.index, error_code=_NO_COORDINATOR
                )
                for each in positions
            ]
        return queries.list_offsets(self.zombie or self.leader, positions)

    async def delete_records(
        self, positions: Sequence[DeletePosition], *, timeout_s: float = 10.0
    ) -> Sequence[DisklessDeleteRecordsPartitionResult]:
        await trio.sleep(0.002)
        results = []
        for each in positions:
            partition = self.leader.partition(each.topic_id, each.index)
            assert partition is not None
            offset = partition.high_watermark if each.offset == -1 else each.offset
            code = ErrorCode.none
            if not self.is_available:
                code = _NO_COORDINATOR
            elif not 0 <= offset <= partition.high_watermark:
                code = ErrorCode.offset_out_of_range
            else:
                self.apply(
                    DisklessRecordsDeletedRecord(
                        topic_id=each.topic_id,
                        partition_index=each.index,
                        new_log_start_offset=offset,
                    )
                )
            results.append(
                DisklessDeleteRecordsPartitionResult(
                    partition_index=each.index, low_watermark=offset, error_code=code
                )
            )
        return results


class DisklessNode:
    """What the fetch handler uses of a broker, with diskless topics only."""

    def __init__(self, *, partitions: int = 4, cache_bytes: int = 1 << 20) -> None:
        self.coordinator = FakeCoordinator()
        self.bucket = VirtualBucket()
        self.traffic: dict[str, PartitionTraffic] = {}
        self.images: dict[str, TopicImage] = {}
        self._next_offsets: dict[tuple[UUID, int], int] = {}
        clock = SleepingClock()
        self.offload = VirtualOffload(
            entropy=SeededEntropy(random.Random(0)), delay_seconds=0.002, calls_per_lane=64
        )
        self.seams: Any = SimpleNamespace(clock=clock, offload=self.offload)
        store = VirtualObjectStore(self.bucket, wait=self.offload.extend_current_call)
        self.reader = DisklessLogReader(
            self.coordinator,
            store,
            ObjectCache(cache_bytes),
            self.seams,
            lambda: self.image,
            is_local=lambda coordinator: self.coordinator.replica is not None,
            poll_seconds=lambda: POLL_INTERVAL_MS / 1000,
        )
        self.reader.traffic = lambda topic: self.traffic.setdefault(topic, PartitionTraffic())
        self.services: Any = SimpleNamespace(
            fetch_sessions=FetchSessionCache(100, SeededEntropy(random.Random(0))),
            seams=self.seams,
            config=_Config({"replica.selector.class": ""}),
            partitions=_NoPartitions(self),
            client_quotas=None,
            tiered_storage=None,
            replicas=SimpleNamespace(leader_throttle=None),
            completable_fetches=CompletableFetches(clock),
            fetch_timers=fetch_timers(clock),
            diskless=SimpleNamespace(
                reader=self.reader,
                offsets=DisklessOffsets(self.coordinator, self.reader, self.offload),
            ),
            metadata=self,
        )
        self.create("t", TOPIC_ID, partitions)

    @property
    def image(self) -> MetadataImage:
        topics = self.images.values()
        return MetadataImage(
            topics_by_name=dict(self.images), topics_by_id={topic.id: topic for topic in topics}
        )

    @asynccontextmanager
    async def running(self) -> AsyncIterator[DisklessNode]:
        async with trio.open_nursery() as nursery:
            await nursery.start(self.reader.run)
            nursery.start_soon(self.services.fetch_timers.run)
            yield self
            nursery.cancel_scope.cancel()

    # Topics and commits

    def create(self, name: str, topic_id: UUID, partitions: int = 1) -> None:
        self.images[name] = diskless_topic(name, topic_id, partitions)
        for index in range(partitions):
            self.coordinator.apply(
                DisklessPartitionCreatedRecord(topic_id=topic_id, name=name, partition_index=index)
            )

    def delete(self, name: str) -> None:
        topic = self.images.pop(name)
        self.coordinator.apply(DisklessTopicDeletedRecord(topic_id=topic.id))
        self.reader.metadata_changed(
            SimpleNamespace(deleted_topics={topic.id: topic}, image=self.image)  # type: ignore[arg-type]
        )

    def delete_records(self, index: int, offset: int) -> None:
        self.coordinator.apply(
            DisklessRecordsDeletedRecord(
                topic_id=TOPIC_ID, partition_index=index, new_log_start_offset=offset
            )
        )

    def commit(
        self,
        records: Mapping[int, int],
        *,
        value_bytes: int = 20,
        is_local: bool = False,
        log_append_time: bool = False,
        timestamps: Sequence[int] = (),
    ) -> str:
        """Store and commit an object with one batch of each partition, by its number of records; returns its key.

        `is_local`: the writer of this broker has put it into the cache. `timestamps` are those of the records.
        """
        wal = WalFile()
        for index, count in records.items():
            wal.add(TOPIC_ID, index, Batch(memoryview(_batch(count, value_bytes, timestamps))))
        built = wal.build()
        key = object_key(NOW_MS, 1, UUID(int=len(self.bucket.objects)))
        self.bucket.store(key, built.data)
        if is_local:
            self.reader.batches.cache.put(key, built.data)
        partitions = []
        for batch in built.batches:
            offset_key = (batch.topic_id, batch.partition_index)
            base_offset = self._next_offsets.get(offset_key, 0)
            self._next_offsets[offset_key] = base_offset + batch.last_offset + 1
            committed = DisklessCommittedBatch(
                magic=batch.magic,
                byte_offset=batch.byte_offset,
                byte_size=batch.size,
                assigned_base_offset=base_offset,
                assigned_last_offset=base_offset + batch.last_offset,
                log_append_timestamp=NOW_MS + 5000,
                batch_max_timestamp=batch.batch_max_timestamp,
                timestamp_type=int(log_append_time),
                producer_id=-1,
                producer_epoch=-1,
                base_sequence=-1,
                last_sequence=-1,
            )
            partitions.append(
                DisklessCommittedPartition(
                    partition_index=batch.partition_index, batches=(committed,)
                )
            )
        self.coordinator.apply(
            DisklessFileCommittedRecord(
                object_key=key,
                object_format=1,
                file_size=len(built.data),
                uploader_broker_id=1,
                owner_ids=(0,),
                topics=(DisklessCommittedTopic(topic_id=TOPIC_ID, partitions=tuple(partitions)),),
            )
        )
        return key

    def replicate(self, *indexes: int) -> None:
        """Let the replica of the coordinator on this broker apply everything, which notifies the reader."""
        self.coordinator.catch_up()
        for index in indexes:
            self.reader.committed(TOPIC_ID, index)

    def gets(self) -> int:
        return sum(operation == "get_range" for operation, _ in self.bucket.requests)

    # Fetches

    async def fetch(
        self, offsets: Mapping[int, int], *, topic_id: UUID = TOPIC_ID, **fields: Any
    ) -> list[FetchedPartition]:
        """Fetch partitions of the topic from offsets; returns the partitions of the response."""
        return partitions_of(await self.fetch_response(offsets, topic_id=topic_id, **fields))

    async def fetch_response(
        self,
        offsets: Mapping[int, int],
        *,
        topic_id: UUID = TOPIC_ID,
        partition_bytes: int = 1 << 20,
        epoch: int = 0,
        **fields: Any,
    ) -> FetchResponse:
        request = FetchRequest()
        request.max_wait_ms, request.min_bytes, request.max_bytes = 500, 1, 50 << 20
        for name, value in fields.items():
            setattr(request, name, value)
        request.topics = [
            FetchTopic(
                None,
                topic_id,
                [
                    FetchPartition(index, epoch, offset, -1, -1, partition_bytes)
                    for index, offset in offsets.items()
                ],
            )
        ]
        response = await fetch(request, self.context())
        assert response is not None
        return response

    async def list_offsets(
        self, wanted: Mapping[int, int], *, epoch: int = -1, replica_id: int = -1
    ) -> dict[int, tuple[ErrorCode, int, int, int]]:
        """ListOffsets by partition and timestamp: (error, timestamp, offset, leader epoch) of each."""
        request = SimpleNamespace(
            replica_id=replica_id,
            isolation_level=0,
            topics=[
                SimpleNamespace(
                    name="t",
                    partitions=[
                        SimpleNamespace(
                            partition_index=index, timestamp=timestamp, current_leader_epoch=epoch
                        )
                        for index, timestamp in wanted.items()
                    ],
                )
            ],
        )
        response = await list_offsets(request, self.context(10))
        (topic,) = response["topics"]
        return {
            each["partition_index"]: (
                each["error_code"],
                each["timestamp"],
                each["offset"],
                each.get("leader_epoch", -1),
            )
            for each in topic["partitions"]
        }

    async def delete_before(self, wanted: Mapping[int, int]) -> dict[int, tuple[ErrorCode, int]]:
        """DeleteRecords by partition and offset: (error, low watermark) of each."""
        request = SimpleNamespace(
            timeout=timedelta(seconds=5),
            topics=[
                SimpleNamespace(
                    name="t",
                    partitions=[
                        SimpleNamespace(partition_index=index, offset=offset)
                        for index, offset in wanted.items()
                    ],
                )
            ],
        )
        response = await delete_records(request, self.context(2))
        return {
            each["partition_index"]: (each["error_code"], each["low_watermark"])
            for topic in response["topics"]
            for each in topic["partitions"]
        }

    async def epoch_ends(
        self, wanted: Mapping[int, int], *, epoch: int = -1
    ) -> dict[int, tuple[ErrorCode, int, int]]:
        """OffsetForLeaderEpoch by partition and epoch: (error, epoch, end offset) of each."""
        request = SimpleNamespace(
            topics=[
                SimpleNamespace(
                    topic="t",
                    partitions=[
                        SimpleNamespace(
                            partition=index, leader_epoch=asked, current_leader_epoch=epoch
                        )
                        for index, asked in wanted.items()
                    ],
                )
            ]
        )
        response = await offset_for_leader_epoch(request, self.context(4))
        return {
            each["partition"]: (each["error_code"], each["leader_epoch"], each["end_offset"])
            for topic in response["topics"]
            for each in topic["partitions"]
        }

    def context(self, version: int = VERSION) -> RequestContext:
        unused: Any = None
        return RequestContext(
            self.services, unused, version, 1, "test", unused, unused, trio.lowlevel.checkpoint
        )


class _Config(dict[str, str]):
    def get_int(self, name: str) -> int:
        return {"fetch.max.bytes": 55 << 20, "connections.max.idle.ms": 600_000}[name]


class _NoPartitions:
    """Partition table of a broker without replicas."""

    counts_traffic = False

    def __init__(self, node: DisklessNode) -> None:
        self._node = node

    def find(self, topic: str | None, topic_id: UUID | None, index: int) -> None:
        return None

    async def get(self, topic: str | None, topic_id: UUID | None, index: int) -> Any:
        if topic_id is not None and topic_id not in self._node.image.topics_by_id:
            raise UnknownTopicId(str(topic_id))
        if topic_id is None and topic not in self._node.images:
            raise UnknownPartition(str(topic))
        raise NotLeader("no replica")


def _batch(count: int, value_bytes: int, timestamps: Sequence[int]) -> bytes:
    return bytes(
        build_batch(
            [
                Record(
                    -1,
                    timestamps[number] if timestamps else NOW_MS + number,
                    None,
                    bytes(value_bytes),
                )
                for number in range(count)
            ]
        )
    )


def partitions_of(response: FetchResponse) -> list[FetchedPartition]:
    return [partition for _, partition in response.chosen]


def offsets_of(partition: FetchedPartition) -> list[int]:
    """Offsets of the records of a response, whose batches have right CRCs."""
    records = b"".join(
        part.read() if isinstance(part, FileSlice) else bytes(part) for part in partition.records
    )
    return [
        record.offset
        for batch in batches(memoryview(records), check=True)
        for record in decode(batch)
    ]
