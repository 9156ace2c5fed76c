"""The table of metrics: the MBean names, types, descriptions and labels.

A row is an MBean of Kafka, or several that differ only in a label. The Prometheus endpoint and docs/metrics.md are
generated from the table; `registry.py` refuses a metric without a row.
"""

from __future__ import annotations

from enum import Enum
from functools import cache

from odradek.seams.values import value_class


class Kind(Enum):
    METER = "counter"
    """A counter. The name ends in PerSec as in Kafka, whose MBean also has rates; Prometheus computes them."""
    GAUGE = "gauge"
    """A value that is read when the metrics are collected."""
    TIMER = "summary"
    """Number of measurements and their sum in ms."""


@value_class
class MBean:
    """Name of an MBean: `domain:type=…,name=…`."""

    domain: str
    type: str
    name: str

    def __str__(self) -> str:
        return f"{self.domain}:type={self.type},name={self.name}"


@value_class
class Metric:
    """A row of the table. Values are reported for each combination of `labels`, summed over all other labels of the
    registered meters and gauges. With `total` the sum over all labels is reported, too, as a metric of its own:
    sum() over a family would count twice if it had the total, and sums of a gauge need no total."""

    mbean: MBean
    kind: Kind
    help: str
    labels: tuple[str, ...] = ()
    total: bool = False
    also: tuple[MBean, ...] = ()
    """Other MBeans with the same values."""
    called: str = ""

    @property
    def name(self) -> str:
        """Unique name for `Metrics`: Kafka's, unless another row has it."""
        return self.called or self.mbean.name


TOPIC = ("topic",)
_BY_TOPIC = "BrokerTopicMetrics"
_REMOTE = "kafka.log.remote"


def _meter(
    name: str, help: str, *, type: str = _BY_TOPIC, labels: tuple[str, ...] = TOPIC, also: str = ""
) -> Metric:
    """Counter of `kafka.server` with a value per topic and a total; `also` is its name in KIP-405."""
    others = (MBean("kafka.server", type, also),) if also else ()
    return Metric(MBean("kafka.server", type, name), Kind.METER, help, labels, bool(labels), others)


def _topic_gauge(name: str, help: str, *also: MBean) -> Metric:
    return Metric(MBean("kafka.server", _BY_TOPIC, name), Kind.GAUGE, help, TOPIC, False, also)


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


def _of_diskless_coordinators(name: str, help: str) -> Metric:
    mbean = MBean("kafka.server", "DisklessCoordinator", name)
    return Metric(mbean, Kind.GAUGE, help, ("coordinator",), called=f"Diskless{name}")


def _of_diskless(type: str, name: str, help: str) -> Metric:
    kind = Kind.METER if name.endswith("PerSec") else Kind.GAUGE
    called = name if "-" in name else f"Diskless{name}"
    return Metric(MBean("kafka.server", type, name), kind, help, called=called)


def _of_diskless_writer(name: str, help: str) -> Metric:
    return _of_diskless("DisklessWriter", name, help)


def _of_diskless_reader(name: str, help: str) -> Metric:
    return _of_diskless("DisklessReader", name, help)


def _of_diskless_files(name: str, help: str) -> Metric:
    return _of_diskless("DisklessFiles", name, help)


def _of_quorum(name: str, help: str) -> Metric:
    return _gauge("kafka.server", "raft-metrics", name, help)


