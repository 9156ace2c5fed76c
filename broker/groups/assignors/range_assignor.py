"""The range assignor: assigns a range of each topic's partitions to each subscriber.

Members have the same order for every topic, so topics with the same number of partitions and the
same subscribers are co-partitioned. Static members come first, ordered by instance id, and keep
their ranges when they rejoin with another member id. Otherwise the assignor is not sticky.
"""

from __future__ import annotations

from uuid import UUID

from odradek.broker.groups.assignors.spec import GroupSpec, Result

NAME = "range"


def assign(group: GroupSpec) -> Result:
    subscribers: dict[UUID, int] = {}
    for member in group.members.values():
        for topic in member.topics:
            subscribers[topic] = subscribers.get(topic, 0) + 1
    # Minimum partitions per member, number of members with one more, and start of the next range.
    quotas = {
        topic: divmod(group.partition_counts[topic], count) for topic, count in subscribers.items()
    }
    extras = {topic: extra for topic, (_, extra) in quotas.items()}
    starts = dict.fromkeys(quotas, 0)
    result: Result = {}
    for member_id in sorted(group.members, key=lambda each: _order(group, each)):
        assigned: dict[UUID, frozenset[int]] = {}
        for topic in group.members[member_id].topics:
            size = quotas[topic][0]
            if extras[topic]:
                size += 1
                extras[topic] -= 1
            if size:
                assigned[topic] = frozenset(range(starts[topic], starts[topic] + size))
                starts[topic] += size
        result[member_id] = assigned
    return result


def _order(group: GroupSpec, member_id: str) -> tuple[bool, str]:
    instance_id = group.members[member_id].instance_id
    return (True, member_id) if instance_id is None else (False, instance_id)
