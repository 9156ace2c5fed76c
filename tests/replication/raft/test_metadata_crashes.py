"""Power loss at every sync, failed disks and full disks.

After a power loss every acknowledged commit is complete, and a prefix of the pending commits is complete. The node
starts, leads a new epoch, and commits again.
"""

from __future__ import annotations

import errno
from contextlib import suppress

import pytest
import trio

from odradek.protocol.errors import KafkaError
from odradek.protocol.schemas.serde import encode_metadata_record
from odradek.replication.raft.election_state import ElectionState
from odradek.replication.raft.metadata_log import MetadataLog, MetadataLogSettings
from odradek.replication.raft.metadata_manager import MetadataManager
from odradek.storage.errors import DiskFull, LogFailed
from odradek.testing.power import NodeCrashed
from odradek.testing.virtual_disk import VirtualDisk
from odradek.testing.virtual_world import VirtualNode, VirtualWorld
from tests.support.metadata_nodes import (
    LOG_DIRECTORY,
    ROOT,
    again,
    configs,
    names,
    new_node,
    set_config,
    started,
)

COMMITS = 6
SEEDS = range(6)


def pair(number: int) -> list[object]:
    """Return the two records of a commit, which are applied together."""
    return [set_config(f"a{number}"), set_config(f"b{number}")]


def whole_pairs(metadata: MetadataManager) -> int:
    """Return the number of commits in the image, which must be complete and without gaps."""
    found = configs(metadata.image)
    count = len(found) // 2
    assert set(found) == {f"{letter}{number}" for number in range(count) for letter in "ab"}
    return count


async def life(node: VirtualNode, acknowledged: list[int]) -> None:
    """Start, commit and take snapshots, restart, and shut down."""
    settings = MetadataLogSettings(retention_bytes=1500)
    metadata = await started(node, settings=settings)
    number = whole_pairs(metadata)
    while number < COMMITS:
        await metadata.commit(pair(number))
        number += 1
        acknowledged.append(number)
        if number % 2 == 0:
            await metadata.take_snapshot()
        if number == COMMITS // 2:
            await metadata.close()
            metadata = await started(node, settings=settings)
            assert whole_pairs(metadata) == number
    await metadata.close()


async def syncs_of_a_life() -> int:
    node = new_node()
    await life(node, [])
    return node.files.syncs


async def recover(disk: VirtualDisk, acknowledged: list[int], under_way: int) -> None:
    node = VirtualWorld(3).node("after", disk)
    metadata = await started(node)
    found = whole_pairs(metadata)
    least = acknowledged[-1] if acknowledged else 0
    assert least <= found <= under_way
    epoch = metadata.leader_epoch
    await metadata.commit(pair(found))
    await metadata.close()
    last = await started(VirtualWorld(4).node("last", disk))
    assert whole_pairs(last) == found + 1
    assert last.leader_epoch == epoch + 1


@pytest.mark.slow
@pytest.mark.parametrize("at", ["begins", "is done"])
async def test_power_loss_at_every_sync(at: str) -> None:
    for sync in range(1, await syncs_of_a_life() + 1):
        node = new_node()
        if at == "begins":
            node.files.cut_power_at(sync)
        else:
            node.files.cut_power_after(sync)
        acknowledged: list[int] = []
        with suppress(NodeCrashed):
            await life(node, acknowledged)
        assert not node.power.on
        under_way = min((acknowledged[-1] if acknowledged else 0) + 1, COMMITS)
        for seed in SEEDS:
            await recover(node.disk.crash(seed), acknowledged, under_way)


