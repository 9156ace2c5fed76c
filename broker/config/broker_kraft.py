"""The node's place in the cluster: roles, the quorum of controllers, and the metadata log."""

from __future__ import annotations

from odradek.broker.config.rows import (
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

# A table, to be read as one: the formatter would give every column a line.
# fmt: off
KRAFT: Rows = (
    row("process.roles", LIST, None, HIGH, distinct("broker", "controller", empty=False),
        required=True, effect=True,
        doc="What this process is: `broker`, `controller`, or both."),
    row("node.id", INT, None, HIGH, at_least(0), required=True, effect=True,
        doc="This node's number, unique in the cluster."),
    row("initial.broker.registration.timeout.ms", INT, "60000", MEDIUM, effect=True,
        doc="How long the first registration with the controllers may take before the broker gives "
            "up, in ms."),
    row("broker.heartbeat.interval.ms", INT, "2000", MEDIUM, effect=True,
        doc="How often a broker reports to the controller, in ms; at most half of "
            "`broker.session.timeout.ms`."),
    row("broker.session.timeout.ms", INT, "9000", MEDIUM, effect=True,
        doc="How long a broker may be silent before the controller fences it, in ms."),
    row("controller.listener.names", LIST, None, HIGH, distinct(empty=False),
        required=True, effect=True,
        doc="Names of the listeners that controllers use. Clients are not told of them."),
    row("sasl.mechanism.controller.protocol", STRING, "GSSAPI", HIGH,
        doc="SASL mechanism towards controllers."),
    row("controller.performance.sample.period.ms", LONG, "60000", MEDIUM, at_least(100),
        internal=True,
        doc="How often the controller logs how long its work takes, in ms. For tests."),
    row("controller.performance.always.log.threshold.ms", LONG, "2000", MEDIUM, at_least(0),
        internal=True,
        doc="Controller work slower than this many ms is logged. For tests."),
    row("server.max.startup.time.ms", LONG, "9223372036854775807", MEDIUM, at_least(0),
        internal=True,
        doc="Longest time the server may take to start, in ms. For tests."),
    row("metadata.log.max.record.bytes.between.snapshots", LONG, "20971520", HIGH, at_least(1),
        effect=True,
        doc="Bytes of new metadata records after which a snapshot is written."),
    row("metadata.log.max.snapshot.interval.ms", LONG, "3600000", HIGH, at_least(0), effect=True,
        doc="Age in ms of the latest snapshot after which a new one is written, if there is anything "
            "new; 0 never."),
    row("metadata.log.dir", STRING, None, HIGH, effect=True,
        doc="Directory of the metadata log. Unset: the first of `log.dirs`."),
    row("metadata.log.segment.bytes", INT, "1073741824", HIGH, at_least(8388608), effect=True,
        doc="Size in bytes at which the metadata log rolls to a new segment."),
    row("metadata.log.segment.ms", LONG, "604800000", HIGH, effect=True,
        doc="Age in ms at which the metadata log rolls to a new segment."),
    row("metadata.max.retention.bytes", LONG, "104857600", HIGH, effect=True,
        doc="Bytes of metadata log and snapshots beyond which what a snapshot covers is deleted."),
    row("metadata.max.retention.ms", LONG, "604800000", HIGH, effect=True,
        doc="Age in ms beyond which metadata log and snapshots covered by a later snapshot are "
            "deleted."),
    row("metadata.max.idle.interval.ms", INT, "500", LOW, at_least(0), effect=True,
        doc="How often the active controller writes a record that does nothing, in ms, to show it is "
            "alive; 0 never."),
    row("internal.metadata.log.segment.bytes", INT, None, LOW, internal=True, effect=True,
        doc="Size in bytes of the metadata log's segments, below the usual minimum. For tests."),
    row("internal.metadata.max.batch.size.in.bytes", INT, "8388608", LOW, internal=True,
        doc="Largest batch in the metadata log, in bytes. For tests."),
    row("internal.metadata.delete.delay.millis", LONG, "60000", LOW, internal=True,
        doc="How long deleted files of the metadata log stay on disk, in ms. For tests."),
    row("controller.quorum.voters", LIST, "", HIGH, voters, effect=True,
        doc="The controllers of a quorum whose members do not change, as id@host:port entries."),
    row("controller.quorum.bootstrap.servers", LIST, "", HIGH, bootstrap_servers, effect=True,
        doc="Controllers to ask for the quorum's state, as host:port entries, where membership can "
            "change."),
    row("controller.quorum.election.timeout.ms", INT, "1000", HIGH, at_least(0), effect=True,
        doc="How long without contact from a leader before a controller calls an election, in ms."),
    row("controller.quorum.fetch.timeout.ms", INT, "2000", HIGH, at_least(0), effect=True,
        doc="How long without a successful fetch before a controller calls an election, in ms; and "
            "without followers before a leader resigns."),
    row("controller.quorum.election.backoff.max.ms", INT, "1000", HIGH, at_least(0), effect=True,
        doc="Longest pause before a new election, in ms."),
    row("controller.quorum.append.linger.ms", INT, "25", MEDIUM, at_least(0),
        doc="How long the leader gathers records before it writes them, in ms."),
    row("controller.quorum.request.timeout.ms", INT, "2000", MEDIUM, at_least(0), effect=True,
        doc="Timeout of requests between controllers, in ms."),
    row("controller.quorum.retry.backoff.ms", INT, "20", LOW, at_least(0), effect=True,
        doc="Pause before a failed request to a controller is tried again, in ms."),
    row("controller.quorum.auto.join.enable", BOOLEAN, "false", LOW, effect=True,
        doc="Join the quorum as a voter by itself. For nodes with the controller role."),
    row("controller.quorum.fetch.snapshot.max.bytes", INT, "1048576", LOW, at_least(1), effect=True,
        doc="Bytes of a snapshot asked for at once."),
    row("controller.quorum.fetch.max.bytes", INT, "1048576", LOW, at_least(1), effect=True,
        doc="Bytes of the metadata log asked for at once."),
)
# fmt: on
