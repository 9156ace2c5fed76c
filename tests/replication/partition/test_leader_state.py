"""Leader state: ISR expansion and shrinking, the high watermark, and acks=all."""

from __future__ import annotations

from dataclasses import replace
from uuid import UUID

import pytest

from odradek.protocol.errors import ErrorCode
from odradek.replication.controller.image import BrokerImage, PartitionImage
from odradek.replication.errors import (
    NotEnoughReplicas,
    NotEnoughReplicasAfterAppend,
    NotLeader,
    UnknownLeaderEpoch,
)
from odradek.replication.partition.isr_state import CommittedIsr, IsrProposal
from odradek.replication.partition.leader_state import (
    AdvanceHighWatermark,
    AlterPartition,
    BeginEpoch,
    LeaderAction,
    LeaderState,
)
from tests.replication.partition.memory_log import MemoryLog
from tests.support.controller_stub import Controller

LAG_MAX_MS = 100


class Stand:
    """Node 1 leads epoch 5 of replicas 1, 2 and 3; its log has four records of earlier epochs."""

    def __init__(self, isr: tuple[int, ...] = (1, 2, 3), *, min_isr: int = 1) -> None:
        self.log = MemoryLog(min_isr)
        self.log.write(0, "a", "b", "c", "d")
        controller = Controller()
        self.brokers: dict[int, BrokerImage | None] = dict(controller.brokers)
        self.image: PartitionImage = replace(
            controller.partition, isr=isr, leader_epoch=5, partition_epoch=10
        )
        self.leader = LeaderState(1, self.log, self.brokers.get, lag_max_ms=LAG_MAX_MS)
        self.first = self.do(self.leader.adopt(self.image, 0))

    def do(self, actions: object) -> list[LeaderAction]:
        done: list[LeaderAction] = list(actions)  # type: ignore[call-overload]
        for action in done:
            if isinstance(action, AdvanceHighWatermark):
                assert action.offset > self.log.high_watermark
                self.log.high_watermark = action.offset
        return done

    def write(self, count: int = 1, now_ms: int = 0) -> list[LeaderAction]:
        self.log.write(5, *("x" * count))
        return self.do(self.leader.appended(now_ms))

    def fetch(self, node: int, offset: int, now_ms: int = 0, epoch: int = 1) -> list[LeaderAction]:
        fetched = self.leader.fetched(
            node, offset=offset, start_offset=0, broker_epoch=epoch, now_ms=now_ms
        )
        return self.do(fetched)


def _last_request(actions: list[LeaderAction]) -> AlterPartition | None:
    return next((each for each in actions if isinstance(each, AlterPartition)), None)


def test_leader_epoch_begins_at_log_end_offset() -> None:
    assert Stand().first == [BeginEpoch(5, 4)]


def test_sole_isr_member_advances_high_watermark_on_append() -> None:
    stand = Stand((1,))
    assert stand.first == [BeginEpoch(5, 4), AdvanceHighWatermark(4)]
    assert stand.write(now_ms=LAG_MAX_MS + 1) == [AdvanceHighWatermark(5)]


def test_high_watermark_is_minimum_of_isr() -> None:
    stand = Stand()
    assert stand.fetch(2, 4) == []
    assert stand.fetch(3, 3) == [AdvanceHighWatermark(3)]
    assert stand.fetch(3, 4) == [AdvanceHighWatermark(4)]
    # It restarted with fewer records; the high watermark does not decrease
    assert stand.fetch(3, 2) == []


def test_high_watermark_under_min_isr_does_not_advance() -> None:
    stand = Stand((1,), min_isr=2)
    assert stand.first == [BeginEpoch(5, 4)]
    assert stand.write() == []
    with pytest.raises(NotEnoughReplicas):
        stand.leader.check_append()
    asked = _last_request(stand.fetch(2, 5))
    assert asked is not None
    with pytest.raises(NotEnoughReplicas):
        stand.leader.check_append()  # eligible, but not in the ISR
    response = CommittedIsr(frozenset({1, 2}), 5, 11)
    assert stand.do(stand.leader.altered(asked.proposal, response, 0)) == [AdvanceHighWatermark(5)]
    stand.leader.check_append()


def test_min_isr_is_limited_by_replica_count() -> None:
    stand = Stand(min_isr=5)
    stand.leader.check_append()
    assert not stand.leader.is_under_min_isr


