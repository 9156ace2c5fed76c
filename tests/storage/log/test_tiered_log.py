"""The local log of a tiered topic (KIP-405): which segments retention may delete, and what
remains known of deleted ones."""

from __future__ import annotations

import dataclasses

import pytest

from odradek.seams.files import FileSlice
from odradek.storage.errors import CorruptRecords, InRemoteTier, OffsetOutOfRange
from odradek.storage.log.leader_epoch_cache import EpochStart, parse_checkpoint
from odradek.storage.log.producer_snapshots import decode_snapshot
from odradek.storage.log.truncation import EmptyLogStart
from odradek.storage.tiered.copy_candidates import list_candidate_segments, open_segment_to_copy
from tests.support.partition_logs import (
    FOREVER,
    NOW_MS,
    LogWorld,
    batch,
    idempotent,
    marker,
    offsets_in,
)

TIERED = dataclasses.replace(
    FOREVER, internal_segment_bytes=300, file_delete_delay_ms=0, remote_storage_enable=True
)
KEEPS_ONE = dataclasses.replace(TIERED, local_retention_bytes=1)
"""The active segment stays as it is."""


def filled(config: object = TIERED, count: int = 12) -> LogWorld:
    """Segments of three batches with one record each, and a new epoch for every four batches."""
    world = LogWorld(config)  # type: ignore[arg-type]
    for number in range(count):
        world.append(idempotent(7, number, timestamps=NOW_MS + number), epoch=number // 4)
    world.log.advance_high_watermark(count)
    world.flush()
    return world


def expire(world: LogWorld, config: object = KEEPS_ONE, now_ms: int = NOW_MS) -> list[int]:
    """Run retention with `config`; returns the base offsets of the remaining segments."""
    world.log.update_config(config)  # type: ignore[arg-type]
    world.log.delete_expired(now_ms)
    world.log.remove_deleted(now_ms)
    return [segment.base_offset for segment in world.log.segments]


def test_segment_is_kept_until_copy_is_finished() -> None:
    """T-30."""
    world = filled()
    bases = [segment.base_offset for segment in world.log.segments]
    assert bases == [0, 3, 6, 9]
    assert expire(world) == bases
    world.log.advance_highest_copied_offset(1)
    assert expire(world) == bases
    world.log.advance_highest_copied_offset(5)
    assert expire(world) == [6, 9]
    world.log.advance_highest_copied_offset(2)
    assert world.log.highest_copied_offset == 5
    assert expire(world) == [6, 9]


def test_segment_is_kept_until_it_is_durable_with_its_epochs() -> None:
    """T-30: otherwise the epochs of a deleted segment would be lost on this node."""
    world = LogWorld(TIERED)
    for number in range(12):
        world.append(batch(timestamps=NOW_MS + number), epoch=number)
    world.log.advance_high_watermark(12)
    world.log.advance_highest_copied_offset(8)
    world.flush_due.clear()
    assert expire(world) == [0, 3, 6, 9]
    assert world.flush_due == [9]
    world.log.flush(up_to=7)
    assert expire(world) == [6, 9]
    assert world.kill().epochs.epoch_for(2) == 2


def test_locally_deleted_segments_stay_in_log() -> None:
    world = filled()
    log = world.log
    log.advance_highest_copied_offset(8)
    assert expire(world) == [9]
    assert (log.log_start_offset, log.local_log_start_offset, log.end_offset) == (0, 9, 12)
    with pytest.raises(InRemoteTier):
        log.read(8, 100, limit=12)
    assert offsets_in(log, 9) == [9, 10, 11]
    assert [each.epoch for each in log.epochs.entries] == [0, 1, 2]
    log.advance_log_start(2, "test")
    with pytest.raises(InRemoteTier):
        log.read(2, 100, limit=12)
    with pytest.raises(OffsetOutOfRange) as caught:
        log.read(1, 100, limit=12)
    assert not isinstance(caught.value, InRemoteTier)
    log.advance_log_start(10, "test")
    assert (log.log_start_offset, log.local_log_start_offset) == (10, 10)


@pytest.mark.parametrize("restart", ["clean", "kill", "power cut"])
def test_restart_keeps_offsets_of_remote_tier(restart: str) -> None:
    world = filled()
    world.log.advance_highest_copied_offset(8)
    expire(world)
    world.log.advance_log_start(2, "test")
    world.config, world.log_start_offset = world.log.config, 2
    match restart:
        case "clean":
            log = world.reopen()
        case "kill":
            log = world.kill()
        case _:
            log = world.power_cut(3)
    assert (log.log_start_offset, log.local_log_start_offset, log.end_offset) == (2, 9, 12)
    assert log.high_watermark >= 9
    assert log.epochs.entries == (EpochStart(0, 2), EpochStart(1, 4), EpochStart(2, 8))
    assert log.highest_copied_offset == -1
    entry = log.producers.get(7)
    assert entry is not None
    assert entry.last_sequence == 11


def test_log_without_remote_storage_starts_at_local_log_start() -> None:
    world = filled()
    world.log.advance_highest_copied_offset(8)
    expire(world)
    world.config = FOREVER
    log = world.reopen()
    assert (log.log_start_offset, log.local_log_start_offset) == (9, 9)
    with pytest.raises(OffsetOutOfRange) as caught:
        log.read(8, 100, limit=12)
    assert not isinstance(caught.value, InRemoteTier)


def test_disabling_remote_storage_raises_log_start_to_local_log_start() -> None:
    """E2: remote.log.delete.on.disable, applied by each replica."""
    world = filled()
    world.log.advance_highest_copied_offset(8)
    expire(world)
    world.log.update_config(FOREVER)
    assert (world.log.log_start_offset, world.log.local_log_start_offset) == (9, 9)
    assert world.log.epochs.entries == (EpochStart(2, 9),)
    world.log.update_config(TIERED)
    assert world.log.log_start_offset == 9


def test_copies_before_disabling_remote_storage_do_not_count() -> None:
    """T-30: the copies were deleted meanwhile, and retention may run before the copies are known
    again."""
    world = filled()
    world.log.advance_highest_copied_offset(8)
    world.log.update_config(FOREVER)
    assert expire(world) == [0, 3, 6, 9]
    world.log.advance_highest_copied_offset(5)
    assert expire(world) == [6, 9]


def test_local_retention_limits_local_log() -> None:
    """T-15."""
    world = filled()
    world.log.advance_highest_copied_offset(11)
    sized = dataclasses.replace(TIERED, local_retention_bytes=world.log.size_bytes - 1)
    assert expire(world, sized) == [0, 3, 6, 9]
    two = sum(segment.size for segment in world.log.segments[2:])
    assert expire(world, dataclasses.replace(TIERED, local_retention_bytes=two)) == [6, 9]
    aged = dataclasses.replace(TIERED, local_retention_ms=100)
    assert expire(world, aged, NOW_MS + 108) == [6, 9]
    assert expire(world, aged, NOW_MS + 109) == [9]
    assert world.log.log_start_offset == 0


def test_local_retention_defaults_to_total_retention() -> None:
    """T-15: -2 inherits the total limit."""
    world = filled()
    world.log.advance_highest_copied_offset(11)
    assert expire(world, dataclasses.replace(TIERED, retention_ms=100), NOW_MS + 109) == [9]
    assert world.log.log_start_offset == 0


def test_expired_active_segment_is_rolled_to_be_copied() -> None:
    """E12: with local.retention.ms=1 all segments are copied to the remote tier."""
    world = filled()
    world.log.advance_highest_copied_offset(8)
    aged = dataclasses.replace(TIERED, local_retention_ms=1)
    assert expire(world, aged, NOW_MS + 20) == [9, 12]
    assert [each.base_offset for each in list_candidate_segments(world.log)] == [9]
    world.log.advance_highest_copied_offset(11)
    assert expire(world, aged, NOW_MS + 20) == [12]
    assert (world.log.log_start_offset, world.log.local_log_start_offset) == (0, 12)
    assert expire(world, aged, NOW_MS + 20) == [12]


def test_remote_log_copy_disable_applies_total_retention_to_local_log() -> None:
    """remote.log.copy.disable: as in Kafka, retention.* applies and the log start offset advances
    with the local log."""
    world = filled()
    world.log.advance_highest_copied_offset(2)
    quiet = dataclasses.replace(TIERED, remote_log_copy_disable=True, local_retention_bytes=0)
    assert expire(world, quiet) == [0, 3, 6, 9]
    assert expire(world, dataclasses.replace(quiet, retention_ms=100), NOW_MS + 106) == [6, 9]
    assert (world.log.log_start_offset, world.log.local_log_start_offset) == (6, 6)


def test_segments_below_log_start_offset_are_deleted_without_copy() -> None:
    world = filled()
    world.log.advance_log_start(7, "test")
    assert expire(world, TIERED) == [6, 9]
    assert (world.log.log_start_offset, world.log.local_log_start_offset) == (7, 7)


def test_local_retention_applies_without_delete_policy() -> None:
    world = filled()
    world.log.advance_highest_copied_offset(5)
    assert expire(world, dataclasses.replace(KEEPS_ONE, cleanup_policy=())) == [6, 9]
    assert world.log.log_start_offset == 0


def test_truncation_lowers_highest_copied_offset() -> None:
    world = filled()
    world.log.advance_highest_copied_offset(8)
    world.log.truncate_to(7)
    assert world.log.highest_copied_offset == 6
    world.log.truncate_fully(EmptyLogStart(5, 1))
    assert world.log.highest_copied_offset == -1
    assert (world.log.log_start_offset, world.log.local_log_start_offset) == (1, 5)


def test_new_leadership_resets_highest_copied_offset() -> None:
    world = filled()
    world.log.advance_highest_copied_offset(8)
    assert world.log.local_only_bytes == world.log.segments[3].size
    world.log.reset_highest_copied_offset()
    assert world.log.highest_copied_offset == -1
    assert world.log.local_only_bytes == world.log.size_bytes


def test_only_inactive_segments_below_last_stable_offset_are_copied() -> None:
    """T-28."""
    world = LogWorld(TIERED)
    for number in range(3):
        world.append(idempotent(7, number))
    world.append(idempotent(8, 0, transactional=True))
    for number in range(3, 8):
        world.append(idempotent(7, number))
    log = world.log
    assert [segment.base_offset for segment in log.segments] == [0, 3, 6]
    assert list_candidate_segments(log) == []  # no record is replicated
    log.advance_high_watermark(2)
    assert list_candidate_segments(log) == []
    log.advance_high_watermark(9)
    assert [(each.base_offset, each.end_offset) for each in list_candidate_segments(log)] == [
        (0, 2)
    ]
    world.coordinate(marker(8, commit=True))
    log.advance_high_watermark(log.end_offset)
    assert [each.end_offset for each in list_candidate_segments(log)][:2] == [2, 5]


def test_segment_is_copied_with_indexes_snapshot_and_epochs() -> None:
    """T-21, T-56."""
    world = LogWorld(TIERED)
    for number in range(3):
        world.append(
            idempotent(7, number, transactional=True, timestamps=NOW_MS + number), epoch=number
        )
        world.coordinate(marker(7, commit=False, timestamp=NOW_MS), epoch=number)
    log = world.log
    log.advance_high_watermark(log.end_offset)
    log.roll()
    last = list_candidate_segments(log)[-1]
    opened = open_segment_to_copy(log, last)
    data = opened.data
    assert isinstance(data.log, FileSlice)
    assert data.log.read() == world.files.read(last.segment.path(".log"))
    for part, kind in (
        (data.offset_index, ".index"),
        (data.time_index, ".timeindex"),
        (data.transaction_index, ".txnindex"),
    ):
        assert part == world.files.read(last.segment.path(kind))
    assert not opened.txn_index_empty
    assert opened.max_timestamp_ms == last.segment.max_timestamp
    entries = decode_snapshot(bytes(data.producer_snapshot))  # type: ignore[arg-type]
    assert [entry.producer_id for entry in entries] == [7]
    assert parse_checkpoint(data.leader_epochs) == list(log.epochs.entries)
    assert opened.epochs[0].start_offset == last.base_offset
    opened.close()
    opened.close()
    assert data.log.file.pins == 0


def test_missing_or_corrupt_snapshot_is_rebuilt() -> None:
    """T-56."""
    world = filled()
    first, second, _ = list_candidate_segments(world.log)
    wanted = [
        bytes(open_segment_to_copy(world.log, each).data.producer_snapshot)
        for each in (first, second)
    ]  # type: ignore[arg-type]
    world.files.remove(world.log.snapshots.path(3))
    torn = world.files.open(world.log.snapshots.path(6), write=True)
    torn.truncate(20)
    for each, before in zip((first, second), wanted, strict=True):
        found = open_segment_to_copy(world.log, each).data.producer_snapshot
        (now,), (then,) = decode_snapshot(bytes(found)), decode_snapshot(before)  # type: ignore[arg-type]
        assert (now.producer_id, now.last_sequence) == (then.producer_id, then.last_sequence)


def test_segment_deleted_during_copy_stays_readable() -> None:
    world = filled()
    first = list_candidate_segments(world.log)[0]
    opened = open_segment_to_copy(world.log, first)
    assert isinstance(opened.data.log, FileSlice)
    wanted = opened.data.log.read()
    world.log.advance_highest_copied_offset(8)
    assert expire(world) == [9]
    assert opened.data.log.read() == wanted
    with pytest.raises(OffsetOutOfRange):
        open_segment_to_copy(world.log, first)
    opened.close()


def test_truncated_segment_file_is_not_copied() -> None:
    """Other replicas have the whole segment, and copied segments are deleted from their disks."""
    world = filled()
    second = world.log.segments[1]
    size = second.size
    world.log.close(True)
    world.files.open(second.path(".log"), write=True).truncate(size // 2)
    log = world.open(clean=True)
    log.advance_high_watermark(12)
    for each in list_candidate_segments(log):
        if each.base_offset == second.base_offset:
            with pytest.raises(CorruptRecords):
                open_segment_to_copy(log, each)
        else:
            open_segment_to_copy(log, each).close()


def test_epochs_of_copy_start_at_segment_base_offset() -> None:
    world = filled()
    found = [
        open_segment_to_copy(world.log, each).epochs for each in list_candidate_segments(world.log)
    ]
    assert found == [
        (EpochStart(0, 0),),
        (EpochStart(0, 3), EpochStart(1, 4)),
        (EpochStart(1, 6), EpochStart(2, 8)),
    ]


def test_aborted_transactions_of_locally_deleted_read_raise() -> None:
    """The transaction index is deleted with its segment; without it, a read_committed reader
    would receive aborted records."""
    world = LogWorld(TIERED)
    world.append(idempotent(7, 0, transactional=True))
    world.coordinate(marker(7, commit=False))
    for _ in range(6):
        world.append(batch(1))
    world.log.advance_high_watermark(world.log.end_offset)
    world.flush()
    read = world.log.read(0, 100, limit=8)
    assert read.slice is not None
    assert [each.producer_id for each in world.log.aborted_in(read)] == [7]
    world.log.advance_highest_copied_offset(world.log.segments[-1].base_offset - 1)
    assert expire(world)[0] > 2
    with pytest.raises(InRemoteTier):
        world.log.aborted_in(read)
    read.slice.file.unpin()
    world.log.advance_log_start(5, "test")
    with pytest.raises(OffsetOutOfRange):
        world.log.aborted_in(read)
