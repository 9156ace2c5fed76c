"""The newest batch in memory equals the contents of the log, or is absent."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from odradek.replication.partition.partition import NEWEST_BYTES_MAX
from odradek.storage.errors import LogFailed, OffsetOutOfRange
from odradek.storage.log.partition_log import PartitionLog
from tests.replication.partition.replica_of_three import Stand, alone
from tests.support.partition_logs import NOW_MS, batch

STEPS = ("append", "append large", "follow", "truncate", "roll", "move start", "watch", "unwatch")


def bytes_in(log: PartitionLog, offset: int) -> bytes | None:
    """Return the records from an offset, or None if none can be read."""
    try:
        found = log.read(offset, 2**20, limit=log.end_offset).slice
    except OffsetOutOfRange:
        return None
    if found is None:
        return None
    try:
        return bytes(found.file.read_at(found.position, found.size))
    finally:
        found.file.unpin()


def appended(stand: Stand, size: int = 10) -> bytes:
    end = stand.world.log.end_offset
    stand.partition.append(batch(size=size), acks=1, now_ms=NOW_MS)
    return bytes_in(stand.world.log, end) or b""


def only_replica() -> Stand:
    stand = Stand()
    stand.see(**alone(stand.image))
    return stand


@pytest.fixture
def stand() -> Stand:
    return only_replica()


@given(steps=st.lists(st.sampled_from(STEPS), max_size=20))
def test_newest_batch_equals_log_contents(steps: list[str]) -> None:
    stand = only_replica()
    log, partition = stand.world.log, stand.partition
    for step in steps:
        if step == "append":
            appended(stand)
        elif step == "append large":
            appended(stand, NEWEST_BYTES_MAX)
        elif step == "follow":
            log.append_as_follower(batch(base_offset=log.end_offset, size=20))
        elif step == "truncate":
            log.truncate_to(max(log.log_start_offset, log.end_offset - 1))
        elif step == "roll":
            log.roll()
        elif step == "move start":
            log.advance_high_watermark(log.end_offset)
            log.advance_log_start(log.end_offset, "asked to")
        elif step == "watch":
            partition.watch(stand.described)
        else:
            partition.unwatch(stand.described)
        for offset in range(log.log_start_offset - 1, log.end_offset + 1):
            newest = partition.newest_batch(offset, log.end_offset)
            assert newest is None or newest == bytes_in(log, offset)
            assert partition.newest_batch(offset, log.end_offset - 1) is None


def test_newest_batch_is_kept_only_while_watched(stand: Stand) -> None:
    appended(stand)
    assert stand.partition.newest_batch(0, 1) is None
    stand.partition.watch(stand.described)
    assert stand.partition.newest_batch(1, 2) is None
    assert stand.partition.newest_batch(1, 1) is None
    records = appended(stand)
    assert stand.partition.newest_batch(1, 2) == records
    stand.partition.unwatch(stand.described)
    assert stand.partition.newest_batch(1, 2) is None


def test_large_batch_is_not_kept(stand: Stand) -> None:
    stand.partition.watch(stand.described)
    appended(stand, NEWEST_BYTES_MAX)
    assert stand.partition.newest_batch(0, 1) is None


def test_newest_batch_has_the_broker_compression(stand: Stand) -> None:
    log = stand.world.log
    log.update_config(replace(log.config, compression_type="uncompressed"))
    stand.partition.watch(stand.described)
    sent = batch(size=1000, compression=1)
    stand.partition.append(sent, acks=1, now_ms=NOW_MS)
    newest = stand.partition.newest_batch(0, 1)
    assert newest == bytes_in(log, 0)
    assert newest is not None
    assert len(newest) > 1000 > len(sent)


def test_offline_log_has_no_newest_batch(stand: Stand) -> None:
    stand.partition.watch(stand.described)
    appended(stand)
    assert stand.partition.newest_batch(0, 1) is not None
    stand.world.log.fail(LogFailed("the disk is gone"))
    assert stand.partition.newest_batch(0, 1) is None


def test_newest_batch_after_truncation_is_dropped(stand: Stand) -> None:
    log = stand.world.log
    stand.partition.watch(stand.described)
    appended(stand)
    log.truncate_to(0)
    log.append_as_follower(batch(base_offset=0, size=20))
    assert stand.partition.newest_batch(0, 1) is None


def test_deleted_newest_batch_is_not_returned(stand: Stand) -> None:
    log = stand.world.log
    stand.partition.watch(stand.described)
    appended(stand)
    assert log.advance_log_start(1, "asked to")
    assert stand.partition.newest_batch(0, 1) is None
