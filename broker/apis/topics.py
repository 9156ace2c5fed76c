"""CreateTopics, DeleteTopics and CreatePartitions, as operations of the controller.

`replication.controller` decides the results. A response is sent after the change is committed, so later
Metadata responses show it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence, Set
from datetime import timedelta
from typing import Any, TypeVar
from uuid import UUID

import trio

from odradek.broker.config.config_description import created_topic_configs
from odradek.broker.coordination.internal_topics import is_internal_topic
from odradek.broker.quotas.partition_mutation_quota import mutations_of
from odradek.broker.replicas.topic_creation import create_topics as create_as_controller
from odradek.broker.requests.context import RequestContext
from odradek.broker.requests.steps import in_steps
from odradek.broker.security.request_authorization import TopicDenied, may_cluster, may_topic
from odradek.protocol import apis
from odradek.protocol.errors import ErrorCode, KafkaError
from odradek.protocol.messages import Repeated, field
from odradek.protocol.topics import CLUSTER_METADATA
from odradek.replication.controller import create_partitions as partition_operations
from odradek.replication.controller import topics as topic_operations
from odradek.replication.controller.acls import AclOperation
from odradek.replication.controller.controller_result import ControllerResult, MutationCharge
from odradek.replication.controller.create_partitions import NewPartitions, PartitionsResult
from odradek.replication.controller.image import MetadataImage
from odradek.replication.controller.topics import CreatedTopic, DeletedTopic, NewTopic
from odradek.replication.errors import RequestTimedOut

T = TypeVar("T")
Values = dict[str, Any]

_DELETION_DISABLED_SINCE = 3
DERIVED_MAX = 64
"""Cached descriptions of topic configs, one per set of configs."""


async def in_time(timeout: timedelta, operation: Callable[[], Awaitable[T]]) -> T:
    """Run the operation with a timeout. Raises RequestTimedOut; with a timeout of 0 the operation is not
    started.

    A change that is already in the metadata log is waited for without limit, because it cannot be revoked.
    """
    seconds = timeout.total_seconds()
    if seconds > 0:
        with trio.move_on_after(seconds):
            return await operation()
    raise RequestTimedOut


# CreateTopics


async def create_topics(request: Any, ctx: RequestContext) -> Mapping[str, Any]:
    denied = _denied_names(request, ctx)
    wanted = [
        _new_topic(topic)
        async for topic in in_steps(request.topics, ctx)
        if topic.name not in denied
    ]
    mutations = mutations_of(ctx, is_free=all(map(is_internal_topic, _names(request))))
    try:
        created = await in_time(
            _controller_timeout(request, CLUSTER_METADATA, *denied),
            lambda: create_as_controller(
                ctx.services, wanted, validate_only=request.validate_only, charge=mutations.charge
            ),
        )
    except KafkaError as error:
        names = in_steps(_names(request), ctx)
        responses = [_not_created(name, error) async for name in names]
        return {"throttle_time": mutations.wait, "topics": responses}
    responses = [_created(topic, ctx) async for topic in in_steps(created, ctx)]
    responses += [_not_created(name, TopicDenied()) async for name in in_steps(denied, ctx)]
    return {"throttle_time": mutations.wait, "topics": responses}


def _denied_names(request: Any, ctx: RequestContext) -> Set[str]:
    """Names that the client may not create, in the request's order. Duplicates are left to the controller, which
    rejects them."""
    if ctx.authorizer is None or may_cluster(ctx, AclOperation.CREATE):
        return frozenset()
    times = Counter(topic.name for topic in request.topics)
    return dict.fromkeys(
        name
        for name, named in times.items()
        if named == 1 and name != CLUSTER_METADATA and not may_topic(ctx, name)
    ).keys()


def _new_topic(topic: Any) -> NewTopic:
    return NewTopic(
        topic.name,
        topic.num_partitions,
        topic.replication_factor,
        [(each.partition_index, each.broker_ids) for each in topic.assignments],
        {each.name: each.value for each in topic.configs},
    )


def _controller_timeout(request: Any, *refused: str) -> timedelta:
    """Timeout of the request; without a limit if all its topics are refused before the controller's operation:
    they are repeated, or among `refused`."""
    times = Counter(topic.name for topic in request.topics)
    if any(count == 1 and name not in refused for name, count in times.items()):
        timeout: timedelta = request.timeout
        return timeout
    return timedelta.max


def _names(request: Any) -> Iterable[str]:
    """Distinct names of topics in the request."""
    return dict.fromkeys(topic.name for topic in request.topics)


def _not_created(name: str, error: KafkaError) -> Values:
    return {
        "name": name,
        "error_code": error.code,
        "error_message": error.message or None,
        "configs": [],
    }


def _created(topic: CreatedTopic, ctx: RequestContext) -> Values:
    """Result of a created topic; lists are not null, which Java's client rejects."""
    values = {
        "name": topic.name,
        "topic_id": topic.topic_id,
        "error_code": topic.error_code,
        "error_message": topic.error_message,
        "num_partitions": topic.partitions,
        "replication_factor": topic.replication_factor,
        "configs": [] if topic.error_code else _configs_of_created(topic.configs, ctx),
    }
    if topic.error_code or may_topic(ctx, topic.name, AclOperation.DESCRIBE_CONFIGS):
        return values
    return _without_details(values)


