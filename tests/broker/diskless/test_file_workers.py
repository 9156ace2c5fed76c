"""Hand-over and deletion of WAL files in the background (KIP-1164, D-21, D-22)."""

from __future__ import annotations

import itertools
import logging
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager

import pytest
import trio

from odradek.storage.diskless.memory_state import MemoryDisklessState
from odradek.storage.diskless.state import FileStatus
from odradek.testing.virtual_clock import VirtualClock
from odradek.testing.virtual_object_store import StoreFault, StoreFaultKind
from tests.support.diskless_files import (
    FILE_AGE_SECONDS,
    GRACE_MS,
    FileCluster,
    Steps,
)

HOUR = 3600.0


@pytest.fixture
def clock() -> VirtualClock:
    return VirtualClock()


NewCluster = Callable[..., AbstractAsyncContextManager[FileCluster]]


@pytest.fixture
def new_cluster(clock: VirtualClock) -> NewCluster:
    @asynccontextmanager
    async def make(coordinators: int = 3, steps: Steps | None = None) -> AsyncIterator[FileCluster]:
        async with trio.open_nursery() as nursery:
            cluster = FileCluster(clock, nursery, coordinators, steps or Steps())
            await cluster.start()
            yield cluster
            nursery.cancel_scope.cancel()

    return make


async def test_file_is_handed_from_owner_to_owner_and_deleted(
    new_cluster: NewCluster, clock: VirtualClock
) -> None:
    """D-21: the order of the owners decides who deletes; the object stays while anyone has live batches."""
    async with new_cluster() as cluster:
        key = await cluster.commit(1, (2, 0, 1))
        await clock.run_for(FILE_AGE_SECONDS)
        async with cluster.working():
            for owner, remaining in ((2, {0, 1}), (0, {1})):
                await cluster.delete_records(owner)
                await clock.run_for(10)
                assert set(cluster.trackers(key)) == remaining
                assert key in cluster.bucket.objects
            await cluster.delete_records(1)
            await clock.run_for(GRACE_MS / 1000 - 1)
            assert key in cluster.bucket.objects
            await clock.run_for(10)
        assert cluster.bucket.objects == {}
        assert cluster.trackers(key) == {}


@pytest.mark.parametrize("order", list(itertools.permutations(range(3))))
async def test_object_lives_as_long_as_any_batch(
    new_cluster: NewCluster, clock: VirtualClock, order: tuple[int, ...]
) -> None:
    """D-21, D-22: whichever coordinator's records are deleted last."""
    async with new_cluster() as cluster:
        key = await cluster.commit(1, (0, 1, 2))
        await clock.run_for(FILE_AGE_SECONDS)
        async with cluster.working():
            for coordinator_id in order:
                assert key in cluster.bucket.objects
                await cluster.delete_records(coordinator_id)
                await clock.run_for(2 * GRACE_MS / 1000)
        assert cluster.bucket.objects == {}
        assert cluster.trackers(key) == {}


async def test_file_is_kept_while_it_could_be_committed(
    new_cluster: NewCluster, clock: VirtualClock
) -> None:
    """A commit that is retried after the hand-over would bring back live batches."""
    async with new_cluster() as cluster:
        key = await cluster.commit(1, (0, 1))
        for owner in (0, 1):
            await cluster.delete_records(owner)
        async with cluster.working():
            await clock.run_for(FILE_AGE_SECONDS - 10)
            assert set(cluster.trackers(key)) == {0, 1}
            assert key in cluster.bucket.objects
            await clock.run_for(20 + GRACE_MS / 1000)
            assert cluster.bucket.objects == {}


async def test_coordinator_without_commit_is_an_owner_too(
    new_cluster: NewCluster, clock: VirtualClock
) -> None:
    """D-21: the commit never arrived at the next owner, which takes the file over all the same."""
    async with new_cluster() as cluster:
        key = await cluster.commit(1, (0, 1, 2), at=(0, 2))
        await clock.run_for(FILE_AGE_SECONDS)
        async with cluster.working():
            await cluster.delete_records(0)
            await clock.run_for(20)
            assert set(cluster.trackers(key)) == {2}
            assert cluster.trackers(key)[2].is_owner
            await cluster.delete_records(2)
            await clock.run_for(2 * GRACE_MS / 1000)
        assert cluster.bucket.objects == {}


