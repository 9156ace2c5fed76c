"""Flips bits in a node's files while it is down, at places that its start must check.

After an unclean end, log recovery must detect the damage: logs are checked from the recovery point
on, and derived files are rebuilt. Damage to other files must be reported, and the node gets an
empty disk, as from an operator. Apache Kafka guarantees no more, so other bits are not flipped: bytes
below the recovery point are not checked, a batch's base offset and leader epoch are outside its
CRC, and text files have no checksum: only invalid text is detected.

The other nodes must have everything (`other_nodes_have_all`), because the node may lose logs.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from contextlib import suppress
from enum import Enum

from odradek.protocol.errors import KafkaError
from odradek.protocol.records.batch import batches
from odradek.protocol.topics import CLUSTER_METADATA, TopicPartition
from odradek.storage.directories.checkpoints import Checkpoint, CorruptCheckpoint, parse
from odradek.storage.directories.names import NotAPartition, PartitionDirectoryState
from odradek.storage.directories.names import parse as parse_name
from odradek.testing.simulation.cluster import SimulatedCluster
from odradek.testing.virtual_disk import FileNode, VirtualDisk

BASE_OFFSET_BYTES = 8
LEADER_EPOCH = range(12, 16)
"""The position of the leader epoch in a batch."""
NON_ASCII_BIT = 0x80
"""The bit that is clear in all bytes of these files."""


class CorruptibleFile(Enum):
    """The kinds of files that are corrupted."""

    LOG = "log"
    METADATA_LOG = "metadata log"
    INDEX = "index"
    PRODUCERS = "producers"
    OFFSETS = "offsets"
    EPOCHS = "epochs"
    SNAPSHOT = "metadata snapshot"
    NAMED = "named"
    """Files without which the node or the replica must not start."""


BitLocations = tuple[str, FileNode, range, int | None]
"""A file, the positions that may be corrupted, and the bit that flips (None: any)."""


def flip_bit(disk: VirtualDisk, chance: random.Random) -> str | None:
    """Flip a bit of an unused disk; return its file and position, or None if there is no candidate."""
    for kind in chance.sample(list(CorruptibleFile), len(CorruptibleFile)):
        spots = [spot for spot in _LOCATIONS[kind](disk) if spot[2]]
        if spots:
            path, node, where, mask = chance.choice(spots)
            position = chance.choice(where)
            _flip(node, position, 1 << chance.randrange(8) if mask is None else mask)
            return f"{path} at {position}"
    return None


def other_nodes_have_all(cluster: SimulatedCluster, number: int) -> bool:
    """Whether all nodes but `number` have everything.

    They serve, have the same metadata, are in sync, and are a majority of the quorum's voters.
    """
    running = [(node, broker) for node, broker in cluster.running() if node.number != number]
    if len(running) < len(cluster.nodes) - 1:
        return False
    known = {
        (metadata.image.offset, metadata.leader_epoch, metadata.leader_id)
        for metadata in (broker.metadata for _, broker in running)
    }
    others = {node.number for node, _ in running}
    image = running[0][1].metadata.image
    return (
        len(known) == 1
        and len(running[0][1].metadata.quorum.voters) == len(cluster.nodes)
        and running[0][1].metadata.leader_id in others
        and all(
            partition.is_diskless
            or (
                partition.leader in others
                and others & set(partition.replicas) <= set(partition.isr)
            )
            for topic in image.topics_by_name.values()
            for partition in topic.partitions.values()
        )
    )


def _flip(node: FileNode, position: int, mask: int) -> None:
    node.sync()  # the bit flips on the medium
    node.content[position] ^= mask
    node.durable[position] ^= mask
    node.cold = True


def _files(disk: VirtualDisk, *names: str, mask: int | None = None) -> Iterator[BitLocations]:
    """Files whose path ends with one of `names`."""
    for path, node in disk.walk():
        if isinstance(node, FileNode) and path.endswith(names):
            yield path, node, range(len(node.content)), mask


def _of_replicas(disk: VirtualDisk, *names: str) -> Iterator[tuple[BitLocations, int]]:
    """Files of live replicas, with the recovery points of their logs."""
    points = dict(_recovery_points(disk))
    for spot in _files(disk, *names):
        directory_logs, directory, _ = spot[0].rsplit("/", 2)
        with suppress(NotAPartition):
            found = parse_name(directory)
            if found.state is PartitionDirectoryState.LIVE:
                yield spot, points.get((directory_logs, found.topic_partition), 0)


def _recovery_points(disk: VirtualDisk) -> Iterator[tuple[tuple[str, TopicPartition], int]]:
    name = Checkpoint.RECOVERY_POINT.value
    for path, node, _, _ in _files(disk, f"/{name}"):
        with suppress(CorruptCheckpoint):
            for which, offset in parse(bytes(node.content)).items():
                yield (path.removesuffix(f"/{name}"), which), offset


def _batches(disk: VirtualDisk, *, of_metadata: bool) -> Iterator[BitLocations]:
    for (path, node, _, _), recovery_point in _of_replicas(disk, ".log"):
        if (CLUSTER_METADATA in path) != of_metadata:
            continue
        position = 0
        with suppress(KafkaError):  # a torn tail
            for batch in batches(memoryview(bytes(node.content))):
                if batch.base_offset >= recovery_point:
                    yield (
                        path,
                        node,
                        range(position + BASE_OFFSET_BYTES, position + LEADER_EPOCH.start),
                        None,
                    )
                    yield (
                        path,
                        node,
                        range(position + LEADER_EPOCH.stop, position + batch.size),
                        None,
                    )
                position += batch.size


def _indexes(disk: VirtualDisk) -> Iterator[BitLocations]:
    """Index files of segments that recovery scans completely."""
    for spot, recovery_point in _of_replicas(disk, ".index", ".timeindex", ".txnindex"):
        base, _, _ = spot[0].rpartition("/")[2].partition(".")
        if int(base) >= recovery_point:
            yield spot


def _identity_files(disk: VirtualDisk) -> Iterator[BitLocations]:
    yield from _files(disk, "/quorum-state", "/partition.metadata", mask=NON_ASCII_BIT)
    for path, node, _, mask in _files(disk, "/meta.properties", mask=NON_ASCII_BIT):
        start = node.content.index(b"node.id")  # flips only the value of an id
        yield path, node, range(start, node.content.index(b"\n", start)), mask


_LOCATIONS: dict[CorruptibleFile, Callable[[VirtualDisk], Iterator[BitLocations]]] = {
    CorruptibleFile.LOG: lambda disk: _batches(disk, of_metadata=False),
    CorruptibleFile.METADATA_LOG: lambda disk: _batches(disk, of_metadata=True),
    CorruptibleFile.INDEX: _indexes,
    CorruptibleFile.PRODUCERS: lambda disk: (spot for spot, _ in _of_replicas(disk, ".snapshot")),
    CorruptibleFile.OFFSETS: lambda disk: _files(
        disk, Checkpoint.RECOVERY_POINT.value, Checkpoint.HIGH_WATERMARK.value, mask=NON_ASCII_BIT
    ),
    CorruptibleFile.EPOCHS: lambda disk: _files(
        disk, "/leader-epoch-checkpoint", mask=NON_ASCII_BIT
    ),
    CorruptibleFile.SNAPSHOT: lambda disk: (spot for spot, _ in _of_replicas(disk, ".checkpoint")),
    CorruptibleFile.NAMED: _identity_files,
}
