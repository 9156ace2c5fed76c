"""Random files, failures and crashes: no live object is deleted, and none is left (KIP-1164, D-21 to D-23, D-25).

Coordinators on three brokers get commits at once, late, twice or never, while brokers crash or are away, coordinators
move, and the store fails. At the end everything recovers and all records are deleted: then no object is left.
"""

from __future__ import annotations

import random
from collections.abc import Awaitable, Callable
from uuid import UUID

import pytest
import trio

from odradek.broker.diskless.file_workers import FileWorkers
from odradek.broker.diskless.orphan_scan import OrphanScan
from odradek.protocol.errors import ErrorCode
from odradek.protocol.schemas.diskless_apis import DisklessCommitFileRequest
from odradek.replication.diskless.coordinator_state_machine import COMMIT_WINDOW_MS
from odradek.replication.diskless.file_ownership import permuted_owners
from odradek.seams.entropy import SeededEntropy
from odradek.storage.diskless.object_key import object_key
from odradek.testing.virtual_clock import VirtualClock
from odradek.testing.virtual_object_store import StoreFault, StoreFaultKind
from tests.support.diskless_coordinators import commit_batch
from tests.support.diskless_files import FileCluster, LeaderCrashed, topic_of

COORDINATORS = 3
ACTIONS = 40
SCAN_MS = 1_800_000
DELAYS: list[list[float]] = [
    *([0] for _ in range(3)),
    [0, 5],
    [0, 599],
    [300],
    [COMMIT_WINDOW_MS / 1000 - 1],
    [900],
    [1500],
    [],
]
"""Seconds from the upload to each commit at one owner."""
FAULTS = [
    StoreFaultKind.FAILS,
    StoreFaultKind.HANGS,
    StoreFaultKind.RESPONSE_LOST,
    StoreFaultKind.FALSE_SUCCESS,
]


@pytest.fixture
def clock() -> VirtualClock:
    return VirtualClock()


