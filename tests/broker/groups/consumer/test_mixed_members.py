"""Tests of consumer groups with classic members: upgrade, downgrade and assignment."""

from __future__ import annotations

from odradek.broker.groups.classic_group import ClassicGroup
from odradek.broker.groups.config import (
    ConsumerGroupConfig,
    ConsumerGroupMigrationPolicy,
    GroupConfig,
)
from odradek.broker.groups.consumer.consumer_group import ConsumerGroup
from odradek.protocol.errors import ErrorCode
from odradek.protocol.schemas import consumer_protocol
from tests.broker.groups.consumer.consumer_group_driver import ConsumerStage
from tests.broker.groups.group_shard_driver import GROUP


def test_invalid_metadata_of_second_protocol_does_not_prevent_downgrade() -> None:
    stage = ConsumerStage(settings=ConsumerGroupConfig(assignment_interval_ms=0))
    stage.set_topic("t", 2)
    stage.join_new("A")
    stage.consumer("B").metadata = {"mine": b""}
    stage.join("B", version=3, protocols=("range", "mine"))
    stage.join("C", version=3, protocols=("mine",))
    stage.leave_new("A")
    group = stage.shard.groups[GROUP]
    assert isinstance(group, ClassicGroup)
    assert group.protocol == "mine"
    for member in group.members.by_id.values():
        consumer_protocol.read_assignment(member.assignment)


def test_classic_members_alone_get_partitions_of_removed_member() -> None:
    """If a downgrade is not allowed, no heartbeat of the consumer protocol computes a new target."""
    config = GroupConfig(migration_policy=ConsumerGroupMigrationPolicy.UPGRADE)
    stage = ConsumerStage(config, ConsumerGroupConfig(assignment_interval_ms=0))
    stage.set_topic("t", 3)
    stage.join_new("A")
    for name in "BC":
        stage.join(name, version=3)
        stage.sync(name)
    stage.beat("A")
    settle(stage, "BC")
    stage.beat("A")
    settle(stage, "BC")
    assert stage.consumer_group.state_name == "Stable"
    stage.leave_new("A")
    stage.leaves("C")
    assert isinstance(stage.shard.groups[GROUP], ConsumerGroup)
    settle(stage, "B")
    assert stage.consumer("B").owned == {"t": (0, 1, 2)}


def settle(stage: ConsumerStage, members: str) -> None:
    """Let classic members rejoin while Heartbeat returns REBALANCE_IN_PROGRESS."""
    for _ in range(5):
        for name in members:
            if stage.heartbeat(name).response.error is ErrorCode.rebalance_in_progress:
                stage.join(name)
                stage.sync(name)
    assert all(stage.heartbeat(name).response.error is ErrorCode.none for name in members)


def test_upgrade_of_group_with_doubly_assigned_partition_fails() -> None:
    """A client-side assignor may assign a partition twice; in a consumer group it has one owner."""
    stage = ConsumerStage(GroupConfig(initial_rebalance_delay_ms=10))
    stage.set_topic("t", 2)
    for name in "BC":
        stage.join(name, version=3)
    stage.advance(20)
    stage.sync("C")
    b, c = (stage.client(name).member_id for name in "BC")
    stage.sync_with("B", **{b: {"t": (0, 1)}, c: {"t": (1,)}})
    assert stage.join_new("A").response.error is ErrorCode.group_id_not_found
    assert isinstance(stage.shard.groups[GROUP], ClassicGroup)
    assert [stage.heartbeat(name).response.error for name in "BC"] == [ErrorCode.none] * 2
