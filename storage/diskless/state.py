"""State of one coordinator of diskless topics: partitions, batches, files and producers (KIP-1164, D-16).

`DisklessState` is the interface of two implementations: SQLite on the disk (`sqlite_state.py`) and an in-memory model
(`memory_state.py`). Both apply the committed records of one partition of `__diskless_metadata` in the order of their
offsets, so that all replicas have the same state. The state is a cache: it can be dropped at any time and rebuilt
from a snapshot and the log.

What a record does depends on the earlier records only, and no record is refused, because it is committed:

- `DisklessPartitionCreatedRecord` of a known partition changes nothing.
- `DisklessTopicDeletedRecord` removes the partitions of the topic, their batches and their producers.
- `DisklessFileCommittedRecord` adds the file, if it is not known, and its batches. A batch of an unknown partition, or
  one that does not append to it (`appends`), is ignored. A commit of a known file only adds batches.
- `DisklessRecordsDeletedRecord` moves the log start offset forward, at most to the high watermark.
- `DisklessFileOwnershipRecord` makes the coordinator the owner of the file, which is added if it is not known.
- `DisklessFileRemovedRecord` removes the file, unless it has live batches.

A batch is live while its last offset is not below the log start offset of its partition.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import IntEnum
from typing import Any, Final, Protocol
from uuid import UUID

from odradek.protocol.records.batch import LOG_APPEND_TIME
from odradek.protocol.schemas.diskless_records import (
    DisklessCommittedBatch,
    DisklessFileCommittedRecord,
    DisklessFileOwnershipRecord,
    DisklessFileRemovedRecord,
    DisklessPartitionCreatedRecord,
    DisklessRecordsDeletedRecord,
    DisklessTopicDeletedRecord,
)
from odradek.seams.values import value_class
from odradek.storage.diskless.object_key import parse_object_key

NO_OFFSET: Final = -1
PRODUCER_BATCHES_MAX: Final = 5
"""Batches of a producer that are remembered for duplicates, as in Kafka."""
PRODUCER_EXPIRATION_MS: Final = 86_400_000
"""Default of `producer.id.expiration.ms`."""


class FileStatus(IntEnum):
    """Local status of a file at one coordinator (D-21, D-22)."""

    LIVE = 0
    """The file has live batches of this coordinator."""
    WAITING = 1
    """It has none, and another coordinator owns the file."""
    HANDING_OVER = 2
    """It has none; this coordinator owns the file and hands it over to the next owner."""
    DELETING = 3
    """It has none, and this coordinator is the last owner: the object is deleted after the grace period."""


@value_class
class LogEntry:
    """A committed record of `__diskless_metadata` with its offset and append time in ms."""

    offset: int
    append_ms: int
    record: Any


@value_class
class PartitionState:
    """A partition of a diskless topic. Its live batches are `batches` with `size_bytes` in all."""

    topic_id: UUID
    index: int
    name: str
    log_start_offset: int
    high_watermark: int
    batches: int
    size_bytes: int


@value_class
class CommittedBatch:
    """A live batch, and where its bytes are. `byte_offset` and `byte_size` are in bytes, timestamps in ms."""

    batch_id: int
    """Unique at the coordinator: 2**20 times the offset of its record, plus its position in the record."""
    object_key: str
    magic: int
    byte_offset: int
    byte_size: int
    base_offset: int
    last_offset: int
    log_append_ms: int
    max_timestamp_ms: int
    """The append time if the batch has LogAppendTime."""
    timestamp_type: int


@value_class
class FileBatch:
    """A live batch of a file, with its partition."""

    topic_id: UUID
    index: int
    batch: CommittedBatch


@value_class
class ProducerBatch:
    """A batch of an idempotent producer that is remembered for duplicates."""

    base_sequence: int
    last_sequence: int
    base_offset: int
    last_offset: int
    log_append_ms: int


@value_class
class ProducerEntry:
    """An idempotent producer of a partition. `batches` are its newest batches in `epoch`, the newest last."""

    epoch: int
    batches: tuple[ProducerBatch, ...]
    last_append_ms: int


@value_class
class FileState:
    """A WAL file as one coordinator tracks it (D-21).

    `is_owner`: the coordinator is the first of `owner_ids`, or the file was handed over to it. Empty `owner_ids` of a
    record are stored as this coordinator alone. `uploaded_ms` is in the object key; the append time of the record
    replaces it if the key has none. `unused_since_ms` is -1 while there are live batches; otherwise it is the append
    time of the record that removed the last live batch, that added the file without any batch, or that handed the file
    over, whichever is the latest.

    A file may be committed by several records: a broker commits a file again after a timeout, or after it has created
    a partition. Each record adds its batches.
    """

    object_key: str
    object_format: int
    size: int
    uploader_broker_id: int
    owner_ids: tuple[int, ...]
    is_owner: bool
    live_batches: int
    live_bytes: int
    uploaded_ms: int
    unused_since_ms: int

    def status(self, coordinator_id: int) -> FileStatus:
        if self.live_batches:
            return FileStatus.LIVE
        if not self.is_owner:
            return FileStatus.WAITING
        is_last = coordinator_id == self.owner_ids[-1]
        return FileStatus.DELETING if is_last else FileStatus.HANDING_OVER


@value_class
class StateCounts:
    """Numbers of rows, bytes of live batches, and bytes of the state itself (-1 if unknown)."""

    partitions: int
    batches: int
    live_bytes: int
    files: int
    files_to_hand_over: int
    files_to_delete: int
    state_bytes: int


KNOWN_RECORDS: Final = (
    DisklessFileCommittedRecord,
    DisklessRecordsDeletedRecord,
    DisklessFileRemovedRecord,
    DisklessFileOwnershipRecord,
    DisklessPartitionCreatedRecord,
    DisklessTopicDeletedRecord,
)


def appends(batch: DisklessCommittedBatch, high_watermark: int) -> bool:
    """True if a committed batch is above the high watermark of its partition and has records."""
    return high_watermark <= batch.assigned_base_offset <= batch.assigned_last_offset


def batch_id(offset: int, position: int) -> int:
    """Id of the batch at `position` among all batches of the record at `offset`."""
    return (offset << 20) + position


def upload_time_and_broker(object_key: str, append_ms: int) -> tuple[int, int]:
    """Upload time in ms and broker id of a file; `append_ms` and -1 if they are not in the key."""
    try:
        return parse_object_key(object_key)
    except ValueError:
        return append_ms, -1


def entries_to_apply(
    entries: Sequence[LogEntry], through_offset: int, applied_offset: int
) -> Sequence[LogEntry]:
    """Entries above `applied_offset`. Raises ValueError, before anything is applied, for entries that cannot be.

    Offsets must increase up to `through_offset`, and the type of every record must be known.
    """
    offset = NO_OFFSET
    for entry in entries:
        if entry.offset <= offset:
            raise ValueError(f"offset {entry.offset} follows offset {offset}")
        offset = entry.offset
        if not isinstance(entry.record, KNOWN_RECORDS):
            raise ValueError(f"record of type {type(entry.record).__name__} at offset {offset}")
    if offset > through_offset:
        raise ValueError(f"offset {offset} is above the last one to apply, {through_offset}")
    if not entries or entries[0].offset > applied_offset:
        return entries
    return [entry for entry in entries if entry.offset > applied_offset]


def max_timestamp_ms(
    batch_max_timestamp: int, log_append_timestamp: int, timestamp_type: int
) -> int:
    """Largest timestamp of a batch for readers: the append time of a batch with LogAppendTime."""
    return log_append_timestamp if timestamp_type == LOG_APPEND_TIME else batch_max_timestamp


class StateDamaged(Exception):
    """A state cannot be used. The caller removes it and builds it again from the snapshot and the log (D-16)."""


class SnapshotCancelled(Exception):
    """A snapshot was cancelled before it was complete."""


class DisklessState(Protocol):
    """State of one coordinator after `applied_offset`.

    Every method may block, so that the event loop calls it through Offload, one call at a time. Offsets and sizes of
    unknown partitions are those of an empty one. Any method may raise StateDamaged, or OSError for an error of the
    file system.
    """

    @property
    def applied_offset(self) -> int:
        """Offset of the last applied entry; -1 if there is none."""
        ...

    def apply(self, entries: Sequence[LogEntry], through_offset: int) -> None:
        """Apply entries, and set `applied_offset` to `through_offset`, in one transaction (D-16).

        `through_offset` is at least the last entry's offset: control batches in the log have no entries. Entries up to
        `applied_offset` are skipped, and `applied_offset` never decreases. Raises ValueError as `entries_to_apply` does.
        """
        ...

    def close(self) -> None:
        """Release what the state holds open."""
        ...

    def remove_deleted_batches(self, max_batches: int = 2000) -> bool:
        """Remove up to `max_batches` batches of deleted records and topics; True if more are left.

        `apply` hides deleted batches from all reads of batches and partitions at once, but removes many of them in
        steps, so that no call blocks for seconds. Every replica repeats this method after `apply` until it returns
        False. Until then the files count these batches as live. The time of the steps does not affect the result.
        """
        ...

    def partition(self, topic_id: UUID, index: int) -> PartitionState | None: ...

    def partitions(self, topic_id: UUID | None = None) -> Sequence[PartitionState]:
        """Partitions of a topic, or all, sorted by topic id and index."""
        ...

    def producer(self, topic_id: UUID, index: int, producer_id: int) -> ProducerEntry | None:
        """An idempotent producer that has not expired.

        It expires if a record is appended `producer.id.expiration.ms` or more after its last batch. The clock is the
        largest append time of all applied records, so that all replicas expire it at the same record.
        """
        ...

    def find_batches(
        self, topic_id: UUID, index: int, offset: int, *, max_batches: int, max_bytes: int
    ) -> Sequence[CommittedBatch]:
        """Live batches from the one that contains `offset`, in order (D-10).

        An offset below the log start offset finds the first live batch. Stops before the batch with which the sizes
        exceed `max_bytes`, but returns at least one batch if there is any. A `max_batches` of 0 or less is no limit.
        """
        ...

    def first_batch_from_timestamp(
        self, topic_id: UUID, index: int, timestamp_ms: int
    ) -> CommittedBatch | None:
        """The live batch with the lowest offset whose largest timestamp is at least `timestamp_ms`."""
        ...

    def batch_with_largest_timestamp(self, topic_id: UUID, index: int) -> CommittedBatch | None:
        """The live batch with the largest timestamp; of several, the one with the lowest offset."""
        ...

    def expired_before(self, topic_id: UUID, index: int, timestamp_ms: int) -> int:
        """Log start offset after deleting the oldest batches whose largest timestamp is below `timestamp_ms`.

        Deletes from the start of the partition up to the first batch that is not expired, as Kafka's retention.ms. A batch
        without timestamps has its append time. The current log start offset if nothing is expired.
        """
        ...

    def oversized_before(self, topic_id: UUID, index: int, max_bytes: int) -> int:
        """Log start offset after deleting the oldest batches while the others have at least `max_bytes`.

        As Kafka's retention.bytes: a negative `max_bytes` is no limit.
        """
        ...

    def file(self, object_key: str) -> FileState | None: ...

    def file_batches(self, object_key: str) -> Sequence[FileBatch]:
        """Live batches of a file by byte offset, which a repeated commit of the file is compared with (D-07)."""
        ...

    def files(self, after: str = "", limit: int = 1000) -> Sequence[FileState]:
        """Files whose keys sort after `after`, by key."""
        ...

    def unused_files(
        self, after: str = "", limit: int = 1000, *, is_owner: bool = True
    ) -> Sequence[FileState]:
        """Files without live batches whose keys sort after `after`, by key.

        Those that this coordinator owns are to be handed over or deleted. Those that another coordinator owns can be
        very many, because they wait for the batches of others.
        """
        ...

    def oldest_file_ms(self) -> int | None:
        """Upload time of the oldest file; None if there is no file (D-23)."""
        ...

    def counts(self) -> StateCounts: ...
