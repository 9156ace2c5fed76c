"""ElectLeaders: preferred and unclean leader election (KIP-460)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from odradek.broker.apis.topics import in_time
from odradek.broker.requests.context import RequestContext
from odradek.broker.security.request_authorization import check_cluster
from odradek.protocol import apis
from odradek.protocol.errors import ErrorCode, KafkaError
from odradek.protocol.messages import field
from odradek.replication.controller.leader_election import ELECTIONS, elect_leaders

Values = dict[str, Any]

PREFERRED = 0


async def handle_elect_leaders(request: Any, ctx: RequestContext) -> Mapping[str, Any]:
    """ElectLeaders: preferred or unclean leader election of partitions that need it."""
    requested: dict[str, list[int]] | None = None
    if request.topic_partitions is not None:
        requested = {}
        for topic in request.topic_partitions:
            requested.setdefault(topic.topic, []).extend(topic.partitions)
    try:
        check_cluster(ctx)
        results = await _elect(request, requested, ctx)
    except KafkaError as error:
        results = {
            topic: [_result(index, error) for index in indexes]
            for topic, indexes in (requested or {}).items()
        }
        return {"error_code": error.code, "replica_election_results": _election_values(results)}
    return {"error_code": ErrorCode.none, "replica_election_results": _election_values(results)}


async def _elect(
    request: Any, requested: Mapping[str, list[int]] | None, ctx: RequestContext
) -> dict[str, list[Values]]:
    wanted = None
    if requested is not None:
        wanted = [(topic, index) for topic, indexes in requested.items() for index in indexes]
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
    names = ctx.services.metadata.image.topics_by_name if requested is None else requested
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


HANDLERS = {apis.ELECT_LEADERS: handle_elect_leaders}
