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
    """Counts up. Kafka's name of it ends in PerSec."""
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

    @property
    def name(self) -> str:
        """What rooms call it."""
        return self.mbean.name


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


# A table, to be read as one: the formatter would give every column a line.
# fmt: off
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
    # T-55, with the MBeans of Kafka before 4.2
    _gauge(_REMOTE, "RemoteStorageThreadPool", "RemoteLogReaderTaskQueueSize", "Reads from remote storage that wait for a thread.",
           also=(MBean("org.apache.kafka.storage.internals.log", "RemoteStorageThreadPool", "RemoteLogReaderTaskQueueSize"),)),
    _gauge(_REMOTE, "RemoteStorageThreadPool", "RemoteLogReaderAvgIdlePercent", "The part of the reading threads that is idle, 0 to 1.",
           also=(MBean("org.apache.kafka.storage.internals.log", "RemoteStorageThreadPool", "RemoteLogReaderAvgIdlePercent"),)),
    _gauge(_REMOTE, "RemoteLogManager", "RemoteLogManagerTasksAvgIdlePercent", "The part of the copying threads that is idle, 0 to 1."),
    Metric(MBean(_REMOTE, "RemoteLogManager", "RemoteLogReaderFetchRateAndTimeMs"), Kind.TIMER, "Reads from remote storage: how many, and how long they took."),
    _gauge("kafka.server", "DelayedRemoteFetchMetrics", "NumDelayedOperations", "Fetches that wait for remote storage."),
    _meter("ExpiresPerSec", "Fetches that got their answer before remote storage gave its.", type="DelayedRemoteFetchMetrics", labels=()),
)
# fmt: on


@cache
def by_name() -> dict[str, Metric]:
    """The rows by what rooms call them."""
    return {each.name: each for each in TIERED}
