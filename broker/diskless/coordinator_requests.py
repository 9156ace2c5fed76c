"""Requests of this broker to the coordinators of diskless topics, wherever they are (KIP-1164, D-13, D-24).

The metadata image has the coordinator of each partition (D-14) and the leader of each partition of
`__diskless_metadata`. All items for one broker are sent in one request; those for coordinators on this broker are
handled without one. An item is sent again, to the leader of that time, while its error is retriable and the time limit
allows it. Then the caller gets the last error.

A commit is sent again with the same object key, also if its outcome is unknown: the coordinator recognises batches of a
file that it has committed before, so that none is committed twice. A commit that ends with a retriable error may still
take effect later.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Collection, Sequence
from typing import TYPE_CHECKING, Any, Final, Protocol, TypeVar
from uuid import UUID

from odradek.broker.coordination.internal_topics import DISKLESS_METADATA_TOPIC
from odradek.broker.diskless.coordinator import CoordinatorNotAvailable
from odradek.broker.diskless.coordinator_service import (
    NOTHING_DESCRIBED,
    CoordinatorService,
    DeletePosition,
    by_topic,
    coordinator_of,
    deletion_request,
    error_fields,
    failed_commit,
    failed_deletion,
    failed_find,
    failed_offset,
    in_order,
    in_parallel,
    limit_bytes,
)
from odradek.client.errors import ClientError
from odradek.protocol import apis
from odradek.protocol.errors import ErrorCode, KafkaError
from odradek.protocol.schemas.diskless_apis import (
    DisklessCommitBatchResult,
    DisklessCommitFileRequest,
    DisklessCreatablePartitions,
    DisklessCreatePartitionsRequest,
    DisklessDeleteRecordsPartitionResult,
    DisklessDescribeCoordinatorsRequest,
    DisklessDescribedCoordinator,
    DisklessDescribeFileEntry,
    DisklessDescribeFileResult,
    DisklessDescribeFilesRequest,
    DisklessFetchSnapshotRequest,
    DisklessFetchSnapshotResponse,
    DisklessFindBatchesPartition,
    DisklessFindBatchesPartitionResponse,
    DisklessFindBatchesRequest,
    DisklessFindBatchesTopic,
    DisklessHandOverFileRequest,
    DisklessHandOverFileResponse,
    DisklessListFilesRequest,
    DisklessListFilesResponse,
    DisklessListOffsetsPartition,
    DisklessListOffsetsPartitionResponse,
    DisklessListOffsetsRequest,
    DisklessListOffsetsTopic,
)
from odradek.replication.controller.image import NO_LEADER
from odradek.storage.diskless.queries import FindPosition, TimestampPosition

if TYPE_CHECKING:
    import trio

    from odradek.protocol.apis import Api
    from odradek.replication.controller.image import MetadataDelta, MetadataImage
    from odradek.seams.clock import Clock

log = logging.getLogger("odradek.diskless")

P = TypeVar("P")
R = TypeVar("R")
BACKOFF_SECONDS: Final = 0.02
BACKOFF_SECONDS_MAX: Final = 0.5
"""Pause before items are sent again; it doubles up to the maximum."""
ATTEMPT_SECONDS: Final = 10.0
"""Time limit of one request. After it, the items may be sent to another leader."""
TIMEOUT_SECONDS: Final = 10.0
"""Time limit of an operation if the caller sets none."""
RETRIABLE: Final = frozenset(
    {
        ErrorCode.not_coordinator,
        ErrorCode.coordinator_not_available,
        ErrorCode.coordinator_load_in_progress,
        ErrorCode.network_exception,
    }
)
UNKNOWN: Final = frozenset({ErrorCode.unknown_topic_id, ErrorCode.unknown_topic_or_partition})
"""Errors that are retried while this broker's metadata image has the partition: the coordinator will create it."""


class NetworkException(KafkaError):
    """A broker did not respond; it may have handled the request."""

    code = ErrorCode.network_exception


class Connections(Protocol):
    """The part of BrokerConnections that is used."""

    def start(self, nursery: trio.Nursery) -> None: ...

    def brokers_changed(self) -> None: ...

    async def request(self, broker_id: int, api: Api, values: Any, *, timeout_s: float) -> Any: ...


