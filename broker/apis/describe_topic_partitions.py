"""DescribeTopicPartitions: topics and partitions in pages, ordered by name (KIP-966).

A page has a limited number of partitions; the cursor is the next topic and partition. Names are ordered as in
Java, by UTF-16 code units.
"""

from __future__ import annotations

from collections.abc import AsyncIterable, Mapping
from typing import Any

from odradek.broker.apis.topic_view import PartitionView, TopicView, missing_topic_error
from odradek.broker.coordination.internal_topics import is_internal_topic
from odradek.broker.requests.context import RequestContext
from odradek.broker.requests.steps import in_steps
from odradek.broker.security.request_authorization import may_topic, topic_operations
from odradek.protocol import apis
from odradek.protocol.errors import ErrorCode

Values = dict[str, Any]


async def describe_topic_partitions(request: Any, ctx: RequestContext) -> Mapping[str, Any]:
    view = TopicView(ctx)
    cursor = request.cursor
    everything = not request.topics
    names = {topic.name for topic in request.topics} or set(view.image.topics_by_name)
    start = cursor.topic_name if cursor is not None else ""
    if cursor is not None and (
        cursor.partition_index < 0 or (not everything and cursor.topic_name not in names)
    ):
        return {"topics": [_failed(topic.name) for topic in request.topics]}
    limit = max(
        1,
        min(
            ctx.services.config.get_int("max.request.partition.size.limit"),
            request.response_partition_limit,
        ),
    )
    first_order = _order(start)
    by_order = {_order(name): name async for name in in_steps(names, ctx)}
    ahead = [by_order[order] for order in sorted(by_order) if order >= first_order]
    denied = [name async for name in in_steps(ahead, ctx) if not may_topic(ctx, name)]
    first = cursor.partition_index if cursor is not None else 0
    if denied:
        left_out = frozenset(denied)
        ahead = [name for name in ahead if name not in left_out]
    page = await _page(view, in_steps(ahead, ctx), start, first, limit, missing_too=not everything)
    async for values in in_steps(page["topics"], ctx):
        values["topic_authorized_operations"] = topic_operations(ctx, values["name"])
    if not everything:
        page["topics"] += [_denied(name) for name in denied]
    return page


def _order(name: str) -> bytes:
    return name.encode("utf-16-be", "surrogatepass")


def _denied(name: str) -> Values:
    return {"error_code": ErrorCode.topic_authorization_failed, "name": name, "partitions": []}


def _failed(name: str) -> Values:
    return {"error_code": ErrorCode.invalid_request, "name": name, "partitions": []}


async def _page(
    view: TopicView,
    names: AsyncIterable[str],
    start: str,
    first: int,
    limit: int,
    *,
    missing_too: bool,
) -> Values:
    """Partitions of one page; `first` is the first partition of topic `start`."""
    topics: list[Values] = []
    remaining = limit
    async for name in names:
        if remaining == 0:
            return {"topics": topics, "next_cursor": _cursor(name, 0)}
        found = view.image.topics_by_name.get(name)
        if found is None:
            if missing_too:
                topics.append(_missing(view, name))
            continue
        begin = first if name == start else 0
        partitions = view.partitions(name)
        end = min(len(partitions), begin + remaining)
        topics.append(
            {
                "error_code": ErrorCode.none,
                "name": name,
                "topic_id": found.id,
                "is_internal": is_internal_topic(name),
                "partitions": [_partition(each) for each in partitions[begin:end]],
            }
        )
        if end < len(partitions):
            return {"topics": topics, "next_cursor": _cursor(name, end)}
        remaining -= max(0, end - begin)
    return {"topics": topics, "next_cursor": None}


def _cursor(name: str, partition: int) -> Values:
    return {"topic_name": name, "partition_index": partition}


def _missing(view: TopicView, name: str) -> Values:
    return {
        "error_code": missing_topic_error(name),
        "name": name,
        "is_internal": is_internal_topic(name),
        "partitions": [],
    }


def _partition(partition: PartitionView) -> Values:
    """Partition response; lists of eligible leader replicas are empty instead of null, which Java's client
    rejects."""
    return {
        "error_code": ErrorCode.none,
        "partition_index": partition.index,
        "leader_id": partition.leader,
        "leader_epoch": partition.leader_epoch,
        "replica_nodes": partition.replicas,
        "isr_nodes": partition.isr,
        "eligible_leader_replicas": partition.elr,
        "last_known_elr": partition.last_known_elr,
        "offline_replicas": partition.offline,
    }


HANDLERS = {apis.DESCRIBE_TOPIC_PARTITIONS: describe_topic_partitions}
