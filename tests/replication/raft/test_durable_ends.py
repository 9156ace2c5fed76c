"""File of the acknowledged end of the metadata log, and what a node does whose log ends before it."""

from __future__ import annotations

import errno

import pytest

from odradek.protocol.schemas.serde import encode_metadata_record
from odradek.replication.raft.durable_ends import (
    ACKNOWLEDGED_END,
    NOTHING_ACKNOWLEDGED,
    SLOT_BYTES,
    AcknowledgedEndFile,
)
from odradek.replication.raft.election_state import OffsetAndEpoch
from odradek.replication.raft.metadata_log import MetadataLog, MetadataLogSettings
from odradek.storage.errors import LogFailed
from odradek.testing.virtual_world import VirtualNode
from tests.support.metadata_nodes import (
    FIRST_SEGMENT,
    LOG_DIRECTORY,
    ROOT,
    again,
    configs,
    new_node,
    set_config,
    started,
)


def end_at(offset: int, epoch: int = 3) -> OffsetAndEpoch:
    return OffsetAndEpoch(epoch, offset)


def file_on(node: VirtualNode) -> AcknowledgedEndFile:
    node.files.make_directory(LOG_DIRECTORY)
    file = AcknowledgedEndFile(node.files, LOG_DIRECTORY)
    file.load()
    return file


def test_missing_file_is_the_end_of_an_empty_log() -> None:
    assert file_on(new_node()).end == NOTHING_ACKNOWLEDGED


def test_end_advances_and_survives_a_restart() -> None:
    node = new_node()
    file = file_on(node)
    for end in (end_at(5), end_at(7), end_at(6), end_at(2, epoch=4)):
        file.advance(end)
    assert file.end == end_at(2, epoch=4)
    assert file_on(node).end == end_at(2, epoch=4)


def test_limit_lowers_the_end_and_later_ends_are_stored_again() -> None:
    node = new_node()
    file = file_on(node)
    file.advance(end_at(5))
    file.advance(end_at(9))
    file.limit(end_at(4))
    assert file_on(node).end == end_at(4)
    file.limit(end_at(8))
    assert file.end == end_at(4), "it is not raised"
    file.advance(end_at(6))
    assert file_on(node).end == end_at(6)


def test_synced_end_survives_power_loss_and_a_torn_slot_is_not_used() -> None:
    node = new_node()
    file = file_on(node)
    file.advance(end_at(5))
    file.advance(end_at(9))
    file.sync()
    whole = node.files.read(file.path)
    for slot in (0, 1):
        torn = bytearray(whole)
        torn[slot * SLOT_BYTES + 20] ^= 1
        node.files.write_new(file.path, bytes(torn))
        assert file_on(node).end in (end_at(5), end_at(9))
    node.files.write_new(file.path, whole)
    assert file_on(again(node)).end == end_at(9)


def test_flipped_bit_never_yields_an_end_that_was_not_stored() -> None:
    node = new_node()
    file = file_on(node)
    stored = [end_at(5), end_at(2, epoch=4), end_at(7, epoch=4)]
    for end in stored:
        file.advance(end)
    whole = node.files.read(file.path)
    used = [at for at, byte in enumerate(whole) if byte != ord(" ") or at % SLOT_BYTES < 70]
    for position in used:
        for bit in range(8):
            damaged = bytearray(whole)
            damaged[position] ^= 1 << bit
            node.files.write_new(file.path, bytes(damaged))
            assert file_on(node).end in stored[1:]


def test_corrupt_file_is_logged_and_written_again(caplog: pytest.LogCaptureFixture) -> None:
    node = new_node()
    file = file_on(node)
    file.advance(end_at(5))
    for content in (b"", b"?" * 2 * SLOT_BYTES, node.files.read(file.path)[:30]):
        node.files.write_new(file.path, content)
        caplog.clear()
        corrupt = file_on(node)
        assert corrupt.end == NOTHING_ACKNOWLEDGED
        assert f"{file.path} is corrupt" in caplog.text
        corrupt.advance(end_at(3))
        assert file_on(node).end == end_at(3)