@pytest.mark.parametrize("colocated", [(), (0, 1), (0, 2), (1, 2)])
@pytest.mark.parametrize("known_at", [(1,), (2,), (1, 2)])
async def test_file_that_its_first_owners_do_not_know_gets_an_owner(
    new_cluster: NewCluster,
    clock: VirtualClock,
    colocated: tuple[int, ...],
    known_at: tuple[int, ...],
) -> None:
    """D-21: the broker crashed between its commits. Otherwise the file would wait for ever."""
    async with new_cluster() as cluster:
        for (
            coordinator_id
        ) in colocated:  # API 100 does not distinguish the coordinators of a broker
            cluster.brokers[coordinator_id] = 7
        key = await cluster.commit(1, (0, 1, 2), at=known_at)
        other = await cluster.commit(2, (0, 1, 2))
        await clock.run_for(FILE_AGE_SECONDS)
        async with cluster.working():
            await clock.run_for(30)
            owners = [each for each, file in cluster.trackers(key).items() if file.is_owner]
            assert owners == [known_at[0]]
            assert [each for each, file in cluster.trackers(other).items() if file.is_owner] == [0]
            assert set(cluster.trackers(key)) == set(known_at)
            for owner in known_at:
                await cluster.delete_records(owner)
            await clock.run_for(3 * GRACE_MS / 1000)
            assert list(cluster.bucket.objects) == [other]


async def test_hand_over_waits_for_the_next_owner(
    new_cluster: NewCluster, clock: VirtualClock, caplog: pytest.LogCaptureFixture
) -> None:
    """D-22: retried for ever, at increasing intervals, with one warning; other files are not delayed."""
    caplog.set_level(logging.INFO, "odradek.diskless")
    async with new_cluster() as cluster:
        stuck = await cluster.commit(1, (0, 1))
        other = await cluster.commit(2, (0, 2))
        await clock.run_for(FILE_AGE_SECONDS)
        cluster.unreachable.add(1)
        async with cluster.working():
            await cluster.delete_records(0)
            await clock.run_for(10)
            assert set(cluster.trackers(other)) == {2}
            await clock.run_for(HOUR)
            assert set(cluster.trackers(stuck)) == {0, 1}
            attempts = cluster.requests.sent.count(("hand over", 1))
            assert 12 < attempts < 22
            warnings = [each for each in caplog.records if each.levelno == logging.WARNING]
            assert [each.getMessage().split(" has failed")[0] for each in warnings] == [
                "The hand-over of files of __diskless_metadata-0 to coordinator 1"
            ]
            cluster.unreachable.clear()
            await clock.run_for(310)
            assert set(cluster.trackers(stuck)) == {1}
            assert "succeeds again" in caplog.records[-1].getMessage()