def test_is_replicated_follows_high_watermark_and_min_isr() -> None:
    stand = Stand((1, 2), min_isr=2)
    assert not stand.leader.is_replicated(4)
    stand.fetch(2, 4)
    assert stand.leader.is_replicated(4)
    shrunk = replace(stand.image, isr=(1,), partition_epoch=11)
    stand.do(stand.leader.adopt(shrunk, 0))
    with pytest.raises(NotEnoughReplicasAfterAppend):
        stand.leader.is_replicated(4)
    assert not stand.leader.is_replicated(5)


@pytest.mark.parametrize(
    ("offset", "joins"), [(4, True), (3, False)], ids=["has all", "lacks what was before the epoch"]
)
def test_expansion_requires_records_before_leader_epoch(offset: int, joins: bool) -> None:
    asked = _last_request(Stand((1, 2)).fetch(3, offset))
    assert (asked is not None) == joins


def test_expansion_requires_records_below_high_watermark() -> None:
    stand = Stand((1, 2))
    stand.write(3)
    stand.fetch(2, 6)
    assert stand.log.high_watermark == 6
    assert _last_request(stand.fetch(3, 5)) is None
    asked = _last_request(stand.fetch(3, 6))
    assert asked is not None
    assert asked.isr == ((1, 1), (2, 1), (3, 1))
    assert asked.proposal == IsrProposal(frozenset({1, 2, 3}), 5, 10)


def test_member_without_fetch_is_proposed_without_broker_epoch() -> None:
    asked = _last_request(Stand((1, 2)).fetch(3, 4))
    assert asked is not None
    assert asked.isr == ((1, 1), (2, -1), (3, 1))


@pytest.mark.parametrize("state", ["fenced", "in_controlled_shutdown", "gone", "restarted"])
def test_ineligible_follower_is_not_proposed(state: str) -> None:
    stand = Stand((1, 2))
    broker = stand.brokers[3]
    assert broker is not None
    if state == "gone":
        stand.brokers[3] = None
    elif state == "restarted":
        stand.brokers[3] = replace(broker, epoch=2, fenced=True)
    else:
        stand.brokers[3] = replace(broker, **{state: True})
    assert _last_request(stand.fetch(3, 4)) is None


def test_fetch_with_old_broker_epoch_is_rejected() -> None:
    stand = Stand((1, 2))
    broker = stand.brokers[3]
    assert broker is not None
    stand.brokers[3] = replace(broker, epoch=2)
    with pytest.raises(NotLeader):
        stand.fetch(3, 4)
    assert stand.leader.followers[3].end_offset == -1
    assert _last_request(stand.fetch(3, 4, epoch=2)) is not None
    # No broker epoch (before KIP-903)
    assert _last_request(Stand((1, 2)).fetch(3, 4, epoch=-1)) is not None


def test_fetch_with_newer_broker_epoch_waits_for_image() -> None:
    stand = Stand((1, 2))
    assert _last_request(stand.fetch(3, 4, epoch=2)) is None


def test_fetch_of_unknown_replica_is_rejected() -> None:
    with pytest.raises(UnknownLeaderEpoch):
        Stand().fetch(9, 4)


def test_lagging_follower_is_removed_from_isr() -> None:
    stand = Stand()
    stand.write(2, 10)
    stand.fetch(2, 6, 50)
    assert stand.do(stand.leader.tick(100)) == []
    asked = _last_request(stand.do(stand.leader.tick(101)))
    assert asked is not None
    assert asked.proposal.isr == {1, 2}
    assert stand.log.high_watermark == 0  # in sync until the controller has removed it
    response = CommittedIsr(frozenset({1, 2}), 5, 11)
    assert stand.do(stand.leader.altered(asked.proposal, response, 101)) == [
        AdvanceHighWatermark(6)
    ]


def test_follower_with_lower_fetch_offset_loses_caught_up_time() -> None:
    """With an empty disk it would delay producers until it has copied the log."""
    stand = Stand()
    stand.fetch(2, 4, 1)
    stand.fetch(3, 4, 1)
    stand.do(stand.leader.adopt(replace(stand.image, isr=(1, 2), partition_epoch=11), 2))
    stand.fetch(3, 0, 3)
    stand.write(1, 4)
    assert stand.fetch(2, 5, 5) == [AdvanceHighWatermark(5)]
    stand.fetch(3, 2, 6)
    stand.write(1, 7)
    assert stand.fetch(2, 6, 8) == [AdvanceHighWatermark(6)]
    stand.fetch(3, 5, 9)  # everything up to its last fetch
    stand.write(1, 10)
    assert stand.fetch(2, 7, 11) == []
    joining = _last_request(stand.fetch(3, 7, 12))
    assert joining is not None
    assert joining.proposal.isr == {1, 2, 3}


