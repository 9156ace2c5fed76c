"""Bugs put into the brokers on purpose to see that the simulated cluster finds them: two of a kind, and two
that readers had found and the simulator had not."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from odradek.broker.fetch import log_reading as fetch_reading
from odradek.broker.replicas.partition_table import PartitionTable
from odradek.broker.replicas.replica_manager import ReplicaManager
from odradek.replication.controller.image import PartitionImage, TopicImage
from odradek.replication.controller.partition_change_builder import _Target
from odradek.replication.partition import follower_state as follower
from odradek.replication.partition import leader_state as leader
from odradek.replication.partition.leader_state import LeaderState
from odradek.replication.partition.partition import Partition
from odradek.replication.partition.truncation import Truncation
from odradek.replication.raft import inbound_requests as responding
from odradek.replication.raft.election_state import OffsetAndEpoch
from odradek.storage.directories.clean_shutdown import CleanShutdownFile
from odradek.storage.directories.log_directory import LogDirectory
from odradek.storage.log import recovery
from odradek.storage.log.partition_log import PartitionLog

# Election


def vote_twice(patch: pytest.MonkeyPatch) -> None:
    """Whoever has enough of the log gets the vote, even if another has it."""
    patch.setattr(responding, "grants_vote", lambda *_, up_to_date, **__: up_to_date)


def elect_who_lacks_records(patch: pytest.MonkeyPatch) -> None:
    """A candidate's log is not compared with the voter's."""
    patch.setattr(responding, "log_end", lambda log: OffsetAndEpoch(0, 0))


# Truncation


def keep_what_the_leader_has_not(patch: pytest.MonkeyPatch) -> None:
    """A follower that is told where the logs part goes on where its own ends."""

    def decide(own: Any, *, end_offset: int, **_: Any) -> Truncation:
        return Truncation(end_offset, True)

    patch.setattr(follower, "decide_truncation", decide)


def tell_nobody_where_logs_part(patch: pytest.MonkeyPatch) -> None:
    """A leader sends records to whoever asks, whatever is in front of them there."""
    patch.setattr(fetch_reading, "find_divergence", lambda own, **_: None)


# The in-sync set


def acknowledge_what_the_leader_has(patch: pytest.MonkeyPatch) -> None:
    """The high watermark waits for nobody."""

    def decide(current: int, leader: int, ends: Any, in_sync: Any) -> int:
        return max(current, ends[leader])

    patch.setattr(leader, "decide_high_watermark", decide)


def count_what_is_on_its_way(patch: pytest.MonkeyPatch) -> None:
    """A follower is taken to have a record more than it asks behind."""
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


class _Whatever:
    """Any checksum at all."""

    def __ne__(self, other: object) -> bool:
        return False


def recover_what_is_broken(patch: pytest.MonkeyPatch) -> None:
    """Recovery checks no checksums."""
    patch.setattr(recovery, "crc32c", lambda data: _Whatever())


def take_every_stop_for_a_clean_one(patch: pytest.MonkeyPatch) -> None:
    """No log is recovered after a crash."""
    patch.setattr(
        LogDirectory, "remove_clean_shutdown_file", lambda directory: CleanShutdownFile(None)
    )


# Reassignment


def move_before_it_is_copied(patch: pytest.MonkeyPatch) -> None:
    """The new replicas take over at once, whether or not they have caught up."""

    def complete(self: _Target) -> None:
        if self.removing or self.adding:
            self.replicas = tuple(each for each in self.replicas if each not in self.removing)
            self.isr, self.removing, self.adding = self.replicas, (), ()

    patch.setattr(_Target, "complete_reassignment", complete)


def stay_in_sync_after_moving_away(patch: pytest.MonkeyPatch) -> None:
    """Who is moved away is waited for still."""
    honest = _Target.complete_reassignment

    def complete(self: _Target) -> None:
        isr = self.isr
        honest(self)
        self.isr = isr

    patch.setattr(_Target, "complete_reassignment", complete)


# A missed epoch


def know_followers_across_a_missed_epoch(patch: pytest.MonkeyPatch) -> None:
    """A leader that hears of two elections at once goes on with what it knew of its followers, whoever
    led in between."""
    honest = Partition._adopt

    def adopt(self: Partition, image: PartitionImage) -> None:
        if self.leading_since >= 0 and image.leader == self._node_id:
            self.leader_epoch = max(self.leader_epoch, image.leader_epoch - 1)
        honest(self, image)

    patch.setattr(Partition, "_adopt", adopt)


# A topic made anew


def know_logs_by_their_names(patch: pytest.MonkeyPatch) -> None:
    """What a topic has left is taken for what its successor of the same name has."""

    async def log_of(self: PartitionTable, topic: TopicImage, index: int) -> PartitionLog | None:
        return self._logs.get(topic.name, index)

    async def set_aside(self: ReplicaManager) -> None:
        names = self._environment.metadata.image.topics_by_name
        await self.logs.rename_stray_logs(lambda name, topic_id: name.topic not in names)

    patch.setattr(PartitionTable, "_log_of", log_of)
    patch.setattr(ReplicaManager, "_rename_stray_logs", set_aside)


PLANTED = [
    vote_twice,
    elect_who_lacks_records,
    keep_what_the_leader_has_not,
    tell_nobody_where_logs_part,
    acknowledge_what_the_leader_has,
    count_what_is_on_its_way,
    recover_what_is_broken,
    take_every_stop_for_a_clean_one,
    move_before_it_is_copied,
    stay_in_sync_after_moving_away,
    know_followers_across_a_missed_epoch,
    know_logs_by_their_names,
]
