"""Group configs; each defaults to the broker config named as its synonym."""

from __future__ import annotations

from odradek.broker.config.config_key import (
    BOOLEAN,
    INT,
    MEDIUM,
    STRING,
    Rows,
    Scope,
    row,
)
from odradek.broker.config.validators import (
    at_least,
    one_of,
    share_reset,
)

# The formatter would put every column on a line of its own.
# fmt: off
GROUP_ROWS: Rows = (
    row("consumer.session.timeout.ms", INT, "45000", MEDIUM, at_least(1),
        scope=Scope.GROUP, synonyms=("group.consumer.session.timeout.ms",), effect=True,
        doc="The time in ms without a heartbeat after which a member of the consumer group is removed."),
    row("consumer.heartbeat.interval.ms", INT, "5000", MEDIUM, at_least(1),
        scope=Scope.GROUP, synonyms=("group.consumer.heartbeat.interval.ms",), effect=True,
        doc="The interval in ms at which members of the consumer group send heartbeats."),
    row("consumer.assignment.interval.ms", INT, "1000", MEDIUM, at_least(0),
        scope=Scope.GROUP, synonyms=("group.consumer.assignment.interval.ms",), effect=True,
        doc="The minimum time in ms between two assignments of the consumer group."),
    row("share.session.timeout.ms", INT, "45000", MEDIUM, at_least(1),
        scope=Scope.GROUP, synonyms=("group.share.session.timeout.ms",),
        doc="The time in ms without a heartbeat after which a member of the share group is removed."),
    row("share.heartbeat.interval.ms", INT, "5000", MEDIUM, at_least(1),
        scope=Scope.GROUP, synonyms=("group.share.heartbeat.interval.ms",),
        doc="The interval in ms at which members of the share group send heartbeats."),
    row("share.record.lock.duration.ms", INT, "30000", MEDIUM, at_least(1000),
        scope=Scope.GROUP, synonyms=("group.share.record.lock.duration.ms",),
        doc="The duration in ms of the acquisition lock of a record."),
    row("share.delivery.count.limit", INT, "5", MEDIUM, at_least(2),
        scope=Scope.GROUP, synonyms=("group.share.delivery.count.limit",),
        doc="The maximum number of delivery attempts of a record."),
    row("share.partition.max.record.locks", INT, "2000", MEDIUM, at_least(100),
        scope=Scope.GROUP, synonyms=("group.share.partition.max.record.locks",),
        doc="The maximum number of in-flight records of a partition."),
    row("share.auto.offset.reset", STRING, "latest", MEDIUM, share_reset, scope=Scope.GROUP,
        doc="The offset at which a share group without a start offset begins: `earliest`, `latest`, or "
            "`by_duration:<duration>`, an ISO 8601 duration before the current time."),
    row("share.isolation.level", STRING, "read_uncommitted", MEDIUM, one_of("read_committed", "read_uncommitted"),
        scope=Scope.GROUP,
        doc="The isolation level of the share group. With `read_committed`, records of aborted transactions "
            "are not delivered."),
    row("share.renew.acknowledge.enable", BOOLEAN, "true", MEDIUM, scope=Scope.GROUP,
        doc="Whether members may renew the acquisition lock of a record."),
    row("share.assignment.interval.ms", INT, "1000", MEDIUM, at_least(0),
        scope=Scope.GROUP, synonyms=("group.share.assignment.interval.ms",),
        doc="The minimum time in ms between two assignments of the share group."),
    row("streams.session.timeout.ms", INT, "45000", MEDIUM, at_least(1),
        scope=Scope.GROUP, synonyms=("group.streams.session.timeout.ms",),
        doc="The time in ms without a heartbeat after which a member of the streams group is removed."),
    row("streams.heartbeat.interval.ms", INT, "5000", MEDIUM, at_least(1),
        scope=Scope.GROUP, synonyms=("group.streams.heartbeat.interval.ms",),
        doc="The interval in ms at which members of the streams group send heartbeats."),
    row("streams.num.standby.replicas", INT, "0", MEDIUM, at_least(0),
        scope=Scope.GROUP, synonyms=("group.streams.num.standby.replicas",),
        doc="The number of standby replicas of each task."),
    row("streams.initial.rebalance.delay.ms", INT, "3000", MEDIUM, at_least(0),
        scope=Scope.GROUP, synonyms=("group.streams.initial.rebalance.delay.ms",),
        doc="The time in ms for which the first rebalance of the empty group waits for more members."),
    row("streams.assignment.interval.ms", INT, "1000", MEDIUM, at_least(0),
        scope=Scope.GROUP, synonyms=("group.streams.assignment.interval.ms",),
        doc="The minimum time in ms between two assignments of the streams group."),
)
# fmt: on
