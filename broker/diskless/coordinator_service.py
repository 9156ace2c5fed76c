"""Requests to the coordinators on this broker, from this broker and from others (KIP-1164, D-01).

A request goes to a broker and may be for several coordinators on it. Each part is handled by the coordinator that the
metadata image assigns to its partition (D-14), all at the same time, and the results are in the order of the request.
An error of a coordinator becomes the error of its items; no method raises.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Protocol, TypeVar
from uuid import UUID

import trio

from odradek.broker.coordination.coordinator_runtime import NotCoordinator
from odradek.broker.coordination.internal_topics import DISKLESS_METADATA_TOPIC
from odradek.broker.diskless.coordinators import DisklessCoordinators
from odradek.protocol.errors import ErrorCode, KafkaError
from odradek.protocol.schemas.diskless_apis import (
    DisklessCommitBatchResult,
    DisklessCommitFileRequest,
    DisklessCommitFileResponse,
    DisklessCreatablePartitions,
    DisklessCreatablePartitionsResult,
    DisklessCreatePartitionsRequest,
    DisklessCreatePartitionsResponse,
    DisklessDeletableTopicResult,
    DisklessDeletableTopicState,
    DisklessDeleteRecordsPartition,
    DisklessDeleteRecordsPartitionResult,
    DisklessDeleteRecordsRequest,
    DisklessDeleteRecordsTopic,
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
    DisklessHandOverFileRequest,
    DisklessHandOverFileResponse,
    DisklessListFilesRequest,
    DisklessListFilesResponse,
    DisklessListOffsetsPartitionResponse,
)
from odradek.replication.controller.image import NO_COORDINATOR, MetadataImage
from odradek.replication.errors import UnknownPartition, UnknownTopicId
from odradek.seams.values import value_class
from odradek.storage.diskless import queries
from odradek.storage.diskless.queries import FindPosition, TimestampPosition
from odradek.storage.diskless.state import DisklessState, StateCounts

if TYPE_CHECKING:
    from odradek.broker.diskless.coordinator import DisklessCoordinator

R = TypeVar("R")
ReadSnapshot = Callable[[DisklessFetchSnapshotRequest], Awaitable[DisklessFetchSnapshotResponse]]
NO_OFFSET: Final = -1
DESCRIBE_TIMEOUT_MS: Final = 10_000
"""Time limit of requests that have none."""
NOTHING_DESCRIBED: Final[Mapping[str, Any]] = {
    "is_leader": False,
    "partitions": 0,
    "batches": 0,
    "live_bytes": 0,
    "files": 0,
    "files_to_hand_over": 0,
    "files_to_delete": 0,
}


class RequestTimedOut(KafkaError):
    code = ErrorCode.request_timed_out


@value_class
class DeletePosition:
    """A partition, and the offset below which its records are deleted; -1 is the high watermark."""

    topic_id: UUID
    index: int
    offset: int


def coordinator_of(image: MetadataImage, topic_id: UUID, index: int) -> int:
    """The partition of `__diskless_metadata` that coordinates a partition (D-14). Raises UnknownTopicId or
    UnknownPartition."""
    topic = image.topics_by_id.get(topic_id)
    if topic is None:
        raise UnknownTopicId(f"no topic with id {topic_id}")
    partition = topic.partitions.get(index)
    if partition is None or partition.diskless_coordinator == NO_COORDINATOR:
        raise UnknownPartition(f"{topic.name} has no diskless partition {index}")
    return partition.diskless_coordinator


class CoordinatorService:
    """Handles requests at the coordinators on this broker."""

    def __init__(
        self, coordinators: DisklessCoordinators, image: Callable[[], MetadataImage]
    ) -> None:
        self.coordinators = coordinators
        self.snapshots: ReadSnapshot | None = None
        """Reads a part of a snapshot."""
        self._image = image

    # By partition

    async def commit_file(self, request: DisklessCommitFileRequest) -> DisklessCommitFileResponse:
        """Commit the batches of a file at their coordinators (D-05)."""

        async def commit(
            coordinator_id: int, positions: Sequence[int]
        ) -> Sequence[DisklessCommitBatchResult]:
            part = request
            if len(positions) < len(request.batches):
                part = DisklessCommitFileRequest(
                    object_key=request.object_key,
                    object_format=request.object_format,
                    file_size=request.file_size,
                    owner_ids=request.owner_ids,
                    batches=tuple([request.batches[position] for position in positions]),
                    timeout_ms=request.timeout_ms,
                )
            coordinator = self.coordinators.leader(coordinator_id)
            return (await coordinator.commit_file(part)).batches

        results = await self._by_coordinator(
            [(batch.topic_id, batch.partition_index) for batch in request.batches],
            commit,
            lambda position, error: failed_commit(error),
            request.timeout_ms,
        )
        return DisklessCommitFileResponse(batches=tuple(results))

    async def find_batches(
        self,
        positions: Sequence[FindPosition],
        *,
        max_bytes: int,
        max_batches: int,
        timeout_ms: int,
    ) -> list[DisklessFindBatchesPartitionResponse]:
        """Find batches in the states as they are applied on this broker, as a leader or a follower (D-10, D-19)."""

        async def find(
            coordinator_id: int, wanted: Sequence[int]
        ) -> Sequence[DisklessFindBatchesPartitionResponse]:
            coordinator = self.coordinators.with_state(coordinator_id)
            return await coordinator.query(
                partial(
                    queries.find_batches,
                    positions=[positions[position] for position in wanted],
                    max_bytes=max_bytes,
                    max_batches=max_batches,
                )
            )

        results = await self._by_coordinator(
            [(position.topic_id, position.index) for position in positions],
            find,
            lambda position, error: failed_find(positions[position], error),
            timeout_ms,
        )
        return limit_bytes(results, max_bytes)

    async def list_offsets(
        self, positions: Sequence[TimestampPosition], *, timeout_ms: int
    ) -> list[DisklessListOffsetsPartitionResponse]:
        """List offsets after everything that was appended before the request (D-09, D-19)."""

        async def list_them(
            coordinator_id: int, wanted: Sequence[int]
        ) -> Sequence[DisklessListOffsetsPartitionResponse]:
            coordinator = self.coordinators.leader(coordinator_id)
            asked = [positions[position] for position in wanted]
            return await coordinator.query_strictly(partial(queries.list_offsets, positions=asked))

        return await self._by_coordinator(
            [(position.topic_id, position.index) for position in positions],
            list_them,
            lambda position, error: failed_offset(positions[position], error),
            timeout_ms,
        )

    async def delete_records(
        self, positions: Sequence[DeletePosition], *, timeout_ms: int
    ) -> list[DisklessDeleteRecordsPartitionResult]:
        """Delete records below offsets (D-08)."""

        async def delete(
            coordinator_id: int, wanted: Sequence[int]
        ) -> Sequence[DisklessDeleteRecordsPartitionResult]:
            coordinator = self.coordinators.leader(coordinator_id)
            asked = [positions[position] for position in wanted]
            response = await coordinator.delete_records(deletion_request(asked, timeout_ms))
            return in_order(asked, [each for topic in response.topics for each in topic.partitions])

        return await self._by_coordinator(
            [(position.topic_id, position.index) for position in positions],
            delete,
            lambda position, error: failed_deletion(positions[position], error),
            timeout_ms,
        )

    async def _by_coordinator(
        self,
        partitions: Sequence[tuple[UUID, int]],
        handle: Callable[[int, Sequence[int]], Awaitable[Sequence[R]]],
        failed: Callable[[int, KafkaError], R],
        timeout_ms: int,
    ) -> list[R]:
        """Handle each coordinator's positions in the request, and merge the results in order."""
        image = self._image()
        results: dict[int, R] = {}
        parts: dict[int, list[int]] = {}
        for position, (topic_id, index) in enumerate(partitions):
            try:
                parts.setdefault(coordinator_of(image, topic_id, index), []).append(position)
            except KafkaError as error:
                results[position] = failed(position, error)

        async def run(coordinator_id: int, positions: Sequence[int]) -> None:
            found = await in_time(lambda: handle(coordinator_id, positions), timeout_ms)
            for number, position in enumerate(positions):
                if isinstance(found, KafkaError):
                    results[position] = failed(position, found)
                else:
                    results[position] = found[number]

        await in_parallel(run, parts.items())
        return [results[position] for position in range(len(partitions))]

    # By topic

    async def create_partitions(
        self, request: DisklessCreatePartitionsRequest
    ) -> DisklessCreatePartitionsResponse:
        """Create those partitions of topics that the image assigns to the coordinators on this broker (D-03).

        NOT_COORDINATOR: none of the topic's coordinators is on this broker.
        """
        image = self._image()
        results: dict[UUID, KafkaError | None] = {}
        parts: dict[int, list[DisklessCreatablePartitions]] = {}
        led = {coordinator.coordinator_id for coordinator in self.coordinators.led()}
        for topic in request.topics:
            found = image.topics_by_id.get(topic.topic_id)
            if found is None:
                results[topic.topic_id] = UnknownTopicId(f"no topic with id {topic.topic_id}")
                continue
            partitions = found.partitions.values()
            here = led.intersection(each.diskless_coordinator for each in partitions)
            results[topic.topic_id] = (
                None
                if here
                else NotCoordinator(f"no coordinator of {found.name} is on this broker")
            )
            for coordinator_id in here:
                parts.setdefault(coordinator_id, []).append(topic)

        async def create(
            coordinator_id: int, topics: Sequence[DisklessCreatablePartitions]
        ) -> None:
            part = DisklessCreatePartitionsRequest(topics=tuple(topics))
            coordinator = self.coordinators.leader
            created = await in_time(
                lambda: coordinator(coordinator_id).create_partitions(part), request.timeout_ms
            )
            for number, topic in enumerate(topics):
                if isinstance(created, KafkaError):
                    results[topic.topic_id] = created
                elif created.topics[number].error_code is not ErrorCode.none:
                    refused = created.topics[number]
                    error = KafkaError(refused.error_code, refused.error_message or "")
                    results[topic.topic_id] = error

        await in_parallel(create, parts.items())
        return DisklessCreatePartitionsResponse(
            topics=tuple(
                [
                    DisklessCreatablePartitionsResult(topic_id=topic_id, **error_fields(error))
                    for topic_id, error in results.items()
                ]
            )
        )

    async def delete_topics(
        self, request: DisklessDeleteTopicsRequest
    ) -> DisklessDeleteTopicsResponse:
        """Delete topics at the coordinators on this broker (D-04).

        A topic that the metadata image has is refused: its partitions would be created again, without their records.
        """
        image = self._image()
        results: dict[UUID, KafkaError | None] = {}
        deleted: list[DisklessDeletableTopicState] = []
        for topic in request.topics:
            found = image.topics_by_id.get(topic.topic_id)
            if found is None:
                results[topic.topic_id] = UnknownTopicId(f"no topic with id {topic.topic_id}")
                deleted.append(topic)
            else:
                results[topic.topic_id] = KafkaError(
                    ErrorCode.invalid_request,
                    f"topic {found.name} exists: DeleteTopics deletes it, and then its coordinators do",
                )
        led = self.coordinators.led()
        if not led:
            error = NotCoordinator("no coordinator is on this broker")
            results.update(dict.fromkeys([topic.topic_id for topic in deleted], error))
            deleted = []
        part = DisklessDeleteTopicsRequest(topics=tuple(deleted))

        async def delete(coordinator: DisklessCoordinator) -> None:
            response = await in_time(lambda: coordinator.delete_topics(part), request.timeout_ms)
            if isinstance(response, KafkaError):
                results.update({topic.topic_id: response for topic in deleted})
                return
            for result in response.responses:
                error = results[result.topic_id]
                if result.error_code is ErrorCode.none and isinstance(error, UnknownTopicId):
                    results[result.topic_id] = None

        if deleted:
            await in_parallel(delete, [(coordinator,) for coordinator in led])
        return DisklessDeleteTopicsResponse(
            responses=tuple(
                [
                    DisklessDeletableTopicResult(topic_id=topic_id, **error_fields(error))
                    for topic_id, error in results.items()
                ]
            )
        )

    # Files and coordinators

    async def describe_files(
        self, request: DisklessDescribeFilesRequest
    ) -> DisklessDescribeFilesResponse:
        """Whether a coordinator that this broker leads tracks each file, after everything that was appended before (D-11).

        RESOURCE_NOT_FOUND: none of them does. Another error: the result of one of them is unknown.
        """
        keys = [file.object_key for file in request.files]
        led = self.coordinators.led()
        found: dict[str, DisklessDescribeFileResult] = {}
        error: KafkaError | None = (
            None if led else NotCoordinator("no coordinator is on this broker")
        )

        async def describe(coordinator: DisklessCoordinator) -> None:
            nonlocal error
            results = await in_time(
                lambda: coordinator.query_strictly(partial(queries.describe_files, keys=keys)),
                request.timeout_ms,
            )
            if isinstance(results, KafkaError):
                error = results
                return
            for result in results:
                if result.error_code is ErrorCode.none:
                    other = found.get(result.object_key)
                    if other is None or not other.has_live_batches:
                        found[result.object_key] = result

        await in_parallel(describe, [(coordinator,) for coordinator in led])
        unknown = error or KafkaError(
            ErrorCode.resource_not_found, "no coordinator on this broker tracks the file"
        )
        return DisklessDescribeFilesResponse(
            files=tuple(
                [
                    found.get(key)
                    or DisklessDescribeFileResult(
                        object_key=key, has_live_batches=False, **error_fields(unknown)
                    )
                    for key in keys
                ]
            )
        )

    async def hand_over_file(
        self, request: DisklessHandOverFileRequest
    ) -> DisklessHandOverFileResponse:
        """Make a coordinator on this broker the owner of a file (D-21)."""
        response = await in_time(
            lambda: self.coordinators.leader(request.coordinator_id).take_ownership(request),
            request.timeout_ms,
        )
        if isinstance(response, KafkaError):
            return DisklessHandOverFileResponse(**error_fields(response))
        return response

    async def list_files(self, request: DisklessListFilesRequest) -> DisklessListFilesResponse:
        """Files that a coordinator tracks, in the state as it is applied on this broker."""
        coordinator_id = request.coordinator_id
        files = await in_time(
            lambda: self.coordinators.with_state(coordinator_id).query(
                partial(
                    queries.list_files,
                    coordinator_id=coordinator_id,
                    after=request.after,
                    max_files=request.max_files,
                )
            ),
            DESCRIBE_TIMEOUT_MS,
        )
        if isinstance(files, KafkaError):
            return DisklessListFilesResponse(**error_fields(files))
        return DisklessListFilesResponse(files=tuple(files))

    async def fetch_snapshot(
        self, request: DisklessFetchSnapshotRequest
    ) -> DisklessFetchSnapshotResponse:
        """A part of the newest snapshot of a replica on this broker (D-20)."""
        snapshots = self.snapshots
        if snapshots is None:
            missing = KafkaError(ErrorCode.snapshot_not_found, "this broker has no snapshot")
            return DisklessFetchSnapshotResponse(data=b"", **error_fields(missing))
        response = await in_time(lambda: snapshots(request), DESCRIBE_TIMEOUT_MS)
        if isinstance(response, KafkaError):
            return DisklessFetchSnapshotResponse(data=b"", **error_fields(response))
        return response

    async def describe_coordinators(
        self, request: DisklessDescribeCoordinatorsRequest
    ) -> DisklessDescribeCoordinatorsResponse:
        """Describe replicas on this broker; the leader's state has everything that was appended before."""
        wanted = request.coordinator_ids
        if wanted is None:
            wanted = tuple([coordinator.coordinator_id for coordinator in self.coordinators])
        described: dict[int, DisklessDescribedCoordinator] = {}

        async def describe(coordinator_id: int) -> None:
            result = await in_time(lambda: self._describe(coordinator_id), request.timeout_ms)
            if isinstance(result, KafkaError):
                result = _failed_description(coordinator_id, result)
            described[coordinator_id] = result

        here = {coordinator.coordinator_id for coordinator in self.coordinators}
        await in_parallel(describe, [(each,) for each in here.intersection(wanted)])
        missing = NotCoordinator(
            f"this broker has no replica of this partition of {DISKLESS_METADATA_TOPIC}"
        )
        return DisklessDescribeCoordinatorsResponse(
            coordinators=tuple(
                [described.get(each) or _failed_description(each, missing) for each in wanted]
            )
        )

    async def _describe(self, coordinator_id: int) -> DisklessDescribedCoordinator:
        coordinator = self.coordinators.with_state(coordinator_id)
        query = coordinator.query_strictly if coordinator.is_leader else coordinator.query
        leader_epoch = coordinator.leader_epoch
        applied_offset, counts, oldest_file_ms = await query(_describe_state)
        return DisklessDescribedCoordinator(
            coordinator_id=coordinator_id,
            is_leader=coordinator.serves and coordinator.leader_epoch == leader_epoch,
            leader_epoch=leader_epoch,
            log_start_offset=coordinator.log.start_offset,
            applied_offset=applied_offset,
            log_end_offset=coordinator.log.end_offset,
            snapshot_offset=coordinator.snapshot_offset,
            state_bytes=counts.state_bytes,
            partitions=counts.partitions,
            batches=counts.batches,
            live_bytes=counts.live_bytes,
            files=counts.files,
            files_to_hand_over=counts.files_to_hand_over,
            files_to_delete=counts.files_to_delete,
            oldest_file_ms=coordinator.now_ms() if oldest_file_ms is None else oldest_file_ms,
        )


