"""Online migration of groups between the classic and the consumer protocol (KIP-848).

`group.consumer.migration.policy` decides whether it is allowed. A ConsumerGroupHeartbeat upgrades a
classic group. A group is downgraded when its last member of the consumer protocol leaves or is
replaced by a classic one. Assignments are kept.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from odradek.broker.groups.classic_group import ClassicGroup
from odradek.broker.groups.classic_group_members import ClassicGroupMember as ClassicMember
from odradek.broker.groups.consumer import record_helpers as records
from odradek.broker.groups.consumer.classic_protocol import as_owned, write_assignment
from odradek.broker.groups.consumer.consumer_group import ConsumerGroup
from odradek.broker.groups.consumer.group_state import ConsumerGroupUpdate
from odradek.broker.groups.consumer.member import ClassicProtocolMember, ConsumerGroupMember
from odradek.broker.groups.consumer.member_timeouts import MemberTimeout
from odradek.broker.groups.consumer.topic_metadata import ConsumerGroupEnvironment
from odradek.broker.groups.messages import EventTime, GroupKey, Record
from odradek.broker.groups.subscription import CONSUMER_PROTOCOL
from odradek.protocol.errors import ErrorCode, InvalidFrame, KafkaError
from odradek.protocol.schemas import consumer_protocol


class CannotUpgrade(KafkaError):
    code = ErrorCode.group_id_not_found

    def __init__(self, group_id: str, reason: str) -> None:
        super().__init__(
            f"Cannot upgrade classic group {group_id} to consumer group because {reason}"
        )


# Upgrade


def upgrade(
    classic: ClassicGroup, environment: ConsumerGroupEnvironment, now: EventTime
) -> tuple[ConsumerGroup, ConsumerGroupUpdate]:
    """Convert a classic group: the consumer group, and the update with its records.

    Members keep their last assignment and are stable. Raises CannotUpgrade.
    """
    group_id, config = classic.group_id, environment.config
    if not config.migration_policy.upgrades:
        raise CannotUpgrade(group_id, "online upgrade is disabled.")
    if classic.protocol_type != CONSUMER_PROTOCOL:
        raise CannotUpgrade(group_id, "the group does not use the consumer embedded protocol.")
    if len(classic.members) > config.consumer_max_size:
        raise CannotUpgrade(group_id, "the group size exceeds the consumer group maximum size.")
    try:
        members = [
            _to_consumer_member(member, classic, environment)
            for member in classic.members.by_id.values()
        ]
    except InvalidFrame:
        raise CannotUpgrade(group_id, "the embedded consumer protocol is malformed.") from None
    owned = [partition for member in members for partition in member.holdings()]
    if len(set(owned)) < len(owned):
        raise CannotUpgrade(group_id, "a partition is assigned to more than one member.")
    group = ConsumerGroup(group_id, environment)
    update = ConsumerGroupUpdate(group.state)
    update.records.append(Record(GroupKey(group_id), None))
    update.write_all(records.member_subscription(group_id, member) for member in members)
    metadata_hash = environment.topics.metadata_hash(update.state.subscribed_topics())
    update.write(records.group_epoch(group_id, classic.generation, metadata_hash))
    for member in members:
        target = {topic: frozenset(partitions) for topic, partitions in member.assigned.items()}
        update.write(records.target_assignment(group_id, member.member_id, target))
    update.write(records.target_assignment_epoch(group_id, classic.generation, 0))
    update.write_all(records.current_assignment(group_id, member) for member in members)
    for member in members:
        assert member.classic is not None
        at_ms = now.monotonic_ms + member.classic.session_timeout_ms
        group.deadlines.set(member.member_id, MemberTimeout.SESSION, at_ms)
    return group, update


def _to_consumer_member(
    member: ClassicMember, classic: ClassicGroup, environment: ConsumerGroupEnvironment
) -> ConsumerGroupMember:
    """Convert a member. Raises InvalidFrame, or CannotUpgrade for user data of a custom assignor."""
    assignment = consumer_protocol.read_assignment(member.assignment)
    if assignment.user_data:
        raise CannotUpgrade(
            classic.group_id,
            "an unsupported custom assignor is in use. Please refer to the documentation or switch "
            "to a default assignor before re-attempting the upgrade.",
        )
    protocol = classic.protocol
    names = [name for name, _ in member.protocols]
    metadata = member.metadata(protocol) if protocol in names else member.protocols[0][1]
    subscription = consumer_protocol.read_subscription(metadata)
    owned = as_owned(assignment.assigned_partitions, environment.topics)
    return ConsumerGroupMember(
        member.member_id,
        epoch=classic.generation,
        previous_epoch=classic.generation,
        instance_id=member.instance_id,
        rack_id=subscription.rack_id or None,
        client_id=member.client_id,
        client_host=member.client_host,
        rebalance_timeout_ms=member.rebalance_timeout_ms,
        topics=frozenset(subscription.topics),
        assigned={
            topic: dict.fromkeys(sorted(partitions), classic.generation)
            for topic, partitions in owned.items()
        },
        classic=ClassicProtocolMember(member.session_timeout_ms, member.protocols),
    )


# Downgrade


def is_downgraded_without(group: ConsumerGroup, leaving: Collection[str]) -> bool:
    """Whether only members of the classic protocol remain without `leaving`, and the policy allows a
    downgrade."""
    remaining = [
        member for member in group.state.members.values() if member.member_id not in leaving
    ]
    return (
        bool(remaining)
        and all(member.is_classic for member in remaining)
        and _have_common_protocol(remaining)
        and _allows_downgrade(group, len(remaining))
    )


def _have_common_protocol(members: Sequence[ConsumerGroupMember]) -> bool:
    """Whether all members of the classic protocol support one assignor. A loaded record may lack it."""
    supported = [{name for name, _ in each.classic.protocols} for each in members if each.classic]
    return bool(set.intersection(*supported))


def is_downgraded_by(group: ConsumerGroup, replaced: ConsumerGroupMember | None) -> bool:
    """Whether a member of the classic protocol replaces the last one of the consumer protocol."""
    if replaced is None or replaced.is_classic:
        return False
    count = len(group.state.members)
    return group.state.classic_count == count - 1 and _allows_downgrade(group, count)


def _allows_downgrade(group: ConsumerGroup, count: int) -> bool:
    config = group.environment.config
    return config.migration_policy.downgrades and count <= config.max_size


def downgrade(
    group: ConsumerGroup, update: ConsumerGroupUpdate, leaving: Collection[str], now: EventTime
) -> tuple[ClassicGroup, list[Record]]:
    """Convert a consumer group without the members `leaving`: the classic group, and the records.

    `update` has the records so far. All other members use the classic protocol.
    """
    state = update.state
    members = []
    for each in state.members.values():
        if each.member_id in leaving:
            continue
        assert each.classic is not None, "a member of the consumer protocol remains"
        members.append(
            ClassicMember(
                each.member_id,
                each.instance_id,
                each.client_id,
                each.client_host,
                each.rebalance_timeout_ms,
                each.classic.session_timeout_ms,
                CONSUMER_PROTOCOL,
                each.classic.protocols,
            )
        )
    config = group.environment.config
    classic = ClassicGroup.from_consumer_group(group.group_id, state.epoch, members, config, now)
    assignments = {}
    for member in members:
        member.assignment = assignments[member.member_id] = write_assignment(
            state.target_of(member.member_id),
            member.metadata(classic.protocol),
            group.environment.topics,
        )
    metadata = classic.to_metadata(assignments)
    group.write_tombstones(update)
    return classic, [*update.records, Record(GroupKey(group.group_id), metadata)]
