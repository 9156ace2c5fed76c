"""Requests of brokers to the coordinators of diskless topics (KIP-1164, D-01): APIs 93 to 100, and private
APIs.

They need CLUSTER_ACTION. A broker without `diskless.storage.system.enable` has no coordinators.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from odradek.broker.requests.context import RequestContext
from odradek.broker.security.request_authorization import check_cluster
from odradek.protocol import apis
from odradek.protocol.errors import ErrorCode, KafkaError
from odradek.protocol.schemas.diskless_apis import (
    DisklessCommitBatchResult,
    DisklessCommitFileRequest,
    DisklessCommitFileResponse,
    DisklessCreatablePartitionsResult,
    DisklessCreatePartitionsRequest,
    DisklessCreatePartitionsResponse,
    DisklessDeletableTopicResult,
    DisklessDeleteRecordsPartitionResult,
    DisklessDeleteRecordsRequest,
    DisklessDeleteRecordsResponse,
    DisklessDeleteRecordsTopicResult,
    DisklessDeleteTopicsRequest,
    DisklessDeleteTopicsResponse,
    DisklessDescribeCoordinatorsRequest,
    DisklessDescribeCoordinatorsResponse,
    DisklessDescribedCoordinator,
    DisklessDescribeFileResult,
    DisklessDescribeFilesRequest,
    DisklessDescribeFilesResponse,
    DisklessFetchSnapshotRequest,
    DisklessFetchSnapshotResponse,
    DisklessFindBatchesPartitionResponse,
    DisklessFindBatchesRequest,
    DisklessFindBatchesResponse,
    DisklessFindBatchesTopicResponse,
    DisklessHandOverFileRequest,
    DisklessHandOverFileResponse,
    DisklessListFilesRequest,
    DisklessListFilesResponse,
    DisklessListOffsetsPartitionResponse,
    DisklessListOffsetsRequest,
    DisklessListOffsetsResponse,
    DisklessListOffsetsTopicResponse,
)

if TYPE_CHECKING:
    from odradek.broker.diskless.diskless import Diskless

T = TypeVar("T")


class NoCoordinators(KafkaError):
    """This broker does not have `diskless.storage.system.enable=true`."""

    code = ErrorCode.not_coordinator


def _diskless(ctx: RequestContext) -> Diskless:
    """The coordinators' service. Raises ClusterDenied or NoCoordinators."""
    check_cluster(ctx)
    diskless = ctx.services.diskless
    if diskless is None:
        raise NoCoordinators("diskless.storage.system.enable is false on this broker")
    return diskless


def _fields(error: KafkaError) -> dict[str, Any]:
    return {"error_code": error.code, "error_message": error.message or None}


async def commit_file(
    request: DisklessCommitFileRequest, ctx: RequestContext
) -> DisklessCommitFileResponse:
    """DisklessCommitFile: commit the batches of a WAL file (D-05)."""
    try:
        diskless = _diskless(ctx)
    except KafkaError as error:
        refused = DisklessCommitBatchResult(
            assigned_base_offset=-1,
            log_append_time=-1,
            log_start_offset=-1,
            is_duplicate=False,
            **_fields(error),
        )
        return DisklessCommitFileResponse(batches=(refused,) * len(request.batches))
    await ctx.flush()
    return await diskless.service.commit_file(request)


async def create_partitions(
    request: DisklessCreatePartitionsRequest, ctx: RequestContext
) -> DisklessCreatePartitionsResponse:
    """DisklessCreatePartitions: create the partitions of topics at their coordinators (D-03)."""
    try:
        diskless = _diskless(ctx)
    except KafkaError as error:
        fields = _fields(error)
        return DisklessCreatePartitionsResponse(
            topics=tuple(
                [
                    DisklessCreatablePartitionsResult(topic_id=topic.topic_id, **fields)
                    for topic in request.topics
                ]
            )
        )
    await ctx.flush()
    return await diskless.service.create_partitions(request)


async def delete_topics(
    request: DisklessDeleteTopicsRequest, ctx: RequestContext
) -> DisklessDeleteTopicsResponse:
    """DisklessDeleteTopics: delete topics at the coordinators on this broker (D-04)."""
    try:
        diskless = _diskless(ctx)
    except KafkaError as error:
        fields = _fields(error)
        return DisklessDeleteTopicsResponse(
            responses=tuple(
                [
                    DisklessDeletableTopicResult(topic_id=topic.topic_id, **fields)
                    for topic in request.topics
                ]
            )
        )
    await ctx.flush()
    return await diskless.service.delete_topics(request)


async def delete_records(
    request: DisklessDeleteRecordsRequest, ctx: RequestContext
) -> DisklessDeleteRecordsResponse:
    """DisklessDeleteRecords: delete records below offsets (D-08)."""
    from odradek.broker.diskless.coordinator_service import DeletePosition

    positions = [
        DeletePosition(topic.topic_id, partition.partition_index, partition.offset)
        for topic in request.topics
        for partition in topic.partitions
    ]
    try:
        diskless = _diskless(ctx)
        await ctx.flush()
        results = await diskless.service.delete_records(positions, timeout_ms=request.timeout_ms)
    except KafkaError as error:
        results = [
            DisklessDeleteRecordsPartitionResult(
                partition_index=position.index, low_watermark=-1, **_fields(error)
            )
            for position in positions
        ]
    return DisklessDeleteRecordsResponse(
        topics=_regroup(request.topics, results, DisklessDeleteRecordsTopicResult)
    )