async def test_only_voter_that_lost_synced_records_starts_and_logs_it(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """The record was synced after the last checkpoint of the recovery point."""
    node = new_node()
    metadata = await started(node)
    await metadata.commit([set_config("kept")])
    kept = node.files.file_size(FIRST_SEGMENT)
    await metadata.commit([set_config("lost")])
    end = metadata.quorum.log_end_offset
    node.files.write_new(FIRST_SEGMENT, node.files.read(FIRST_SEGMENT)[:kept])
    restarted = await started(again(node))
    assert configs(restarted.image) == {"kept": "1"}
    (error,) = [each.getMessage() for each in caplog.records if each.levelname == "ERROR"]
    assert error == (
        f"{LOG_DIRECTORY} ends at offset {end - 1}, but this node had synced it up to offset {end} (epoch 1): records "
        "are lost. This node is the only voter and continues without them"
    )
    caplog.clear()
    await restarted.close()
    await started(again(node))
    assert "records are lost" not in caplog.text


def flushed_log(node: VirtualNode, *epochs: int) -> MetadataLog:
    """Log with a record of each epoch, all synced."""
    node.files.make_directory(LOG_DIRECTORY)
    log = MetadataLog(node.files, ROOT, node.seams.clock, MetadataLogSettings())
    log.open()
    for epoch in epochs:
        log.append([encode_metadata_record(set_config("a"), 0)], epoch)
    log.flush()
    return log


def test_acknowledged_end_is_that_of_the_flushed_log() -> None:
    node = new_node()
    log = flushed_log(node, 1, 1, 4)
    assert log.acknowledged_end == end_at(3, epoch=4)
    log.append([encode_metadata_record(set_config("a"), 0)], 5)
    assert log.acknowledged_end == end_at(3, epoch=4), "it is not flushed"
    assert flushed_log(again(node)).acknowledged_end == end_at(4, epoch=5), "the start flushed it"


def test_truncation_lowers_the_acknowledged_end() -> None:
    node = new_node()
    log = flushed_log(node, 1, 1, 4, 4)
    log.truncate(2)
    assert log.acknowledged_end == end_at(2, epoch=1)
    assert not flushed_log(again(node)).has_lost_records


def test_lost_records_are_known_until_they_are_fetched_again() -> None:
    node = new_node()
    log = flushed_log(node, 1, 1)
    kept = node.files.file_size(FIRST_SEGMENT)
    log.append([encode_metadata_record(set_config("a"), 0)], 2)
    log.flush()
    node.files.write_new(FIRST_SEGMENT, node.files.read(FIRST_SEGMENT)[:kept])
    for _ in range(2):
        log = flushed_log(again(node))
        assert log.has_lost_records
        assert log.acknowledged_end == end_at(3, epoch=2)
    log.append([encode_metadata_record(set_config("b"), 0)], 3)
    log.flush()
    assert not log.has_lost_records
    assert log.acknowledged_end == end_at(3, epoch=3)


def test_records_below_the_recovery_point_are_known_without_the_file() -> None:
    node = new_node()
    flushed_log(node, 1, 1, 1).close()
    node.files.remove(LOG_DIRECTORY / ACKNOWLEDGED_END)
    node.files.write_new(FIRST_SEGMENT, node.files.read(FIRST_SEGMENT)[:-1] + b"?")
    assert flushed_log(again(node)).acknowledged_end == end_at(3, epoch=1)


def test_full_disk_leaves_an_earlier_acknowledged_end() -> None:
    node = new_node()
    log = flushed_log(node, 1)
    log.append([encode_metadata_record(set_config("a"), 0)], 1)
    node.disk.fail(f"{LOG_DIRECTORY / ACKNOWLEDGED_END}*", errno.ENOSPC)
    log.flush()
    assert log.acknowledged_end == end_at(1, epoch=1)


def test_failed_write_of_the_acknowledged_end_fails_the_log() -> None:
    node = new_node()
    log = flushed_log(node, 1)
    log.append([encode_metadata_record(set_config("a"), 0)], 1)
    node.disk.fail(f"{LOG_DIRECTORY / ACKNOWLEDGED_END}*", errno.EIO)
    with pytest.raises(LogFailed):
        log.flush()
