"""Auxiliary state that a follower reads from the remote tier instead of records (KIP-405, Kafka's TierStateMachine).

The leader has the log on disk from its local log start offset. The remote log segment with the record before that offset
(T-42) has the leader epochs up to its end and the producer snapshot at its end. With these, the follower deletes
its log and starts a new one after that segment, as if it had replicated all earlier records.

Nothing here changes the log, so an unavailable store loses nothing.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from contextlib import suppress
from itertools import pairwise

import trio

from odradek.protocol.errors import KafkaError
from odradek.replication.partition.follower_state import BuildRemoteLogAuxState
from odradek.seams.files import Buffer
from odradek.seams.offload import OBJECTS_LANE, Offload
from odradek.storage.log.leader_epoch_cache import CorruptEpochs, EpochStart, parse_checkpoint
from odradek.storage.log.partition_log import PartitionLog
from odradek.storage.log.producer_snapshots import CorruptSnapshot, decode_snapshot
from odradek.storage.log.producer_state import ProducerEntry
from odradek.storage.log.truncation import EmptyLogStart
from odradek.storage.tiered.errors import (
    CorruptRemoteData,
    RemoteNotReady,
    RemoteResourceNotFound,
    RemoteStorageError,
)
from odradek.storage.tiered.remote_log_metadata_manager import RemoteLogMetadataManager
from odradek.storage.tiered.remote_storage_manager import IndexType, RemoteStorageManager
from odradek.storage.tiered.segment_metadata import RemoteLogSegmentMetadata, TopicIdPartition

log = logging.getLogger("odradek.fetching")

READING_S = 1.0
"""Timeout for reading the metadata, in seconds. After it, the follower requests the leader's offsets again."""

Built = Callable[[str, bool], None]
"""Called after each attempt with the topic's name and whether it failed."""


class AuxiliaryState:
    """`RemoteTier` of a node with tiered storage: reads leader epochs and producer snapshots."""

    def __init__(
        self,
        metadata: RemoteLogMetadataManager,
        storage: RemoteStorageManager,
        offload: Offload,
        *,
        on_built: Built = lambda topic, failed: None,
    ) -> None:
        self._metadata = metadata
        self._storage = storage
        self._offload = offload
        self._on_built = on_built

    async def beginning(
        self, partition_log: PartitionLog, change: BuildRemoteLogAuxState
    ) -> EmptyLogStart:
        """Implement `RemoteTier.beginning`. Raises RemoteStorageError."""
        try:
            found = await self._beginning(partition_log, change)
        except KafkaError:
            self._on_built(partition_log.topic, True)
            raise
        self._on_built(partition_log.topic, False)
        return found

    async def _beginning(
        self, partition_log: PartitionLog, change: BuildRemoteLogAuxState
    ) -> EmptyLogStart:
        segment = await self._segment_before(partition_log, change)
        epochs = await self._fetch(segment, IndexType.LEADER_EPOCH)
        producers = await self._fetch(segment, IndexType.PRODUCER_SNAPSHOT)
        start, end = change.start_offset, segment.end_offset + 1
        return EmptyLogStart(
            end,
            min(start, end),
            history(epochs, start, end, segment),
            producers_of(producers, segment),
        )

    async def _segment_before(
        self, partition_log: PartitionLog, change: BuildRemoteLogAuxState
    ) -> RemoteLogSegmentMetadata:
        """Find the segment with the record before the leader's local log start offset."""
        name, offset = (
            f"{partition_log.topic}-{partition_log.partition}",
            change.local_start_offset - 1,
        )
        if not partition_log.is_tiered or partition_log.topic_id is None:
            raise RemoteStorageError(f"{name} has no remote log metadata on this broker")
        partition = TopicIdPartition(
            partition_log.topic_id, partition_log.topic, partition_log.partition
        )
        # RemoteResourceNotFound: the broker no longer has a replica
        with trio.move_on_after(READING_S), suppress(RemoteResourceNotFound):
            await self._metadata.wait_ready(partition)
        if not self._metadata.is_ready(partition):
            raise RemoteNotReady(f"the remote log metadata of {name} is still being read")
        found = self._metadata.segment_for(partition, change.epoch, offset)
        if found is None:
            raise RemoteResourceNotFound(
                f"the remote tier has no segment of {name} with offset {offset} of leader epoch"
                f" {change.epoch}, but the leader's local log starts after it"
            )
        log.info(
            "%s: offsets before %d are in remote log segment %s",
            name,
            change.local_start_offset,
            found.id,
        )
        return found

    async def _fetch(self, segment: RemoteLogSegmentMetadata, kind: IndexType) -> Buffer:
        return await self._offload.run(self._storage.fetch_index, segment, kind, lane=OBJECTS_LANE)


def history(
    data: Buffer, start: int, end: int, segment: RemoteLogSegmentMetadata
) -> tuple[EpochStart, ...]:
    """Parse the leader epochs of [start, end) from the checkpoint of a remote log segment.

    Raises CorruptRemoteData if it is invalid or inconsistent.
    """
    try:
        entries = parse_checkpoint(bytes(data))
    except CorruptEpochs as error:
        raise CorruptRemoteData(f"the leader epochs of {segment.id}: {error}") from error
    for before, after in pairwise(entries):
        if before.epoch >= after.epoch or before.start_offset >= after.start_offset:
            raise CorruptRemoteData(f"the leader epochs of {segment.id} decrease: {entries}")
    kept: list[EpochStart] = []
    for each in entries:
        if each.start_offset >= end:
            break
        if each.start_offset <= start:  # the last of these is the epoch of the log start offset
            kept = [EpochStart(each.epoch, start)]
        else:
            kept.append(each)
    return tuple(kept)


def producers_of(data: Buffer, segment: RemoteLogSegmentMetadata) -> list[ProducerEntry]:
    """Parse the producer snapshot of a remote log segment. Raises CorruptRemoteData."""
    try:
        return decode_snapshot(bytes(data))
    except CorruptSnapshot as error:
        raise CorruptRemoteData(f"the producer snapshot of {segment.id}: {error}") from error
