"""PartitionLog: append, read, roll, flush, retention, close and reopen."""

from __future__ import annotations

import dataclasses
import random
import re
from collections.abc import Iterable

import pytest
from crc32c import crc32c

from odradek.protocol.records.batch import Batch
from odradek.protocol.topics import TopicPartition
from odradek.seams.entropy import SeededEntropy
from odradek.seams.files import Path, WouldBlock
from odradek.storage.errors import (
    InconsistentTopicId,
    LogFailed,
    OffsetOutOfRange,
    OutOfOrderSequence,
    UnexpectedOffset,
)
from odradek.storage.log.config import LogConfig
from odradek.storage.log.leader_epoch_cache import EpochEnd, EpochStart
from odradek.storage.log.partition_log import (
    AppendOrigin,
    AppendResult,
    LogEnvironment,
    PartitionLog,
    RecoveryOptions,
    TimestampAndOffset,
)
from odradek.storage.log.read import read_upper_bound
from odradek.storage.log.transaction_index import AbortedTransaction
from tests.support.partition_logs import (
    DIRECTORY,
    FOREVER,
    NOW_MS,
    TOPIC_ID,
    LogWorld,
    batch,
    check_indexes,
    idempotent,
    marker,
    offsets_in,
    raises_offline,
    read_batches,
    records_in,
)


def small(segment_bytes: int = 400, **more: object) -> LogConfig:
    """Configs for segments of a few batches, with an index entry for every second batch."""
    return dataclasses.replace(
        FOREVER,
        internal_segment_bytes=segment_bytes,
        index_interval_bytes=100,
        **more,  # type: ignore[arg-type]
    )


@pytest.fixture
def world() -> LogWorld:
    return LogWorld(small())


def names(world: LogWorld) -> list[str]:
    """File names without leading zeros."""
    return [re.sub(r"^0+(?=\d)", "", name) for name in world.names()]


# Appending


def test_append_assigns_offsets_and_leader_epoch_in_place(world: LogWorld) -> None:
    data = batch(3)
    assert world.append(data, epoch=4) == AppendResult(0, 2, -1, 0, False, len(data), data)
    second = batch(2)
    assert world.append(second, epoch=5) == AppendResult(3, 4, -1, 0, False, len(second), second)
    assert world.log.end_offset == 5
    assert (Batch(data).base_offset, Batch(data).leader_epoch) == (0, 4)
    found = read_batches(world.log, 0, 5)
    assert [(each.base_offset, each.last_offset, each.leader_epoch) for each in found] == [
        (0, 2, 4),
        (3, 4, 5),
    ]
    assert bytes(found[0].view) == bytes(data)
    assert world.log.epochs.entries == (EpochStart(4, 0), EpochStart(5, 3))
    assert world.log.epochs.end_offset_for(4) == EpochEnd(4, 3)


def test_append_returns_log_append_time(world: LogWorld) -> None:
    world.log.update_config(small(message_timestamp_type="LogAppendTime"))
    assert world.append().log_append_time_ms == NOW_MS


def test_duplicate_batch_returns_offsets_of_first_append(world: LogWorld) -> None:
    world.append()
    world.append(idempotent(7, 0, 2))
    world.append(idempotent(7, 2, 3))
    assert world.append(idempotent(7, 0, 2)) == AppendResult(1, 2, NOW_MS, 0, True, 0)
    assert world.log.end_offset == 6
    with pytest.raises(OutOfOrderSequence):
        world.append(idempotent(7, 9))
    assert world.log.end_offset == 6


