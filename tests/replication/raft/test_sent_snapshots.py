"""Snapshots fetched from the leader, and those that a node generates."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from odradek.replication.controller.image import InvalidMetadata
from odradek.replication.raft.metadata_loader import catch_up
from odradek.replication.raft.metadata_log import MetadataLogSettings
from odradek.replication.raft.metadata_log_writer import MetadataLogWriter
from odradek.replication.raft.metadata_state import MetadataState
from odradek.replication.raft.raft_log import ValidOffset, validate_offset_and_epoch
from odradek.replication.raft.snapshots import SnapshotId, SnapshotStore
from tests.support.metadata_nodes import (
    LOG_DIRECTORY,
    again,
    configs,
    log_of,
    names,
    new_node,
    raw_log,
    set_config,
    started,
)


async def sent() -> tuple[SnapshotId, bytes]:
    """Return a snapshot of a node with two committed configs."""
    node = new_node()
    metadata = await started(node)
    await metadata.commit([set_config("a")])
    await metadata.commit([set_config("b")])
    snapshot = await metadata.take_snapshot()
    assert snapshot is not None
    return snapshot, node.files.read(LOG_DIRECTORY / snapshot.file_name)


async def test_fetched_and_generated_snapshot_of_one_id_use_two_files() -> None:
    snapshot, data = await sent()
    node = new_node()
    await (await started(node)).close()
    store = SnapshotStore(node.files, LOG_DIRECTORY)
    download = store.download(snapshot)
    download.append(0, data[:100])
    own = store.writer(snapshot, now_ms=1, timestamp_ms=1)
    download.append(100, data[100:])
    own.end()
    store.publish(snapshot, own)
    store.publish(snapshot, download)
    assert node.files.read(LOG_DIRECTORY / snapshot.file_name) == data
    assert names(node.files, ".part") == []


async def test_start_removes_partial_fetched_snapshot() -> None:
    snapshot, data = await sent()
    node = new_node()
    await (await started(node)).close()
    SnapshotStore(node.files, LOG_DIRECTORY).download(snapshot).append(0, data[:100])
    assert len(names(node.files, ".part")) == 1
    await started(again(node))
    assert names(node.files, ".part") == []


@pytest.mark.parametrize("published", [False, True])
async def test_log_continues_from_installed_snapshot(published: bool) -> None:
    """After a power loss between rename and truncation, the next start truncates the log."""
    snapshot, data = await sent()
    node = new_node()
    metadata = await started(node)
    await metadata.close()
    log = raw_log(node.disk)
    download = log.snapshots.download(snapshot)
    download.append(0, data)
    if published:
        log.snapshots.publish(snapshot, download)
    else:
        log.install(download)
        assert (log.start_offset, log.end_offset) == (snapshot.end_offset, snapshot.end_offset)
        assert log.snapshots.ids == [snapshot]
    restarted = await started(again(node))
    assert set(configs(restarted.image)) == {"a", "b"}
    assert restarted.image.offset > snapshot.end_offset
    assert log_of(node.files, LOG_DIRECTORY / f"{snapshot.end_offset:020d}.log")


async def test_incomplete_snapshot_is_not_installed() -> None:
    snapshot, data = await sent()
    node = new_node()
    await (await started(node)).close()
    log = raw_log(node.disk)
    end = log.end_offset

    async def blocking(call: object, *args: object) -> object:
        return call(*args)  # type: ignore[operator]

    changes = MetadataLogWriter(node.seams, log, blocking)
    await changes.begin_snapshot(snapshot)
    await changes.append_snapshot(0, data[:-1])
    with pytest.raises(InvalidMetadata):
        await changes.install_snapshot()
    assert log.end_offset == end
    assert snapshot not in log.snapshots.ids


async def test_newer_snapshot_may_replace_one_before_it_is_loaded() -> None:
    leader = new_node()
    metadata = await started(leader)
    sent: list[tuple[SnapshotId, bytes]] = []
    for name in ("a", "b"):
        await metadata.commit([set_config(name)])
        snapshot = await metadata.take_snapshot()
        assert snapshot is not None
        sent.append((snapshot, leader.files.read(LOG_DIRECTORY / snapshot.file_name)))
    log, state = raw_log(new_node().disk, formatted=False), MetadataState()

    def install(snapshot: SnapshotId, data: bytes) -> None:
        download = log.snapshots.download(snapshot)
        download.append(0, data)
        log.install(download)

    async def blocking(call: Callable[..., Any], *args: Any) -> Any:
        if len(sent) > 1:
            install(*sent.pop())  # a newer snapshot replaces it
        return call(*args)

    install(*sent[0])
    await catch_up(state, log, sent[1][0].end_offset, blocking)
    assert set(configs(state.image)) == {"a", "b"}


async def test_caught_up_follower_is_sent_no_snapshot_during_retention() -> None:
    """The log start offset advances before snapshots and segments are deleted."""
    node = new_node()
    settings = MetadataLogSettings(segment_bytes=16_384, retention_bytes=0)
    metadata = await started(node, settings=settings)
    await metadata.commit([set_config("a")])
    log = metadata._log
    prune, seen = log.remove, []

    def remove(dropped: list[SnapshotId], now_ms: int) -> None:
        seen.append(validate_offset_and_epoch(log, log.end_offset, log.last_epoch))
        prune(dropped, now_ms)

    log.remove = remove  # type: ignore[method-assign, assignment]
    await metadata.take_snapshot()
    assert seen == [ValidOffset()]
