"""Gauges of a node: quorum, controller, log directories, logs and replicas, read when metrics are collected.

Sums over thousands of partitions are computed in steps before a collection. Logs that are offline are left out,
as in Kafka, as are logs whose files currently cannot be read because of a disk error or because they are being
replaced.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from typing import TYPE_CHECKING

import trio

from odradek.broker.lifecycle.broker_lifecycle import BrokerState
from odradek.broker.metrics.registry import Labels, Metrics, Numbers
from odradek.replication.controller import image as images
from odradek.replication.partition.partition import PartitionTraffic
from odradek.storage.errors import StorageError

if TYPE_CHECKING:
    from odradek.broker.controller.quorum_controller import ControllerMetadataManager
    from odradek.broker.replicas.partition_table import PartitionTable
    from odradek.broker.services import Services
    from odradek.replication.partition.partition import Partition
    from odradek.storage.log.partition_log import PartitionLog
    from odradek.storage.log_manager.log_manager import LogManager

PARTITIONS_PER_STEP = 100
"""Partitions per step, about 5 µs each."""

BY_TOPIC = {
    "MessagesInPerSec": "messages_in",
    "BytesInPerSec": "bytes_in",
    "BytesOutPerSec": "bytes_out",
    "BytesRejectedPerSec": "bytes_rejected",
    "TotalProduceRequestsPerSec": "produces",
    "FailedProduceRequestsPerSec": "failed_produces",
    "TotalFetchRequestsPerSec": "fetches",
    "FailedFetchRequestsPerSec": "failed_fetches",
}
IN_ALL = {
    "ReplicationBytesInPerSec": "replicated_bytes_in",
    "ReplicationBytesOutPerSec": "replicated_bytes_out",
}
OF_REPLICAS = (
    "PartitionCount",
    "LeaderCount",
    "UnderReplicatedPartitions",
    "UnderMinIsrPartitionCount",
    "AtMinIsrPartitionCount",
    "ReassigningPartitions",
    "ProducerIdCount",
)
OF_IN_SYNC_SETS = ("IsrExpandsPerSec", "IsrShrinksPerSec", "FailedIsrUpdatesPerSec")
OF_PARTITIONS = ("GlobalPartitionCount", "OfflinePartitionsCount", "PreferredReplicaImbalanceCount")
STATES = {
    BrokerState.STARTING: 1,
    BrokerState.RECOVERY: 2,
    BrokerState.RUNNING: 3,
    BrokerState.PENDING_CONTROLLED_SHUTDOWN: 6,
    BrokerState.SHUTTING_DOWN: 7,
}
"""Kafka's values of BrokerState."""


def register(services: Services) -> None:
    """Register all gauges: called once, after the logs are loaded and before partitions are opened."""
    _quorum(services)
    if services.config.is_controller:
        _controller(services)
    if services.config.is_broker:
        metrics = services.metrics
        metrics.gauge("BrokerState", lambda: STATES[services.lifecycle.state])
        services.partitions.counts_traffic = True
        _ReplicaGauges(services.partitions, services).register(metrics)
        _directories(services)
        _logs(services)
        if services.config.get_bool("diskless.storage.system.enable"):
            from odradek.broker.metrics import diskless_gauges

            diskless_gauges.register(metrics, lambda: services.diskless)


def _quorum(services: Services) -> None:
    metrics, metadata = services.metrics, services.metadata
    metrics.gauge("current-leader", lambda: metadata.leader_id)
    metrics.gauge("current-epoch", lambda: metadata.leader_epoch)
    metrics.gauge("high-watermark", lambda: metadata.high_watermark)
    metrics.gauge("log-end-offset", lambda: metadata.quorum.log_end_offset)
    metrics.gauge("number-of-voters", lambda: len(metadata.quorum.voters))


def _controller(services: Services) -> None:
    metrics, metadata = services.metrics, services.metadata
    counts: Counter[str] = Counter()

    async def work_out() -> None:
        found = Counter[str]()
        for topic in metadata.image.topics_by_id.values():
            for number, partition in enumerate(topic.partitions.values(), 1):
                found["GlobalPartitionCount"] += 1
                if partition.is_offline:
                    found["OfflinePartitionsCount"] += 1
                elif partition.replicas and partition.leader != partition.replicas[0]:
                    found["PreferredReplicaImbalanceCount"] += 1
                if number % PARTITIONS_PER_STEP == 0:
                    await trio.lowlevel.checkpoint()
            await trio.lowlevel.checkpoint()
        counts.clear()
        counts.update(found)

    metrics.before_collection(work_out)
    for name in OF_PARTITIONS:
        metrics.gauge(name, partial(counts.__getitem__, name))
    metrics.gauge("ActiveControllerCount", lambda: int(metadata.is_active))
    metrics.gauge("GlobalTopicCount", lambda: len(metadata.image.topics_by_id))
    metrics.gauge("LastAppliedRecordOffset", lambda: metadata.image.offset)
    for name, state in (
        ("TieringDisablingTopicCount", images.TieredState.DISABLING),
        ("TieringDisabledTopicCount", images.TieredState.DISABLED),
    ):
        metrics.gauge(name, partial(_topics_in_state, metadata, state))
    metrics.gauge("TieringDisablementMissingBrokerCount", partial(_missing_brokers, services))
    metrics.gauge("FencedBrokerCount", lambda: _fenced(metadata.image))
    metrics.gauge(
        "ActiveBrokerCount", lambda: len(metadata.image.brokers) - _fenced(metadata.image)
    )


def _topics_in_state(metadata: ControllerMetadataManager, state: images.TieredState) -> int:
    if not metadata.is_active:
        return 0
    return sum(each.state is state for each in metadata.image.tiering.values())


