"""DescribeCluster (KIP-700, KIP-919)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from odradek.broker.apis.authorized import NOT_ASKED, check_cluster, cluster_operations
from odradek.broker.apis.topic_view import NO_CONTROLLER, TopicView
from odradek.broker.requests.context import RequestContext
from odradek.protocol import apis
from odradek.protocol.errors import ErrorCode, KafkaError
from odradek.protocol.messages import field
from odradek.replication.controller.acls import AclOperation
from odradek.replication.controller.features import CONTROLLER_REGISTRATION, metadata_version

_BROKERS = 1
_CONTROLLERS = 2
_NAMES = {_BROKERS: "brokers", _CONTROLLERS: "controllers"}


async def describe_cluster(request: Any, ctx: RequestContext) -> Mapping[str, Any]:
    """DescribeCluster: a broker listener returns brokers, a controller listener returns controllers (KIP-919)."""
    try:
        _check_asked(field(request, "endpoint_type", _BROKERS), ctx)
        response = _controllers(ctx) if ctx.endpoint.of_controller else _brokers(request, ctx)
    except KafkaError as error:
        return {
            "error_code": error.code,
            "error_message": error.message,
            "cluster_id": "",
            "brokers": [],
        }
    if not any(node["broker_id"] == response["controller_id"] for node in response["brokers"]):
        response["controller_id"] = NO_CONTROLLER
    return {
        "error_code": ErrorCode.none,
        "cluster_id": ctx.services.cluster_id,
        "cluster_authorized_operations": cluster_operations(ctx)
        if request.include_cluster_authorized_operations
        else NOT_ASKED,
        **response,
    }


def _check_asked(wanted: int, ctx: RequestContext) -> None:
    here = _CONTROLLERS if ctx.endpoint.of_controller else _BROKERS
    if wanted == here:
        return
    code = ErrorCode.mismatched_endpoint_type
    message = f"This is a listener of {_NAMES[here]}: ask one of the others"
    if wanted not in _NAMES:
        code = ErrorCode.unsupported_endpoint_type
        message = f"There is no endpoint type {wanted}"
    raise KafkaError(code if ctx.api_version > 0 else ErrorCode.invalid_request, message)


def _brokers(request: Any, ctx: RequestContext) -> dict[str, Any]:
    view = TopicView(ctx)
    return {
        "endpoint_type": _BROKERS,
        "controller_id": view.controller_id(),
        "brokers": [
            {
                "broker_id": broker.id,
                "host": endpoint.host,
                "port": endpoint.port,
                "rack": broker.rack,
                "is_fenced": broker.fenced,
            }
            for broker, endpoint in view.brokers(
                fenced=field(request, "include_fenced_brokers", False)
            )
        ],
    }


def _controllers(ctx: RequestContext) -> dict[str, Any]:
    metadata = ctx.services.metadata
    if metadata_version(metadata.image.features) < CONTROLLER_REGISTRATION:
        raise KafkaError(
            ErrorCode.unsupported_version,
            "The current metadata.version has no controller registrations",
        )
    check_cluster(ctx, AclOperation.ALTER)
    return {
        "endpoint_type": _CONTROLLERS,
        "controller_id": metadata.leader_id,
        "brokers": [
            {
                "broker_id": controller.id,
                "host": endpoint.host,
                "port": endpoint.port,
                "rack": None,
            }
            for _, controller in sorted(metadata.image.controllers.items())
            for endpoint in controller.endpoints
            if endpoint.name == ctx.endpoint.name
        ],
    }


HANDLERS = {apis.DESCRIBE_CLUSTER: describe_cluster}
