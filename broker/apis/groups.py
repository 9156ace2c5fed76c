"""Requests of the classic group protocol, and ListGroups, DescribeGroups and DeleteGroups.

The handlers translate between `broker.groups` and the versions of the requests and responses.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta
from typing import Any

from odradek.broker.groups.classic_group import ClassicGroupNotFound, DescribedGroup
from odradek.broker.groups.messages import (
    NO_ERROR,
    Heartbeat,
    JoinGroup,
    JoinGroupResponse,
    LeaveGroup,
    LeaveGroupResponse,
    LeavingMember,
    SupportedProtocols,
    SyncGroup,
    SyncGroupResponse,
)
from odradek.broker.requests.context import RequestContext
from odradek.broker.requests.steps import in_steps
from odradek.broker.security.request_authorization import (
    NOT_REQUESTED,
    GroupDenied,
    check_group,
    group_operations,
    may_cluster,
    may_group,
)
from odradek.protocol import apis
from odradek.protocol.errors import ErrorCode, KafkaError
from odradek.protocol.messages import field
from odradek.replication.controller.acls import AclOperation

ID_REQUIRED_SINCE = 4
"""JoinGroup: since this version a dynamic member first receives its member id, and then joins with it
(KIP-394)."""
NULL_PROTOCOL_SINCE = 7
"""JoinGroup: since this version the response has null instead of an empty protocol name."""
SKIP_ASSIGNMENT_SINCE = 9
"""JoinGroup: since this version the leader can be instructed to skip the assignment (KIP-814)."""
PROTOCOL_REQUIRED_SINCE = 5
"""SyncGroup: since this version the request has the protocol type and name that the member expects (KIP-559)."""
BATCHED_LEAVE_SINCE = 3
NOT_FOUND_SINCE = 6
"""DescribeGroups: since this version an unknown group is an error instead of a dead group (KIP-1043)."""
MILLISECOND = timedelta(milliseconds=1)
DEAD = "Dead"


async def join_group(request: Any, ctx: RequestContext) -> Mapping[str, Any]:
    session_timeout_ms = request.session_timeout // MILLISECOND
    if ctx.api_version == 0:  # which has no time of its own to rejoin in
        rebalance_timeout_ms = session_timeout_ms
    else:
        rebalance_timeout_ms = request.rebalance_timeout // MILLISECOND
    groups = ctx.services.groups
    try:
        check_group(ctx, request.group_id)
        response = await groups.join(
            JoinGroup(
                request.group_id,
                request.member_id,
                field(request, "group_instance_id"),
                ctx.client_id or "",
                f"/{ctx.peer.host}",
                session_timeout_ms,
                rebalance_timeout_ms,
                request.protocol_type,
                _protocols(request),
                groups.new_member_uuid(),
                field(request, "reason"),
                id_required=ctx.api_version >= ID_REQUIRED_SINCE,
                can_skip_assignment=ctx.api_version >= SKIP_ASSIGNMENT_SINCE,
            )
        )
    except KafkaError as error:
        response = JoinGroupResponse(error.code, "")
    return _join_response(response, ctx.api_version)


def _join_response(response: JoinGroupResponse, version: int) -> Mapping[str, Any]:
    no_protocol = None if version >= NULL_PROTOCOL_SINCE else ""
    return {
        "error_code": response.error,
        "generation_id": response.generation,
        "protocol_type": response.protocol_type,
        "protocol_name": response.protocol_name or no_protocol,
        "leader": response.leader,
        "skip_assignment": response.skip_assignment,
        "member_id": response.member_id,
        "members": [
            {
                "member_id": each.member_id,
                "group_instance_id": each.instance_id,
                "metadata": each.metadata,
            }
            for each in response.members
        ],
    }


def _protocols(request: Any) -> SupportedProtocols:
    """Protocols of the member; of duplicate names the first counts."""
    found: dict[str, bytes] = {}
    for each in request.protocols:
        found.setdefault(each.name, bytes(each.metadata))
    return tuple(found.items())


async def sync_group(request: Any, ctx: RequestContext) -> Mapping[str, Any]:
    response = await _sync(request, ctx)
    return {
        "error_code": response.error,
        "protocol_type": response.protocol_type,
        "protocol_name": response.protocol_name,
        "assignment": response.assignment,
    }


async def _sync(request: Any, ctx: RequestContext) -> SyncGroupResponse:
    protocol_type = field(request, "protocol_type")
    protocol_name = field(request, "protocol_name")
    if ctx.api_version >= PROTOCOL_REQUIRED_SINCE and None in (protocol_type, protocol_name):
        return SyncGroupResponse(ErrorCode.inconsistent_group_protocol)
    try:
        check_group(ctx, request.group_id)
        return await ctx.services.groups.sync(
            SyncGroup(
                request.group_id,
                request.member_id,
                field(request, "group_instance_id"),
                request.generation_id,
                protocol_type,
                protocol_name,
                {each.member_id: bytes(each.assignment) for each in request.assignments},
            )
        )
    except KafkaError as error:
        return SyncGroupResponse(error.code)


async def heartbeat(request: Any, ctx: RequestContext) -> Mapping[str, Any]:
    try:
        check_group(ctx, request.group_id)
        response = await ctx.services.groups.heartbeat(
            Heartbeat(
                request.group_id,
                request.member_id,
                field(request, "group_instance_id"),
                request.generation_id,
            )
        )
    except KafkaError as error:
        return {"error_code": error.code}
    return {"error_code": response.error}


async def leave_group(request: Any, ctx: RequestContext) -> Mapping[str, Any]:
    batched = ctx.api_version >= BATCHED_LEAVE_SINCE
    if batched:
        leavers = tuple(
            LeavingMember(each.member_id, each.group_instance_id, field(each, "reason"))
            for each in request.members
        )
    else:
        leavers = (LeavingMember(request.member_id),)
    try:
        check_group(ctx, request.group_id)
        response = await ctx.services.groups.leave(LeaveGroup(request.group_id, leavers))
    except KafkaError as error:
        response = LeaveGroupResponse(error.code)
    if not batched:
        alone = [each.error for each in response.members]
        return {
            "error_code": (alone or [NO_ERROR])[0] if response.error is NO_ERROR else response.error
        }
    return {
        "error_code": response.error,
        "members": [
            {
                "member_id": each.member_id,
                "group_instance_id": each.instance_id,
                "error_code": each.error,
            }
            for each in response.members
        ],
    }


async def list_groups(request: Any, ctx: RequestContext) -> Mapping[str, Any]:
    try:
        groups = ctx.services.groups.list_groups(
            field(request, "states_filter", ()), field(request, "types_filter", ())
        )
    except KafkaError as error:
        return {"error_code": error.code, "groups": []}
    sees_all = may_cluster(ctx, AclOperation.DESCRIBE)
    return {
        "error_code": NO_ERROR,
        "groups": [
            {
                "group_id": each.group_id,
                "protocol_type": each.protocol_type,
                "group_state": each.state,
                "group_type": each.kind,
            }
            for each in groups
            if sees_all or may_group(ctx, each.group_id)
        ],
    }


async def describe_groups(request: Any, ctx: RequestContext) -> Mapping[str, Any]:
    requested = field(request, "include_authorized_operations", False)
    groups = in_steps(request.groups, ctx)
    return {"groups": [_describe(group_id, requested, ctx) async for group_id in groups]}


def _describe(group_id: str, wants_operations: bool, ctx: RequestContext) -> dict[str, Any]:
    operations = group_operations(ctx, group_id) if wants_operations else NOT_REQUESTED
    try:
        check_group(ctx, group_id)
        group = ctx.services.groups.describe(group_id)
    except ClassicGroupNotFound as error:
        if ctx.api_version < NOT_FOUND_SINCE:
            return {
                **_undescribed(group_id),
                "group_state": DEAD,
                "authorized_operations": operations,
            }
        return {
            **_undescribed(group_id),
            "error_code": error.code,
            "error_message": error.message,
            "group_state": DEAD,
        }
    except KafkaError as error:
        return {**_undescribed(group_id), "error_code": error.code}
    return {**_described(group), "authorized_operations": operations}


def _undescribed(group_id: str) -> dict[str, Any]:
    return {
        "error_code": NO_ERROR,
        "group_id": group_id,
        "group_state": "",
        "protocol_type": "",
        "protocol_data": "",
        "members": [],
        "authorized_operations": NOT_REQUESTED,
    }


def _described(group: DescribedGroup) -> dict[str, Any]:
    return {
        "error_code": NO_ERROR,
        "group_id": group.group_id,
        "group_state": group.state,
        "protocol_type": group.protocol_type,
        "protocol_data": group.protocol,
        "members": [
            {
                "member_id": each.member_id,
                "group_instance_id": each.instance_id,
                "client_id": each.client_id,
                "client_host": each.client_host,
                "member_metadata": each.metadata,
                "member_assignment": each.assignment,
            }
            for each in group.members
        ],
    }


async def delete_groups(request: Any, ctx: RequestContext) -> Mapping[str, Any]:
    names = in_steps(dict.fromkeys(request.groups_names), ctx)
    is_allowed = {name: may_group(ctx, name) async for name in names}
    allowed = [name for name, allows in is_allowed.items() if allows]
    results = list(await ctx.services.groups.delete_groups(allowed))
    denied = [name for name, allows in is_allowed.items() if not allows]
    results += [(group_id, GroupDenied.code) for group_id in denied]
    return {"results": [{"group_id": group_id, "error_code": error} for group_id, error in results]}


HANDLERS = {
    apis.JOIN_GROUP: join_group,
    apis.SYNC_GROUP: sync_group,
    apis.HEARTBEAT: heartbeat,
    apis.LEAVE_GROUP: leave_group,
    apis.LIST_GROUPS: list_groups,
    apis.DESCRIBE_GROUPS: describe_groups,
    apis.DELETE_GROUPS: delete_groups,
}
