"""ConsumerGroupHeartbeat and ConsumerGroupDescribe: the consumer group protocol (KIP-848)."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta
from typing import Any
from uuid import UUID

from odradek.broker.groups.consumer.consumer_group import (
    DescribedConsumerGroup,
    DescribedConsumerGroupMember,
    NamedPartitions,
)
from odradek.broker.groups.consumer.member import JOIN_EPOCH, LEAVE_EPOCH, STATIC_LEAVE_EPOCH
from odradek.broker.groups.messages import (
    NO_ERROR,
    ConsumerGroupHeartbeat,
    ConsumerGroupHeartbeatResponse,
)
from odradek.broker.requests.context import RequestContext
from odradek.broker.requests.steps import in_steps
from odradek.broker.security.request_authorization import (
    NOT_REQUESTED,
    TopicDenied,
    check_group,
    group_operations,
    may_topic,
    text_of,
)
from odradek.protocol import apis
from odradek.protocol.errors import ErrorCode, KafkaError
from odradek.protocol.messages import field
from odradek.protocol.uuids import ZERO_UUID, uuid_to_text
from odradek.replication.controller.features import GROUP_VERSION

MEMBER_MAKES_ID_SINCE = 1
"""ConsumerGroupHeartbeat: since this version the client generates the member id (KIP-1082)."""
MILLISECOND = timedelta(milliseconds=1)
CLASSIC_MEMBER, CONSUMER_MEMBER = 0, 1


async def consumer_group_heartbeat(request: Any, ctx: RequestContext) -> Mapping[str, Any]:
    try:
        _check_served(ctx)
        _check_allowed(request, ctx)
        _check(request, ctx)
        response = await ctx.services.groups.consumer_heartbeat(_heartbeat(request, ctx))
    except KafkaError as error:
        response = ConsumerGroupHeartbeatResponse(error.code, text_of(error))
    return {
        "error_code": response.error,
        "error_message": response.message,
        "member_id": response.member_id,
        "member_epoch": response.epoch,
        "heartbeat_interval": response.heartbeat_interval_ms,
        "assignment": None
        if response.assigned is None
        else {
            "topic_partitions": [
                {"topic_id": topic, "partitions": list(partitions)}
                for topic, partitions in response.assigned.items()
            ]
        },
    }


def _check_served(ctx: RequestContext) -> None:
    """Raise UNSUPPORTED_VERSION if the cluster or this broker supports the classic protocol only."""
    enabled = ctx.services.metadata.image.features.get(GROUP_VERSION, 0) >= 1
    if not enabled or "consumer" not in ctx.services.groups.protocols:
        raise KafkaError(ErrorCode.unsupported_version)


def _check_allowed(request: Any, ctx: RequestContext) -> None:
    """Check the operations on the group and its topics. Raises GroupDenied or TopicDenied."""
    check_group(ctx, request.group_id)
    if not all(may_topic(ctx, name) for name in request.subscribed_topic_names or ()):
        raise TopicDenied


def _check(request: Any, ctx: RequestContext) -> None:
    """Check the fields of the request. Raises INVALID_REQUEST or UNSUPPORTED_ASSIGNOR."""
    epoch = request.member_epoch
    if ctx.api_version >= MEMBER_MAKES_ID_SINCE or epoch > 0 or epoch == LEAVE_EPOCH:
        _check_text(request.member_id, "MemberId")
    _check_text(request.group_id, "GroupId")
    _check_text(request.instance_id, "InstanceId")
    _check_text(request.rack_id, "RackId")
    if epoch == JOIN_EPOCH:
        _check_joining(request)
    elif epoch == STATIC_LEAVE_EPOCH and request.instance_id is None:
        raise _invalid("InstanceId can't be null.")
    elif epoch < STATIC_LEAVE_EPOCH:
        raise _invalid("MemberEpoch is invalid.")
    names = ctx.services.groups.assignors
    if request.server_assignor is not None and request.server_assignor not in names:
        raise KafkaError(
            ErrorCode.unsupported_assignor,
            f"ServerAssignor {request.server_assignor} is not supported. "
            f"Supported assignors: {', '.join(names)}.",
        )


def _check_text(text: str | None, name: str) -> None:
    if text is not None and not text.strip():
        raise _invalid(f"{name} can't be empty.")


def _check_joining(request: Any) -> None:
    if request.rebalance_timeout // MILLISECOND == -1:
        raise _invalid("RebalanceTimeoutMs must be provided in first request.")
    if request.topic_partitions is None or request.topic_partitions:
        raise _invalid("TopicPartitions must be empty when (re-)joining.")
    if request.subscribed_topic_names is None and _regex(request) is None:
        raise _invalid(
            "Either SubscribedTopicNames or SubscribedTopicRegex must be non-null when (re-)joining."
        )


def _invalid(message: str) -> KafkaError:
    return KafkaError(ErrorCode.invalid_request, message)


def _regex(request: Any) -> str | None:
    found: str | None = field(request, "subscribed_topic_regex")
    return found


def _heartbeat(request: Any, ctx: RequestContext) -> ConsumerGroupHeartbeat:
    names, owned = request.subscribed_topic_names, request.topic_partitions
    return ConsumerGroupHeartbeat(
        request.group_id,
        request.member_id or uuid_to_text(UUID(ctx.services.groups.new_member_uuid())),
        request.member_epoch,
        ctx.client_id or "",
        f"/{ctx.peer.host}",
        instance_id=request.instance_id,
        rack_id=request.rack_id,
        rebalance_timeout_ms=request.rebalance_timeout // MILLISECOND,
        topics=None if names is None else tuple(names),
        regex=_regex(request),
        assignor=request.server_assignor,
        owned=None
        if owned is None
        else {each.topic_id or ZERO_UUID: frozenset(each.partitions) for each in owned},
        may_see=None if ctx.authorizer is None else lambda topic: may_topic(ctx, topic),
    )


async def consumer_group_describe(request: Any, ctx: RequestContext) -> Mapping[str, Any]:
    requested = request.include_authorized_operations
    groups = in_steps(request.group_ids, ctx)
    return {"groups": [await _describe(group_id, requested, ctx) async for group_id in groups]}


async def _describe(group_id: str, wants_operations: bool, ctx: RequestContext) -> dict[str, Any]:
    try:
        _check_served(ctx)
        check_group(ctx, group_id)
        if not group_id:
            raise KafkaError(ErrorCode.invalid_group_id)
        group = await ctx.services.groups.describe_consumer(group_id)
        _check_may_see(group, ctx)
    except KafkaError as error:
        return {
            "error_code": error.code,
            "error_message": text_of(error),
            "group_id": group_id,
            "authorized_operations": NOT_REQUESTED,
        }
    operations = group_operations(ctx, group_id) if wants_operations else NOT_REQUESTED
    return {**_described(group), "authorized_operations": operations}


def _check_may_see(group: DescribedConsumerGroup, ctx: RequestContext) -> None:
    """Raise TOPIC_AUTHORIZATION_FAILED unless the client may describe all topics of the group."""
    if ctx.authorizer is None:
        return
    parts = [part for each in group.members for part in (each.assigned, each.target)]
    if not all(may_topic(ctx, name) for part in parts for _, name, _ in part):
        raise KafkaError(
            TopicDenied.code,
            "The group has described topic(s) that the client is not authorized to describe.",
        )


def _described(group: DescribedConsumerGroup) -> dict[str, Any]:
    return {
        "error_code": NO_ERROR,
        "group_id": group.group_id,
        "group_state": group.state,
        "group_epoch": group.epoch,
        "assignment_epoch": group.target_epoch,
        "assignor_name": group.assignor,
        "members": [_member(each) for each in group.members],
    }


def _member(described: DescribedConsumerGroupMember) -> dict[str, Any]:
    member = described.member
    return {
        "member_id": member.member_id,
        "instance_id": member.instance_id,
        "rack_id": member.rack_id,
        "member_epoch": member.epoch,
        "client_id": member.client_id,
        "client_host": member.client_host,
        "subscribed_topic_names": sorted(member.topics),
        "subscribed_topic_regex": member.regex,
        "assignment": _assignment(described.assigned),
        "target_assignment": _assignment(described.target),
        "member_type": CLASSIC_MEMBER if member.is_classic else CONSUMER_MEMBER,
    }


def _assignment(topics: NamedPartitions) -> dict[str, Any]:
    return {
        "topic_partitions": [
            {"topic_id": topic_id, "topic_name": name, "partitions": list(partitions)}
            for topic_id, name, partitions in topics
        ]
    }


HANDLERS = {
    apis.CONSUMER_GROUP_HEARTBEAT: consumer_group_heartbeat,
    apis.CONSUMER_GROUP_DESCRIBE: consumer_group_describe,
}