def _failed_description(coordinator_id: int, error: KafkaError) -> DisklessDescribedCoordinator:
    return DisklessDescribedCoordinator(
        coordinator_id=coordinator_id, **NOTHING_DESCRIBED, **error_fields(error)
    )


def _describe_state(state: DisklessState) -> tuple[int, StateCounts, int | None]:
    return state.applied_offset, state.counts(), state.oldest_file_ms()


# Time limits and results


async def in_time(handle: Callable[[], Awaitable[R]], timeout_ms: int) -> R | KafkaError:
    """The result of `handle`, or the KafkaError that it raised; REQUEST_TIMED_OUT after `timeout_ms`."""
    with trio.move_on_after(max(timeout_ms, 0) / 1000):
        try:
            return await handle()
        except KafkaError as error:
            return error
    return RequestTimedOut(f"no result within {timeout_ms} ms")


async def in_parallel(
    handle: Callable[..., Awaitable[None]], arguments: Collection[tuple[Any, ...]]
) -> None:
    """Call `handle` with each of the arguments at the same time."""
    if len(arguments) == 1:
        await handle(*next(iter(arguments)))
        return
    async with trio.open_nursery() as nursery:
        for each in arguments:
            nursery.start_soon(handle, *each)


def error_fields(error: KafkaError | None) -> dict[str, Any]:
    """The fields of an error in a result."""
    if error is None:
        return {}
    return {"error_code": error.code, "error_message": error.message or None}