# The formatter would put every column on a line of its own.
# fmt: off
TOPICS: tuple[Metric, ...] = (
    _meter("MessagesInPerSec", "Records appended by producers."),
    _meter("BytesInPerSec", "Bytes of batches appended by producers."),
    _meter("BytesOutPerSec", "Bytes of batches sent to consumers."),
    _meter("BytesRejectedPerSec", "Bytes of batches rejected because they exceed max.message.bytes."),
    _meter("TotalProduceRequestsPerSec", "Produce requests, counted per partition."),
    _meter("FailedProduceRequestsPerSec", "Failed produce requests, counted per partition."),
    _meter("TotalFetchRequestsPerSec", "Fetch requests of consumers, counted per partition."),
    _meter("FailedFetchRequestsPerSec", "Failed fetch requests of consumers, counted per partition."),
    _meter("ReplicationBytesInPerSec", "Bytes fetched from leaders on other brokers.", labels=()),
    _meter("ReplicationBytesOutPerSec", "Bytes sent to followers.", labels=()),
)
REPLICAS: tuple[Metric, ...] = (
    _of_replicas("PartitionCount", "Online replicas on this broker."),
    _of_replicas("LeaderCount", "Partitions that this broker leads."),
    _of_replicas("OfflineReplicaCount", "Replicas in log directories that are offline."),
    _of_replicas("UnderReplicatedPartitions", "Partitions of which this broker is the leader and not all replicas are in sync."),
    _of_replicas("UnderMinIsrPartitionCount", "Partitions of which this broker is the leader and fewer than min.insync.replicas replicas are in sync."),
    _of_replicas("AtMinIsrPartitionCount", "Partitions of which this broker is the leader and exactly min.insync.replicas replicas are in sync."),
    _of_replicas("ReassigningPartitions", "Partitions of which this broker is the leader and which are being reassigned."),
    _of_replicas("ProducerIdCount", "Producer ids in the producer state of this broker's partitions."),
    _isr_meter("IsrExpandsPerSec", "Expansions of in-sync replica sets by this leader."),
    _isr_meter("IsrShrinksPerSec", "Shrinks of in-sync replica sets by this leader."),
    _isr_meter("FailedIsrUpdatesPerSec", "Changes of in-sync replica sets that the controller rejected."),
)
LOGS: tuple[Metric, ...] = (
    _of_log("OfflineLogDirectoryCount", "Log directories that are offline."),
    _of_log("CordonedLogDirectoryCount", "Cordoned log directories: they get no new replicas (KIP-1066)."),
    _of_log("LogDirectoryOffline", "1 if the log directory is offline, 0 otherwise.", "log_directory"),
    _of_log("LogDirectoryCordoned", "1 if the log directory is cordoned, 0 otherwise.", "log_directory"),
    _of_log("Size", "Size of the replica's local log in bytes.", "topic", "partition", type="Log"),
    _of_log("NumLogSegments", "Segments in the replica's local log.", "topic", "partition", type="Log"),
    _of_log("LogStartOffset", "The replica's log start offset.", "topic", "partition", type="Log"),
    _of_log("LogEndOffset", "The replica's log end offset.", "topic", "partition", type="Log"),
    _of_log("RetentionSizeInPercent", "Size of the log in percent of retention.bytes; only partitions without tiered storage.", "topic", "partition", type="Log"),
)
CLUSTER: tuple[Metric, ...] = (
    _gauge("kafka.server", "KafkaServer", "BrokerState", "0 not running, 1 starting, 2 recovering logs, 3 running, 6 controlled shutdown, 7 shutting down."),
    _of_controller("ActiveControllerCount", "1 if this node is the active controller, 0 otherwise."),
    _of_controller("ActiveBrokerCount", "Registered brokers that are not fenced."),
    _of_controller("FencedBrokerCount", "Registered brokers that are fenced."),
    _of_controller("GlobalTopicCount", "Topics in the cluster."),
    _of_controller("GlobalPartitionCount", "Partitions in the cluster."),
    _of_controller("OfflinePartitionsCount", "Partitions without a leader."),
    _of_controller("PreferredReplicaImbalanceCount", "Partitions whose leader is not the preferred leader."),
    _of_controller("TieringDisablingTopicCount", "Topics whose tiered storage is being disabled (KIP-950); 0 on nodes that are not the active controller."),
    _of_controller("TieringDisabledTopicCount", "Topics whose tiered storage is disabled (KIP-950); 0 on nodes that are not the active controller."),
    _of_controller("TieringDisablementMissingBrokerCount", "Brokers that have not finished their part of disabling tiered storage of a topic (KIP-950); 0 on nodes that are not the active controller."),
    _of_controller("LastAppliedRecordOffset", "Offset of the last metadata record that this controller has applied."),
    _of_quorum("current-leader", "Id of the leader of the metadata quorum; -1 if unknown."),
    _of_quorum("current-epoch", "Epoch of the metadata quorum."),
    _of_quorum("high-watermark", "High watermark of the metadata log."),
    _of_quorum("log-end-offset", "Log end offset of the metadata log."),
    _of_quorum("number-of-voters", "Voters of the metadata quorum."),
)
TIERED: tuple[Metric, ...] = (
    # T-54, with the names that KIP-405 has for them
    _meter("RemoteFetchRequestsPerSec", "Reads from the remote tier for fetches of consumers.", also="RemoteReadRequestsPerSec"),
    _meter("RemoteFetchBytesPerSec", "Bytes read from the remote tier for consumers.", also="RemoteBytesInPerSec"),
    _meter("RemoteFetchErrorsPerSec", "Failed reads from the remote tier.", also="RemoteReadErrorPerSec"),
    _meter("RemoteCopyRequestsPerSec", "Copies of segments to the remote tier."),
    _meter("RemoteCopyBytesPerSec", "Bytes copied to the remote tier.", also="RemoteBytesOutPerSec"),
    _meter("RemoteCopyErrorsPerSec", "Failed copies of segments to the remote tier.", also="RemoteWriteErrorPerSec"),
    _meter("RemoteDeleteRequestsPerSec", "Deletions of segments in the remote tier."),
    _meter("RemoteDeleteErrorsPerSec", "Failed deletions of segments in the remote tier."),
    _meter("BuildRemoteLogAuxStateRequestsPerSec", "Requests of followers to build auxiliary state from the remote tier: leader epochs and producer state."),
    _meter("BuildRemoteLogAuxStateErrorsPerSec", "Failed requests of followers to build auxiliary state."),
    _topic_gauge("RemoteCopyLagBytes", "Bytes of segments that are eligible for the remote tier and not copied yet."),
    _topic_gauge("RemoteCopyLagSegments", "Segments that are eligible for the remote tier and not copied yet."),
    _topic_gauge("RemoteDeleteLagBytes", "Bytes in the remote tier that are eligible for deletion."),
    _topic_gauge("RemoteDeleteLagSegments", "Segments in the remote tier that are eligible for deletion."),
    _topic_gauge("RemoteLogMetadataCount", "Remote log segments in the metadata of the partitions that this broker leads."),
    # S-04, also under the MBean of KIP-852
    _topic_gauge("RemoteLogSizeBytes", "Size of the remote log segments of the partitions that this broker leads in bytes, as of the last retention check.",
                 MBean(_REMOTE, _BY_TOPIC, "RemoteLogSizeBytes")),
    _topic_gauge("RemoteLogSizeComputationTime", "Time that the last retention check took to compute RemoteLogSizeBytes, in ms."),
    Metric(MBean(_REMOTE, "RemoteLogManager", "RetentionSizeInPercent"), Kind.GAUGE, "Size of both tiers of a partition that this broker leads, in percent of retention.bytes.",
           ("partition", "topic"), called="TieredRetentionSizeInPercent"),
    _gauge(_REMOTE, "RemoteLogManager", "LocalRetentionSizeInPercent", "Size of the local tier of a partition that this broker leads, in percent of local.retention.bytes.", "partition", "topic"),
    _gauge("kafka.server", "RemoteLogManager", "remote-copy-throttle-time-avg", "Average time that copies to the remote tier were throttled, in ms, over the last minute."),
    _gauge("kafka.server", "RemoteLogManager", "remote-copy-throttle-time-max", "Maximum time that a copy to the remote tier was throttled, in ms, over the last minute."),
    _gauge("kafka.server", "RemoteLogManager", "remote-fetch-throttle-time-avg", "Average time that reads from the remote tier were throttled, in ms, over the last minute."),
    _gauge("kafka.server", "RemoteLogManager", "remote-fetch-throttle-time-max", "Maximum time that a read from the remote tier was throttled, in ms, over the last minute."),
    # T-55, also under the MBeans of Kafka before 4.2
    _gauge(_REMOTE, "RemoteStorageThreadPool", "RemoteLogReaderTaskQueueSize", "Reads from the remote tier in the queue of the reader threads.",
           also=(MBean("org.apache.kafka.storage.internals.log", "RemoteStorageThreadPool", "RemoteLogReaderTaskQueueSize"),)),
    _gauge(_REMOTE, "RemoteStorageThreadPool", "RemoteLogReaderAvgIdlePercent", "Average idle fraction of the threads that read from the remote tier, 0 to 1.",
           also=(MBean("org.apache.kafka.storage.internals.log", "RemoteStorageThreadPool", "RemoteLogReaderAvgIdlePercent"),)),
    _gauge(_REMOTE, "RemoteLogManager", "RemoteLogManagerTasksAvgIdlePercent", "Average idle fraction of the threads that copy to the remote tier, 0 to 1."),
    _gauge(_REMOTE, "RemoteLogManager", "PartitionsWithoutLeaderEpochsCount", "Tiered partitions whose leader epochs are lost and not restored from the remote tier yet. Their remote segments do not expire until then."),
    _gauge(_REMOTE, "RemoteLogManager", "RemoteLogMetadataDamagedCount", "Partitions of __remote_log_metadata that this broker cannot read past a batch that is corrupt on the leader."),
    _gauge(_REMOTE, "RemoteLogManager", "RemoteStoreUnavailable", "1 while copies to the remote tier fail, or if the remote tier was unreachable or lacked the copied segments when this broker started."),
    Metric(MBean(_REMOTE, "RemoteLogManager", "RemoteLogReaderFetchRateAndTimeMs"), Kind.TIMER, "Number of reads from the remote tier and their total time in ms."),
    _gauge("kafka.server", "DelayedRemoteFetchMetrics", "NumDelayedOperations", "Fetch requests that wait for the remote tier."),
    _meter("ExpiresPerSec", "Fetch requests that timed out before the remote tier responded.", type="DelayedRemoteFetchMetrics", labels=()),
)
DISKLESS: tuple[Metric, ...] = (
    Metric(MBean("kafka.server", "DisklessCoordinator", "CoordinatorCount"), Kind.GAUGE, "Diskless coordinators that this broker leads.", called="DisklessCoordinatorCount"),
    _of_diskless_coordinators("PartitionCount", "Diskless partitions of a coordinator that this broker leads."),
    _of_diskless_coordinators("BatchCount", "Live batches of the coordinator."),
    _of_diskless_coordinators("LiveBytes", "Bytes of the coordinator's live batches."),
    _of_diskless_coordinators("FileCount", "WAL files that the coordinator tracks."),
    _of_diskless_coordinators("FilesToHandOver", "Files without live batches that the coordinator has to hand over to the next owner."),
    _of_diskless_coordinators("FilesToDelete", "Files without live batches whose objects the coordinator has to delete."),
    _of_diskless_coordinators("OldestFileAgeMs", "Time since the upload of the oldest file that the coordinator tracks, in ms; 0 without files."),
    _of_diskless_coordinators("StateBytes", "Size of the coordinator's state on this broker in bytes."),
    _of_diskless_coordinators("UnappliedRecords", "Records of the coordinator's partition of __diskless_metadata that are not applied to its state yet."),
    _of_diskless_writer("FilesWrittenPerSec", "WAL files that this broker has uploaded and committed."),
    _of_diskless_writer("BytesWrittenPerSec", "Bytes of these files."),
    _of_diskless_writer("BatchesCommittedPerSec", "Batches that this broker has committed, without duplicates."),
    _of_diskless_writer("DuplicateBatchesPerSec", "Batches that a producer had sent before."),
    _of_diskless_writer("FailedBatchesPerSec", "Batches that were not committed."),
    _of_diskless_writer("UploadRetriesPerSec", "Uploads that were retried."),
    _of_diskless_writer("FailedUploadsPerSec", "Uploads that failed in all attempts: their batches were not committed."),
    _of_diskless_writer("CommitRetriesPerSec", "Commits that were sent again, because a coordinator did not respond or moved."),
    _of_diskless_writer("FailedCommitsPerSec", "Commits without a response in time: their batches may have been committed."),
    _of_diskless_writer("CoordinatorRequestsPerSec", "Requests of this broker to coordinators on other brokers."),
    _of_diskless_writer("BufferedBytes", "Bytes of produced batches that are not committed yet."),
    _of_diskless_writer("upload-time-avg", "Average time of an upload in ms, with its retries, over the last minute."),
    _of_diskless_writer("upload-time-max", "Maximum time of an upload in ms, with its retries, over the last minute."),
    _of_diskless_writer("commit-time-avg", "Average time of a commit in ms, with its retries, over the last minute."),
    _of_diskless_writer("commit-time-max", "Maximum time of a commit in ms, with its retries, over the last minute."),
    _of_diskless_writer("append-time-avg", "Average time from the first batch of a file to its commit in ms, over the last minute."),
    _of_diskless_writer("append-time-max", "Maximum time from the first batch of a file to its commit in ms, over the last minute."),
    _of_diskless_reader("ObjectReadsPerSec", "Reads from the object store for consumers; each reads one range of an object."),
    _of_diskless_reader("ObjectReadBytesPerSec", "Bytes read from the object store for consumers."),
    _of_diskless_reader("FailedObjectReadsPerSec", "Failed reads from the object store, also of objects that were deleted."),
    _of_diskless_reader("CacheHitsPerSec", "Batches that were read from the object cache."),
    _of_diskless_reader("CacheMissesPerSec", "Batches that were not in the object cache."),
    _of_diskless_reader("CacheBytes", "Bytes in the object cache."),
    _of_diskless_files("FilesHandedOverPerSec", "Files that this broker's coordinators have handed over to the next owner."),
    _of_diskless_files("FilesDeletedPerSec", "Files whose objects this broker's coordinators have deleted."),
    _of_diskless_files("FilesTakenOverPerSec", "Files that this broker's coordinators have taken over, because the commits to the preceding owners had failed."),
    _of_diskless_files("OrphansDeletedPerSec", "Objects that no coordinator tracks and that this broker has deleted."),
)
# fmt: on


@cache
def by_name() -> dict[str, Metric]:
    """All rows of the table by `Metric.name`."""
    rows = (*TOPICS, *REPLICAS, *LOGS, *TIERED, *DISKLESS, *CLUSTER)
    return {each.name: each for each in rows}