async def test_power_loss_during_recovery() -> None:
    node = new_node()
    total = await syncs_of_a_life()
    node.files.cut_power_at(total // 2)
    acknowledged: list[int] = []
    with pytest.raises(NodeCrashed):
        await life(node, acknowledged)
    for seed in range(10):
        disk = node.disk.crash(seed)
        for sync in range(1, 12):
            second = VirtualWorld(seed).node("second", disk.crash(seed))
            second.files.cut_power_at(sync)
            with pytest.raises(NodeCrashed):
                await life(second, [])
            await recover(second.disk.crash(sync), acknowledged, COMMITS)


@pytest.mark.parametrize("seed", range(12))
def test_records_of_killed_process_are_flushed_before_they_are_reported(seed: int) -> None:
    """Records, their segment's name and a vote are durable."""
    node = new_node()
    node.files.make_directory(LOG_DIRECTORY)
    killed = opened(node)
    for number in range(9):
        killed.append([encode_metadata_record(set_config(f"{number}"), 0)], epoch=3)
    # The file of the vote is renamed, but the directory is not synced
    node.files.cut_power_at(node.files.syncs + 2)
    with pytest.raises(NodeCrashed):
        killed.quorum_state.write(ElectionState(epoch=4, voted_id=2))
    restarted = opened(VirtualWorld(1).node("restarted", node.disk))
    reported = restarted.end_offset, restarted.last_epoch, restarted.quorum_state.read()
    assert reported == (9, 3, ElectionState(epoch=4, voted_id=2))
    last = opened(VirtualWorld(2).node("last", node.disk.crash(seed)))
    assert (last.end_offset, last.last_epoch, last.quorum_state.read()) == reported


def test_node_starts_on_full_disk_after_kill() -> None:
    """There is no space for the leader epoch checkpoint; the epochs are in the records."""
    node = new_node()
    node.files.make_directory(LOG_DIRECTORY)
    killed = opened(node)
    killed.append([encode_metadata_record(set_config("a"), 0)], epoch=3)
    node.disk.mount_of(ROOT).capacity_bytes = 0
    restarted = opened(VirtualWorld(1).node("restarted", node.disk))
    assert (restarted.end_offset, restarted.last_epoch) == (1, 3)
    last = opened(VirtualWorld(2).node("last", node.disk.crash(0)))
    assert (last.end_offset, last.last_epoch) == (1, 3)


def opened(node: VirtualNode) -> MetadataLog:
    log = MetadataLog(node.files, ROOT, node.seams.clock, MetadataLogSettings())
    log.open()
    return log


async def test_power_loss_with_many_pending_commits(autojump_clock: object) -> None:
    """With shared flushes, all acknowledged commits and a prefix of the others survive."""
    for seed in range(20):
        node = new_node(VirtualWorld(seed))
        node.offload.delay_seconds = 1.0
        metadata = await started(node)
        acknowledged: list[int] = []
        async with trio.open_nursery() as nursery:
            for number in range(40):
                nursery.start_soon(_commit_later, metadata, number, acknowledged)
            await trio.sleep(0.5 + seed * 0.1)
            node.power.cut()
        await recover(node.disk.crash(seed), sorted(acknowledged), 40)


async def _commit_later(metadata: MetadataManager, number: int, acknowledged: list[int]) -> None:
    await trio.sleep(number * 0.05)
    with suppress(NodeCrashed):
        await metadata.commit(pair(number))
        acknowledged.append(number + 1)


# Failed disks


async def test_failed_flush_is_final() -> None:
    node = new_node()
    metadata = await started(node)
    await metadata.commit([set_config("a")])
    node.disk.fail(f"{LOG_DIRECTORY}/*.log", errno.EIO, {"sync"})
    with pytest.raises(LogFailed):
        await metadata.commit([set_config("b")])
    assert metadata.failed.is_set()
    node.disk.heal()
    with pytest.raises(LogFailed):
        await metadata.commit([set_config("c")])
    assert configs(metadata.image) == {"a": "1"}
    await metadata.close()


async def test_failed_flush_fails_every_pending_commit(autojump_clock: object) -> None:
    node = new_node()
    node.offload.delay_seconds = 1.0
    metadata = await started(node)
    node.disk.fail(f"{LOG_DIRECTORY}/*.log", errno.EIO, {"sync"})
    failures = []

    async def one(number: int) -> None:
        with pytest.raises(LogFailed):
            await metadata.commit([set_config(f"c{number}")])
        failures.append(number)

    async with trio.open_nursery() as nursery:
        for number in range(5):
            nursery.start_soon(one, number)
    assert sorted(failures) == [0, 1, 2, 3, 4]
    assert configs(metadata.image) == {}


async def test_failed_write_is_final() -> None:
    node = new_node()
    metadata = await started(node)
    node.disk.fail(f"{LOG_DIRECTORY}/*.log", errno.EIO, {"write"})
    with pytest.raises(LogFailed):
        await metadata.commit([set_config("a")])
    assert metadata.failed.is_set()
    assert configs(metadata.image) == {}


async def test_full_disk_rejects_commits_until_there_is_space() -> None:
    disk = VirtualDisk()
    mount = disk.mount(ROOT)
    node = VirtualWorld().node("node", disk)
    metadata = await started(node)
    await metadata.commit([set_config("a")])
    space = mount.capacity_bytes
    mount.capacity_bytes = mount.used_bytes
    with pytest.raises(DiskFull):
        await metadata.commit([set_config("b", "x" * 1000)])
    assert not metadata.failed.is_set()
    mount.capacity_bytes = space
    await metadata.commit([set_config("c")])
    assert configs(metadata.image) == {"a": "1", "c": "1"}
    await metadata.close()
    assert configs((await started(VirtualWorld(1).node("again", disk))).image) == {
        "a": "1",
        "c": "1",
    }


async def test_snapshot_on_full_disk_is_abandoned(
    autojump_clock: object, caplog: pytest.LogCaptureFixture
) -> None:
    disk = VirtualDisk()
    mount = disk.mount(ROOT)
    world = VirtualWorld()
    node = world.node("node", disk)
    metadata = await started(node)
    space = mount.capacity_bytes
    async with trio.open_nursery() as nursery:
        await nursery.start(metadata.run)
        mount.capacity_bytes = mount.used_bytes
        world.clock.advance(3601)
        for _ in range(1200):
            metadata.quorum_changed()  # as the driver does after every request
            await trio.sleep(0.1)
        assert len(names(node.files, ".checkpoint")) == 1
        assert names(node.files, ".part") == []
        assert 5 < len(caplog.records) < 20, "and tried again after a while"
        mount.capacity_bytes = space
        await trio.sleep(120)
        assert len(names(node.files, ".checkpoint")) == 2
        nursery.cancel_scope.cancel()


async def test_close_without_file_descriptors_loses_nothing() -> None:
    """The recovery point keeps an earlier offset, so the next start reads the log from there."""
    node = new_node()
    metadata = await started(node)
    await metadata.commit([set_config("a")])
    fault = node.disk.fail("*", errno.EMFILE, {"create", "open"})
    await metadata.close()
    assert not metadata.failed.is_set()
    node.disk.heal(fault)
    assert configs((await started(again(node))).image) == {"a": "1"}


async def test_start_fails_if_directory_is_not_writable() -> None:
    node = new_node()
    node.disk.make_read_only(f"{ROOT}*")
    with pytest.raises((OSError, KafkaError)):
        await started(node)
