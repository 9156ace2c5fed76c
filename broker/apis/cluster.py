"""DescribeCluster (KIP-700, KIP-919)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from odradek.broker.apis.authorized import NOT_ASKED, cluster_operations
from odradek.broker.apis.topic_view import NO_CONTROLLER, TopicView
from odradek.broker.context import RequestContext
from odradek.protocol import apis
from odradek.protocol.errors import ErrorCode
from odradek.protocol.messages import field

_BROKERS = 1
_CONTROLLERS = 2


async def describe_cluster(request: Any, ctx: RequestContext) -> Mapping[str, Any]:
    wanted = field(request, "endpoint_type", _BROKERS)
    if wanted != _BROKERS:
        code = ErrorCode.unsupported_endpoint_type
        message = f"There is no endpoint type {wanted}"
        if wanted == _CONTROLLERS:
            code = ErrorCode.mismatched_endpoint_type
            message = "This is a broker's listener: ask one of the controllers' about controllers"
        return {
            "error_code": code,
            "error_message": message,
            "cluster_id": "",
            "brokers": [],
        }
    view = TopicView(ctx)
    brokers = view.brokers(fenced=field(request, "include_fenced_brokers", False))
    controller = view.controller_id()
    return {
        "error_code": ErrorCode.none,
        "endpoint_type": _BROKERS,
        "cluster_id": ctx.broker.cluster_id,
        "controller_id": controller
        if any(broker.id == controller for broker, _ in brokers)
        else NO_CONTROLLER,
        "brokers": [
            {
                "broker_id": broker.id,
                "host": endpoint.host,
                "port": endpoint.port,
                "rack": broker.rack,
                "is_fenced": broker.fenced,
            }
            for broker, endpoint in brokers
        ],
        "cluster_authorized_operations": cluster_operations(ctx)
        if request.include_cluster_authorized_operations
        else NOT_ASKED,
    }


HANDLERS = {apis.DESCRIBE_CLUSTER: describe_cluster}
