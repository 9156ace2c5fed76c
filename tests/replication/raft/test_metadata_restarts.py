"""Restarts of a node: the image is the same, from the log, snapshots or bootstrap records."""

from __future__ import annotations

import re
from dataclasses import replace
from uuid import UUID

import pytest
import trio

from odradek.protocol.records.control import ControlType
from odradek.protocol.schemas import control_records
from odradek.protocol.schemas.cluster_records import (
    AbortTransactionRecord,
    BeginTransactionRecord,
    EndTransactionRecord,
    FeatureLevelRecord,
)
from odradek.protocol.schemas.quorum_state import decode_quorum_state
from odradek.protocol.schemas.serde import InvalidRecord, encode_metadata_record
from odradek.protocol.uuids import uuid_to_text
from odradek.replication.controller.image import Endpoint, InvalidMetadata, MetadataImage
from odradek.replication.raft.bootstrap import BOOTSTRAP_FILE, FIRST_SNAPSHOT, quorum_records
from odradek.replication.raft.errors import InvalidQuorum
from odradek.replication.raft.metadata_log import MetadataLogSettings
from odradek.replication.raft.metadata_manager import MetadataManager
from odradek.replication.raft.snapshots import SnapshotId, SnapshotStore
from odradek.replication.raft.voters import Voter
from odradek.storage.errors import CorruptRecords
from odradek.testing.virtual_world import VirtualNode, VirtualWorld
from tests.support.metadata_nodes import (
    DIRECTORY_ID,
    FIRST_SEGMENT,
    LOG_DIRECTORY,
    RECOVERY_POINT,
    ROOT,
    again,
    configs,
    log_of,
    metadata_on,
    names,
    new_node,
    new_topic,
    raw_log,
    set_config,
    started,
)


def state(image: MetadataImage) -> MetadataImage:
    """Return the image without what each epoch changes: epoch, offset and the controller's incarnation."""
    return replace(image, offset=0, epoch=0, timestamp_ms=0, controllers={})


# Restarts after a shutdown


async def test_restart_restores_the_image() -> None:
    node = new_node()
    metadata = await started(node)
    for number in range(20):
        await metadata.commit([new_topic(number), set_config(f"c{number}")])
    await metadata.close()
    restarted = await started(again(node))
    assert state(restarted.image) == state(metadata.image)
    assert restarted.leader_epoch == 2
    assert restarted.image.offset == metadata.image.offset + 2
    assert restarted.quorum.voters == metadata.quorum.voters


async def test_changed_endpoints_are_appended_with_the_next_epoch() -> None:
    """KIP-853: a leader appends its changed endpoints to the voters record."""
    node = new_node()
    for port in (9093, 9095, None):
        there = [Endpoint("CONTROLLER", "here", port, 0)] if port is not None else []
        metadata = await started(again(node), controller_listeners=there)
        (voter,) = metadata.quorum.voters
        assert [each.port for each in voter.endpoints] == [port or 9095], (
            "unless it has no endpoints"
        )
        await metadata.close()
    assert len([batch for batch in log_of(node.files) if "KRAFT_VOTERS" in batch]) == 2


async def test_each_start_begins_an_epoch() -> None:
    node = new_node()
    for epoch in range(1, 5):
        metadata = await started(again(node))
        assert metadata.leader_epoch == epoch
        stored = decode_quorum_state(node.files.read(LOG_DIRECTORY / "quorum-state"))
        assert (stored.leader_id, stored.leader_epoch, stored.voted_id) == (1, epoch, -1)
        await metadata.close()
    assert [batch for batch in log_of(node.files) if "LEADER_CHANGE" in batch] == [
        ["LEADER_CHANGE", "KRAFT_VERSION", "KRAFT_VOTERS"],
        ["LEADER_CHANGE"],
        ["LEADER_CHANGE"],
        ["LEADER_CHANGE"],
    ]