class RandomFiles:
    """The world of one seed."""

    def __init__(self, seed: int, cluster: FileCluster, nursery: trio.Nursery) -> None:
        self.source = random.Random(seed)
        self.entropy = SeededEntropy(self.source)
        self.cluster = cluster
        self.clock = cluster.clock
        self.nursery = nursery
        self.uploads = 0
        self.accepted = 0
        self.refused = 0
        self.crashes = 0
        self.errors: list[str] = []

    def start(self) -> None:
        self.cluster.objects.on_delete = self.check_deletion
        for broker_id in range(COORDINATORS):
            self.nursery.start_soon(self.work, broker_id)
        scan = OrphanScan(
            leads=lambda coordinator_id: self.cluster.replicas[coordinator_id].coordinator.serves,
            requests=self.cluster.requests,
            objects=self.cluster.objects,
            clock=self.clock,
            offload=self.cluster.offload,
            interval_ms=lambda: SCAN_MS,
            grace_ms=lambda: 0,
        )
        self.nursery.start_soon(self.keep_running, scan.run)

    async def work(self, broker_id: int) -> None:
        environment = self.cluster.environment(broker_id)
        await self.keep_running(lambda: FileWorkers(environment).run())

    async def keep_running(self, run: Callable[[], Awaitable[None]]) -> None:
        """Run a task again after a crash, which ends the coordinators of all brokers for a moment."""
        while True:
            try:
                await run()
            except* LeaderCrashed:
                self.crashes += 1
                for coordinator_id in self.cluster.replicas:
                    self.nursery.start_soon(self.cluster.elect, coordinator_id)
                await trio.sleep(1)

    def check_deletion(self, key: str) -> None:
        """Nothing that a coordinator has committed is deleted."""
        for coordinator_id, file in self.cluster.trackers(key).items():
            if file.live_batches:
                self.errors.append(f"coordinator {coordinator_id} has live batches in {key}")

    # Actions

    async def upload(self) -> None:
        """Upload a file whose commits arrive at once, late, twice, or never."""
        self.uploads += 1
        source = self.source
        key = object_key(self.clock.wall_ms(), 1, UUID(int=self.uploads))
        self.cluster.bucket.store(key, b"x")
        owners = permuted_owners(
            source.sample(range(COORDINATORS), source.randrange(1, COORDINATORS + 1)), self.entropy
        )
        for owner in owners:
            for delay_s in source.choice(DELAYS):
                self.nursery.start_soon(self.commit, key, owners, owner, delay_s)

    async def commit(self, key: str, owners: tuple[int, ...], owner: int, delay_s: float) -> None:
        await trio.sleep(delay_s)
        request = DisklessCommitFileRequest(
            object_key=key,
            object_format=1,
            file_size=1000,
            owner_ids=owners,
            batches=(commit_batch(topic_id=topic_of(owner), byte_offset=100 * owner),),
        )
        if owner in self.cluster.unreachable:
            return
        coordinator = self.cluster.replicas[owner].coordinator
        response = await coordinator.commit_file(request)
        result = response.batches[0]
        if result.error_code is not ErrorCode.none:
            self.refused += 1
            return
        self.accepted += 1
        if not result.is_duplicate and key not in self.cluster.bucket.objects:
            self.errors.append(f"coordinator {owner} committed the deleted {key}")

    async def delete_records(self) -> None:
        await self.cluster.delete_records(self.source.randrange(COORDINATORS))

    async def be_away(self) -> None:
        self.cluster.unreachable ^= {self.source.randrange(COORDINATORS)}

    async def move(self) -> None:
        coordinator_id = self.source.randrange(COORDINATORS)
        self.cluster.brokers[coordinator_id] = self.source.randrange(COORDINATORS)
        await self.cluster.elect(coordinator_id)

    async def fail_store(self) -> None:
        fault = StoreFault(
            self.source.choice(FAULTS),
            operations=("delete", "list"),
            times=self.source.randrange(1, 6),
            seconds=20.0,
        )
        self.cluster.bucket.inject(fault)

    async def crash(self) -> None:
        steps = self.cluster.steps
        steps.crash_at = steps.taken + self.source.randrange(4)

    async def run(self) -> None:
        actions = [
            (self.upload, 12),
            (self.delete_records, 6),
            (self.be_away, 1),
            (self.move, 1),
            (self.fail_store, 1),
            (self.crash, 3),
        ]
        for _ in range(ACTIONS):
            (action,) = self.source.choices(
                [each for each, _ in actions], [weight for _, weight in actions]
            )
            await action()
            await self.clock.run_for(self.source.choice([0.1, 1, 5, 30, 200, 700]))
            self.check_live_objects()
            assert not self.errors

    def check_live_objects(self) -> None:
        for replica in self.cluster.replicas.values():
            for file in replica.state.files(limit=10_000):
                if file.live_batches:
                    assert file.object_key in self.cluster.bucket.objects

    async def recover(self) -> None:
        """End all failures, delete all records, and wait until the work is done."""
        self.cluster.steps.crash_at = None
        self.cluster.unreachable.clear()
        self.cluster.bucket.heal()
        await self.clock.run_for(1000)
        for coordinator_id in range(COORDINATORS):
            await self.cluster.delete_records(coordinator_id)
        await self.clock.run_for(3 * COMMIT_WINDOW_MS / 1000 + 3 * SCAN_MS / 1000)
        assert not self.errors
        assert [each.state.files() for each in self.cluster.replicas.values()] == [[], [], []]
        assert self.cluster.bucket.objects == {}


async def run_seed(seed: int, clock: VirtualClock) -> RandomFiles:
    async with trio.open_nursery() as nursery:
        cluster = FileCluster(clock, nursery, COORDINATORS)
        await cluster.start()
        world = RandomFiles(seed, cluster, nursery)
        world.start()
        await world.run()
        await world.recover()
        nursery.cancel_scope.cancel()
    return world


async def test_no_live_object_is_deleted_and_none_is_left(clock: VirtualClock) -> None:
    world = await run_seed(0, clock)
    assert world.accepted > 10
    assert world.refused
    assert world.crashes


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(1, 60))
async def test_more_seeds(clock: VirtualClock, seed: int) -> None:
    await run_seed(seed, clock)
