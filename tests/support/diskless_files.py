"""Coordinators of diskless topics on logs in memory, with the objects of their files in a virtual store.

Coordinator N has one topic with one partition, and runs on broker N unless a test moves it.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any
from uuid import UUID

import trio

from odradek.broker.diskless.file_workers import FILE_AGE_MS, FileWorkEnvironment, FileWorkers
from odradek.protocol.errors import ErrorCode, KafkaError
from odradek.protocol.schemas.diskless_apis import (
    DisklessCommitFileRequest,
    DisklessDeleteRecordsPartition,
    DisklessDeleteRecordsRequest,
    DisklessDeleteRecordsTopic,
    DisklessDescribedCoordinator,
    DisklessDescribeFileResult,
    DisklessHandOverFileRequest,
    DisklessHandOverFileResponse,
    DisklessListFilesResponse,
)
from odradek.storage.diskless import queries
from odradek.storage.diskless.object_key import object_key
from odradek.storage.diskless.state import DisklessState, FileState
from odradek.testing.virtual_clock import VirtualClock
from odradek.testing.virtual_object_store import VirtualBucket, VirtualObjectStore
from odradek.testing.virtual_offload import VirtualOffload
from tests.support.diskless_coordinators import (
    MemoryReplicaLog,
    Replica,
    commit_batch,
    image_of,
    new_replica,
)

GRACE_MS = 60_000
FILE_AGE_SECONDS = FILE_AGE_MS / 1000 + 1


class LeaderCrashed(BaseException):
    """A test ends the leader at a step of its work."""


@dataclass
class Steps:
    """Counts the steps of the work, and crashes at one of them."""

    crash_at: int | None = None
    taken: int = 0

    def step(self) -> None:
        self.taken += 1
        if self.taken - 1 == self.crash_at:
            raise LeaderCrashed


def topic_of(coordinator_id: int) -> UUID:
    return UUID(int=100 + coordinator_id)


@dataclass
class FileCluster:
    """The coordinators, their brokers, and the store."""

    clock: VirtualClock
    nursery: trio.Nursery
    coordinators: int
    steps: Steps = field(default_factory=Steps)
    grace_ms: int = GRACE_MS
    replicas: dict[int, Replica] = field(default_factory=dict)
    scopes: dict[int, trio.CancelScope] = field(default_factory=dict)
    brokers: dict[int, int] = field(default_factory=dict)
    unreachable: set[int] = field(default_factory=set)
    """Coordinators whose broker does not respond."""
    bucket: VirtualBucket = field(default_factory=VirtualBucket)
    offload: VirtualOffload = field(default_factory=VirtualOffload)
    objects: SteppedObjectStore = field(init=False)
    requests: ClusterRequests = field(init=False)
    environments: dict[int, FileWorkEnvironment] = field(default_factory=dict)

    async def start(self) -> None:
        self.objects = SteppedObjectStore(
            self.bucket, wait=self.offload.extend_current_call, page_objects=3
        )
        self.objects.steps = self.steps
        self.requests = ClusterRequests(self)
        for coordinator_id in range(self.coordinators):
            self.brokers[coordinator_id] = coordinator_id
            await self.elect(coordinator_id)

    async def elect(self, coordinator_id: int) -> None:
        """Start a leader of a coordinator on the log of the previous one."""
        before = self.replicas.get(coordinator_id)
        if coordinator_id in self.scopes:
            self.scopes[coordinator_id].cancel()
        log = MemoryReplicaLog() if before is None else before.log
        log.commits_at_once = True
        image = image_of(
            {topic_of(each): (f"t{each}", [each]) for each in range(self.coordinators)}
        )
        replica = new_replica(log, image=image, coordinator_id=coordinator_id, clock=self.clock)
        if before is not None:
            before.coordinator.lead_since(-1)
            log.leader_epoch += 1
        replica.coordinator.lead_since(log.leader_epoch)
        self.replicas[coordinator_id] = replica
        scope = self.scopes[coordinator_id] = trio.CancelScope()

        async def run() -> None:
            with scope:
                await replica.coordinator.run()

        self.nursery.start_soon(run)
        await self.clock.settle()

    def state(self, coordinator_id: int) -> DisklessState:
        return self.replicas[coordinator_id].state

    def led_by(self, broker_id: int) -> list[Any]:
        """Coordinators of a broker, as its workers see them."""
        return [
            SteppedCoordinator(self.replicas[each].coordinator, self.steps)
            for each, broker in self.brokers.items()
            if broker == broker_id
        ]

    # Work on files

    def environment(self, broker_id: int) -> FileWorkEnvironment:
        led: dict[int, Any] = {}

        def current() -> list[Any]:
            # the workers compare coordinators by identity
            for each in self.led_by(broker_id):
                known = led.get(each.coordinator_id)
                if known is None or known.coordinator is not each.coordinator:
                    led[each.coordinator_id] = each
            return [led[key] for key in led if self.brokers[key] == broker_id]

        return FileWorkEnvironment(
            led=current,
            requests=self.requests,
            objects=self.objects,
            clock=self.clock,
            offload=self.offload,
            grace_ms=lambda: self.grace_ms,
        )

    @asynccontextmanager
    async def working(self, *broker_ids: int) -> AsyncIterator[None]:
        """Run the workers of brokers, by default of all."""
        async with trio.open_nursery() as nursery:
            for broker_id in broker_ids or sorted(set(self.brokers.values())):
                environment = self.environments[broker_id] = self.environment(broker_id)
                nursery.start_soon(FileWorkers(environment).run)
            yield
            nursery.cancel_scope.cancel()

    async def work_until_crash(self, seconds: float) -> bool:
        """Run the workers; returns whether one of them crashed."""
        crashed = False
        try:
            async with self.working():
                await self.clock.run_for(seconds)
        except* LeaderCrashed:
            crashed = True
        return crashed

    # Files

    async def commit(
        self, number: int, owners: Sequence[int], *, at: Sequence[int] | None = None
    ) -> str:
        """Upload a file with a batch of each owner, and commit it at them, or `at` some of them."""
        key = object_key(self.clock.wall_ms(), 1, UUID(int=number))
        self.bucket.store(key, b"x" * 100)
        for owner in owners if at is None else at:
            request = DisklessCommitFileRequest(
                object_key=key,
                object_format=1,
                file_size=1000,
                owner_ids=tuple(owners),
                batches=(commit_batch(topic_id=topic_of(owner), byte_offset=100 * owner),),
            )
            response = await self.call(
                lambda request=request, owner=owner: (  # type: ignore[misc]
                    self.replicas[owner].coordinator.commit_file(request)
                )
            )
            assert not response.batches[0].error_code, response
        return key

    async def delete_records(self, coordinator_id: int) -> None:
        """Delete all records of the coordinator's partition."""
        partition = DisklessDeleteRecordsPartition(partition_index=0, offset=-1)
        topic = DisklessDeleteRecordsTopic(
            topic_id=topic_of(coordinator_id), partitions=(partition,)
        )
        request = DisklessDeleteRecordsRequest(topics=(topic,))
        coordinator = self.replicas[coordinator_id].coordinator
        await self.call(lambda: coordinator.delete_records(request))

    async def call(self, call: Callable[[], Awaitable[Any]]) -> Any:
        """Await a call of a coordinator in virtual time."""
        results: list[Any] = []

        async def run() -> None:
            results.append(await call())

        self.nursery.start_soon(run)
        await self.clock.settle()
        return results[0]

    def trackers(self, key: str) -> dict[int, FileState]:
        """The coordinators that track a file."""
        found = {each: self.state(each).file(key) for each in self.replicas}
        return {each: file for each, file in found.items() if file is not None}


