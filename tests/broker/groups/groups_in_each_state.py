"""Classic groups in every state, for the tests of the state table and of the invariants."""

from __future__ import annotations

from collections.abc import Callable

from odradek.broker.groups.classic_group import ClassicGroup
from odradek.broker.groups.classic_group_states import (
    ClassicGroupState,
)
from odradek.broker.groups.config import GroupConfig
from odradek.protocol.errors import ErrorCode
from tests.broker.groups.group_shard_driver import Stage

CONFIG = GroupConfig(initial_rebalance_delay_ms=0)


def stable() -> Stage:
    """A leader, a follower and a static member, in one generation."""
    stage = Stage(CONFIG)
    for name in ("leader", "follower"):
        stage.joins(name)
    stage.joins("static", instance_id="s")
    stage.joins("leader")
    stage.joins("follower")
    for name in ("follower", "static"):
        stage.sync(name)
    stage.sync("leader", leader=b"a", follower=b"b", static=b"c")
    assert group(stage).state is ClassicGroupState.STABLE
    return stage


def empty() -> Stage:
    stage = stable()
    for name in ("leader", "follower", "static"):
        stage.leaves(name)
    return stage


def preparing() -> Stage:
    stage = stable()
    stage.joins("newcomer")
    return stage


def completing() -> Stage:
    stage = preparing()
    for name in ("leader", "follower", "static"):
        stage.joins(name)
    stage.sync("follower")
    return stage


def dead() -> Stage:
    stage = stable()
    stage.do(group(stage).close(ErrorCode.not_coordinator, stage.now))
    return stage


SCENES: dict[ClassicGroupState, Callable[[], Stage]] = {
    ClassicGroupState.EMPTY: empty,
    ClassicGroupState.PREPARING: preparing,
    ClassicGroupState.COMPLETING: completing,
    ClassicGroupState.STABLE: stable,
    ClassicGroupState.DEAD: dead,
}


def group(stage: Stage) -> ClassicGroup:
    found = stage.group
    assert found is not None
    return found
