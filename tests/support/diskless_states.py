"""Records of a diskless coordinator's log, and SQLite states that apply them."""

from __future__ import annotations

from pathlib import Path
from typing import Any
from uuid import UUID

from odradek.protocol.schemas.diskless_records import (
    DisklessCommittedBatch,
    DisklessCommittedPartition,
    DisklessCommittedTopic,
    DisklessFileCommittedRecord,
    DisklessFileOwnershipRecord,
    DisklessFileRemovedRecord,
    DisklessPartitionCreatedRecord,
    DisklessRecordsDeletedRecord,
)
from odradek.seams.real_files import RealFiles
from odradek.storage.diskless.sqlite_check import StateIdentity
from odradek.storage.diskless.sqlite_state import (
    SqliteDisklessState,
    database_path,
    open_state,
)
from odradek.storage.diskless.state import LogEntry

COORDINATOR = 3
TOPIC = UUID(int=7)
IDENTITY = StateIdentity("cluster", UUID(int=5), COORDINATOR)


def key(uploaded_ms: int, broker_id: int = 1) -> str:
    return f"diskless/{uploaded_ms:013d}-{broker_id}-{UUID(int=uploaded_ms)}"


def created(topic_id: UUID = TOPIC, *, partitions: int = 1) -> list[Any]:
    return [
        DisklessPartitionCreatedRecord(
            topic_id=topic_id, name=f"t{topic_id.int}", partition_index=i
        )
        for i in range(partitions)
    ]


def batch(base: int, last: int, **values: Any) -> DisklessCommittedBatch:
    return DisklessCommittedBatch(
        **{
            "magic": 2,
            "byte_offset": base * 10,
            "byte_size": 100,
            "assigned_base_offset": base,
            "assigned_last_offset": last,
            "log_append_timestamp": 5000,
            "batch_max_timestamp": 4000 + base,
            "timestamp_type": 0,
            "producer_id": -1,
            "producer_epoch": -1,
            "base_sequence": -1,
            "last_sequence": -1,
            **values,
        }
    )


def from_producer(base: int, last: int, sequence: int, epoch: int = 0) -> DisklessCommittedBatch:
    return batch(
        base,
        last,
        producer_id=77,
        producer_epoch=epoch,
        base_sequence=sequence,
        last_sequence=sequence + last - base,
    )


def committed(
    object_key: str,
    *batches: DisklessCommittedBatch,
    index: int = 0,
    owners: tuple[int, ...] = (COORDINATOR,),
    topic_id: UUID = TOPIC,
) -> DisklessFileCommittedRecord:
    partition = DisklessCommittedPartition(partition_index=index, batches=batches)
    topic = DisklessCommittedTopic(topic_id=topic_id, partitions=(partition,))
    return DisklessFileCommittedRecord(
        object_key=object_key,
        object_format=1,
        file_size=1234,
        uploader_broker_id=1,
        owner_ids=owners,
        topics=(topic,) if batches else (),
    )


def owned(object_key: str, owners: tuple[int, ...] = (1, COORDINATOR)) -> Any:
    return DisklessFileOwnershipRecord(
        object_key=object_key, object_format=1, file_size=1234, owner_ids=owners
    )


def removed(object_key: str) -> Any:
    return DisklessFileRemovedRecord(object_key=object_key)


def deleted(offset: int, index: int = 0) -> Any:
    return DisklessRecordsDeletedRecord(
        topic_id=TOPIC, partition_index=index, new_log_start_offset=offset
    )


def opened(directory: Path, identity: StateIdentity = IDENTITY) -> SqliteDisklessState:
    return open_state(RealFiles(), database_path(directory, 3), identity)


def apply(state: SqliteDisklessState, *records: Any) -> None:
    for record in records:
        offset = state.applied_offset + 1
        state.apply([LogEntry(offset, 1000 + offset, record)], offset)