class SteppedCoordinator:
    """A coordinator as the workers use it: each change is a step before and after it."""

    def __init__(self, coordinator: Any, steps: Steps) -> None:
        self.coordinator = coordinator
        self._steps = steps

    def __getattr__(self, name: str) -> Any:
        return getattr(self.coordinator, name)

    async def take_ownership(
        self, request: DisklessHandOverFileRequest
    ) -> DisklessHandOverFileResponse:
        self._steps.step()
        response: DisklessHandOverFileResponse = await self.coordinator.take_ownership(request)
        self._steps.step()
        return response

    async def remove_file(self, object_key: str) -> bool:
        self._steps.step()
        removed: bool = await self.coordinator.remove_file(object_key)
        self._steps.step()
        return removed


class SteppedObjectStore(VirtualObjectStore):
    """Store whose deletions are steps."""

    steps: Steps
    on_delete: Callable[[str], None] = staticmethod(lambda key: None)

    def delete(self, key: str) -> None:
        self.steps.step()
        self.on_delete(key)
        super().delete(key)
        self.steps.step()


class ClusterRequests:
    """`OwnerRequests` without a network. Like the real ones, a request reaches all coordinators of a broker."""

    def __init__(self, cluster: FileCluster) -> None:
        self._cluster = cluster
        self.sent: list[tuple[str, int]] = []

    def coordinator_ids(self) -> Sequence[int]:
        return sorted(self._cluster.replicas)

    def leader_of(self, coordinator_id: int) -> int:
        return self._cluster.brokers[coordinator_id]

    def _check(self, name: str, coordinator_id: int) -> None:
        self.sent.append((name, coordinator_id))
        if coordinator_id in self._cluster.unreachable:
            raise KafkaError(ErrorCode.network_exception, f"broker of {coordinator_id} is away")

    async def hand_over_file(
        self, request: DisklessHandOverFileRequest
    ) -> DisklessHandOverFileResponse:
        cluster = self._cluster
        cluster.steps.step()
        try:
            self._check("hand over", request.coordinator_id)
            coordinator = cluster.replicas[request.coordinator_id].coordinator
            response = await coordinator.take_ownership(request)
        except KafkaError as error:
            return DisklessHandOverFileResponse(error_code=error.code, error_message=error.message)
        cluster.steps.step()
        return response

    async def describe_files(
        self, coordinator_id: int, keys: Sequence[str]
    ) -> Sequence[DisklessDescribeFileResult]:
        cluster = self._cluster
        self._check("describe files", coordinator_id)
        broker_id = cluster.brokers[coordinator_id]
        known: dict[str, DisklessDescribeFileResult] = {}
        for each, broker in cluster.brokers.items():
            if broker == broker_id:
                for result in queries.describe_files(cluster.state(each), keys):
                    if result.error_code is ErrorCode.none or result.object_key not in known:
                        known[result.object_key] = result
        return [known[key] for key in keys]

    async def describe_coordinator(self, coordinator_id: int) -> DisklessDescribedCoordinator:
        oldest_ms: int | None = None
        error = ErrorCode.none
        try:
            self._check("describe coordinator", coordinator_id)
            oldest_ms = self._cluster.state(coordinator_id).oldest_file_ms()
        except KafkaError as failure:
            error = failure.code
        return DisklessDescribedCoordinator(
            coordinator_id=coordinator_id,
            error_code=error,
            is_leader=error is ErrorCode.none,
            leader_epoch=self._cluster.replicas[coordinator_id].log.leader_epoch,
            partitions=1,
            batches=0,
            live_bytes=0,
            files=0,
            files_to_hand_over=0,
            files_to_delete=0,
            oldest_file_ms=self._cluster.clock.wall_ms() if oldest_ms is None else oldest_ms,
        )

    async def list_files(
        self, coordinator_id: int, after: str = "", max_files: int = 1000
    ) -> DisklessListFilesResponse:
        self._check("list files", coordinator_id)
        files = queries.list_files(
            self._cluster.state(coordinator_id),
            coordinator_id=coordinator_id,
            after=after,
            max_files=max_files,
        )
        return DisklessListFilesResponse(files=tuple(files))
