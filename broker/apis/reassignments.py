"""ElectLeaders, AlterPartitionReassignments and ListPartitionReassignments (KIP-460, KIP-455)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from odradek.broker.apis.authorized import check_cluster
from odradek.broker.apis.topics import in_time
from odradek.broker.requests.context import RequestContext
from odradek.protocol import apis
from odradek.protocol.errors import ErrorCode, KafkaError
from odradek.protocol.messages import field
from odradek.replication.controller.leader_election import ELECTIONS, elect_leaders
from odradek.replication.controller.reassignments import (
    Reassignment,
    alter_reassignments,
    list_reassignments,
)

Values = dict[str, Any]

PREFERRED = 0


async def elect(request: Any, ctx: RequestContext) -> Mapping[str, Any]:
    """ElectLeaders: preferred or unclean leader election of partitions that need it."""
    asked: dict[str, list[int]] | None = None
    if request.topic_partitions is not None:
        asked = {}
        for topic in request.topic_partitions:
            asked.setdefault(topic.topic, []).extend(topic.partitions)
    try:
        check_cluster(ctx)
        results = await _elect(request, asked, ctx)
    except KafkaError as error:
        results = {
            topic: [_result(index, error) for index in indexes]
            for topic, indexes in (asked or {}).items()
        }
        return {"error_code": error.code, "replica_election_results": _election_values(results)}
    return {"error_code": ErrorCode.none, "replica_election_results": _election_values(results)}


async def _elect(
    request: Any, asked: Mapping[str, list[int]] | None, ctx: RequestContext
) -> dict[str, list[Values]]:
    wanted = None
    if asked is not None:
        wanted = [(topic, index) for topic, indexes in asked.items() for index in indexes]
        if not wanted:
            return {}
    kind = field(request, "election_type", PREFERRED)
    if kind not in ELECTIONS:
        raise KafkaError(ErrorCode.invalid_request, f"Unknown election type {kind}")
    elected = await in_time(
        request.timeout,
        lambda: ctx.services.metadata.perform(
            lambda image: elect_leaders(image, ELECTIONS[kind], wanted)
        ),
    )
    # For all partitions, Kafka lists every topic, even without results.
    names = ctx.services.metadata.image.topics_by_name if asked is None else asked
    results: dict[str, list[Values]] = {name: [] for name in names}
    for each in elected:
        results.setdefault(each.topic, []).append(_result(each.partition, each.error))
    return results


def _election_values(results: Mapping[str, list[Values]]) -> list[Values]:
    return [
        {"topic": topic, "partition_result": partitions} for topic, partitions in results.items()
    ]


def _result(index: int, error: KafkaError | None) -> Values:
    if error is None:
        return {"partition_id": index, "error_code": ErrorCode.none, "error_message": None}
    return {"partition_id": index, "error_code": error.code, "error_message": error.message}


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
            "allow_replication_factor_change": changes_factor,
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
        "allow_replication_factor_change": changes_factor,
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
    apis.ELECT_LEADERS: elect,
    apis.ALTER_PARTITION_REASSIGNMENTS: alter_partition_reassignments,
    apis.LIST_PARTITION_REASSIGNMENTS: list_partition_reassignments,
}
