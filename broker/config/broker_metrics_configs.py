"""Broker configs of metrics and quotas."""

from __future__ import annotations

from odradek.broker.config.config_key import (
    CLASS,
    CLUSTER_WIDE,
    INT,
    LIST,
    LONG,
    LOW,
    MEDIUM,
    STRING,
    Rows,
    row,
)
from odradek.broker.config.validators import (
    address,
    at_least,
    distinct,
)

# The formatter would put every column on a line of its own.
# fmt: off
METRICS: Rows = (
    row("metrics.num.samples", INT, "2", LOW, at_least(1),
        doc="Samples a metric is computed from."),
    row("metrics.sample.window.ms", LONG, "30000", LOW, at_least(1),
        doc="Length of one sample of a metric, in ms."),
    row("metric.reporters", LIST, "org.apache.kafka.common.metrics.JmxReporter", LOW, distinct(), CLUSTER_WIDE,
        doc="Classes that report metrics."),
    row("metrics.recording.level", STRING, "INFO", LOW,
        doc="Which metrics are recorded: INFO, DEBUG or TRACE."),
    row("odradek.metrics.listener", STRING, None, LOW, address,
        doc="Address of the HTTP endpoint /metrics for Prometheus. Without it there is no "
            "endpoint. `--metrics` sets it.",
        internal=True, effect=True),
    row("kafka.metrics.reporters", LIST, "", LOW, distinct(),
        doc="Classes that report the server's older metrics."),
    row("kafka.metrics.polling.interval.secs", INT, "10", LOW, at_least(1),
        doc="How often `kafka.metrics.reporters` are polled, in seconds."),
    row("telemetry.max.bytes", INT, "1048576", LOW, at_least(1),
        doc="Largest push of metrics accepted from a client, in bytes."),
    row("quota.window.num", INT, "11", LOW, at_least(1), effect=True,
        doc="Samples kept for client quotas."),
    row("replication.quota.window.num", INT, "11", LOW, at_least(1), effect=True,
        doc="Samples kept for replication quotas."),
    row("alter.log.dirs.replication.quota.window.num", INT, "11", LOW, at_least(1),
        doc="Samples kept for the quota of moves between log directories."),
    row("controller.quota.window.num", INT, "11", LOW, at_least(1), effect=True,
        doc="Samples kept for quotas of changes to the cluster."),
    row("quota.window.size.seconds", INT, "1", LOW, at_least(1), effect=True,
        doc="Length of one sample of client quotas, in seconds."),
    row("replication.quota.window.size.seconds", INT, "1", LOW, at_least(1), effect=True,
        doc="Length of one sample of replication quotas, in seconds."),
    row("alter.log.dirs.replication.quota.window.size.seconds", INT, "1", LOW, at_least(1),
        doc="Length of one sample of the quota of moves between log directories, in seconds."),
    row("controller.quota.window.size.seconds", INT, "1", LOW, at_least(1), effect=True,
        doc="Length of one sample of quotas of changes to the cluster, in seconds."),
    row("client.quota.callback.class", CLASS, None, LOW,
        doc="Class that decides the quotas of clients."),
    row("leader.replication.throttled.rate", LONG, "9223372036854775807", MEDIUM, at_least(0), CLUSTER_WIDE, effect=True,
        doc="Bytes a second a leader may send to followers of throttled replicas. Dynamic only."),
    row("follower.replication.throttled.rate", LONG, "9223372036854775807", MEDIUM, at_least(0), CLUSTER_WIDE, effect=True,
        doc="Bytes a second a follower may fetch of throttled replicas. Dynamic only."),
    row("replica.alter.log.dirs.io.max.bytes.per.second", LONG, "9223372036854775807", MEDIUM, at_least(0), CLUSTER_WIDE,
        doc="Bytes a second that moves between log directories may copy. Dynamic only.", effect=True),
    row("intra.broker.throttled.rate", LONG, "9223372036854775807", MEDIUM, at_least(0), CLUSTER_WIDE,
        doc="KIP-113's name of `replica.alter.log.dirs.io.max.bytes.per.second`. The lower of the two "
            "counts.", internal=True, effect=True),
)
# fmt: on
