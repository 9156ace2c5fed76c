"""Broker configs of replication and leader election."""

from __future__ import annotations

from odradek.broker.config.config_key import (
    BOOLEAN,
    CLUSTER_WIDE,
    HIGH,
    INT,
    LONG,
    MEDIUM,
    STRING,
    Rows,
    row,
)
from odradek.broker.config.validators import (
    at_least,
    one_of,
)

# The formatter would put every column on a line of its own.
# fmt: off
REPLICATION: Rows = (
    row("controller.socket.timeout.ms", INT, "30000", MEDIUM,
        doc="Socket timeout of requests to the controller, in ms."),
    row("default.replication.factor", INT, "1", MEDIUM, effect=True,
        doc="Replicas of a topic that is created without a number, as the controller has it; of one "
            "created automatically as the asked broker has it, where that sets it."),
    row("replica.lag.time.max.ms", LONG, "30000", HIGH, effect=True,
        doc="How long a follower may lag behind the end of the log before it leaves the in-sync set, "
            "in ms."),
    row("replica.socket.timeout.ms", INT, "30000", HIGH, effect=True,
        doc="Socket timeout of a follower's requests, in ms; at least `replica.fetch.wait.max.ms`."),
    row("replica.socket.receive.buffer.bytes", INT, "65536", HIGH,
        doc="Socket receive buffer of a follower, in bytes."),
    row("replica.fetch.max.bytes", INT, "1048576", MEDIUM, at_least(0), effect=True,
        doc="Bytes a follower asks for of one partition; a larger first batch comes whole."),
    row("replica.fetch.wait.max.ms", INT, "500", HIGH, effect=True,
        doc="How long a leader may hold back a follower's fetch for lack of data, in ms; at most "
            "`replica.lag.time.max.ms`."),
    row("replica.fetch.backoff.ms", INT, "1000", MEDIUM, at_least(0), effect=True,
        doc="How long a follower waits before it fetches again a partition that failed, in ms."),
    row("replica.fetch.min.bytes", INT, "1", HIGH, effect=True,
        doc="Minimum bytes for a Fetch response to a follower."),
    row("replica.fetch.response.max.bytes", INT, "10485760", MEDIUM, at_least(0), effect=True,
        doc="Maximum bytes in a Fetch response to a follower."),
    row("num.replica.fetchers", INT, "1", HIGH, at_least(1), CLUSTER_WIDE, effect=True,
        doc="Fetchers a follower runs against each leader's broker."),
    row("replica.high.watermark.checkpoint.interval.ms", LONG, "5000", HIGH, effect=True,
        doc="How often high watermarks are written to disk, in ms."),
    row("fetch.purgatory.purge.interval.requests", INT, "1000", MEDIUM,
        doc="Requests after which finished ones are swept out of those waiting in Fetch."),
    row("producer.purgatory.purge.interval.requests", INT, "1000", MEDIUM,
        doc="Requests after which finished ones are swept out of those waiting in Produce."),
    row("delete.records.purgatory.purge.interval.requests", INT, "1", MEDIUM,
        doc="Requests after which finished ones are swept out of those waiting in DeleteRecords."),
    row("auto.leader.rebalance.enable", BOOLEAN, "true", HIGH, effect=True,
        doc="Give leadership back to the preferred replicas by itself."),
    row("leader.imbalance.check.interval.seconds", LONG, "300", HIGH, at_least(1), effect=True,
        doc="How often the spread of leaders is looked at, in seconds."),
    row("unclean.leader.election.interval.ms", LONG, "300000", MEDIUM, at_least(1), internal=True, effect=True,
        doc="How often partitions without a leader are looked at for an unclean election, in ms. For "
            "tests."),
    row("unclean.leader.election.enable", BOOLEAN, "false", HIGH, mode=CLUSTER_WIDE, effect=True,
        doc="Let a replica outside the in-sync set lead when there is no other, at the price of "
            "records."),
    row("security.inter.broker.protocol", STRING, "PLAINTEXT", MEDIUM, one_of("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL"), effect=True,
        doc="Security protocol between brokers, where `inter.broker.listener.name` is not set."),
    row("inter.broker.listener.name", STRING, None, MEDIUM, effect=True,
        doc="Name of the listener other brokers use. Unset: the one named for "
            "`security.inter.broker.protocol`. Only one of the two may be set."),
    row("replica.selector.class", STRING, None, MEDIUM, effect=True,
        doc="Unset: consumers read from the leader. "
            "`org.apache.kafka.common.replica.RackAwareReplicaSelector`: from the replica in their "
            "`client.rack`."),
    row("follower.fetch.last.tiered.offset.enable", BOOLEAN, "false", MEDIUM, mode=CLUSTER_WIDE,
        doc="Let an empty follower start after the last tiered offset in place of the earliest local "
            "one."),
    row("num.replica.alter.log.dirs.threads", INT, None, HIGH,
        doc="Threads that move replicas between log directories. Unset: as many as there are "
            "directories.", effect=True),
    row("num.replica.move.threads", INT, None, HIGH, at_least(1, null=True), CLUSTER_WIDE,
        doc="KIP-113's name of `num.replica.alter.log.dirs.threads`, before which it counts; it can be "
            "changed while the broker runs.", internal=True, effect=True),
)
# fmt: on
