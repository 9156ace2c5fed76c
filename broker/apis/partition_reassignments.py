"""AlterPartitionReassignments and ListPartitionReassignments (KIP-455)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from odradek.broker.apis.topics import in_time
from odradek.broker.requests.context import RequestContext
from odradek.broker.security.request_authorization import check_cluster
from odradek.protocol import apis
from odradek.protocol.errors import ErrorCode, KafkaError
from odradek.protocol.messages import field
from odradek.replication.controller.reassignments import (
    Reassignment,
    alter_reassignments,
    list_reassignments,
)

Values = dict[str, Any]


async def alter_partition_reassignments(request: Any, ctx: RequestContext) -> Mapping[str, Any]:
    wanted = [
        Reassignment(topic.name, each.partition_index, each.replicas)
        for topic in request.topics
        for each in topic.partitions
    ]
    changes_factor = field(request, "allow_replication_factor_change", True)
    try:
        check_cluster(ctx)
        responses = iter(await _alter(request, wanted, changes_factor, ctx))
    except KafkaError as error:
        return {
            "allow_replication_factor_change": True,  # as in every error response of Kafka
            "error_code": error.code,
            "error_message": error.message,
            "responses": [
                {
                    "name": topic.name,
                    "partitions": [
                        _altered(each.partition_index, error) for each in topic.partitions
                    ],
                }
                for topic in request.topics
            ],
        }
    return {
        "allow_replication_factor_change": changes_factor or not request.topics,
        "error_code": ErrorCode.none,
        "error_message": None if request.topics else "",
        "responses": [
            {
                "name": topic.name,
                "partitions": [
                    _altered(each.partition_index, next(responses)) for each in topic.partitions
                ],
            }
            for topic in request.topics
        ],
    }


async def _alter(
    request: Any, wanted: list[Reassignment], changes_factor: bool, ctx: RequestContext
) -> list[KafkaError | None]:
    if not request.topics:
        return []
    unclean = ctx.services.config.get_bool("unclean.leader.election.enable")
    return await in_time(
        request.timeout,
        lambda: ctx.services.metadata.perform(
            lambda image: alter_reassignments(
                image,
                wanted,
                allow_replication_factor_change=changes_factor,
                unclean_election=unclean,
            )
        ),
    )


def _altered(index: int, error: KafkaError | None) -> Values:
    if error is None:
        return {"partition_index": index, "error_code": ErrorCode.none, "error_message": None}
    return {
        "partition_index": index,
        "error_code": error.code,
        "error_message": error.message or None,
    }


async def list_partition_reassignments(request: Any, ctx: RequestContext) -> Mapping[str, Any]:
    try:
        check_cluster(ctx)
    except KafkaError as error:
        return {"error_code": error.code, "error_message": error.message, "topics": []}
    wanted = None
    if request.topics is not None:
        wanted = [(topic.name, topic.partition_indexes) for topic in request.topics]
    return {
        "error_code": ErrorCode.none,
        "error_message": None,
        "topics": [
            {
                "name": topic,
                "partitions": [
                    {
                        "partition_index": index,
                        "replicas": partition.replicas,
                        "adding_replicas": partition.adding_replicas,
                        "removing_replicas": partition.removing_replicas,
                    }
                    for index, partition in partitions.items()
                ],
            }
            for topic, partitions in list_reassignments(ctx.services.metadata.image, wanted)
        ],
    }


HANDLERS = {
    apis.ALTER_PARTITION_REASSIGNMENTS: alter_partition_reassignments,
    apis.LIST_PARTITION_REASSIGNMENTS: list_partition_reassignments,
}
