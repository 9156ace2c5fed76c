"""Remote tier for three replicas: the leader copies records, and reads find them by leader epoch."""

from __future__ import annotations

from uuid import UUID

from odradek.replication.partition.follower_state import BuildRemoteLogAuxState
from odradek.replication.tiered.auxiliary_state import history
from odradek.seams.values import value_class
from odradek.storage.log.leader_epoch_cache import EpochStart, format_checkpoint
from odradek.storage.tiered.copy_candidates import find_highest_copied_offset
from odradek.storage.tiered.segment_metadata import (
    RemoteLogSegmentId,
    RemoteLogSegmentMetadata,
    RemoteLogSegmentMetadataUpdate,
    SegmentState,
    TopicIdPartition,
)
from odradek.testing.in_memory_remote_log_metadata import InMemoryRemoteLogMetadataManager
from tests.replication.partition.memory_log import MemoryLog, Record

PARTITION = TopicIdPartition(UUID(int=5), "t", 0)


@value_class
class ReplicaFetchState:
    """Auxiliary state from the tier; the log continues at `offset`."""

    offset: int
    start_offset: int
    epochs: tuple[EpochStart, ...]


class MemoryTier:
    """Remote tier whose copies never fail."""

    def __init__(self) -> None:
        self.metadata = InMemoryRemoteLogMetadataManager()
        self.metadata.partitions_changed([PARTITION], [])
        self._records: dict[UUID, list[Record]] = {}
        self._histories: dict[UUID, bytes] = {}

    def copied_of(self, log: MemoryLog) -> int:
        """Return the highest copied offset of this log, or -1 (T-31)."""
        return find_highest_copied_offset(
            log.epochs.entries,
            log.end_offset,
            lambda epoch: self.metadata.highest_offset(PARTITION, epoch),
        )

    def copy(self, log: MemoryLog, end: int) -> RemoteLogSegmentMetadata | None:
        """Copy the records that are not copied yet, below `end`, as one segment. Returns None if there are none."""
        start = max(self.copied_of(log) + 1, log.local_start)
        if start >= end:
            return None
        number = UUID(int=len(self._records) + 1)
        copied = RemoteLogSegmentMetadata(
            RemoteLogSegmentId(PARTITION, number),
            start,
            end - 1,
            broker_id=1,
            max_timestamp_ms=-1,
            event_timestamp_ms=number.int,
            epochs=log.epochs.entries_in(start, end),
            size_bytes=end - start,
        )
        self._records[number] = log.records[start:end]
        self._histories[number] = format_checkpoint(log.epochs.entries_in(0, end))
        self.metadata.topic.publish(copied)
        self.metadata.topic.publish(
            RemoteLogSegmentMetadataUpdate(
                copied.id, 1, number.int, SegmentState.COPY_SEGMENT_FINISHED
            )
        )
        return copied

    def record_at(self, log: MemoryLog, offset: int) -> Record | None:
        """Find the record by the epoch that this log has for the offset, as a consumer's read does."""
        epoch = log.epochs.epoch_for(offset)
        if epoch is None:
            return None
        found = self.metadata.segment_for(PARTITION, epoch, offset)
        if found is None:
            return None
        return self._records[found.id.id][offset - found.start_offset]

    def state_before(self, change: BuildRemoteLogAuxState) -> ReplicaFetchState | None:
        """Return the state that AuxiliaryState reads, or None if there is no such segment."""
        offset = change.local_start_offset - 1
        found = self.metadata.segment_for(PARTITION, change.epoch, offset)
        if found is None:
            return None
        end = found.end_offset + 1
        start = min(change.start_offset, end)
        return ReplicaFetchState(
            end, start, history(self._histories[found.id.id], start, end, found)
        )
