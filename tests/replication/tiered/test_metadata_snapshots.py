"""Snapshots of remote log metadata (T-47, T-48): they are consistent after a crash at any time."""

from __future__ import annotations

import random
from contextlib import suppress
from uuid import UUID

import pytest

from odradek.replication.tiered.metadata_snapshots import (
    MetadataSnapshots,
    SubscribedPartition,
    SubscribedPartitions,
    file_name,
)
from odradek.seams.files import Path
from odradek.storage.tiered.errors import RemoteStorageError
from odradek.storage.tiered.metadata_snapshot_file import COMMITTED_OFFSETS, decode_offsets
from odradek.storage.tiered.remote_log_metadata_cache import RemoteLogMetadataCache
from odradek.storage.tiered.segment_metadata import (
    EpochStart,
    RemoteLogSegmentId,
    RemoteLogSegmentMetadata,
    RemoteLogSegmentMetadataUpdate,
    SegmentEvent,
    SegmentState,
    TopicIdPartition,
)
from odradek.testing.power import NodeCrashed
from odradek.testing.virtual_disk import VirtualDisk
from odradek.testing.virtual_world import VirtualNode, VirtualWorld

PARTITIONS = [TopicIdPartition(UUID(int=number), f"topic{number}", 7) for number in range(3)]
DIRECTORY = Path("/data")
PLACE = 4
TOPIC, ANOTHER = UUID(int=100), UUID(int=101)


def apply(metadata: RemoteLogMetadataCache, event: SegmentEvent) -> None:
    with suppress(RemoteStorageError):  # skipped, as by every reader
        metadata.apply(event)


class Node:
    """A node that reads one metadata partition, whose records are `events`."""

    def __init__(
        self, virtual_node: VirtualNode, events: list[SegmentEvent], topic_id: UUID = TOPIC
    ) -> None:
        virtual_node.files.make_directory(DIRECTORY)
        self.events = events
        self.topic_id = topic_id
        self.snapshots = MetadataSnapshots(virtual_node.seams, DIRECTORY)
        self.known: dict[TopicIdPartition, RemoteLogMetadataCache] = {}

    async def follow(self, partition: TopicIdPartition) -> int:
        """Subscribe to a partition, and return the number of records read from the topic."""
        found = await self.snapshots.load(partition, PLACE)
        metadata = RemoteLogMetadataCache(partition) if found is None else found.metadata
        start = 0 if found is None or found.topic_id != self.topic_id else found.offset
        self.known[partition] = metadata
        for event in self.events[start:]:
            self.take(event, partition)
        return len(self.events) - start

    def take(self, event: SegmentEvent, only: TopicIdPartition | None = None) -> None:
        if event.partition in self.known and only in (None, event.partition):
            apply(self.known[event.partition], event)
            self.snapshots.changed(event.partition)

    async def write(self) -> None:
        end = len(self.events)
        read = [SubscribedPartition(each, PLACE, end, True) for each in self.known.values()]
        await self.snapshots.write(SubscribedPartitions(self.topic_id, read))

    def check(self) -> None:
        for partition, metadata in self.known.items():
            truth = RemoteLogMetadataCache(partition)
            for event in self.events:
                if event.partition == partition:
                    apply(truth, event)
            assert list(metadata.segments()) == list(truth.segments())
            assert metadata.highest_offsets == truth.highest_offsets


def next_event(source: random.Random, events: list[SegmentEvent]) -> SegmentEvent:
    started = [each for each in events if isinstance(each, RemoteLogSegmentMetadata)]
    if started and source.random() < 0.6:
        of = source.choice(started[-4:])
        state = SegmentState(source.randrange(1, 4))
        return RemoteLogSegmentMetadataUpdate(of.id, 1, len(events), state)
    start = 10 * len(events)
    return RemoteLogSegmentMetadata(
        RemoteLogSegmentId(source.choice(PARTITIONS), UUID(int=len(events))),
        start,
        start + 9,
        1,
        start,
        start,
        (EpochStart(0, start),),
        100,
    )


async def some_work(node: Node, source: random.Random) -> None:
    if not node.known:
        await node.follow(PARTITIONS[0])
    for _ in range(8):
        match source.choice(["follow", "stop", "write", "write"]):
            case "follow":
                partition = source.choice(PARTITIONS)
                if partition not in node.known:
                    await node.follow(partition)
            case "stop":
                node.known.pop(source.choice(PARTITIONS), None)
            case "write":
                await node.write()
        for _ in range(source.randrange(4)):
            event = next_event(source, node.events)
            node.events.append(event)
            node.take(event)
        node.check()
    await node.write()


def crash_at(sync: int, seed: int) -> bool:
    """Cut the power at a sync, then continue twice on the remaining disk. Returns whether there is such a sync."""
    world, events = VirtualWorld(seed), list[SegmentEvent]()
    disks: list[VirtualDisk] = []

    async def main() -> None:
        virtual_node, source = world.node("one"), random.Random(seed)
        node = Node(virtual_node, events)
        cut = virtual_node.files.cut_power_at if sync % 2 else virtual_node.files.cut_power_after
        cut(sync // 2 + 1)
        try:
            await some_work(node, source)
        except NodeCrashed:
            disks.append(virtual_node.files.disk.crash(sync))
        for run in range(2 * len(disks)):
            virtual_node = world.node(f"again {run}", disks[-1])
            node = Node(virtual_node, events)
            for partition in PARTITIONS:
                await node.follow(partition)
            node.check()
            await some_work(node, source)
            disks.append(virtual_node.files.disk)

    world.run(main)
    return bool(disks)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(10))
