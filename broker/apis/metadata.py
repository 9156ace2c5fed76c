"""Metadata: brokers, topics, partitions and leaders; it also creates missing topics.

Versions: in 0 an empty list requests all topics, later null does. Responses have topic ids since 10, and
requests since 12. Versions 8 to 10 have the authorized operations of the cluster. Kafka creates a missing topic
in the background and the client retries; here the response already has the topic.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any
from uuid import UUID

import trio

from odradek.broker.apis.topic_view import (
    NO_LEADER,
    PartitionView,
    TopicView,
    missing_topic_error,
)
from odradek.broker.config.server_config import ServerConfig
from odradek.broker.coordination.internal_topics import (
    OFFSETS_TOPIC,
    TRANSACTIONS_TOPIC,
    is_internal_topic,
    offsets_topic,
    transactions_topic,
)
from odradek.broker.requests.context import RequestContext
from odradek.broker.requests.steps import in_steps
from odradek.broker.security.request_authorization import (
    NOT_REQUESTED,
    cluster_operations,
    may_cluster,
    may_topic,
    topic_operations,
)
from odradek.protocol import apis
from odradek.protocol.errors import ErrorCode, KafkaError
from odradek.protocol.messages import field
from odradek.replication.controller.acls import AclOperation

if TYPE_CHECKING:
    from odradek.replication.controller.topics import NewTopic

log = logging.getLogger("odradek.metadata")

Values = dict[str, Any]

_IDS_SINCE = 12
_CLUSTER_OPERATIONS_IN = range(8, 11)
_LISTENER_NOT_FOUND_SINCE = 6
_PARTITIONS_BEFORE_YIELD = 500
_WITHOUT_OPERATIONS = (ErrorCode.unknown_topic_id, ErrorCode.topic_authorization_failed)
"""Errors of topics without authorized operations."""


async def metadata(request: Any, ctx: RequestContext) -> Mapping[str, Any]:
    requested = request.topics
    everything = requested is None or (ctx.api_version == 0 and not requested)
    if not everything and _is_invalid(requested, ctx.api_version):
        return _refused(requested)
    topics: Sequence[Any] = await (
        _all_topics(ctx) if everything else _requested_topics(request, ctx)
    )
    if field(request, "include_topic_authorized_operations", False):
        async for values in in_steps(topics, ctx):
            if values["error_code"] not in _WITHOUT_OPERATIONS:
                values["topic_authorized_operations"] = topic_operations(ctx, values["name"])
    if (rack := field(request, "rack")) is not None:
        from odradek.broker.diskless.client_view import encode_with_preferred_brokers

        topics = await encode_with_preferred_brokers(topics, rack, ctx)
    return {**_cluster(request, ctx), "topics": topics}


def _cluster(request: Any, ctx: RequestContext) -> Values:
    view = TopicView(ctx)
    wants_operations = ctx.api_version in _CLUSTER_OPERATIONS_IN and field(
        request, "include_cluster_authorized_operations", False
    )
    return {
        "brokers": [
            {
                "node_id": broker.id,
                "host": endpoint.host,
                "port": endpoint.port,
                "rack": broker.rack,
            }
            for broker, endpoint in view.brokers()
        ],
        "cluster_id": ctx.services.cluster_id,
        "controller_id": view.controller_id(),
        "cluster_authorized_operations": cluster_operations(ctx)
        if wants_operations
        else NOT_REQUESTED,
    }


def _is_invalid(requested: Iterable[Any], version: int) -> bool:
    """Whether the request is invalid: before version 12 names are required and ids are refused; since then a name
    is required unless there is any id, with which names are ignored."""
    has_ids = any(field(topic, "topic_id") is not None for topic in requested)
    if has_ids:
        return version < _IDS_SINCE
    return any(topic.name is None for topic in requested)


def _refused(requested: Iterable[Any]) -> Values:
    return {
        "brokers": [],
        "topics": [
            {
                "error_code": ErrorCode.invalid_request,
                "name": topic.name or "",
                "topic_id": field(topic, "topic_id"),
                "partitions": [],
            }
            for topic in requested
        ],
        "error_code": ErrorCode.invalid_request,
    }


async def _all_topics(ctx: RequestContext) -> list[Values]:
    """All topics of one image; passes the event loop between topics."""
    view = TopicView(ctx)
    topics: list[Values] = []
    partitions = 0
    for name, topic in view.image.topics_by_name.items():
        if not may_topic(ctx, name):
            continue
        topics.append(_topic(view, name, ctx.api_version))
        partitions += len(topic.partitions)
        if partitions >= _PARTITIONS_BEFORE_YIELD:
            partitions = 0
            await trio.lowlevel.checkpoint()
    return topics


async def _requested_topics(request: Any, ctx: RequestContext) -> list[Values]:
    ids = [
        topic_id for topic in request.topics if (topic_id := field(topic, "topic_id")) is not None
    ]
    if ids:
        return await _topics_by_id(dict.fromkeys(ids), ctx)
    names = list(dict.fromkeys(topic.name for topic in request.topics))
    denied: set[str] = set()
    if ctx.authorizer is not None:
        denied = {name async for name in in_steps(names, ctx) if not may_topic(ctx, name)}
    view = TopicView(ctx)  # as in Kafka, the response does not have the topics that it creates
    present = view.image.topics_by_name
    missing = [name for name in names if name not in present and name not in denied]
    uncreatable: set[str] = set()
    if (
        missing
        and field(request, "allow_auto_topic_creation", True)
        and ctx.services.config.get_bool("auto.create.topics.enable")
    ):
        uncreatable = {name async for name in in_steps(missing, ctx) if not _may_create(name, ctx)}
        denied |= uncreatable
        await _create([name for name in missing if name not in uncreatable], ctx)
    return [
        _denied(name, is_internal=is_internal_topic(name) and name in uncreatable)
        if name in denied
        else _topic(view, name, ctx.api_version)
        async for name in in_steps(names, ctx)
    ]


def _may_create(name: str, ctx: RequestContext) -> bool:
    return may_cluster(ctx, AclOperation.CREATE) or may_topic(ctx, name, AclOperation.CREATE)


def _denied(name: str | None, topic_id: UUID | None = None, *, is_internal: bool = False) -> Values:
    """Response for a topic that the client may not describe, which hides whether the topic exists."""
    return {
        "error_code": ErrorCode.topic_authorization_failed,
        "name": name,
        "topic_id": topic_id,
        "is_internal": is_internal,
        "partitions": [],
    }


async def _topics_by_id(ids: Iterable[UUID], ctx: RequestContext) -> list[Values]:
    view = TopicView(ctx)
    topics: list[Values] = []
    async for topic_id in in_steps(ids, ctx):
        found = view.image.topics_by_id.get(topic_id)
        if found is None:
            topics.append(
                {
                    "error_code": ErrorCode.unknown_topic_id,
                    "name": None,
                    "topic_id": topic_id,
                    "partitions": [],
                }
            )
        elif not may_topic(ctx, found.name):  # a topic id may be known, its name may not
            topics.append(_denied(None, topic_id))
        else:
            topics.append(_topic(view, found.name, ctx.api_version))
    return topics


def _topic(view: TopicView, name: str, version: int) -> Values:
    found = view.image.topics_by_name.get(name)
    return {
        "error_code": ErrorCode.none if found is not None else missing_topic_error(name),
        "name": name,
        "topic_id": found.id if found is not None else None,
        "is_internal": is_internal_topic(name),
        "partitions": [_partition(view, each, version) for each in view.partitions(name)],
    }


def _partition(view: TopicView, partition: PartitionView, version: int) -> Values:
    replicas, isr = partition.replicas, partition.isr
    if version == 0:  # older versions have no offline replicas and return an error
        replicas, isr = view.alive(replicas), view.alive(isr)
    if partition.leader == NO_LEADER:
        error = ErrorCode.leader_not_available
        if partition.leader_known and version >= _LISTENER_NOT_FOUND_SINCE:
            error = ErrorCode.listener_not_found
    elif len(replicas) < len(partition.replicas) or len(isr) < len(partition.isr):
        error = ErrorCode.replica_not_available
    else:
        error = ErrorCode.none
    return {
        "error_code": error,
        "partition_index": partition.index,
        "leader_id": partition.leader,
        "leader_epoch": partition.leader_epoch,
        "replica_nodes": replicas,
        "isr_nodes": isr,
        "offline_replicas": partition.offline,
    }


async def _create(names: Iterable[str], ctx: RequestContext) -> None:
    """Create the topics that can be created; the response shows errors of the others."""
    from odradek.broker.replicas.topic_creation import request_topics

    wanted = [
        _new_topic(name, ctx.services.config)
        for name in names
        if missing_topic_error(name) is ErrorCode.unknown_topic_or_partition
    ]
    if not wanted:
        return
    try:
        created = await request_topics(ctx, wanted)
    except KafkaError as error:
        log.warning("auto-creation of %d topics failed: %s", len(wanted), error)
        return
    failed = [
        topic
        for topic in created
        if topic.error_code not in (ErrorCode.none, ErrorCode.topic_already_exists)
    ]
    if failed:
        first = failed[0]
        log.warning(
            "auto-creation of %d topics failed; first error, of %s: %s",
            len(failed),
            first.name,
            first.error_message or first.error_code.name,
        )


def _new_topic(name: str, config: ServerConfig) -> NewTopic:
    from odradek.replication.controller.topics import NewTopic

    for internal, settings in (
        (OFFSETS_TOPIC, offsets_topic),
        (TRANSACTIONS_TOPIC, transactions_topic),
    ):
        if name == internal:
            topic = settings(config)
            return NewTopic(
                name, topic.partitions, topic.replication_factor, configs=dict(topic.configs)
            )
    factor = -1
    if not config.get_bool("log.diskless.enable"):  # a diskless topic has no replication factor
        factor = _own_default("default.replication.factor", config)
    return NewTopic(name, _own_default("num.partitions", config), factor)


def _own_default(name: str, config: ServerConfig) -> int:
    """Value set on this broker; -1, the controller's default, if unset."""
    return config.get_int(name) if config.is_set(name) else -1


HANDLERS = {apis.METADATA: metadata}
