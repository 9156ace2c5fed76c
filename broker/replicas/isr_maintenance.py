"""ISR maintenance: one task checks all partitions that this node leads.

`LeaderState` in `replication/partition/leader_state.py` decides which replicas leave and join the ISR.

Every half replica.lag.time.max.ms it removes lagging replicas from the ISR and advances high
watermarks that waited for them. After a change of brokers (fenced, unfenced, in controlled
shutdown) it checks the high watermarks again. Proposals go to the controller through
`AlterPartitionManager`. Nothing of this runs before the node leads a partition with other replicas.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import cached_property
from typing import TYPE_CHECKING

import trio

from odradek.replication.controller.image import BrokerImage
from odradek.replication.partition.partition import Partition
from odradek.seams.containment import STARTED_AGAIN, Containment

if TYPE_CHECKING:
    from odradek.broker.replicas.alter_partition_manager import AlterPartitionManager
    from odradek.replication.partition.leader_role import ClusterContext, LeaderRole
    from odradek.storage.errors import DiskFull
    from odradek.storage.log.partition_log import PartitionLog

PARTITIONS_PER_STEP = 100
"""Partitions checked, about 5 µs each, before other tasks run."""


class IsrMaintenance:
    """Periodic checks of the ISR. `run` must be running.

    `alter_partition_manager` is called once, for the first partition that needs the AlterPartitionManager.
    """

    def __init__(
        self,
        partitions: Callable[[], Iterable[Partition]],
        brokers: Callable[[int], BrokerImage | None],
        alter_partition_manager: Callable[[], AlterPartitionManager],
        disk_full: Callable[[PartitionLog, DiskFull], None],
        *,
        lag_max_ms: int,
    ) -> None:
        self._partitions = partitions
        self._brokers = brokers
        self._new_alter_partition_manager = alter_partition_manager
        self._disk_full = disk_full
        self._lag_max_ms = lag_max_ms
        self._needed = trio.Event()
        self._brokers_changed = trio.Event()
        self._tasks: Containment[str] = Containment("a task", consequence=STARTED_AGAIN)
        self._containment: Containment[Partition] = Containment(
            "ISR maintenance",
            name=lambda partition: f"{partition.topic}-{partition.index}",
            consequence="the ISR of the partition is checked again in the next round",
        )

    @cached_property
    def _alter_partition_manager(self) -> AlterPartitionManager:
        return self._new_alter_partition_manager()

    @cached_property
    def _cluster_context(self) -> ClusterContext:
        from odradek.replication.partition.leader_role import ClusterContext

        manager = self._alter_partition_manager
        return ClusterContext(
            self._brokers, self._lag_max_ms, manager.propose, self._disk_full, manager.isr_updated
        )

    def cluster_context(self) -> ClusterContext:
        """Return the context for a partition that this node leads with other replicas."""
        self._needed.set()
        return self._cluster_context

    def brokers_changed(self) -> None:
        """Check all partitions after the registration of a broker has changed."""
        self._brokers_changed.set()

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        task_status.started()
        await self._needed.wait()
        async with trio.open_nursery() as nursery:
            await nursery.start(self._alter_partition_manager.run)
            for task in (self._tick, self._follow_brokers):
                nursery.start_soon(self._tasks.keep_running, "ISR maintenance", task)

    async def _tick(self) -> None:
        while True:
            await trio.sleep(self._lag_max_ms / 2000)
            await self._each(lambda leader_role: leader_role.tick())

    async def _follow_brokers(self) -> None:
        while True:
            await self._brokers_changed.wait()
            self._brokers_changed = trio.Event()
            await self._each(lambda leader_role: leader_role.brokers_changed())

    async def _each(self, look_at: Callable[[LeaderRole], None]) -> None:
        """Call `look_at` for every led partition, with checkpoints in between."""
        number = 0
        for partition in self._partitions():
            if partition.leader_role is not None:
                self._containment.call(partition, look_at, partition.leader_role)
                number += 1
                if number % PARTITIONS_PER_STEP == 0:
                    await trio.lowlevel.checkpoint()
