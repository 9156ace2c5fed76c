"""Damage below the recovery point of the metadata log, as opposed to a torn tail after a crash."""

from __future__ import annotations

import errno
from collections.abc import Iterator
from itertools import accumulate, pairwise
from uuid import UUID

import pytest

from odradek.protocol.records.batch import batches
from odradek.protocol.schemas.serde import encode_metadata_record
from odradek.replication.controller.image import InvalidMetadata
from odradek.replication.raft.bootstrap import FIRST_SNAPSHOT, quorum_records
from odradek.replication.raft.errors import InvalidQuorum
from odradek.replication.raft.metadata_log import CHECKPOINT_S, MetadataLog, MetadataLogSettings
from odradek.replication.raft.voters import Voter
from odradek.storage.errors import LogFailed
from odradek.testing.virtual_world import VirtualNode
from tests.support.metadata_nodes import (
    FIRST_SEGMENT,
    RECOVERY_POINT,
    ROOT,
    again,
    configs,
    names,
    new_node,
    set_config,
    started,
)


def opened(node: VirtualNode, *, is_only_copy: bool) -> MetadataLog:
    files, clock = again(node).files, node.seams.clock
    log = MetadataLog(files, ROOT, clock, MetadataLogSettings())
    log.open(lambda whole: is_only_copy)
    return log


def append(log: MetadataLog, name: str) -> None:
    log.append([encode_metadata_record(set_config(name), 0)], epoch=9)


async def ended_node() -> tuple[VirtualNode, bytes]:
    """Return a stopped single controller and its log."""
    node = new_node()
    await (await started(node)).close()
    metadata = await started(again(node))
    for number in range(3):
        await metadata.commit([set_config(f"{number}")])
    await metadata.close()
    return node, node.files.read(FIRST_SEGMENT)


async def test_only_copy_of_damaged_log_is_not_truncated() -> None:
    node, whole = await ended_node()
    ends = accumulate((batch.size for batch in batches(memoryview(whole))), initial=0)
    for start, end in pairwise(ends):
        flipped = bytearray(whole)
        flipped[end - 1] ^= 1
        for damaged in (bytes(flipped), whole[:start] + bytes(len(whole) - start), whole[:start]):
            node.files.write_new(FIRST_SEGMENT, damaged)
            for _ in range(2):
                with pytest.raises(
                    InvalidMetadata, match=r"are lost: restore .*, or remove /data/"
                ):
                    await started(again(node))
                assert node.files.read(FIRST_SEGMENT) == damaged
    node.files.write_new(FIRST_SEGMENT, whole)
    assert configs((await started(again(node))).image) == dict.fromkeys("012", "1")


OTHERS = [("host-2", 9093), ("host-3", 9093)]


async def test_single_voter_has_the_only_copy_despite_other_configured_nodes() -> None:
    """The other nodes are not voters yet, or no longer (KIP-853)."""
    node, whole = await ended_node()
    for damaged in (whole[:-1] + b"?", b"?" * len(whole), b""):
        node.files.write_new(FIRST_SEGMENT, damaged)
        with pytest.raises(InvalidMetadata, match=r"are lost: restore .*, or remove /data/"):
            await started(again(node), bootstrap_servers=OTHERS)
        assert node.files.read(FIRST_SEGMENT) == damaged
    node.files.remove(RECOVERY_POINT)
    with pytest.raises(InvalidQuorum, match=r"no records, but /data has partitions"):
        await started(again(node), bootstrap_servers=OTHERS, find_partitions=lambda: ROOT)


async def test_one_of_several_voters_has_no_only_copy_without_configured_nodes() -> None:
    node, _ = await ended_node()
    log = opened(node, is_only_copy=True)
    voters = [Voter(id, UUID(int=(1 << 100) + id)) for id in (1, 2, 3)]
    log.append_control(quorum_records(1, voters), epoch=9)
    several = log.end_offset
    append(log, "damaged")
    log.close()
    node.files.write_new(FIRST_SEGMENT, node.files.read(FIRST_SEGMENT)[:-1] + b"?")
    with pytest.raises(InvalidQuorum, match=r"a quorum of the nodes \[1, 2, 3\]"):
        await started(again(node))
    assert opened(node, is_only_copy=True).end_offset == several