def _without_details(created: Values) -> Values:
    """Result without configs, for a client that may create the topic but not describe its configs (KIP-525)."""
    return {
        **created,
        "topic_config_error_code": ErrorCode.topic_authorization_failed,
        "num_partitions": -1,
        "replication_factor": -1,
        "configs": [],
    }


def _configs_of_created(set_on_topic: Mapping[str, str], ctx: RequestContext) -> Repeated:
    """Configs of a created topic; cached, because a request may create a thousand topics with the same configs."""
    kept = ctx.services.config.derived
    key = ("created topic", *sorted(set_on_topic.items()))
    found: Repeated | None = kept.get(key)
    if found is None:
        if len(kept) >= DERIVED_MAX:
            kept.clear()
        found = kept[key] = Repeated(
            {
                "name": name,
                "value": value,
                "read_only": False,
                "config_source": int(source),
                "is_sensitive": False,
            }
            for name, value, source in created_topic_configs(ctx.services.config, set_on_topic)
        )
    return found


# DeleteTopics


async def delete_topics(request: Any, ctx: RequestContext) -> Mapping[str, Any]:
    requested: list[tuple[str | None, UUID | None]] = [
        (name, None) for name in field(request, "topic_names", ())
    ]
    requested += [(topic.name, topic.topic_id) for topic in field(request, "topics", ())]
    if not ctx.services.config.get_bool("delete.topic.enable"):
        return {"responses": [_not_deleted(*each, _deletion_disabled(ctx)) for each in requested]}
    mutations = mutations_of(ctx)
    unique, responses = _unique_topics(requested)
    if unique:
        try:
            responses += await in_time(
                request.timeout, lambda: _delete(unique, ctx, mutations.charge)
            )
        except KafkaError as error:
            topics = in_steps(requested, ctx)
            responses = [_not_deleted(*each, error) async for each in topics]
    return {"throttle_time": mutations.wait, "responses": responses}


def _deletion_disabled(ctx: RequestContext) -> KafkaError:
    code = ErrorCode.topic_deletion_disabled
    if ctx.api_version < _DELETION_DISABLED_SINCE:
        code = ErrorCode.invalid_request
    return KafkaError(code, "Topics cannot be deleted: delete.topic.enable is false")


def _not_deleted(name: str | None, topic_id: UUID | None, error: KafkaError) -> Values:
    return _deleted(DeletedTopic(name, topic_id, error.code, error.message or None))


def _deleted(topic: DeletedTopic) -> Values:
    return {
        "name": topic.name,
        "topic_id": topic.topic_id,
        "error_code": topic.error_code,
        "error_message": topic.error_message,
    }


async def _delete(
    topics: Sequence[tuple[str | None, UUID | None]], ctx: RequestContext, charge: MutationCharge
) -> list[Values]:
    names = [name for name, _ in topics if name is not None]
    ids = [topic_id for _, topic_id in topics if topic_id is not None]
    may_delete_all = ctx.authorizer is None or may_cluster(ctx, AclOperation.DELETE)

    denied: list[Values] = []

    def operation(image: MetadataImage) -> ControllerResult[list[DeletedTopic]]:
        denied[:] = [] if may_delete_all else _undeletable(names, ids, image, ctx)
        return topic_operations.delete_topics(image, names, ids, charge=charge)

    deleted = await ctx.services.metadata.perform(operation)
    return [*denied, *[_deleted(topic) async for topic in in_steps(deleted, ctx)]]