def test_follower_appends_leader_batches_unchanged(world: LogWorld) -> None:
    leader = LogWorld(small(100_000))
    for n in range(6):
        leader.append(idempotent(7, n * 2, 2), epoch=n // 3)
    read = leader.log.read(0, 100_000, limit=12)
    assert read.slice is not None
    whole = memoryview(bytearray(read.slice.read()))
    cut = len(whole) - 10
    size_bytes = len(whole) // 6 * 5
    assert world.log.append_as_follower(whole[:cut]) == AppendResult(0, 9, -1, 0, False, size_bytes)
    with pytest.raises(UnexpectedOffset) as caught:
        world.log.append_as_follower(whole)
    assert (caught.value.first_offset, caught.value.last_offset) == (0, 11)
    assert world.log.append_as_follower(whole[-len(whole) // 6 :]).last_offset == 11
    assert world.log.append_as_follower(whole[:5]) == AppendResult(12, 11, -1, 0, False, 0)
    assert records_in(world.log) == records_in(leader.log)
    assert world.log.epochs.entries == leader.log.epochs.entries
    entry = world.log.producers.get(7)
    assert entry is not None
    assert entry.last_sequence == 11
    check_indexes(world)


def test_follower_appends_batches_with_offset_gaps(world: LogWorld) -> None:
    """Compaction on the leader leaves them."""
    for offset in (0, 5, 11, 500, 2**31 + 600):
        found = Batch(batch(2))
        found.stamp(offset, 0)
        world.log.append_as_follower(found.view)
    assert offsets_in(world.log, 3) == [5, 6, 11, 12, 500, 501, 2**31 + 600, 2**31 + 601]
    assert world.log.segments[-1].base_offset == 2**31 + 600
    world.reopen()
    assert offsets_in(world.log, 13) == [500, 501, 2**31 + 600, 2**31 + 601]


def test_raft_leader_append_keeps_offsets_and_epochs(world: LogWorld) -> None:
    first, second = Batch(batch(2)), Batch(batch(1))
    first.stamp(0, 3)
    second.stamp(2, 3)
    data = memoryview(bytearray(bytes(first.view) + bytes(second.view)))
    assert world.append(data, epoch=3, origin=AppendOrigin.RAFT).last_offset == 2
    assert world.log.end_offset == 3


# Reading


def test_read_is_limited_to_max_bytes_except_first_batch(world: LogWorld) -> None:
    sizes = [len(batch(1)), len(batch(2)), len(batch(3))]
    for count in (1, 2, 3):
        world.append(batch(count))
    log = world.log
    whole = log.read(0, 10_000, limit=6)
    assert whole.slice is not None
    assert whole.slice.size == sum(sizes)
    within = log.read(2, 10_000, limit=6)  # the batch of offset 2 starts at offset 1
    assert within.slice is not None
    assert (within.slice.position, within.base_offset) == (sizes[0], 1)
    assert within.slice.size == sizes[1] + sizes[2]
    cut = log.read(0, sizes[0] + 10, limit=6)
    assert cut.slice is not None
    assert cut.slice.size == sizes[0] + 10
    least = log.read(0, 1, limit=6)
    assert least.slice is not None
    assert (least.slice.size, least.first_batch_size) == (sizes[0], sizes[0])
    for max_bytes in (0, 1, sizes[0] - 1):
        none = log.read(0, max_bytes, limit=6, at_least_one=False)
        assert (none.slice, none.first_batch_size) == (None, sizes[0])
    assert log.read(0, sizes[0], limit=6, at_least_one=False).slice == least.slice


def test_read_returns_nothing_at_or_past_limit(world: LogWorld) -> None:
    for count in (1, 2, 3):
        world.append(batch(count))
    for limit, size in [(0, 0), (1, len(batch(1))), (3, len(batch(1)) + len(batch(2)))]:
        read = world.log.read(0, 10_000, limit=limit)
        assert (read.slice.size if read.slice else 0) == size
    assert world.log.read(3, 100, limit=3).slice is None
    assert world.log.read(6, 100, limit=6).slice is None


@pytest.mark.parametrize("offset", [-1, 1, 7])
def test_read_out_of_range_raises(world: LogWorld, offset: int) -> None:
    for _ in range(6):
        world.append()
    world.log.advance_high_watermark(6)
    world.log.advance_log_start(2, "test")
    with pytest.raises(OffsetOutOfRange):
        world.log.read(offset, 100, limit=6)
    assert offsets_in(world.log, 2) == [2, 3, 4, 5]


def test_nowait_read_of_uncached_headers_raises_would_block(world: LogWorld) -> None:
    for _ in range(12):
        world.append()
    world.reopen()
    world.disk.chill("*.log")
    with pytest.raises(WouldBlock):
        world.log.read(0, 100, limit=12, nowait=True)
    read = world.log.read(0, 100, limit=12)
    assert read.slice is not None
    read.slice.file.unpin()
    assert world.log.read(0, 100, limit=12, nowait=True).slice is not None


def test_read_finds_batch_of_every_offset(world: LogWorld) -> None:
    rng = random.Random(3)
    world.log.update_config(small(5000))
    while world.log.end_offset < 400:
        world.append(batch(rng.randint(1, 9), size=rng.randint(0, 60)))
    end = world.log.end_offset
    assert offsets_in(world.log) == list(range(end))
    for _ in range(100):
        offset = rng.randrange(end)
        limit = rng.randint(offset, end)
        read = world.log.read(offset, rng.randint(0, 2000), limit=limit)
        if read.slice is None:
            continue
        first = Batch(memoryview(read.slice.read()))
        assert first.base_offset <= offset <= first.last_offset
        read.slice.file.unpin()
    check_indexes(world)


# Rolling, flushing


def test_segments_roll_by_size_and_indexes_are_trimmed(world: LogWorld) -> None:
    for _ in range(10):
        world.append(batch(size=60))
    log = world.log
    assert [segment.base_offset for segment in log.segments] == [0, 3, 6, 9]
    assert all(segment.size <= 400 for segment in log.segments)
    assert names(world)[:4] == ["0.index", "0.log", "0.timeindex", "3.index"]
    assert world.files.file_size(DIRECTORY / "00000000000000000000.index") == 16
    assert world.flush_due == [3, 6, 9]
    assert [n for n in names(world) if n.endswith("snapshot")] == [
        "3.snapshot",
        "6.snapshot",
        "9.snapshot",
    ]
    check_indexes(world)


def test_roll_has_no_effect_on_empty_segment(world: LogWorld) -> None:
    world.append()
    world.log.roll()
    world.log.roll()
    assert [segment.base_offset for segment in world.log.segments] == [0, 1]
    world.append()
    assert offsets_in(world.log) == [0, 1]


def test_roll_jitter_differs_per_segment() -> None:
    world = LogWorld(small(segment_jitter_ms=50, segment_ms=100))
    log = PartitionLog.open(
        LogEnvironment(world.files, world.clock, SeededEntropy(random.Random(1))),
        Path("/logs/j-0"),
        TopicPartition("j", 0),
        world.config,
        topic_id=None,
        recovery=RecoveryOptions(clean=False),
    )
    log.append_as_leader(batch(), leader_epoch=0, now_ms=NOW_MS)
    jitter = log.segments[0].roll_jitter_ms
    assert 0 < jitter < 50
    later = batch(timestamps=NOW_MS + 100 - jitter)
    log.append_as_leader(later, leader_epoch=0, now_ms=NOW_MS)
    assert len(log.segments) == 1
    much_later = batch(timestamps=NOW_MS + 101 - jitter)
    log.append_as_leader(much_later, leader_epoch=0, now_ms=NOW_MS)
    assert len(log.segments) == 2


def test_flush_advances_recovery_point_with_minimal_syncs(world: LogWorld) -> None:
    for _ in range(5):
        world.append(batch(size=60))
    world.log.flush(up_to=3)
    assert world.log.recovery_point == 3
    world.log.flush()
    assert world.log.recovery_point == 5
    syncs = world.files.syncs
    world.log.flush()
    assert world.files.syncs == syncs
    world.append()
    world.log.flush()
    assert world.files.syncs == syncs + 3  # data and two indexes; no new epoch or file name
    assert world.files.read(DIRECTORY / "leader-epoch-checkpoint") == b"0\n1\n0 0\n"


def test_flush_messages_requests_flush_without_sync_on_loop() -> None:
    world = LogWorld(small(flush_messages=3))
    syncs = world.files.syncs
    for is_due in (False, False, True, True):
        world.append()
        assert world.log.is_flush_due == is_due
    assert world.flush_due == [3, 4]
    assert (world.log.recovery_point, world.files.syncs) == (0, syncs)
    world.log.flush(4)
    assert not world.log.is_flush_due


# High watermark, transactions


def test_high_watermark_increases_up_to_log_end(world: LogWorld) -> None:
    world.append(batch(5))
    assert world.log.advance_high_watermark(3)
    assert not world.log.advance_high_watermark(2)
    assert not world.log.advance_high_watermark(3)
    assert world.log.high_watermark == 3
    assert world.log.advance_high_watermark(99)
    assert world.log.high_watermark == 5


def test_last_stable_offset_and_aborted_transactions(world: LogWorld) -> None:
    world.append()
    world.append(idempotent(7, 0, 2, transactional=True))
    world.append()
    world.log.advance_high_watermark(4)
    assert world.log.last_stable_offset == 1
    world.coordinate(marker(7, commit=False))
    assert world.log.last_stable_offset == 1
    world.log.advance_high_watermark(5)
    assert world.log.last_stable_offset == 5
    world.append(idempotent(8, 0, transactional=True))
    world.coordinate(marker(8, commit=True))
    aborted = [AbortedTransaction(7, 1, 4, 5)]
    assert world.log.aborted_transactions(0, 7) == aborted
    assert world.log.aborted_transactions(3, 4) == aborted
    assert world.log.aborted_transactions(5, 7) == []
    assert world.log.aborted_transactions(0, 1) == []
    for clean in (True, False):
        world.reopen(clean=clean)
        assert world.log.aborted_transactions(0, 7) == aborted
        entry = world.log.producers.get(7)
        assert entry is not None
        assert entry.coordinator_epoch == 0


def test_aborted_transactions_are_in_the_segment_of_their_marker(world: LogWorld) -> None:
    world.append(idempotent(7, 0, transactional=True))
    for _ in range(12):
        world.append()
    world.coordinate(marker(7, commit=False))
    assert len(world.log.segments) > 2
    assert world.log.aborted_transactions(0, 1) == [AbortedTransaction(7, 0, 13, 14)]
    assert [name for name in names(world) if name.endswith("txnindex")] == ["12.txnindex"]


def test_open_transaction_survives_restarts(world: LogWorld) -> None:
    world.append()
    world.append(idempotent(7, 0, transactional=True))
    for clean in (True, False):
        world.reopen(clean=clean)
        world.log.advance_high_watermark(world.log.end_offset)
        assert world.log.last_stable_offset == 1


def test_read_upper_bound_from_offset_index(world: LogWorld) -> None:
    for _ in range(20):
        world.append()
    for offset in range(20):
        read = world.log.read(offset, 150, limit=20)
        assert read.slice is not None
        last = read_batches(world.log, offset, 20, 150)[0].last_offset
        assert last < read_upper_bound(world.log.segment_list, read, 20) <= 20


def test_sequential_read_equals_first_lookup() -> None:
    """The last located batch is remembered; appends, a truncation and other readers run in
    between."""
    world = LogWorld(small(3000))
    first_offsets: list[int] = []

    def append(count: int) -> None:
        appended = world.append(batch(count))
        first_offsets.extend([appended.first_offset] * count)

    def check(offsets: Iterable[int]) -> None:
        for offset in offsets:
            found = world.log.read(offset, 150, limit=world.log.end_offset, nowait=True)
            assert found.slice is not None
            found.slice.file.unpin()
            assert (found.base_offset, offset) == (first_offsets[offset], offset)

    draw = random.Random(1)
    for _ in range(60):
        append(draw.randint(1, 3))
    assert len(world.log.segments) > 2
    world.reopen()  # without the tail in memory
    end = world.log.end_offset
    check(range(end))
    check(draw.randrange(end) for _ in range(200))
    check([end // 2, end // 2 + 1])
    world.log.truncate_to(end // 2)
    del first_offsets[world.log.end_offset :]
    for _ in range(5):
        append(2)
    check(range(end // 3, world.log.end_offset))


def test_aborted_transactions_of_read(world: LogWorld) -> None:
    for _ in range(6):
        world.append()
    log = world.reopen()
    read = log.read(0, 150, limit=6)
    assert log.aborted_in(read) == ()
    world.append(idempotent(7, 0, transactional=True))
    world.coordinate(marker(7, commit=False))
    assert log.aborted_in(log.read(0, 150, limit=8)) == []
    assert [each.producer_id for each in log.aborted_in(log.read(6, 300, limit=8))] == [7]


# Timestamps


def test_first_record_at_or_after_timestamp() -> None:
    world = LogWorld(small(2000))
    times = [100, 300, 200, 500, 400, 600, 900, 700, 800, 1000]
    for n in range(0, 10, 2):
        world.append(batch(2, timestamps=times[n : n + 2]), epoch=n)
    for target in range(50, 1100, 50):
        want = next((n for n, time in enumerate(times) if time >= target), None)
        found = world.log.find_timestamp(target)
        if want is None:
            assert found is None
        else:
            assert found == TimestampAndOffset(times[want], want, want // 2 * 2)
    assert world.log.max_timestamp() == TimestampAndOffset(1000, 9, 8)
    world.log.advance_high_watermark(10)
    world.log.advance_log_start(4, "test")
    assert world.log.find_timestamp(50) == TimestampAndOffset(400, 4, 4)


def test_timestamp_lookup_across_segments_and_restarts(world: LogWorld) -> None:
    rng = random.Random(5)
    times = [rng.randint(0, 10_000) for _ in range(60)]
    for time in times:
        world.append(batch(timestamps=time))
    assert len(world.log.segments) > 5
    for reopen in (None, True, False):
        if reopen is not None:
            world.reopen(clean=reopen)
        for target in range(0, 10_000, 333):
            want = next((n for n, time in enumerate(times) if time >= target), None)
            found = world.log.find_timestamp(target)
            assert (found and found.offset) == want
        largest = world.log.max_timestamp()
        assert largest is not None
        assert (largest.timestamp, largest.offset) == (max(times), times.index(max(times)))


def with_invalid_last_record(*timestamps: int, base_offset: int = 0) -> memoryview:
    """A batch that an earlier version may have appended: its CRC is valid, its last record is not."""
    data = batch(len(timestamps), timestamps=list(timestamps))
    data[-1] = 0x7F  # the number of the record's headers
    data[17:21] = crc32c(data[21:]).to_bytes(4, "big")
    Batch(data).stamp(base_offset, 0)
    return data


def test_timestamp_lookup_skips_invalid_records(world: LogWorld) -> None:
    world.log.append_as_follower(with_invalid_last_record(100, 200, 300))
    assert world.log.find_timestamp(150) == TimestampAndOffset(200, 1, 0)
    assert world.log.find_timestamp(250) is None
    world.append(batch(timestamps=[250]))
    assert world.log.find_timestamp(250) == TimestampAndOffset(250, 3, 0)


def test_max_timestamp_lookup_skips_invalid_records(world: LogWorld) -> None:
    world.append(batch(2, timestamps=[150, 50]))
    world.log.append_as_follower(with_invalid_last_record(100, 900, base_offset=2))
    assert world.log.max_timestamp() == TimestampAndOffset(150, 0, 0)
    world.append(batch(timestamps=[200]))
    assert world.log.max_timestamp() == TimestampAndOffset(200, 4, 0)


def test_timestamp_lookup_without_timestamps(world: LogWorld) -> None:
    world.append(batch(timestamps=-1))
    assert world.log.max_timestamp() is None
    assert world.log.find_timestamp(0) is None


# Retention


def test_expired_segments_are_renamed_then_unlinked(world: LogWorld) -> None:
    for _ in range(10):
        world.append(batch(size=60))
    log = world.log
    log.advance_high_watermark(10)
    log.update_config(small(retention_bytes=300, file_delete_delay_ms=1000))
    assert log.delete_expired(NOW_MS) == 2
    assert (log.log_start_offset, log.segments[0].base_offset) == (6, 6)
    assert "0.log.deleted" in names(world)
    assert "3.snapshot.deleted" in names(world)
    assert log.remove_deleted(NOW_MS + 999) == 0
    assert log.remove_deleted(NOW_MS + 1000) == 2
    assert not [name for name in names(world) if name.endswith("deleted")]
    assert offsets_in(log, 6) == [6, 7, 8, 9]
    with pytest.raises(OffsetOutOfRange):
        log.read(5, 100, limit=10)


def test_log_continues_after_all_records_expired(world: LogWorld) -> None:
    for _ in range(5):
        world.append(batch(size=60), epoch=3)
    log = world.log
    log.update_config(LogConfig(retention_ms=1000))
    assert log.delete_expired(NOW_MS + 5000) == 0  # the high watermark did not advance
    log.advance_high_watermark(5)
    assert log.delete_expired(NOW_MS + 5000) == 2
    assert (log.log_start_offset, log.end_offset) == (5, 5)
    assert log.epochs.entries == (EpochStart(3, 5),)
    assert world.append().first_offset == 5
    world.reopen()
    assert offsets_in(world.log, 5) == [5]


def test_slice_of_deleted_segment_is_readable(world: LogWorld) -> None:
    for _ in range(5):
        world.append(batch(size=60))
    read = world.log.read(0, 1000, limit=5)
    assert read.slice is not None
    before = read.slice.read()
    world.log.advance_high_watermark(5)
    world.log.update_config(small(retention_bytes=0, file_delete_delay_ms=0))
    world.log.delete_expired(NOW_MS)
    world.log.remove_deleted(NOW_MS)
    assert "0.log" not in names(world)
    assert read.slice.read() == before
    read.slice.file.unpin()


def test_delete_records_removes_whole_segments(world: LogWorld) -> None:
    for _ in range(10):
        world.append(batch(size=60))
    world.log.advance_high_watermark(10)
    with pytest.raises(OffsetOutOfRange):
        world.log.advance_log_start(11, "test")
    assert world.log.advance_log_start(5, "DeleteRecords")
    assert not world.log.advance_log_start(4, "DeleteRecords")
    assert world.log.delete_expired(NOW_MS) == 1
    assert world.log.segments[0].base_offset == 3
    world.reopen()
    assert world.log.log_start_offset == 5


# Opening and closing


def test_new_log_creates_directory_and_first_files(world: LogWorld) -> None:
    assert world.names() == [
        "00000000000000000000.index",
        "00000000000000000000.log",
        "00000000000000000000.timeindex",
        "partition.metadata",
    ]
    assert world.files.read(DIRECTORY / "partition.metadata") == (
        b"version: 0\ntopic_id: ABEiM0RVRneImaq7zN3u_w"
    )


def test_topic_id_is_kept_and_another_is_refused(world: LogWorld) -> None:
    world.log.close(True)
    again = world.open(clean=True)
    assert again.topic_id == TOPIC_ID
    again.close(True)
    world.files.write_new(
        DIRECTORY / "partition.metadata", b"version: 0\ntopic_id: AAAAAAAAAAAAAAAAAAAAAQ"
    )
    with pytest.raises(InconsistentTopicId):
        world.open(clean=True)


def test_cleanly_closed_log_is_not_scanned(world: LogWorld) -> None:
    for _ in range(4):
        world.append(idempotent(7, world.log.end_offset), epoch=2)
    world.reopen()
    log = world.log
    assert (log.end_offset, log.recovery_point, log.high_watermark) == (4, 4, 0)
    assert log.epochs.entries == (EpochStart(2, 0),)
    assert world.files.file_size(DIRECTORY / "00000000000000000000.index") == 8
    assert "4.snapshot" in names(world)
    assert world.append(idempotent(7, 3)).duplicate
    assert world.append(idempotent(7, 4)).first_offset == 4
    check_indexes(world)


def test_indexes_are_independent_of_restarts() -> None:
    rng = random.Random(9)
    restarting, running = LogWorld(small(1500)), LogWorld(small(1500))
    for _ in range(60):
        size, time = rng.randint(0, 90), rng.randint(0, 500)
        for world in (restarting, running):
            world.append(batch(size=size, timestamps=time))
        restarting.reopen(clean=rng.random() < 0.5)
    check_indexes(restarting)
    check_indexes(running)
    for one, other in zip(restarting.log.segments, running.log.segments, strict=True):
        assert restarting.files.read(one.path(".log")) == running.files.read(other.path(".log"))


def test_batches_appended_together_write_each_index_once() -> None:
    world = LogWorld()
    written: list[str] = []
    world.disk.check = lambda operation, path: written.append(  # type: ignore[method-assign]
        f"{operation} {Path(path).suffix}"
    )
    together = b"".join(batch(size=5000, timestamps=NOW_MS + n, base_offset=n) for n in range(5))
    world.log.append_as_follower(memoryview(together))
    assert world.log.segments[-1].offset_index.count == 4
    assert world.log.segments[-1].time_index.count == 4
    behind_the_data = written[written.index("write .log") + 1 :]
    assert behind_the_data == ["write .index", "write .timeindex"]
    check_indexes(world)


def test_opening_cleanly_closed_log_opens_only_last_files(world: LogWorld) -> None:
    for _ in range(30):
        world.append(batch(size=60))
    world.log.close(True)
    touched: list[str] = []
    world.disk.check = lambda operation, path: touched.append(  # type: ignore[method-assign]
        f"{operation} {Path(path).name.lstrip('0')}"
    )
    log = world.open(clean=True)
    assert len(log.segments) == 10
    assert not [each for each in touched if each.startswith(("write", "sync", "create", "remove"))]
    segments = {
        each.split()[1].split(".")[0] for each in touched if each.endswith((".log", "index"))
    }
    assert segments == {"27"}


def test_unchanged_log_is_closed_without_write(world: LogWorld) -> None:
    world.append()
    world.reopen()
    before = world.disk.fingerprint()
    world.log.close(True)
    assert world.disk.fingerprint() == before


def test_closed_log_refuses_every_call(world: LogWorld) -> None:
    log = world.log
    log.close(True)
    calls = [
        lambda: world.append(),
        lambda: log.append_as_follower(batch()),
        lambda: log.read(0, 1, limit=1),
        lambda: log.roll(),
        lambda: log.flush(),
        lambda: log.truncate_to(0),
        lambda: log.truncate_fully_and_start_at(0),
        lambda: log.find_timestamp(0),
        lambda: log.max_timestamp(),
        lambda: log.aborted_transactions(0, 1),
        lambda: log.delete_expired(0),
        lambda: log.remove_deleted(0),
        lambda: log.advance_log_start(0, ""),
        lambda: log.assign_epoch(1, 0),
        lambda: log.rename_directory(Path("/logs/x")),
    ]
    assert all(raises_offline(call) for call in calls)


def test_renamed_directory_keeps_open_files(world: LogWorld) -> None:
    for _ in range(5):
        world.append(batch(size=60))
    world.log.advance_high_watermark(5)
    world.log.update_config(small(retention_bytes=200))
    world.log.delete_expired(NOW_MS)
    new = Path("/logs/t-0.5a5a-delete")
    world.log.rename_directory(new)
    assert world.log.directory == new
    world.append()
    world.log.flush()
    assert offsets_in(world.log, 3) == [3, 4, 5]
    assert world.log.remove_deleted(NOW_MS + 10**9) == 1
    world.log.delete()
    assert not world.files.exists(new)
    assert raises_offline(lambda: world.log.read(0, 1, limit=1))


def test_failed_log_stays_offline(world: LogWorld) -> None:
    world.append()
    world.log.fail(OSError(5, "the directory failed"))
    with pytest.raises(LogFailed, match="the directory failed"):
        world.append()
    world.log.close(True)
    assert isinstance(world.log.failure, OSError)
    assert world.failures == []


def test_idle_producers_expire(world: LogWorld) -> None:
    world.append(idempotent(7, 0))
    assert world.log.expire_producers(NOW_MS + 86_400_000) == 1
    assert world.log.producers.get(7) is None
