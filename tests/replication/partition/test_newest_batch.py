"""The newest batch in memory equals the contents of the log, or is absent."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from odradek.replication.partition.partition import NEWEST_BYTES_MAX
from odradek.storage.errors import LogFailed, OffsetOutOfRange
from odradek.storage.log.partition_log import PartitionLog
from tests.replication.partition.replica_of_three import ReplicaOfThree, alone
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


def appended(scenario: ReplicaOfThree, size: int = 10) -> bytes:
    end = scenario.world.log.end_offset
    scenario.partition.append(batch(size=size), acks=1, now_ms=NOW_MS)
    return bytes_in(scenario.world.log, end) or b""


def only_replica() -> ReplicaOfThree:
    scenario = ReplicaOfThree()
    scenario.see(**alone(scenario.image))
    return scenario


@pytest.fixture
def scenario() -> ReplicaOfThree:
    return only_replica()


@given(steps=st.lists(st.sampled_from(STEPS), max_size=20))
def test_newest_batch_equals_log_contents(steps: list[str]) -> None:
    scenario = only_replica()
    log, partition = scenario.world.log, scenario.partition
    for step in steps:
        if step == "append":
            appended(scenario)
        elif step == "append large":
            appended(scenario, NEWEST_BYTES_MAX)
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
            partition.watch(scenario.described)
        else:
            partition.unwatch(scenario.described)
        for offset in range(log.log_start_offset - 1, log.end_offset + 1):
            newest = partition.newest_batch(offset, log.end_offset)
            assert newest is None or newest == bytes_in(log, offset)
            assert partition.newest_batch(offset, log.end_offset - 1) is None


def test_newest_batch_is_kept_only_while_watched(scenario: ReplicaOfThree) -> None:
    appended(scenario)
    assert scenario.partition.newest_batch(0, 1) is None
    scenario.partition.watch(scenario.described)
    assert scenario.partition.newest_batch(1, 2) is None
    assert scenario.partition.newest_batch(1, 1) is None
    records = appended(scenario)
    assert scenario.partition.newest_batch(1, 2) == records
    scenario.partition.unwatch(scenario.described)
    assert scenario.partition.newest_batch(1, 2) is None


def test_large_batch_is_not_kept(scenario: ReplicaOfThree) -> None:
    scenario.partition.watch(scenario.described)
    appended(scenario, NEWEST_BYTES_MAX)
    assert scenario.partition.newest_batch(0, 1) is None


def test_newest_batch_has_the_broker_compression(scenario: ReplicaOfThree) -> None:
    log = scenario.world.log
    log.update_config(replace(log.config, compression_type="uncompressed"))
    scenario.partition.watch(scenario.described)
    sent = batch(size=1000, compression=1)
    scenario.partition.append(sent, acks=1, now_ms=NOW_MS)
    newest = scenario.partition.newest_batch(0, 1)
    assert newest == bytes_in(log, 0)
    assert newest is not None
    assert len(newest) > 1000 > len(sent)


def test_offline_log_has_no_newest_batch(scenario: ReplicaOfThree) -> None:
    scenario.partition.watch(scenario.described)
    appended(scenario)
    assert scenario.partition.newest_batch(0, 1) is not None
    scenario.world.log.fail(LogFailed("the disk is gone"))
    assert scenario.partition.newest_batch(0, 1) is None


def test_newest_batch_after_truncation_is_dropped(scenario: ReplicaOfThree) -> None:
    log = scenario.world.log
    scenario.partition.watch(scenario.described)
    appended(scenario)
    log.truncate_to(0)
    log.append_as_follower(batch(base_offset=0, size=20))
    assert scenario.partition.newest_batch(0, 1) is None


def test_deleted_newest_batch_is_not_returned(scenario: ReplicaOfThree) -> None:
    log = scenario.world.log
    scenario.partition.watch(scenario.described)
    appended(scenario)
    assert log.advance_log_start(1, "asked to")
    assert scenario.partition.newest_batch(0, 1) is None
