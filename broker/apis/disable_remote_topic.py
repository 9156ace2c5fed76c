"""DisableRemoteTopic: the active controller waits until this broker has disabled tiered storage of a topic (KIP-950)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import trio

from odradek.broker.requests.context import RequestContext
from odradek.broker.security.request_authorization import check_cluster
from odradek.broker.services import Services
from odradek.protocol import apis
from odradek.protocol.errors import ErrorCode, KafkaError
from odradek.replication.controller.acls import AclOperation
from odradek.replication.controller.image import DisablePolicy, PartitionImage, TopicImage
from odradek.storage.tiered.segment_metadata import TopicIdPartition

WAIT_SECONDS = 1.0
"""Longest wait until this broker's part is done; the controller then sends the request again."""
POLL_SECONDS = 0.02


async def disable_remote_topic(request: Any, ctx: RequestContext) -> Mapping[str, Any]:
    """Respond without an error when this broker's part is done (X-07)."""
    try:
        check_cluster(ctx, AclOperation.CLUSTER_ACTION)
    except KafkaError as error:
        return {"error_code": error.code, "error_message": error.message}
    services = ctx.services
    unfinished: str | None = None
    with trio.move_on_after(WAIT_SECONDS):
        while (unfinished := await _find_unfinished(request, services)) is not None:
            await services.seams.clock.sleep(POLL_SECONDS)
    return {
        "error_code": ErrorCode.request_timed_out if unfinished else ErrorCode.none,
        "error_message": unfinished,
    }


async def _find_unfinished(request: Any, services: Services) -> str | None:
    """Reason why this broker has not finished yet; None if it has."""
    image = services.metadata.image
    if image.offset < request.metadata_offset:
        return f"the metadata is known up to offset {image.offset} of {request.metadata_offset}"
    topic = image.topics_by_id.get(request.topic_id)
    if topic is None:
        return None
    for index, partition in list(topic.partitions.items()):
        if request.partition_id not in (-1, index):
            continue
        reason = await _find_reason(topic, index, partition, services)
        if reason is not None:
            return f"partition {topic.name}-{index}: {reason}"
    return None


async def _find_reason(
    topic: TopicImage, index: int, image: PartitionImage, services: Services
) -> str | None:
    """Why this broker has not finished its part for the partition, or None."""
    is_leader = image.leader == services.node_id
    if services.tiered_storage is None:
        tiering = services.metadata.image.tiering_of(topic.id)
        is_missing = is_leader and tiering.policy is DisablePolicy.DELETE
        return "this broker needs remote.log.storage.system.enable=true" if is_missing else None
    manager = services.tiered_storage.manager
    if services.node_id not in image.replicas:
        is_busy = manager.work.is_busy(TopicIdPartition(topic.id, topic.name, index))
        return "a segment is being copied or deleted" if is_busy else None
    try:
        partition = await services.partitions.get(topic.name, topic.id, index)
        if is_leader and partition.leader_epoch != image.leader_epoch:
            return "this broker is not the leader yet"
        if is_leader and partition.log.failure is not None:
            return "the log directory is offline"
        return None if manager.is_disabled(partition) else manager.disablement_progress(partition)
    except KafkaError as error:
        # A replica in an offline log directory copies nothing; another broker leads.
        return error.message or str(error) if is_leader else None


HANDLERS = {apis.DISABLE_REMOTE_TOPIC: disable_remote_topic}
