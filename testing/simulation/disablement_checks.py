"""Checks of disablements of tiered storage (KIP-950), during a run and after recovery.

During a run: the state DISABLED is committed only when every running broker has applied the disablement and, with the
policy delete, each leader has deleted its remote segments; and a leader moves the log start offset before it deletes
a remote segment. After recovery: the state of each topic is ENABLED or DISABLED; after a deletion, neither the store
nor the metadata has a segment of the topic and the logs start at the local log start offset; all records from the log
start offset on are readable; and the log start offset was not moved beyond the local one, or without a deletion.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from uuid import UUID

import trio

from odradek.broker.node import Node
from odradek.broker.tiered.segment_operations import DANGLING_MS
from odradek.replication.controller.image import (
    DisablePolicy,
    MetadataDelta,
    MetadataImage,
    TieredState,
    TopicTiering,
)
from odradek.replication.controller.topic_tiering import DELETE_ON_DISABLE, ENABLE
from odradek.replication.partition.partition import Partition
from odradek.storage.tiered.object_names import LOG_SUFFIX, parse_key, parse_summary, segment_key
from odradek.storage.tiered.remote_log_metadata_manager import RemoteLogMetadataManager
from odradek.storage.tiered.segment_metadata import (
    RemoteLogSegmentMetadata,
    SegmentState,
    TopicIdPartition,
)
from odradek.testing.simulation.cluster import SimulatedCluster, host
from odradek.testing.simulation.history import Anomaly, ReadRecord
from odradek.testing.simulation.tiering_disablement import TieringDisablement
from odradek.testing.virtual_object_store import VirtualBucket

STEP_S = 0.05
PROMPT_S = 5.0
"""Time for the deletion of remote data after recovery. Without a tiered state, copies that a killed broker has left are
deleted only later (`DANGLING_MS`)."""
TIMEOUT_S = 60.0
"""Longest time of each step after recovery. Most take less than a second, but a request to a broker that lost power is
repeated after 35 s."""
EARLIER_COPY = "copy of an earlier tiered epoch"
"""Kind of an anomaly: a copy counts that began before the remote data was deleted."""

ReplicaStarts = Mapping[tuple[str, int, int], int]
"""Log start offset by topic, partition and node."""


class DisablementChecks:
    def __init__(
        self,
        cluster: SimulatedCluster,
        bucket: VirtualBucket,
        tiering: TieringDisablement,
        topics: Sequence[str],
        *,
        may_dangle: bool,
    ) -> None:
        """Create the checks of `topics`; clients write to the first one. `may_dangle`: as in `TierChecks`."""
        self.anomalies: list[Anomaly] = []
        self._cluster = cluster
        self._bucket = bucket
        self._tiering = tiering
        self._topics = topics
        self._may_dangle = may_dangle
        self._watched: set[Node] = set()
        self._completed: set[tuple[UUID, int]] = set()
        """Topics and tiered epochs whose state is DISABLED, or was."""
        self._deletable: dict[int, int] = {}
        """By partition of the first topic: the largest local log start offset of a broker that knew of a deletion."""

    def _add_anomaly(self, kind: str, text: str) -> None:
        self.anomalies.append(Anomaly(kind, text))

    # During the run

    async def run(self) -> None:
        """Watch the brokers until cancelled."""
        while True:
            self.step()
            await trio.sleep(STEP_S)

    def step(self) -> None:
        for node, broker in self._cluster.running():
            if broker not in self._watched:
                self._watched.add(broker)
                self._watch(node.number, broker)
            self._note_deletable(broker)

    def _note_deletable(self, broker: Node) -> None:
        """Note how far a disablement with deletion that this broker knows allows to move the log start offsets."""
        if not _deletes(broker.metadata.image, self._topics[0]):
            return
        for partition in broker.partitions:
            if partition.topic == self._topics[0]:
                known = self._deletable.get(partition.index, 0)
                start = partition.log.local_log_start_offset
                self._deletable[partition.index] = max(known, start)

    def _watch(self, number: int, broker: Node) -> None:
        remote = broker.services.tiered_storage
        assert remote is not None
        self._check_image(broker.metadata.image)

        def image_changed(delta: MetadataDelta) -> None:
            self._check_image(delta.image)
            self._note_deletable(broker)

        broker.metadata.subscribe(image_changed)
        remote.metadata.on_segment(lambda segment: self._check_segment(number, broker, segment))

    def _check_image(self, image: MetadataImage) -> None:
        for topic_id, tiering in image.tiering.items():
            key = topic_id, tiering.epoch
            if tiering.state is TieredState.DISABLED and key not in self._completed:
                self._completed.add(key)
                self._check_completed(image, topic_id, tiering)

    def _check_completed(self, image: MetadataImage, topic_id: UUID, tiering: TopicTiering) -> None:
        """Check each running broker that is registered, at the first sight of the state DISABLED."""
        for node, broker in self._cluster.running():
            registered = image.brokers.get(node.number)
            if registered is None or broker.services.lifecycle.broker_epoch != registered.epoch:
                continue
            applied = broker.metadata.image.tiering_of(topic_id).epoch
            if topic_id in broker.metadata.image.topics_by_id and applied < tiering.epoch:
                self._add_anomaly(
                    "disabled too early",
                    f"{topic_id} in tiered epoch {tiering.epoch}, {host(node.number)} knows {applied}",
                )
            if tiering.policy is DisablePolicy.DELETE:
                self._check_leader_has_deleted(image, topic_id, broker)

    def _check_leader_has_deleted(self, image: MetadataImage, topic_id: UUID, broker: Node) -> None:
        for partition in broker.partitions:
            if partition.topic_id != topic_id or not partition.is_leader:
                continue
            found = image.topics_by_id[topic_id].partitions[partition.index]
            is_current = (found.leader, found.leader_epoch) == (
                broker.node_id,
                partition.leader_epoch,
            )
            # A copy whose start was published late has no objects, and is deleted afterwards
            left = [
                each
                for each in _segments(broker, partition)
                if segment_key(each, LOG_SUFFIX) in self._bucket.objects
            ]
            if is_current and left:
                self._add_anomaly(
                    "disabled too early",
                    f"{partition!r} on {host(broker.node_id)} has {_describe(left)}",
                )

    def _check_segment(self, number: int, broker: Node, segment: RemoteLogSegmentMetadata) -> None:
        """Check the new state of a segment on the leader, once the leader knows all earlier states."""
        id, remote = segment.partition, broker.services.tiered_storage
        partition = broker.partitions.opened(id.topic, id.partition)
        if (
            remote is None
            or partition is None
            or partition.topic_id != id.topic_id
            or not partition.is_leader
            or not remote.metadata.is_ready(id)
        ):
            return
        if segment.state is SegmentState.COPY_SEGMENT_FINISHED:
            self._check_copy(number, broker, segment)
        is_deleted = segment.state is SegmentState.DELETE_SEGMENT_STARTED
        if is_deleted and segment.broker_id == number and id.topic in self._topics:
            self._check_deletion(number, partition, segment, remote.metadata)

    def _check_copy(self, number: int, broker: Node, segment: RemoteLogSegmentMetadata) -> None:
        """Check that the copy began after the last disablement with the policy delete."""
        tiering = broker.metadata.image.tiering_of(segment.partition.topic_id)
        is_earlier = segment.tiered_epoch < tiering.first_epoch
        if is_earlier and tiering.state is not TieredState.DISABLING:
            self._add_anomaly(EARLIER_COPY, f"{host(number)}, {_describe([segment])}: {tiering}")

    def _check_deletion(
        self,
        number: int,
        partition: Partition,
        segment: RemoteLogSegmentMetadata,
        metadata: RemoteLogMetadataManager,
    ) -> None:
        """Check that the leader that deletes a segment has moved the log start offset beyond it."""
        id, log = segment.partition, partition.log
        start = max(segment.start_offset, log.log_start_offset)
        epoch = log.epochs.epoch_for(start)
        if start >= min(segment.end_offset + 1, log.local_log_start_offset) or epoch is None:
            return
        if metadata.segment_for(id, epoch, start) is None:
            self._add_anomaly(
                "deleted above the log start",
                f"{host(number)} deletes {id.topic}-{id.partition} from {start} on, which is in no other tier",
            )

    # After recovery

    def check_log_starts(self, log_starts: Mapping[int, int]) -> None:
        """Check the log start offsets of the first topic; nothing but a disablement moves them."""
        self.step()
        for partition, start in log_starts.items():
            limit = self._deletable.get(partition, 0)
            if start > limit:
                self._add_anomaly(
                    "wrong log start offset",
                    f"partition {partition} starts at {start}; a disablement allows {limit}",
                )

    async def final(
        self,
        committed: list[ReadRecord],
        read_again: Callable[[Mapping[int, int]], Awaitable[list[ReadRecord]]],
        log_starts: Mapping[int, int],
    ) -> None:
        """Check the states and the data. `committed` are the records of the first topic, and `read_again` reads them
        from offsets on."""
        is_disabled = await self._until(self._describe_disabling, "not disabled", skews=False)
        if not is_disabled or not await self._until(self._describe_unfinished, "not deleted"):
            return
        states = {topic: self._tiering.state(topic) for topic in self._topics}
        self._cluster.trace.add(f"tiered states: {states}, log start offsets: {dict(log_starts)}")
        wanted = Counter(each for each in committed if each.offset >= log_starts[each.partition])
        again = Counter(await read_again(log_starts))
        if missing := wanted - again:
            self._add_anomaly("lost in the remote tier", f"{list(missing)}")
        if more := again - wanted:
            self._add_anomaly("duplicated by the remote tier", f"{list(more)}")

    async def wait_enabled(self) -> None:
        """Wait until all nodes know that the topics are enabled, and that no copy of a tiered epoch before a deletion
        counts."""
        if await self._until(self._describe_not_enabled, "not enabled"):
            await self._until(self._describe_earlier_copies, EARLIER_COPY)

    def replica_starts(self) -> ReplicaStarts:
        return {
            (partition.topic, partition.index, broker.node_id): partition.log.log_start_offset
            for broker, partition in self._replicas(*self._topics)
        }

    async def _until(
        self, describe: Callable[[], str | None], kind: str, *, skews: bool = True
    ) -> bool:
        """Wait until `describe` returns None, and return whether it does. `skews`: after `PROMPT_S`, the clocks of
        all nodes are moved, so that leaders delete incomplete copies of other brokers."""
        began, has_skewed = trio.current_time(), not skews
        while (why := describe()) is not None:
            waited_s = trio.current_time() - began
            if waited_s > PROMPT_S and not has_skewed:
                has_skewed = True
                for node in self._cluster:
                    node.clock.skew_ms += DANGLING_MS + 1
                self._cluster.trace.add(f"{kind} within {PROMPT_S:g} s: {why}")
            if waited_s > TIMEOUT_S:
                self._add_anomaly(kind, f"in {TIMEOUT_S:g} s: {why}")
                return False
            await trio.sleep(STEP_S)
        return True

    def _describe_disabling(self) -> str | None:
        """Describe a topic that is being disabled."""
        for _, broker in self._cluster.running():
            image = broker.metadata.image
            for topic_id, tiering in image.tiering.items():
                if topic_id not in image.topics_by_id:
                    return f"{topic_id} does not exist and has the tiering {tiering}"
                if tiering.state is TieredState.DISABLING:
                    topic = image.topics_by_id[topic_id].name
                    left = _deletes(image, topic) and self._describe_remaining(image, topic)
                    return f"{topic} is DISABLING: {left}"
        return None

    def _describe_unfinished(self) -> str | None:
        """Describe a topic whose remote data is not deleted."""
        for _, broker in self._cluster.running():
            image = broker.metadata.image
            for topic in self._topics:
                if _deletes(image, topic) and (why := self._describe_remaining(image, topic)):
                    return why
        return None

    def _describe_remaining(self, image: MetadataImage, topic: str) -> str | None:
        topic_id = image.topics_by_name[topic].id
        keys = [key for key in self._bucket.objects if _topic_id_of(key) == topic_id]
        if keys and not self._may_dangle:
            return f"the store has {sorted(keys)}"
        for broker, partition in self._replicas(topic):
            log, name = partition.log, f"{partition!r} on {host(broker.node_id)}"
            if left := _segments(broker, partition):
                return f"{name} has {_describe(left)}"
            if log.log_start_offset != log.local_log_start_offset:
                return f"{name} starts at {log.log_start_offset}, locally at {log.local_log_start_offset}"
        return None

    def _describe_not_enabled(self) -> str | None:
        for node, broker in self._cluster.running():
            image = broker.metadata.image
            for topic in self._topics:
                if topic in image.topics_by_name and image.topic_configs(topic)[ENABLE] != "true":
                    return f"{topic} on {host(node.number)} has {image.topic_configs(topic)}"
        return None

    def _describe_earlier_copies(self) -> str | None:
        for broker, partition in self._replicas(*self._topics):
            assert partition.topic_id is not None
            first = broker.metadata.image.tiering_of(partition.topic_id).first_epoch
            earlier = [
                each
                for each in _segments(broker, partition)
                if each.state is SegmentState.COPY_SEGMENT_FINISHED and each.tiered_epoch < first
            ]
            if earlier:
                return f"{partition!r} on {host(broker.node_id)}: {_describe(earlier)}; first is {first}"
        return None

    def _replicas(self, *topics: str) -> Iterator[tuple[Node, Partition]]:
        for _, broker in self._cluster.running():
            for partition in broker.partitions:
                if partition.topic in topics and partition.log.failure is None:
                    yield broker, partition


def _segments(broker: Node, partition: Partition) -> list[RemoteLogSegmentMetadata]:
    """The remote segments that a broker knows, in any state."""
    remote = broker.services.tiered_storage
    assert remote is not None
    assert partition.topic_id is not None
    id = TopicIdPartition(partition.topic_id, partition.topic, partition.index)
    return list(remote.metadata.segments(id)) if remote.metadata.is_ready(id) else []


def _describe(segments: Sequence[RemoteLogSegmentMetadata]) -> str:
    return ", ".join(
        f"{each.id.id} of broker {each.broker_id} from {each.start_offset} to {each.end_offset},"
        f" tiered epoch {each.tiered_epoch}: {each.state.name}"
        for each in segments
    )


def _deletes(image: MetadataImage, topic: str) -> bool:
    """Whether a disablement that deletes the remote data is in effect."""
    found = image.topics_by_name.get(topic)
    if found is None:
        return False
    configs, tiering = image.topic_configs(topic), image.tiering_of(found.id)
    if configs.get(ENABLE) == "true":
        return False
    return tiering.policy is DisablePolicy.DELETE or configs.get(DELETE_ON_DISABLE) == "true"


def _topic_id_of(key: str) -> UUID | None:
    name, summary = parse_key(key), parse_summary(key)
    if name is not None:
        return name.id.partition.topic_id
    return None if summary is None else summary[0].topic_id
