"""Checks invariants of the nodes' state, at every step and after recovery.

At any time: an epoch has one leader, in the quorum and in every partition; a node's high watermarks
never decrease while its log is open; committed records are not lost (`committed_records.py`); metadata
images of the same offset are equal. After recovery: all replicas of a partition have the same bytes
up to the high watermark, which is their log end offset; for a tiered partition, the bytes that are
on all local disks.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from uuid import UUID

import trio

from odradek.broker.node import Node
from odradek.protocol.errors import CorruptBatch
from odradek.protocol.records.batch import batches
from odradek.protocol.topics import CLUSTER_METADATA, TopicPartition
from odradek.replication.controller.image import MetadataImage, PartitionImage
from odradek.replication.partition.partition import Partition
from odradek.replication.raft.metadata_manager import MetadataManager
from odradek.seams.files import Path
from odradek.storage.directories.names import (
    NotAPartition,
    PartitionDirectory,
    PartitionDirectoryState,
    parse,
)
from odradek.testing.simulation.cluster import SimulatedCluster, SimulatedNode, host
from odradek.testing.simulation.committed_records import (
    CommittedRecords,
    ReplicaSnapshot,
    first_offset,
)
from odradek.testing.simulation.history import Anomaly
from odradek.testing.simulation.plan import DATA, OTHER_DATA
from odradek.testing.virtual_disk import DirectoryNode

READ_BYTES = 1 << 20
IMAGES_KEPT = 50
STEP_S = 0.05
METADATA_LOG = Path(DATA) / "__cluster_metadata-0"


class Checkers:
    """Checks the nodes of a cluster during a run and after recovery."""

    def __init__(self, cluster: SimulatedCluster) -> None:
        self.anomalies: list[Anomaly] = []
        self._cluster = cluster
        self._quorum_leaders: dict[int, int] = {}
        self._leaders: dict[tuple[UUID | None, int, int], int] = {}
        self._high_watermarks: dict[MetadataManager | Partition, int] = {}
        self._images: dict[int, MetadataImage] = {}
        self._last_images: dict[int, MetadataImage] = {}
        self._committed = CommittedRecords()
        self._watched: set[MetadataManager] = set()
        self._stepped = trio.Event()

    async def run(self) -> None:
        """Run the checks repeatedly, until cancelled."""
        while True:
            self.step()
            self._stepped.set()
            self._stepped = trio.Event()
            await self._cluster.world.clock.sleep(STEP_S)

    def step(self) -> None:
        """Run all checks once."""
        for node, broker in self._cluster.running():
            self._check_roles(node, broker)
            self._watch(node, broker)
            self._check_high_watermark(node, broker.metadata, broker.metadata.high_watermark)
            self._check_metadata_log(node, broker)
            for partition in broker.partitions:
                self._check_high_watermark(node, partition, partition.log.high_watermark)
                self._check_committed(node, partition)

    def _watch(self, node: SimulatedNode, broker: Node) -> None:
        """Check roles at each possible change: some roles last for less than a step."""
        if broker.metadata not in self._watched:
            self._watched.add(broker.metadata)
            broker.metadata.on_leader(lambda: self._check_quorum(node, broker))
            broker.metadata.subscribe(lambda delta: self._check_roles(node, broker))

    def _check_roles(self, node: SimulatedNode, broker: Node) -> None:
        self._check_quorum(node, broker)
        self._check_image(node, broker.metadata.image)
        for partition in broker.partitions:
            self._check_leader(node, partition)

    def _check_quorum(self, node: SimulatedNode, broker: Node) -> None:
        epoch, leader = broker.metadata.leader_epoch, broker.metadata.leader_id
        if leader >= 0:
            known = self._quorum_leaders.setdefault(epoch, leader)
            if known != leader:
                self._add_anomaly(
                    "two leaders",
                    f"in epoch {epoch} of the quorum: {known}, and {leader} according to {node.number}",
                )

    def _check_leader(self, node: SimulatedNode, partition: Partition) -> None:
        key = (partition.topic_id, partition.index, partition.leader_epoch)
        if partition.is_leader:
            known = self._leaders.setdefault(key, node.number)
            if known != node.number:
                self._add_anomaly("two leaders", f"of {partition!r}: {known} and {node.number}")

    def _check_metadata_log(self, node: SimulatedNode, broker: Node) -> None:
        high_watermark = broker.metadata.high_watermark
        replica = ReplicaSnapshot(
            who=broker.metadata,
            name=host(node.number),
            disk=node.disk,
            directory=METADATA_LOG,
            # Records that a snapshot contains are deleted
            start=first_offset(node.disk, METADATA_LOG),
            high_watermark=high_watermark,
            end=high_watermark,
            epoch=-1,
            is_leader=False,
        )
        wrong = self._committed.compare(METADATA_LOG, replica)
        if wrong is not None:
            self._add_anomaly("lost committed records", f"of the metadata log: {wrong}")

    def _check_committed(self, node: SimulatedNode, partition: Partition) -> None:
        log, which = partition.log, (partition.topic_id, partition.index)
        if log.failure is not None:
            return
        replica = ReplicaSnapshot(
            who=partition,
            name=host(node.number),
            disk=node.disk,
            directory=log.directory,
            start=log.local_log_start_offset,
            high_watermark=log.high_watermark,
            end=log.end_offset,
            epoch=partition.leader_epoch,
            is_leader=partition.is_leader,
        )
        wrong = self._committed.compare(which, replica)
        if wrong is not None:
            self._add_anomaly("lost committed records", f"of {partition!r}: {wrong}")

    def _check_high_watermark(
        self, node: SimulatedNode, of: MetadataManager | Partition, now: int
    ) -> None:
        before = self._high_watermarks.get(of, -1)
        if now < before:
            self._add_anomaly(
                "high watermark decreased", f"{host(node.number)}, {of!r}: {before}, then {now}"
            )
        self._high_watermarks[of] = now

    def _check_image(self, node: SimulatedNode, image: MetadataImage) -> None:
        if self._last_images.get(node.number) is image:
            return
        self._last_images[node.number] = image
        self._forget_unclean(image)
        known = self._images.setdefault(image.offset, image)
        if known is not image and known != image:
            self._add_anomaly("different images", f"{host(node.number)} at offset {image.offset}")
        if len(self._images) > IMAGES_KEPT:
            del self._images[min(self._images)]

    def _forget_unclean(self, image: MetadataImage) -> None:
        for topic in image.topics_by_name.values():
            for index, partition in topic.partitions.items():
                if partition.leader_recovery_state:
                    self._committed.forget((topic.id, index))

    def _add_anomaly(self, kind: str, text: str) -> None:
        self.anomalies.append(Anomaly(kind, text))

    # After recovery

    def is_in_sync(self) -> bool:
        """Whether every node serves, and every replica is in sync in the metadata of all nodes."""
        running = self._cluster.running()
        if len(running) < len(self._cluster.nodes):
            return False
        offsets = {broker.metadata.image.offset for _, broker in running}
        image = running[0][1].metadata.image
        return (
            len(offsets) == 1
            and all(
                _is_in_sync(partition)
                for topic in image.topics_by_name.values()
                for partition in topic.partitions.values()
            )
            and self.all_are_voters()
        )

    def all_are_voters(self) -> bool:
        """Whether every node, with its current directory id, is a voter in the view of all running
        nodes."""
        return not self._nodes_without_vote()

    def _nodes_without_vote(self) -> set[int]:
        """The nodes that are not voters in the view of any running node."""
        if not self._cluster.has_dynamic_quorum:
            return set()
        return {
            node.number
            for _, broker in self._cluster.running()
            for node in self._cluster
            if node.key not in {voter.key for voter in broker.metadata.quorum.voters}
        }

    def is_settled(self) -> bool:
        """Whether the cluster is in sync, all records are committed, and no replica is being moved.

        All replicas have the same log end offset. Followers learn of a high watermark with their
        next fetch.
        """
        if any(broker.logs.mover.moves() for _, broker in self._cluster.running()):
            return False
        return self.is_in_sync() and all(
            partition.log.high_watermark == partition.log.end_offset == self._end_of(partition)
            for _, broker in self._cluster.running()
            for partition in broker.partitions
        )

    def _end_of(self, partition: Partition) -> int:
        """The log end offset of the partition's leader."""
        leader = self._cluster.nodes[partition.leader].broker
        found = leader and leader.partitions.opened(partition.topic, partition.index)
        return found.log.end_offset if found else -1

    async def wait_settled(self) -> None:
        while not self.is_settled():
            await self._stepped.wait()

    async def wait_in_sync(self) -> None:
        """Wait until the cluster is in sync; `run` must be running."""
        while not self.is_in_sync():
            await self._stepped.wait()

    def describe_missing(self) -> str:
        """Describe which nodes and replicas are not in sync, for the text of an anomaly."""
        down = [node.number for node in self._cluster if not node.serves]
        if down:
            return f"nodes {down} do not serve"
        offsets = {
            node.number: broker.metadata.image.offset for node, broker in self._cluster.running()
        }
        image = self._cluster.running()[0][1].metadata.image
        behind = [
            f"{topic.name}-{index} led by {partition.leader}, in sync {partition.isr}"
            for topic in image.topics_by_name.values()
            for index, partition in topic.partitions.items()
            if not _is_in_sync(partition)
        ]
        moves = {
            node.number: moves
            for node, broker in self._cluster.running()
            if (moves := broker.logs.mover.moves())
        }
        return (
            f"image offsets: {offsets}, {'; '.join(behind) or 'all in sync'}, moves: {moves}, "
            f"nodes that are not voters: {self._nodes_without_vote() or 'none'}"
        )

    def final(self) -> None:
        """Check the cluster after recovery, when no client writes."""
        self.step()
        running = self._cluster.running()
        image = running[0][1].metadata.image
        for topic in image.topics_by_name.values():
            for index, partition in topic.partitions.items():
                self._check_equal(topic.name, index, set(partition.replicas))
        for node in self._cluster:
            self._check_directories(node, image)

    def _check_directories(self, node: SimulatedNode, image: MetadataImage) -> None:
        """Check that a node has each of its replicas once, and no other log directories."""
        expected = Counter(
            TopicPartition(topic.name, index)
            for topic in image.topics_by_name.values()
            for index, partition in topic.partitions.items()
            if node.number in partition.replicas
        )
        there = Counter(
            found.topic_partition
            for directory in (DATA, OTHER_DATA)
            for found in _partition_directories(node, directory)
            if found.state is PartitionDirectoryState.LIVE
            and found.topic_partition.topic != CLUSTER_METADATA
        )
        if there != expected:
            more, less = list(there - expected), list(expected - there)
            self._add_anomaly(
                "unexpected log directories",
                f"{host(node.number)} has {more} in addition, and lacks {less}",
            )

    def _check_equal(self, topic: str, index: int, expected: set[int]) -> None:
        replicas = [
            (node.number, partition)
            for node, broker in self._cluster.running()
            if (partition := broker.partitions.opened(topic, index)) is not None
        ]
        there = {number for number, _ in replicas}
        if there != expected:
            why = f"of {topic}-{index} on {sorted(there)}, assigned to {sorted(expected)}"
            self._add_anomaly("unexpected replicas", why)
        if not replicas:
            return
        starts = [partition.log.local_log_start_offset for _, partition in replicas]
        contents: dict[int, bytes] = {}
        for number, partition in replicas:
            try:
                contents[number] = _content(partition, max(starts))
            except CorruptBatch as reason:
                self._add_anomaly("different records", f"{topic}-{index} on {number}: {reason}")
        ends = {number: partition.log.high_watermark for number, partition in replicas}
        if len(set(ends.values())) > 1:
            self._add_anomaly("different high watermarks", f"{topic}-{index}: {ends}")
        if len(set(contents.values())) > 1:
            sizes = {number: len(content) for number, content in contents.items()}
            self._add_anomaly(
                "different records", f"{topic}-{index}: replicas differ, of {sizes} bytes"
            )


def _partition_directories(node: SimulatedNode, path: str) -> Iterator[PartitionDirectory]:
    directory_logs = node.disk.find(Path(path))
    for name, entry in (
        directory_logs.names.items() if isinstance(directory_logs, DirectoryNode) else ()
    ):
        if isinstance(entry, DirectoryNode):
            with suppress(NotAPartition):
                yield parse(name)


def _is_in_sync(partition: PartitionImage) -> bool:
    return partition.is_diskless or (
        partition.leader >= 0
        and set(partition.isr) == set(partition.replicas)
        and not partition.is_reassigning
    )


def _content(partition: Partition, offset: int) -> bytes:
    """The records on disk from `offset` to the high watermark."""
    return b"".join(_read(partition, offset))


def _read(partition: Partition, offset: int) -> Iterator[bytes]:
    log = partition.log
    while offset < log.high_watermark:
        found = log.read(offset, READ_BYTES, limit=log.high_watermark)
        if found.slice is None:
            return
        content = found.slice.read()
        found.slice.file.unpin()
        whole = list(batches(memoryview(content)))
        yield content[: sum(batch.size for batch in whole)]
        offset = whole[-1].next_offset
