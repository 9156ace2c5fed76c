"""The driver of the group coordinator: SKELETON of signatures, being filled in."""

from __future__ import annotations

from collections.abc import Sequence
from uuid import UUID

import trio

from odradek.broker.groups.config import GroupConfig
from odradek.broker.groups.store import CoordinatorLog
from odradek.seams.clock import Clock
from odradek.seams.entropy import Entropy


class GroupCoordinator:
    """See the module."""

    def __init__(
        self, log: CoordinatorLog, config: GroupConfig, *, clock: Clock, entropy: Entropy
    ) -> None:
        raise NotImplementedError

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Own the timers, loads and waits until cancelled; started() at once."""
        raise NotImplementedError

    def elected(self, partition: int, leader_epoch: int) -> None:
        """This node leads a partition of `__consumer_offsets`: load it and serve its groups.

        May be called before `run`, which then does the loading. An empty partition is served at
        once, without any waiting. Repeated for the same leadership it does nothing.
        """
        raise NotImplementedError

    def resigned(self, partition: int) -> None:
        """This node leads it no more: everyone who waits is told NOT_COORDINATOR."""
        raise NotImplementedError

    def topics_deleted(self, topics: Sequence[tuple[str, UUID]]) -> None:
        """Forget the offsets committed for topics (name, id) that were deleted."""
        raise NotImplementedError

    def partition_for(self, group_id: str) -> int:
        """The partition whose leader coordinates the group. Needs the topic to exist."""
        raise NotImplementedError
