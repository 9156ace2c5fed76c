"""Scripted broker that leads coordinators of diskless topics, with in-memory states and a directory as store."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterable
from pathlib import Path
from typing import Any
from uuid import UUID

from odradek.protocol import apis
from odradek.protocol.errors import ErrorCode
from odradek.protocol.records.batch import Batch
from odradek.protocol.records.records import Record, build_batch
from odradek.protocol.schemas.diskless_records import (
    DisklessCommittedBatch,
    DisklessCommittedPartition,
    DisklessCommittedTopic,
    DisklessFileCommittedRecord,
    DisklessPartitionCreatedRecord,
)
from odradek.protocol.topics import DISKLESS_METADATA
from odradek.storage.diskless.memory_state import MemoryDisklessState
from odradek.storage.diskless.object_key import object_key
from odradek.storage.diskless.state import LogEntry
from odradek.storage.diskless.wal_file import WRITE_AHEAD_MULTI_SEGMENT, WalFile
from tests.support.scripted_broker import ReceivedRequest

T0 = 1_700_000_000_000
BROKER = 1


class ScriptedDiskless:
    """Coordinators on one broker. Partition P of a topic has coordinator P modulo their number."""

    def __init__(self, store: Path, coordinators: int = 2) -> None:
        self.store = store
        self.states = [MemoryDisklessState(each) for each in range(coordinators)]
        self.topics: dict[str, tuple[UUID, int]] = {}
        self.classic: dict[str, int] = {}
        self.errors: dict[int, ErrorCode] = {}
        """Errors of coordinators in DisklessDescribeCoordinators."""
        self._source = random.Random(7)
        self._numbers = itertools.count()

    def create(self, name: str, partitions: int) -> None:
        topic_id = UUID(int=self._source.getrandbits(128))
        self.topics[name] = topic_id, partitions
        for index in range(partitions):
            self.apply(
                index,
                DisklessPartitionCreatedRecord(topic_id=topic_id, name=name, partition_index=index),
            )

    def apply(self, index: int, record: Any, coordinator_id: int | None = None) -> None:
        """Append a record to the log of the coordinator of partition `index`, or of this one."""
        chosen = index % len(self.states) if coordinator_id is None else coordinator_id
        state = self.states[chosen]
        offset = state.applied_offset + 1
        state.apply([LogEntry(offset, T0 + offset, record)], offset)

    def commit(self, *batches: tuple[str, int, int], uploaded_ms: int = T0) -> str:
        """Put and commit a file with batches of (topic, partition, number of records); return its key."""
        wal = WalFile()
        for topic, index, count in batches:
            records = [Record(-1, T0, None, b"value") for _ in range(count)]
            batch = Batch(memoryview(bytes(build_batch(records))))
            wal.add(self.topics[topic][0], index, batch)
        built = wal.build()
        key = object_key(uploaded_ms, BROKER, UUID(int=next(self._numbers)))
        self.put(key, built.data)
        owners = tuple(sorted({index % len(self.states) for _, index, _ in batches}))
        for owner in owners:
            own = [
                each for each in built.batches if each.partition_index % len(self.states) == owner
            ]
            record = DisklessFileCommittedRecord(
                object_key=key,
                object_format=WRITE_AHEAD_MULTI_SEGMENT,
                file_size=built.size_bytes,
                uploader_broker_id=BROKER,
                owner_ids=owners,
                topics=tuple(self._committed(own)),
            )
            self.apply(0, record, owner)
        return key

    def _committed(self, batches: Iterable[Any]) -> Iterable[DisklessCommittedTopic]:
        ends: dict[tuple[UUID, int], int] = {}
        for each in batches:
            place = each.topic_id, each.partition_index
            if place not in ends:
                state = self.states[each.partition_index % len(self.states)]
                known = state.partition(*place)
                ends[place] = known.high_watermark if known else 0
            base = ends[place]
            ends[place] = base + each.last_offset + 1
            committed = DisklessCommittedBatch(
                magic=each.magic,
                byte_offset=each.byte_offset,
                byte_size=each.size,
                assigned_base_offset=base,
                assigned_last_offset=base + each.last_offset,
                log_append_timestamp=T0,
                batch_max_timestamp=each.batch_max_timestamp,
            )
            partition = DisklessCommittedPartition(
                partition_index=each.partition_index, batches=(committed,)
            )
            yield DisklessCommittedTopic(topic_id=each.topic_id, partitions=(partition,))

    def put(self, key: str, data: bytes) -> None:
        path = self.store / key
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)

    def respond(self, request: ReceivedRequest) -> Any:
        """Script of `scripted_broker`."""
        match request.api:
            case apis.METADATA:
                return self._metadata(request)
            case apis.DESCRIBE_CONFIGS:
                return {"results": [self._configs(row) for row in request.body.resources]}
            case apis.DISKLESS_DESCRIBE_COORDINATORS:
                ids = request.body.coordinator_ids
                return {"coordinators": [self._described(each) for each in ids]}
            case apis.DISKLESS_LIST_FILES:
                return {"files": self._files(request.body)}
            case apis.DISKLESS_DESCRIBE_FILES:
                return {"files": [self._file(row.object_key) for row in request.body.files]}
            case apis.DISKLESS_LIST_OFFSETS:
                (topic,) = request.body.topics
                (row,) = topic.partitions
                state = self.states[row.partition_index % len(self.states)]
                partition = state.partition(topic.topic_id, row.partition_index)
                code = ErrorCode.unknown_topic_or_partition if partition is None else ErrorCode.none
                listed = {"partition_index": row.partition_index, "error_code": code}
                return {"topics": [{"topic_id": topic.topic_id, "partitions": [listed]}]}
            case apis.DISKLESS_FIND_BATCHES:
                (topic,) = request.body.topics
                (row,) = topic.partitions
                limit = request.body.max_batches_per_partition
                found = self._found(topic.topic_id, row.partition_index, row.offset, limit)
                return {"topics": [{"topic_id": topic.topic_id, "partitions": [found]}]}
        return None

    def _metadata(self, request: ReceivedRequest) -> dict[str, Any]:
        known = {name: (topic_id, count) for name, (topic_id, count) in self.topics.items()}
        known |= {name: (UUID(int=len(name)), count) for name, count in self.classic.items()}
        known[DISKLESS_METADATA] = UUID(int=99), len(self.states)
        wanted = request.body.topics
        names = list(known) if wanted is None else [topic.name for topic in wanted]
        me = {"node_id": BROKER, "host": self.address.host, "port": self.address.port}
        return {
            "brokers": [{**me, "rack": None}],
            "cluster_id": "scripted",
            "controller_id": BROKER,
            "topics": [_topic_row(name, known.get(name)) for name in names],
        }

    address: Any = None
    """Address of the scripted broker, set by the test."""

    def _configs(self, row: Any) -> dict[str, Any]:
        name = row.resource_name
        config = {"name": "diskless.enable", "value": str(name in self.topics).lower()}
        more = {"read_only": False, "config_source": 1, "is_sensitive": False, "synonyms": []}
        return {
            "error_code": 0,
            "error_message": None,
            "resource_type": row.resource_type,
            "resource_name": name,
            "configs": [config | more],
        }

    def _described(self, coordinator_id: int) -> dict[str, Any]:
        if coordinator_id in self.errors:
            return {
                "coordinator_id": coordinator_id,
                "error_code": self.errors[coordinator_id],
                "is_leader": False,
            }
        state = self.states[coordinator_id]
        counts = state.counts()
        oldest = state.oldest_file_ms()
        return {
            "coordinator_id": coordinator_id,
            "is_leader": True,
            "leader_epoch": 4,
            "log_start_offset": 0,
            "applied_offset": state.applied_offset,
            "log_end_offset": state.applied_offset + 1,
            "partitions": counts.partitions,
            "batches": counts.batches,
            "live_bytes": counts.live_bytes,
            "files": counts.files,
            "files_to_hand_over": counts.files_to_hand_over,
            "files_to_delete": counts.files_to_delete,
            "oldest_file_ms": T0 + 5000 if oldest is None else oldest,
        }

    def _files(self, body: Any) -> list[dict[str, Any]]:
        coordinator_id = body.coordinator_id
        return [
            {
                "object_key": file.object_key,
                "object_format": file.object_format,
                "file_size": file.size,
                "uploader_broker_id": file.uploader_broker_id,
                "owner_ids": file.owner_ids,
                "status": int(file.status(coordinator_id)),
                "live_batches": file.live_batches,
                "live_bytes": file.live_bytes,
                "uploaded_ms": file.uploaded_ms,
            }
            for file in self.states[coordinator_id].files(body.after, body.max_files)
        ]

    def _file(self, key: str) -> dict[str, Any]:
        is_known = any(state.file(key) is not None for state in self.states)
        code = ErrorCode.none if is_known else ErrorCode.resource_not_found
        return {"object_key": key, "error_code": code, "has_live_batches": is_known}

    def _found(self, topic_id: UUID, index: int, offset: int, limit: int) -> dict[str, Any]:
        state = self.states[index % len(self.states)]
        partition = state.partition(topic_id, index)
        if partition is None:
            code = ErrorCode.unknown_topic_or_partition
            return {"partition_index": index, "error_code": code}
        start, end = partition.log_start_offset, partition.high_watermark
        found = state.find_batches(topic_id, index, offset, max_batches=limit, max_bytes=1 << 30)
        code = ErrorCode.none if start <= offset <= end else ErrorCode.offset_out_of_range
        batches = [
            {
                "batch_id": batch.batch_id,
                "object_key": batch.object_key,
                "magic": batch.magic,
                "byte_offset": batch.byte_offset,
                "byte_size": batch.byte_size,
                "base_offset": batch.base_offset,
                "last_offset": batch.last_offset,
                "log_append_timestamp": batch.log_append_ms,
                "batch_max_timestamp": batch.max_timestamp_ms,
                "timestamp_type": batch.timestamp_type,
            }
            for batch in found
        ]
        return {
            "partition_index": index,
            "error_code": code,
            "log_start_offset": start,
            "high_watermark": end,
            "batches": [] if code else batches,
        }


def _topic_row(name: str, topic: tuple[UUID, int] | None) -> dict[str, Any]:
    if topic is None:
        code = ErrorCode.unknown_topic_or_partition
        return {"error_code": code, "name": name, "topic_id": None, "partitions": []}
    topic_id, count = topic
    partition = {
        "error_code": 0,
        "leader_id": BROKER,
        "leader_epoch": 0,
        "replica_nodes": [BROKER],
        "isr_nodes": [BROKER],
        "offline_replicas": [],
    }
    return {
        "error_code": 0,
        "name": name,
        "topic_id": topic_id,
        "partitions": [{"partition_index": index, **partition} for index in range(count)],
    }
