"""Which transactions were aborted among records of the remote tier (T-35, E10).

A transaction is listed in the segment of its marker, which may come long after its records: in one of
the next remote segments, or in a local one. The segments that have a list at all are looked through until
one says that nothing later can matter. Segments that are in both tiers tell the same twice.
"""

from __future__ import annotations

from collections.abc import Sequence

from odradek.seams.offload import Offload
from odradek.storage.log.partition_log import PartitionLog
from odradek.storage.log.transaction_index import AbortedTransaction
from odradek.storage.tiered.index_cache import RemoteIndexCache
from odradek.storage.tiered.index_entries import aborted_in
from odradek.storage.tiered.metadata import RemoteLogSegmentMetadata
from odradek.storage.tiered.remote_metadata import RemoteLogMetadataManager
from odradek.storage.tiered.remote_storage import IndexType


class AbortedTransactions:
    def __init__(
        self, metadata: RemoteLogMetadataManager, indexes: RemoteIndexCache, offload: Offload
    ) -> None:
        self._metadata = metadata
        self._indexes = indexes
        self._offload = offload

    async def overlapping(
        self, which: PartitionLog, segment: RemoteLogSegmentMetadata, start: int, end: int
    ) -> Sequence[AbortedTransaction]:
        """Those that overlap offsets [start, end), which are `segment`'s, each once. Raises
        RemoteStorageError."""
        local = await self._offload.run(
            which.aborted_transactions, start, end, lane=str(which.directory.parent)
        )
        found = dict.fromkeys(local)
        here: RemoteLogSegmentMetadata | None = segment
        while here is not None:
            if not here.txn_index_empty:
                index = await self._indexes.fetch(here, IndexType.TRANSACTION)
                more, is_complete = aborted_in(index, start, end)
                found.update(dict.fromkeys(more))
                if is_complete:
                    return list(found)
            here = self._next(which, here)
        return list(found)

    def _next(
        self, which: PartitionLog, segment: RemoteLogSegmentMetadata
    ) -> RemoteLogSegmentMetadata | None:
        """The next segment with a transaction index, in this epoch of our history or a later one; none
        where the local log goes on."""
        offset = segment.end_offset + 1
        epoch = which.epochs.epoch_for(offset)
        if epoch is None or offset >= which.local_log_start_offset:
            return None
        for each in which.epochs.entries:
            if each.epoch < epoch:
                continue
            following = self._metadata.next_segment_with_transactions(
                segment.partition, each.epoch, max(each.start_offset, offset)
            )
            if following is not None:
                return following
        return None
