"""DescribeTopicTiering: the tiered state of topics, and how far a disablement is (KIP-950). Kafka has no such API.

The active controller has the state and the responses of the brokers; a broker forwards the request to it. The broker
adds the number of remote log segments of the partitions that it leads, so a client that needs all of them sends the
request to each leader.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from odradek.broker.requests.context import RequestContext
from odradek.broker.requests.forwarding import forward_values
from odradek.broker.requests.steps import in_steps
from odradek.broker.security.request_authorization import TopicDenied, may_topic
from odradek.broker.services import Services
from odradek.protocol import apis
from odradek.protocol.errors import ErrorCode, KafkaError
from odradek.replication.controller.image import (
    NEVER_DISABLED,
    MetadataImage,
    TieredState,
    TopicImage,
)
from odradek.replication.controller.topic_tiering import is_tiered

Values = dict[str, Any]


async def describe_topic_tiering(request: Any, ctx: RequestContext) -> Mapping[str, Any]:
    metadata = ctx.services.metadata
    if metadata.is_active:
        topics = await _described(request.topics, ctx)
    else:
        forwarded = None
        if not ctx.endpoint.of_controller:
            forwarded = await forward_values({"topics": request.topics}, ctx)
        if forwarded is None:
            return {
                "error_code": ErrorCode.not_controller,
                "error_message": "The active controller did not respond",
                "topics": [],
            }
        if forwarded.error_code != ErrorCode.none:
            return {
                "error_code": forwarded.error_code,
                "error_message": forwarded.error_message,
                "topics": [],
            }
        topics = [_values(row) for row in forwarded.topics]
    if ctx.services.config.is_broker and not ctx.endpoint.of_controller:
        async for row in in_steps(topics, ctx):
            if row["error_code"] == ErrorCode.none:
                row["partitions"] = _segment_counts(row["name"], ctx.services)
    return {"error_code": ErrorCode.none, "error_message": None, "topics": topics}


async def _described(names: Iterable[str] | None, ctx: RequestContext) -> list[Values]:
    """Rows of the response, from the metadata image and the responses that the active controller has."""
    image = ctx.services.metadata.image
    if names is None:
        known = (image.topics_by_id.get(topic_id) for topic_id in image.tiering)
        found = sorted((each for each in known if each is not None), key=lambda each: each.name)
        return [
            _row(each, image, ctx.services)
            async for each in in_steps(found, ctx)
            if may_topic(ctx, each.name)
        ]
    rows = []
    async for name in in_steps(dict.fromkeys(names), ctx):
        topic = image.topics_by_name.get(name)
        if not may_topic(ctx, name):
            rows.append(_error(name, TopicDenied()))
        elif topic is None:
            code = ErrorCode.unknown_topic_or_partition
            rows.append(_error(name, KafkaError(code, f"topic {name} does not exist")))
        else:
            rows.append(_row(topic, image, ctx.services))
    return rows


def _row(topic: TopicImage, image: MetadataImage, services: Services) -> Values:
    tiering = image.tiering.get(topic.id, NEVER_DISABLED)
    brokers: list[Values] = []
    if tiering.state is TieredState.DISABLING:
        if services.topic_disablements is None:  # its tasks have not started
            brokers = [{"broker_id": broker_id} for broker_id in sorted(image.brokers)]
        else:
            brokers = [
                {"broker_id": each.broker_id, "is_done": each.is_done, "reason": each.reason}
                for each in services.topic_disablements.brokers(topic.id)
            ]
    return {
        "error_code": ErrorCode.none,
        "error_message": None,
        "name": topic.name,
        "is_tiered": is_tiered(image.topic_configs(topic.name)),
        "state": int(tiering.state),
        "epoch": tiering.epoch,
        "policy": None if tiering.policy is None else tiering.policy.value,
        "brokers": brokers,
        "partitions": [],
    }


def _error(name: str, error: KafkaError) -> Values:
    return {"error_code": error.code, "error_message": error.message, "name": name}


def _values(row: Any) -> Values:
    """A row of another node's response, as values."""
    names = ("error_code", "error_message", "name", "is_tiered", "state", "epoch", "policy")
    values: Values = {name: getattr(row, name) for name in names}
    values["brokers"] = row.brokers
    return values


def _segment_counts(topic: str, services: Services) -> list[Values]:
    """Remote log segments of the partitions that this broker leads."""
    if services.tiered_storage is None:
        return []
    image = services.metadata.image.topics_by_name.get(topic)
    counts = []
    for index in () if image is None else image.partitions:
        partition = services.partitions.opened(topic, index)
        if partition is not None and partition.is_leader:
            count = services.tiered_storage.manager.segment_count(partition)
            if count is not None:
                counts.append({"partition_index": index, "segments": count})
    return counts


HANDLERS = {apis.DESCRIBE_TOPIC_TIERING: describe_topic_tiering}
