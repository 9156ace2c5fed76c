"""The one table of metrics: what each is called, as Kafka calls it, and what it means.

A row is an MBean of Kafka's (or a group of them that differ in a label only). What Prometheus reads, and
docs/metrics.md, follow from it; `registry.py` takes no number that has no row here.
"""

from __future__ import annotations

from enum import Enum
from functools import cache

from odradek.seams.values import value_class


class Kind(Enum):
    METER = "counter"
    """Counts up. Kafka's name of it ends in PerSec: it shows rates, too, which Prometheus works out."""
    GAUGE = "gauge"
    """Is asked for when somebody looks."""
    TIMER = "summary"
    """How often something was done, and how long it took in all, in ms."""


@value_class
class MBean:
    """A name of Kafka's: `domain:type=…,name=…`."""

    domain: str
    type: str
    name: str

    def __str__(self) -> str:
        return f"{self.domain}:type={self.type},name={self.name}"


@value_class
class Metric:
    """A row. `labels` are the keys that tell its numbers apart; whatever else rooms tell theirs apart
    by is summed up. With `total` there is one without any label, too: the sum of all."""

    mbean: MBean
    kind: Kind
    help: str
    labels: tuple[str, ...] = ()
    total: bool = False
    also: tuple[MBean, ...] = ()
    """Other names that the same numbers go by."""
    called: str = ""

    @property
    def name(self) -> str:
        """What rooms call it: as Kafka does, where that is not the name of another row."""
        return self.called or self.mbean.name


TOPIC = ("topic",)
_BY_TOPIC = "BrokerTopicMetrics"
_REMOTE = "kafka.log.remote"


def _meter(
    name: str, help: str, *, type: str = _BY_TOPIC, labels: tuple[str, ...] = TOPIC, also: str = ""
) -> Metric:
    """A counter of `kafka.server`, by topic and in all; `also` is KIP-405's name of it."""
    others = (MBean("kafka.server", type, also),) if also else ()
    return Metric(MBean("kafka.server", type, name), Kind.METER, help, labels, bool(labels), others)


def _topic_gauge(name: str, help: str, *also: MBean) -> Metric:
    return Metric(MBean("kafka.server", _BY_TOPIC, name), Kind.GAUGE, help, TOPIC, True, also)


def _gauge(
    domain: str, type: str, name: str, help: str, *labels: str, also: tuple[MBean, ...] = ()
) -> Metric:
    return Metric(MBean(domain, type, name), Kind.GAUGE, help, labels, False, also)


def _of_log(name: str, help: str, *labels: str, type: str = "LogManager") -> Metric:
    return _gauge("kafka.log", type, name, help, *labels)


def _of_replicas(name: str, help: str) -> Metric:
    return _gauge("kafka.server", "ReplicaManager", name, help)


def _isr_meter(name: str, help: str) -> Metric:
    return _meter(name, help, type="ReplicaManager", labels=())


def _of_controller(name: str, help: str) -> Metric:
    return _gauge("kafka.controller", "KafkaController", name, help)


def _of_quorum(name: str, help: str) -> Metric:
    return _gauge("kafka.server", "raft-metrics", name, help)


