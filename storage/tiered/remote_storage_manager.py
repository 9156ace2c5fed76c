"""Who keeps the bytes of the remote tier: KIP-405's RemoteStorageManager. The real one is `object_store.py`.

Synchronous, and called through `Offload` (OBJECTS_LANE) alone; several calls may be under way at
once, of one segment too. Every call may be repeated: what a failed copy left is overwritten, what is
not there is deleted without complaint. A copy is whole once `copy_segment` has returned, and nobody is
promised to find anything of it before. Errors are those of `storage/tiered/errors.py` and no others:
RemoteResourceNotFound for what is not there, CorruptRemoteData for what is not what was copied,
RemoteStorageUnavailable for a store that does not answer, throttles or refuses (ask again later).
"""

from __future__ import annotations

from enum import Enum
from typing import Protocol

from odradek.seams.files import Buffer, FileSlice
from odradek.seams.values import value_class
from odradek.storage.tiered.metadata import RemoteLogSegmentMetadata, TopicIdPartition


class IndexType(Enum):
    """What is fetched of a segment besides its records (T-19); the value is its name's suffix."""

    OFFSET = ".index"
    TIMESTAMP = ".timeindex"
    PRODUCER_SNAPSHOT = ".snapshot"
    TRANSACTION = ".txnindex"
    LEADER_EPOCH = ".leader_epoch_checkpoint"


@value_class
class LogSegmentData:
    """All that is copied of a segment (T-21). Slices are pinned by who made them, until the call is over.

    `transaction_index` is None (or empty) where no transaction was aborted; `leader_epochs` is the text
    of the leader epoch checkpoint, of the epochs that begin below the segment's end.
    """

    log: Buffer | FileSlice
    offset_index: Buffer | FileSlice
    time_index: Buffer | FileSlice
    transaction_index: Buffer | FileSlice | None
    producer_snapshot: Buffer | FileSlice
    leader_epochs: bytes


class RemoteStorageManager(Protocol):
    """See the module."""

    def copy_segment(
        self, metadata: RemoteLogSegmentMetadata, data: LogSegmentData
    ) -> bytes | None:
        """Copy all of it, in place of what may be there under this id (T-17). What is returned goes into
        the metadata's `custom_metadata`: later calls want it there."""
        ...

    def fetch_segment(
        self, metadata: RemoteLogSegmentMetadata, start: int, end_inclusive: int | None = None
    ) -> Buffer:
        """The log's bytes from position `start` to `end_inclusive` or its end, whichever comes first
        (T-18): none if `start` is past it. ValueError for a negative or reversed range."""
        ...

    def fetch_segment_into(
        self, metadata: RemoteLogSegmentMetadata, start: int, into: memoryview
    ) -> int:
        """The same, as many bytes as `into` has room for, to where its memory is; how many. No part of KIP-405."""
        ...

    def fetch_index(self, metadata: RemoteLogSegmentMetadata, kind: IndexType) -> Buffer:
        """The whole of it (T-19); RemoteResourceNotFound if the segment has none of that kind. Of transactions
        that says that none was aborted; where the segment is gone it must be RemoteSegmentNotFound."""
        ...

    def delete_segment(self, metadata: RemoteLogSegmentMetadata) -> None:
        """All that there is of it, if anything (T-20); also of a copy that failed or is not known to
        have succeeded. After an error a part may be gone: repeat it."""
        ...

    def has_any_of(self, partition: TopicIdPartition) -> bool:
        """Whether there is anything of the partition, whole or not. No part of KIP-405: where segments were
        copied and there is nothing, this is not the store that they were copied to, or was emptied."""
        ...

    def check_access(self) -> None:
        """Ask the store for next to nothing. Raises RemoteStorageUnavailable for one that is away, or is not
        there, RemoteAccessDenied for one that does not let us. No part of KIP-405."""
        ...

    def put_summary(self, partition: TopicIdPartition, leader_epoch: int, data: bytes) -> None:
        """Keep a summary of the partition's segments (`summary.py`), in place of those of that leader
        epoch and earlier ones (NO_LEADER is before all). It is no part of KIP-405, and nothing here reads it."""
        ...

    def remove_summaries(self, partition: TopicIdPartition) -> None:
        """All that there are: the partition has no segments any more, or none that a leader goes on from."""
        ...

    def close(self) -> None:
        """Nothing new is called afterwards; copies under way end soon, by RemoteStorageUnavailable.
        Idempotent."""
        ...
