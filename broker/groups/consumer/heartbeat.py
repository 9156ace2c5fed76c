"""ConsumerGroupHeartbeat: joining, subscribing, reconciling and leaving (KIP-848).

A heartbeat without changes, of a member that has its target assignment, writes no records.
"""

from __future__ import annotations

from dataclasses import replace
from uuid import UUID

from odradek.broker.groups.consumer import record_helpers as records
from odradek.broker.groups.consumer.consumer_group import (
    ConsumerGroup,
    check_instance,
    unknown_member,
)
from odradek.broker.groups.consumer.group_state import ConsumerGroupUpdate
from odradek.broker.groups.consumer.member import (
    JOIN_EPOCH,
    STATIC_LEAVE_EPOCH,
    AssignedPartitions,
    ConsumerGroupMember,
    Partitions,
)
from odradek.broker.groups.messages import (
    NO_ERROR,
    ConsumerGroupHeartbeat,
    ConsumerGroupHeartbeatResponse,
    EventTime,
)
from odradek.protocol.errors import ErrorCode, KafkaError


def heartbeat(
    group: ConsumerGroup,
    update: ConsumerGroupUpdate,
    request: ConsumerGroupHeartbeat,
    now: EventTime,
) -> ConsumerGroupHeartbeatResponse:
    """Handle a heartbeat of a member that joins or stays. Raises KafkaError without any change."""
    group.check_group_size(update, request.member_id)
    before = _get_or_replace_member(group, update, request)
    after = _update_from_request(before, request)
    expression_changed, is_resolved = group.update_regular_expression(update, before, after)
    topics_changed = group.subscribe(update, before, after)
    group.update_group_epoch(update, bump=topics_changed or is_resolved)
    group.update_target_assignment(update, now)
    member = group.reconcile(
        update,
        after.member_id,
        request.owned,
        now,
        subscription_changed=topics_changed or expression_changed,
    )
    group.extend_session(member.member_id, now)
    is_full_request = (
        request.rebalance_timeout_ms != -1
        and (request.topics is not None or request.regex is not None)
        and request.owned is not None
    )
    sends_assignment = (
        request.epoch == JOIN_EPOCH or is_full_request or member.assigned != before.assigned
    )
    return ConsumerGroupHeartbeatResponse(
        NO_ERROR,
        None,
        member.member_id,
        member.epoch,
        group.environment.settings(group.group_id).heartbeat_interval_ms,
        _response_assignment(member.assigned) if sends_assignment else None,
    )


def _get_or_replace_member(
    group: ConsumerGroup, update: ConsumerGroupUpdate, request: ConsumerGroupHeartbeat
) -> ConsumerGroupMember:
    """The member of the request, or a new one. A static member that rejoins is replaced."""
    member_id, instance_id = request.member_id, request.instance_id
    if instance_id is None:
        member = update.members.get(member_id)
        if member is not None:
            _check_epoch(member, request)
            return member
        if request.epoch != JOIN_EPOCH:
            raise unknown_member(group.group_id, member_id)
        return group.get_or_create_member(update, member_id)
    existing = update.state.static_member(instance_id)
    if request.epoch != JOIN_EPOCH:
        existing = check_instance(existing, instance_id, member_id)
        _check_epoch(existing, request)
        return existing
    if existing is None:
        return group.get_or_create_member(update, member_id)
    if not existing.is_classic and not existing.is_temporarily_away:
        raise KafkaError(
            ErrorCode.unreleased_instance_id,
            f"Static member {member_id} with instance id {instance_id} cannot join the group "
            f"because the instance id is owned by {existing.member_id} member.",
        )
    rejoined = replace(existing, member_id=member_id, epoch=JOIN_EPOCH, previous_epoch=JOIN_EPOCH)
    group.replace(update, existing, rejoined)
    return rejoined


def _check_epoch(member: ConsumerGroupMember, request: ConsumerGroupHeartbeat) -> None:
    """Raises FENCED_MEMBER_EPOCH for another epoch. The previous one is accepted if the member owns only
    assigned partitions: it may have missed the last response."""
    if request.epoch in (JOIN_EPOCH, member.epoch):
        return
    if request.epoch > member.epoch:
        compared = "greater"
    elif request.epoch == member.previous_epoch and _is_within(request.owned, member.assigned):
        return
    else:
        compared = "smaller"
    raise KafkaError(
        ErrorCode.fenced_member_epoch,
        f"The consumer group member has a {compared} member epoch ({request.epoch}) than the one "
        f"known by the group coordinator ({member.epoch}). The member must abandon all its "
        "partitions and rejoin.",
    )


def _is_within(owned: Partitions | None, assigned: AssignedPartitions) -> bool:
    if owned is None:
        return False
    return all(
        topic in assigned and all(partition in assigned[topic] for partition in partitions)
        for topic, partitions in owned.items()
    )


def _update_from_request(
    member: ConsumerGroupMember, request: ConsumerGroupHeartbeat
) -> ConsumerGroupMember:
    """The member with the fields of the request."""
    timeout_ms = request.rebalance_timeout_ms
    return replace(
        member,
        instance_id=member.instance_id if request.instance_id is None else request.instance_id,
        rack_id=member.rack_id if request.rack_id is None else request.rack_id,
        rebalance_timeout_ms=member.rebalance_timeout_ms if timeout_ms == -1 else timeout_ms,
        assignor=member.assignor if request.assignor is None else request.assignor,
        topics=member.topics if request.topics is None else frozenset(request.topics),
        regex=member.regex if request.regex is None else request.regex,
        client_id=request.client_id,
        client_host=request.client_host,
        classic=None,
    )


def _response_assignment(assigned: AssignedPartitions) -> dict[UUID, tuple[int, ...]]:
    return {topic: tuple(sorted(partitions)) for topic, partitions in assigned.items()}


def leaving_member(group: ConsumerGroup, request: ConsumerGroupHeartbeat) -> ConsumerGroupMember:
    """The member of a request that leaves. Raises UNKNOWN_MEMBER_ID or FENCED_INSTANCE_ID."""
    if request.instance_id is not None:
        member_of_instance = group.state.static_member(request.instance_id)
        return check_instance(member_of_instance, request.instance_id, request.member_id)
    member = group.state.members.get(request.member_id)
    if member is None:
        raise unknown_member(group.group_id, request.member_id)
    return member


def leave_temporarily(
    group: ConsumerGroup, update: ConsumerGroupUpdate, member: ConsumerGroupMember
) -> ConsumerGroupHeartbeatResponse:
    """A static member leaves temporarily and keeps its assignment until its session expires."""
    kept = {topic: dict.fromkeys(partitions, 0) for topic, partitions in member.assigned.items()}
    away = replace(member, epoch=STATIC_LEAVE_EPOCH, assigned=kept, revoking={})
    update.write(records.current_assignment(group.group_id, away))
    return ConsumerGroupHeartbeatResponse(NO_ERROR, None, member.member_id, STATIC_LEAVE_EPOCH)
