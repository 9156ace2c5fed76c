"""KIP-405's RemoteStorageManager: the interface to the objects of the remote tier, implemented by
`object_store.py`.

All methods are synchronous and are called through `Offload` (OBJECTS_LANE) only. Calls may run
concurrently, also for one segment. Every call can be repeated: a copy overwrites what a failed copy
left, and a deletion of a missing object succeeds. A copy is complete when `copy_segment` returns.

Errors are those of `storage/tiered/errors.py`: RemoteResourceNotFound for a missing object,
CorruptRemoteData for data that differs from what was copied, RemoteStorageUnavailable for a store
that does not respond, throttles or refuses.
"""

from __future__ import annotations

from enum import Enum
from typing import Protocol

from odradek.seams.files import Buffer, FileSlice
from odradek.seams.values import value_class
from odradek.storage.tiered.segment_metadata import RemoteLogSegmentMetadata, TopicIdPartition


class IndexType(Enum):
    """File that is fetched for a segment in addition to its records (T-19). The
    value is its file suffix."""

    OFFSET = ".index"
    TIMESTAMP = ".timeindex"
    PRODUCER_SNAPSHOT = ".snapshot"
    TRANSACTION = ".txnindex"
    LEADER_EPOCH = ".leader_epoch_checkpoint"


@value_class
class LogSegmentData:
    """All files that are copied for a segment (T-21). The caller keeps slices pinned until the copy
    returns.

    `transaction_index` is None or empty if the segment has no aborted transactions. `leader_epochs`
    is the text of the leader epoch checkpoint with the epochs that start before the segment's end.
    """

    log: Buffer | FileSlice
    offset_index: Buffer | FileSlice
    time_index: Buffer | FileSlice
    transaction_index: Buffer | FileSlice | None
    producer_snapshot: Buffer | FileSlice
    leader_epochs: bytes


class RemoteStorageManager(Protocol):
    """Synchronous interface to the objects of the remote tier; call it through `Offload`."""

    def copy_segment(
        self, metadata: RemoteLogSegmentMetadata, data: LogSegmentData
    ) -> bytes | None:
        """Copy all files of a segment and replace any earlier attempt with the same id (T-17). The
        caller must store the result as `custom_metadata` of the segment, because later calls
        need it."""
        ...

    def fetch_segment(
        self, metadata: RemoteLogSegmentMetadata, start: int, end_inclusive: int | None = None
    ) -> Buffer:
        """Bytes of the log from position `start` to `end_inclusive` or to the end of the log,
        whichever is smaller (T-18). Empty if `start` is past the end. Raises ValueError for a
        negative or reversed range."""
        ...

    def fetch_segment_into(
        self, metadata: RemoteLogSegmentMetadata, start: int, into: memoryview
    ) -> int:
        """Read bytes of the log from `start` into the buffer `into`; return their number. Not in
        KIP-405."""
        ...

    def fetch_index(self, metadata: RemoteLogSegmentMetadata, kind: IndexType) -> Buffer:
        """The whole index (T-19). Raises RemoteResourceNotFound if the segment has no index of that
        type. A missing transaction index means that no transaction was aborted; if the segment
        itself is missing, raise RemoteSegmentNotFound."""
        ...

    def delete_segment(self, metadata: RemoteLogSegmentMetadata) -> None:
        """Delete all objects of a segment (T-20), also of a copy that failed or whose result is
        unknown. After an error some objects may be deleted; repeat the call."""
        ...

    def has_any_of(self, partition: TopicIdPartition) -> bool:
        """Whether the store has any object of the partition. Not in KIP-405: if segments were
        copied and no object exists, the store was emptied or is another store."""
        ...

    def check_access(self) -> None:
        """Send a cheap request to the store. Raises RemoteStorageUnavailable, or RemoteAccessDenied
        if the store denies access. Not in KIP-405."""
        ...

    def put_summary(self, partition: TopicIdPartition, leader_epoch: int, data: bytes) -> None:
        """Store a summary of the partition's segments (`partition_summary.py`) and replace those of this and
        of earlier leader epochs. NO_LEADER precedes all epochs. Not in KIP-405; brokers never
        read it."""
        ...

    def remove_summaries(self, partition: TopicIdPartition) -> None:
        """Delete all summaries of a partition."""
        ...

    def close(self) -> None:
        """No call starts after this one. Copies in progress end soon with RemoteStorageUnavailable.
        Idempotent."""
        ...
