"""In-memory state of one coordinator of diskless topics: the model of `sqlite_state.py` (KIP-1164).

The simulator uses it, and the tests compare SQLite with it, so it is as simple as possible: every query scans.
Snapshots are its pickled fields.
"""

from __future__ import annotations

import pickle
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import replace
from uuid import UUID

from odradek.protocol.schemas.diskless_records import (
    DisklessCommittedBatch as CommittedBatchRecord,
)
from odradek.protocol.schemas.diskless_records import (
    DisklessFileCommittedRecord,
    DisklessFileOwnershipRecord,
    DisklessFileRemovedRecord,
    DisklessPartitionCreatedRecord,
    DisklessRecordsDeletedRecord,
    DisklessTopicDeletedRecord,
)
from odradek.seams.values import state_class
from odradek.storage.diskless.state import (
    NO_OFFSET,
    PRODUCER_BATCHES_MAX,
    PRODUCER_EXPIRATION_MS,
    CommittedBatch,
    FileBatch,
    FileState,
    FileStatus,
    LogEntry,
    PartitionState,
    ProducerBatch,
    ProducerEntry,
    StateCounts,
    appends,
    batch_id,
    entries_to_apply,
    max_timestamp_ms,
    upload_time_and_broker,
)


@state_class
class _Partition:
    name: str
    log_start_offset: int
    high_watermark: int
    batches: list[CommittedBatch]
    """Live batches in order."""
    producers: dict[int, ProducerEntry]


