"""Which transactions were aborted among records of the remote tier (T-35, E10).

A transaction is listed in the segment of its marker, which may come long after its records: in one of
the next remote segments, or in a local one. The segments that have a list at all are looked through until
one says that nothing later can matter. Segments that are in both tiers tell the same twice.

A segment of a leader that was replaced uncleanly tells the truth up to where its history parts from ours
(T-60). Its markers from there on are not in our log, though what they end may be: the search goes on at that
offset, in a segment of ours. (Kafka believes them: it leaves out what was committed, or gives out what was
aborted.)
"""

from __future__ import annotations

from collections.abc import Sequence

from odradek.seams.files import Buffer
from odradek.seams.offload import Offload
from odradek.storage.log.partition_log import PartitionLog
from odradek.storage.log.transaction_index import AbortedTransaction
from odradek.storage.tiered.errors import CorruptRemoteData, RemoteResourceNotFound
from odradek.storage.tiered.index_lookup import aborted_in
from odradek.storage.tiered.leader_epoch_lineage import shared_until
from odradek.storage.tiered.metadata import RemoteLogSegmentMetadata, TopicIdPartition
from odradek.storage.tiered.remote_index_cache import RemoteIndexCache
from odradek.storage.tiered.remote_log_metadata_manager import RemoteLogMetadataManager
from odradek.storage.tiered.remote_storage_manager import IndexType


class RemoteAbortedTransactions:
    def __init__(
        self, metadata: RemoteLogMetadataManager, indexes: RemoteIndexCache, offload: Offload
    ) -> None:
        self._metadata = metadata
        self._indexes = indexes
        self._offload = offload

    async def overlapping(
        self, partition_log: PartitionLog, segment: RemoteLogSegmentMetadata, start: int, end: int
    ) -> Sequence[AbortedTransaction]:
        """Those that overlap offsets [start, end), which are `segment`'s, each once. Raises
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
                index = await self._index(here)
                more, is_complete = aborted_in(index, start, end, until)
                found.update(dict.fromkeys(more))
                if is_complete:
                    break
            following = self._next(partition_log, here.partition, until)
        return list(found)

    async def _index(self, segment: RemoteLogSegmentMetadata) -> Buffer:
        try:
            return await self._indexes.fetch(segment, IndexType.TRANSACTION)
        except (RemoteResourceNotFound, CorruptRemoteData) as error:
            error.segment_id = segment.id.id
            raise

    def _next(
        self, partition_log: PartitionLog, partition: TopicIdPartition, offset: int
    ) -> tuple[RemoteLogSegmentMetadata, int] | None:
        """The first segment with a transaction index that has `offset` of our history or a later one, and
        which it has; None where the local log goes on."""
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
