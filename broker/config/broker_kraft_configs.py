"""Configs of the node: roles, metadata quorum and metadata log."""

from __future__ import annotations

from odradek.broker.config.config_key import (
    BOOLEAN,
    HIGH,
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
    at_least,
    bootstrap_servers,
    distinct,
    voters,
)

# The formatter would put every column on a line of its own.
# fmt: off
KRAFT: Rows = (
    row("process.roles", LIST, None, HIGH, distinct("broker", "controller", empty=False),
        required=True, effect=True,
        doc="A comma-separated list of the roles of this process: `broker`, `controller`, or both."),
    row("node.id", INT, None, HIGH, at_least(0), required=True, effect=True,
        doc="The node id of this process. It must be unique in the cluster."),
    row("initial.broker.registration.timeout.ms", INT, "60000", MEDIUM, effect=True,
        doc="The time in ms that the broker waits at startup for its registration with the controller, "
            "after which it exits."),
    row("broker.heartbeat.interval.ms", INT, "2000", MEDIUM, effect=True,
        doc="The interval in ms at which the broker sends heartbeats to the controller. It must be at most "
            "half of `broker.session.timeout.ms`."),
    row("broker.session.timeout.ms", INT, "9000", MEDIUM, effect=True,
        doc="The time in ms without a heartbeat after which the controller fences the broker."),
    row("controller.listener.names", LIST, None, HIGH, distinct(empty=False),
        required=True, effect=True,
        doc="A comma-separated list of the names of the controller listeners. They are not advertised to "
            "clients. The first one is used by brokers and controllers to connect to controllers."),
    row("sasl.mechanism.controller.protocol", STRING, "GSSAPI", HIGH,
        doc="The SASL mechanism for connections to controllers."),
    row("controller.performance.sample.period.ms", LONG, "60000", MEDIUM, at_least(100),
        internal=True,
        doc="The interval in ms at which the controller logs its slowest operation. For tests."),
    row("controller.performance.always.log.threshold.ms", LONG, "2000", MEDIUM, at_least(0),
        internal=True,
        doc="The time in ms from which the controller always logs an operation as slow. For tests."),
    row("server.max.startup.time.ms", LONG, "9223372036854775807", MEDIUM, at_least(0),
        internal=True,
        doc="The maximum time in ms of startup, after which the process exits. The default sets no limit. "
            "For tests."),
    row("metadata.log.max.record.bytes.between.snapshots", LONG, "20971520", HIGH, at_least(1),
        effect=True,
        doc="The maximum number of bytes of metadata records between the latest snapshot and the high "
            "watermark before a new snapshot is generated."),
    row("metadata.log.max.snapshot.interval.ms", LONG, "3600000", HIGH, at_least(0), effect=True,
        doc="The maximum time in ms before a new snapshot is generated if there are committed records that "
            "the latest snapshot does not include. 0 disables snapshots by time."),
    row("metadata.log.dir", STRING, None, HIGH, effect=True,
        doc="The directory of the metadata log. If not set, the first directory of `log.dirs`."),
    row("metadata.log.segment.bytes", INT, "1073741824", HIGH, at_least(8388608), effect=True,
        doc="The maximum size of a segment of the metadata log in bytes."),
    row("metadata.log.segment.ms", LONG, "604800000", HIGH, effect=True,
        doc="The maximum time in ms before the metadata log rolls to a new segment, even if the active "
            "segment is not full."),
    row("metadata.max.retention.bytes", LONG, "104857600", HIGH, effect=True,
        doc="The maximum size in bytes of the metadata log and its snapshots before old snapshots and "
            "segments are deleted. It is a soft limit, because segments are deleted only if a snapshot "
            "includes them."),
    row("metadata.max.retention.ms", LONG, "604800000", HIGH, effect=True,
        doc="The time in ms after which a segment or a snapshot of the metadata log is deleted. It is a "
            "soft limit, because segments are deleted only if a snapshot includes them."),
    row("metadata.max.idle.interval.ms", INT, "500", LOW, at_least(0), effect=True,
        doc="The interval in ms at which the active controller writes no-op records to the metadata log. 0 "
            "disables them."),
    row("internal.metadata.log.segment.bytes", INT, None, LOW, internal=True, effect=True,
        doc="The maximum size of a segment of the metadata log in bytes; it may be below the minimum of "
            "`metadata.log.segment.bytes`. For tests."),
    row("internal.metadata.max.batch.size.in.bytes", INT, "8388608", LOW, internal=True,
        doc="The maximum size of a batch in the metadata log in bytes. For tests."),
    row("internal.metadata.delete.delay.millis", LONG, "60000", LOW, internal=True,
        doc="The time in ms before a deleted segment or snapshot of the metadata log is removed from the "
            "file system. For tests."),
    row("controller.quorum.voters", LIST, "", HIGH, voters, effect=True,
        doc="A comma-separated list of the voters of a static quorum, as id@host:port. With a dynamic "
            "quorum it is not set, and `controller.quorum.bootstrap.servers` is."),
    row("controller.quorum.bootstrap.servers", LIST, "", HIGH, bootstrap_servers, effect=True,
        doc="A comma-separated list of the endpoints (host:port) from which the node discovers a dynamic "
            "quorum (KIP-853)."),
    row("controller.quorum.election.timeout.ms", INT, "1000", HIGH, at_least(0), effect=True,
        doc="The time in ms that a voter waits for a leader before it starts an election."),
    row("controller.quorum.fetch.timeout.ms", INT, "2000", HIGH, at_least(0), effect=True,
        doc="The time in ms without a successful fetch from the leader after which a voter starts an "
            "election. Also the time in ms after which a leader resigns if a majority of the voters has not "
            "fetched."),
    row("controller.quorum.election.backoff.max.ms", INT, "1000", HIGH, at_least(0), effect=True,
        doc="The maximum time in ms before a voter starts a new election. The time is random and grows with "
            "each election, which prevents split votes."),
    row("controller.quorum.append.linger.ms", INT, "25", MEDIUM, at_least(0),
        doc="The time in ms that the leader accumulates records before it writes them to disk."),
    row("controller.quorum.request.timeout.ms", INT, "2000", MEDIUM, at_least(0), effect=True,
        doc="The timeout in ms of requests between the nodes of the quorum."),
    row("controller.quorum.retry.backoff.ms", INT, "20", LOW, at_least(0), effect=True,
        doc="The time in ms before a failed request to a node of the quorum is retried."),
    row("controller.quorum.auto.join.enable", BOOLEAN, "false", LOW, effect=True,
        doc="Whether a controller that is not a voter adds itself to the voters of a dynamic quorum."),
    row("controller.quorum.fetch.snapshot.max.bytes", INT, "1048576", LOW, at_least(1), effect=True,
        doc="The maximum number of bytes of a snapshot in a FetchSnapshot response."),
    row("controller.quorum.fetch.max.bytes", INT, "1048576", LOW, at_least(1), effect=True,
        doc="The maximum number of bytes of the metadata log in a Fetch response."),
)
# fmt: on
