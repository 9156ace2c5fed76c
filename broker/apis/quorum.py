"""DescribeQuorum, UpdateFeatures and UnregisterBroker, served by the active controller.

Only the leader of the quorum knows the progress of voters and observers (KIP-595, KIP-836, KIP-853).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from odradek.broker.apis.authorized import ClusterDenied, check_cluster, may_cluster
from odradek.broker.controller.quorum_settings import static_voters
from odradek.broker.requests.context import RequestContext
from odradek.protocol import apis
from odradek.protocol.errors import ErrorCode, KafkaError
from odradek.protocol.messages import field
from odradek.replication.controller.broker_registration import unregister_broker
from odradek.replication.controller.feature_updates import (
    UPGRADE,
    FeatureUpdate,
    update_features,
)
from odradek.replication.controller.features import KRAFT_VERSION
from odradek.replication.controller.leader_and_isr_updates import MIN_ISR
from odradek.replication.controller.topic_names import CLUSTER_METADATA
from odradek.replication.raft.quorum_info import ReplicaInfo
from odradek.replication.raft.rpc_codec import write_endpoints

Values = dict[str, Any]

RESULTS_UP_TO = 1
"""UpdateFeatures: before this version the response has a result per feature; version 2 succeeds or fails as a
whole."""


# DescribeQuorum


async def describe_quorum(request: Any, ctx: RequestContext) -> Mapping[str, Any]:
    if not may_cluster(ctx):
        return {"error_code": ClusterDenied.code, "error_message": "", "topics": [], "nodes": []}
    asked = [
        (topic.topic_name, each.partition_index)
        for topic in request.topics
        for each in topic.partitions
    ]
    if asked != [(CLUSTER_METADATA, 0)]:
        return _unknown(request)
    return _described(ctx)


def _unknown(request: Any) -> Values:
    """Error if the request has another partition than __cluster_metadata-0."""
    unknown = {
        "error_code": ErrorCode.unknown_topic_or_partition,
        "error_message": "The only quorum is that of __cluster_metadata-0",
        "leader_id": 0,
        "leader_epoch": 0,
        "high_watermark": 0,
        "current_voters": [],
        "observers": [],
    }
    return {
        "error_code": ErrorCode.none,
        "error_message": "",
        "topics": [
            {
                "topic_name": topic.topic_name,
                "partitions": [
                    {"partition_index": each.partition_index, **unknown}
                    for each in topic.partitions
                ],
            }
            for topic in request.topics
        ],
        "nodes": [],
    }


def _described(ctx: RequestContext) -> Values:
    quorum = ctx.services.metadata.quorum
    if not quorum.replicas:
        return _respond(
            {
                "error_code": ErrorCode.not_leader_or_follower,
                "error_message": "This node does not lead the metadata quorum.",
                "current_voters": [],
                "observers": [],
            }
        )
    partition = {
        "error_code": ErrorCode.none,
        "error_message": "",
        "leader_id": quorum.leader_id,
        "leader_epoch": quorum.leader_epoch,
        "high_watermark": quorum.high_watermark,
        "current_voters": [_replica(each) for each in quorum.replicas],
        "observers": [_replica(each) for each in quorum.observers],
    }
    nodes = [
        {"node_id": voter.id, "listeners": write_endpoints(voter.endpoints)}
        for voter in quorum.voters
    ]
    return _respond(partition, nodes)


def _replica(info: ReplicaInfo) -> Values:
    return {
        "replica_id": info.key.id,
        "replica_directory_id": info.key.directory_id,
        "log_end_offset": info.log_end_offset,
        "last_fetch_timestamp": info.last_fetch_ms,
        "last_caught_up_timestamp": info.last_caught_up_ms,
    }


def _respond(partition: Values, nodes: Sequence[Values] = ()) -> Values:
    partitions = [{"partition_index": 0, **partition}]
    return {
        "error_code": ErrorCode.none,
        "error_message": "",
        "topics": [{"topic_name": CLUSTER_METADATA, "partitions": partitions}],
        "nodes": nodes,
    }


# UpdateFeatures


async def update(request: Any, ctx: RequestContext) -> Mapping[str, Any]:
    updates = [
        FeatureUpdate(each.feature, each.max_version_level, field(each, "upgrade_type", UPGRADE))
        for each in request.feature_updates
    ]
    validate_only = field(request, "validate_only", False)
    try:
        check_cluster(ctx)
        quorum_level = next((each.level for each in updates if each.name == KRAFT_VERSION), None)
        if (
            quorum_level is not None
        ):  # kraft.version is written by the quorum, after the other features are validated
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


# UnregisterBroker


async def unregister(request: Any, ctx: RequestContext) -> Mapping[str, Any]:
    """UnregisterBroker: remove a broker that will not return (KIP-500). A running broker gets
    STALE_BROKER_EPOCH and registers again after a restart, as in Kafka."""
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
    apis.DESCRIBE_QUORUM: describe_quorum,
    apis.UPDATE_FEATURES: update,
    apis.UNREGISTER_BROKER: unregister,
}
