"""DisableRemoteTopic: the active controller waits until this broker has disabled tiered storage of a topic (KIP-950)."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Any
from uuid import UUID

import trio

from odradek.broker.requests.context import RequestContext
from odradek.broker.requests.steps import in_steps
from odradek.broker.security.request_authorization import check_cluster
from odradek.broker.services import Services
from odradek.protocol import apis
from odradek.protocol.errors import ErrorCode, KafkaError
from odradek.replication.controller.acls import AclOperation
from odradek.replication.controller.image import DisablePolicy, PartitionImage, TopicImage
from odradek.replication.partition.partition import Partition
from odradek.storage.tiered.segment_metadata import TopicIdPartition

if TYPE_CHECKING:
    from odradek.broker.tiered.remote_log_manager import RemoteLogManager

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
    if services.tiered_storage is not None and request.tiered_epoch >= 0:
        services.tiered_storage.manager.set_copying_brokers(
            request.topic_id, request.tiered_epoch, request.copying_brokers
        )
    waiting = _Waiting()
    with trio.move_on_after(WAIT_SECONDS):
        await waiting.wait(request, ctx)
    has_ended_copies = waiting.reason is None or await _have_copies_ended(request, ctx)
    return {
        "error_code": ErrorCode.request_timed_out if waiting.reason else ErrorCode.none,
        "error_message": waiting.reason,
        "has_ended_copies": has_ended_copies,
    }


class _Waiting:
    """Waits until this broker has finished its part, one partition after another."""

    def __init__(self) -> None:
        self.reason: str | None = "no partition was checked yet"
        """Why this broker has not finished yet; None if it has."""

    async def wait(self, request: Any, ctx: RequestContext) -> None:
        services = ctx.services
        while (image := services.metadata.image).offset < request.metadata_offset:
            self.reason = (
                f"the metadata is known up to offset {image.offset} of {request.metadata_offset}"
            )
            await services.seams.clock.sleep(POLL_SECONDS)
        async for index in in_steps(_partitions(request, services), ctx):
            while (reason := await _find_reason(request.topic_id, index, services)) is not None:
                self.reason = reason
                await services.seams.clock.sleep(POLL_SECONDS)
        self.reason = None


def _partitions(request: Any, services: Services) -> list[int]:
    topic = services.metadata.image.topics_by_id.get(request.topic_id)
    indexes = () if topic is None else topic.partitions
    return [index for index in indexes if request.partition_id in (-1, index)]


async def _have_copies_ended(request: Any, ctx: RequestContext) -> bool:
    """Whether this broker copies no segment of the topic. It knows the disablement, so that it starts none either."""
    services = ctx.services
    image = services.metadata.image
    topic = image.topics_by_id.get(request.topic_id)
    if image.offset < request.metadata_offset:
        return False
    if topic is None or services.tiered_storage is None:
        return True
    manager = services.tiered_storage.manager
    async for index in in_steps(_partitions(request, services), ctx):
        partition: Partition | None = None
        if services.node_id in topic.partitions[index].replicas:
            with suppress(KafkaError):  # it copies nothing, for example in an offline log directory
                partition = await services.partitions.get(topic.name, topic.id, index)
        if manager.may_copy(TopicIdPartition(topic.id, topic.name, index), partition):
            return False
    return True


async def _find_reason(topic_id: UUID, index: int, services: Services) -> str | None:
    """Why this broker has not finished its part for the partition, for the operator; None if it has."""
    topic = services.metadata.image.topics_by_id.get(topic_id)
    if topic is None:
        return None
    reason = await _find_reason_of(topic, index, topic.partitions[index], services)
    return None if reason is None else f"partition {topic.name}-{index}: {reason}"


async def _find_reason_of(
    topic: TopicImage, index: int, image: PartitionImage, services: Services
) -> str | None:
    """Why this broker has not finished its part for the partition, or None."""
    is_leader = image.leader == services.node_id
    if services.tiered_storage is None:
        tiering = services.metadata.image.tiering_of(topic.id)
        is_missing = is_leader and tiering.policy is DisablePolicy.DELETE
        return "this broker needs remote.log.storage.system.enable=true" if is_missing else None
    manager = services.tiered_storage.manager
    id = TopicIdPartition(topic.id, topic.name, index)
    if services.node_id not in image.replicas:
        return _busy_reason(manager, id)
    try:
        partition = await services.partitions.get(topic.name, topic.id, index)
        if is_leader and partition.leader_epoch != image.leader_epoch:
            return "this broker is not the leader yet"
        if is_leader and partition.log.failure is not None:
            return "the log directory is offline"
        return None if manager.is_disabled(partition) else manager.disablement_progress(partition)
    except KafkaError as error:
        # A replica in an offline log directory starts no copy, but its last one may still be in progress.
        return error.message or str(error) if is_leader else _busy_reason(manager, id)


def _busy_reason(manager: RemoteLogManager, id: TopicIdPartition) -> str | None:
    return "a segment is being copied or deleted" if manager.work.is_busy(id) else None


HANDLERS = {apis.DISABLE_REMOTE_TOPIC: disable_remote_topic}
