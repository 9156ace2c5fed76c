"""Partition table with a log manager, and the metadata image that it applies."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import trio

from odradek.broker.replicas.partition_table import (
    PartitionTable,
)
from odradek.protocol.schemas.topic_records import (
    PartitionChangeRecord,
    PartitionRecord,
    RemoveTopicRecord,
    TopicRecord,
)
from odradek.replication.controller.image import MetadataImage
from odradek.replication.controller.image_builder import apply_records
from odradek.storage.log_manager.log_manager import LogManager
from odradek.testing.virtual_clock import VirtualClock
from tests.support.log_managers import UUID, LogManagerWorld

NODE = 1


class Cluster:
    """Metadata image, and the partition table that applies its changes."""

    def __init__(self, logs: LogManager) -> None:
        self.image = MetadataImage()
        self.table = PartitionTable(logs, lambda: self.image, NODE)

    def create(self, topic: str, id: UUID) -> None:
        self._apply(
            TopicRecord(name=topic, topic_id=id),
            PartitionRecord(
                partition_id=0,
                topic_id=id,
                replicas=(NODE,),
                isr=(NODE,),
                removing_replicas=(),
                adding_replicas=(),
                leader=NODE,
                leader_epoch=3,
                partition_epoch=0,
            ),
        )

    def give_to_another(self, id: UUID) -> None:
        change = PartitionChangeRecord(
            partition_id=0, topic_id=id, replicas=(NODE + 1,), isr=(NODE + 1,), leader=NODE + 1
        )
        self._apply(change)

    def give_back(self, id: UUID) -> None:
        change = PartitionChangeRecord(
            partition_id=0, topic_id=id, replicas=(NODE + 1, NODE), isr=(NODE + 1,)
        )
        self._apply(change)

    def delete(self, id: UUID) -> None:
        self._apply(RemoveTopicRecord(topic_id=id))

    def _apply(self, *records: object) -> None:
        delta = apply_records(self.image, records, offset=self.image.offset + 1)
        self.image = delta.image
        self.table.metadata_changed(delta)


@asynccontextmanager
async def running(
    clock: VirtualClock, world: LogManagerWorld | None = None
) -> AsyncIterator[tuple[Cluster, LogManager]]:
    world = LogManagerWorld(clock=clock) if world is None else world
    async with world.running() as logs, trio.open_nursery() as nursery:
        cluster = Cluster(logs)
        await nursery.start(cluster.table.run)
        yield cluster, logs
        nursery.cancel_scope.cancel()
