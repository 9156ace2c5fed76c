"""Leader epochs that this disk has lost, of what is in the remote tier alone.

They are in `leader-epoch-checkpoint`, and nowhere else here: what is on the disk tells its epochs itself,
when it is read again, but what lies before is read by them. They were copied along with every segment,
though: the history that came with one of the first epoch that the disk still knows is the log's own, up to
where that begins; a segment with the record before it will do where there is none. (Of several epochs that
have that record the latest: after an unclean election another's would be a guess as good.)
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from itertools import islice, takewhile
from typing import Final

from odradek.replication.remote.auxiliary_state import history
from odradek.seams.offload import OBJECTS_LANE, Offload
from odradek.storage.log.epochs import EpochStart
from odradek.storage.log.partition_log import PartitionLog
from odradek.storage.tiered.errors import (
    CorruptRemoteData,
    RemoteResourceNotFound,
    RemoteStorageError,
)
from odradek.storage.tiered.metadata import (
    RemoteLogSegmentMetadata,
    SegmentState,
    TopicIdPartition,
)
from odradek.storage.tiered.remote_log_metadata_manager import RemoteLogMetadataManager
from odradek.storage.tiered.remote_storage_manager import IndexType, RemoteStorageManager

log = logging.getLogger("odradek.tiered")

SOURCES_MAX: Final = 8
"""So many copies are tried, if one after the other has no history that can be read."""


def lacks_leader_epochs(partition_log: PartitionLog) -> bool:
    """Whether the log begins in the remote tier with epochs that are not known."""
    start = partition_log.log_start_offset
    return (
        start < partition_log.local_log_start_offset
        and partition_log.epochs.epoch_for(start) is None
    )


class LeaderEpochRecovery:
    """Restores them. The metadata of the partition is read to the end."""

    def __init__(
        self, metadata: RemoteLogMetadataManager, storage: RemoteStorageManager, offload: Offload
    ) -> None:
        self._metadata = metadata
        self._storage = storage
        self._offload = offload

    async def restore(self, partition_log: PartitionLog, id: TopicIdPartition) -> None:
        """Durably; nothing where the remote tier does not know either. Raises OSError, and
        RemoteStorageError, of no copy that can be read too: what is given up here is gone for good."""
        failure: RemoteStorageError | None = None
        for segment in islice(self._sources(partition_log, id), SOURCES_MAX):
            try:
                await self._restore_from(segment, partition_log, id)
                return
            except (RemoteResourceNotFound, CorruptRemoteData) as error:
                failure = failure or error
                log.info("%s: not by %s: %s", id, segment.id, error)
        if failure is not None:
            raise failure
        if self._is_there(partition_log, id):
            log.error("%s: the leader epochs of what left the disk are lost", id)
        else:  # it has expired: a start was forgotten with the kill that came before its checkpoint
            log.info("%s: nothing of what left the disk is in the remote tier any more", id)

    def _is_there(self, partition_log: PartitionLog, id: TopicIdPartition) -> bool:
        """Whether the remote tier has anything of what left the disk, of whatever lineage."""
        end = _end(partition_log)
        before = takewhile(lambda each: each.start_offset < end, self._metadata.segments(id))
        return any(
            each.state is SegmentState.COPY_SEGMENT_FINISHED
            and each.end_offset >= partition_log.log_start_offset
            for each in before
        )

    async def _restore_from(
        self, segment: RemoteLogSegmentMetadata, partition_log: PartitionLog, id: TopicIdPartition
    ) -> None:
        data = await self._offload.run(
            self._storage.fetch_index, segment, IndexType.LEADER_EPOCH, lane=OBJECTS_LANE
        )
        end = _end(partition_log)
        found = history(data, partition_log.log_start_offset, end, segment)
        partition_log.epochs.restore(_joined(found, partition_log.epochs.entries))
        lane = str(partition_log.directory.parent)
        await self._offload.run(partition_log.epochs.save, lane=lane)
        log.warning("%s: the leader epochs before offset %d are those of %s", id, end, segment.id)

    def _sources(
        self, partition_log: PartitionLog, id: TopicIdPartition
    ) -> Iterator[RemoteLogSegmentMetadata]:
        """Those that came with one of them, the best first."""
        end, earliest = _end(partition_log), partition_log.epochs.earliest
        if earliest is not None and earliest.start_offset <= end:
            for segment in self._metadata.segments(id, earliest.epoch):
                if segment.state is SegmentState.COPY_SEGMENT_FINISHED:
                    yield segment
        for epoch in reversed(self._metadata.epochs(id)):
            if earliest is None or epoch <= earliest.epoch:
                found = self._metadata.segment_for(id, epoch, end - 1)
                if found is not None:
                    yield found


def _end(partition_log: PartitionLog) -> int:
    """Up to where the history is to be found: what is on the disk is known by its records."""
    earliest, local = partition_log.epochs.earliest, partition_log.local_log_start_offset
    return local if earliest is None else min(local, earliest.start_offset)


def _joined(
    before: tuple[EpochStart, ...], after: tuple[EpochStart, ...]
) -> tuple[EpochStart, ...]:
    """An epoch that is in both began when the first says."""
    latest = before[-1].epoch if before else -1
    return (*before, *(each for each in after if each.epoch > latest))
