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


class LeaderScenario:
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
    assert LeaderScenario().first == [BeginEpoch(5, 4)]


def test_sole_isr_member_advances_high_watermark_on_append() -> None:
    scenario = LeaderScenario((1,))
    assert scenario.first == [BeginEpoch(5, 4), AdvanceHighWatermark(4)]
    assert scenario.write(now_ms=LAG_MAX_MS + 1) == [AdvanceHighWatermark(5)]


def test_high_watermark_is_minimum_of_isr() -> None:
    scenario = LeaderScenario()
    assert scenario.fetch(2, 4) == []
    assert scenario.fetch(3, 3) == [AdvanceHighWatermark(3)]
    assert scenario.fetch(3, 4) == [AdvanceHighWatermark(4)]
    # It restarted with fewer records; the high watermark does not decrease
    assert scenario.fetch(3, 2) == []


def test_high_watermark_under_min_isr_does_not_advance() -> None:
    scenario = LeaderScenario((1,), min_isr=2)
    assert scenario.first == [BeginEpoch(5, 4)]
    assert scenario.write() == []
    with pytest.raises(NotEnoughReplicas):
        scenario.leader.check_append()
    asked = _last_request(scenario.fetch(2, 5))
    assert asked is not None
    with pytest.raises(NotEnoughReplicas):
        scenario.leader.check_append()  # eligible, but not in the ISR
    response = CommittedIsr(frozenset({1, 2}), 5, 11)
    assert scenario.do(scenario.leader.altered(asked.proposal, response, 0)) == [
        AdvanceHighWatermark(5)
    ]
    scenario.leader.check_append()


def test_min_isr_is_limited_by_replica_count() -> None:
    scenario = LeaderScenario(min_isr=5)
    scenario.leader.check_append()
    assert not scenario.leader.is_under_min_isr


def test_is_replicated_follows_high_watermark_and_min_isr() -> None:
    scenario = LeaderScenario((1, 2), min_isr=2)
    assert not scenario.leader.is_replicated(4)
    scenario.fetch(2, 4)
    assert scenario.leader.is_replicated(4)
    shrunk = replace(scenario.image, isr=(1,), partition_epoch=11)
    scenario.do(scenario.leader.adopt(shrunk, 0))
    with pytest.raises(NotEnoughReplicasAfterAppend):
        scenario.leader.is_replicated(4)
    assert not scenario.leader.is_replicated(5)


@pytest.mark.parametrize(
    ("offset", "joins"), [(4, True), (3, False)], ids=["has all", "lacks what was before the epoch"]
)
def test_expansion_requires_records_before_leader_epoch(offset: int, joins: bool) -> None:
    asked = _last_request(LeaderScenario((1, 2)).fetch(3, offset))
    assert (asked is not None) == joins


def test_expansion_requires_records_below_high_watermark() -> None:
    scenario = LeaderScenario((1, 2))
    scenario.write(3)
    scenario.fetch(2, 6)
    assert scenario.log.high_watermark == 6
    assert _last_request(scenario.fetch(3, 5)) is None
    asked = _last_request(scenario.fetch(3, 6))
    assert asked is not None
    assert asked.isr == ((1, 1), (2, 1), (3, 1))
    assert asked.proposal == IsrProposal(frozenset({1, 2, 3}), 5, 10)


def test_member_without_fetch_is_proposed_without_broker_epoch() -> None:
    asked = _last_request(LeaderScenario((1, 2)).fetch(3, 4))
    assert asked is not None
    assert asked.isr == ((1, 1), (2, -1), (3, 1))


@pytest.mark.parametrize("state", ["fenced", "in_controlled_shutdown", "gone", "restarted"])
def test_ineligible_follower_is_not_proposed(state: str) -> None:
    scenario = LeaderScenario((1, 2))
    broker = scenario.brokers[3]
    assert broker is not None
    if state == "gone":
        scenario.brokers[3] = None
    elif state == "restarted":
        scenario.brokers[3] = replace(broker, epoch=2, fenced=True)
    else:
        scenario.brokers[3] = replace(broker, **{state: True})
    assert _last_request(scenario.fetch(3, 4)) is None


def test_fetch_with_old_broker_epoch_is_rejected() -> None:
    scenario = LeaderScenario((1, 2))
    broker = scenario.brokers[3]
    assert broker is not None
    scenario.brokers[3] = replace(broker, epoch=2)
    with pytest.raises(NotLeader):
        scenario.fetch(3, 4)
    assert scenario.leader.followers[3].end_offset == -1
    assert _last_request(scenario.fetch(3, 4, epoch=2)) is not None
    # No broker epoch (before KIP-903)
    assert _last_request(LeaderScenario((1, 2)).fetch(3, 4, epoch=-1)) is not None


def test_fetch_with_newer_broker_epoch_waits_for_image() -> None:
    scenario = LeaderScenario((1, 2))
    assert _last_request(scenario.fetch(3, 4, epoch=2)) is None


def test_fetch_of_unknown_replica_is_rejected() -> None:
    with pytest.raises(UnknownLeaderEpoch):
        LeaderScenario().fetch(9, 4)


def test_lagging_follower_is_removed_from_isr() -> None:
    scenario = LeaderScenario()
    scenario.write(2, 10)
    scenario.fetch(2, 6, 50)
    assert scenario.do(scenario.leader.tick(100)) == []
    asked = _last_request(scenario.do(scenario.leader.tick(101)))
    assert asked is not None
    assert asked.proposal.isr == {1, 2}
    assert scenario.log.high_watermark == 0  # in sync until the controller has removed it
    response = CommittedIsr(frozenset({1, 2}), 5, 11)
    assert scenario.do(scenario.leader.altered(asked.proposal, response, 101)) == [
        AdvanceHighWatermark(6)
    ]