async def test_corrupt_quorum_state_is_reported_and_may_be_removed_by_only_controller() -> None:
    node = new_node()
    metadata = await started(node)
    await metadata.commit([set_config("a")])
    await metadata.close()
    node = again(node)
    path = LOG_DIRECTORY / "quorum-state"
    node.files.write_new(path, b"{{{")
    with pytest.raises(InvalidRecord, match=f"{path}: .*restore the file, .*, remove the file"):
        await started(node)
    node.files.remove(path)
    metadata = await started(again(node))
    assert configs(metadata.image) == {"a": "1"}
    assert metadata.leader_epoch == 2, "the epoch of the log plus one"


@pytest.mark.parametrize("damage", [b"\xff", b"B"])
async def test_corrupt_partition_metadata_is_reported_and_may_be_removed(damage: bytes) -> None:
    node = new_node()
    await (await started(node)).close()
    node = again(node)
    path = LOG_DIRECTORY / "partition.metadata"
    was = node.files.read(path)
    node.files.write_new(path, was[:-10] + damage + was[-9:])
    with pytest.raises(InvalidMetadata, match=f"{LOG_DIRECTORY}: .*: remove partition.metadata"):
        await started(node)
    node = again(node)
    node.files.remove(path)
    await (await started(node)).close()
    assert node.files.read(path) == was


@pytest.mark.parametrize("loss", ["gone", "empty"])
async def test_empty_log_is_rejected_if_partitions_exist(loss: str) -> None:
    """Otherwise all partitions would be stray."""
    node = new_node()
    await (await started(node)).close()
    node.files.remove(RECOVERY_POINT)  # otherwise the loss is detected before the log is read
    whole = node.files.read(FIRST_SEGMENT)
    if loss == "gone":
        node.files.remove(FIRST_SEGMENT)
    else:
        node.files.write_new(FIRST_SEGMENT, b"")
    for _ in range(2):
        with pytest.raises(InvalidQuorum, match=r"no records, but /data has partitions"):
            await started(again(node), find_partitions=lambda: ROOT)
    node = again(node)
    node.files.write_new(FIRST_SEGMENT, whole)
    await (await started(node, find_partitions=lambda: ROOT)).close()


async def test_missing_metadata_directory_is_rejected_if_partitions_exist() -> None:
    """A new quorum would mix its snapshot with the restored files."""
    node = new_node()
    await (await started(node)).close()
    node.files.remove_tree(LOG_DIRECTORY)
    with pytest.raises(InvalidQuorum, match=r"no records, but /data has partitions"):
        await started(again(node), find_partitions=lambda: ROOT)
    assert not node.files.exists(LOG_DIRECTORY)


async def test_lost_quorum_state_does_not_reuse_an_epoch() -> None:
    node = new_node()
    for _ in range(3):
        await (await started(again(node))).close()
    node.files.remove(LOG_DIRECTORY / "quorum-state")
    assert (await started(again(node))).leader_epoch == 4


async def test_torn_tail_is_truncated() -> None:
    node = new_node()
    metadata = await started(node)
    await metadata.commit([set_config("a")])
    await metadata.close()
    segment = node.files.open(LOG_DIRECTORY / "00000000000000000000.log", write=True)
    whole = segment.read_at(0, segment.size)
    segment.append_v([whole[:100]])
    segment.close()
    restarted = await started(again(node))
    assert configs(restarted.image) == {"a": "1"}
    await restarted.commit([set_config("b")])
    assert log_of(node.files)[-1] == ["Config b"]


# Snapshots


async def test_snapshot_contains_the_image() -> None:
    node = new_node()
    metadata = await started(node)
    await metadata.commit([new_topic(1), set_config("a")])
    snapshot = await metadata.take_snapshot()
    assert snapshot == SnapshotId(metadata.image.offset + 1, 1)
    contents = log_of(node.files, LOG_DIRECTORY / snapshot.file_name)
    assert contents[0] == ["SNAPSHOT_HEADER", "KRAFT_VERSION", "KRAFT_VOTERS"]
    assert contents[1][0] == "FeatureLevel metadata.version"
    assert contents[-1] == ["SNAPSHOT_FOOTER"]
    assert await metadata.take_snapshot() is None, "nothing happened since"


