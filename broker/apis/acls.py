"""DescribeAcls, CreateAcls and DeleteAcls (KIP-140, KIP-290).

Without an authorizer they fail with SECURITY_DISABLED. A request with an enum value UNKNOWN (0) closes the
connection, as in Kafka.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from enum import IntEnum
from itertools import starmap
from typing import Any

from odradek.broker.apis.response_encoding import written
from odradek.broker.requests.context import RequestContext
from odradek.broker.requests.steps import in_steps
from odradek.broker.security.request_authorization import check_cluster
from odradek.broker.timers import EventLoopYield
from odradek.protocol import apis
from odradek.protocol.errors import ErrorCode, InvalidFrame, KafkaError
from odradek.protocol.messages import Encoded, response_item_writer
from odradek.replication.controller import acls as operations
from odradek.replication.controller.acls import (
    Acl,
    AclFilter,
    AclOperation,
    AclResource,
    PatternType,
    Permission,
)

Values = dict[str, Any]
Resources = defaultdict[tuple[int, str, int], Encoded]


class SecurityDisabled(KafkaError):
    code = ErrorCode.security_disabled


def _check_enabled(ctx: RequestContext, error: str = "No Authorizer is configured.") -> None:
    check_cluster(ctx)
    if ctx.authorizer is None:
        raise SecurityDisabled(error)


# DescribeAcls


async def describe_acls(request: Any, ctx: RequestContext) -> Mapping[str, Any]:
    wanted = _filter(request)
    try:
        _check_enabled(ctx, "No Authorizer is configured on the broker")
    except KafkaError as error:
        return {"error_code": error.code, "error_message": error.message, "resources": []}
    resources: Resources = defaultdict(Encoded)
    clock = ctx.services.seams.clock
    write = response_item_writer(ctx.api.key, ctx.api_version, "resources", "acls")
    write_resource = response_item_writer(ctx.api.key, ctx.api_version, "resources")
    event_loop = EventLoopYield(clock)
    for acl in operations.find_acls(ctx.services.metadata.image, wanted):
        if acl is not None:
            key = acl.resource_type, acl.resource_name, acl.pattern_type
            resources[key].append(write(_rule(acl)))
        await event_loop.yield_if_due()
    return {
        "error_code": ErrorCode.none,
        "error_message": "",
        "resources": await written(starmap(_resource, resources.items()), write_resource, clock),
    }


def _filter(wanted: Any) -> AclFilter:
    return AclFilter(
        _known(wanted.resource_type_filter, AclResource),
        wanted.resource_name_filter,
        _known(wanted.pattern_type_filter, PatternType),
        wanted.principal_filter,
        wanted.host_filter,
        _known(wanted.operation, AclOperation),
        _known(wanted.permission_type, Permission),
    )


def _known(value: int, kind: type[IntEnum]) -> int:
    """Convert an enum value; a value that this version does not know becomes UNKNOWN (0). Raises InvalidFrame
    for UNKNOWN itself."""
    if value == 0:
        raise InvalidFrame(f"a request about ACLs with an unknown {kind.__name__}")
    return value if value in kind.__members__.values() else 0


def _rule(acl: Acl) -> Values:
    return {
        "principal": acl.principal,
        "host": acl.host,
        "operation": acl.operation,
        "permission_type": acl.permission,
    }


def _resource(key: tuple[int, str, int], acls: Encoded) -> Values:
    resource_type, name, pattern_type = key
    return {
        "resource_type": resource_type,
        "resource_name": name,
        "pattern_type": pattern_type,
        "acls": acls,
    }


# CreateAcls


async def create_acls(request: Any, ctx: RequestContext) -> Mapping[str, Any]:
    wanted = [_acl(each) async for each in in_steps(request.creations, ctx)]
    try:
        _check_enabled(ctx)
        responses = await ctx.services.metadata.perform(
            lambda image: operations.create_acls(image, wanted, entropy=ctx.services.seams.entropy)
        )
    except KafkaError as error:
        responses = [error] * len(wanted)
    results = in_steps(responses, ctx)
    return {"results": [_result(response, "") async for response in results]}


def _acl(wanted: Any) -> Acl:
    return Acl(
        _known(wanted.resource_type, AclResource),
        wanted.resource_name,
        _known(wanted.resource_pattern_type, PatternType),
        wanted.principal,
        wanted.host,
        _known(wanted.operation, AclOperation),
        _known(wanted.permission_type, Permission),
    )


def _result(error: KafkaError | None, nothing: str | None = None) -> Values:
    """Error fields of a result; `nothing` is the error message of a success, null or empty depending on the
    API."""
    if error is None:
        return {"error_code": ErrorCode.none, "error_message": nothing}
    return {"error_code": error.code, "error_message": error.message or None}


# DeleteAcls


async def delete_acls(request: Any, ctx: RequestContext) -> Mapping[str, Any]:
    filters = [_filter(each) async for each in in_steps(request.filters, ctx)]
    try:
        _check_enabled(ctx)
        deleted = await ctx.services.metadata.perform(
            lambda image: operations.delete_acls(image, filters)
        )
    except KafkaError as error:
        return {"filter_results": [{**_result(error), "matching_acls": []} for _ in filters]}
    return {
        "filter_results": [
            {**_result(found.error), "matching_acls": [_matching(acl) for acl in found.acls]}
            for found in deleted
        ]
    }


def _matching(acl: Acl) -> Values:
    return {
        **_result(None),
        "resource_type": acl.resource_type,
        "resource_name": acl.resource_name,
        "pattern_type": acl.pattern_type,
        "principal": acl.principal,
        "host": acl.host,
        "operation": acl.operation,
        "permission_type": acl.permission,
    }


HANDLERS = {
    apis.DESCRIBE_ACLS: describe_acls,
    apis.CREATE_ACLS: create_acls,
    apis.DELETE_ACLS: delete_acls,
}
