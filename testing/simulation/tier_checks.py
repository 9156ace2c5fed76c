"""Checks of the remote tier after recovery.

Every segment that can be copied is in the remote tier, once and complete; all nodes have the same
metadata of it; and the store contains no other objects.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from types import MappingProxyType
from typing import Protocol

import trio

from odradek.broker.node import Node
from odradek.broker.tiered.segment_operations import DANGLING_MS
from odradek.replication.partition.partition import Partition
from odradek.storage.tiered.audit import KnownSegments, RemoteStorageAudit
from odradek.storage.tiered.object_names import parse_key, parse_summary, segment_key
from odradek.storage.tiered.remote_log_metadata_manager import RemoteLogMetadataManager
from odradek.storage.tiered.segment_metadata import (
    RemoteLogSegmentMetadata,
    SegmentState,
    TopicIdPartition,
)
from odradek.testing.simulation.cluster import SimulatedCluster, host
from odradek.testing.simulation.disablement_checks import ReplicaStarts
from odradek.testing.simulation.history import Anomaly, ReadRecord
from odradek.testing.simulation.tier_retention import (
    LeaderLog,
    LogStartOffsets,
    RetentionAdministrator,
    copied_segments,
    expire_records,
)
from odradek.testing.virtual_object_store import VirtualBucket

TIMEOUT_S = 60.0
POLL_INTERVAL_S = 0.05
RETAINED_S = 1.5
"""Longer than the topic's local retention and the interval of the retention check."""

DELETED_S = 5.0
"""The time limit for deleting the segments of a deleted topic."""
MAX_MS = 1 << 62

TieredReplica = tuple[Node, Partition, RemoteLogMetadataManager, TopicIdPartition]


class TierCheckClients(RetentionAdministrator, Protocol):
    """Sends the requests that the checks need."""

    async def read_again(self, starts: LogStartOffsets) -> list[ReadRecord]:
        """Read all committed records again; partitions begin at `starts`."""
        ...

    async def delete_topics(self, names: Sequence[str]) -> None: ...

    async def known_segments(self) -> KnownSegments:
        """Read all segments from `__remote_log_metadata`."""
        ...