async def test_restart_reads_snapshot_and_following_log() -> None:
    node = new_node()
    metadata = await started(node)
    await metadata.commit([set_config("before")])
    snapshot = await metadata.take_snapshot()
    assert snapshot is not None
    await metadata.commit([set_config("after")])
    await metadata.close()
    _blank_log_below(node, snapshot)
    restarted = await started(again(node))
    assert configs(restarted.image) == {"before": "1", "after": "1"}
    assert state(restarted.image) == state(metadata.image)
    assert restarted.quorum.voters == metadata.quorum.voters
    assert restarted.kraft_version == 1


def _blank_log_below(node: VirtualNode, snapshot: SnapshotId) -> None:
    """Make the log start at a snapshot, as retention does once a segment is full."""
    log = raw_log(node.disk)
    kept = [bytes(batch.view) for found in log.batches(snapshot.end_offset) for batch in found]
    log.close()
    for name in node.files.list(LOG_DIRECTORY):
        if name.endswith((".log", ".index", ".timeindex", ".snapshot")) or name.startswith(
            "leader"
        ):
            node.files.remove(LOG_DIRECTORY / name)
    segment = node.files.open(LOG_DIRECTORY / f"{snapshot.end_offset:020d}.log", create=True)
    segment.append_v(kept)
    segment.close()


async def test_log_without_first_records_requires_a_snapshot() -> None:
    node = new_node()
    metadata = await started(node)
    await metadata.commit([set_config("before")])
    snapshot = await metadata.take_snapshot()
    assert snapshot is not None
    await metadata.commit([set_config("after")])
    await metadata.close()
    _blank_log_below(node, snapshot)
    node.files.remove(LOG_DIRECTORY / snapshot.file_name)
    with pytest.raises(InvalidMetadata, match="no snapshot contains the records before it"):
        await started(again(node))


async def test_log_that_ends_before_the_snapshot_restarts_at_its_end() -> None:
    node = new_node()
    metadata = await started(node)
    await metadata.commit([set_config("a")])
    snapshot = await metadata.take_snapshot()
    assert snapshot is not None
    await metadata.close()
    for name in names(node.files, ".log"):
        node.files.open(LOG_DIRECTORY / name, write=True).truncate(0)
    restarted = await started(again(node))
    assert configs(restarted.image) == {"a": "1"}
    assert restarted.image.offset > snapshot.end_offset
    await restarted.commit([set_config("b")])
    await restarted.close()
    assert configs((await started(again(node))).image) == {"a": "1", "b": "1"}


async def test_corrupt_snapshot_is_rejected() -> None:
    node = new_node()
    metadata = await started(node)
    await metadata.commit([set_config("a")])
    snapshot = await metadata.take_snapshot()
    assert snapshot is not None
    await metadata.commit([set_config("b")])
    await metadata.close()
    _blank_log_below(node, snapshot)
    path = LOG_DIRECTORY / snapshot.file_name
    whole = node.files.read(path)
    for damaged in _damaged(whole):
        node.files.write_new(path, damaged)
        with pytest.raises(
            InvalidMetadata,
            match=f"{snapshot.file_name}.*: the log does not contain its records: restore it",
        ):
            await started(again(node))
    node.files.write_new(path, whole)
    assert configs((await started(again(node))).image) == {"a": "1", "b": "1"}


def _damaged(whole: bytes) -> tuple[bytes, ...]:
    return whole[:-75], whole[75:], whole + whole[-75:], b"", whole[:200] + whole[201:]


async def test_corrupt_snapshot_is_removed_if_the_log_has_its_records() -> None:
    node = new_node()
    metadata = await started(node)
    await metadata.commit([set_config("a")])
    snapshot = await metadata.take_snapshot()
    assert snapshot is not None
    await metadata.commit([set_config("b")])
    await metadata.close()
    path = LOG_DIRECTORY / snapshot.file_name
    for damaged in _damaged(node.files.read(path)):
        node.files.write_new(path, damaged)
        restarted = await started(again(node))
        assert configs(restarted.image) == {"a": "1", "b": "1"}
        assert snapshot.file_name not in names(node.files, ".checkpoint")
        await restarted.close()