def test_follower_at_log_end_is_not_lagging() -> None:
    stand = Stand()
    stand.fetch(2, 4, 1)
    stand.fetch(3, 4, 1)
    assert stand.do(stand.leader.tick(10_000)) == []


def test_follower_one_fetch_behind_is_not_lagging() -> None:
    stand = Stand((1, 2))
    for now_ms in range(0, 1000, 50):
        stand.write(1, now_ms)
        stand.fetch(2, stand.log.end_offset - 1, now_ms)
    assert stand.leader.out_of_sync(1000) == frozenset()


def test_pending_proposal_blocks_further_proposals() -> None:
    stand = Stand((1, 2))
    asked = _last_request(stand.fetch(3, 4))
    assert asked is not None
    assert _last_request(stand.do(stand.leader.tick(1000))) is None
    again = stand.do(stand.leader.altered(asked.proposal, ErrorCode.request_timed_out, 1000))
    assert again == [asked]
    refused = stand.leader.altered(asked.proposal, ErrorCode.ineligible_replica, 1000)
    assert _last_request(stand.do(refused)) is None
    shrunk = _last_request(stand.do(stand.leader.tick(1001)))
    assert shrunk is not None
    assert shrunk.proposal.isr == {1}


def test_joining_follower_limits_high_watermark() -> None:
    """Otherwise the high watermark would always be ahead of it."""
    stand = Stand((1,))
    stand.fetch(2, 4, 0)
    stand.write(1, 10)
    assert stand.log.high_watermark == 4
    assert stand.do(stand.leader.tick(LAG_MAX_MS + 1)) == []  # proposed, so possibly in the ISR
    other = Stand((1,))
    broker = other.brokers[2]
    assert broker is not None
    other.fetch(2, 3, 0)
    other.brokers[2] = replace(broker, fenced=True)
    assert other.write(1, 10) == [AdvanceHighWatermark(5)]


def test_lagging_follower_no_longer_limits_high_watermark() -> None:
    stand = Stand((1,))
    stand.log.high_watermark = 0
    asked = _last_request(stand.fetch(2, 4, 0))
    assert asked is not None
    stand.leader.altered(asked.proposal, ErrorCode.ineligible_replica, 0)
    assert stand.write(2, 10) == []
    assert stand.do(stand.leader.tick(LAG_MAX_MS)) == []
    assert stand.do(stand.leader.tick(LAG_MAX_MS + 1)) == [AdvanceHighWatermark(6)]


def test_reelected_leader_keeps_follower_offsets() -> None:
    stand = Stand()
    stand.fetch(2, 4)
    stand.fetch(3, 4)
    stand.write(2)
    again = replace(stand.image, leader_epoch=6, partition_epoch=11)
    assert stand.do(stand.leader.adopt(again, 500)) == [BeginEpoch(6, 6)]
    assert stand.leader.followers[2].end_offset == 4
    assert stand.leader.out_of_sync(600) == frozenset()
    assert stand.leader.out_of_sync(601) == {2, 3}


def test_older_image_is_ignored() -> None:
    stand = Stand()
    behind = replace(stand.image, isr=(1,), partition_epoch=9)
    assert stand.do(stand.leader.adopt(behind, 0)) == []
    assert stand.leader.isr.committed == {1, 2, 3}


def test_removed_replica_is_forgotten() -> None:
    stand = Stand((1, 2))
    fewer = replace(
        stand.image, replicas=(1, 2), directories=(UUID(int=500),) * 2, partition_epoch=11
    )
    stand.leader.adopt(fewer, 0)
    assert set(stand.leader.followers) == {2}
    with pytest.raises(UnknownLeaderEpoch):
        stand.leader.check_fetch(3, 1)


def test_low_watermark_ignores_fenced_replicas() -> None:
    stand = Stand()
    stand.log.start_offset = 3
    assert stand.leader.low_watermark() == -1
    leader = stand.leader
    leader.fetched(2, offset=4, start_offset=2, broker_epoch=1, now_ms=0)
    assert leader.low_watermark() == -1
    broker = stand.brokers[3]
    assert broker is not None
    stand.brokers[3] = replace(broker, fenced=True)
    assert leader.low_watermark() == 2
    leader.fetched(2, offset=4, start_offset=3, broker_epoch=1, now_ms=0)
    assert leader.low_watermark() == 3
