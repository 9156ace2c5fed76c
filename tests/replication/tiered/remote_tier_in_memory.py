"""Remote tier in memory; tests copy segments into it without a copy task."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from uuid import UUID

from odradek.seams.files import Buffer, FileSlice
from odradek.storage.log.partition_log import PartitionLog
from odradek.storage.tiered.copy_candidates import (
    CandidateSegment,
    list_candidate_segments,
    open_segment_to_copy,
)
from odradek.storage.tiered.errors import RemoteResourceNotFound, RemoteStorageError
from odradek.storage.tiered.remote_storage_manager import IndexType, LogSegmentData
from odradek.storage.tiered.segment_metadata import (
    RemoteLogSegmentId,
    RemoteLogSegmentMetadata,
    RemoteLogSegmentMetadataUpdate,
    SegmentState,
    TopicIdPartition,
)
from odradek.testing.in_memory_remote_log_metadata import InMemoryRemoteLogMetadataManager


class MemoryStorage:
    """RemoteStorageManager in memory. Every fetch calls `before_fetch`, and raises `failing` if it is set."""

    def __init__(self) -> None:
        self.logs: dict[RemoteLogSegmentId, bytes] = {}
        self.indexes: dict[tuple[RemoteLogSegmentId, IndexType], bytes] = {}
        self.failing: RemoteStorageError | None = None
        self.before_fetch: Callable[[], None] = lambda: None
        self.fetches = 0

    def copy_segment(
        self, metadata: RemoteLogSegmentMetadata, data: LogSegmentData
    ) -> bytes | None:
        self.logs[metadata.id] = _bytes(data.log)
        parts = {
            IndexType.OFFSET: data.offset_index,
            IndexType.TIMESTAMP: data.time_index,
            IndexType.PRODUCER_SNAPSHOT: data.producer_snapshot,
            IndexType.LEADER_EPOCH: data.leader_epochs,
            IndexType.TRANSACTION: data.transaction_index,
        }
        for kind, part in parts.items():
            if part is not None:
                self.indexes[metadata.id, kind] = _bytes(part)
        return None

    def fetch_segment(
        self, metadata: RemoteLogSegmentMetadata, start: int, end_inclusive: int | None = None
    ) -> Buffer:
        found = self.logs[metadata.id]
        return found[start : len(found) if end_inclusive is None else end_inclusive + 1]

    def fetch_index(self, metadata: RemoteLogSegmentMetadata, kind: IndexType) -> Buffer:
        self.fetches += 1
        self.before_fetch()
        if self.failing is not None:
            raise self.failing
        try:
            return self.indexes[metadata.id, kind]
        except KeyError:
            raise RemoteResourceNotFound(f"{metadata.id} has no {kind}") from None

    def delete_segment(self, metadata: RemoteLogSegmentMetadata) -> None:
        self.logs.pop(metadata.id, None)

    def has_any_of(self, partition: TopicIdPartition) -> bool:
        return bool(self.logs)

    def check_access(self) -> None: ...

    def put_summary(self, partition: TopicIdPartition, leader_epoch: int, data: bytes) -> None: ...

    def remove_summaries(self, partition: TopicIdPartition) -> None: ...

    def close(self) -> None: ...


def _bytes(part: Buffer | FileSlice) -> bytes:
    return part.read() if isinstance(part, FileSlice) else bytes(part)


class Tier:
    """Remote tier without copy tasks: `copy` copies the segments of a log."""

    def __init__(self) -> None:
        self.metadata = InMemoryRemoteLogMetadataManager()
        self.storage = MemoryStorage()
        self._numbers = iter(range(1, 1000))

    def announce(self, log: PartitionLog) -> None:
        self.metadata.partitions_changed([partition_of(log)], [])

    def copy(self, log: PartitionLog) -> None:
        """Copy all segments that are eligible and not copied yet."""
        self.announce(log)
        for each in list_candidate_segments(log):
            if each.end_offset > log.highest_copied_offset:
                self._copy(log, each)

    def _copy(self, log: PartitionLog, sealed: CandidateSegment) -> None:
        opened = open_segment_to_copy(log, sealed)
        metadata = RemoteLogSegmentMetadata(
            RemoteLogSegmentId(partition_of(log), UUID(int=next(self._numbers))),
            sealed.base_offset,
            sealed.end_offset,
            1,
            opened.max_timestamp_ms,
            0,
            opened.epochs,
            sealed.size_bytes,
            txn_index_empty=opened.txn_index_empty,
        )
        self.metadata.topic.publish(metadata)
        self.storage.copy_segment(metadata, opened.data)
        opened.close()
        self.metadata.topic.publish(
            RemoteLogSegmentMetadataUpdate(metadata.id, 1, 0, SegmentState.COPY_SEGMENT_FINISHED)
        )
        log.advance_highest_copied_offset(sealed.end_offset)


def partition_of(log: PartitionLog) -> TopicIdPartition:
    assert log.topic_id is not None
    return TopicIdPartition(log.topic_id, log.topic, log.partition)


def leave_the_disk(log: PartitionLog) -> None:
    """Delete all copied segments from the local log; its active segment is empty."""
    assert log.log_end.segment.base_offset == log.end_offset
    log.flush()
    kept = log.config
    log.update_config(replace(kept, local_retention_bytes=0))
    log.delete_expired(log.clock.wall_ms())
    log.update_config(kept)
