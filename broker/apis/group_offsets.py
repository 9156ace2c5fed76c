"""OffsetCommit, OffsetFetch and OffsetDelete: committed offsets of groups.

Committed offsets are stored by topic name, with the topic id if it is known. A group does not use the offsets
of a deleted topic for a new topic of the same name (KIP-848).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import timedelta
from typing import Any
from uuid import UUID

from odradek.broker.groups.coordinator_shard import NO_MEMBER, OffsetCommit, OffsetToCommit
from odradek.broker.groups.messages import NO_ERROR, CommittedOffset, OffsetPartitionErrors
from odradek.broker.groups.offset_store import NO_OFFSET, FetchedTopic
from odradek.broker.requests.context import RequestContext
from odradek.broker.requests.steps import in_steps
from odradek.broker.security.request_authorization import (
    TopicDenied,
    check_group,
    may_group,
    may_topic,
)
from odradek.protocol import apis
from odradek.protocol.errors import ErrorCode, KafkaError
from odradek.protocol.messages import field
from odradek.replication.controller.image import TopicImage

IDS_SINCE = 10
"""OffsetCommit and OffsetFetch: since this version topics are given by id instead of name."""
CONSUMER_GROUPS_SINCE = 9
"""OffsetCommit: since this version GROUP_ID_NOT_FOUND replaces ILLEGAL_GENERATION, and STALE_MEMBER_EPOCH
exists."""
BATCHED_FETCH_SINCE = 8
FETCH_ERROR_SINCE = 2
"""OffsetFetch: since this version there are errors of the whole group."""
MILLISECOND = timedelta(milliseconds=1)
NO_RETENTION = timedelta(milliseconds=-1)

Values = dict[str, Any]


# OffsetCommit


async def offset_commit(request: Any, ctx: RequestContext) -> Mapping[str, Any]:
    """OffsetCommit: commit the offsets of existing partitions; others get an error each."""
    may_commit = may_group(ctx, request.group_id)
    topics: dict[object, Values] = {}
    """Response of each topic by name or id: two entries for a topic have one response, as in Kafka."""
    offsets: list[OffsetToCommit] = []
    responses: list[Values] = []
    """One result for each of `offsets`, whose error is set after the commit."""
    async for topic in in_steps(request.topics, ctx):
        found, unknown = _find_topic(topic, ctx)
        if not may_commit:
            found, unknown = None, ErrorCode.group_authorization_failed
        elif (
            name := field(topic, "name") if found is None else found.name
        ) is not None and not may_topic(ctx, name):
            found, unknown = None, TopicDenied.code
        if found is not None and not topic.partitions:
            continue  # as in Kafka
        of_topic = _topic_values(topic, [])
        of_topic = topics.setdefault(of_topic["topic_id"] or of_topic["name"], of_topic)
        async for each in in_steps(topic.partitions, ctx):
            response = {"partition_index": each.partition_index, "error_code": unknown}
            of_topic["partitions"].append(response)
            if found is None:
                continue
            if each.partition_index not in found.partitions:
                response["error_code"] = ErrorCode.unknown_topic_or_partition
                continue
            offsets.append(to_commit(found, each))
            responses.append(response)
    if offsets:
        errors = await _commit(request, tuple(offsets), ctx)
        for response, error in zip(responses, errors, strict=True):
            response["error_code"] = error
    return {"topics": list(topics.values())}


def _find_topic(topic: Any, ctx: RequestContext) -> tuple[TopicImage | None, ErrorCode]:
    """Name and id of a requested topic, and the error of its partitions if it does not exist."""
    image = ctx.services.metadata.image
    if ctx.api_version >= IDS_SINCE:
        found = None if topic.topic_id is None else image.topics_by_id.get(topic.topic_id)
        return found, ErrorCode.unknown_topic_id
    return image.topics_by_name.get(topic.name), ErrorCode.unknown_topic_or_partition


def _topic_values(topic: Any, partitions: list[Values]) -> Values:
    return {
        "name": field(topic, "name", ""),
        "topic_id": field(topic, "topic_id"),
        "partitions": partitions,
    }


def to_commit(topic: TopicImage, partition: Any) -> OffsetToCommit:
    """Offset to commit, from a partition of OffsetCommit or TxnOffsetCommit."""
    return OffsetToCommit(
        topic.name,
        topic.id,
        partition.partition_index,
        partition.committed_offset,
        field(partition, "committed_leader_epoch", -1),
        partition.committed_metadata,
    )


async def _commit(
    request: Any, offsets: tuple[OffsetToCommit, ...], ctx: RequestContext
) -> Sequence[ErrorCode]:
    commit = OffsetCommit(
        request.group_id,
        request.member_id,
        field(request, "group_instance_id"),
        request.generation_id_or_member_epoch,
        offsets,
        field(request, "retention_time", NO_RETENTION) // MILLISECOND,
        knows_consumer_groups=ctx.api_version >= CONSUMER_GROUPS_SINCE,
    )
    try:
        response = await ctx.services.groups.commit(commit)
    except KafkaError as error:
        return [error.code] * len(offsets)
    return [error for _, _, error in response.partitions]


# OffsetFetch


async def offset_fetch(request: Any, ctx: RequestContext) -> Mapping[str, Any]:
    """OffsetFetch: committed offsets of one group, since version 8 of several; -1 without a committed offset."""
    require_stable = field(request, "require_stable", False)
    if ctx.api_version >= BATCHED_FETCH_SINCE:
        groups = [
            await _fetch(
                each.group_id,
                each.topics,
                require_stable,
                ctx,
                (field(each, "member_id"), field(each, "member_epoch", -1)),
            )
            async for each in in_steps(request.groups, ctx)
        ]
        return {"groups": groups}
    group = await _fetch(request.group_id, request.topics, require_stable, ctx)
    return {"error_code": group["error_code"], "topics": group["topics"]}


async def _fetch(
    group_id: str,
    topics: Iterable[Any] | None,
    require_stable: bool,
    ctx: RequestContext,
    member: tuple[str | None, int] = NO_MEMBER,
) -> Values:
    requested: list[tuple[str, UUID | None, Iterable[int]]] | None = None
    unknown: list[Values] = []
    if topics is not None:
        requested = []
        async for topic in in_steps(topics, ctx):
            name, topic_id = _requested_topic(topic, ctx)
            if name is None:
                unknown.append(_unknown_topic(topic, ErrorCode.unknown_topic_id, ctx))
            elif not may_topic(ctx, name):
                unknown.append(_unknown_topic(topic, TopicDenied.code, ctx))
            else:
                requested.append((name, topic_id, topic.partition_indexes))
    try:
        check_group(ctx, group_id)
        found = await ctx.services.groups.fetch(
            group_id, requested, require_stable=require_stable, member=member
        )
    except KafkaError as error:
        return _failed_fetch(group_id, topics, error.code, ctx)
    fetched = [
        await _fetched_topic(each, ctx)
        async for each in in_steps(found, ctx)
        if may_topic(ctx, each.topic)
    ]
    return {
        "group_id": group_id,
        "error_code": NO_ERROR,
        "topics": [*(each for each in fetched if each is not None), *unknown],
    }


def _requested_topic(topic: Any, ctx: RequestContext) -> tuple[str | None, UUID | None]:
    """Name and id of a requested topic. An id must exist; a name need not."""
    if ctx.api_version < IDS_SINCE:
        return topic.name, None
    found, _ = _find_topic(topic, ctx)
    return (None, None) if found is None else (found.name, found.id)


async def _fetched_topic(topic: FetchedTopic, ctx: RequestContext) -> Values | None:
    """Response for a topic; None if the request has ids and the id of the topic is unknown."""
    topic_id = topic.topic_id
    if topic_id is None and ctx.api_version >= IDS_SINCE:
        image = ctx.services.metadata.image.topics_by_name.get(topic.topic)
        if image is None:
            return None
        topic_id = image.id
    partitions = [
        _fetched(each.partition, each.offset, each.error)
        async for each in in_steps(topic.partitions, ctx)
    ]
    return _named(topic.topic, topic_id, partitions, ctx)


def _fetched(index: int, offset: CommittedOffset, error: ErrorCode) -> Values:
    return {
        "partition_index": index,
        "committed_offset": offset.offset,
        "committed_leader_epoch": offset.leader_epoch,
        "metadata": offset.metadata,
        "error_code": error,
    }


def _unknown_topic(topic: Any, error: ErrorCode, ctx: RequestContext) -> Values:
    partitions = [_fetched(index, NO_OFFSET, error) for index in topic.partition_indexes]
    return _named(field(topic, "name", ""), field(topic, "topic_id"), partitions, ctx)


def _named(
    name: str, topic_id: UUID | None, partitions: list[Values], ctx: RequestContext
) -> Values:
    if ctx.api_version < BATCHED_FETCH_SINCE:  # another kind of topic, which never has an id
        return {"name": name, "partitions": partitions}
    return {"name": name, "topic_id": topic_id, "partitions": partitions}


def _failed_fetch(
    group_id: str, topics: Iterable[Any] | None, error: ErrorCode, ctx: RequestContext
) -> Values:
    if ctx.api_version >= FETCH_ERROR_SINCE:
        return {"group_id": group_id, "error_code": error, "topics": []}
    failed = [_unknown_topic(each, error, ctx) for each in topics or ()]
    return {"group_id": group_id, "error_code": NO_ERROR, "topics": failed}


# OffsetDelete


async def offset_delete(request: Any, ctx: RequestContext) -> Mapping[str, Any]:
    """OffsetDelete: delete committed offsets of topics to which no member is subscribed (KIP-496)."""
    image = ctx.services.metadata.image
    known: list[tuple[str, int]] = []
    denied = {topic.name for topic in request.topics if not may_topic(ctx, topic.name)}
    for topic in request.topics:
        found = image.topics_by_name.get(topic.name)
        if found is not None and topic.name not in denied:
            indexes = (each.partition_index for each in topic.partitions)
            known += [(topic.name, index) for index in indexes if index in found.partitions]
    try:
        check_group(ctx, request.group_id)
        response = await ctx.services.groups.delete_offsets(request.group_id, known)
    except KafkaError as error:
        response = OffsetPartitionErrors(error.code, ())
    if response.error is not NO_ERROR:
        return {"error_code": response.error, "topics": []}
    errors = {(topic, partition): error for topic, partition, error in response.partitions}
    unknown = ErrorCode.unknown_topic_or_partition
    return {
        "error_code": NO_ERROR,
        "topics": [
            {
                "name": topic.name,
                "partitions": [
                    {
                        "partition_index": each.partition_index,
                        "error_code": TopicDenied.code
                        if topic.name in denied
                        else errors.get((topic.name, each.partition_index), unknown),
                    }
                    for each in topic.partitions
                ],
            }
            for topic in request.topics
            if topic.partitions or topic.name in denied or topic.name not in image.topics_by_name
        ],
    }


HANDLERS = {
    apis.OFFSET_COMMIT: offset_commit,
    apis.OFFSET_FETCH: offset_fetch,
    apis.OFFSET_DELETE: offset_delete,
}