def _missing_brokers(services: Services) -> int:
    disablements = services.topic_disablements
    return 0 if disablements is None else disablements.missing_brokers


def _fenced(image: images.MetadataImage) -> int:
    return sum(each.fenced for each in image.brokers.values())


def _directories(services: Services) -> None:
    """LogManager gauges, whose MBean has the directory as a label."""
    metrics, logs = services.metrics, services.logs
    for gauge in logs.gauges():
        name, _, directory = gauge.partition(",logDirectory=")
        labels: dict[str, str | int] = {"log_directory": directory} if directory else {}
        metrics.gauge(name, partial(_gauge_of, logs, gauge), **labels)
    metrics.gauge("OfflineReplicaCount", lambda: len(logs.offline))


def _gauge_of(logs: LogManager, name: str) -> int:
    return logs.gauges()[name]


def _logs(services: Services) -> None:
    """Gauges of every replica on this broker."""
    table, metrics = services.partitions, services.metrics

    def source(name: str, read_value: Callable[[PartitionLog], int]) -> None:
        metrics.source(name, lambda: _of_each(table, read_value))

    source("Size", lambda which: which.size_bytes)
    source("NumLogSegments", lambda which: len(which.segments))
    source("LogStartOffset", lambda which: which.log_start_offset)
    source("RetentionSizeInPercent", _filled_percent)
    source("LogEndOffset", lambda which: which.end_offset)


def _of_each(
    table: Iterable[Partition], read_value: Callable[[PartitionLog], int]
) -> Iterator[tuple[Labels, int]]:
    for partition in table:
        found = _value_of(partition.log, read_value)
        if found is not None:
            yield (("partition", str(partition.index)), ("topic", partition.topic)), found


def _value_of(which: PartitionLog, read_value: Callable[[PartitionLog], int]) -> int | None:
    """Value of a log; None if its files cannot be read."""
    if which.failure is not None:
        return None
    try:
        return read_value(which)
    except (OSError, ValueError, StorageError):
        return None


def _filled_percent(which: PartitionLog) -> int:
    """Tiered partitions are reported by RemoteLogManager."""
    limit = which.config.retention_bytes
    return which.size_bytes * 100 // limit if limit > 0 and not which.is_tiered else 0


def _copy(past: Mapping[str, PartitionTraffic]) -> dict[str, PartitionTraffic]:
    copied: dict[str, PartitionTraffic] = {}
    for topic, traffic in past.items():
        copied[topic] = PartitionTraffic()
        copied[topic].add(traffic)
    return copied


class _ReplicaGauges:
    """Replica counts and traffic of this broker."""

    def __init__(self, table: PartitionTable, services: Services) -> None:
        self._table = table
        self._metadata = services.metadata
        self._counts: Counter[str] = Counter()
        self._traffic: dict[str, PartitionTraffic] = {}
        self._past = PartitionTraffic()

    def register(self, metrics: Metrics) -> None:
        metrics.before_collection(self._work_out)
        for name in OF_IN_SYNC_SETS:  # reported as 0 before the first event
            metrics.meter(name)
        for name in OF_REPLICAS:
            metrics.gauge(name, partial(self._count, name))
        for name, counted in BY_TOPIC.items():
            metrics.source(name, partial(self._by_topic, counted))
        for name, counted in IN_ALL.items():
            metrics.source(name, partial(self._in_all, counted))

    def _count(self, name: str) -> int:
        return self._counts[name]

    def _by_topic(self, counted: str) -> Numbers:
        yield (), getattr(self._past, counted)
        for topic, traffic in self._traffic.items():
            yield (("topic", topic),), getattr(traffic, counted)

    def _in_all(self, counted: str) -> Numbers:
        yield (), sum(value for _, value in self._by_topic(counted))

    async def _work_out(self) -> None:
        """Compute the sums over current and previous partitions; a partition that leaves during the computation
        counts once. Totals of a topic do not decrease when partitions leave."""
        counts, by_topic = Counter[str](), dict[str, PartitionTraffic]()
        past, past_by_topic = PartitionTraffic(), _copy(self._table.past_traffic)
        for number, partition in enumerate(self._table, 1):
            if partition.traffic is not None:
                by_topic.setdefault(partition.topic, PartitionTraffic()).add(partition.traffic)
            counts["PartitionCount"] += 1
            producers = _value_of(partition.log, lambda which: len(which.producers.active))
            counts["ProducerIdCount"] += producers or 0
            if partition.is_leader:
                counts.update(self._of_leader(partition))
            if number % PARTITIONS_PER_STEP == 0:
                await trio.lowlevel.checkpoint()
        for topic, traffic in past_by_topic.items():
            if topic not in by_topic and self._is_diskless(topic):
                by_topic[topic] = PartitionTraffic()
            by_topic.get(topic, past).add(traffic)
        self._counts, self._traffic, self._past = counts, by_topic, past

    def _is_diskless(self, topic: str) -> bool:
        """Whether the topic is diskless: its traffic counts although this broker has no partition of it."""
        image = self._metadata.image.topic(topic)
        return image is not None and image.is_diskless

    def _of_leader(self, partition: Partition) -> Iterator[str]:
        """Names of the counts that include this partition, as its leader in the current image."""
        yield "LeaderCount"
        image = self._metadata.image.partition(partition.topic, partition.index)
        if image is None:
            return  # the partition was just deleted
        in_sync = len(image.isr)
        least = min(partition.log.config.min_insync_replicas, len(image.replicas))
        if in_sync < len(image.replicas) - len(image.adding_replicas):
            yield "UnderReplicatedPartitions"
        if in_sync < least:
            yield "UnderMinIsrPartitionCount"
        elif in_sync == least:
            yield "AtMinIsrPartitionCount"
        if image.is_reassigning:
            yield "ReassigningPartitions"
