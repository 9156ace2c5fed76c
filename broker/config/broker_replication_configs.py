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
        doc="The socket timeout in ms of requests to the controller."),
    row("default.replication.factor", INT, "1", MEDIUM, effect=True,
        doc="The default replication factor of a topic. For CreateTopics, the value of the controller is "
            "used; for automatically created topics, the value of the broker if it is set."),
    row("replica.lag.time.max.ms", LONG, "30000", HIGH, effect=True,
        doc="The time in ms after which the leader removes a follower from the ISR, if the follower has not "
            "fetched up to the log end offset since."),
    row("replica.socket.timeout.ms", INT, "30000", HIGH, effect=True,
        doc="The socket timeout in ms of the requests of followers. It must be at least "
            "`replica.fetch.wait.max.ms`."),
    row("replica.socket.receive.buffer.bytes", INT, "65536", HIGH,
        doc="The socket receive buffer in bytes of the connections over which followers fetch."),
    row("replica.fetch.max.bytes", INT, "1048576", MEDIUM, at_least(0), effect=True,
        doc="The number of bytes that a follower fetches for each partition. The first batch is returned "
            "even if it is larger, so that replication can make progress."),
    row("replica.fetch.wait.max.ms", INT, "500", HIGH, effect=True,
        doc="The maximum time in ms that a fetch of a follower waits for `replica.fetch.min.bytes`. It "
            "should be less than `replica.lag.time.max.ms`, so that the ISR of a topic with little traffic "
            "does not shrink."),
    row("replica.fetch.backoff.ms", INT, "1000", MEDIUM, at_least(0), effect=True,
        doc="The time in ms that a follower waits after an error before it fetches the partition again."),
    row("replica.fetch.min.bytes", INT, "1", HIGH, effect=True,
        doc="The minimum number of bytes in a Fetch response to a follower. With fewer, the request waits "
            "up to `replica.fetch.wait.max.ms`."),
    row("replica.fetch.response.max.bytes", INT, "10485760", MEDIUM, at_least(0), effect=True,
        doc="The maximum number of bytes in a Fetch response to a follower. The first batch is returned "
            "even if it is larger."),
    row("num.replica.fetchers", INT, "1", HIGH, at_least(1), CLUSTER_WIDE, effect=True,
        doc="The number of fetchers for each broker from which this broker replicates. More fetchers "
            "increase the parallelism of replication."),
    row("replica.high.watermark.checkpoint.interval.ms", LONG, "5000", HIGH, effect=True,
        doc="The interval in ms at which the high watermarks of all partitions are checkpointed."),
    row("fetch.purgatory.purge.interval.requests", INT, "1000", MEDIUM,
        doc="The number of requests after which completed requests are removed from the Fetch purgatory."),
    row("producer.purgatory.purge.interval.requests", INT, "1000", MEDIUM,
        doc="The number of requests after which completed requests are removed from the Produce purgatory."),
    row("delete.records.purgatory.purge.interval.requests", INT, "1", MEDIUM,
        doc="The number of requests after which completed requests are removed from the DeleteRecords "
            "purgatory."),
    row("auto.leader.rebalance.enable", BOOLEAN, "true", HIGH, effect=True,
        doc="Whether the controller moves leadership back to the preferred leaders. It checks the balance "
            "of the leaders at intervals of `leader.imbalance.check.interval.seconds`."),
    row("leader.imbalance.check.interval.seconds", LONG, "300", HIGH, at_least(1), effect=True,
        doc="The interval in seconds at which the controller checks the balance of the leaders."),
    row("unclean.leader.election.interval.ms", LONG, "300000", MEDIUM, at_least(1), internal=True, effect=True,
        doc="The interval in ms at which the controller checks for unclean leader elections of partitions "
            "without a leader. For tests."),
    row("unclean.leader.election.enable", BOOLEAN, "false", HIGH, mode=CLUSTER_WIDE, effect=True,
        doc="Whether a replica outside the ISR may be elected leader as a last resort. Records that it "
            "lacks are lost."),
    row("security.inter.broker.protocol", STRING, "PLAINTEXT", MEDIUM, one_of("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL"), effect=True,
        doc="The security protocol between brokers. Used only if `inter.broker.listener.name` is not set."),
    row("inter.broker.listener.name", STRING, None, MEDIUM, effect=True,
        doc="The name of the listener for communication between brokers. If not set, the listener is chosen "
            "by `security.inter.broker.protocol`. Only one of the two may be set."),
    row("replica.selector.class", STRING, None, MEDIUM, effect=True,
        doc="The class that selects the replica from which a consumer fetches. If not set, the leader. "
            "`org.apache.kafka.common.replica.RackAwareReplicaSelector` selects a replica in the rack of "
            "the consumer's `client.rack` (KIP-392)."),
    row("follower.fetch.last.tiered.offset.enable", BOOLEAN, "false", MEDIUM, mode=CLUSTER_WIDE,
        doc="Whether an empty follower starts to replicate after the last offset that is in the remote "
            "tier, instead of at the local log start offset of the leader (KIP-1023)."),
    row("num.replica.alter.log.dirs.threads", INT, None, HIGH,
        doc="The number of threads that move replicas between log directories. If not set, the number of "
            "log directories.", effect=True),
    row("num.replica.move.threads", INT, None, HIGH, at_least(1, null=True), CLUSTER_WIDE,
        doc="The name of `num.replica.alter.log.dirs.threads` in KIP-113. It takes precedence and can be "
            "updated dynamically.", internal=True, effect=True),
)
# fmt: on
