"""Recovery of leader epochs that this disk has lost, for offsets that are only in the remote tier.

The epochs are in `leader-epoch-checkpoint`. Epochs of local segments are rebuilt from their batches, but earlier ones are
needed to read the remote tier. Every remote log segment has a copy of the checkpoint. The copy of a segment of the first epoch
that the disk still has is the log's own lineage up to the start of that epoch. Without such a segment, a segment with the
preceding record is used; of several epochs with that record, the latest.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from itertools import islice, takewhile
from typing import Final

from odradek.replication.tiered.auxiliary_state import history
from odradek.seams.offload import OBJECTS_LANE, Offload
from odradek.storage.log.leader_epoch_cache import EpochStart
from odradek.storage.log.partition_log import PartitionLog
from odradek.storage.tiered.errors import (
    CorruptRemoteData,
    RemoteResourceNotFound,
    RemoteStorageError,
)
from odradek.storage.tiered.remote_log_metadata_manager import RemoteLogMetadataManager
from odradek.storage.tiered.remote_storage_manager import IndexType, RemoteStorageManager
from odradek.storage.tiered.segment_metadata import (
    RemoteLogSegmentMetadata,
    SegmentState,
    TopicIdPartition,
)

log = logging.getLogger("odradek.tiered")

SOURCES_MAX: Final = 8
"""Number of segments that are tried if their leader epoch checkpoints cannot be read."""


def lacks_leader_epochs(partition_log: PartitionLog) -> bool:
    """Whether the log lacks the leader epochs of offsets that are only in the remote tier."""
    start = partition_log.log_start_offset
    return (
        start < partition_log.local_log_start_offset
        and partition_log.epochs.epoch_for(start) is None
    )


class LeaderEpochRecovery:
    """Restores leader epochs of a log from the remote tier, after its metadata is read completely."""

    def __init__(
        self, metadata: RemoteLogMetadataManager, storage: RemoteStorageManager, offload: Offload
    ) -> None:
        self._metadata = metadata
        self._storage = storage
        self._offload = offload

    async def restore(self, partition_log: PartitionLog, id: TopicIdPartition) -> None:
        """Restore the epochs durably. Does nothing if the remote tier does not have them.

        Raises OSError, and RemoteStorageError, also if no copy can be read now.
        """
        failure: RemoteStorageError | None = None
        for segment in islice(self._sources(partition_log, id), SOURCES_MAX):
            try:
                await self._restore_from(segment, partition_log, id)
                return
            except (RemoteResourceNotFound, CorruptRemoteData) as error:
                failure = failure or error
                log.info("%s: cannot use remote log segment %s: %s", id, segment.id, error)
        if failure is not None:
            raise failure
        if self._is_there(partition_log, id):
            log.error(
                "%s: the leader epochs of offsets that are only in the remote tier are lost", id
            )
        else:  # the segments have expired: a crash preceded the checkpoint of the new log start offset
            log.info("%s: the remote tier has no segments before the local log", id)

    def _is_there(self, partition_log: PartitionLog, id: TopicIdPartition) -> bool:
        """Whether the remote tier has segments before the local log, of any leader epoch lineage."""
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
        """Segments whose checkpoints may contain the epochs, the best one first."""
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
    """End offset of the missing epochs: the start of the epochs that local segments have."""
    earliest, local = partition_log.epochs.earliest, partition_log.local_log_start_offset
    return local if earliest is None else min(local, earliest.start_offset)


def _joined(
    before: tuple[EpochStart, ...], after: tuple[EpochStart, ...]
) -> tuple[EpochStart, ...]:
    """Join two lists of epochs. The first one determines the start of a common epoch."""
    latest = before[-1].epoch if before else -1
    return (*before, *(each for each in after if each.epoch > latest))