async def test_corrupt_first_snapshot_is_removed_if_the_log_has_voters() -> None:
    node = new_node()
    metadata = await started(node)
    voters = metadata.quorum.voters
    await metadata.close()
    path = LOG_DIRECTORY / FIRST_SNAPSHOT.file_name
    node.files.write_new(path, b"")
    restarted = await started(again(node))
    assert restarted.quorum.voters == voters
    await restarted.close()
    assert not names(node.files, ".checkpoint")

    node = new_node()
    raw_log(node.disk, formatted=False).close()
    node.files.write_new(path, b"")
    with pytest.raises(
        InvalidMetadata,
        match=f"{FIRST_SNAPSHOT.file_name}.*: the log does not contain its records: restore it",
    ):
        await started(again(node))


async def test_bootstrap_records_are_only_read_for_an_empty_log() -> None:
    node = new_node()
    path = ROOT / BOOTSTRAP_FILE
    metadata = await started(node)
    await metadata.close()
    node.files.write_new(path, b"")
    await (await started(again(node))).close()

    node = new_node()
    raw_log(node.disk, formatted=False).close()
    node.files.write_new(path, b"")
    with pytest.raises(InvalidMetadata, match=f"{path}.*: copy the file of another controller"):
        await started(again(node))


async def test_partial_snapshot_is_removed_at_start() -> None:
    node = new_node()
    await (await started(node)).close()
    for name in (
        "00000000000000000099-0000000001.checkpoint.part",
        "00000000000000000098-0000000001-123.checkpoint.part",
        "00000000000000000097-0000000001.checkpoint.deleted",
    ):
        node.files.write_new(LOG_DIRECTORY / name, b"half")
    await started(again(node))
    assert names(node.files, ".part") == []
    assert names(node.files, ".deleted") == []


# MetadataManager transactions (KIP-868)


async def test_open_metadata_transaction_is_aborted() -> None:
    node = new_node()
    await (await started(node)).close()
    log = raw_log(node.disk)
    begin = BeginTransactionRecord(name="left open")
    log.append([encode_metadata_record(each) for each in (set_config("a"), begin)], 1)
    log.append([encode_metadata_record(set_config("b"))], 1)
    log.close()
    restarted = await started(again(node))
    assert configs(restarted.image) == {"a": "1"}
    assert ["AbortTransaction"] in log_of(node.files)
    await restarted.commit([set_config("c")])
    await restarted.close()
    assert configs((await started(again(node))).image) == {"a": "1", "c": "1"}


async def test_incomplete_bootstrap_is_repeated() -> None:
    node = new_node()
    await (await started(node)).close()
    for name in node.files.list(LOG_DIRECTORY):
        if not name.endswith(".checkpoint"):
            node.files.remove(LOG_DIRECTORY / name)
    log = raw_log(node.disk)
    log.append_control([(ControlType.LEADER_CHANGE, _leader_change(1))], 1)
    half = [
        BeginTransactionRecord(name="Bootstrap records"),
        FeatureLevelRecord(name="metadata.version", feature_level=30),
    ]
    log.append([encode_metadata_record(each) for each in half], 1)
    log.close()
    restarted = await started(again(node))
    assert log_of(node.files)[3][:2] == ["AbortTransaction", "BeginTransaction Bootstrap records"]
    assert restarted.image.features["group.version"] == 1


@pytest.mark.parametrize("commit", [True, False])
async def test_metadata_transaction_spans_several_batches(commit: bool) -> None:
    node = new_node()
    await (await started(node)).close()
    log = raw_log(node.disk)
    end = EndTransactionRecord() if commit else AbortTransactionRecord()
    for record in (BeginTransactionRecord(), set_config("a"), set_config("b"), end):
        log.append([encode_metadata_record(record)], 1)
    log.close()
    restarted = await started(again(node))
    assert configs(restarted.image) == ({"a": "1", "b": "1"} if commit else {})


