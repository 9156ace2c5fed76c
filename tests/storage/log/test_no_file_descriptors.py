"""Missing file descriptors at any operation of a call. A refused batch is not in the log, an
acknowledged one is read back, and no offset is assigned twice. An incomplete operation takes the
log offline."""

from __future__ import annotations

import dataclasses
import errno
from collections.abc import Callable
from contextlib import suppress

import pytest

from odradek.protocol.records.batch import Batch
from odradek.seams.files import OutOfDescriptors
from odradek.storage.errors import LogFailed, NoDescriptors
from odradek.storage.log.config import LogConfig
from odradek.storage.log.partition_log import PartitionLog
from tests.support.partition_logs import (
    NOW_MS,
    LogWorld,
    batch,
    idempotent,
    marker,
    offsets_in,
    records_in,
)

SMALL = LogConfig(internal_segment_bytes=400, index_interval_bytes=100)


def values(world: LogWorld) -> list[bytes]:
    return [record.value or b"" for record in records_in(world.log)]


def test_acknowledged_batches_are_in_log_and_refused_ones_are_not() -> None:
    passes, failed, refused = 0, 1, 0
    while failed:
        world = LogWorld(config=SMALL)
        fault = world.disk.fail("*", errno.EMFILE, passes=passes, times=1)
        written: list[bytes] = []
        for number in range(20):
            try:
                world.append(batch(size=40 + number, keys=False))
            except NoDescriptors:
                refused += 1
            else:
                written.append(bytes(40 + number))
        world.disk.heal()
        assert values(world) == written, f"operation {passes}"
        world.kill()
        assert values(world) == written, f"operation {passes}, after a kill"
        failed, passes = fault.failed, passes + 1
    assert passes > 50
    assert refused


@pytest.mark.parametrize("follows", [False, True])
def test_first_append_after_clean_start_completes_or_fails(follows: bool) -> None:
    """Loading the producer state needs another file."""
    passes, failed, refused = 0, 1, 0
    while failed:
        world = LogWorld(config=SMALL)
        world.append(idempotent(7, 0))
        world.reopen(clean=True)
        fault = world.disk.fail("*", errno.EMFILE, passes=passes, times=1)
        written = [bytes(20)]
        for size in (30, 40):
            sent = batch(size=size, keys=False)
            try:
                if follows:
                    Batch(sent).stamp(world.log.end_offset, 0)
                    world.log.append_as_follower(sent)
                else:
                    world.append(sent)
            except NoDescriptors:
                refused += 1
            else:
                written.append(bytes(size))
        world.disk.heal()
        assert values(world) == written, f"operation {passes}"
        world.kill()
        assert values(world) == written, f"operation {passes}, after a kill"
        failed, passes = fault.failed, passes + 1
    assert refused


@pytest.mark.parametrize("restart", ["kill", "reopen"])
def test_failed_transaction_index_append_takes_log_offline(restart: str) -> None:
    """The marker is written and its index entry is required, so nothing may be appended after it."""
    world = LogWorld(config=SMALL)
    world.append(idempotent(9, 0, transactional=True))
    world.disk.fail("*.txnindex", errno.EMFILE)
    with pytest.raises(LogFailed):
        world.coordinate(marker(9, commit=False))
    with pytest.raises(LogFailed):
        world.append()
    world.disk.heal()
    world.kill() if restart == "kill" else world.reopen(clean=False)
    world.append()
    world.log.advance_high_watermark(world.log.end_offset)
    (aborted,) = world.log.aborted_transactions(0, world.log.end_offset)
    assert (aborted.producer_id, aborted.first_offset, aborted.last_offset) == (9, 0, 1)


def cut_to_15(log: PartitionLog) -> None:
    log.truncate_to(15)


def begin_at_40(log: PartitionLog) -> None:
    log.truncate_fully_and_start_at(40)