def _unique_topics(
    requested: Sequence[tuple[str | None, UUID | None]],
) -> tuple[list[tuple[str | None, UUID | None]], list[Values]]:
    """Return the topics that are requested once by name or id, and the responses for all others."""
    unique, responses = [], []
    for each, times in Counter(requested).items():
        name, topic_id = each
        if name is None and topic_id is None:
            reason, count = "Neither a name nor an id is given", times
        elif name is not None and topic_id is not None:
            reason, count = "Either a name or an id must be given, not both", times
        elif times > 1:
            reason, count = f"Duplicate topic {'name' if topic_id is None else 'id'}.", 1
        else:
            unique.append(each)
            continue
        refused = KafkaError(ErrorCode.invalid_request, reason)
        responses += [_not_deleted(name, topic_id, refused)] * count
    return unique, responses


def _undeletable(
    names: list[str], ids: list[UUID], image: MetadataImage, ctx: RequestContext
) -> list[Values]:
    """Results of topics that the client may not delete; they are removed from the lists.

    A topic that the client may not describe is reported as unknown, without its name. `image` must be the image
    on which the operation decides: an older one may lack a new topic.
    """
    by_id = image.topics_by_id
    responses = []
    denied: set[UUID | str] = set()
    for topic_id, count in Counter(ids).items():
        found = by_id.get(topic_id)
        if found is None or count > 1 or may_topic(ctx, found.name):
            continue
        denied.add(topic_id)
        seen = may_topic(ctx, found.name, AclOperation.DESCRIBE)
        responses.append(_not_deleted(found.name if seen else None, topic_id, TopicDenied()))
    by_name = image.topics_by_name
    for name, count in Counter(names).items():
        seen = may_topic(ctx, name, AclOperation.DESCRIBE)
        if count > 1 or (seen and (name not in by_name or may_topic(ctx, name))):
            continue
        denied.add(name)
        responses.append(_not_deleted(name, None, TopicDenied()))
    ids[:] = [topic_id for topic_id in ids if topic_id not in denied]
    names[:] = [name for name in names if name not in denied]
    return responses


# CreatePartitions


async def create_partitions(request: Any, ctx: RequestContext) -> Mapping[str, Any]:
    mutations = mutations_of(ctx)
    try:
        results = await in_time(
            _controller_timeout(request), lambda: _add(request, ctx, mutations.charge)
        )
    except KafkaError as error:
        results = [
            PartitionsResult(name, error.code, error.message or None) for name in _names(request)
        ]
    values = [
        {
            "name": result.topic,
            "error_code": result.error_code,
            "error_message": result.error_message,
        }
        async for result in in_steps(results, ctx)
    ]
    return {"throttle_time": mutations.wait, "results": values}


async def _add(request: Any, ctx: RequestContext, charge: MutationCharge) -> list[PartitionsResult]:
    named = Counter(topic.name for topic in request.topics)
    denied = [
        PartitionsResult(name, ErrorCode.topic_authorization_failed)
        for name, times in named.items()
        if times == 1 and not may_topic(ctx, name)
    ]
    wanted = [
        NewPartitions(
            topic.name,
            topic.count,
            None
            if topic.assignments is None
            else [tuple(each.broker_ids) for each in topic.assignments],
        )
        for topic in request.topics
        if named[topic.name] > 1 or may_topic(ctx, topic.name)
    ]

    def operation(image: MetadataImage) -> ControllerResult[list[PartitionsResult]]:
        return partition_operations.create_partitions(
            image,
            wanted,
            entropy=ctx.services.seams.entropy,
            validate_only=request.validate_only,
            charge=charge,
        )

    return [*await ctx.services.metadata.perform(operation), *denied]


HANDLERS = {
    apis.CREATE_TOPICS: create_topics,
    apis.DELETE_TOPICS: delete_topics,
    apis.CREATE_PARTITIONS: create_partitions,
}