def test_power_loss_at_every_sync_of_a_round(seed: int) -> None:
    """T-47, T-48."""
    sync = 1
    while crash_at(sync, seed):
        sync += 1
    assert sync > 3


def copies(count: int, first: int) -> list[SegmentEvent]:
    """Events of started copies, of the partitions in turn."""
    return [
        RemoteLogSegmentMetadata(
            RemoteLogSegmentId(PARTITIONS[number % 3], UUID(int=number)),
            10 * number, 10 * number + 9, 1, 0, 0, (EpochStart(0, 10 * number),), 100,
        )
        for number in range(first, first + count)
    ]  # fmt: skip


def crash_of_another_topic(sync: int) -> bool:
    """Cut the power at a sync after the topic was recreated. Returns whether there is such a sync.

    After the crash the new topic has more records than the node had read of the first one.
    """
    world, disks = VirtualWorld(sync), list[VirtualDisk]()

    async def main() -> None:
        virtual_node = world.node("one")
        node = Node(virtual_node, copies(9, 0))
        virtual_node.files.sync_directory(DIRECTORY.parent)
        for partition in PARTITIONS:
            await node.follow(partition)
        await node.write()
        node.topic_id, node.events = ANOTHER, copies(2, 100)
        for event in node.events:  # one partition has no event
            node.take(event)
        cut = virtual_node.files.cut_power_at if sync % 2 else virtual_node.files.cut_power_after
        cut(virtual_node.files.syncs + sync // 2 + 1)
        try:
            await node.write()
        except NodeCrashed:
            disks.append(virtual_node.files.disk.crash(sync))
        disk = disks[-1] if disks else virtual_node.files.disk
        again = Node(world.node("again", disk), node.events + copies(20, 200), ANOTHER)
        for partition in PARTITIONS:
            await again.follow(partition)
            known = again.known[partition]
            for event in again.events:
                assert event.partition != partition or known.segment(event.id) is not None
            first = [each for each in known.segments() if each.start_offset < 90]
            assert len(first) == 3, "earlier segments are kept"

    world.run(main)
    return bool(disks)


def test_power_loss_does_not_mix_offsets_of_recreated_topic() -> None:
    """T-47: after a power loss at any sync, the current topic is read from the start."""
    sync = 1
    while crash_of_another_topic(sync):
        sync += 1
    assert sync > 3


def test_restart_reads_only_newer_records() -> None:
    """T-47: nothing is read for a partition without changes since its file was written."""

    async def main() -> None:
        virtual_node = world.node("one")
        source, events = random.Random(1), list[SegmentEvent]()
        node = Node(virtual_node, events)
        for partition in PARTITIONS:
            await node.follow(partition)
        events.append(next_event(source, events))
        node.take(events[0])
        await node.write()
        other = next(each for each in PARTITIONS if each != events[0].partition)
        for number in range(1, 30):
            start = 10 * number
            events.append(
                RemoteLogSegmentMetadata(
                    RemoteLogSegmentId(other, UUID(int=number)),
                    start, start + 9, 1, 0, 0, (EpochStart(0, start),), 100,
                )
            )  # fmt: skip
            node.take(events[-1])
        await node.write()
        again = Node(virtual_node, events)
        assert [await again.follow(each) for each in PARTITIONS] == [0, 0, 0]
        again.check()

    world = VirtualWorld(1)
    world.run(main)


def test_files_of_stopped_partitions_are_removed_before_offsets_advance() -> None:
    """T-48: a partition that is assigned again does not load an outdated file."""

    async def main() -> None:
        virtual_node = world.node("one")
        node = Node(virtual_node, [])
        for partition in PARTITIONS:
            await node.follow(partition)
        await node.write()
        gone = PARTITIONS[0]
        del node.known[gone]
        node.events.append(next_event(random.Random(0), []))
        await node.write()
        assert file_name(gone) not in virtual_node.files.list(DIRECTORY)
        assert decode_offsets(virtual_node.files.read(DIRECTORY / COMMITTED_OFFSETS)) == {PLACE: 1}

    world = VirtualWorld(1)
    world.run(main)


def test_stopped_partitions_take_no_memory() -> None:
    """A long-running node sees many topics created and deleted."""

    async def main() -> None:
        node = Node(world.node("one"), [])
        for partition in PARTITIONS:
            await node.follow(partition)
        node.take(next_event(random.Random(0), []))
        node.known.clear()
        await node.write()
        assert not node.snapshots._changed

    world = VirtualWorld(1)
    world.run(main)


def test_failed_disk_only_costs_time(caplog: pytest.LogCaptureFixture) -> None:
    async def main() -> None:
        virtual_node = world.node("one")
        node = Node(virtual_node, [])
        await node.follow(PARTITIONS[0])
        fault = virtual_node.files.disk.fail("*_rlmm_*", operations=("write",))
        await node.write()
        virtual_node.files.disk.heal(fault)
        await node.write()
        assert file_name(PARTITIONS[0]) in virtual_node.files.list(DIRECTORY)

    world = VirtualWorld(1)
    world.run(main)
    assert "cannot write remote log metadata to disk" in caplog.text