@pytest.mark.parametrize(
    "kind", [StoreFaultKind.FAILS, StoreFaultKind.THROTTLED, StoreFaultKind.HANGS]
)
async def test_deletion_waits_for_the_store(
    new_cluster: NewCluster,
    clock: VirtualClock,
    kind: StoreFaultKind,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """D-22: the file is tracked until its object is deleted."""
    async with new_cluster() as cluster:
        key = await cluster.commit(1, (0,))
        cluster.bucket.inject(StoreFault(kind, operations=("delete",)))
        async with cluster.working():
            await cluster.delete_records(0)
            await clock.run_for(HOUR)
            assert cluster.trackers(key)[0].status(0) is FileStatus.DELETING
            assert len(caplog.records) == 1
            assert "in the object store" in caplog.records[0].getMessage()
            assert cluster.bucket.requests.count(("delete", key)) < 22
            cluster.bucket.heal()
            await clock.run_for(400)
        assert cluster.trackers(key) == {}
        assert cluster.bucket.objects == {}


async def test_new_leader_continues(new_cluster: NewCluster, clock: VirtualClock) -> None:
    """D-22: the state of the log is all that the work needs."""
    async with new_cluster() as cluster:
        key = await cluster.commit(1, (0, 1))
        await clock.run_for(FILE_AGE_SECONDS)
        cluster.unreachable.add(1)
        async with cluster.working(0, 5):
            await cluster.delete_records(0)
            await clock.run_for(20)
            cluster.brokers[0] = 5
            await cluster.elect(0)
            cluster.unreachable.clear()
            await clock.run_for(20)
        assert set(cluster.trackers(key)) == {1}
        assert cluster.environments[0].handed_over == 0
        assert cluster.environments[5].handed_over == 1


async def test_broker_that_is_not_the_leader_does_nothing(
    new_cluster: NewCluster, clock: VirtualClock
) -> None:
    """D-22: the work ends with the leadership."""
    async with new_cluster() as cluster:
        key = await cluster.commit(1, (0,))
        await cluster.delete_records(0)
        async with cluster.working(0):
            cluster.replicas[0].coordinator.lead_since(-1)
            await clock.run_for(FILE_AGE_SECONDS + 2 * GRACE_MS / 1000)
            assert key in cluster.bucket.objects
            await cluster.elect(0)
            await clock.run_for(10)
        assert cluster.bucket.objects == {}


async def test_many_files_are_released_page_by_page(
    new_cluster: NewCluster, clock: VirtualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("odradek.broker.diskless.file_workers.PAGE_FILES", 4)
    async with new_cluster(2) as cluster:
        for number in range(30):
            owners = [(0, 1), (1, 0), (0,), (1,)][number % 4]
            await cluster.commit(number, owners, at=owners[number % 3 == 0 :] or owners)
            await clock.run_for(1)
        await clock.run_for(FILE_AGE_SECONDS)
        for owner in (0, 1):
            await cluster.delete_records(owner)
        async with cluster.working():
            await clock.run_for(4 * GRACE_MS / 1000)
        assert cluster.bucket.objects == {}
        assert [cluster.state(each).counts().files for each in (0, 1)] == [0, 0]


async def test_owners_are_checked_when_the_next_file_is_old(
    new_cluster: NewCluster, clock: VirtualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The state is not searched for files that cannot be old yet."""
    reads = []
    files = MemoryDisklessState.files
    monkeypatch.setattr(
        MemoryDisklessState,
        "files",
        lambda self, *arguments: reads.append(1) or files(self, *arguments),
    )
    async with new_cluster(1) as cluster, cluster.working():
        await clock.run_for(FILE_AGE_SECONDS / 2)
        for number in range(3):
            await cluster.commit(number, (0,))
            await clock.run_for(60)
        await clock.run_for(2 * FILE_AGE_SECONDS)
        assert 4 <= len(reads) <= 12


async def play(cluster: FileCluster, clock: VirtualClock) -> None:
    """Three files: of all owners, one whose first owner does not know it, and one with live batches."""
    await cluster.commit(1, (0, 1, 2))
    await cluster.commit(2, (2, 1), at=(1,))
    await cluster.commit(3, (1, 0))
    for coordinator_id in (0, 1, 2):
        await cluster.delete_records(coordinator_id)
    await cluster.commit(4, (1, 2, 0))
    await cluster.delete_records(1)
    await clock.run_for(FILE_AGE_SECONDS)


def check_end(cluster: FileCluster) -> None:
    (live,) = cluster.bucket.objects
    assert live.endswith("-000000000004")
    trackers = cluster.trackers(live)
    assert {each: (file.is_owner, file.live_batches) for each, file in trackers.items()} == {
        0: (False, 1),
        2: (True, 1),
    }
    for replica in cluster.replicas.values():
        assert {each.object_key for each in replica.state.files()} <= {live}


async def test_crash_between_any_two_steps_loses_nothing(
    new_cluster: NewCluster, clock: VirtualClock
) -> None:
    """D-22: the next leaders finish the work of crashed ones, and do not delete a live object."""
    async with new_cluster() as cluster:
        await play(cluster, clock)
        assert not await cluster.work_until_crash(10 * GRACE_MS / 1000)
        check_end(cluster)
        steps = cluster.steps.taken
    assert steps >= 20
    for crash_at in range(steps):
        async with new_cluster(steps=Steps(crash_at)) as cluster:
            await play(cluster, clock)
            assert await cluster.work_until_crash(10 * GRACE_MS / 1000)
            for coordinator_id in cluster.replicas:
                await cluster.elect(coordinator_id)
            assert not await cluster.work_until_crash(10 * GRACE_MS / 1000)
            check_end(cluster)
