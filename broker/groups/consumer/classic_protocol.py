"""Members of a consumer group that use the classic protocol during an online migration.

The coordinator never makes them leader. JoinGroup returns the member epoch as generation, SyncGroup
returns the current assignment, and Heartbeat returns REBALANCE_IN_PROGRESS when partitions are to
be revoked or assigned.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from uuid import UUID

from odradek.broker.groups.consumer.consumer_group import (
    ConsumerGroup,
    check_instance,
    unknown_member,
)
from odradek.broker.groups.consumer.group_state import ConsumerGroupUpdate
from odradek.broker.groups.consumer.member import (
    JOIN_EPOCH,
    AssignedPartitions,
    ClassicProtocolMember,
    ConsumerGroupMember,
    MemberState,
    Partitions,
)
from odradek.broker.groups.consumer.member_timeouts import MemberTimeout
from odradek.broker.groups.consumer.topic_metadata import TopicMetadata
from odradek.broker.groups.messages import (
    NO_ERROR,
    NO_MEMBER_ID,
    EventTime,
    Heartbeat,
    JoinGroup,
    JoinGroupResponse,
    LeaveGroup,
    LeaveMemberResponse,
    SyncGroup,
    SyncGroupResponse,
)
from odradek.broker.groups.subscription import CONSUMER_PROTOCOL
from odradek.protocol.errors import ErrorCode, InvalidFrame, KafkaError
from odradek.protocol.schemas import consumer_protocol
from odradek.protocol.schemas.consumer_protocol import (
    ConsumerProtocolAssignment,
    ConsumerProtocolSubscription,
    TopicPartitions,
)
from odradek.protocol.uuids import uuid_to_text


def check_member_id(request: JoinGroup) -> JoinGroupResponse | None:
    """MEMBER_ID_REQUIRED for a dynamic member that joins without a member id (KIP-394), else None."""
    if request.member_id != NO_MEMBER_ID or request.instance_id is not None:
        return None
    return (
        JoinGroupResponse(ErrorCode.member_id_required, generate_member_id(request))
        if request.id_required
        else None
    )


def generate_member_id(request: JoinGroup) -> str:
    return uuid_to_text(UUID(request.member_uuid))


def check_join(group: ConsumerGroup, request: JoinGroup) -> None:
    """Check group size and protocols of a JoinGroup request. Raises KafkaError."""
    group.check_group_size(ConsumerGroupUpdate(group.state), request.member_id)
    supported = group.state.classic_protocols()
    classic_count = group.state.classic_count
    names = [name for name, _ in request.protocols]
    if request.protocol_type != CONSUMER_PROTOCOL or not any(
        supported[name] == classic_count for name in names
    ):
        raise KafkaError(
            ErrorCode.inconsistent_group_protocol, "no protocol is supported by all members"
        )


def rejoin(
    group: ConsumerGroup, update: ConsumerGroupUpdate, request: JoinGroup
) -> tuple[ConsumerGroupMember, bool, Partitions]:
    """Add the records of a member that joins or rejoins.

    Returns the member, whether its subscription changed, and its owned partitions. Raises
    KafkaError.
    """
    before = _get_or_replace_member(group, update, request)
    subscription = _read_subscription(request)
    timeout_ms = request.rebalance_timeout_ms
    after = replace(
        before,
        instance_id=before.instance_id if request.instance_id is None else request.instance_id,
        rack_id=subscription.rack_id or before.rack_id,
        rebalance_timeout_ms=before.rebalance_timeout_ms if timeout_ms == -1 else timeout_ms,
        topics=frozenset(subscription.topics),
        regex="",
        client_id=request.client_id,
        client_host=request.client_host,
        classic=ClassicProtocolMember(request.session_timeout_ms, request.protocols),
    )
    expression_changed, _ = group.update_regular_expression(update, before, after)
    topics_changed = group.subscribe(update, before, after)
    changed = topics_changed or expression_changed
    group.update_group_epoch(update, bump=changed)
    return after, changed, as_owned(subscription.owned_partitions, group.environment.topics)


def _read_subscription(request: JoinGroup) -> ConsumerProtocolSubscription:
    try:
        return consumer_protocol.read_subscription(request.protocols[0][1])
    except InvalidFrame:
        raise KafkaError(
            ErrorCode.unknown_server_error, "Malformed embedded consumer protocol."
        ) from None


def _get_or_replace_member(
    group: ConsumerGroup, update: ConsumerGroupUpdate, request: JoinGroup
) -> ConsumerGroupMember:
    is_unknown = request.member_id == NO_MEMBER_ID
    member_id = generate_member_id(request) if is_unknown else request.member_id
    if request.instance_id is None:
        return group.get_or_create_member(update, member_id)
    existing = update.state.static_member(request.instance_id)
    if not is_unknown:
        return check_instance(existing, request.instance_id, member_id)
    if existing is None:
        return group.get_or_create_member(update, member_id)
    rejoined = replace(existing, member_id=member_id, epoch=JOIN_EPOCH, previous_epoch=JOIN_EPOCH)
    group.replace(update, existing, rejoined)
    return rejoined


def on_joined(
    group: ConsumerGroup, member: ConsumerGroupMember, now: EventTime
) -> JoinGroupResponse:
    """Response to JoinGroup; the member then has its rebalance timeout to send SyncGroup."""
    assert member.classic is not None
    group.deadlines.cancel(member.member_id, MemberTimeout.JOIN)
    group.extend_session(member.member_id, now, member.classic.session_timeout_ms)
    at_ms = now.monotonic_ms + member.rebalance_timeout_ms
    group.deadlines.set(member.member_id, MemberTimeout.SYNC, at_ms)
    return join_response(member)


def join_response(member: ConsumerGroupMember) -> JoinGroupResponse:
    assert member.classic is not None
    return JoinGroupResponse(
        NO_ERROR, member.member_id, member.epoch, CONSUMER_PROTOCOL, member.classic.protocols[0][0]
    )


def sync(group: ConsumerGroup, request: SyncGroup, now: EventTime) -> SyncGroupResponse:
    """Return the current assignment. Raises KafkaError."""
    member = _member(group, request.member_id, request.instance_id)
    assert member.classic is not None
    _check_generation(member, request.generation)
    protocol = member.classic.protocols[0][0]
    if request.protocol_type not in (None, CONSUMER_PROTOCOL) or request.protocol_name not in (
        None,
        protocol,
    ):
        raise KafkaError(
            ErrorCode.inconsistent_group_protocol, f"the member joined with protocol {protocol}"
        )
    is_behind = group.state.target_epoch > member.epoch
    if is_behind and member.state is not MemberState.UNREVOKED_PARTITIONS:
        _expect_join(group, member, now)
        raise KafkaError(
            ErrorCode.rebalance_in_progress, "the member has to rejoin for a new target assignment"
        )
    group.deadlines.cancel(member.member_id, MemberTimeout.SYNC)
    group.extend_session(member.member_id, now, member.classic.session_timeout_ms)
    return SyncGroupResponse(
        NO_ERROR,
        request.protocol_type,
        request.protocol_name,
        write_assignment(member.assigned, member.classic.protocols[0][1], group.environment.topics),
    )


def heartbeat(group: ConsumerGroup, request: Heartbeat, now: EventTime) -> ErrorCode:
    """Extend the session; REBALANCE_IN_PROGRESS if the member has to rejoin. Raises KafkaError."""
    member = _member(group, request.member_id, request.instance_id)
    assert member.classic is not None
    _check_generation(member, request.generation)
    group.extend_session(member.member_id, now, member.classic.session_timeout_ms)
    state = group.state
    if (
        member.epoch < state.target_epoch
        or _needs_rejoin_to_assign(group, now)
        or member.state is MemberState.UNREVOKED_PARTITIONS
        or (
            member.state is MemberState.UNRELEASED_PARTITIONS
            and not _is_waiting_for_others(group, member)
        )
    ):
        _expect_join(group, member, now)
        return ErrorCode.rebalance_in_progress
    return NO_ERROR


def _needs_rejoin_to_assign(group: ConsumerGroup, now: EventTime) -> bool:
    """Whether a new target assignment is due and only a JoinGroup can compute it.

    Heartbeats of the consumer protocol compute it otherwise. Kafka before 4.3 lets classic members
    rejoin for every group epoch. Kafka 4.3 does not, so a group without members of the consumer
    protocol does not get a new assignment.
    """
    state = group.state
    return group.is_assignment_due(state, now) and state.classic_count == len(state.members)


def _is_waiting_for_others(group: ConsumerGroup, member: ConsumerGroupMember) -> bool:
    state = group.state
    return any(
        (partitions - member.assigned.get(topic, {}).keys()) & state.owned_partitions(topic)
        for topic, partitions in state.target_of(member.member_id).items()
    )


def _expect_join(group: ConsumerGroup, member: ConsumerGroupMember, now: EventTime) -> None:
    at_ms = now.monotonic_ms + member.rebalance_timeout_ms
    group.deadlines.set_if_absent(member.member_id, MemberTimeout.JOIN, at_ms)


def _member(group: ConsumerGroup, member_id: str, instance_id: str | None) -> ConsumerGroupMember:
    if instance_id is None:
        member = group.state.members.get(member_id)
        if member is None:
            raise unknown_member(group.group_id, member_id)
    else:
        member = check_instance(group.state.static_member(instance_id), instance_id, member_id)
    if not member.is_classic:
        raise KafkaError(
            ErrorCode.unknown_member_id, f"Member {member_id} does not use the classic protocol."
        )
    return member


def _check_generation(member: ConsumerGroupMember, generation: int) -> None:
    if generation != member.epoch:
        raise KafkaError(
            ErrorCode.illegal_generation, f"the generation of the member is {member.epoch}"
        )


def leaving_members(
    group: ConsumerGroup, request: LeaveGroup
) -> tuple[list[ConsumerGroupMember], tuple[LeaveMemberResponse, ...]]:
    """Members of a LeaveGroup request, of either protocol, and a response for each."""
    leaving: dict[str, ConsumerGroupMember] = {}
    responses = []
    for each in request.members:
        error = NO_ERROR
        try:
            if each.instance_id is None:
                member = group.state.members.get(each.member_id)
                if member is None:
                    raise unknown_member(group.group_id, each.member_id)
            else:
                member = group.state.static_member(each.instance_id)
                claimed = each.member_id or (member.member_id if member is not None else "")
                member = check_instance(member, each.instance_id, claimed)
            leaving[member.member_id] = member
        except KafkaError as member_error:
            error = member_error.code
        responses.append(LeaveMemberResponse(each.member_id, each.instance_id, error))
    return list(leaving.values()), tuple(responses)


# Topic names and ids


def as_owned(topics: Iterable[TopicPartitions], known: TopicMetadata) -> Partitions:
    """Owned partitions by topic id, without topics that do not exist."""
    return {
        topic_id: frozenset(each.partitions)
        for each in topics
        if (topic_id := known.id_of(each.topic)) is not None
    }


def write_assignment(
    assigned: AssignedPartitions | Partitions, metadata: bytes, known: TopicMetadata
) -> bytes:
    """Encode an assignment with topic names, in the version of the member's subscription.

    If that can't be decoded (only the first protocol is validated), version 0 is used.
    """
    named = tuple(
        TopicPartitions(topic=name, partitions=tuple(sorted(partitions)))
        for topic_id, partitions in assigned.items()
        if (name := known.name_of(topic_id)) is not None
    )
    try:
        version = consumer_protocol.version_of(metadata)
    except InvalidFrame:
        version = 0
    return consumer_protocol.write(ConsumerProtocolAssignment(assigned_partitions=named), version)
