"""Topics of a tiered cluster: made as they are to be, and waited for until what is old is remote."""

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
from odradek.client.consumer import EARLIEST, LATEST, TopicPartition, list_offsets
from odradek.client.metadata import Cluster

REPLICAS = 3
LINGER_MS = 5
"""As Kafka's own producer has it (KIP-1030). Without any, each record is a request, and a connection has one
request replicated at a time: what was measured would be a queue."""
TIMEOUT_S = 900.0
LOOK_EVERY_S = 0.1
LOOK_AGAIN_S = 0.01
SEGMENTS_OVER = 2
"""The active segment is local, and one that is about to go."""


@dataclass(frozen=True)
class TieredTopic:
    """One partition. `local_bytes` is None where it is not tiered at all."""

    target: Target
    name: str
    segment_bytes: int
    local_bytes: int | None

    @property
    def history_records(self) -> int:
        """How many there are now."""
        return self._offset(LATEST) - self._offset(EARLIEST)

    def _offset(self, timestamp: int) -> int:
        where = TopicPartition(self.name, 0)
        found = with_cluster(
            self.target.bootstrap, lambda cluster: list_offsets(cluster, {where: timestamp})
        )
        return found[where].offset

    def local_size(self, broker: int) -> int:
        """Bytes of the segments that a broker has on its disks; 0 where it has no replica."""
        cluster = self.target.cluster
        assert cluster is not None
        size_bytes = 0
        for directory in cluster.log_directories(broker):
            for file in (Path(directory) / f"{self.name}-0").glob("*.log"):
                with suppress(FileNotFoundError):  # removed just now
                    size_bytes += file.stat().st_size
        return size_bytes

    def wait_until_settled(self) -> None:
        """Until all replicas have no more on their disks than they are to, and the disk is at rest: all that
        was written to it is on it. WorkloadFailed in vain."""
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
        """Until all replicas are, looked at on one connection every `LOOK_AGAIN_S`. WorkloadFailed in vain."""

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
    """A topic of one partition, tiered if `local_bytes` says how much is to stay on a broker's disks."""
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
