"""Scan for WAL objects that no coordinator knows (KIP-1164, D-23)."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Sequence
from uuid import UUID

import pytest
import trio

from odradek.broker.diskless.orphan_scan import GRACE_MS_MIN, OrphanScan
from odradek.protocol.errors import ErrorCode, KafkaError
from odradek.protocol.schemas.diskless_apis import DisklessDescribeFileResult
from odradek.seams.objects import ObjectsUnavailable
from odradek.storage.diskless.object_key import object_key
from odradek.testing.virtual_clock import VirtualClock
from odradek.testing.virtual_object_store import StoreFault, StoreFaultKind
from tests.support.diskless_files import FileCluster

DAY_MS = 86_400_000
GRACE_MS = DAY_MS


@pytest.fixture
def clock() -> VirtualClock:
    return VirtualClock()


@pytest.fixture
async def cluster(clock: VirtualClock) -> AsyncIterator[FileCluster]:
    async with trio.open_nursery() as nursery:
        made = FileCluster(clock, nursery, 3)
        await made.start()
        yield made
        nursery.cancel_scope.cancel()


def new_scan(cluster: FileCluster, grace_ms: int = GRACE_MS) -> OrphanScan:
    return OrphanScan(
        leads=lambda coordinator_id: cluster.replicas[coordinator_id].coordinator.serves,
        requests=cluster.requests,
        objects=cluster.objects,
        clock=cluster.clock,
        offload=cluster.offload,
        interval_ms=lambda: DAY_MS,
        grace_ms=lambda: grace_ms,
    )


def put_orphan(cluster: FileCluster, age_ms: int, number: int = 0) -> str:
    key = object_key(cluster.clock.wall_ms() - age_ms, 3, UUID(int=1000 + number))
    cluster.bucket.store(key, b"orphan")
    return key


async def test_objects_older_than_the_grace_period_are_deleted(cluster: FileCluster) -> None:
    """D-23: without any file of the coordinators, the threshold is the current time less the grace period."""
    old = [put_orphan(cluster, GRACE_MS + 1 + each, each) for each in range(10)]
    young = put_orphan(cluster, GRACE_MS)
    result = await new_scan(cluster).scan()
    assert (result.deleted, result.deleted_bytes, result.known) == (len(old), 60, 0)
    assert list(cluster.bucket.objects) == [young]


async def test_objects_around_the_oldest_file_are_kept(
    cluster: FileCluster, clock: VirtualClock
) -> None:
    """D-23: the grace period is subtracted from the time of the oldest file of all coordinators."""
    live = await cluster.commit(1, (1, 2))
    await clock.run_for(10 * DAY_MS / 1000)
    kept = put_orphan(cluster, 10 * DAY_MS + GRACE_MS)
    put_orphan(cluster, 10 * DAY_MS + GRACE_MS + 1)
    await new_scan(cluster).scan()
    assert set(cluster.bucket.objects) == {live, kept}


@pytest.mark.parametrize("coordinator_id", range(3))
async def test_objects_that_one_coordinator_knows_are_kept(
    cluster: FileCluster,
    clock: VirtualClock,
    coordinator_id: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """D-23: also if the time of its oldest file is wrong."""
    live = await cluster.commit(1, (coordinator_id,))
    await clock.run_for(10 * DAY_MS / 1000)
    orphan = put_orphan(cluster, 10 * DAY_MS)
    scan = new_scan(cluster)

    async def now() -> int:
        return clock.wall_ms()

    monkeypatch.setattr(OrphanScan, "_threshold_ms", lambda self: now())
    result = await scan.scan()
    assert (result.deleted, result.known) == (1, 1)
    assert live in cluster.bucket.objects
    assert orphan not in cluster.bucket.objects


@pytest.mark.parametrize("coordinator_id", range(3))
async def test_nothing_is_deleted_if_a_coordinator_does_not_respond(
    cluster: FileCluster, coordinator_id: int
) -> None:
    """D-23"""
    orphan = put_orphan(cluster, 10 * DAY_MS)
    cluster.unreachable.add(coordinator_id)
    scan = new_scan(cluster)
    with pytest.raises(KafkaError):
        await scan.scan()
    with pytest.raises(KafkaError):
        await scan._unknown(cluster.objects.list("diskless"))
    assert orphan in cluster.bucket.objects


async def test_nothing_is_deleted_if_a_response_has_errors(
    cluster: FileCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """D-23: a coordinator that is loading, for example."""
    orphan = put_orphan(cluster, 10 * DAY_MS)

    async def loading(coordinator_id: int, keys: Sequence[str]) -> list[DisklessDescribeFileResult]:
        code = ErrorCode.coordinator_load_in_progress
        return [
            DisklessDescribeFileResult(object_key=key, error_code=code, has_live_batches=False)
            for key in keys
        ]

    monkeypatch.setattr(cluster.requests, "describe_files", loading)
    with pytest.raises(KafkaError):
        await new_scan(cluster).scan()
    assert orphan in cluster.bucket.objects


@pytest.mark.parametrize("operation", ["list", "delete"])
async def test_scan_is_repeated_after_an_error_of_the_store(
    cluster: FileCluster,
    clock: VirtualClock,
    operation: str,
    caplog: pytest.LogCaptureFixture,
) -> None:
    orphans = [put_orphan(cluster, 10 * DAY_MS + each, each) for each in range(7)]
    cluster.bucket.inject(
        StoreFault(StoreFaultKind.THROTTLED, operations=(operation,), times=2, after=1)
    )
    with pytest.raises(ObjectsUnavailable):
        await new_scan(cluster).scan()
    assert set(cluster.bucket.objects) <= set(orphans)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(new_scan(cluster).run)
        await clock.run_for(DAY_MS / 1000 + 300)
        assert cluster.bucket.objects == {}
        nursery.cancel_scope.cancel()
    assert "is repeated in 60 s" in caplog.text


async def test_scan_runs_in_each_interval_on_the_leader_of_coordinator_0(
    cluster: FileCluster, clock: VirtualClock, caplog: pytest.LogCaptureFixture
) -> None:
    """D-23: `diskless.coordinator.orphan.scan.interval.ms`"""
    caplog.set_level(logging.INFO, "odradek.diskless")
    scan = new_scan(cluster)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(scan.run)
        cluster.replicas[0].coordinator.lead_since(-1)
        put_orphan(cluster, 10 * DAY_MS)
        await clock.run_for(DAY_MS / 1000 + 100)
        assert scan.deleted == 0
        await cluster.elect(0)
        await clock.run_for(100)
        assert scan.deleted == 1
        put_orphan(cluster, 10 * DAY_MS)
        await clock.run_for(DAY_MS / 1000 - 400)
        assert scan.deleted == 1
        await clock.run_for(400)
        assert scan.deleted == 2
        nursery.cancel_scope.cancel()
    assert "Deleted 1 orphans of diskless topics with 6 bytes" in caplog.text


async def test_grace_period_covers_the_commit_window(cluster: FileCluster) -> None:
    """An upload whose commit is still under way is not deleted, whatever the configured period is."""
    uploading = put_orphan(cluster, GRACE_MS_MIN)
    put_orphan(cluster, GRACE_MS_MIN + 1)
    await new_scan(cluster, grace_ms=0).scan()
    assert list(cluster.bucket.objects) == [uploading]


async def test_other_objects_are_ignored(cluster: FileCluster) -> None:
    cluster.bucket.store("diskless/0", b"")
    cluster.bucket.store("diskless/notes/a.txt", b"")
    cluster.bucket.store("topic/0000000000001-1-x", b"")
    orphan = put_orphan(cluster, 10 * DAY_MS)
    await new_scan(cluster).scan()
    assert len(cluster.bucket.objects) == 3
    assert orphan not in cluster.bucket.objects


async def test_file_whose_deletion_was_lost_is_an_orphan(
    cluster: FileCluster, clock: VirtualClock
) -> None:
    """The store confirms a deletion that it does not do: the coordinator forgets the file, and the scan finds it."""
    key = await cluster.commit(1, (0,))
    await cluster.delete_records(0)
    cluster.bucket.inject(StoreFault(StoreFaultKind.FALSE_SUCCESS, operations=("delete",)))
    async with cluster.working():
        await clock.run_for(3600)
    assert cluster.trackers(key) == {}
    assert key in cluster.bucket.objects
    cluster.bucket.heal()
    await clock.run_for(2 * DAY_MS / 1000)
    await new_scan(cluster).scan()
    assert cluster.bucket.objects == {}