@pytest.mark.parametrize("pinned", [False, True])
@pytest.mark.parametrize(("cut", "end", "point"), [(cut_to_15, 15, 15), (begin_at_40, 40, 0)])
def test_truncation_completes_or_fails_or_takes_log_offline(
    cut: Callable[[PartitionLog], None], end: int, point: int, pinned: bool
) -> None:
    """After a partial truncation, the log would assign offsets that later segments have too."""
    passes, failed, refused, lost = 0, 1, 0, 0
    while failed:
        world = LogWorld(config=SMALL)
        for number in range(30):
            world.append(idempotent(7, number, size=40), epoch=number // 7)
        world.flush()
        log, before = world.log, records_in(world.log)
        slice_ = log.read(15, 1000, limit=30).slice if pinned else None
        fault = world.disk.fail("*", errno.EMFILE, passes=passes, times=1)
        try:
            cut(log)
        except NoDescriptors:
            refused += 1
            assert records_in(log) == before, f"operation {passes}"
            cut(log)
        except LogFailed:
            lost += 1
            with pytest.raises(LogFailed):
                world.append()
        world.disk.heal()
        if slice_ is not None:
            slice_.file.unpin()
        if log.failure is None:
            assert (log.end_offset, world.recovery_point) == (end, point)
            world.append(idempotent(8, 0), epoch=9)
            assert offsets_in(log, log.log_start_offset)[-1] == end
        log = world.kill()
        kept = records_in(log, log.log_start_offset)
        assert [each.offset for each in kept] == [*range(log.log_start_offset, log.end_offset)]
        assert kept[:15] == before[: min(len(kept), 15)] or log.log_start_offset == 40
        assert log.end_offset >= 15 or cut is begin_at_40
        failed, passes = fault.failed, passes + 1
    assert lost
    assert refused or cut is begin_at_40  # its first step opens a file
    assert world.failures == []  # the directory stays online


def test_failed_checkpoint_of_lowered_recovery_point_is_retried() -> None:
    """Otherwise records appended after the truncation would be trusted, although they were never
    synced."""
    world = LogWorld(config=SMALL)
    for _ in range(30):
        world.append()
    world.flush()
    lower = world.log.on_checkpoint_due
    assert lower is not None

    def refused() -> None:
        raise OutOfDescriptors(errno.EMFILE, "no descriptors")

    world.log.on_checkpoint_due = refused
    with pytest.raises(NoDescriptors):
        world.log.truncate_to(15)
    world.log.on_checkpoint_due = lower
    world.log.truncate_to(15)
    assert world.recovery_point == 15


def test_expired_segment_stays_in_log_until_renamed() -> None:
    """The next retention check repeats the rename. If the segment were removed from the list
    first, the next start would load it together with later appends at its offsets."""
    passes, failed = 0, 1
    while failed:
        world = LogWorld(config=SMALL)
        for number in range(30):
            world.append(idempotent(7, number, size=40))
        log = world.log
        log.advance_high_watermark(30)
        log.update_config(dataclasses.replace(SMALL, retention_bytes=1500, file_delete_delay_ms=0))
        fault = world.disk.fail("*", errno.EMFILE, passes=passes, times=1)
        with suppress(NoDescriptors):
            log.delete_expired(NOW_MS)
        world.disk.heal()
        assert log.failure is None
        there = {name for name in world.names() if name.endswith(".log")}
        assert there == {segment.path(".log").name for segment in log.segments}
        log.delete_expired(NOW_MS)
        log.remove_deleted(NOW_MS)
        assert offsets_in(log, log.log_start_offset) == [*range(log.log_start_offset, 30)]
        bases = {f"{segment.base_offset:020d}" for segment in log.segments}
        left = {name for name in world.names() if name[0] == "0" and name[:20] not in bases}
        assert not left, f"operation {passes}"
        failed, passes = fault.failed, passes + 1
    assert passes > 20


def test_failed_undo_of_segment_rename_raises_eio() -> None:
    world = LogWorld(config=SMALL)
    world.append()
    world.log.roll()
    world.log.advance_high_watermark(1)
    world.log.update_config(dataclasses.replace(SMALL, retention_bytes=0))
    world.disk.fail("*.index", errno.EMFILE, {"rename"})
    world.disk.fail("*.log", errno.EMFILE, {"rename"}, passes=1)
    with pytest.raises(LogFailed):
        world.log.delete_expired(NOW_MS)
    assert [error.errno for error in world.failures] == [errno.EIO]
    world.disk.heal()
    assert world.kill().end_offset == 1