def failed_commit(error: KafkaError) -> DisklessCommitBatchResult:
    return DisklessCommitBatchResult(
        assigned_base_offset=NO_OFFSET,
        log_append_time=-1,
        log_start_offset=NO_OFFSET,
        is_duplicate=False,
        **error_fields(error),
    )


def failed_find(position: FindPosition, error: KafkaError) -> DisklessFindBatchesPartitionResponse:
    return DisklessFindBatchesPartitionResponse(
        partition_index=position.index, error_code=error.code
    )


def failed_offset(
    position: TimestampPosition, error: KafkaError
) -> DisklessListOffsetsPartitionResponse:
    return DisklessListOffsetsPartitionResponse(
        partition_index=position.index, **error_fields(error)
    )


def failed_deletion(
    position: DeletePosition, error: KafkaError
) -> DisklessDeleteRecordsPartitionResult:
    return DisklessDeleteRecordsPartitionResult(
        partition_index=position.index, low_watermark=NO_OFFSET, **error_fields(error)
    )


def limit_bytes(
    results: Sequence[DisklessFindBatchesPartitionResponse], max_bytes: int
) -> list[DisklessFindBatchesPartitionResponse]:
    """Remove the batches of all partitions from the first one on that exceeds `max_bytes`; the first batch remains."""
    limited = []
    left_bytes, is_first = max_bytes, True
    for result in results:
        kept = 0
        for batch in result.batches:
            if batch.byte_size > left_bytes and not is_first:
                left_bytes = 0
                break
            left_bytes -= batch.byte_size
            is_first = False
            kept += 1
        limited.append(
            result
            if kept == len(result.batches)
            else replace(result, batches=result.batches[:kept])
        )
    return limited


