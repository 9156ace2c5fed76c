"""DescribeCluster (KIP-700, KIP-919), UpdateFeatures (KIP-584) and UnregisterBroker (KIP-500).

Brokers forward UpdateFeatures and UnregisterBroker to the active controller.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from odradek.broker.apis.topic_view import NO_CONTROLLER, TopicView
from odradek.broker.controller.metadata_quorum import static_voters
from odradek.broker.requests.context import RequestContext
from odradek.broker.security.request_authorization import (
    NOT_REQUESTED,
    check_cluster,
    cluster_operations,
)
from odradek.protocol import apis
from odradek.protocol.errors import ErrorCode, KafkaError
from odradek.protocol.messages import field
from odradek.replication.controller.acls import AclOperation
from odradek.replication.controller.broker_registration import unregister_broker
from odradek.replication.controller.feature_updates import (
    UPGRADE,
    FeatureUpdate,
    update_features,
)
from odradek.replication.controller.features import (
    CONTROLLER_REGISTRATION,
    KRAFT_VERSION,
    metadata_version,
)
from odradek.replication.controller.leader_and_isr_updates import MIN_ISR

RESULTS_UP_TO = 1
"""UpdateFeatures: before this version the response has a result per feature; version 2 succeeds or fails as a
whole."""
_BROKERS = 1
_CONTROLLERS = 2
_NAMES = {_BROKERS: "BROKER", _CONTROLLERS: "CONTROLLER"}


async def describe_cluster(request: Any, ctx: RequestContext) -> Mapping[str, Any]:
    """DescribeCluster: a broker listener returns brokers, a controller listener returns controllers (KIP-919)."""
    try:
        _check_endpoint_type(field(request, "endpoint_type", _BROKERS), ctx)
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
        else NOT_REQUESTED,
        **response,
    }


def _check_endpoint_type(wanted: int, ctx: RequestContext) -> None:
    here = _CONTROLLERS if ctx.endpoint.of_controller else _BROKERS
    if wanted == here:
        return
    code = ErrorCode.mismatched_endpoint_type
    message = (
        f"The request was sent to an endpoint of type {_NAMES[here]}, but we wanted an endpoint of type"
        f" {_NAMES.get(wanted)}"
    )
    if wanted not in _NAMES:
        code = ErrorCode.unsupported_endpoint_type
        message = f"Unsupported endpoint type {wanted}"
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
            "Direct-to-controller communication is not supported with the current MetadataVersion.",
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


async def handle_update_features(request: Any, ctx: RequestContext) -> Mapping[str, Any]:
    updates = [
        FeatureUpdate(each.feature, each.max_version_level, field(each, "upgrade_type", UPGRADE))
        for each in request.feature_updates
    ]
    validate_only = field(request, "validate_only", False)
    try:
        check_cluster(ctx)
        quorum_level = next((each.level for each in updates if each.name == KRAFT_VERSION), None)
        # kraft.version is written by the quorum, after the other features are validated
        if quorum_level is not None:
            await _update_features(ctx, updates, validate_only=True)
            await ctx.services.metadata.upgrade_quorum(quorum_level, validate_only=validate_only)
        await _update_features(ctx, updates, validate_only=validate_only)
    except KafkaError as error:
        message = error.message
        if error.code is ErrorCode.invalid_update_version:
            message = (
                "The update failed for all features since the following feature had an error: "
                + message
            )
        return {"error_code": error.code, "error_message": message, "results": []}
    results = []
    if ctx.api_version <= RESULTS_UP_TO:
        results = [
            {"feature": each.name, "error_code": ErrorCode.none, "error_message": "NONE"}
            for each in updates
        ]
    return {"error_code": ErrorCode.none, "error_message": None, "results": results}


async def _update_features(
    ctx: RequestContext, updates: Sequence[FeatureUpdate], *, validate_only: bool
) -> None:
    metadata = ctx.services.metadata
    other_voters = sorted(static_voters(ctx.services.config).keys() - {ctx.services.node_id})
    await metadata.perform(
        lambda image: update_features(
            image,
            updates,
            kraft_version=metadata.kraft_version,
            min_insync_replicas=_static_min_isr(ctx),
            other_voters=other_voters,
            validate_only=validate_only,
        )
    )


def _static_min_isr(ctx: RequestContext) -> int:
    return int(ctx.services.config.layers.static.get(MIN_ISR, "1"))


async def handle_unregister_broker(request: Any, ctx: RequestContext) -> Mapping[str, Any]:
    """UnregisterBroker: remove a broker that will not return (KIP-500). A running broker registers
    again at once; Kafka's stays fenced, with STALE_BROKER_EPOCH, until it is restarted."""
    unclean = ctx.services.config.get_bool("unclean.leader.election.enable")
    try:
        check_cluster(ctx)
        await ctx.services.metadata.perform(
            lambda image: unregister_broker(image, request.broker_id, unclean_election=unclean)
        )
    except KafkaError as error:
        return {"error_code": error.code, "error_message": error.message}
    return {"error_code": ErrorCode.none, "error_message": None}


HANDLERS = {
    apis.DESCRIBE_CLUSTER: describe_cluster,
    apis.UPDATE_FEATURES: handle_update_features,
    apis.UNREGISTER_BROKER: handle_unregister_broker,
}
