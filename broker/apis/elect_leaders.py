"""ElectLeaders: preferred and unclean leader election (KIP-460)."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import islice
from typing import Any

from odradek.broker.apis.topics import in_time
from odradek.broker.requests.context import RequestContext
from odradek.broker.security.request_authorization import check_cluster
from odradek.protocol import apis
from odradek.protocol.errors import ErrorCode, KafkaError
from odradek.protocol.messages import field
from odradek.replication.controller.controller_result import ControllerResult
from odradek.replication.controller.image import MetadataImage
from odradek.replication.controller.leader_election import (
    ELECTIONS,
    ElectedPartition,
    elect_leaders,
)

Values = dict[str, Any]

PREFERRED = 0


async def handle_elect_leaders(request: Any, ctx: RequestContext) -> Mapping[str, Any]:
    """ElectLeaders: preferred or unclean leader election of partitions that need it."""
    try:
        check_cluster(ctx)
        results = await _elect(request, ctx)
    except KafkaError as error:
        failed = [
            _topic(topic.topic, [_result(index, error) for index in topic.partitions])
            for topic in request.topic_partitions or ()
        ]
        return {"error_code": error.code, "replica_election_results": failed}
    return {"error_code": ErrorCode.none, "replica_election_results": results}


async def _elect(request: Any, ctx: RequestContext) -> list[Values]:
    if request.topic_partitions == ():
        return []
    kind = field(request, "election_type", PREFERRED)
    wanted = request.topic_partitions and [
        (topic.topic, index) for topic in request.topic_partitions for index in topic.partitions
    ]

    def operation(image: MetadataImage) -> ControllerResult[list[ElectedPartition]]:
        if kind not in ELECTIONS:
            raise KafkaError(ErrorCode.invalid_request, f"Unknown election type {kind}")
        return elect_leaders(image, ELECTIONS[kind], wanted)

    elected = await in_time(request.timeout, lambda: ctx.services.metadata.perform(operation))
    if request.topic_partitions is not None:
        results = (_result(each.partition, each.error) for each in elected)
        return [
            _topic(topic.topic, list(islice(results, len(topic.partitions))))
            for topic in request.topic_partitions
        ]
    # Every topic is listed, even without results, as in Kafka.
    by_name: dict[str, list[Values]] = {
        name: [] for name in ctx.services.metadata.image.topics_by_name
    }
    for each in elected:
        by_name.setdefault(each.topic, []).append(_result(each.partition, each.error))
    return [_topic(name, partitions) for name, partitions in by_name.items()]


def _topic(name: str, partitions: list[Values]) -> Values:
    return {"topic": name, "partition_result": partitions}


def _result(index: int, error: KafkaError | None) -> Values:
    if error is None:
        return {"partition_id": index, "error_code": ErrorCode.none, "error_message": None}
    return {"partition_id": index, "error_code": error.code, "error_message": error.message}


HANDLERS = {apis.ELECT_LEADERS: handle_elect_leaders}