# Directories of other quorums


def _leader_change(*voters: int) -> control_records.LeaderChangeMessage:
    who = tuple(control_records.Voter(voter_id=voter) for voter in voters)
    return control_records.LeaderChangeMessage(leader_id=voters[0], voters=who, granting_voters=who)


async def test_directory_of_another_node_is_rejected() -> None:
    node = new_node()
    await (await started(node)).close()
    with pytest.raises(InvalidQuorum, match=r"quorum of the nodes \[1\]; this node, 2"):
        await started(again(node), node_id=2)


async def test_directory_with_another_id_is_rejected() -> None:
    node = new_node()
    await (await started(node)).close()
    its_own = re.escape(f"set directory.id={uuid_to_text(DIRECTORY_ID)} in it")
    with pytest.raises(InvalidQuorum, match=rf"meta\.properties.*{its_own}"):
        await started(again(node), directory_id=UUID(int=(1 << 127) + 99))


async def test_voter_of_larger_quorum_is_rejected_without_configuration() -> None:
    node = new_node()
    log = raw_log(node.disk, formatted=False)
    others = [Voter(1, DIRECTORY_ID), Voter(2, UUID(int=(1 << 127) + 8))]
    log.append_control(
        [(ControlType.LEADER_CHANGE, _leader_change(1, 2)), *quorum_records(1, others)], 1
    )
    log.close()
    with pytest.raises(InvalidQuorum, match=r"\[1, 2\]"):
        await started(again(node))


async def test_static_quorum_of_this_node_is_accepted() -> None:
    """A directory that was formatted with controller.quorum.voters has no voters in the log."""
    node = new_node()
    log = raw_log(node.disk, formatted=False)
    log.append_control([(ControlType.LEADER_CHANGE, _leader_change(1))], 1)
    levels = [FeatureLevelRecord(name="metadata.version", feature_level=20)]
    log.append([encode_metadata_record(each) for each in levels], 1)
    log.close()
    metadata = await started(again(node))
    assert (metadata.kraft_version, metadata.leader_epoch) == (0, 2)
    assert "kraft.version" not in metadata.finalized_features
    assert metadata.image.features == {"metadata.version": 20}
    await metadata.commit([set_config("a")])
    snapshot = await metadata.take_snapshot()
    assert snapshot is not None
    assert log_of(node.files, LOG_DIRECTORY / snapshot.file_name)[0] == ["SNAPSHOT_HEADER"]
    await metadata.close()
    assert configs((await started(again(node))).image) == {"a": "1"}


async def test_static_quorum_of_several_nodes_is_rejected() -> None:
    node = new_node()
    log = raw_log(node.disk, formatted=False)
    log.append_control([(ControlType.LEADER_CHANGE, _leader_change(1, 2, 3))], 1)
    log.close()
    with pytest.raises(InvalidQuorum, match=r"\[1, 2, 3\]"):
        await started(again(node))


# Snapshots in the background


async def test_snapshots_are_generated_by_bytes_and_old_ones_deleted(
    autojump_clock: object,
) -> None:
    settings = MetadataLogSettings(
        segment_bytes=16_384, snapshot_bytes=20_000, retention_bytes=60_000
    )
    node = new_node()
    metadata = await started(node, settings=settings)
    async with trio.open_nursery() as nursery:
        await nursery.start(metadata.run)
        for number in range(2000):
            await metadata.commit([set_config(f"c{number % 50}", f"value {number}" * 5)])
            if number % 50 == 0:
                await trio.testing.wait_all_tasks_blocked()
        nursery.cancel_scope.cancel()
    kept = names(node.files, ".checkpoint")
    assert 1 <= len(kept) <= 30
    assert "00000000000000000000-0000000000.checkpoint" not in kept
    segments = names(node.files, ".log")
    assert "00000000000000000000.log" not in segments
    assert sum(node.files.file_size(LOG_DIRECTORY / name) for name in [*kept, *segments]) < 130_000
    await metadata.close()
    restarted = await started(again(node), settings=settings)
    assert state(restarted.image) == state(metadata.image)