async def test_damaged_log_and_snapshot_are_reported_with_remedy() -> None:
    """The voters are unknown, so nothing is truncated."""
    node, whole = await ended_node()
    damaged = {FIRST_SEGMENT: whole[:-1] + b"?"}
    path = FIRST_SEGMENT.parent / FIRST_SNAPSHOT.file_name
    damaged[path] = node.files.read(path)[:-1] + b"?"
    for each, data in damaged.items():
        node.files.write_new(each, data)
    with pytest.raises(
        InvalidMetadata, match=r"are lost; and .*\.checkpoint: .*: restore the files"
    ):
        await started(again(node), bootstrap_servers=OTHERS)
    assert {each: node.files.read(each) for each in damaged} == damaged


async def test_missing_segment_is_detected() -> None:
    node, _ = await ended_node()
    node.files.remove(FIRST_SEGMENT)
    for _ in range(2):
        with pytest.raises(
            InvalidMetadata, match=r"is below the required offset: offsets 0 to .* are lost"
        ):
            await started(again(node))


async def test_truncated_segment_is_detected() -> None:
    node = new_node()
    metadata = await started(node, settings=MetadataLogSettings(segment_bytes=2000))
    for number in range(30):
        await metadata.commit([set_config(f"{number}")])
    await metadata.close()
    second = names(node.files, ".log")[1]
    *_, last = batches(memoryview(node.files.read(FIRST_SEGMENT)))
    node.files.write_new(FIRST_SEGMENT, node.files.read(FIRST_SEGMENT)[: -last.size])
    for _ in range(2):
        lost = f"{second} does not start at the end of the previous segment: offsets {last.base_offset} to .* are lost"
        with pytest.raises(InvalidMetadata, match=lost):
            await started(again(node))
    assert second in names(node.files, ".log")


async def test_removed_recovery_point_accepts_the_loss() -> None:
    node, whole = await ended_node()
    node.files.write_new(FIRST_SEGMENT, whole[:-1] + b"?")
    node.files.remove(RECOVERY_POINT)
    for _ in range(2):
        metadata = await started(again(node))
        assert configs(metadata.image) == {"0": "1", "1": "1"}
        await metadata.close()


async def test_damaged_log_is_truncated_and_fetched_from_other_voters(
    caplog: pytest.LogCaptureFixture,
) -> None:
    node, whole = await ended_node()
    end = opened(node, is_only_copy=False).end_offset
    node.files.write_new(FIRST_SEGMENT, whole[:-1] + b"?")
    for _ in range(2):
        assert opened(node, is_only_copy=False).end_offset == end - 1
    (reported,) = [each.getMessage() for each in caplog.records if each.levelname == "ERROR"]
    lost = f"offsets {end - 1} to {end - 1} are lost; they are fetched from the leader again"
    assert reported.endswith(lost)


async def test_truncated_records_are_not_reported_as_damage() -> None:
    node, _ = await ended_node()
    log = opened(node, is_only_copy=False)
    cut_to = log.end_offset - 2
    log.truncate(cut_to)
    assert opened(node, is_only_copy=True).end_offset == cut_to


async def test_torn_tail_after_recovery_point_is_truncated() -> None:
    """After a power loss a torn tail has holes, with complete batches after them."""
    node, _ = await ended_node()
    log = opened(node, is_only_copy=True)
    synced = log.end_offset
    for name in ("torn", "whole"):
        append(log, name)
    data = node.files.read(FIRST_SEGMENT)
    node.files.write_new(FIRST_SEGMENT, data.replace(b"torn", bytes(4)))
    assert opened(node, is_only_copy=True).end_offset == synced


async def test_running_node_checkpoints_the_recovery_point() -> None:
    node, _ = await ended_node()
    log = opened(node, is_only_copy=True)
    append(log, "soon")
    log.flush()
    assert written(node) == log.end_offset - 1, "that was at the start"
    append(log, "later")
    node.seams.clock.advance(CHECKPOINT_S)
    log.flush()
    assert written(node) == log.end_offset


def written(node: VirtualNode) -> int:
    version, count, line, crc = node.files.read(RECOVERY_POINT).decode().splitlines()
    assert (version, count) == ("0", "2"), "Kafka's format"
    topic, partition, offset = line.split()
    assert (topic, partition) == ("__cluster_metadata", "0")
    assert crc.startswith("crc32c 0 ")
    return int(offset)


