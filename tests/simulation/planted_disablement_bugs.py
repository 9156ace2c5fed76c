"""Planted bugs of disabling tiered storage (KIP-950), which the simulator must find."""

from __future__ import annotations

from typing import Any

import pytest
import trio

from odradek.broker.tiered import expiration_task
from odradek.broker.tiered.expiration_task import RemoteDeletionTask
from odradek.broker.tiered.remote_log_manager import RemoteLogManager
from odradek.broker.tiered.segment_operations import SegmentOperations
from odradek.replication.controller.image import MetadataImage
from odradek.replication.controller.topic_tiering import DisablementProgress
from odradek.storage.log import retention as local_retention
from odradek.storage.log.state import LogState
from odradek.storage.tiered.remote_partition_metadata_store import RemotePartitionMetadataStore
from odradek.storage.tiered.segment_metadata import SegmentState


def count_responses_of_one_broker_twice(patch: pytest.MonkeyPatch) -> None:
    """The controller counts responses to DisableRemoteTopic instead of the brokers that responded."""
    counts: dict[DisablementProgress, int] = {}

    def responded(progress: DisablementProgress, broker_id: int, sent_with: MetadataImage) -> None:
        counts[progress] = counts.get(progress, 0) + 1

    def missing(progress: DisablementProgress, image: MetadataImage) -> list[int]:
        is_complete = counts.get(progress, 0) >= len(image.brokers)
        return [] if is_complete else sorted(image.brokers)

    patch.setattr(DisablementProgress, "responded", responded)
    patch.setattr(DisablementProgress, "missing", missing)


def publish_copies_of_earlier_tiered_epochs(patch: pytest.MonkeyPatch) -> None:
    """A copy continues after a disablement that does not wait for it, and is published in a later tiered epoch."""
    honest = SegmentOperations.copy

    async def copy(work: SegmentOperations, *args: Any) -> None:
        with trio.CancelScope(shield=True):
            await honest(work, *args)

    def is_done(task: RemoteDeletionTask) -> bool:
        started = SegmentState.COPY_SEGMENT_STARTED
        return all(each.state is started for each in task._tools.metadata.segments(task._id))

    async def give_up(manager: RemoteLogManager, tiered: object) -> None:
        pass

    patch.setattr(SegmentOperations, "copy", copy)
    patch.setattr(SegmentOperations, "is_busy", lambda work, partition: False)
    patch.setattr(RemoteDeletionTask, "is_done", property(is_done))
    patch.setattr(RemoteLogManager, "_give_up_earlier_copies", give_up)
    patch.setattr(RemotePartitionMetadataStore, "refuse_earlier_copies", lambda *args: None)


def delete_before_the_log_start_moves(patch: pytest.MonkeyPatch) -> None:
    """The remote segments are deleted first, and then the log start offset moves to the local one."""
    honest_run, honest_advance = RemoteDeletionTask.run_once, local_retention.advance_log_start

    async def run_once(task: RemoteDeletionTask) -> bool:
        await expiration_task._delete(task._tools, await task._find())
        return await honest_run(task)

    def advance(log: LogState, offset: int, reason: str) -> bool:
        is_ignored = reason == "disabled remote storage"
        return False if is_ignored else honest_advance(log, offset, reason)

    patch.setattr(RemoteDeletionTask, "run_once", run_once)
    patch.setattr(local_retention, "advance_log_start", advance)


PLANTED = [
    count_responses_of_one_broker_twice,
    publish_copies_of_earlier_tiered_epochs,
    delete_before_the_log_start_moves,
]
