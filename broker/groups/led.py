"""A partition that the coordinator leads, and what it counts."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

from odradek.broker.coordination.coordinator_runtime import CoordinatorContext
from odradek.broker.groups.coordinator_shard import GroupCoordinatorShard
from odradek.broker.groups.messages import AppendCompletion

GroupContext: TypeAlias = CoordinatorContext[GroupCoordinatorShard, AppendCompletion]


@dataclass(slots=True)
class GroupStatistics:
    """Counters since start, under the names of Kafka's sensors."""

    offset_commits: int = 0
    offset_deletions: int = 0
    offset_expirations: int = 0
    completed_rebalances: int = 0
