"""Requests of brokers and controllers to the active controller (KIP-631, KIP-497, KIP-730, KIP-858, KIP-919).

Each request fails as a whole if this node is not the active controller, the sender lacks CLUSTER_ACTION, or its
broker epoch is stale.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any
from uuid import UUID

from odradek.broker.requests.context import RequestContext
from odradek.broker.security.request_authorization import check_cluster
from odradek.protocol import apis
from odradek.protocol.errors import ErrorCode, KafkaError
from odradek.protocol.messages import field
from odradek.replication.controller.alter_partition import (
    ANY_EPOCH,
    RECOVERED,
    AlteredPartition,
    ProposedIsr,
    alter_partitions,
)
from odradek.replication.controller.broker_directories import assign_directories
from odradek.replication.controller.broker_heartbeats import BrokerHeartbeat
from odradek.replication.controller.broker_registration import (
    BrokerRegistration,
    register_controller,
)
from odradek.replication.controller.controller_result import ControllerResult
from odradek.replication.controller.features import CONTROLLER_REGISTRATION, metadata_version
from odradek.replication.controller.image import ControllerImage, Endpoint, MetadataImage
from odradek.replication.controller.producer_ids import allocate_producer_ids

Values = dict[str, Any]

NO_NODE = -1
NO_UUID = UUID(int=0)


# Brokers


async def register_broker(request: Any, ctx: RequestContext) -> Mapping[str, Any]:
    try:
        check_cluster(ctx)
        if request.cluster_id != ctx.services.cluster_id:
            raise KafkaError(
                ErrorCode.inconsistent_cluster_id,
                f"Expected cluster ID {ctx.services.cluster_id}, but got cluster ID "
                f"{request.cluster_id}",
            )
        if field(request, "is_migrating_zk_broker", False):
            raise KafkaError(
                ErrorCode.broker_id_not_registered,
                "Controller does not support registering ZK brokers.",
            )
        epoch = await ctx.services.quorum_controller.register(_registration(request))
    except KafkaError as error:
        return {"error_code": error.code, "broker_epoch": NO_NODE}
    return {"error_code": ErrorCode.none, "broker_epoch": epoch}


def _registration(request: Any) -> BrokerRegistration:
    return BrokerRegistration(
        id=request.broker_id,
        incarnation_id=_uuid(request.incarnation_id),
        endpoints=_endpoints(request),
        directories=_uuids(field(request, "log_dirs", ())),
        features=_features(request),
        rack=request.rack,
        previous_epoch=field(request, "previous_broker_epoch", NO_NODE),
    )


async def handle_broker_heartbeat(request: Any, ctx: RequestContext) -> Mapping[str, Any]:
    cordoned = field(request, "cordoned_log_dirs")
    try:
        check_cluster(ctx)
        response = await ctx.services.quorum_controller.heartbeat(
            BrokerHeartbeat(
                request.broker_id,
                request.broker_epoch,
                request.current_metadata_offset,
                want_fence=request.want_fence,
                want_shut_down=request.want_shut_down,
                offline=_uuids(field(request, "offline_log_dirs", ())),
                cordoned=None if cordoned is None else _uuids(cordoned),
            )
        )
    except KafkaError as error:
        return {
            "error_code": error.code,
            "is_caught_up": False,
            "is_fenced": True,
            "should_shut_down": False,
        }
    return {
        "error_code": ErrorCode.none,
        "is_caught_up": response.is_caught_up,
        "is_fenced": response.is_fenced,
        "should_shut_down": response.should_shut_down,
    }


async def handle_allocate_producer_ids(request: Any, ctx: RequestContext) -> Mapping[str, Any]:
    """AllocateProducerIds: allocate a block of producer ids for the broker."""
    try:
        check_cluster(ctx)
        block = await ctx.services.metadata.perform(
            lambda image: allocate_producer_ids(image, request.broker_id, request.broker_epoch)
        )
    except KafkaError as error:
        return {"error_code": error.code, "producer_id_start": 0, "producer_id_len": 0}
    return {
        "error_code": ErrorCode.none,
        "producer_id_start": block.first,
        "producer_id_len": block.size,
    }


# Controllers


async def handle_controller_registration(request: Any, ctx: RequestContext) -> Mapping[str, Any]:
    controller = ControllerImage(
        id=request.controller_id,
        incarnation_id=_uuid(request.incarnation_id),
        endpoints=tuple(_endpoints(request)),
        features=_features(request),
        zk_migration_ready=False,
    )

    def registered(image: MetadataImage) -> ControllerResult[None]:
        if metadata_version(image.features) < CONTROLLER_REGISTRATION:
            raise KafkaError(
                ErrorCode.unsupported_version,
                "The current MetadataVersion is too old to support controller registrations.",
            )
        return register_controller(image, controller)

    try:
        check_cluster(ctx)
        await ctx.services.metadata.perform(registered)
    except KafkaError as error:
        return {"error_code": error.code, "error_message": error.message or None}
    return {"error_code": ErrorCode.none, "error_message": None}


# In-sync replicas


async def alter_partition(request: Any, ctx: RequestContext) -> Mapping[str, Any]:
    proposed = [
        _proposed(_uuid(topic.topic_id), each)
        for topic in request.topics
        for each in topic.partitions
    ]
    unclean = ctx.services.config.get_bool("unclean.leader.election.enable")
    try:
        check_cluster(ctx)
        altered = await ctx.services.metadata.perform(
            lambda image: alter_partitions(
                image,
                request.broker_id,
                request.broker_epoch,
                proposed,
                unclean_election=unclean,
            )
        )
    except KafkaError as error:
        return {"error_code": error.code, "topics": []}
    responses = iter(altered)
    return {
        "error_code": ErrorCode.none,
        "topics": [
            {
                "topic_id": topic.topic_id,
                "partitions": [_altered(next(responses)) for _ in topic.partitions],
            }
            for topic in request.topics
        ],
    }


def _proposed(topic_id: UUID, partition: Any) -> ProposedIsr:
    """Proposed ISR with broker epochs; version 2 has none (KIP-903)."""
    members = field(partition, "new_isr_with_epochs")
    if members is None:
        isr = [(broker_id, ANY_EPOCH) for broker_id in partition.new_isr]
    else:
        isr = [(each.broker_id, each.broker_epoch) for each in members]
    return ProposedIsr(
        topic_id,
        partition.partition_index,
        partition.leader_epoch,
        partition.partition_epoch,
        isr,
        partition.leader_recovery_state,
    )


def _altered(response: AlteredPartition) -> Values:
    now = response.state
    return {
        "partition_index": response.index,
        "error_code": response.error_code,
        "leader_id": 0 if now is None else now.leader,
        "leader_epoch": 0 if now is None else now.leader_epoch,
        "isr": () if now is None else now.isr,
        "leader_recovery_state": RECOVERED if now is None else now.leader_recovery_state,
        "partition_epoch": 0 if now is None else now.partition_epoch,
    }


# Log directories


async def handle_assign_replicas_to_dirs(request: Any, ctx: RequestContext) -> Mapping[str, Any]:
    """AssignReplicasToDirs: record the log directory of each replica."""
    assignments = {
        (_uuid(topic.topic_id), each.partition_index): _uuid(directory.id_)
        for directory in request.directories
        for topic in directory.topics
        for each in topic.partitions
    }
    unclean = ctx.services.config.get_bool("unclean.leader.election.enable")
    try:
        check_cluster(ctx)
        responses = await ctx.services.metadata.perform(
            lambda image: assign_directories(
                image,
                request.broker_id,
                request.broker_epoch,
                assignments,
                unclean_election=unclean,
            )
        )
    except KafkaError as error:
        return {"error_code": error.code, "directories": []}
    return _assign_response(request, responses)


def _assign_response(
    request: Any, responses: Mapping[tuple[UUID, int], ErrorCode]
) -> Mapping[str, Any]:
    return {
        "error_code": ErrorCode.none,
        "directories": [
            {
                "id_": directory.id_,
                "topics": [
                    {
                        "topic_id": topic.topic_id,
                        "partitions": [
                            {
                                "partition_index": each.partition_index,
                                "error_code": responses[
                                    _uuid(topic.topic_id), each.partition_index
                                ],
                            }
                            for each in topic.partitions
                        ],
                    }
                    for topic in directory.topics
                ],
            }
            for directory in request.directories
        ],
    }


# Fields that several requests share


def _uuid(value: UUID | None) -> UUID:
    """The UUID; kio decodes the zero UUID as None."""
    return value or NO_UUID


def _uuids(values: Iterable[UUID | None]) -> Sequence[UUID]:
    return [_uuid(each) for each in values]


def _endpoints(request: Any) -> list[Endpoint]:
    return [
        Endpoint(each.name, each.host, each.port, each.security_protocol)
        for each in request.listeners
    ]


def _features(request: Any) -> dict[str, tuple[int, int]]:
    return {
        each.name: (each.min_supported_version, each.max_supported_version)
        for each in request.features
    }


HANDLERS = {
    apis.BROKER_REGISTRATION: register_broker,
    apis.BROKER_HEARTBEAT: handle_broker_heartbeat,
    apis.CONTROLLER_REGISTRATION: handle_controller_registration,
    apis.ALLOCATE_PRODUCER_IDS: handle_allocate_producer_ids,
    apis.ALTER_PARTITION: alter_partition,
    apis.ASSIGN_REPLICAS_TO_DIRS: handle_assign_replicas_to_dirs,
}
