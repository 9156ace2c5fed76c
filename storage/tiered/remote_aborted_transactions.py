"""Aborted transactions for fetches from the remote tier (T-35, E10).

A transaction is in the transaction index of the segment with its marker, which may come long after
its records: in a later remote segment or in a local one. Segments with a transaction index are
searched in order until one shows that no later one matters. A transaction that is in both tiers is
returned once.

A segment of an unclean leader counts up to the offset where its lineage diverges from the log
(T-60). Later markers of that segment are not in the log, but the log may have other markers for the
same transactions, so the search continues at that offset in a segment of the log's lineage. Kafka
uses the diverging markers, and then hides committed records or returns aborted ones.

Before an index is used, its entries are compared with the segment's markers (remote_marker_check.py). An
index that is wrong in the remote tier makes reads of its transactions fail.
"""

from __future__ import annotations

from collections.abc import Sequence

from odradek.seams.offload import Offload
from odradek.storage.log.partition_log import PartitionLog
from odradek.storage.log.transaction_index import AbortedTransaction
from odradek.storage.tiered.errors import (
    CorruptRemoteData,
    CorruptRemoteIndex,
    RemoteResourceNotFound,
)
from odradek.storage.tiered.leader_epoch_lineage import shared_until
from odradek.storage.tiered.remote_index_cache import RemoteIndexCache
from odradek.storage.tiered.remote_index_lookup import aborted_in
from odradek.storage.tiered.remote_log_metadata_manager import RemoteLogMetadataManager
from odradek.storage.tiered.remote_marker_check import RemoteMarkerCheck
from odradek.storage.tiered.remote_storage_manager import IndexType, RemoteStorageManager
from odradek.storage.tiered.segment_metadata import RemoteLogSegmentMetadata, TopicIdPartition


class RemoteAbortedTransactions:
    """Searches aborted transactions in both tiers."""

    def __init__(
        self,
        metadata: RemoteLogMetadataManager,
        indexes: RemoteIndexCache,
        storage: RemoteStorageManager,
        offload: Offload,
    ) -> None:
        self._metadata = metadata
        self._markers = RemoteMarkerCheck(indexes, storage, offload)
        self._indexes = indexes
        self._offload = offload

    async def overlapping(
        self, partition_log: PartitionLog, segment: RemoteLogSegmentMetadata, start: int, end: int
    ) -> Sequence[AbortedTransaction]:
        """Transactions that overlap offsets [start, end) of `segment`, each once. Raises
        RemoteStorageError."""
        found: dict[AbortedTransaction, None] = {}
        if partition_log.may_have_aborted(start):
            lane = str(partition_log.directory.parent)
            local = await self._offload.run(
                partition_log.aborted_transactions, start, end, lane=lane
            )
            found.update(dict.fromkeys(local))
        following: tuple[RemoteLogSegmentMetadata, int] | None = (segment, start)
        while following is not None:
            here, offset = following
            until = shared_until(here, partition_log.epochs.entries, offset)
            if not here.txn_index_empty:
                more, is_complete = await self._entries(here, start, end, until)
                found.update(dict.fromkeys(more))
                if is_complete:
                    break
            following = self._next(partition_log, here.partition, until)
        return list(found)

    async def _entries(
        self, segment: RemoteLogSegmentMetadata, start: int, end: int, until: int
    ) -> tuple[list[AbortedTransaction], bool]:
        """`aborted_in` of the segment's index, which is checked."""
        try:
            index = await self._indexes.fetch(segment, IndexType.TRANSACTION)
            found = aborted_in(index, start, end, until)
            if len(index):
                try:
                    await self._markers.check(segment, index, found[0])
                except CorruptRemoteIndex as error:
                    await self._indexes.refuse(segment, IndexType.TRANSACTION, error)
                    raise
            return found
        except (RemoteResourceNotFound, CorruptRemoteData) as error:
            error.segment_id = segment.id.id
            raise

    def _next(
        self, partition_log: PartitionLog, partition: TopicIdPartition, offset: int
    ) -> tuple[RemoteLogSegmentMetadata, int] | None:
        """First segment with a transaction index that has `offset` of the log's lineage or a later
        one, and that offset; None if the local log has it."""
        epoch = partition_log.epochs.epoch_for(offset)
        if epoch is None or offset >= partition_log.local_log_start_offset:
            return None
        entries = partition_log.epochs.entries
        for each, after in zip(entries, (*entries[1:], None), strict=True):
            if each.epoch < epoch:
                continue
            wanted = max(each.start_offset, offset)
            found = self._metadata.next_segment_with_transactions(partition, each.epoch, wanted)
            if found is None:
                continue
            first = next(of.start_offset for of in found.epochs if of.epoch == each.epoch)
            if after is None or first < after.start_offset:
                return found, max(first, wanted)
        return None
