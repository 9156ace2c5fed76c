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
        doc="How long a member may be silent before it is removed, in ms."),
    row("consumer.heartbeat.interval.ms", INT, "5000", MEDIUM, at_least(1),
        scope=Scope.GROUP, synonyms=("group.consumer.heartbeat.interval.ms",), effect=True,
        doc="Interval in ms at which members of the consumer group must send heartbeats."),
    row("consumer.assignment.interval.ms", INT, "1000", MEDIUM, at_least(0),
        scope=Scope.GROUP, synonyms=("group.consumer.assignment.interval.ms",), effect=True,
        doc="Shortest time between two assignments, in ms."),
    row("share.session.timeout.ms", INT, "45000", MEDIUM, at_least(1),
        scope=Scope.GROUP, synonyms=("group.share.session.timeout.ms",),
        doc="How long a member of the share group may be silent before it is removed, in ms."),
    row("share.heartbeat.interval.ms", INT, "5000", MEDIUM, at_least(1),
        scope=Scope.GROUP, synonyms=("group.share.heartbeat.interval.ms",),
        doc="Interval in ms at which members of the share group must send heartbeats."),
    row("share.record.lock.duration.ms", INT, "30000", MEDIUM, at_least(1000),
        scope=Scope.GROUP, synonyms=("group.share.record.lock.duration.ms",),
        doc="How long a record stays with the member that acquired it, in ms."),
    row("share.delivery.count.limit", INT, "5", MEDIUM, at_least(2),
        scope=Scope.GROUP, synonyms=("group.share.delivery.count.limit",),
        doc="How often a record is delivered before it is given up."),
    row("share.partition.max.record.locks", INT, "2000", MEDIUM, at_least(100),
        scope=Scope.GROUP, synonyms=("group.share.partition.max.record.locks",),
        doc="Records of one partition that may be in flight."),
    row("share.auto.offset.reset", STRING, "latest", MEDIUM, share_reset, scope=Scope.GROUP,
        doc="Where a share group starts: `earliest`, `latest`, or `by_duration:` and an ISO 8601 "
            "duration back from now."),
    row("share.isolation.level", STRING, "read_uncommitted", MEDIUM, one_of("read_committed", "read_uncommitted"),
        scope=Scope.GROUP,
        doc="Whether records of aborted transactions are delivered."),
    row("share.renew.acknowledge.enable", BOOLEAN, "true", MEDIUM, scope=Scope.GROUP,
        doc="Let members renew the lock of a record."),
    row("share.assignment.interval.ms", INT, "1000", MEDIUM, at_least(0),
        scope=Scope.GROUP, synonyms=("group.share.assignment.interval.ms",),
        doc="Shortest time between two assignments of the share group, in ms."),
    row("streams.session.timeout.ms", INT, "45000", MEDIUM, at_least(1),
        scope=Scope.GROUP, synonyms=("group.streams.session.timeout.ms",),
        doc="How long a member of the streams group may be silent before it is removed, in ms."),
    row("streams.heartbeat.interval.ms", INT, "5000", MEDIUM, at_least(1),
        scope=Scope.GROUP, synonyms=("group.streams.heartbeat.interval.ms",),
        doc="Interval in ms at which members of the streams group must send heartbeats."),
    row("streams.num.standby.replicas", INT, "0", MEDIUM, at_least(0),
        scope=Scope.GROUP, synonyms=("group.streams.num.standby.replicas",),
        doc="Standby copies of each task."),
    row("streams.initial.rebalance.delay.ms", INT, "3000", MEDIUM, at_least(0),
        scope=Scope.GROUP, synonyms=("group.streams.initial.rebalance.delay.ms",),
        doc="How long the first rebalance waits for more members, in ms."),
    row("streams.assignment.interval.ms", INT, "1000", MEDIUM, at_least(0),
        scope=Scope.GROUP, synonyms=("group.streams.assignment.interval.ms",),
        doc="Shortest time between two assignments of the streams group, in ms."),
)
# fmt: on
