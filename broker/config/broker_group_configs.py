"""Broker configs of consumer groups and `__consumer_offsets`."""

from __future__ import annotations

from odradek.broker.config.config_key import (
    CLUSTER_WIDE,
    HIGH,
    INT,
    LIST,
    LONG,
    MEDIUM,
    SHORT,
    STRING,
    Rows,
    row,
)
from odradek.broker.config.validators import (
    at_least,
    distinct,
    one_of_any_case,
)

# The formatter would put every column on a line of its own.
# fmt: off
GROUPS: Rows = (
    row("group.coordinator.rebalance.protocols", LIST, "classic,consumer,streams", MEDIUM, distinct("consumer", "classic", "share", "streams", empty=False), effect=True,
        doc="Enabled rebalance protocols; `classic` is required."),
    row("group.coordinator.threads", INT, "4", HIGH, at_least(1),
        doc="Threads of the group coordinator."),
    row("group.coordinator.background.threads", INT, "2", HIGH, at_least(1),
        doc="Threads for the group coordinator's slower work, such as expressions over topic names."),
    row("group.coordinator.append.linger.ms", INT, "-1", MEDIUM, at_least(-1),
        doc="Time in ms for which the coordinator accumulates records before it writes them; -1 "
            "adapts to the load."),
    row("offsets.commit.timeout.ms", INT, "5000", HIGH, at_least(1), effect=True,
        doc="How long the write of committed offsets may wait for replicas, in ms."),
    row("offsets.load.buffer.size", INT, "5242880", HIGH, at_least(1), effect=True,
        doc="Bytes read at once when a coordinator loads its groups."),
    row("offsets.topic.replication.factor", SHORT, "3", HIGH, at_least(1), effect=True,
        doc="Replicas of `__consumer_offsets`, which is not created while there are fewer brokers."),
    row("offsets.topic.num.partitions", INT, "50", HIGH, at_least(1), effect=True,
        doc="Partitions of `__consumer_offsets`; must not be changed after the topic was created."),
    row("offsets.topic.segment.bytes", INT, "104857600", HIGH, at_least(1), effect=True,
        doc="Segment size of `__consumer_offsets`, in bytes; small, so that compaction and loading "
            "are quick."),
    row("offsets.topic.compression.codec", INT, "0", HIGH, effect=True,
        doc="Codec of the batches in `__consumer_offsets`, by its number: 0 none, 1 gzip, 2 snappy, 3 "
            "lz4, 4 zstd."),
    row("group.coordinator.cached.buffer.max.bytes", INT, "1048588", MEDIUM, at_least(524288), CLUSTER_WIDE,
        doc="Largest write buffer the group coordinator keeps for reuse, in bytes."),
    row("offset.metadata.max.bytes", INT, "4096", HIGH, effect=True,
        doc="Longest text that may be committed along with an offset, in bytes."),
    row("offsets.retention.minutes", INT, "10080", HIGH, at_least(1), effect=True,
        doc="Time in minutes after which committed offsets are deleted if the group is empty or "
            "no longer subscribed to the topic."),
    row("offsets.retention.check.interval.ms", LONG, "600000", HIGH, at_least(1), effect=True,
        doc="Interval in ms between checks for expired offsets."),
    row("group.min.session.timeout.ms", INT, "6000", MEDIUM, effect=True,
        doc="Shortest session timeout a classic member may ask for, in ms."),
    row("group.max.session.timeout.ms", INT, "1800000", MEDIUM, effect=True,
        doc="Longest session timeout a classic member may ask for, in ms."),
    row("group.initial.rebalance.delay.ms", INT, "3000", MEDIUM, effect=True,
        doc="Time in ms for which the first rebalance of an empty group waits for more members."),
    row("group.max.size", INT, "2147483647", MEDIUM, at_least(1), effect=True,
        doc="Most members of a classic group."),
    row("group.consumer.session.timeout.ms", INT, "45000", MEDIUM, at_least(1), effect=True,
        doc="Session timeout in ms of members of a consumer group: a member without a heartbeat "
            "in this time is removed."),
    row("group.consumer.min.session.timeout.ms", INT, "45000", MEDIUM, at_least(1), effect=True,
        doc="Shortest session timeout a consumer group may be given, in ms."),
    row("group.consumer.max.session.timeout.ms", INT, "60000", MEDIUM, at_least(1), effect=True,
        doc="Longest session timeout a consumer group may be given, in ms."),
    row("group.consumer.heartbeat.interval.ms", INT, "5000", MEDIUM, at_least(1), effect=True,
        doc="Interval in ms at which members of a consumer group must send heartbeats."),
    row("group.consumer.min.heartbeat.interval.ms", INT, "5000", MEDIUM, at_least(1), effect=True,
        doc="Shortest heartbeat interval a consumer group may be given, in ms."),
    row("group.consumer.max.heartbeat.interval.ms", INT, "15000", MEDIUM, at_least(1), effect=True,
        doc="Longest heartbeat interval a consumer group may be given, in ms."),
    row("group.consumer.max.size", INT, "2147483647", MEDIUM, at_least(1), effect=True,
        doc="Most members of a consumer group."),
    row("group.consumer.assignors", LIST, "uniform,range", MEDIUM, distinct(empty=False), effect=True,
        doc="Assignors of consumer groups, by name or class; the first is the default."),
    row("group.consumer.migration.policy", STRING, "bidirectional", MEDIUM, one_of_any_case("DISABLED", "DOWNGRADE", "UPGRADE", "BIDIRECTIONAL"), effect=True,
        doc="Online conversions of groups that are allowed: upgrade (classic to consumer), "
            "downgrade, bidirectional, or disabled."),
    row("group.consumer.assignment.interval.ms", INT, "1000", MEDIUM, at_least(0), CLUSTER_WIDE, effect=True,
        doc="Shortest time between two assignments of a consumer group, in ms."),
    row("group.consumer.min.assignment.interval.ms", INT, "0", MEDIUM, at_least(0), effect=True,
        doc="Shortest assignment interval a consumer group may be given, in ms."),
    row("group.consumer.max.assignment.interval.ms", INT, "15000", MEDIUM, at_least(0), effect=True,
        doc="Longest assignment interval a consumer group may be given, in ms."),
    row("group.consumer.regex.refresh.interval.ms", INT, "600000", MEDIUM, at_least(10000),
        internal=True, effect=True,
        doc="How often topics are matched again with the expressions consumer groups subscribe to, in "
            "ms. For tests."),
)
# fmt: on