class MemoryDisklessState:
    """`DisklessState` in dictionaries and lists."""

    def __init__(
        self, coordinator_id: int, *, producer_expiration_ms: int = PRODUCER_EXPIRATION_MS
    ) -> None:
        self._coordinator_id = coordinator_id
        self._producer_expiration_ms = producer_expiration_ms
        self._applied_offset = NO_OFFSET
        self._clock_ms = -1
        """Largest append time of all applied records."""
        self._partitions: dict[tuple[UUID, int], _Partition] = {}
        self._files: dict[str, FileState] = {}

    def close(self) -> None:
        """Does nothing: no file is open."""

    @property
    def applied_offset(self) -> int:
        return self._applied_offset

    def snapshot(self) -> bytes:
        """Return the whole state."""
        return pickle.dumps((self._applied_offset, self._clock_ms, self._partitions, self._files))

    def content(self) -> object:
        """Everything that the state has, to compare it with another one."""
        partitions = {
            key: (
                each.name,
                each.log_start_offset,
                each.high_watermark,
                each.batches,
                each.producers,
            )
            for key, each in self._partitions.items()
        }
        return self._applied_offset, self._clock_ms, partitions, self._files

    def restore(self, snapshot: bytes) -> None:
        """Replace the whole state by that of `snapshot`, which is not damaged."""
        restored = pickle.loads(snapshot)
        self._applied_offset, self._clock_ms, self._partitions, self._files = restored

    # --- records ---

    def apply(self, entries: Sequence[LogEntry], through_offset: int) -> None:
        for entry in entries_to_apply(entries, through_offset, self._applied_offset):
            self._clock_ms = max(self._clock_ms, entry.append_ms)
            match entry.record:
                case DisklessFileCommittedRecord() as record:
                    self._commit_file(entry, record)
                case DisklessRecordsDeletedRecord() as record:
                    self._delete_records(record, entry.append_ms)
                case DisklessFileRemovedRecord(object_key=key):
                    if key in self._files and not self._files[key].live_batches:
                        del self._files[key]
                case DisklessFileOwnershipRecord() as record:
                    self._own_file(record, entry.append_ms)
                case DisklessPartitionCreatedRecord() as record:
                    self._create_partition(record)
                case DisklessTopicDeletedRecord(topic_id=topic_id):
                    self._delete_topic(topic_id, entry.append_ms)
        self._applied_offset = max(self._applied_offset, through_offset)

    def remove_deleted_batches(self, max_batches: int = 2000) -> bool:
        return False

    def _create_partition(self, record: DisklessPartitionCreatedRecord) -> None:
        created = _Partition(record.name, 0, 0, [], {})
        self._partitions.setdefault((record.topic_id, record.partition_index), created)

    def _delete_topic(self, topic_id: UUID, append_ms: int) -> None:
        for key in [key for key in self._partitions if key[0] == topic_id]:
            self._remove_batches(self._partitions.pop(key).batches, append_ms)

    def _commit_file(self, entry: LogEntry, record: DisklessFileCommittedRecord) -> None:
        self._add_file(record, entry.append_ms, record.uploader_broker_id, is_handed_over=False)
        position = 0
        for topic in record.topics:
            for committed in topic.partitions:
                partition = self._partitions.get((topic.topic_id, committed.partition_index))
                for batch in committed.batches:
                    if partition and appends(batch, partition.high_watermark):
                        live = _live_batch(batch, record.object_key, entry.offset, position)
                        self._add_batch(partition, live)
                        self._add_to_producer(partition, batch, entry.append_ms)
                    position += 1

    def _add_file(
        self,
        record: DisklessFileCommittedRecord | DisklessFileOwnershipRecord,
        append_ms: int,
        uploader_broker_id: int,
        *,
        is_handed_over: bool,
    ) -> None:
        if record.object_key in self._files:
            return
        owners = tuple(record.owner_ids) or (self._coordinator_id,)
        self._files[record.object_key] = FileState(
            object_key=record.object_key,
            object_format=record.object_format,
            size=record.file_size,
            uploader_broker_id=uploader_broker_id,
            owner_ids=owners,
            is_owner=is_handed_over or owners[0] == self._coordinator_id,
            live_batches=0,
            live_bytes=0,
            uploaded_ms=upload_time_and_broker(record.object_key, append_ms)[0],
            unused_since_ms=append_ms,
        )

    def _add_batch(self, partition: _Partition, batch: CommittedBatch) -> None:
        partition.batches.append(batch)
        partition.high_watermark = batch.last_offset + 1
        file = self._files[batch.object_key]
        self._files[batch.object_key] = replace(
            file,
            live_batches=file.live_batches + 1,
            live_bytes=file.live_bytes + batch.byte_size,
            unused_since_ms=-1,
        )

    def _add_to_producer(
        self, partition: _Partition, batch: CommittedBatchRecord, append_ms: int
    ) -> None:
        if batch.producer_id < 0:
            return
        added = ProducerBatch(
            batch.base_sequence,
            batch.last_sequence,
            batch.assigned_base_offset,
            batch.assigned_last_offset,
            batch.log_append_timestamp,
        )
        known = self._unexpired(partition.producers.get(batch.producer_id))
        earlier = known.batches if known and known.epoch == batch.producer_epoch else ()
        newest = (*earlier, added)[-PRODUCER_BATCHES_MAX:]
        partition.producers[batch.producer_id] = ProducerEntry(
            batch.producer_epoch, newest, append_ms
        )

    def _delete_records(self, record: DisklessRecordsDeletedRecord, append_ms: int) -> None:
        partition = self._partitions.get((record.topic_id, record.partition_index))
        if partition is None:
            return
        start = min(record.new_log_start_offset, partition.high_watermark)
        if start <= partition.log_start_offset:
            return
        partition.log_start_offset = start
        live = [batch for batch in partition.batches if batch.last_offset >= start]
        self._remove_batches(partition.batches[: len(partition.batches) - len(live)], append_ms)
        partition.batches = live

    def _remove_batches(self, batches: Sequence[CommittedBatch], append_ms: int) -> None:
        for batch in batches:
            file = self._files[batch.object_key]
            self._files[batch.object_key] = replace(
                file,
                live_batches=file.live_batches - 1,
                live_bytes=file.live_bytes - batch.byte_size,
                unused_since_ms=-1 if file.live_batches > 1 else append_ms,
            )

    def _own_file(self, record: DisklessFileOwnershipRecord, append_ms: int) -> None:
        _, broker_id = upload_time_and_broker(record.object_key, append_ms)
        self._add_file(record, append_ms, broker_id, is_handed_over=True)
        file = self._files[record.object_key]
        self._files[record.object_key] = replace(
            file, is_owner=True, unused_since_ms=-1 if file.live_batches else append_ms
        )

    # --- partitions and producers ---

    def partition(self, topic_id: UUID, index: int) -> PartitionState | None:
        partition = self._partitions.get((topic_id, index))
        if partition is None:
            return None
        return PartitionState(
            topic_id,
            index,
            partition.name,
            partition.log_start_offset,
            partition.high_watermark,
            len(partition.batches),
            sum(batch.byte_size for batch in partition.batches),
        )

    def partitions(self, topic_id: UUID | None = None) -> Sequence[PartitionState]:
        keys = sorted(
            (key for key in self._partitions if topic_id is None or key[0] == topic_id),
            key=lambda key: (key[0].bytes, key[1]),
        )
        return [state for key in keys if (state := self.partition(*key))]

    def producer(self, topic_id: UUID, index: int, producer_id: int) -> ProducerEntry | None:
        partition = self._partitions.get((topic_id, index))
        return self._unexpired(partition.producers.get(producer_id)) if partition else None

    def _unexpired(self, producer: ProducerEntry | None) -> ProducerEntry | None:
        if producer is None:
            return None
        is_expired = self._clock_ms - producer.last_append_ms >= self._producer_expiration_ms
        return None if is_expired else producer

    # --- batches ---

    def find_batches(
        self, topic_id: UUID, index: int, offset: int, *, max_batches: int, max_bytes: int
    ) -> Sequence[CommittedBatch]:
        batches = self._live_batches(topic_id, index)
        first = bisect_left(batches, offset, key=lambda batch: batch.last_offset)
        found: list[CommittedBatch] = []
        size = 0
        for batch in batches[first:]:
            size += batch.byte_size
            if found and (size > max_bytes or len(found) == max_batches):
                break
            found.append(batch)
        return found

    def first_batch_from_timestamp(
        self, topic_id: UUID, index: int, timestamp_ms: int
    ) -> CommittedBatch | None:
        for batch in self._live_batches(topic_id, index):
            if batch.max_timestamp_ms >= timestamp_ms:
                return batch
        return None

    def batch_with_largest_timestamp(self, topic_id: UUID, index: int) -> CommittedBatch | None:
        batches = self._live_batches(topic_id, index)
        return max(batches, key=lambda batch: batch.max_timestamp_ms, default=None)

    def expired_before(self, topic_id: UUID, index: int, timestamp_ms: int) -> int:
        start = self._log_start_offset(topic_id, index)
        for batch in self._live_batches(topic_id, index):
            has_timestamps = batch.max_timestamp_ms >= 0
            if (batch.max_timestamp_ms if has_timestamps else batch.log_append_ms) >= timestamp_ms:
                break
            start = batch.last_offset + 1
        return start

    def oversized_before(self, topic_id: UUID, index: int, max_bytes: int) -> int:
        start = self._log_start_offset(topic_id, index)
        batches = self._live_batches(topic_id, index)
        size = sum(batch.byte_size for batch in batches)
        for batch in batches if max_bytes >= 0 else ():
            size -= batch.byte_size
            if size < max_bytes:
                break
            start = batch.last_offset + 1
        return start

    def _live_batches(self, topic_id: UUID, index: int) -> list[CommittedBatch]:
        partition = self._partitions.get((topic_id, index))
        return partition.batches if partition else []

    def _log_start_offset(self, topic_id: UUID, index: int) -> int:
        partition = self._partitions.get((topic_id, index))
        return partition.log_start_offset if partition else 0

    # --- files ---

    def file(self, object_key: str) -> FileState | None:
        return self._files.get(object_key)

    def file_batches(self, object_key: str) -> Sequence[FileBatch]:
        found = [
            FileBatch(topic_id, index, batch)
            for (topic_id, index), partition in self._partitions.items()
            for batch in partition.batches
            if batch.object_key == object_key
        ]
        return sorted(found, key=lambda each: (each.batch.byte_offset, each.batch.batch_id))

    def files(self, after: str = "", limit: int = 1000) -> Sequence[FileState]:
        keys = sorted(key for key in self._files if key > after)
        return [self._files[key] for key in keys[: max(limit, 0)]]

    def unused_files(
        self, after: str = "", limit: int = 1000, *, is_owner: bool = True
    ) -> Sequence[FileState]:
        unused = [
            file
            for key, file in sorted(self._files.items())
            if key > after and not file.live_batches and file.is_owner == is_owner
        ]
        return unused[: max(limit, 0)]

    def oldest_file_ms(self) -> int | None:
        return min((file.uploaded_ms for file in self._files.values()), default=None)

    def counts(self) -> StateCounts:
        partitions = self.partitions()
        statuses = [file.status(self._coordinator_id) for file in self._files.values()]
        return StateCounts(
            partitions=len(partitions),
            batches=sum(partition.batches for partition in partitions),
            live_bytes=sum(partition.size_bytes for partition in partitions),
            files=len(self._files),
            files_to_hand_over=statuses.count(FileStatus.HANDING_OVER),
            files_to_delete=statuses.count(FileStatus.DELETING),
            state_bytes=-1,
        )


def _live_batch(
    batch: CommittedBatchRecord, object_key: str, offset: int, position: int
) -> CommittedBatch:
    return CommittedBatch(
        batch_id=batch_id(offset, position),
        object_key=object_key,
        magic=batch.magic,
        byte_offset=batch.byte_offset,
        byte_size=batch.byte_size,
        base_offset=batch.assigned_base_offset,
        last_offset=batch.assigned_last_offset,
        log_append_ms=batch.log_append_timestamp,
        max_timestamp_ms=max_timestamp_ms(
            batch.batch_max_timestamp, batch.log_append_timestamp, batch.timestamp_type
        ),
        timestamp_type=batch.timestamp_type,
    )