async def test_damage_below_snapshot_end_is_ignored() -> None:
    node = new_node()
    metadata = await started(node)
    await metadata.commit([set_config("a")])
    snapshot = await metadata.take_snapshot()
    assert snapshot is not None
    await metadata.close()
    whole = node.files.read(FIRST_SEGMENT)
    node.files.write_new(FIRST_SEGMENT, whole[:-1] + b"?")
    assert configs((await started(again(node))).image) == {"a": "1"}


@pytest.mark.parametrize("content", [b"", b"?", b"0\n1\n__cluster_metadata 0 x\n", b"\xff"])
async def test_corrupt_recovery_point_is_ignored(content: bytes) -> None:
    node, whole = await ended_node()
    node.files.write_new(RECOVERY_POINT, content)
    node.files.write_new(FIRST_SEGMENT, whole[:-1] + b"?")
    log = opened(node, is_only_copy=True)
    assert written(node) == log.end_offset


def damaged_recovery_points(whole: bytes, offset: int) -> Iterator[bytes]:
    """The recovery point with another offset, another partition or another CRC."""
    line = b"__cluster_metadata 0 %d\n" % offset
    yield whole.replace(line, b"__cluster_metadata 0 %d\n" % (offset + 2))
    yield whole.replace(line, b"__cluster_metadata 0 %d\n" % (offset - 2))
    yield whole.replace(line, b"__cluster_metadate 0 %d\n" % offset)
    yield whole[:-2] + (b"1\n" if whole[-2:-1] != b"1" else b"2\n")


async def test_recovery_point_with_wrong_crc_is_not_used(caplog: pytest.LogCaptureFixture) -> None:
    node, _ = await ended_node()
    end = written(node)
    whole = node.files.read(RECOVERY_POINT)
    damaged = list(damaged_recovery_points(whole, end))
    for each in damaged:
        assert each != whole
        node.files.write_new(RECOVERY_POINT, each)
        assert opened(node, is_only_copy=True).end_offset == end
        assert node.files.read(RECOVERY_POINT) == whole
    reported = [each.getMessage() for each in caplog.records if each.levelname == "WARNING"]
    assert len(reported) == len(damaged)
    for message in reported:
        assert message.startswith(f"{RECOVERY_POINT} is corrupt (")
        assert "Log recovery checks the log from its start" in message


async def test_recovery_point_without_crc_of_an_earlier_version_is_used() -> None:
    node, whole = await ended_node()
    end = written(node)
    node.files.write_new(RECOVERY_POINT, b"0\n1\n__cluster_metadata 0 %d\n" % end)
    node.files.write_new(FIRST_SEGMENT, whole[:-1] + b"?")
    with pytest.raises(InvalidMetadata, match="are lost"):
        opened(node, is_only_copy=True)
    node.files.write_new(FIRST_SEGMENT, whole)
    opened(node, is_only_copy=True)
    assert written(node) == end


@pytest.mark.parametrize("ends", [False, True])
async def test_unwritable_recovery_point_fails_the_log(ends: bool) -> None:
    """Commits fail with the error, and a close continues with the other files."""
    node = new_node()
    metadata = await started(node)
    await metadata.commit([set_config("a")])
    node.disk.fail(f"{RECOVERY_POINT}*", errno.EIO)
    if not ends:
        node.seams.clock.advance(CHECKPOINT_S)
        with pytest.raises(LogFailed):
            await metadata.commit([set_config("b")])
    await metadata.close()
    assert metadata.failed.is_set()
    assert RECOVERY_POINT.name in str(metadata.failure)


async def test_node_starts_on_full_disk() -> None:
    node, whole = await ended_node()
    node.files.remove(RECOVERY_POINT)
    mount = node.disk.mount_of(ROOT)
    space, mount.capacity_bytes = mount.capacity_bytes, 0
    log = opened(node, is_only_copy=True)
    assert node.files.read(FIRST_SEGMENT) == whole
    assert not node.files.exists(RECOVERY_POINT)
    mount.capacity_bytes = space
    log.close()
    assert written(node) == log.end_offset
