"""Queries of the state of a coordinator, with the results of DisklessFindBatches, DisklessListOffsets and
DisklessDescribeFiles (KIP-1164, D-09 to D-11).

Every function may block as the state does: one call through Offload reads all partitions of a request.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final
from uuid import UUID

from odradek.protocol.errors import ErrorCode
from odradek.protocol.schemas.diskless_apis import (
    DisklessDescribeFileResult,
    DisklessFindBatchesBatchInfo,
    DisklessFindBatchesPartitionResponse,
    DisklessListedFile,
    DisklessListOffsetsPartitionResponse,
)
from odradek.seams.values import value_class
from odradek.storage.diskless.state import CommittedBatch, DisklessState, PartitionState

LATEST: Final = -1
EARLIEST: Final = -2
MAX_TIMESTAMP: Final = -3
EARLIEST_LOCAL: Final = -4
LATEST_TIERED: Final = -5
NO_TIMESTAMP: Final = -1
LISTED_FILES_MAX: Final = 10_000


@value_class
class FindPosition:
    """A partition and an offset to find batches from, with a limit in bytes."""

    topic_id: UUID
    index: int
    offset: int
    max_bytes: int


@value_class
class TimestampPosition:
    """A partition and a timestamp in ms, or a special timestamp from -1 to -5."""

    topic_id: UUID
    index: int
    timestamp_ms: int


def error_of_missing(state: DisklessState, topic_id: UUID) -> ErrorCode:
    """Error for a partition that the state does not have."""
    if state.partitions(topic_id):
        return ErrorCode.unknown_topic_or_partition
    return ErrorCode.unknown_topic_id


def find_batches(
    state: DisklessState, positions: Iterable[FindPosition], *, max_bytes: int, max_batches: int
) -> list[DisklessFindBatchesPartitionResponse]:
    """Find the batches of each position in turn (D-10).

    `max_bytes` limits all positions together; only the first batch that is found may exceed it. A `max_batches` of 0 or
    less is no limit. An offset below the log start offset or above the high watermark is OFFSET_OUT_OF_RANGE.
    """
    results, left_bytes, is_first = [], max_bytes, True
    for position in positions:
        found = state.partition(position.topic_id, position.index)
        if found is None:
            code = error_of_missing(state, position.topic_id)
            results.append(
                DisklessFindBatchesPartitionResponse(
                    partition_index=position.index, error_code=code
                )
            )
            continue
        batches: Sequence[CommittedBatch] = ()
        code = ErrorCode.none
        if not found.log_start_offset <= position.offset <= found.high_watermark:
            code = ErrorCode.offset_out_of_range
        elif position.offset < found.high_watermark and (is_first or left_bytes > 0):
            limit_bytes = min(position.max_bytes, left_bytes)
            batches = state.find_batches(
                position.topic_id,
                position.index,
                position.offset,
                max_batches=max_batches,
                max_bytes=limit_bytes,
            )
            if batches and not is_first and batches[0].byte_size > left_bytes:
                batches = ()
            left_bytes -= sum(batch.byte_size for batch in batches)
            is_first = is_first and not batches
        results.append(
            DisklessFindBatchesPartitionResponse(
                partition_index=position.index,
                error_code=code,
                log_start_offset=found.log_start_offset,
                high_watermark=found.high_watermark,
                batches=tuple([_batch_info(batch) for batch in batches]),
            )
        )
    return results


def _batch_info(batch: CommittedBatch) -> DisklessFindBatchesBatchInfo:
    return DisklessFindBatchesBatchInfo(
        batch_id=batch.batch_id,
        object_key=batch.object_key,
        magic=batch.magic,
        byte_offset=batch.byte_offset,
        byte_size=batch.byte_size,
        base_offset=batch.base_offset,
        last_offset=batch.last_offset,
        log_append_timestamp=batch.log_append_ms,
        batch_max_timestamp=batch.max_timestamp_ms,
        timestamp_type=batch.timestamp_type,
    )


def list_offsets(
    state: DisklessState, positions: Iterable[TimestampPosition]
) -> list[DisklessListOffsetsPartitionResponse]:
    """Offset of each timestamp (D-09).

    For a timestamp in ms, the base offset of the first batch whose largest timestamp is not below it; for -3, that of the
    batch with the largest timestamp. The records of the batch decide further. There are no tiered records, so that -4
    is as -2, and -5 has no offset.
    """
    return [_list_offset(state, position) for position in positions]


def _list_offset(
    state: DisklessState, position: TimestampPosition
) -> DisklessListOffsetsPartitionResponse:
    topic_id, index = position.topic_id, position.index
    found = state.partition(topic_id, index)
    if found is None:
        return DisklessListOffsetsPartitionResponse(
            partition_index=index, error_code=error_of_missing(state, topic_id)
        )
    timestamp_ms, offset = _timestamp_and_offset(state, found, position.timestamp_ms)
    return DisklessListOffsetsPartitionResponse(
        partition_index=index, timestamp=timestamp_ms, offset=offset
    )


def _timestamp_and_offset(
    state: DisklessState, partition: PartitionState, timestamp_ms: int
) -> tuple[int, int]:
    topic_id, index = partition.topic_id, partition.index
    if timestamp_ms == LATEST:
        return NO_TIMESTAMP, partition.high_watermark
    if timestamp_ms in (EARLIEST, EARLIEST_LOCAL):
        return NO_TIMESTAMP, partition.log_start_offset
    if timestamp_ms == MAX_TIMESTAMP:
        batch = state.batch_with_largest_timestamp(topic_id, index)
    elif timestamp_ms < 0:
        return NO_TIMESTAMP, -1
    else:
        batch = state.first_batch_from_timestamp(topic_id, index, timestamp_ms)
    if batch is None:
        return NO_TIMESTAMP, -1
    largest_ms = batch.log_append_ms if batch.timestamp_type == 1 else batch.max_timestamp_ms
    return largest_ms, max(batch.base_offset, partition.log_start_offset)


def describe_files(state: DisklessState, keys: Iterable[str]) -> list[DisklessDescribeFileResult]:
    """Whether each file has live batches (D-11). RESOURCE_NOT_FOUND: the coordinator does not track the file."""
    results = []
    for key in keys:
        file = state.file(key)
        code = ErrorCode.resource_not_found if file is None else ErrorCode.none
        has_live_batches = file is not None and file.live_batches > 0
        results.append(
            DisklessDescribeFileResult(
                object_key=key, error_code=code, has_live_batches=has_live_batches
            )
        )
    return results


def list_files(
    state: DisklessState, coordinator_id: int, after: str, max_files: int
) -> list[DisklessListedFile]:
    """Files of the coordinator with keys after `after`."""
    return [
        DisklessListedFile(
            object_key=file.object_key,
            object_format=file.object_format,
            file_size=file.size,
            uploader_broker_id=file.uploader_broker_id,
            owner_ids=file.owner_ids,
            status=int(file.status(coordinator_id)),
            live_batches=file.live_batches,
            live_bytes=file.live_bytes,
            uploaded_ms=file.uploaded_ms,
        )
        for file in state.files(after, max(0, min(max_files, LISTED_FILES_MAX)))
    ]