# Tables, to be read as such: the formatter would give every column a line.
# fmt: off
TOPICS: tuple[Metric, ...] = (
    _meter("MessagesInPerSec", "Records that producers have appended."),
    _meter("BytesInPerSec", "Bytes of batches that producers have appended."),
    _meter("BytesOutPerSec", "Bytes of batches that consumers were given."),
    _meter("BytesRejectedPerSec", "Bytes of batches that are larger than may be."),
    _meter("TotalProduceRequestsPerSec", "Batches that producers sent for a partition."),
    _meter("FailedProduceRequestsPerSec", "Those that were refused."),
    _meter("TotalFetchRequestsPerSec", "Partitions that consumers were answered for."),
    _meter("FailedFetchRequestsPerSec", "Those with an error."),
    _meter("ReplicationBytesInPerSec", "Bytes that were fetched from leaders.", labels=()),
    _meter("ReplicationBytesOutPerSec", "Bytes that followers were given.", labels=()),
)
REPLICAS: tuple[Metric, ...] = (
    _of_replicas("PartitionCount", "Replicas that are open on this broker."),
    _of_replicas("LeaderCount", "Those that lead."),
    _of_replicas("OfflineReplicaCount", "Replicas in log directories that are offline."),
    _of_replicas("UnderReplicatedPartitions", "Partitions led here with replicas that are not in sync."),
    _of_replicas("UnderMinIsrPartitionCount", "Partitions led here with fewer than min.insync.replicas in sync."),
    _of_replicas("AtMinIsrPartitionCount", "Partitions led here with just min.insync.replicas in sync."),
    _of_replicas("ReassigningPartitions", "Partitions led here that are being reassigned."),
    _of_replicas("ProducerIdCount", "Producers that partitions here remember."),
    _isr_meter("IsrExpandsPerSec", "Times that a replica came in sync with its leader here."),
    _isr_meter("IsrShrinksPerSec", "Times that replicas were not in sync any more with their leader here."),
    _isr_meter("FailedIsrUpdatesPerSec", "Changes of in-sync replicas that the controller did not make."),
)
LOGS: tuple[Metric, ...] = (
    _of_log("OfflineLogDirectoryCount", "Log directories that are offline."),
    _of_log("CordonedLogDirectoryCount", "Log directories that get no new replicas (KIP-1066)."),
    _of_log("LogDirectoryOffline", "1 for a log directory that is offline.", "logDirectory"),
    _of_log("LogDirectoryCordoned", "1 for a log directory that gets no new replicas.", "logDirectory"),
    _of_log("Size", "Bytes of a replica's local segments.", "topic", "partition", type="Log"),
    _of_log("NumLogSegments", "Local segments of a replica.", "topic", "partition", type="Log"),
    _of_log("LogStartOffset", "A replica's first offset.", "topic", "partition", type="Log"),
    _of_log("LogEndOffset", "The offset after a replica's last.", "topic", "partition", type="Log"),
    _of_log("RetentionSizeInPercent", "Bytes of a replica that is not tiered, in percent of its retention.bytes.", "topic", "partition", type="Log"),
)
CLUSTER: tuple[Metric, ...] = (
    _gauge("kafka.server", "KafkaServer", "BrokerState", "0 not running, 1 starting, 2 recovering logs, 3 running, 6 handing over, 7 shutting down."),
    _of_controller("ActiveControllerCount", "1 on the active controller."),
    _of_controller("ActiveBrokerCount", "Brokers that are registered and not fenced."),
    _of_controller("FencedBrokerCount", "Brokers that are registered and fenced."),
    _of_controller("GlobalTopicCount", "Topics of the cluster."),
    _of_controller("GlobalPartitionCount", "Partitions of the cluster."),
    _of_controller("OfflinePartitionsCount", "Partitions without a leader."),
    _of_controller("PreferredReplicaImbalanceCount", "Partitions that another leads than the first of their replicas."),
    _of_controller("LastAppliedRecordOffset", "Of the metadata log."),
    _of_quorum("current-leader", "Which node leads the quorum; -1: none."),
    _of_quorum("current-epoch", "The quorum's epoch."),
    _of_quorum("high-watermark", "Of the metadata log."),
    _of_quorum("log-end-offset", "Of the metadata log."),
    _of_quorum("number-of-voters", "Of the quorum."),
)
TIERED: tuple[Metric, ...] = (
    # T-54, with the names that KIP-405 has for them
    _meter("RemoteFetchRequestsPerSec", "Reads from remote storage that consumers asked for.", also="RemoteReadRequestsPerSec"),
    _meter("RemoteFetchBytesPerSec", "Bytes read from remote storage for consumers.", also="RemoteBytesInPerSec"),
    _meter("RemoteFetchErrorsPerSec", "Reads from remote storage that failed.", also="RemoteReadErrorPerSec"),
    _meter("RemoteCopyRequestsPerSec", "Copies of segments to remote storage that were begun."),
    _meter("RemoteCopyBytesPerSec", "Bytes copied to remote storage.", also="RemoteBytesOutPerSec"),
    _meter("RemoteCopyErrorsPerSec", "Copies of segments to remote storage that failed.", also="RemoteWriteErrorPerSec"),
    _meter("RemoteDeleteRequestsPerSec", "Deletions of segments in remote storage that were begun."),
    _meter("RemoteDeleteErrorsPerSec", "Deletions of segments in remote storage that failed."),
    _meter("BuildRemoteLogAuxStateRequestsPerSec", "Times a follower rebuilt epochs and producer state from remote storage."),
    _meter("BuildRemoteLogAuxStateErrorsPerSec", "Times that failed."),
    _topic_gauge("RemoteCopyLagBytes", "Bytes that could be copied to remote storage, and are not there yet."),
    _topic_gauge("RemoteCopyLagSegments", "Segments that could be copied to remote storage, and are not there yet."),
    _topic_gauge("RemoteDeleteLagBytes", "Bytes in remote storage that are to be deleted."),
    _topic_gauge("RemoteDeleteLagSegments", "Segments in remote storage that are to be deleted."),
    _topic_gauge("RemoteLogMetadataCount", "Segments that the remote log metadata of led partitions knows."),
    # S-04, under the MBean that KIP-852 has for it, too
    _topic_gauge("RemoteLogSizeBytes", "Bytes in remote storage of led partitions, as of the last run of retention.",
                 MBean(_REMOTE, _BY_TOPIC, "RemoteLogSizeBytes")),
    _topic_gauge("RemoteLogSizeComputationTime", "How long the last run of retention took to add that up, in ms."),
    Metric(MBean(_REMOTE, "RemoteLogManager", "RetentionSizeInPercent"), Kind.GAUGE, "Bytes of a led tiered partition in both tiers, in percent of its retention.bytes.",
           ("partition", "topic"), called="TieredRetentionSizeInPercent"),
    _gauge(_REMOTE, "RemoteLogManager", "LocalRetentionSizeInPercent", "Bytes of a led tiered partition on the disk, in percent of its local.retention.bytes.", "partition", "topic"),
    _gauge("kafka.server", "RemoteLogManager", "remote-copy-throttle-time-avg", "For how long copies waited for their quota, in ms, on average of the last minute."),
    _gauge("kafka.server", "RemoteLogManager", "remote-copy-throttle-time-max", "The longest of these."),
    _gauge("kafka.server", "RemoteLogManager", "remote-fetch-throttle-time-avg", "How long the quota of reads from remote storage was still exceeded where one was left out, in ms, on average of the last minute."),
    _gauge("kafka.server", "RemoteLogManager", "remote-fetch-throttle-time-max", "The longest of these."),
    # T-55, with the MBeans of Kafka before 4.2
    _gauge(_REMOTE, "RemoteStorageThreadPool", "RemoteLogReaderTaskQueueSize", "Reads from remote storage that wait for a thread.",
           also=(MBean("org.apache.kafka.storage.internals.log", "RemoteStorageThreadPool", "RemoteLogReaderTaskQueueSize"),)),
    _gauge(_REMOTE, "RemoteStorageThreadPool", "RemoteLogReaderAvgIdlePercent", "The part of the reading threads that is idle, 0 to 1.",
           also=(MBean("org.apache.kafka.storage.internals.log", "RemoteStorageThreadPool", "RemoteLogReaderAvgIdlePercent"),)),
    _gauge(_REMOTE, "RemoteLogManager", "RemoteLogManagerTasksAvgIdlePercent", "The part of the copying threads that is idle, 0 to 1."),
    _gauge(_REMOTE, "RemoteLogManager", "PartitionsWithoutHistoryCount", "Tiered partitions that have lost leader epochs of what left the disk, and could not read them in remote storage yet: nothing of theirs expires there."),
    _gauge(_REMOTE, "RemoteLogManager", "RemoteLogMetadataDamagedCount", "Partitions of __remote_log_metadata of which this broker knows nothing behind a batch that is damaged on its leader's disk."),
    _gauge(_REMOTE, "RemoteLogManager", "RemoteStoreAway", "1 while copies to remote storage fail, or it could not be reached at this broker's start, or had nothing of what was copied."),
    Metric(MBean(_REMOTE, "RemoteLogManager", "RemoteLogReaderFetchRateAndTimeMs"), Kind.TIMER, "Reads from remote storage: how many, and how long they took."),
    _gauge("kafka.server", "DelayedRemoteFetchMetrics", "NumDelayedOperations", "Fetches that wait for remote storage."),
    _meter("ExpiresPerSec", "Fetches that got their answer before remote storage gave its.", type="DelayedRemoteFetchMetrics", labels=()),
)
# fmt: on


@cache
def by_name() -> dict[str, Metric]:
    """The rows by what rooms call them."""
    rows = (*TOPICS, *REPLICAS, *LOGS, *TIERED, *CLUSTER)
    return {each.name: each for each in rows}
