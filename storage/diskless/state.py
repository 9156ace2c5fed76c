"""State of one coordinator of diskless topics: partitions, batches, files and producers (KIP-1164, D-16).

`DisklessState` is the interface of two implementations: SQLite on the disk (`sqlite_state.py`) and an in-memory model
(`memory_state.py`). Both apply the committed records of one partition of `__diskless_metadata` in the order of their
offsets, so that all replicas have the same state. The state is a cache: it can be dropped at any time and rebuilt
from a snapshot and the log.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import IntEnum
from typing import Any, Final, Protocol
from uuid import UUID

from odradek.seams.values import value_class

NO_OFFSET: Final = -1
PRODUCER_BATCHES_MAX: Final = 5
"""Batches of a producer that are remembered for duplicates, as in Kafka."""


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

    `is_owner`: the coordinator is the first of `owner_ids`, or the file was handed over to it. `uploaded_ms` is in the
    object key. `unused_since_ms` is the append time of the record that removed the last live batch, or that committed
    the file without any batch; it is -1 while there are live batches.

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


class DisklessState(Protocol):
    """State of one coordinator after `applied_offset`.

    Every method may block, so that the event loop calls it through Offload, one call at a time. A batch is live while
    its last offset is not below the log start offset of its partition.
    """

    @property
    def applied_offset(self) -> int:
        """Offset of the last applied entry; -1 if there is none."""
        ...

    def apply(self, entries: Sequence[LogEntry], through_offset: int) -> None:
        """Apply entries, and set `applied_offset` to `through_offset`, in one transaction (D-16).

        `through_offset` is at least the last entry's offset: control batches in the log have no entries. Entries up to
        `applied_offset` are skipped.
        """
        ...

    def partition(self, topic_id: UUID, index: int) -> PartitionState | None: ...

    def partitions(self, topic_id: UUID | None = None) -> Sequence[PartitionState]:
        """Partitions of a topic, or all, sorted by topic id and index."""
        ...

    def producer(self, topic_id: UUID, index: int, producer_id: int) -> ProducerEntry | None: ...

    def find_batches(
        self, topic_id: UUID, index: int, offset: int, *, max_batches: int, max_bytes: int
    ) -> Sequence[CommittedBatch]:
        """Live batches from the one that contains `offset`, in order (D-10).

        Stops before the batch that exceeds `max_bytes`, but returns at least one batch if there is any. A `max_batches`
        of 0 or less is no limit.
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

        Deletes from the start of the partition up to the first batch that is not expired, as Kafka's retention.ms.
        """
        ...

    def oversized_before(self, topic_id: UUID, index: int, max_bytes: int) -> int:
        """Log start offset after deleting the oldest batches while the others have at least `max_bytes`, as Kafka's
        retention.bytes."""
        ...

    def file(self, object_key: str) -> FileState | None: ...

    def file_batches(self, object_key: str) -> Sequence[FileBatch]:
        """Live batches of a file by byte offset, which a repeated commit of the file is compared with (D-07)."""
        ...

    def files(self, after: str = "", limit: int = 1000) -> Sequence[FileState]:
        """Files whose keys sort after `after`, by key."""
        ...

    def unused_files(self) -> Sequence[FileState]:
        """Files without live batches, by key: those to hand over, to delete, or that another coordinator owns."""
        ...

    def oldest_file_ms(self) -> int | None:
        """Upload time of the oldest file; None if there is no file (D-23)."""
        ...

    def counts(self) -> StateCounts: ...
