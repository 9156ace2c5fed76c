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
        doc="A comma-separated list of the enabled rebalance protocols. It must include `classic`."),
    row("group.coordinator.threads", INT, "4", HIGH, at_least(1),
        doc="The number of threads of the group coordinator."),
    row("group.coordinator.background.threads", INT, "2", HIGH, at_least(1),
        doc="The number of threads for the background tasks of the group coordinator, such as resolving "
            "regular expressions of topic names."),
    row("group.coordinator.append.linger.ms", INT, "-1", MEDIUM, at_least(-1),
        doc="The time in ms that the group coordinator accumulates records before it appends them to the "
            "log. -1 adapts the time to the load."),
    row("offsets.commit.timeout.ms", INT, "5000", HIGH, at_least(1), effect=True,
        doc="The time in ms that an offset commit waits until all in-sync replicas have it. Then it fails."),
    row("offsets.load.buffer.size", INT, "5242880", HIGH, at_least(1), effect=True,
        doc="The size in bytes of the batches that are read from `__consumer_offsets` when the group "
            "coordinator loads groups. It is a soft limit: a larger batch is read as a whole."),
    row("offsets.topic.replication.factor", SHORT, "3", HIGH, at_least(1), effect=True,
        doc="The replication factor of `__consumer_offsets`. The topic is not created until there are this "
            "many brokers."),
    row("offsets.topic.num.partitions", INT, "50", HIGH, at_least(1), effect=True,
        doc="The number of partitions of `__consumer_offsets`. It must not be changed after deployment."),
    row("offsets.topic.segment.bytes", INT, "104857600", HIGH, at_least(1), effect=True,
        doc="The segment size of `__consumer_offsets` in bytes. It should be small, so that compaction and "
            "loading are fast."),
    row("offsets.topic.compression.codec", INT, "0", HIGH, effect=True,
        doc="The compression codec of the batches in `__consumer_offsets`: 0 none, 1 gzip, 2 snappy, 3 lz4, "
            "4 zstd."),
    row("group.coordinator.cached.buffer.max.bytes", INT, "1048588", MEDIUM, at_least(524288), CLUSTER_WIDE,
        doc="The maximum size in bytes of the append buffer that the group coordinator keeps for reuse. A "
            "larger buffer is discarded after its use."),
    row("offset.metadata.max.bytes", INT, "4096", HIGH, effect=True,
        doc="The maximum size in bytes of the metadata string of an offset commit."),
    row("offsets.retention.minutes", INT, "10080", HIGH, at_least(1), effect=True,
        doc="The time in minutes for which the committed offsets of a group are kept after the group became "
            "empty. Offsets of a topic to which a group no longer subscribes are kept for this time after "
            "their last commit."),
    row("offsets.retention.check.interval.ms", LONG, "600000", HIGH, at_least(1), effect=True,
        doc="The interval in ms at which expired offsets are deleted."),
    row("group.min.session.timeout.ms", INT, "6000", MEDIUM, effect=True,
        doc="The minimum session timeout of a member of a classic group in ms. A shorter timeout detects "
            "failures faster, and a member must send heartbeats more often."),
    row("group.max.session.timeout.ms", INT, "1800000", MEDIUM, effect=True,
        doc="The maximum session timeout of a member of a classic group in ms. With a longer timeout a "
            "member has more time to process records, and failures are detected later."),
    row("group.initial.rebalance.delay.ms", INT, "3000", MEDIUM, effect=True,
        doc="The time in ms for which the first rebalance of an empty classic group waits for more members. "
            "A longer delay means fewer rebalances, and a later start of processing."),
    row("group.max.size", INT, "2147483647", MEDIUM, at_least(1), effect=True,
        doc="The maximum number of members of a classic group."),
    row("group.consumer.session.timeout.ms", INT, "45000", MEDIUM, at_least(1), effect=True,
        doc="The time in ms without a heartbeat after which a member of a consumer group is removed."),
    row("group.consumer.min.session.timeout.ms", INT, "45000", MEDIUM, at_least(1), effect=True,
        doc="The minimum session timeout of consumer groups in ms."),
    row("group.consumer.max.session.timeout.ms", INT, "60000", MEDIUM, at_least(1), effect=True,
        doc="The maximum session timeout of consumer groups in ms."),
    row("group.consumer.heartbeat.interval.ms", INT, "5000", MEDIUM, at_least(1), effect=True,
        doc="The interval in ms at which members of a consumer group send heartbeats."),
    row("group.consumer.min.heartbeat.interval.ms", INT, "5000", MEDIUM, at_least(1), effect=True,
        doc="The minimum heartbeat interval of consumer groups in ms."),
    row("group.consumer.max.heartbeat.interval.ms", INT, "15000", MEDIUM, at_least(1), effect=True,
        doc="The maximum heartbeat interval of consumer groups in ms."),
    row("group.consumer.max.size", INT, "2147483647", MEDIUM, at_least(1), effect=True,
        doc="The maximum number of members of a consumer group."),
    row("group.consumer.assignors", LIST, "uniform,range", MEDIUM, distinct(empty=False), effect=True,
        doc="A comma-separated list of the server-side assignors, by name (`uniform`, `range`) or class. "
            "The first is used by groups that do not request one."),
    row("group.consumer.migration.policy", STRING, "bidirectional", MEDIUM, one_of_any_case("DISABLED", "DOWNGRADE", "UPGRADE", "BIDIRECTIONAL"), effect=True,
        doc="The online migrations between classic and consumer groups that are allowed: `upgrade` (classic "
            "to consumer), `downgrade` (consumer to classic), `bidirectional`, or `disabled`."),
    row("group.consumer.assignment.interval.ms", INT, "1000", MEDIUM, at_least(0), CLUSTER_WIDE, effect=True,
        doc="The minimum time in ms between two assignments of a consumer group."),
    row("group.consumer.min.assignment.interval.ms", INT, "0", MEDIUM, at_least(0), effect=True,
        doc="The minimum assignment interval of consumer groups in ms."),
    row("group.consumer.max.assignment.interval.ms", INT, "15000", MEDIUM, at_least(0), effect=True,
        doc="The maximum assignment interval of consumer groups in ms."),
    row("group.consumer.regex.refresh.interval.ms", INT, "600000", MEDIUM, at_least(10000),
        internal=True, effect=True,
        doc="The interval in ms at which the regular expressions of consumer groups are resolved again. For "
            "tests."),
)
# fmt: on