async def test_snapshot_is_generated_after_interval_if_the_log_has_grown(
    autojump_clock: trio.testing.MockClock,
) -> None:
    world = VirtualWorld()
    node = new_node(world)
    metadata = await started(node)
    async with trio.open_nursery() as nursery:
        await nursery.start(metadata.run)
        await trio.sleep(120)
        assert len(names(node.files, ".checkpoint")) == 1
        world.clock.advance(3601)
        await trio.sleep(120)
        assert len(names(node.files, ".checkpoint")) == 2
        world.clock.advance(3601)
        await trio.sleep(120)
        assert len(names(node.files, ".checkpoint")) == 2, "nothing happened since"
        nursery.cancel_scope.cancel()


async def test_snapshots_older_than_retention_are_deleted(autojump_clock: object) -> None:
    world = VirtualWorld()
    node = new_node(world)
    metadata = await started(node, settings=MetadataLogSettings(retention_ms=60_000))
    await metadata.commit([set_config("a")])
    first = await metadata.take_snapshot()
    world.clock.advance(30)
    await metadata.commit([set_config("b")])
    second = await metadata.take_snapshot()
    assert first is not None
    assert second is not None
    assert len(names(node.files, ".checkpoint")) == 3
    world.clock.advance(45)
    await metadata.commit([set_config("c")])
    third = await metadata.take_snapshot()
    assert third is not None
    assert names(node.files, ".checkpoint") == [second.file_name, third.file_name]


async def test_retention_waits_for_a_running_flush(autojump_clock: object) -> None:
    world = VirtualWorld()
    node = new_node(world)
    settings = MetadataLogSettings(segment_bytes=16_384, retention_bytes=0)
    metadata = await started(node, settings=settings)
    for number in range(200):
        await metadata.commit([set_config("a", f"{number}" * 100)])
    async with trio.open_nursery() as nursery:
        async with metadata._log_writer.flushing:
            nursery.start_soon(metadata.take_snapshot)
            await trio.testing.wait_all_tasks_blocked()
            assert len(names(node.files, ".checkpoint")) == 2
            assert names(node.files, ".deleted") == []
    assert len(names(node.files, ".checkpoint")) == 1
    assert names(node.files, ".deleted") != []


async def test_failed_snapshot_is_retried(
    autojump_clock: object, caplog: pytest.LogCaptureFixture
) -> None:
    world = VirtualWorld()
    node = new_node(world)
    metadata = await started(node, settings=MetadataLogSettings(snapshot_bytes=1))
    prune = metadata._log.snapshots_to_remove

    def failing(now_ms: int) -> list[SnapshotId]:
        raise CorruptRecords("a snapshot's header")

    metadata._log.snapshots_to_remove = failing  # type: ignore[method-assign]
    async with trio.open_nursery() as nursery:
        await nursery.start(metadata.run)
        await metadata.commit([set_config("a")])
        await trio.sleep(120)
        assert "could not write a metadata snapshot" in caplog.text
        metadata._log.snapshots_to_remove = prune  # type: ignore[method-assign]
        await metadata.commit([set_config("b")])
        await trio.sleep(120)
        assert names(node.files, ".checkpoint")[-1].startswith(f"{metadata.image.offset + 1:020d}")
        nursery.cancel_scope.cancel()


# Snapshot store


def test_other_files_are_not_removed() -> None:
    node = new_node()
    node.files.make_directory(LOG_DIRECTORY)
    for name in ("leader-epoch-checkpoint", "partition.metadata", "00000000000000000099.snapshot"):
        node.files.write_new(LOG_DIRECTORY / name, b"")
    before = node.files.list(LOG_DIRECTORY)
    store = SnapshotStore(node.files, LOG_DIRECTORY)
    store.load()
    assert store.newest is None
    assert node.files.list(LOG_DIRECTORY) == before


def test_metadata_only_uses_its_seams() -> None:
    node = new_node()
    metadata: MetadataManager = metadata_on(node.seams)
    assert metadata.leader_id == -1
    assert metadata.quorum.voters == ()