async def list_offsets(
    request: DisklessListOffsetsRequest, ctx: RequestContext
) -> DisklessListOffsetsResponse:
    """DisklessListOffsets: offsets by timestamp, which include all operations before (D-09)."""
    from odradek.storage.diskless.queries import TimestampPosition

    positions = [
        TimestampPosition(topic.topic_id, partition.partition_index, partition.timestamp)
        for topic in request.topics
        for partition in topic.partitions
    ]
    try:
        diskless = _diskless(ctx)
        await ctx.flush()
        results = await diskless.service.list_offsets(positions, timeout_ms=request.timeout_ms)
    except KafkaError as error:
        results = [
            DisklessListOffsetsPartitionResponse(partition_index=position.index, **_fields(error))
            for position in positions
        ]
    return DisklessListOffsetsResponse(
        topics=_regroup(request.topics, results, DisklessListOffsetsTopicResponse)
    )


async def find_batches(
    request: DisklessFindBatchesRequest, ctx: RequestContext
) -> DisklessFindBatchesResponse:
    """DisklessFindBatches: batches from offsets, in the state as it is applied on this broker (D-10)."""
    from odradek.storage.diskless.queries import FindPosition

    positions = [
        FindPosition(
            topic.topic_id,
            partition.partition_index,
            partition.offset,
            partition.max_partition_fetch_bytes,
        )
        for topic in request.topics
        for partition in topic.partitions
    ]
    try:
        diskless = _diskless(ctx)
        await ctx.flush()
        results = await diskless.service.find_batches(
            positions,
            max_bytes=request.fetch_max_bytes,
            max_batches=request.max_batches_per_partition,
            timeout_ms=request.timeout_ms,
        )
    except KafkaError as error:
        results = [
            DisklessFindBatchesPartitionResponse(
                partition_index=position.index, error_code=error.code
            )
            for position in positions
        ]
    return DisklessFindBatchesResponse(
        topics=_regroup(request.topics, results, DisklessFindBatchesTopicResponse)
    )


def _regroup(
    topics: Sequence[Any], results: Sequence[Any], new_topic: Callable[..., T]
) -> tuple[T, ...]:
    """Results of all partitions, which are in the order of the request, by topic."""
    rest = iter(results)
    return tuple(
        [
            new_topic(
                topic_id=topic.topic_id, partitions=tuple([next(rest) for _ in topic.partitions])
            )
            for topic in topics
        ]
    )


async def describe_files(
    request: DisklessDescribeFilesRequest, ctx: RequestContext
) -> DisklessDescribeFilesResponse:
    """DisklessDescribeFiles: whether a coordinator on this broker tracks files (D-11)."""
    try:
        diskless = _diskless(ctx)
    except KafkaError as error:
        fields = _fields(error)
        return DisklessDescribeFilesResponse(
            files=tuple(
                [
                    DisklessDescribeFileResult(
                        object_key=file.object_key, has_live_batches=False, **fields
                    )
                    for file in request.files
                ]
            )
        )
    await ctx.flush()
    return await diskless.service.describe_files(request)


async def hand_over_file(
    request: DisklessHandOverFileRequest, ctx: RequestContext
) -> DisklessHandOverFileResponse:
    """DisklessHandOverFile: become the owner of a file (D-21)."""
    try:
        diskless = _diskless(ctx)
    except KafkaError as error:
        return DisklessHandOverFileResponse(**_fields(error))
    await ctx.flush()
    return await diskless.service.hand_over_file(request)


async def describe_coordinators(
    request: DisklessDescribeCoordinatorsRequest, ctx: RequestContext
) -> DisklessDescribeCoordinatorsResponse:
    """DisklessDescribeCoordinators: state of the replicas of `__diskless_metadata` on this broker."""
    try:
        diskless = _diskless(ctx)
    except KafkaError as error:
        from odradek.broker.diskless.coordinator_service import NOTHING_DESCRIBED

        fields = {**NOTHING_DESCRIBED, **_fields(error)}
        return DisklessDescribeCoordinatorsResponse(
            coordinators=tuple(
                [
                    DisklessDescribedCoordinator(coordinator_id=each, **fields)
                    for each in request.coordinator_ids or ()
                ]
            )
        )
    await ctx.flush()
    return await diskless.service.describe_coordinators(request)


async def fetch_snapshot(
    request: DisklessFetchSnapshotRequest, ctx: RequestContext
) -> DisklessFetchSnapshotResponse:
    """DisklessFetchSnapshot: a part of the newest snapshot of a coordinator's state (D-20)."""
    try:
        diskless = _diskless(ctx)
    except KafkaError as error:
        return DisklessFetchSnapshotResponse(**_fields(error), data=b"")
    await ctx.flush()
    return await diskless.service.fetch_snapshot(request)


async def list_files(
    request: DisklessListFilesRequest, ctx: RequestContext
) -> DisklessListFilesResponse:
    """DisklessListFiles: the files that a coordinator tracks."""
    try:
        diskless = _diskless(ctx)
    except KafkaError as error:
        return DisklessListFilesResponse(**_fields(error))
    await ctx.flush()
    return await diskless.service.list_files(request)


HANDLERS = {
    apis.DISKLESS_CREATE_PARTITIONS: create_partitions,
    apis.DISKLESS_DELETE_TOPICS: delete_topics,
    apis.DISKLESS_COMMIT_FILE: commit_file,
    apis.DISKLESS_DELETE_RECORDS: delete_records,
    apis.DISKLESS_LIST_OFFSETS: list_offsets,
    apis.DISKLESS_FIND_BATCHES: find_batches,
    apis.DISKLESS_DESCRIBE_FILES: describe_files,
    apis.DISKLESS_HAND_OVER_FILE: hand_over_file,
    apis.DISKLESS_DESCRIBE_COORDINATORS: describe_coordinators,
    apis.DISKLESS_FETCH_SNAPSHOT: fetch_snapshot,
    apis.DISKLESS_LIST_FILES: list_files,
}
