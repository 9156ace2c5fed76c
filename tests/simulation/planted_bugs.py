"""Planted bugs of replication, which the simulator must find.

There are two of each kind, and two that a review had found and the simulator had not."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from odradek.broker.fetch import log_reading
from odradek.broker.replicas.partition_table import PartitionTable
from odradek.broker.replicas.replica_manager import ReplicaManager
from odradek.replication.controller.image import PartitionImage, TopicImage
from odradek.replication.controller.partition_change_builder import _Target
from odradek.replication.partition import follower_state, leader_state
from odradek.replication.partition.leader_state import LeaderState
from odradek.replication.partition.partition import Partition
from odradek.replication.partition.truncation import Truncation
from odradek.replication.raft import inbound_requests
from odradek.replication.raft.election_state import OffsetAndEpoch
from odradek.storage.directories.clean_shutdown import CleanShutdownFile
from odradek.storage.directories.log_directory import LogDirectory
from odradek.storage.log import recovery
from odradek.storage.log.partition_log import PartitionLog

# Election


def grant_two_votes_per_epoch(patch: pytest.MonkeyPatch) -> None:
    """A voter votes for a second candidate in the same epoch."""
    patch.setattr(inbound_requests, "grants_vote", lambda *_, up_to_date, **__: up_to_date)


def skip_log_comparison_of_candidates(patch: pytest.MonkeyPatch) -> None:
    """A voter does not compare the candidate's log with its own."""
    patch.setattr(inbound_requests, "election_end", lambda log: OffsetAndEpoch(0, 0))


# Truncation


def skip_follower_truncation(patch: pytest.MonkeyPatch) -> None:
    """A follower that receives a diverging epoch does not truncate its log."""

    def decide(own: Any, *, end_offset: int, **_: Any) -> Truncation:
        return Truncation(end_offset, True)

    patch.setattr(follower_state, "decide_truncation", decide)


def omit_diverging_epoch(patch: pytest.MonkeyPatch) -> None:
    """A leader never compares the follower's log with its own, and returns records."""
    patch.setattr(log_reading, "find_divergence", lambda own, **_: None)


# ISR


def advance_high_watermark_without_isr(patch: pytest.MonkeyPatch) -> None:
    """The high watermark is the leader's log end offset."""

    def decide(current: int, leader: int, ends: Any, in_sync: Any) -> int:
        return max(current, ends[leader])

    patch.setattr(leader_state, "decide_high_watermark", decide)


def overestimate_follower_offsets(patch: pytest.MonkeyPatch) -> None:
    """A leader assumes that a follower has one record more than its fetch offset shows."""
    honest = LeaderState._high_watermark_candidate

    def replicated(self: LeaderState, now_ms: int) -> int:
        known, end = self._followers, self._log.end_offset
        self._followers = {
            each: replace(progress, end_offset=min(progress.end_offset + 1, end))
            for each, progress in known.items()
        }
        try:
            return honest(self, now_ms)
        finally:
            self._followers = known

    patch.setattr(LeaderState, "_high_watermark_candidate", replicated)


# Recovery


class _EqualToAny:
    """A checksum that is equal to any other."""

    def __ne__(self, other: object) -> bool:
        return False


def skip_crc_checks_in_log_recovery(patch: pytest.MonkeyPatch) -> None:
    """Log recovery accepts batches with a wrong CRC."""
    patch.setattr(recovery, "crc32c", lambda data: _EqualToAny())


def assume_clean_shutdown(patch: pytest.MonkeyPatch) -> None:
    """Every start assumes a clean shutdown, and recovers no log."""
    patch.setattr(
        LogDirectory, "remove_clean_shutdown_file", lambda directory: CleanShutdownFile(None)
    )


# Reassignment


def complete_reassignment_before_catch_up(patch: pytest.MonkeyPatch) -> None:
    """A reassignment completes before the new replicas have caught up."""

    def complete(self: _Target) -> None:
        if self.removing or self.adding:
            self.replicas = tuple(each for each in self.replicas if each not in self.removing)
            self.isr, self.removing, self.adding = self.replicas, (), ()

    patch.setattr(_Target, "complete_reassignment", complete)


def keep_removed_replicas_in_isr(patch: pytest.MonkeyPatch) -> None:
    """A replica that was removed by a reassignment remains in the ISR."""
    honest = _Target.complete_reassignment

    def complete(self: _Target) -> None:
        isr = self.isr
        honest(self)
        self.isr = isr

    patch.setattr(_Target, "complete_reassignment", complete)


# Missed leader epoch


def keep_follower_state_across_missed_epoch(patch: pytest.MonkeyPatch) -> None:
    """A leader that missed an epoch keeps the follower state of its previous leadership."""
    honest = Partition._adopt

    def adopt(self: Partition, image: PartitionImage) -> None:
        if self.leading_since >= 0 and image.leader == self._node_id:
            self.leader_epoch = max(self.leader_epoch, image.leader_epoch - 1)
        honest(self, image)

    patch.setattr(Partition, "_adopt", adopt)


# Recreated topic


def ignore_topic_ids_of_logs(patch: pytest.MonkeyPatch) -> None:
    """The log of a deleted topic is used for the recreated topic of the same name."""

    async def log_of(self: PartitionTable, topic: TopicImage, index: int) -> PartitionLog | None:
        return self._logs.get(topic.name, index)

    async def rename_stray_logs(self: ReplicaManager) -> None:
        names = self._environment.metadata.image.topics_by_name
        await self.logs.rename_stray_logs(lambda name, topic_id: name.topic not in names)

    patch.setattr(PartitionTable, "_log_of", log_of)
    patch.setattr(ReplicaManager, "_rename_stray_logs", rename_stray_logs)


PLANTED = [
    grant_two_votes_per_epoch,
    skip_log_comparison_of_candidates,
    skip_follower_truncation,
    omit_diverging_epoch,
    advance_high_watermark_without_isr,
    overestimate_follower_offsets,
    skip_crc_checks_in_log_recovery,
    assume_clean_shutdown,
    complete_reassignment_before_catch_up,
    keep_removed_replicas_in_isr,
    keep_follower_state_across_missed_epoch,
    ignore_topic_ids_of_logs,
]
