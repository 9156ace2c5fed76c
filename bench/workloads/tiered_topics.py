"""Creates topics of a tiered cluster, and waits until their old segments are only in remote storage."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import trio

from odradek.bench.model import ServerCluster, Target, WorkloadFailed
from odradek.bench.peers.topics import not_yet, with_cluster
from odradek.client.admin import NewTopic, create_topics
from odradek.client.consumer import EARLIEST, LATEST, list_offsets
from odradek.client.metadata import Cluster
from odradek.protocol.topics import TopicPartition

REPLICAS = 3
LINGER_MS = 5
"""Default of Kafka's producer (KIP-1030), in ms.

Without linger, each record is a request, and a connection replicates one request at a time, so a queue would be
measured.
"""
TIMEOUT_S = 900.0
LOOK_EVERY_S = 0.1
LOOK_AGAIN_S = 0.01
SEGMENTS_OVER = 2
"""Local segments: the active one, and one that is being copied."""


@dataclass(frozen=True)
class TieredTopic:
    """A topic of one partition. `local_bytes` is None without tiered storage."""

    target: Target
    name: str
    segment_bytes: int
    local_bytes: int | None

    @property
    def history_records(self) -> int:
        """Return the current number of records."""
        return self._offset(LATEST) - self._offset(EARLIEST)

    def _offset(self, timestamp: int) -> int:
        where = TopicPartition(self.name, 0)
        found = with_cluster(
            self.target.bootstrap, lambda cluster: list_offsets(cluster, {where: timestamp})
        )
        return found[where].offset

    def local_size(self, broker: int) -> int:
        """Return the bytes of a broker's local segments; 0 without a replica."""
        cluster = self.target.cluster
        assert cluster is not None
        size_bytes = 0
        for directory in cluster.log_directories(broker):
            for file in (Path(directory) / f"{self.name}-0").glob("*.log"):
                with suppress(FileNotFoundError):  # the segment was deleted in between
                    size_bytes += file.stat().st_size
        return size_bytes

    def wait_until_settled(self) -> None:
        """Wait until no replica has more than `local_bytes` on its disk and the disk is synced.

        Raises WorkloadFailed after a timeout.
        """
        cluster = self.target.cluster
        assert cluster is not None
        if self.local_bytes is not None:
            self._wait_until_moved(cluster, self.local_bytes)
        subprocess.run(["sync", "-f", cluster.log_directories(cluster.brokers[0])[0]], check=True)

    def _wait_until_moved(self, cluster: ServerCluster, local_bytes: int) -> None:
        most = local_bytes + SEGMENTS_OVER * self.segment_bytes
        end = time.monotonic() + TIMEOUT_S
        while any(self.local_size(broker) > most for broker in cluster.brokers):
            if time.monotonic() > end:
                sizes = [self.local_size(broker) for broker in cluster.brokers]
                raise WorkloadFailed(f"{self.name} still has {sizes} bytes on the brokers' disks")
            time.sleep(LOOK_EVERY_S)

    def wait_until_in_sync(self, longest_s: float) -> None:
        """Wait until all replicas are in sync. Raises WorkloadFailed after `longest_s` seconds."""

        async def wait(cluster: Cluster) -> bool:
            with trio.move_on_after(longest_s):
                while True:
                    found = await cluster.topic(self.name)
                    if len(found.partitions[0].isr) == REPLICAS:
                        return True
                    await trio.sleep(LOOK_AGAIN_S)
            return False

        if not with_cluster(self.target.bootstrap, wait):
            raise WorkloadFailed(f"{self.name} is not in sync after {longest_s:.0f} s")

    def leader(self) -> int:
        return with_cluster(self.target.bootstrap, lambda cluster: cluster.leader(self.name, 0))


@contextmanager
def tiered_topic(
    target: Target, name: str, segment_bytes: int, local_bytes: int | None
) -> Iterator[TieredTopic]:
    """Create a topic of one partition; with `local_bytes`, it is tiered with this local retention."""
    if target.cluster is None:
        raise WorkloadFailed("the brokers' processes are not known")
    configs = {
        "segment.bytes": str(segment_bytes),
        "min.insync.replicas": "2",
        "file.delete.delay.ms": "1000",
        "retention.ms": "-1",
    }
    if local_bytes is not None:
        configs |= {"remote.storage.enable": "true", "local.retention.bytes": str(local_bytes)}
    topic = TieredTopic(target, name, segment_bytes, local_bytes)

    async def create(cluster: Cluster) -> None:
        await create_topics(cluster, [NewTopic(name, 1, REPLICAS, configs)])
        await cluster.retrying(lambda: cluster.leader(name, 0), also=not_yet)

    with_cluster(target.bootstrap, create)
    try:
        yield topic
    finally:
        target.topics.delete(name)
