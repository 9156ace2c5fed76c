"""FindCoordinator: the leader of the internal partition to which a group or transactional id belongs.

The first request creates the internal topic. Kafka responds COORDINATOR_NOT_AVAILABLE until the topic exists;
here the response waits for it, which saves the client a retry.

The private key type 100 finds a coordinator of diskless topics (D-13): the key is the partition of
`__diskless_metadata`, in decimal. It needs CLUSTER_ACTION. The topic exists once a diskless topic was created.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from odradek.broker.coordination.coordinator_log import partition_for
from odradek.broker.coordination.internal_topics import (
    DISKLESS_METADATA_TOPIC,
    IntegerConfigs,
    InternalTopic,
    offsets_topic,
    transactions_topic,
)
from odradek.broker.replicas.topic_creation import ensure_internal_topic
from odradek.broker.requests.context import RequestContext
from odradek.broker.requests.steps import in_steps
from odradek.broker.security.request_authorization import (
    check_cluster,
    check_group,
    check_transactional_id,
)
from odradek.protocol import apis
from odradek.protocol.errors import ErrorCode, KafkaError
from odradek.protocol.messages import field
from odradek.replication.controller.acls import AclOperation
from odradek.replication.controller.image import Endpoint

GROUP, TRANSACTION, DISKLESS = 0, 1, 100
TOPICS: Mapping[int, Callable[[IntegerConfigs], InternalTopic]] = {
    GROUP: offsets_topic,
    TRANSACTION: transactions_topic,
}
"""Internal topic by key type. Share groups (2) are not supported."""
BATCHED_SINCE = 4
NO_NODE = {"node_id": -1, "host": "", "port": -1}


class CoordinatorNotAvailable(KafkaError):
    code = ErrorCode.coordinator_not_available


async def find_coordinator(request: Any, ctx: RequestContext) -> Mapping[str, Any]:
    key_type = field(request, "key_type", GROUP)
    if ctx.api_version < BATCHED_SINCE:
        return await _respond(key_type, request.key, ctx)
    return {
        "coordinators": [
            {"key": key, **await _respond(key_type, key, ctx)}
            async for key in in_steps(request.coordinator_keys, ctx)
        ]
    }


async def _respond(key_type: int, key: str, ctx: RequestContext) -> dict[str, Any]:
    try:
        _check_allowed(key_type, key, ctx)
        node_id, endpoint = await _find(key_type, key, ctx)
    except KafkaError as error:
        return {**NO_NODE, "error_code": error.code, "error_message": error.message}
    return {
        "node_id": node_id,
        "host": endpoint.host,
        "port": endpoint.port,
        "error_code": ErrorCode.none,
        # Kafka sends an empty host, not null
        "error_message": "" if ctx.api_version >= BATCHED_SINCE else "NONE",
    }


def _check_allowed(key_type: int, key: str, ctx: RequestContext) -> None:
    if key_type == GROUP:
        check_group(ctx, key)
    elif key_type == TRANSACTION:
        check_transactional_id(ctx, key)
    elif key_type == DISKLESS:
        check_cluster(ctx, AclOperation.CLUSTER_ACTION)


async def _find(key_type: int, key: str, ctx: RequestContext) -> tuple[int, Endpoint]:
    if key_type == DISKLESS:
        return await _find_leader(
            DISKLESS_METADATA_TOPIC, lambda count: _diskless_partition(key), ctx
        )
    if key_type not in TOPICS:
        raise KafkaError(ErrorCode.invalid_request, f"coordinator type {key_type} is not supported")
    topic = TOPICS[key_type](ctx.services.config)
    try:
        await ensure_internal_topic(ctx.services, topic)
    except KafkaError as error:
        raise CoordinatorNotAvailable(f"{topic.name} can't be created: {error.message}") from None
    return await _find_leader(topic.name, lambda count: partition_for(key, count), ctx)


def _diskless_partition(key: str) -> int:
    if not (key.isascii() and key.isdecimal()):
        raise KafkaError(
            ErrorCode.invalid_request,
            f"the key {key!r} is not the number of a partition of {DISKLESS_METADATA_TOPIC}",
        )
    return int(key[:9])


async def _find_leader(
    topic: str, partition_of: Callable[[int], int], ctx: RequestContext
) -> tuple[int, Endpoint]:
    """The leader of a partition of an internal topic; `partition_of` has its number by the number of partitions."""
    image = ctx.services.metadata.image
    found = image.topics_by_name.get(topic)
    if found is None:
        raise CoordinatorNotAvailable(f"{topic} is not in the metadata image yet")
    index = partition_of(len(found.partitions))
    partition = found.partitions.get(index)
    if partition is None:
        raise KafkaError(ErrorCode.invalid_request, f"{topic} has no partition {index}")
    leader = image.brokers.get(partition.leader)
    endpoint = None if leader is None or leader.fenced else leader.endpoint(ctx.endpoint.name)
    if leader is None or endpoint is None:
        raise CoordinatorNotAvailable("the partition has no leader with this listener")
    if leader.id == ctx.services.node_id:
        await _open(topic, index, ctx)
    return leader.id, endpoint


async def _open(topic: str, index: int, ctx: RequestContext) -> None:
    """Open the partition, so that its coordinator serves the next request of the client. After the topic was
    created the partitions may still be opening, and a failed log directory may not be in the image yet."""
    try:
        (await ctx.services.partitions.get(topic, None, index)).check_leader()
    except KafkaError as error:
        raise CoordinatorNotAvailable(f"{topic}-{index} is not open: {error.message}") from None


HANDLERS = {apis.FIND_COORDINATOR: find_coordinator}
