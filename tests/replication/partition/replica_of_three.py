"""Partition of node 1 with three replicas."""

from __future__ import annotations

from dataclasses import replace
from uuid import UUID

from odradek.replication.controller.image import PartitionImage
from odradek.replication.partition.leader_role import ClusterContext, OnAlterPartitionResponse
from odradek.replication.partition.leader_state import AlterPartition
from odradek.replication.partition.partition import Partition
from odradek.storage.errors import DiskFull
from odradek.storage.log.partition_log import PartitionLog
from tests.support.controller_stub import Controller
from tests.support.partition_logs import FOREVER, NOW_MS, TOPIC_ID, LogWorld, batch


class RecordingWatcher:
    """Watcher that records its calls."""

    def __init__(self) -> None:
        self.bytes: list[int] = []
        self.interruptions = 0

    def visible(self, partition: Partition, size_bytes: int) -> None:
        self.bytes.append(size_bytes)

    def interrupted(self, partition: Partition) -> None:
        self.interruptions += 1


class ReplicaOfThree:
    """Node 1 has a replica of three, and leads epoch 5 by default."""

    def __init__(self, *, leader: int = 1, isr: tuple[int, ...] = (1, 2), min_isr: int = 1) -> None:
        controller = Controller()
        self.image = replace(
            controller.partition, leader=leader, isr=isr, leader_epoch=5, partition_epoch=10
        )
        self.world = LogWorld(config=replace(FOREVER, min_insync_replicas=min_isr))
        self.proposed: list[tuple[UUID, int, AlterPartition, OnAlterPartitionResponse]] = []
        self.full: list[tuple[PartitionLog, DiskFull]] = []
        self.isr_changed: list[int | None] = []
        cluster_context = ClusterContext(
            dict(controller.brokers).get,
            lag_max_ms=100,
            propose=lambda *proposal: self.proposed.append(proposal),
            disk_full=lambda *full: self.full.append(full),
            isr_changed=self.isr_changed.append,
        )
        self.partition = Partition(
            self.world.log,
            topic_id=TOPIC_ID,
            node_id=1,
            image=self.image,
            cluster_context=lambda: cluster_context,
        )
        self.described = RecordingWatcher()

    def see(self, **changes: object) -> PartitionImage:
        """Deliver a metadata image."""
        epoch = self.image.partition_epoch + 1
        self.image = replace(self.image, partition_epoch=epoch, **changes)  # type: ignore[arg-type]
        self.partition.update(self.image)
        return self.image

    def append(self, acks: int = 1) -> int:
        return self.partition.append(batch(), acks=acks, now_ms=NOW_MS).last_offset

    def fetch(self, follower: int, offset: int, start_offset: int = 0) -> None:
        assert self.partition.leader_role is not None
        self.partition.leader_role.fetched(
            follower, offset=offset, start_offset=start_offset, broker_epoch=1
        )


def alone(image: PartitionImage) -> dict[str, object]:
    return {"replicas": (1,), "directories": image.directories[:1], "isr": (1,)}
