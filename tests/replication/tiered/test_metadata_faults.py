"""Managers of remote log metadata while nodes fail and restart (T-25, T-49).

No acknowledged event is lost, and all nodes have the same metadata at the end.
"""

from __future__ import annotations

import random
from uuid import UUID

import pytest
import trio

from odradek.storage.tiered.errors import RemoteStorageError
from odradek.storage.tiered.segment_metadata import (
    EpochStart,
    RemoteLogSegmentId,
    RemoteLogSegmentMetadata,
    RemoteLogSegmentMetadataUpdate,
    SegmentState,
    TopicIdPartition,
)
from tests.support.remote_log_metadata import MetadataWorld, run

PARTITIONS = [TopicIdPartition(UUID(int=number), f"topic{number}", 0) for number in range(1, 5)]
FINISHED = SegmentState.COPY_SEGMENT_FINISHED
ROUNDS = 4


class Writer:
    """Publishes segments of one partition through a running node, and records acknowledged events."""

    def __init__(self, world: MetadataWorld, partition: TopicIdPartition, seed: int) -> None:
        self._world = world
        self._partition = partition
        self._source = random.Random(seed)
        self.acknowledged: dict[UUID, SegmentState] = {}

    async def run(self) -> None:
        number = 0
        while True:
            await trio.sleep(self._source.uniform(0.01, 0.3))
            if self._world.running:
                number += 1
                by = self._source.choice(sorted(self._world.running))
                # A call to a manager whose node was killed does not return.
                with trio.move_on_after(15):
                    await self._copy(by, number)

    async def _copy(self, by: int, number: int) -> None:
        manager = self._world.manager(by)
        start, now_ms = 10 * number, self._world.world.clock.wall_ms()
        id = RemoteLogSegmentId(self._partition, UUID(int=number))
        epochs = (EpochStart(0, start),)
        made = RemoteLogSegmentMetadata(id, start, start + 9, by, now_ms, now_ms, epochs, 100)
        try:
            await manager.wait_ready(self._partition)
            await manager.add_segment(made)
            self.acknowledged[id.id] = SegmentState.COPY_SEGMENT_STARTED
            await manager.update_segment(RemoteLogSegmentMetadataUpdate(id, by, now_ms, FINISHED))
            self.acknowledged[id.id] = FINISHED
        except RemoteStorageError:
            return


def announce(world: MetadataWorld, number: int) -> None:
    world.manager(number).partitions_changed(PARTITIONS, [])


@pytest.mark.parametrize("seed", range(2))
def test_acknowledged_events_survive_node_failures(seed: int) -> None:
    async def main(world: MetadataWorld) -> None:
        source = random.Random(seed)
        for number in (1, 2, 3):
            announce(world, number)
        writers = [Writer(world, each, seed) for each in PARTITIONS]
        async with trio.open_nursery() as writing:
            for writer in writers:
                writing.start_soon(writer.run)
            for _ in range(ROUNDS):
                await trio.sleep(source.uniform(0.2, 4))
                victim = source.choice([1, 2, 3])
                if source.random() < 0.2:
                    await world.stop(victim)
                else:
                    await world.kill(victim)
                await trio.sleep(source.uniform(0, 3))
                await world.start(victim)
                announce(world, victim)
            writing.cancel_scope.cancel()
        views = []
        for number in (1, 2, 3):
            manager = world.manager(number)
            for each in PARTITIONS:
                await manager.wait_ready(each)
        await trio.sleep(5)  # until pending records have arrived
        for number in (1, 2, 3):
            manager = world.manager(number)
            views.append({each: list(manager.segments(each)) for each in PARTITIONS})
        assert views[0] == views[1] == views[2]
        for writer, partition in zip(writers, PARTITIONS, strict=True):
            known = {each.id.id: each.state for each in views[0][partition]}
            assert len(writer.acknowledged) > 3
            for id, state in writer.acknowledged.items():
                assert known[id] >= state

    run(main, 3, seed=seed, limit_s=600)
