"""Planted bugs of tiered storage, which the simulator must find."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest

from odradek.broker.tiered.remote_log_manager import TieredRole, _TieredPartition
from odradek.broker.tiered.segment_operations import SegmentOperations
from odradek.replication.partition.partition import Partition
from odradek.replication.tiered.partition_remover import DeletedTopics, TopicState
from odradek.seams.files import Buffer
from odradek.storage.log import relocation
from odradek.storage.log import retention as local_retention
from odradek.storage.log.partition_log import PartitionLog
from odradek.storage.tiered import remote_retention
from odradek.storage.tiered.manifest import StoredObject
from odradek.storage.tiered.object_names import segment_key
from odradek.storage.tiered.object_store import ObjectStoreStorage, _CountedObject
from odradek.storage.tiered.segment_metadata import RemoteLogSegmentMetadata


def delete_local_segments_before_copy(patch: pytest.MonkeyPatch) -> None:
    """Local retention deletes segments before they are copied to the remote tier."""
    honest = local_retention.find_expired

    def find(*args: Any, **kwargs: Any) -> Any:
        if kwargs.get("safe_to") is not None:
            kwargs["safe_to"] = 1 << 62
        return honest(*args, **kwargs)

    patch.setattr(local_retention, "find_expired", find)


def keep_dangling_segments(patch: pytest.MonkeyPatch) -> None:
    """Unfinished copies of other leaders are not deleted."""
    patch.setattr(SegmentOperations, "is_dangling", lambda work, segment: False)


def skip_verification_after_put(patch: pytest.MonkeyPatch) -> None:
    """An upload is not verified."""

    def put(self: ObjectStoreStorage, copy: Any, suffix: str, pieces: Iterable[Buffer]) -> None:
        counted = _CountedObject(pieces)
        self._objects.put(segment_key(copy.metadata, suffix), counted)
        copy.objects[suffix] = StoredObject(counted.size, counted.crc32c)

    patch.setattr(ObjectStoreStorage, "_put", put)


def count_remote_bytes_twice(patch: pytest.MonkeyPatch) -> None:
    """Size retention counts the remote bytes twice, as Apache Kafka did after a leader change."""
    honest = remote_retention._ExpirationRun.__init__

    def begin(self: Any, retained: Any) -> None:
        honest(self, retained)
        if retained.retention_bytes >= 0:
            self._excess += retained.remote_bytes

    patch.setattr(remote_retention._ExpirationRun, "__init__", begin)


def start_log_at_local_start_after_move(patch: pytest.MonkeyPatch) -> None:
    """A move between log directories sets the log start offset to the local log start offset."""
    honest = relocation.switch

    def switch(log: PartitionLog, *args: Any) -> None:
        honest(log, *args)
        log.set_log_start(log.segment_list.first.base_offset)

    patch.setattr(relocation, "switch", switch)


def overestimate_copied_offset_after_move(patch: pytest.MonkeyPatch) -> None:
    """A move between log directories sets the copied offset to the log end offset."""
    honest = relocation.switch

    def switch(log: PartitionLog, *args: Any) -> None:
        honest(log, *args)
        log.advance_highest_copied_offset(log.end_offset - 1)

    patch.setattr(relocation, "switch", switch)


def ignore_enabled_copies(patch: pytest.MonkeyPatch) -> None:
    """A leader does not copy segments again after remote.log.copy.disable is removed."""
    honest = _TieredPartition.is_as

    def is_as(tiered: _TieredPartition, partition: Partition, role: TieredRole | None) -> bool:
        is_off = tiered.role is TieredRole.LEADS_WITHOUT_COPIES and role is TieredRole.LEADS
        return honest(tiered, partition, tiered.role if is_off else role)

    patch.setattr(_TieredPartition, "is_as", is_as)


def forget_abandoned_copies(patch: pytest.MonkeyPatch) -> None:
    """A copy that stops halfway, because copies are disabled or the leader changed, is never deleted."""

    def hand_over(work: SegmentOperations, step: object, segment: RemoteLogSegmentMetadata) -> None:
        work.in_progress[segment.id] += 1

    patch.setattr(SegmentOperations, "_hand_over", hand_over)


def ignore_topics_deleted_before_election(patch: pytest.MonkeyPatch) -> None:
    """A new leader of a remote log metadata partition does not check for deleted topics."""

    def topic_state(deleted: DeletedTopics, *args: Any, **kwargs: Any) -> TopicState:
        return TopicState.EXISTS

    patch.setattr(DeletedTopics, "topic_state", topic_state)


PLANTED = [
    delete_local_segments_before_copy,
    keep_dangling_segments,
    skip_verification_after_put,
    count_remote_bytes_twice,
    start_log_at_local_start_after_move,
    overestimate_copied_offset_after_move,
    ignore_enabled_copies,
    forget_abandoned_copies,
    ignore_topics_deleted_before_election,
]
