"""Bugs put into tiered storage on purpose, to see that the simulated cluster with a store finds them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest

from odradek.broker.tiered.remote_log_manager import Role, _Tiered
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


def let_go_of_what_was_not_copied(patch: pytest.MonkeyPatch) -> None:
    """The disk's segments do not wait for their copies."""
    honest = local_retention.find_expired

    def find(*args: Any, **kwargs: Any) -> Any:
        if kwargs.get("safe_to") is not None:
            kwargs["safe_to"] = 1 << 62
        return honest(*args, **kwargs)

    patch.setattr(local_retention, "find_expired", find)


def leave_what_others_began(patch: pytest.MonkeyPatch) -> None:
    """Copies that are not finished stay."""
    patch.setattr(SegmentOperations, "is_dangling", lambda work, segment: False)


def take_the_store_at_its_word(patch: pytest.MonkeyPatch) -> None:
    """Nobody looks whether what was put is there."""

    def put(self: ObjectStoreStorage, copy: Any, suffix: str, pieces: Iterable[Buffer]) -> None:
        counted = _CountedObject(pieces)
        self._objects.put(segment_key(copy.metadata, suffix), counted)
        copy.objects[suffix] = StoredObject(counted.size, counted.crc32c)

    patch.setattr(ObjectStoreStorage, "_put", put)


def count_sizes_twice(patch: pytest.MonkeyPatch) -> None:
    """What is in the tier is counted once more, as after a change of leaders in Kafka once."""
    honest = remote_retention._Decision.__init__

    def begin(self: Any, retained: Any) -> None:
        honest(self, retained)
        if retained.retention_bytes >= 0:
            self._excess += retained.remote_bytes

    patch.setattr(remote_retention._Decision, "__init__", begin)


def begin_where_the_disk_does(patch: pytest.MonkeyPatch) -> None:
    """A log that moves forgets that it begins in the tier."""
    honest = relocation.switch

    def switch(log: PartitionLog, *args: Any) -> None:
        honest(log, *args)
        log.set_log_start(log.segment_list.first.base_offset)

    patch.setattr(relocation, "switch", switch)


def take_what_moves_for_copied(patch: pytest.MonkeyPatch) -> None:
    """A log that moves is wrong about how far it is copied."""
    honest = relocation.switch

    def switch(log: PartitionLog, *args: Any) -> None:
        honest(log, *args)
        log.advance_highest_copied_offset(log.end_offset - 1)

    patch.setattr(relocation, "switch", switch)


def stay_switched_off(patch: pytest.MonkeyPatch) -> None:
    """Whoever leads without copies does so until another leads."""
    honest = _Tiered.is_as

    def is_as(tiered: _Tiered, partition: Partition, role: Role | None) -> bool:
        is_off = tiered.role is Role.LEADS_WITHOUT_COPIES and role is Role.LEADS
        return honest(tiered, partition, tiered.role if is_off else role)

    patch.setattr(_Tiered, "is_as", is_as)


def forget_what_is_given_up(patch: pytest.MonkeyPatch) -> None:
    """A copy that is switched off half done, or whose leader is another, is nobody's."""

    def hand_over(work: SegmentOperations, step: object, segment: RemoteLogSegmentMetadata) -> None:
        work.in_progress[segment.id] += 1

    patch.setattr(SegmentOperations, "_hand_over", hand_over)


def remove_only_what_is_heard_of(patch: pytest.MonkeyPatch) -> None:
    """Who begins to lead a metadata partition does not look whether topics in it were deleted."""

    def topic_state(deleted: DeletedTopics, *args: Any, **kwargs: Any) -> TopicState:
        return TopicState.EXISTS

    patch.setattr(DeletedTopics, "topic_state", topic_state)


PLANTED = [
    let_go_of_what_was_not_copied,
    leave_what_others_began,
    take_the_store_at_its_word,
    count_sizes_twice,
    begin_where_the_disk_does,
    take_what_moves_for_copied,
    stay_switched_off,
    forget_what_is_given_up,
    remove_only_what_is_heard_of,
]
