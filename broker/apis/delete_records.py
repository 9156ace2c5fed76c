"""DeleteRecords: advance the log start offset of partitions (KIP-107)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import trio

from odradek.broker.coordination.internal_topics import is_coordinator_topic
from odradek.broker.requests.context import RequestContext
from odradek.broker.requests.steps import in_steps
from odradek.broker.security.request_authorization import check_topic
from odradek.protocol import apis
from odradek.protocol.errors import ErrorCode, KafkaError
from odradek.replication.controller.image import TopicImage
from odradek.replication.errors import NotLeader
from odradek.replication.partition.partition import Partition, PartitionChangeWatcher
from odradek.storage.errors import OffsetOutOfRange

TO_HIGH_WATERMARK = -1
"""Requested offset that deletes up to the high watermark."""


@dataclass(slots=True)
class _PartitionDeletion:
    """Deletion of records in one partition: its response, and the offset that all replicas must reach."""

    index: int
    low_watermark: int = -1
    error_code: ErrorCode = ErrorCode.none
    offset: int = -1
    waits_in: Partition | None = None
    diskless_topic: TopicImage | None = None
    """The topic of a diskless partition, whose coordinator deletes the records."""

    def fail(self, error: KafkaError) -> None:
        self.low_watermark, self.error_code, self.waits_in = -1, error.code, None

    def check(self) -> None:
        """Complete if the log start offset of all live replicas has reached the requested offset."""
        if self.waits_in is None:
            return
        try:
            self.waits_in.check_leader()
        except KafkaError as error:
            self.fail(error)
            return
        self.low_watermark = self.waits_in.low_watermark()
        if self.low_watermark >= self.offset:
            self.waits_in = None


async def delete_records(request: Any, ctx: RequestContext) -> Mapping[str, Any]:
    """DeleteRecords: advance the log start offset on all replicas (KIP-107). The next retention check deletes
    the segments."""
    wanted: dict[str, dict[int, Any]] = {}
    for topic in request.topics:  # as in Kafka, the last of several entries for a partition counts
        async for each in in_steps(topic.partitions, ctx):
            wanted.setdefault(topic.name, {})[each.partition_index] = each
    topics = [
        (
            name,
            [
                await _delete_before(name, each, ctx)
                async for each in in_steps(partitions.values(), ctx)
            ],
        )
        for name, partitions in wanted.items()
    ]
    every = [each for _, deletions in topics for each in deletions]
    if ctx.services.diskless is not None:
        await _delete_diskless([each for each in every if each.diskless_topic], request, ctx)
    await _replicated(every, request, ctx)
    return {
        "topics": [
            {
                "name": name,
                "partitions": [
                    {
                        "partition_index": each.index,
                        "low_watermark": each.low_watermark,
                        "error_code": each.error_code,
                    }
                    async for each in in_steps(deletions, ctx)
                ],
            }
            for name, deletions in topics
        ]
    }


async def _replicated(
    deletions: Sequence[_PartitionDeletion], request: Any, ctx: RequestContext
) -> None:
    """Wait until all replicas have the new log start offsets; at the timeout, the others get REQUEST_TIMED_OUT."""
    with trio.move_on_after(max(0.0, request.timeout.total_seconds())):
        while True:
            async for each in in_steps(deletions, ctx):
                each.check()
            waits = [each.waits_in for each in deletions if each.waits_in is not None]
            if not waits:
                break
            await PartitionChangeWatcher.wait(waits)
    async for each in in_steps(deletions, ctx):
        if each.waits_in is not None:
            each.error_code = ErrorCode.request_timed_out


async def _delete_before(topic: str, wanted: Any, ctx: RequestContext) -> _PartitionDeletion:
    deletion = _PartitionDeletion(wanted.partition_index)
    try:
        check_topic(ctx, topic)
        if is_coordinator_topic(topic):
            raise KafkaError(
                ErrorCode.invalid_topic_exception,
                f"Cannot delete records of internal topic {topic}",
            )
        try:
            partition = await ctx.services.partitions.get(topic, None, wanted.partition_index)
        except NotLeader:
            if not _is_diskless(topic, wanted, deletion, ctx):
                raise
            return deletion
        partition.check_leader()
        deletion.offset = _advance_log_start(partition, wanted.offset)
        deletion.waits_in = partition
        deletion.low_watermark = partition.low_watermark()
    except KafkaError as error:
        deletion.fail(error)
    return deletion


def _is_diskless(
    topic: str, wanted: Any, deletion: _PartitionDeletion, ctx: RequestContext
) -> bool:
    """Whether the partition is diskless; its records are deleted with those of all others of the request."""
    diskless = ctx.services.diskless
    if diskless is not None:
        deletion.diskless_topic = diskless.reader.topic_of(topic, None, wanted.partition_index)
        deletion.offset = wanted.offset
    return deletion.diskless_topic is not None


async def _delete_diskless(
    deletions: Sequence[_PartitionDeletion], request: Any, ctx: RequestContext
) -> None:
    """Delete the records of diskless partitions at their coordinators."""
    if not deletions:
        return
    assert ctx.services.diskless is not None
    await ctx.flush()
    results = await ctx.services.diskless.offsets.delete_records(
        [
            (each.diskless_topic, each.index, each.offset)
            for each in deletions
            if each.diskless_topic
        ],
        max(0.0, request.timeout.total_seconds()),
    )
    for deletion, result in zip(deletions, results, strict=True):
        if isinstance(result, KafkaError):
            deletion.fail(result)
        else:
            deletion.low_watermark = result


def _advance_log_start(partition: Partition, requested: int) -> int:
    """Advance the log start offset and return it."""
    log = partition.log
    policy = log.config.cleanup_policy
    if "compact" in policy and "delete" not in policy:
        raise KafkaError(
            ErrorCode.policy_violation,
            "Records of a topic can not be deleted due to its cleanup.policy compact",
        )
    offset = log.high_watermark if requested == TO_HIGH_WATERMARK else requested
    if not 0 <= offset <= log.high_watermark:
        raise OffsetOutOfRange(
            f"Cannot increment the log start offset to {offset}: it is larger than the high watermark"
            f" {log.high_watermark}"
        )
    partition.delete_before(offset, "records deleted by a client")
    return offset


HANDLERS = {apis.DELETE_RECORDS: delete_records}