class TierChecks:
    def __init__(
        self,
        cluster: SimulatedCluster,
        bucket: VirtualBucket,
        topic: str,
        recreated_topic: str,
        *,
        seed: int,
        may_dangle: bool,
        starts: LogStartOffsets = MappingProxyType({}),
        replica_starts: ReplicaStarts = MappingProxyType({}),
    ) -> None:
        """Create the checks of `topic`, and of `recreated_topic`, a tiered topic that was recreated.

        With `may_dangle`, the store has reported a deletion that did not happen, and the objects
        that remain are for `odradek remote gc` to find. `starts` are the log start offsets of `topic` before, and
        `replica_starts` those of all replicas: after a disablement of tiered storage, each starts with its local data.
        """
        self.anomalies: list[Anomaly] = []
        self._cluster = cluster
        self._bucket = bucket
        self._topic = topic
        self._topics = {topic, recreated_topic}
        self._may_dangle = may_dangle
        self._chance = random.Random(f"tier {seed}")
        self._starts = starts
        self._replica_starts = replica_starts

    async def run(self, committed: list[ReadRecord], clients: TierCheckClients) -> None:
        """Run all checks. `committed` are the records of the topic; both topics are deleted at the
        end."""
        if not await self._until(self._describe_not_copied, "not copied"):
            return
        # Copies that other leaders left become old enough for deletion
        for node in self._cluster:
            node.clock.skew_ms += DANGLING_MS + 1
        if not await self._until(self._describe_unfinished, "not finished"):
            return
        if not self._may_dangle and not await self._until(
            self._describe_deleted_topics, "not deleted"
        ):
            return
        await trio.sleep(RETAINED_S)
        await self._check_all(committed, clients)
        led = [LeaderLog(*each[1:]) for each in self._replicas(self._topic) if each[1].is_leader]
        expired = await expire_records(self._chance, led, clients)
        self._starts = {
            index: max(start, self._starts.get(index, 0)) for index, start in expired.items()
        }
        self._cluster.trace.add(f"expected log start offsets: {dict(self._starts)}")
        if await self._until(self._describe_not_expired, "not expired"):
            await self._check_all(committed, clients)
        await clients.delete_topics(sorted({each.topic for _, each, *_ in self._replicas()}))
        if not self._may_dangle:
            await self._until(self._describe_remaining, "not deleted")
            return
        await trio.sleep(DELETED_S)
        await self._collect_garbage(clients)
        if left := self._describe_remaining():
            self._add_anomaly("not deleted", left)

    async def _until(self, describe: Callable[[], str | None], kind: str) -> bool:
        """Wait until `describe` returns None; a timeout is an anomaly, and returns False."""
        until = trio.current_time() + TIMEOUT_S
        while (why := describe()) is not None:
            if trio.current_time() > until:
                self._add_anomaly(kind, f"in {TIMEOUT_S:g} s: {why}")
                return False
            await trio.sleep(POLL_INTERVAL_S)
        return True

    def _add_anomaly(self, kind: str, text: str) -> None:
        self.anomalies.append(Anomaly(kind, text))

    def _replicas(self, *topics: str) -> Iterator[TieredReplica]:
        """The replicas of `topics`, or of all tiered topics."""
        for _, broker in self._cluster.running():
            remote = broker.services.tiered_storage
            assert remote is not None, "the cluster has no remote tier"
            for partition in broker.partitions:
                if partition.topic in (topics or self._topics):
                    assert partition.topic_id is not None
                    topic_id_partition = TopicIdPartition(
                        partition.topic_id, partition.topic, partition.index
                    )
                    yield broker, partition, remote.metadata, topic_id_partition

    # Copies

    def _describe_not_copied(self) -> str | None:
        for broker, partition, metadata, topic_id_partition in self._replicas():
            name = f"{partition.topic}-{partition.index} on {host(broker.node_id)}"
            if not metadata.is_ready(topic_id_partition):
                return f"the metadata of {name} is not read"
            if not partition.is_leader:
                continue
            log = partition.log
            active_start = log.log_end.segment.base_offset
            if log.highest_copied_offset < min(active_start, log.high_watermark) - 1:
                return f"{name} is copied up to {log.highest_copied_offset}, inactive segments end at {active_start}"
        return None

    def _describe_unfinished(self) -> str | None:
        for broker, partition, metadata, topic_id_partition in self._replicas():
            if left := metadata.unfinished(topic_id_partition):
                states = [(each.id.id, each.state.name, each.broker_id) for each in left]
                return f"{partition!r} on {host(broker.node_id)} has {states}"
        return None

    async def _check_all(self, committed: list[ReadRecord], clients: TierCheckClients) -> None:
        """Check that nothing is lost, duplicated or moved, and that all objects in the store are
        known."""
        await self._collect_garbage(clients)
        self._check_objects()
        wanted = Counter(
            each for each in committed if each.offset >= self._starts.get(each.partition, 0)
        )
        again = Counter(await clients.read_again(self._starts))
        if missing := wanted - again:
            self._add_anomaly("lost in the remote tier", f"{list(missing)}")
        if more := again - wanted:
            self._add_anomaly("duplicated by the remote tier", f"{list(more)}")

    async def _collect_garbage(self, clients: TierCheckClients) -> None:
        """Remove garbage as `odradek remote gc` does. It exists only after a false response of the
        store."""
        audit = RemoteStorageAudit(await clients.known_segments(), old_before_ms=MAX_MS)
        bucket = self._bucket
        audit.take([bucket.info(key) for key in sorted(bucket.objects)])
        audit.end()
        for finding in audit.findings:
            if finding.status.is_garbage:
                keys = finding.removal_order()
                if not self._may_dangle:
                    self._add_anomaly("dangling object", f"{keys}")
                for key in keys:
                    bucket.remove(key)

    def _check_objects(self) -> None:
        known: dict[str, int] = {}
        for broker, partition, metadata, topic_id_partition in self._replicas():
            name = f"{partition.topic}-{partition.index} on {host(broker.node_id)}"
            for segment in metadata.segments(topic_id_partition):
                known |= dict(self._objects_of(segment))
            self._check_history(broker, partition, metadata, topic_id_partition)
            if partition.is_leader:
                start, count = (
                    partition.log.local_log_start_offset,
                    metadata.segment_count(topic_id_partition),
                )
                self._cluster.trace.add(
                    f"{name} has {count} remote segments, local log start offset {start}"
                )
        for key, size in known.items():
            there = len(self._bucket.objects[key]) if key in self._bucket.objects else -1
            if there != size >= 0 or there < 0:
                self._add_anomaly(
                    "wrong object size", f"{key} has {there} bytes, but its metadata has {size}"
                )
        self._check_dangling(set(known))

    def _objects_of(self, segment: RemoteLogSegmentMetadata) -> Iterator[tuple[str, int]]:
        """The object keys of a segment, with sizes, or -1 where the size is unknown."""
        if segment.state is not SegmentState.COPY_SEGMENT_FINISHED:
            return
        yield segment_key(segment, ".log"), segment.size_bytes
        for suffix in (".index", ".timeindex", ".snapshot", ".leader_epoch_checkpoint"):
            yield segment_key(segment, suffix), -1
        yield segment_key(segment, ".manifest"), -1

    def _check_history(
        self,
        broker: Node,
        partition: Partition,
        metadata: RemoteLogMetadataManager,
        topic_id_partition: TopicIdPartition,
    ) -> None:
        """Check that every offset from the log start offset is in the remote tier or on disk."""
        name = f"{partition.topic}-{partition.index} on {host(broker.node_id)}"
        log, wanted = partition.log, self._wanted_start(broker, partition)
        if log.log_start_offset != wanted:
            self._add_anomaly(
                "wrong log start offset",
                f"{name} starts at {log.log_start_offset}, not at {wanted}",
            )
        segments = copied_segments(partition, metadata, topic_id_partition)
        end = segments[-1].end_offset + 1 if segments else log.log_start_offset
        if end < log.local_log_start_offset:
            self._add_anomaly("gap in the remote tier", f"{name} has offset {end} in neither tier")

    def _wanted_start(self, broker: Node, partition: Partition) -> int:
        starts = self._starts if partition.topic == self._topic else {}
        before = self._replica_starts.get((partition.topic, partition.index, broker.node_id), 0)
        return max(starts.get(partition.index, 0), before)

    def _check_dangling(self, known: set[str]) -> None:
        ids = {name.id for key in known if (name := parse_key(key)) is not None}
        dangling = [
            key
            for key in self._bucket.objects
            if parse_summary(key) is None
            and ((name := parse_key(key)) is None or name.id not in ids)
        ]
        if dangling:
            self._add_anomaly("unknown object", f"{dangling}")

    def _describe_not_expired(self) -> str | None:
        for broker, partition, metadata, topic_id_partition in self._replicas(self._topic):
            name = f"{partition.topic}-{partition.index} on {host(broker.node_id)}"
            start, wanted = partition.log.log_start_offset, self._wanted_start(broker, partition)
            if start != wanted:
                return f"{name} starts at {start}, not at {wanted}"
            old = [
                each.end_offset
                for each in metadata.segments(topic_id_partition)
                if each.end_offset < self._starts[partition.index]
            ]
            if old:
                return f"{name} has segments that end at {old}, and starts at {start}"
        return self._describe_unfinished()

    def _describe_deleted_topics(self) -> str | None:
        known = {topic_id_partition.topic_id for _, _, _, topic_id_partition in self._replicas()}
        left = [
            key
            for key in sorted(self._bucket.objects)
            if (name := parse_key(key)) is not None and name.id.partition.topic_id not in known
        ]
        return f"{left} are still there" if left else None

    def _describe_remaining(self) -> str | None:
        """Describe the objects that remain after the deletion of all topics."""
        if not self._bucket.objects:
            return None
        return f"{sorted(self._bucket.objects)} are still there"
