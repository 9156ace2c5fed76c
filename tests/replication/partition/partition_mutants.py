"""Mutants that the simulation must find."""

from __future__ import annotations

import pytest

from odradek.replication.partition.follower_state import FollowerState
from odradek.replication.partition.isr_state import IsrState, ReplicaIds
from odradek.replication.partition.leader_state import NO_BROKER_EPOCH, LeaderState


def shrink_without_the_controller(patch: pytest.MonkeyPatch) -> None:
    """A proposed removal from the ISR takes effect before the controller accepts it."""

    def maximal(self: IsrState) -> ReplicaIds:
        return self.committed if self.proposal is None else self.proposal.isr

    patch.setattr(IsrState, "maximal", property(maximal))


def forget_the_pending(patch: pytest.MonkeyPatch) -> None:
    """A proposed ISR member does not limit the high watermark."""
    patch.setattr(
        LeaderState, "_high_watermark_replicas", lambda self, end, now_ms: self.isr.committed
    )


def truncate_to_the_high_watermark(patch: pytest.MonkeyPatch) -> None:
    """A follower of a new leader truncates to its high watermark, as before KIP-101."""
    honest = FollowerState._begin

    def begin(self: FollowerState) -> None:
        honest(self)
        self._truncate(self._log.high_watermark)

    patch.setattr(FollowerState, "_begin", begin)


def expand_with_a_stale_epoch(patch: pytest.MonkeyPatch) -> None:
    """Fetches of an earlier incarnation of a broker count, as before KIP-903."""

    def eligible(self: LeaderState, follower: int) -> bool:
        broker = self._brokers(follower)
        return broker is not None and broker.active

    patch.setattr(LeaderState, "_is_eligible", eligible)
    patch.setattr(LeaderState, "_is_current", lambda self, follower, broker_epoch: True)
    patch.setattr(LeaderState, "_broker_epoch_of", lambda self, member: NO_BROKER_EPOCH)


def look_up_the_epoch_of_the_disk(patch: pytest.MonkeyPatch) -> None:
    """The record before the local log start offset is looked up by the epoch of that offset (T-42)."""
    patch.setattr(
        FollowerState,
        "_epoch_located",
        lambda self, response: self._build(self._local_start, self._local_start.epoch),
    )


MUTANTS = [
    look_up_the_epoch_of_the_disk,
    shrink_without_the_controller,
    forget_the_pending,
    truncate_to_the_high_watermark,
    expand_with_a_stale_epoch,
]