class CoordinatorRequests:
    """Sends requests to coordinators; `start` comes first. No method raises for an unreachable broker."""

    def __init__(
        self,
        broker_id: int,
        image: Callable[[], MetadataImage],
        clock: Clock,
        service: CoordinatorService,
        notify: Callable[[UUID, int], None],
        connections: Callable[[str], Connections],
    ) -> None:
        """`service` handles requests of this broker; `notify` is called with partitions whose batches other brokers have
        committed for this one. `connections` returns those for one purpose: a broker handles the requests of a
        connection in order, and commits wait for replicas."""
        self._broker_id = broker_id
        self._image = image
        self._clock = clock
        self._service = service
        self._notify = notify
        self._commits, self._reads, self._others, self._snapshots = self._connections = [
            connections(purpose) for purpose in ("commits", "reads", "files", "snapshots")
        ]
        self.sent = 0
        """Number of requests to other brokers (D-24)."""

    def start(self, nursery: trio.Nursery) -> None:
        """Run the connections in `nursery`."""
        for connections in self._connections:
            connections.start(nursery)

    def metadata_changed(self, delta: MetadataDelta) -> None:
        """Close the connections to brokers that were fenced or moved."""
        if delta.changed_brokers:
            for connections in self._connections:
                connections.brokers_changed()

    # Routing

    def coordinator_of(self, topic_id: UUID, index: int) -> int | None:
        """The coordinator of a partition (D-14); None if the metadata image has no such diskless partition."""
        try:
            return coordinator_of(self._image(), topic_id, index)
        except KafkaError:
            return None

    def leader_of(self, coordinator_id: int) -> int:
        """The broker that leads this partition of `__diskless_metadata`; -1 if there is none."""
        image = self._image()
        partition = image.partition(DISKLESS_METADATA_TOPIC, coordinator_id)
        if partition is None:
            return NO_LEADER
        broker = image.brokers.get(partition.leader)
        return NO_LEADER if broker is None or broker.fenced else partition.leader

    def replicas_of(self, coordinator_id: int) -> Sequence[int]:
        """The unfenced brokers with a replica of this partition of `__diskless_metadata`, the leader first."""
        image = self._image()
        partition = image.partition(DISKLESS_METADATA_TOPIC, coordinator_id)
        if partition is None:
            return ()
        alive = [
            broker_id
            for broker_id in partition.replicas
            if broker_id in image.brokers and not image.brokers[broker_id].fenced
        ]
        return sorted(alive, key=lambda broker_id: broker_id != partition.leader)

    def in_sync_replicas_of(self, coordinator_id: int) -> Sequence[int]:
        """The brokers in the ISR of this partition of `__diskless_metadata`."""
        partition = self._image().partition(DISKLESS_METADATA_TOPIC, coordinator_id)
        return () if partition is None else partition.isr

    def coordinator_ids(self) -> Sequence[int]:
        """All coordinators of the cluster."""
        topic = self._image().topics_by_name.get(DISKLESS_METADATA_TOPIC)
        return () if topic is None else sorted(topic.partitions)

    # Requests by partition

    async def commit_file(
        self, request: DisklessCommitFileRequest
    ) -> Sequence[DisklessCommitBatchResult]:
        """Commit the batches of a file at their coordinators (D-05); results are in the order of the batches.

        `timeout_ms` of the request limits all attempts. A batch whose error is retriable may be committed later.
        """

        async def commit(
            broker_id: int, positions: Sequence[int], timeout_s: float
        ) -> Sequence[DisklessCommitBatchResult]:
            part = DisklessCommitFileRequest(
                object_key=request.object_key,
                object_format=request.object_format,
                file_size=request.file_size,
                owner_ids=request.owner_ids,
                batches=tuple([request.batches[position] for position in positions]),
                timeout_ms=int(timeout_s * 1000),
            )
            if broker_id == self._broker_id:
                return (await self._service.commit_file(part)).batches
            response = await self._send(
                self._commits, broker_id, apis.DISKLESS_COMMIT_FILE, part, timeout_s
            )
            for position, result in zip(positions, response.batches, strict=False):
                if result.error_code is ErrorCode.none:
                    batch = request.batches[position]
                    self._notify(batch.topic_id, batch.partition_index)
            return tuple(response.batches)

        return await self._by_leader(
            [(batch.topic_id, batch.partition_index) for batch in request.batches],
            commit,
            lambda position, error: failed_commit(error),
            request.timeout_ms / 1000,
        )

    async def find_batches(
        self,
        positions: Sequence[FindPosition],
        *,
        max_bytes: int,
        max_batches: int = 0,
        strict: bool = False,
        timeout_s: float = TIMEOUT_SECONDS,
    ) -> Sequence[DisklessFindBatchesPartitionResponse]:
        """Find batches (D-10), in the order of the positions.

        The state of a replica on this broker is used if there is one, and may be stale. `strict`: the leaders are asked,
        as for partitions that the replica does not know yet. `max_bytes` limits all positions together.
        """
        timeout_ms = int(timeout_s * 1000)
        local: dict[int, DisklessFindBatchesPartitionResponse] = {}
        here = [] if strict else [n for n, each in enumerate(positions) if self._is_here(each)]
        if here:
            found = await self._service.find_batches(
                [positions[number] for number in here],
                max_bytes=max_bytes,
                max_batches=max_batches,
                timeout_ms=timeout_ms,
            )
            local = {
                number: result
                for number, result in zip(here, found, strict=True)
                if result.error_code not in RETRIABLE | UNKNOWN
            }
            if len(local) == len(positions):
                return found
        others = [number for number in range(len(positions)) if number not in local]
        asked = [positions[number] for number in others]

        async def find(
            broker_id: int, wanted: Sequence[int], seconds: float
        ) -> Sequence[DisklessFindBatchesPartitionResponse]:
            return await self._find_at(
                broker_id, [asked[each] for each in wanted], max_bytes, max_batches, seconds
            )

        remote = await self._by_leader(
            [(position.topic_id, position.index) for position in asked],
            find,
            lambda position, error: failed_find(asked[position], error),
            timeout_s,
        )
        results = {**local, **dict(zip(others, remote, strict=True))}
        return limit_bytes([results[number] for number in range(len(positions))], max_bytes)

    async def find_at_isr(
        self, positions: Sequence[FindPosition], *, timeout_s: float = TIMEOUT_SECONDS
    ) -> Sequence[Sequence[DisklessFindBatchesPartitionResponse]]:
        """Find at most one batch of each position at every member of the ISR of its coordinator's partition.

        A leader that was replaced and does not know it cannot reach the others, so that their results are errors.
        """
        image = self._image()
        by_broker: dict[int, list[int]] = {}
        results: list[list[DisklessFindBatchesPartitionResponse]] = [[] for _ in positions]
        for number, position in enumerate(positions):
            coordinator_id = self.coordinator_of(position.topic_id, position.index)
            if coordinator_id is not None:
                partition = image.partition(DISKLESS_METADATA_TOPIC, coordinator_id)
                for broker_id in () if partition is None else partition.isr:
                    by_broker.setdefault(broker_id, []).append(number)

        async def ask(broker_id: int, numbers: Sequence[int]) -> None:
            asked = [positions[number] for number in numbers]
            found: Sequence[DisklessFindBatchesPartitionResponse]
            try:
                found = await self._find_at(broker_id, asked, 1, 1, timeout_s)
            except KafkaError as error:
                found = [failed_find(position, error) for position in asked]
            for number, each in zip(numbers, found, strict=True):
                results[number].append(each)

        await in_parallel(ask, by_broker.items())
        return results

    def _is_here(self, position: FindPosition) -> bool:
        coordinator_id = self.coordinator_of(position.topic_id, position.index)
        if coordinator_id is None:
            return False
        coordinator = self._service.coordinators.find(coordinator_id)
        return coordinator is not None and coordinator.has_state

    async def _find_at(
        self,
        broker_id: int,
        positions: Sequence[FindPosition],
        max_bytes: int,
        max_batches: int,
        timeout_s: float,
    ) -> Sequence[DisklessFindBatchesPartitionResponse]:
        timeout_ms = int(timeout_s * 1000)
        if broker_id == self._broker_id:
            return await self._service.find_batches(
                positions, max_bytes=max_bytes, max_batches=max_batches, timeout_ms=timeout_ms
            )
        request = DisklessFindBatchesRequest(
            fetch_max_bytes=max_bytes,
            max_batches_per_partition=max_batches,
            topics=tuple(
                [
                    DisklessFindBatchesTopic(
                        topic_id=topic_id,
                        partitions=tuple(
                            [
                                DisklessFindBatchesPartition(
                                    partition_index=positions[number].index,
                                    offset=positions[number].offset,
                                    max_partition_fetch_bytes=positions[number].max_bytes,
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
        response = await self._send(
            self._reads, broker_id, apis.DISKLESS_FIND_BATCHES, request, timeout_s
        )
        return in_order(positions, [each for topic in response.topics for each in topic.partitions])

    async def list_offsets(
        self, positions: Sequence[TimestampPosition], *, timeout_s: float = TIMEOUT_SECONDS
    ) -> Sequence[DisklessListOffsetsPartitionResponse]:
        """List offsets at the leaders (D-09), in the order of the positions."""

        async def list_them(
            broker_id: int, wanted: Sequence[int], seconds: float
        ) -> Sequence[DisklessListOffsetsPartitionResponse]:
            asked = [positions[position] for position in wanted]
            timeout_ms = int(seconds * 1000)
            if broker_id == self._broker_id:
                return await self._service.list_offsets(asked, timeout_ms=timeout_ms)
            request = DisklessListOffsetsRequest(
                topics=tuple(
                    [
                        DisklessListOffsetsTopic(
                            topic_id=topic_id,
                            partitions=tuple(
                                [
                                    DisklessListOffsetsPartition(
                                        partition_index=asked[number].index,
                                        timestamp=asked[number].timestamp_ms,
                                    )
                                    for number in numbers
                                ]
                            ),
                        )
                        for topic_id, numbers in by_topic(asked).items()
                    ]
                ),
                timeout_ms=timeout_ms,
            )
            response = await self._send(
                self._reads, broker_id, apis.DISKLESS_LIST_OFFSETS, request, seconds
            )
            return in_order(asked, [each for topic in response.topics for each in topic.partitions])

        return await self._by_leader(
            [(position.topic_id, position.index) for position in positions],
            list_them,
            lambda position, error: failed_offset(positions[position], error),
            timeout_s,
        )

    async def delete_records(
        self, positions: Sequence[DeletePosition], *, timeout_s: float = TIMEOUT_SECONDS
    ) -> Sequence[DisklessDeleteRecordsPartitionResult]:
        """Delete records below offsets (D-08), in the order of the positions."""

        async def delete(
            broker_id: int, wanted: Sequence[int], seconds: float
        ) -> Sequence[DisklessDeleteRecordsPartitionResult]:
            asked = [positions[position] for position in wanted]
            timeout_ms = int(seconds * 1000)
            if broker_id == self._broker_id:
                return await self._service.delete_records(asked, timeout_ms=timeout_ms)
            request = deletion_request(asked, timeout_ms)
            response = await self._send(
                self._commits, broker_id, apis.DISKLESS_DELETE_RECORDS, request, seconds
            )
            return in_order(asked, [each for topic in response.topics for each in topic.partitions])

        return await self._by_leader(
            [(position.topic_id, position.index) for position in positions],
            delete,
            lambda position, error: failed_deletion(positions[position], error),
            timeout_s,
        )

    async def _by_leader(
        self,
        partitions: Sequence[tuple[UUID, int]],
        send: Callable[[int, Sequence[int], float], Awaitable[Sequence[R]]],
        failed: Callable[[int, KafkaError], R],
        timeout_s: float,
    ) -> list[R]:
        """Send the items at positions of `partitions` to their coordinators' brokers, again while they can be retried."""
        deadline = self._clock.monotonic() + timeout_s
        results: dict[int, R] = {}
        todo: Collection[int] = range(len(partitions))
        backoff = BACKOFF_SECONDS
        while True:
            left_s = max(deadline - self._clock.monotonic(), 0.001)
            brokers = self._group(partitions, todo, failed, results)

            async def send_part(
                broker_id: int,
                positions: Sequence[int],
                seconds: float = min(left_s, ATTEMPT_SECONDS),
            ) -> None:
                try:
                    found = await send(broker_id, positions, seconds)
                    if len(found) != len(positions):
                        raise NetworkException(f"broker {broker_id} sent {len(found)} results")
                except (ClientError, KafkaError) as error:
                    log.debug(
                        "A request to the coordinators on broker %d failed: %s", broker_id, error
                    )
                    refused = (
                        error if isinstance(error, KafkaError) else NetworkException(str(error))
                    )
                    results.update({each: failed(each, refused) for each in positions})
                    return
                results.update(zip(positions, found, strict=True))

            await in_parallel(send_part, brokers.items())
            todo = [each for each in todo if self._is_retriable(partitions[each], results[each])]
            if not todo or self._clock.monotonic() + backoff >= deadline:
                return [results[position] for position in range(len(partitions))]
            await self._create_unknown(partitions, todo, results)
            await self._clock.sleep(backoff)
            backoff = min(2 * backoff, BACKOFF_SECONDS_MAX)

    def _group(
        self,
        partitions: Sequence[tuple[UUID, int]],
        positions: Collection[int],
        failed: Callable[[int, KafkaError], R],
        results: dict[int, R],
    ) -> dict[int, list[int]]:
        """Positions by the broker that leads their coordinator; those without one fail."""
        image = self._image()
        brokers: dict[int, list[int]] = {}
        for position in positions:
            try:
                coordinator_id = coordinator_of(image, *partitions[position])
            except KafkaError as error:
                results[position] = failed(position, error)
                continue
            leader = self.leader_of(coordinator_id)
            if leader == NO_LEADER:
                no_leader = CoordinatorNotAvailable(
                    f"{DISKLESS_METADATA_TOPIC}-{coordinator_id} has no leader"
                )
                results[position] = failed(position, no_leader)
            else:
                brokers.setdefault(leader, []).append(position)
        return brokers

    def _is_retriable(self, partition: tuple[UUID, int], result: Any) -> bool:
        code = result.error_code
        return code in RETRIABLE or (
            code in UNKNOWN and self.coordinator_of(*partition) is not None
        )

    async def _create_unknown(
        self,
        partitions: Sequence[tuple[UUID, int]],
        positions: Collection[int],
        results: dict[int, R],
    ) -> None:
        """Ask coordinators to create the partitions that they do not know but this broker's metadata image has (D-03)."""
        by_broker: dict[int, dict[UUID, DisklessCreatablePartitions]] = {}
        image = self._image()
        for position in positions:
            topic_id, index = partitions[position]
            topic = image.topics_by_id.get(topic_id)
            result: Any = results[position]
            coordinator_id = self.coordinator_of(topic_id, index)
            if topic is None or coordinator_id is None or result.error_code not in UNKNOWN:
                continue
            leader = self.leader_of(coordinator_id)
            if leader != NO_LEADER:
                by_broker.setdefault(leader, {})[topic_id] = DisklessCreatablePartitions(
                    topic_id=topic_id, name=topic.name, num_partitions=len(topic.partitions)
                )

        async def create(broker_id: int, topics: dict[UUID, DisklessCreatablePartitions]) -> None:
            request = DisklessCreatePartitionsRequest(
                topics=tuple(topics.values()), timeout_ms=int(ATTEMPT_SECONDS * 1000)
            )
            if broker_id == self._broker_id:
                await self._service.create_partitions(request)
                return
            try:
                await self._send(
                    self._commits,
                    broker_id,
                    apis.DISKLESS_CREATE_PARTITIONS,
                    request,
                    ATTEMPT_SECONDS,
                )
            except KafkaError as error:
                log.debug("Partitions were not created by broker %d: %s", broker_id, error)

        await in_parallel(create, by_broker.items())

    # Requests to one coordinator

    async def describe_files(
        self, coordinator_id: int, keys: Sequence[str], *, timeout_s: float = TIMEOUT_SECONDS
    ) -> Sequence[DisklessDescribeFileResult]:
        """Whether a coordinator tracks files (D-11). RESOURCE_NOT_FOUND: it does not.

        API 100 has no field for the coordinator: a broker responds for all that it leads. So this one must have the same
        leader and leader epoch before and after. Raises KafkaError otherwise.
        """
        before = await self.describe_coordinator(coordinator_id, timeout_s=timeout_s)
        if before.error_code is not ErrorCode.none or not before.is_leader:
            raise KafkaError(
                before.error_code or ErrorCode.not_coordinator, before.error_message or ""
            )
        broker_id = self.leader_of(coordinator_id)
        request = DisklessDescribeFilesRequest(
            files=tuple([DisklessDescribeFileEntry(object_key=key) for key in keys]),
            timeout_ms=int(timeout_s * 1000),
        )
        if broker_id == self._broker_id:
            response = await self._service.describe_files(request)
        else:
            response = await self._send(
                self._others, broker_id, apis.DISKLESS_DESCRIBE_FILES, request, timeout_s
            )
        after = await self.describe_coordinator(coordinator_id, timeout_s=timeout_s)
        if (
            not after.is_leader
            or after.leader_epoch != before.leader_epoch
            or self.leader_of(coordinator_id) != broker_id
            or [file.object_key for file in response.files] != list(keys)
        ):
            raise KafkaError(
                ErrorCode.not_coordinator,
                f"the leader of {DISKLESS_METADATA_TOPIC}-{coordinator_id} changed during the request",
            )
        return tuple(response.files)

    async def hand_over_file(
        self, request: DisklessHandOverFileRequest, *, timeout_s: float = TIMEOUT_SECONDS
    ) -> DisklessHandOverFileResponse:
        """Make a coordinator the owner of a file (D-21)."""
        broker_id = self.leader_of(request.coordinator_id)
        if broker_id == self._broker_id:
            return await self._service.hand_over_file(request)
        try:
            response: DisklessHandOverFileResponse = await self._send(
                self._others, broker_id, apis.DISKLESS_HAND_OVER_FILE, request, timeout_s
            )
        except KafkaError as error:
            return DisklessHandOverFileResponse(**error_fields(error))
        return response

    async def describe_coordinator(
        self, coordinator_id: int, *, timeout_s: float = TIMEOUT_SECONDS
    ) -> DisklessDescribedCoordinator:
        """Describe a coordinator at its leader."""
        broker_id = self.leader_of(coordinator_id)
        request = DisklessDescribeCoordinatorsRequest(
            coordinator_ids=(coordinator_id,), timeout_ms=int(timeout_s * 1000)
        )
        if broker_id == self._broker_id:
            response = await self._service.describe_coordinators(request)
        else:
            try:
                response = await self._send(
                    self._others, broker_id, apis.DISKLESS_DESCRIBE_COORDINATORS, request, timeout_s
                )
            except KafkaError as error:
                return DisklessDescribedCoordinator(
                    coordinator_id=coordinator_id, **NOTHING_DESCRIBED, **error_fields(error)
                )
        described: DisklessDescribedCoordinator = response.coordinators[0]
        return described

    async def list_files(
        self, coordinator_id: int, after: str = "", max_files: int = 1000
    ) -> DisklessListFilesResponse:
        """Files that a coordinator tracks, at its leader."""
        broker_id = self.leader_of(coordinator_id)
        request = DisklessListFilesRequest(
            coordinator_id=coordinator_id, after=after, max_files=max_files
        )
        if broker_id == self._broker_id:
            return await self._service.list_files(request)
        try:
            response: DisklessListFilesResponse = await self._send(
                self._others, broker_id, apis.DISKLESS_LIST_FILES, request, TIMEOUT_SECONDS
            )
        except KafkaError as error:
            return DisklessListFilesResponse(**error_fields(error))
        return response

    async def fetch_snapshot(
        self, broker_id: int, request: DisklessFetchSnapshotRequest
    ) -> DisklessFetchSnapshotResponse:
        """A part of the snapshot that another broker has (D-20). Raises KafkaError."""
        response: DisklessFetchSnapshotResponse = await self._send(
            self._snapshots, broker_id, apis.DISKLESS_FETCH_SNAPSHOT, request, TIMEOUT_SECONDS
        )
        return response

    async def _send(
        self,
        connections: Connections,
        broker_id: int,
        api: Api,
        request: Any,
        timeout_s: float,
    ) -> Any:
        """Send a request to another broker. Raises KafkaError."""
        if broker_id == NO_LEADER:
            raise CoordinatorNotAvailable("the coordinator has no leader")
        self.sent += 1
        try:
            return await connections.request(broker_id, api, request, timeout_s=timeout_s)
        except ClientError as error:
            raise NetworkException(str(error)) from error
