"""Open and aborted transactions after retention and truncation of the log."""

from __future__ import annotations

import dataclasses

import pytest

from odradek.storage.log.transaction_index import AbortedTransaction
from tests.support.partition_logs import FOREVER, NOW_MS, LogWorld, batch, idempotent, marker

CONFIG = dataclasses.replace(FOREVER, internal_segment_bytes=400, file_delete_delay_ms=0)


def begun(world: LogWorld, producer: int = 7, sequence: int = 0) -> int:
    """First offset of a new transaction."""
    return world.append(idempotent(producer, sequence, transactional=True)).first_offset


def aborted(world: LogWorld, producer: int = 7) -> int:
    """Abort the transaction; returns the offset of the marker."""
    return world.coordinate(marker(producer, commit=False)).first_offset


def filled(world: LogWorld, count: int = 20) -> None:
    for _ in range(count):
        world.append(batch(1))
    world.log.advance_high_watermark(world.log.end_offset)


@pytest.fixture
def world() -> LogWorld:
    return LogWorld(CONFIG)


@pytest.mark.parametrize("restart", ["no", "clean", "kill", "power cut"])
def test_transaction_with_deleted_beginning_stays_open(world: LogWorld, restart: str) -> None:
    begun(world)
    filled(world)
    world.flush()
    log = world.log
    start = log.segments[2].base_offset + 1
    log.advance_log_start(start, "test")
    assert log.delete_expired(NOW_MS) == 2
    log.remove_deleted(NOW_MS)
    world.log_start_offset = start
    match restart:
        case "clean":
            log = world.reopen()
        case "kill":
            log = world.kill()
        case "power cut":
            log = world.power_cut(1)
    log.advance_high_watermark(log.end_offset)
    assert log.last_stable_offset == start  # all remaining records are after its first offset
    end = aborted(world)
    log.advance_high_watermark(end + 1)
    assert log.last_stable_offset == end + 1
    assert list(log.aborted_transactions(start, end)) == [AbortedTransaction(7, 0, end, end + 1)]


def test_aborted_transaction_is_deleted_with_segment_of_its_marker(world: LogWorld) -> None:
    first = begun(world)
    end = aborted(world)
    filled(world)
    log = world.log
    named = f"{0:020}.txnindex"
    assert named in world.names()
    wanted = [AbortedTransaction(7, first, end, end + 1)]
    assert list(log.aborted_transactions(0, 2)) == wanted
    log.advance_log_start(end, "test")  # within the first segment
    assert log.delete_expired(NOW_MS) == 0
    assert list(log.aborted_transactions(end, end + 1)) == wanted
    log.advance_log_start(log.segments[1].base_offset, "test")
    assert log.delete_expired(NOW_MS) == 1
    log.remove_deleted(NOW_MS)
    assert named not in world.names()
    assert list(log.aborted_transactions(log.log_start_offset, log.end_offset)) == []


def test_abort_of_long_transaction_is_in_segment_of_its_marker(world: LogWorld) -> None:
    first = begun(world)
    filled(world)
    end = aborted(world)
    log = world.log
    last = log.segments[-1]
    assert [each for each in world.names() if each.endswith(".txnindex")] == [
        f"{last.base_offset:020}.txnindex"
    ]
    # Reads of only the first or only the last batches return it.
    wanted = [AbortedTransaction(7, first, end, end + 1)]
    assert list(log.aborted_transactions(first, first + 1)) == wanted
    assert list(log.aborted_transactions(end, end + 1)) == wanted


def test_retention_deletes_segments_of_open_transaction(world: LogWorld) -> None:
    begun(world)
    filled(world)
    log = world.log
    log.update_config(dataclasses.replace(CONFIG, retention_bytes=0))
    assert log.delete_expired(NOW_MS) > 2
    assert log.last_stable_offset == log.log_start_offset
    assert log.producers.has_ongoing_transaction(7, 0)


def test_truncation_of_marker_reopens_transaction(world: LogWorld) -> None:
    first = begun(world)
    end = aborted(world)
    filled(world, 4)
    log = world.log
    log.truncate_to(end)
    log.advance_high_watermark(log.end_offset)
    assert log.last_stable_offset == first
    assert list(log.aborted_transactions(0, end)) == []
    world.coordinate(marker(7, commit=True))
    log.advance_high_watermark(log.end_offset)
    assert log.last_stable_offset == log.end_offset
    assert list(log.aborted_transactions(0, log.end_offset)) == []


def test_fully_truncated_log_has_no_transactions(world: LogWorld) -> None:
    begun(world)
    begun(world, 8)
    aborted(world, 8)
    world.log.truncate_fully_and_start_at(100)
    assert world.log.last_stable_offset == 100
    assert list(world.log.aborted_transactions(100, 101)) == []
    assert not world.log.producers.active


def test_producer_with_open_transaction_does_not_expire(world: LogWorld) -> None:
    begun(world)
    day_ms = 86_400_000
    assert world.log.expire_producers(NOW_MS + 3 * day_ms) == 0
    aborted(world)
    assert world.log.expire_producers(NOW_MS + 3 * day_ms) == 1
