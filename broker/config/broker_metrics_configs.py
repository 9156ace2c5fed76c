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
        doc="The number of samples from which a metric is computed."),
    row("metrics.sample.window.ms", LONG, "30000", LOW, at_least(1),
        doc="The time span of one sample of a metric, in ms."),
    row("metric.reporters", LIST, "org.apache.kafka.common.metrics.JmxReporter", LOW, distinct(), CLUSTER_WIDE,
        doc="A comma-separated list of the classes that report metrics. They implement "
            "org.apache.kafka.common.metrics.MetricsReporter."),
    row("metrics.recording.level", STRING, "INFO", LOW,
        doc="The highest recording level of metrics: INFO, DEBUG or TRACE."),
    row("odradek.metrics.listener", STRING, None, LOW, address,
        doc="The address (host:port) of the HTTP endpoint `/metrics` for Prometheus. If not set, there is "
            "no endpoint. `--metrics` sets it.",
        internal=True, effect=True),
    row("kafka.metrics.reporters", LIST, "", LOW, distinct(),
        doc="A comma-separated list of the classes that report Yammer metrics."),
    row("kafka.metrics.polling.interval.secs", INT, "10", LOW, at_least(1),
        doc="The interval in seconds at which `kafka.metrics.reporters` are polled."),
    row("telemetry.max.bytes", INT, "1048576", LOW, at_least(1),
        doc="The maximum size in bytes of the metrics that a client pushes in one request, after "
            "compression (KIP-714)."),
    row("quota.window.num", INT, "11", LOW, at_least(1), effect=True,
        doc="The number of samples that are kept in memory for client quotas."),
    row("replication.quota.window.num", INT, "11", LOW, at_least(1), effect=True,
        doc="The number of samples that are kept in memory for replication quotas."),
    row("alter.log.dirs.replication.quota.window.num", INT, "11", LOW, at_least(1),
        doc="The number of samples that are kept in memory for the quota of moves between log directories."),
    row("controller.quota.window.num", INT, "11", LOW, at_least(1), effect=True,
        doc="The number of samples that are kept in memory for controller mutation quotas."),
    row("quota.window.size.seconds", INT, "1", LOW, at_least(1), effect=True,
        doc="The time span of one sample for client quotas, in seconds."),
    row("replication.quota.window.size.seconds", INT, "1", LOW, at_least(1), effect=True,
        doc="The time span of one sample for replication quotas, in seconds."),
    row("alter.log.dirs.replication.quota.window.size.seconds", INT, "1", LOW, at_least(1),
        doc="The time span of one sample for the quota of moves between log directories, in seconds."),
    row("controller.quota.window.size.seconds", INT, "1", LOW, at_least(1), effect=True,
        doc="The time span of one sample for controller mutation quotas, in seconds."),
    row("client.quota.callback.class", CLASS, None, LOW,
        doc="The class that determines the quotas of clients. It implements "
            "org.apache.kafka.server.quota.ClientQuotaCallback."),
    row("leader.replication.throttled.rate", LONG, "9223372036854775807", MEDIUM, at_least(0), CLUSTER_WIDE, effect=True,
        doc="The maximum rate in bytes per second at which a leader sends to the followers of throttled "
            "replicas. It can be set only dynamically."),
    row("follower.replication.throttled.rate", LONG, "9223372036854775807", MEDIUM, at_least(0), CLUSTER_WIDE, effect=True,
        doc="The maximum rate in bytes per second at which a follower fetches throttled replicas. It can be "
            "set only dynamically."),
    row("replica.alter.log.dirs.io.max.bytes.per.second", LONG, "9223372036854775807", MEDIUM, at_least(0), CLUSTER_WIDE,
        doc="The maximum rate in bytes per second at which replicas are moved between log directories. It "
            "can be set only dynamically.", effect=True),
    row("intra.broker.throttled.rate", LONG, "9223372036854775807", MEDIUM, at_least(0), CLUSTER_WIDE,
        doc="The name of `replica.alter.log.dirs.io.max.bytes.per.second` in KIP-113. The lower of the two "
            "rates applies.", internal=True, effect=True),
)
# fmt: on
