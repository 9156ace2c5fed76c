"""Snapshots of coordinators: written, served, fetched and installed (D-20)."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path, PurePosixPath

import pytest

from odradek.broker.diskless import snapshots as module
from odradek.broker.diskless.coordinator import StateStore
from odradek.broker.diskless.memory_state_store import MemoryStateStore
from odradek.broker.diskless.snapshots import CoordinatorSnapshots, SnapshotEnvironment
from odradek.broker.diskless.state_store import SqliteStateStore
from odradek.protocol.errors import ErrorCode, KafkaError
from odradek.protocol.schemas.diskless_apis import (
    DisklessFetchSnapshotRequest,
    DisklessFetchSnapshotResponse,
)
from odradek.seams.files import Files
from odradek.seams.real_files import RealFiles
from odradek.storage.diskless.queries import FindPosition, find_batches
from odradek.storage.diskless.snapshot_files import PART, SnapshotFiles
from odradek.storage.diskless.state import DisklessState
from odradek.storage.errors import OffsetOutOfRange
from odradek.testing.power import Power
from odradek.testing.virtual_clock import VirtualClock
from odradek.testing.virtual_disk import VirtualDisk
from odradek.testing.virtual_files import VirtualFiles
from odradek.testing.virtual_offload import VirtualOffload
from tests.support.diskless_cluster import DisklessCluster, run_cluster
from tests.support.diskless_coordinators import (
    TOPIC_ID,
    MemoryReplicaLog,
    Replica,
    commit_batch,
    commit_request,
    leading,
    new_replica,
    running,
    settle,
)


@dataclass
class Settings:
    snapshot_interval_records: int = 10
    snapshot_interval_bytes: int = 1 << 40


@dataclass
class Setup:
    """Replicas with directories of their own, which fetch snapshots from `source`."""

    files: Files
    root: PurePosixPath
    states: StateStore
    clock: VirtualClock
    settings: Settings = field(default_factory=Settings)
    source: Replica | None = None
    directories: list[str] = field(default_factory=list)
    """Log directories of the broker, which `replica` is in one of."""
    in_sync: tuple[int, ...] = (1,)
    requests: list[DisklessFetchSnapshotRequest] = field(default_factory=list)
    change: Callable[[int, DisklessFetchSnapshotResponse], DisklessFetchSnapshotResponse] = (
        lambda number, response: response
    )
    """Changes the response number n, or raises KafkaError."""

    def replica(self, name: str, log: MemoryReplicaLog) -> Replica:
        directory = self.root / name
        self.files.make_directory(directory)
        log.directory = str(directory)
        environment = SnapshotEnvironment(
            1,
            self.files,
            self.clock,
            VirtualOffload(),
            self.settings,
            self.fetch_part,
            lambda: [str(self.root / each) for each in self.directories],
            lambda coordinator_id: (2, 1) if self.source else (1,),
            lambda coordinator_id: self.in_sync,
        )
        return new_replica(log, self.states, clock=self.clock, snapshots=environment)

    async def fetch_part(
        self, broker_id: int, request: DisklessFetchSnapshotRequest
    ) -> DisklessFetchSnapshotResponse:
        assert broker_id == 2
        assert self.source
        self.requests.append(request)
        response = await snapshots_of(self.source).read(request)
        return self.change(len(self.requests), response)


def snapshots_of(replica: Replica) -> CoordinatorSnapshots:
    snapshots = replica.coordinator.snapshots
    assert snapshots
    return snapshots


@pytest.fixture
def clock() -> VirtualClock:
    """Clock of the coordinators, and of trio in the tests that have this parameter."""
    return VirtualClock()


@pytest.fixture(params=["sqlite", "memory"])
def setup(request: pytest.FixtureRequest, tmp_path: Path, clock: VirtualClock) -> Setup:
    files: Files
    states: StateStore
    if request.param == "sqlite":
        files, root = RealFiles(), PurePosixPath(tmp_path)
        states = SqliteStateStore(files, "cluster", 86_400_000)
    else:
        disk, root = VirtualDisk(), PurePosixPath("/data")
        files = VirtualFiles(disk)
        states = MemoryStateStore(files, disk.databases.of_node(Power()), 86_400_000)
    return Setup(files, root, states, clock)


@contextmanager
def parts_of(size: int, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    with monkeypatch.context() as patch:
        patch.setattr(module, "PART_BYTES", size)
        yield


async def commit(replica: Replica, times: int) -> None:
    replica.log.commits_at_once = True
    for _ in range(times):
        number = replica.log.end_offset
        now_ms = replica.coordinator.now_ms()
        await replica.coordinator.commit_file(
            commit_request(now_ms, commit_batch(2), number=number)
        )
    await settle()


async def restored(replica: Replica) -> None:
    """Wait until the replica has a state with everything in its log."""
    for _ in range(50):
        if replica.coordinator.applied_offset == replica.log.high_watermark - 1:
            return
        await settle()


async def high_watermark(replica: Replica) -> int:
    def find(state: DisklessState) -> int:
        position = FindPosition(TOPIC_ID, 0, 0, 1 << 30)
        (found,) = find_batches(state, [position], max_bytes=1 << 30, max_batches=0)
        assert len(found.batches) * 2 == found.high_watermark
        return found.high_watermark

    return await replica.coordinator.query(find)


def copy_of(log: MemoryReplicaLog) -> MemoryReplicaLog:
    copied = MemoryReplicaLog()
    copied.data = bytearray(log.data)
    copied.start_offset, copied.end_offset = log.start_offset, log.end_offset
    copied.high_watermark = log.high_watermark
    return copied


# --- writing ---


async def test_leader_writes_a_snapshot_and_deletes_the_records_below(setup: Setup) -> None:
    replica = setup.replica("a", MemoryReplicaLog())
    async with leading(replica):
        await commit(replica, 7)
        assert (replica.coordinator.snapshot_offset, replica.log.start_offset) == (-1, 0)
        await commit(replica, 20)
        first = replica.coordinator.snapshot_offset
        assert first >= 9
        assert replica.log.start_offset == first + 1
        await commit(replica, 20)
        assert replica.coordinator.snapshot_offset >= first + 10
        names = [each for each in setup.files.list(setup.root / "a") if "snapshot" in each]
        assert len(names) == 1


async def test_leader_deletes_no_records_that_an_in_sync_replica_has_no_snapshot_of(
    setup: Setup,
) -> None:
    """D-20: the in-sync replica may become the leader, or the only replica, before it has applied these records."""
    source = setup.source = setup.replica("b", MemoryReplicaLog())
    setup.in_sync = (1,)
    async with leading(source):
        await commit(source, 12)
    older = source.coordinator.snapshot_offset
    assert older >= 9
    setup.in_sync = (1, 2)
    async with leading(setup.replica("a", MemoryReplicaLog())) as replica:
        await commit(replica, 40)
        assert replica.coordinator.snapshot_offset > older
        assert replica.log.start_offset == older + 1
        setup.change = refuse
        await commit(replica, 40)
        assert replica.log.start_offset == older + 1


def refuse(number: int, response: DisklessFetchSnapshotResponse) -> DisklessFetchSnapshotResponse:
    raise KafkaError(ErrorCode.network_exception, "disconnected")


async def test_follower_writes_snapshots_but_deletes_no_records(setup: Setup) -> None:
    source = setup.replica("a", MemoryReplicaLog())
    async with leading(source):
        await commit(source, 30)
    log = copy_of(source.log)
    log.start_offset = 0
    follower = setup.replica("b", log)
    async with running(follower):
        assert follower.coordinator.snapshot_offset == source.log.end_offset - 1
        assert follower.log.start_offset == 0


async def test_snapshot_after_a_number_of_bytes(setup: Setup) -> None:
    setup.settings = Settings(1 << 40, 2000)
    replica = setup.replica("a", MemoryReplicaLog())
    async with leading(replica):
        await commit(replica, 3)
        assert replica.coordinator.snapshot_offset == -1
        await commit(replica, 10)
        assert replica.coordinator.snapshot_offset > 0


async def test_state_is_restored_from_the_local_snapshot(setup: Setup) -> None:
    replica = setup.replica("a", MemoryReplicaLog())
    async with leading(replica):
        await commit(replica, 33)
        assert replica.log.start_offset > 0
    replica.coordinator.lead_since(-1)
    setup.states.remove(0, replica.log.directory)
    again = setup.replica("a", replica.log)
    async with leading(again):
        assert await high_watermark(again) == 66


async def test_snapshot_that_was_not_written_is_written_again(
    setup: Setup,
    clock: VirtualClock,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    replica = setup.replica("a", MemoryReplicaLog())
    publish, failures = SnapshotFiles.publish, [OSError("no space"), OSError("no space")]

    def fail(self: SnapshotFiles, offset: int, suffix: str) -> object:
        if failures:
            raise failures.pop()
        return publish(self, offset, suffix)

    monkeypatch.setattr(SnapshotFiles, "publish", fail)
    caplog.set_level(logging.ERROR)
    async with leading(replica):
        await commit(replica, 15)
        assert (replica.coordinator.snapshot_offset, replica.log.start_offset) == (-1, 0)
        for _ in range(2):
            clock.advance(1.1)
            await settle()
        assert replica.coordinator.snapshot_offset > 0
    assert caplog.text.count("was not written") == 2


async def test_snapshots_ahead_of_the_log_of_a_leader_are_removed(setup: Setup) -> None:
    replica = setup.replica("a", MemoryReplicaLog())
    async with leading(replica):
        await commit(replica, 15)
        offset = replica.coordinator.snapshot_offset
    replica.coordinator.lead_since(-1)
    replica.log.start_offset = 0
    replica.log.truncate(offset)
    replica.log.high_watermark = offset
    again = setup.replica("a", replica.log)
    async with leading(again):
        assert again.coordinator.snapshot_offset < offset
        assert again.coordinator.serves
        assert await high_watermark(again) < 30


async def test_snapshot_follows_the_log_to_another_log_directory(setup: Setup) -> None:
    """The log was moved, and there is no other replica that has the deleted records."""
    setup.directories = ["a", "b", "missing"]
    replica = setup.replica("a", MemoryReplicaLog())
    async with leading(replica):
        await commit(replica, 33)
        assert replica.log.start_offset > 0
        offset = replica.coordinator.snapshot_offset
    replica.coordinator.lead_since(-1)
    moved = setup.replica("b", replica.log)
    async with leading(moved):
        await restored(moved)
        assert moved.coordinator.snapshot_offset == offset
        assert await high_watermark(moved) == 66
    assert setup.files.list(setup.root / "a") == []


async def test_snapshots_of_a_removed_replica_are_removed(setup: Setup) -> None:
    replica = setup.replica("a", MemoryReplicaLog())
    async with leading(replica):
        await commit(replica, 15)
        assert replica.coordinator.snapshot_offset > 0
    await replica.coordinator.remove_state()
    await snapshots_of(replica).remove()
    assert setup.files.list(setup.root / "a") == []


# --- serving and fetching ---


async def test_replica_behind_its_log_fetches_a_snapshot_in_parts(
    setup: Setup, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = setup.source = setup.replica("a", MemoryReplicaLog())
    with parts_of(1000, monkeypatch):
        async with leading(source):
            await commit(source, 33)
            assert source.log.start_offset > 0
            follower = setup.replica("b", copy_of(source.log))
            async with running(follower):
                await restored(follower)
                assert await high_watermark(follower) == 66
                assert follower.coordinator.snapshot_offset == source.coordinator.snapshot_offset
    assert len(setup.requests) > 2
    assert setup.requests[0].snapshot_offset == -1
    assert {each.snapshot_offset for each in setup.requests[1:]} == {source.log.start_offset - 1}
    assert [each.position for each in setup.requests] == [
        1000 * number for number in range(len(setup.requests))
    ]


async def test_replica_fetches_a_snapshot_if_records_are_deleted_while_it_reads_them(
    setup: Setup, caplog: pytest.LogCaptureFixture
) -> None:
    """D-20: the log start offset moves between the check of the log and the read."""
    source = setup.source = setup.replica("a", MemoryReplicaLog())

    class PrunedLog(MemoryReplicaLog):
        async def read(self, offset: int, max_bytes: int) -> bytes:
            self.start_offset = source.log.start_offset
            raise OffsetOutOfRange("offset 0 is below the log start offset")

    async with leading(source):
        await commit(source, 30)
        log = PrunedLog()
        log.end_offset = log.high_watermark = source.coordinator.snapshot_offset + 1
        follower = setup.replica("b", log)
        async with running(follower):
            await restored(follower)
            assert follower.coordinator.snapshot_offset == source.coordinator.snapshot_offset
    assert not [each for each in caplog.records if each.levelname == "ERROR"]


async def test_interrupted_download_continues(
    setup: Setup, clock: VirtualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = setup.source = setup.replica("a", MemoryReplicaLog())

    def fail_at_three(
        number: int, response: DisklessFetchSnapshotResponse
    ) -> DisklessFetchSnapshotResponse:
        if number == 3:
            raise KafkaError(ErrorCode.network_exception, "disconnected")
        return response

    setup.change = fail_at_three
    with parts_of(1000, monkeypatch):
        async with leading(source):
            await commit(source, 33)
            follower = setup.replica("b", copy_of(source.log))
            async with running(follower):
                assert not follower.coordinator.has_state
                clock.advance(1.1)
                await settle()
                await restored(follower)
                assert await high_watermark(follower) == 66
    positions = [each.position for each in setup.requests[2:6]]
    assert positions[:3] == [2000, 0, 2000]
    assert not [each for each in setup.files.list(setup.root / "b") if each.endswith(PART)]


async def test_damaged_download_is_fetched_again(
    setup: Setup, clock: VirtualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = setup.source = setup.replica("a", MemoryReplicaLog())

    def damage_first(
        number: int, response: DisklessFetchSnapshotResponse
    ) -> DisklessFetchSnapshotResponse:
        data = bytearray(response.data)
        if number == 1:
            data[90:120] = bytes(30)
            data[-100:] = bytes(100)
        return replace(response, data=bytes(data))

    setup.change = damage_first
    async with leading(source):
        await commit(source, 33)
        follower = setup.replica("b", copy_of(source.log))
        async with running(follower):
            assert not follower.coordinator.has_state
            clock.advance(1.1)
            await settle()
            assert await high_watermark(follower) == 66


@pytest.mark.parametrize(
    "wrong",
    [{"position": 5}, {"data": b""}, {"size": 10}, {"error_code": ErrorCode.not_coordinator}],
)
async def test_unexpected_part_is_refused(
    setup: Setup, clock: VirtualClock, wrong: dict[str, object]
) -> None:
    source = setup.source = setup.replica("a", MemoryReplicaLog())
    setup.change = lambda number, response: replace(response, **wrong) if number < 3 else response
    async with leading(source):
        await commit(source, 33)
        follower = setup.replica("b", copy_of(source.log))
        async with running(follower):
            for _ in range(3):
                clock.advance(1.1)
                await settle()
            assert await high_watermark(follower) == 66
    assert len(setup.requests) >= 3


async def test_snapshot_below_the_log_start_offset_is_not_installed(
    setup: Setup, clock: VirtualClock, caplog: pytest.LogCaptureFixture
) -> None:
    source = setup.source = setup.replica("a", MemoryReplicaLog())
    async with leading(source):
        await commit(source, 33)
        log = copy_of(source.log)
        log.start_offset = source.coordinator.snapshot_offset + 2
        follower = setup.replica("b", log)
        async with running(follower):
            assert not follower.coordinator.has_state
            assert "is needed" in caplog.text
            await commit(source, 20)
            clock.advance(1.1)
            await settle()
            assert follower.coordinator.has_state


async def test_request_for_a_missing_snapshot_makes_one(setup: Setup) -> None:
    setup.settings = Settings(1 << 40)
    source = setup.replica("a", MemoryReplicaLog())
    request = DisklessFetchSnapshotRequest(coordinator_id=0, position=0, max_bytes=1 << 20)
    async with leading(source):
        await commit(source, 3)
        with pytest.raises(KafkaError) as caught:
            await snapshots_of(source).read(request)
        assert caught.value.code is ErrorCode.snapshot_not_found
        await settle()
        response = await snapshots_of(source).read(request)
        assert response.snapshot_offset == source.coordinator.applied_offset
        assert len(response.data) == response.size > 0
        with pytest.raises(KafkaError) as caught:
            await snapshots_of(source).read(replace(request, position=response.size + 1))
        assert caught.value.code is ErrorCode.position_out_of_range
        with pytest.raises(KafkaError) as caught:
            await snapshots_of(source).read(replace(request, snapshot_offset=1))
        assert caught.value.code is ErrorCode.snapshot_not_found


async def test_request_for_a_removed_snapshot_makes_one(setup: Setup) -> None:
    setup.settings = Settings(1 << 40)
    source = setup.replica("a", MemoryReplicaLog())
    request = DisklessFetchSnapshotRequest(coordinator_id=0, position=0, max_bytes=1 << 20)
    async with leading(source):
        await commit(source, 3)
        snapshots = snapshots_of(source)
        with pytest.raises(KafkaError):
            await snapshots.read(request)
        await settle()
        first = await snapshots.read(request)
        await commit(source, 1)
        setup.files.remove(
            setup.root / "a" / f"diskless-metadata-0.{first.snapshot_offset:020d}.snapshot"
        )
        with pytest.raises(KafkaError) as caught:
            await snapshots.read(request)
        assert caught.value.code is ErrorCode.snapshot_not_found
        await settle()
        second = await snapshots.read(request)
        assert second.snapshot_offset == source.coordinator.applied_offset


async def test_request_for_a_snapshot_below_the_log_start_offset_makes_one(setup: Setup) -> None:
    """D-20: a follower writes the snapshot that a damaged leader needs, although no more records follow."""
    setup.settings = Settings(1 << 40)
    source = setup.replica("a", MemoryReplicaLog())
    request = DisklessFetchSnapshotRequest(coordinator_id=0, position=0, max_bytes=1 << 20)
    async with leading(source):
        await commit(source, 3)
        snapshots = snapshots_of(source)
        with pytest.raises(KafkaError):
            await snapshots.read(request)
        await settle()
        await commit(source, 3)
        source.log.start_offset = source.log.end_offset
        with pytest.raises(KafkaError) as caught:
            await snapshots.read(request)
        assert caught.value.code is ErrorCode.snapshot_not_found
        await settle()
        response = await snapshots.read(request)
        assert response.snapshot_offset == source.coordinator.applied_offset


async def test_snapshot_is_kept_while_it_is_fetched(setup: Setup, clock: VirtualClock) -> None:
    source = setup.replica("a", MemoryReplicaLog())
    async with leading(source):
        await commit(source, 15)
        offset = source.coordinator.snapshot_offset
        request = DisklessFetchSnapshotRequest(
            coordinator_id=0, snapshot_offset=offset, position=0, max_bytes=1
        )
        await snapshots_of(source).read(request)
        await commit(source, 20)
        assert source.coordinator.snapshot_offset > offset
        clock.advance(61.0)
        assert (await snapshots_of(source).read(request)).snapshot_offset == offset
        clock.advance(61.0)
        await commit(source, 20)
        with pytest.raises(KafkaError) as caught:
            await snapshots_of(source).read(request)
        assert caught.value.code is ErrorCode.snapshot_not_found


# --- a cluster ---


def test_follower_that_lost_everything_fetches_a_snapshot_of_the_leader() -> None:
    """D-20: the log of the coordinator was pruned, and the follower has neither state nor snapshot."""

    async def main(cluster: DisklessCluster) -> None:
        await cluster.create(1)
        leader, follower = cluster.leader_of(0), cluster.follower_of(0)
        for _ in range(40):
            await cluster.commit(leader, 0, records=2)
        coordinator_id = cluster.coordinator_of(0)
        leading_one = cluster.diskless(leader).coordinators.find(coordinator_id)
        assert leading_one
        await cluster.until(lambda: leading_one.log.start_offset > 20)
        await cluster.nodes.stop(follower)
        for _ in range(30):
            await cluster.commit(leader, 0, records=2)
        files = cluster.nodes.machines[follower].files
        for name in files.list(PurePosixPath("/data")):
            if name.endswith(".snapshot"):
                files.remove(PurePosixPath("/data") / name)
        await cluster.nodes.start(follower)
        await cluster.until(
            lambda: (
                (found := cluster.diskless(follower).coordinators.find(coordinator_id)) is not None
                and found.applied_offset == leading_one.applied_offset
            )
        )
        assert await cluster.high_watermark(follower) == 140

    run_cluster(main, diskless_metadata_snapshot_interval_records="20")