# Requests with partitions by topic


class Positioned(Protocol):
    @property
    def topic_id(self) -> UUID: ...


P = TypeVar("P", bound=Positioned)


def by_topic(positions: Sequence[P]) -> dict[UUID, list[int]]:
    """Numbers of the positions of each topic: a request has each topic once."""
    topics: dict[UUID, list[int]] = {}
    for number, position in enumerate(positions):
        topics.setdefault(position.topic_id, []).append(number)
    return topics


def in_order(positions: Sequence[P], results: Sequence[R]) -> list[R]:
    """Results that are in the order of `by_topic`, in the order of the positions."""
    numbers = [number for topic in by_topic(positions).values() for number in topic]
    ordered = dict(zip(numbers, results, strict=True))
    return [ordered[number] for number in range(len(positions))]


def deletion_request(
    positions: Sequence[DeletePosition], timeout_ms: int
) -> DisklessDeleteRecordsRequest:
    return DisklessDeleteRecordsRequest(
        topics=tuple(
            [
                DisklessDeleteRecordsTopic(
                    topic_id=topic_id,
                    partitions=tuple(
                        [
                            DisklessDeleteRecordsPartition(
                                partition_index=positions[number].index,
                                offset=positions[number].offset,
                            )
                            for number in numbers
                        ]
                    ),
                )
                for topic_id, numbers in by_topic(positions).items()
            ]
        ),
        timeout_ms=timeout_ms,
    )
