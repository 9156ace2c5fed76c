"""Failed appends leave a consumer group unchanged, and requests and timeouts are not lost."""

from __future__ import annotations

import pytest

from odradek.broker.groups.config import ConsumerGroupConfig, GroupConfig
from odradek.broker.groups.consumer.consumer_group import ConsumerGroup
from odradek.broker.groups.consumer.member import MemberState
from odradek.protocol.errors import ErrorCode
from tests.broker.groups.consumer.consumer_group_driver import ConsumerStage
from tests.broker.groups.group_shard_driver import GROUP

NOW = ConsumerGroupConfig(assignment_interval_ms=0)


@pytest.mark.parametrize("fields", [{"version": 3}, {"instance_id": "i"}], ids=["old", "static"])
def test_failed_conversion_of_empty_consumer_group_fails_join(
    fields: dict[str, object],
) -> None:
    stage = ConsumerStage(GroupConfig(initial_rebalance_delay_ms=3000), NOW)
    stage.join_new("A")
    stage.leave_new("A")
    stage.fail_with = ErrorCode.coordinator_not_available
    stage.consumer("B")
    joined = stage.join("B", **fields)
    assert [each.error for each in joined.responses] == [ErrorCode.coordinator_not_available]
    assert isinstance(stage.shard.groups[GROUP], ConsumerGroup)
    stage.advance(3000)


def test_failed_removal_after_revocation_timeout_is_retried() -> None:
    stage = ConsumerStage(settings=NOW)
    stage.set_topic("t", 2)
    stage.join_new("A", rebalance_timeout_ms=6000)
    stage.beat("A")
    stage.join_new("B")
    stage.beat("A", reconciles=False)
    late = stage.client("A").member_id
    states = {each.member_id: each.state for each in stage.consumer_group.state.members.values()}
    assert states[late] is MemberState.UNREVOKED_PARTITIONS
    stage.advance(5999)
    stage.fail_with = ErrorCode.coordinator_not_available
    stage.advance(1)
    assert stage.fail_with is None
    assert late in stage.consumer_group.state.members
    stage.beat("A", reconciles=False)  # heartbeats extend the session, not the revocation timeout
    stage.advance(1000)
    assert late not in stage.consumer_group.state.members


def test_member_that_rejoins_before_its_removal_is_committed_stays() -> None:
    stage = ConsumerStage(settings=NOW)
    stage.join_new("A")
    stage.holding = True
    stage.advance(45_000)
    assert not stage.consumer_group.state.members
    stage.join_new("A")
    stage.holding = False
    stage.release(code=ErrorCode.coordinator_not_available)
    stage.advance(5000)
    assert list(stage.consumer_group.state.members) == [stage.client("A").member_id]