def test_follower_with_lower_fetch_offset_loses_caught_up_time() -> None:
    """With an empty disk it would delay producers until it has copied the log."""
    scenario = LeaderScenario()
    scenario.fetch(2, 4, 1)
    scenario.fetch(3, 4, 1)
    scenario.do(scenario.leader.adopt(replace(scenario.image, isr=(1, 2), partition_epoch=11), 2))
    scenario.fetch(3, 0, 3)
    scenario.write(1, 4)
    assert scenario.fetch(2, 5, 5) == [AdvanceHighWatermark(5)]
    scenario.fetch(3, 2, 6)
    scenario.write(1, 7)
    assert scenario.fetch(2, 6, 8) == [AdvanceHighWatermark(6)]
    scenario.fetch(3, 5, 9)  # everything up to its last fetch
    scenario.write(1, 10)
    assert scenario.fetch(2, 7, 11) == []
    joining = _last_request(scenario.fetch(3, 7, 12))
    assert joining is not None
    assert joining.proposal.isr == {1, 2, 3}


def test_follower_at_log_end_is_not_lagging() -> None:
    scenario = LeaderScenario()
    scenario.fetch(2, 4, 1)
    scenario.fetch(3, 4, 1)
    assert scenario.do(scenario.leader.tick(10_000)) == []


def test_follower_one_fetch_behind_is_not_lagging() -> None:
    scenario = LeaderScenario((1, 2))
    for now_ms in range(0, 1000, 50):
        scenario.write(1, now_ms)
        scenario.fetch(2, scenario.log.end_offset - 1, now_ms)
    assert scenario.leader.out_of_sync(1000) == frozenset()


def test_pending_proposal_blocks_further_proposals() -> None:
    scenario = LeaderScenario((1, 2))
    asked = _last_request(scenario.fetch(3, 4))
    assert asked is not None
    assert _last_request(scenario.do(scenario.leader.tick(1000))) is None
    again = scenario.do(scenario.leader.altered(asked.proposal, ErrorCode.request_timed_out, 1000))
    assert again == [asked]
    refused = scenario.leader.altered(asked.proposal, ErrorCode.ineligible_replica, 1000)
    assert _last_request(scenario.do(refused)) is None
    shrunk = _last_request(scenario.do(scenario.leader.tick(1001)))
    assert shrunk is not None
    assert shrunk.proposal.isr == {1}


def test_joining_follower_limits_high_watermark() -> None:
    """Otherwise the high watermark would always be ahead of it."""
    scenario = LeaderScenario((1,))
    scenario.fetch(2, 4, 0)
    scenario.write(1, 10)
    assert scenario.log.high_watermark == 4
    assert (
        scenario.do(scenario.leader.tick(LAG_MAX_MS + 1)) == []
    )  # proposed, so possibly in the ISR
    other = LeaderScenario((1,))
    broker = other.brokers[2]
    assert broker is not None
    other.fetch(2, 3, 0)
    other.brokers[2] = replace(broker, fenced=True)
    assert other.write(1, 10) == [AdvanceHighWatermark(5)]


def test_lagging_follower_no_longer_limits_high_watermark() -> None:
    scenario = LeaderScenario((1,))
    scenario.log.high_watermark = 0
    asked = _last_request(scenario.fetch(2, 4, 0))
    assert asked is not None
    scenario.leader.altered(asked.proposal, ErrorCode.ineligible_replica, 0)
    assert scenario.write(2, 10) == []
    assert scenario.do(scenario.leader.tick(LAG_MAX_MS)) == []
    assert scenario.do(scenario.leader.tick(LAG_MAX_MS + 1)) == [AdvanceHighWatermark(6)]


def test_reelected_leader_keeps_follower_offsets() -> None:
    scenario = LeaderScenario()
    scenario.fetch(2, 4)
    scenario.fetch(3, 4)
    scenario.write(2)
    again = replace(scenario.image, leader_epoch=6, partition_epoch=11)
    assert scenario.do(scenario.leader.adopt(again, 500)) == [BeginEpoch(6, 6)]
    assert scenario.leader.followers[2].end_offset == 4
    assert scenario.leader.out_of_sync(600) == frozenset()
    assert scenario.leader.out_of_sync(601) == {2, 3}


def test_older_image_is_ignored() -> None:
    scenario = LeaderScenario()
    behind = replace(scenario.image, isr=(1,), partition_epoch=9)
    assert scenario.do(scenario.leader.adopt(behind, 0)) == []
    assert scenario.leader.isr.committed == {1, 2, 3}


def test_removed_replica_is_forgotten() -> None:
    scenario = LeaderScenario((1, 2))
    fewer = replace(
        scenario.image, replicas=(1, 2), directories=(UUID(int=500),) * 2, partition_epoch=11
    )
    scenario.leader.adopt(fewer, 0)
    assert set(scenario.leader.followers) == {2}
    with pytest.raises(UnknownLeaderEpoch):
        scenario.leader.check_fetch(3, 1)


def test_low_watermark_ignores_fenced_replicas() -> None:
    scenario = LeaderScenario()
    scenario.log.start_offset = 3
    assert scenario.leader.low_watermark() == -1
    leader = scenario.leader
    leader.fetched(2, offset=4, start_offset=2, broker_epoch=1, now_ms=0)
    assert leader.low_watermark() == -1
    broker = scenario.brokers[3]
    assert broker is not None
    scenario.brokers[3] = replace(broker, fenced=True)
    assert leader.low_watermark() == 2
    leader.fetched(2, offset=4, start_offset=3, broker_epoch=1, now_ms=0)
    assert leader.low_watermark() == 3
