"""Truncation: retained records, concurrent readers, and slices pinned before."""

from __future__ import annotations

import dataclasses
import random

import pytest

from odradek.protocol.records.batch import batches
from odradek.storage.errors import OffsetOutOfRange
from odradek.storage.log.leader_epoch_cache import EpochStart
from odradek.storage.log.partition_log import LogRead
from tests.support.partition_logs import (
    DIRECTORY,
    FOREVER,
    NOW_MS,
    LogWorld,
    batch,
    check_indexes,
    idempotent,
    marker,
    offsets_in,
    records_in,
)

CONFIG = dataclasses.replace(FOREVER, internal_segment_bytes=700, index_interval_bytes=100)


@pytest.fixture
def world() -> LogWorld:
    """A log with offsets 0 to 29 and epochs 0 to 2, in six segments."""
    world = LogWorld(CONFIG)
    for n in range(30):
        world.append(idempotent(7, n, size=40, timestamps=NOW_MS - n), epoch=n // 10)
    world.log.advance_high_watermark(25)
    return world


def test_offsets_and_segments_match_constants_of_tests(world: LogWorld) -> None:
    assert [segment.base_offset for segment in world.log.segments] == [0, 6, 12, 18, 24]


@pytest.mark.parametrize("offset", [29, 24, 23, 20, 18, 12, 6, 5, 1, 0])
@pytest.mark.parametrize("closing", [None, True, False])
def test_truncation_keeps_records_below_offset(
    world: LogWorld, offset: int, closing: bool | None
) -> None:
    before = records_in(world.log)
    world.flush()
    assert world.log.truncate_to(offset)
    assert (world.log.end_offset, world.log.high_watermark) == (offset, min(25, offset))
    assert world.recovery_point == world.log.recovery_point == offset
    if closing is not None:
        world.reopen(clean=closing)
    assert records_in(world.log) == before[:offset]
    assert world.log.epochs.entries == tuple(
        EpochStart(n, n * 10) for n in range(3) if n * 10 < offset
    )
    if not closing:
        check_indexes(world)
    # The producer has its earlier state.
    for n in range(offset, offset + 4):
        world.append(idempotent(7, n, timestamps=NOW_MS + n), epoch=5)
    assert [record.offset for record in records_in(world.log)] == list(range(offset + 4))
    check_indexes(world)
    largest = world.log.max_timestamp()
    assert largest is not None
    assert largest.timestamp == NOW_MS + offset + 3


def test_truncation_at_or_past_log_end_changes_nothing(world: LogWorld) -> None:
    world.log.assign_epoch(9, 30)
    assert not world.log.truncate_to(30)
    assert world.log.epochs.latest == 2  # epoch 9 has no records
    assert world.log.end_offset == 30


def test_truncation_below_first_segment_deletes_all_records(world: LogWorld) -> None:
    world.log.update_config(dataclasses.replace(CONFIG, retention_bytes=1400))
    world.log.delete_expired(NOW_MS)
    assert world.log.log_start_offset > 3
    assert world.log.truncate_to(3)
    assert (world.log.log_start_offset, world.log.end_offset) == (3, 3)
    assert world.append().first_offset == 3


def test_truncation_below_log_start_offset_lowers_it(world: LogWorld) -> None:
    world.log.advance_log_start(4, "DeleteRecords")
    world.log.truncate_to(3)
    assert (world.log.log_start_offset, world.log.high_watermark) == (3, 3)


@pytest.mark.parametrize("closing", [None, True, False])
def test_full_truncation_starts_at_given_offset(world: LogWorld, closing: bool | None) -> None:
    world.log.truncate_fully_and_start_at(500)
    assert (world.log.log_start_offset, world.log.end_offset) == (500, 500)
    assert (world.log.high_watermark, world.log.epochs.entries) == (500, ())
    if closing is not None:
        world.reopen(clean=closing)
        assert (world.log.log_start_offset, world.log.end_offset) == (500, 500)
    assert world.append(idempotent(7, 0)).first_offset == 500
    assert offsets_in(world.log, 500) == [500]
    with pytest.raises(OffsetOutOfRange):
        world.log.read(3, 100, limit=501)


def test_full_truncation_at_existing_base_offset(world: LogWorld) -> None:
    world.log.truncate_fully_and_start_at(0)
    world.append()
    assert offsets_in(world.log) == [0]
    assert world.log.remove_deleted(NOW_MS + 10**9) == 5
    assert offsets_in(world.log) == [0]


def test_truncation_restores_transactions_at_offset(world: LogWorld) -> None:
    world.append(idempotent(8, 0, transactional=True), epoch=2)
    world.coordinate(marker(8, commit=False), epoch=2)
    world.log.advance_high_watermark(32)
    assert (world.log.last_stable_offset, len(world.log.aborted_transactions(0, 32))) == (32, 1)
    world.log.truncate_to(31)
    assert (world.log.last_stable_offset, world.log.aborted_transactions(0, 32)) == (30, [])
    world.coordinate(marker(8, commit=True), epoch=3)
    world.log.advance_high_watermark(32)
    assert (world.log.last_stable_offset, world.log.aborted_transactions(0, 32)) == (32, [])


def sent(read: LogRead) -> list[int]:
    """Bytes of a slice, as a connection sends them later."""
    assert read.slice is not None
    data = memoryview(read.slice.read())
    assert len(data) == read.slice.size
    return [each.base_offset for each in batches(data, check=True)]


@pytest.mark.parametrize("cut", [20, 24, 25, 27])
def test_pinned_slice_keeps_its_content(world: LogWorld, cut: int) -> None:
    read = world.log.read(24, 100_000, limit=30)
    before = sent(read)
    assert before == list(range(24, 30))
    world.log.truncate_to(cut)
    for _ in range(10):
        world.append(batch(size=41), epoch=7)
    assert sent(read) == before
    world.log.remove_deleted(NOW_MS + 10**9)
    assert sent(read) == before
    assert read.slice is not None
    read.slice.file.unpin()
    assert offsets_in(world.log) == list(range(cut + 10))
    check_indexes(world)
    world.reopen()
    assert offsets_in(world.log) == list(range(cut + 10))


def test_read_overtaken_by_truncation_is_repeated(world: LogWorld) -> None:
    """The truncation runs between the lookup and the pin."""
    log = world.log
    segment = log.segments[-1]
    file_type = type(segment.file)
    pin = file_type.pin

    def pin_late(file: object) -> None:
        file_type.pin = pin  # type: ignore[method-assign]
        log.truncate_to(26)
        pin(file)  # type: ignore[arg-type]

    file_type.pin = pin_late  # type: ignore[method-assign,assignment]
    try:
        read = log.read(25, 100_000, limit=30)
    finally:
        file_type.pin = pin  # type: ignore[method-assign]
    assert sent(read) == [25]
    with pytest.raises(OffsetOutOfRange):
        log.read(27, 100, limit=30)


def test_random_truncations_and_appends() -> None:
    world = LogWorld(CONFIG)
    rng = random.Random(11)
    model: list[int] = []
    pinned: list[tuple[LogRead, list[int]]] = []
    for step in range(150):
        for _ in range(rng.randint(0, 5)):
            world.append(batch(size=rng.randint(0, 80), timestamps=step), epoch=step)
            model.append(step)
        if model and rng.random() < 0.3:
            start = rng.randrange(len(model))
            read = world.log.read(start, 10_000, limit=len(model))
            pinned.append((read, sent(read)))
        if rng.random() < 0.4:
            cut = rng.randint(max(0, len(model) - 12), len(model))
            world.log.truncate_to(cut)
            del model[cut:]
        if rng.random() < 0.1:
            world.log.remove_deleted(NOW_MS + 10**9)
        assert [record.timestamp for record in records_in(world.log)] == model
    check_indexes(world)
    for read, want in pinned:
        assert sent(read) == want
    assert not [name for name in world.names() if name.endswith(".cleaned")]
    world.reopen(clean=False)
    assert [record.timestamp for record in records_in(world.log)] == model
    assert world.log.directory == DIRECTORY


def test_truncation_within_batch_removes_whole_batch() -> None:
    world = LogWorld(CONFIG)
    for n in range(4):
        world.append(batch(5), epoch=n)
    world.log.truncate_to(12)
    assert world.log.end_offset == 10
    assert world.log.epochs.entries == (EpochStart(0, 0), EpochStart(1, 5))
    assert world.append(batch(1)).first_offset == 10
    assert offsets_in(world.log) == list(range(11))


@pytest.mark.parametrize(("cut", "end"), [(9, 5), (7, 5), (6, 5), (5, 5), (4, 4)])
def test_truncation_within_first_batch_ends_at_log_start_offset(cut: int, end: int) -> None:
    world = LogWorld(CONFIG)
    world.append(batch(2))
    world.append(batch(8))
    world.log.advance_high_watermark(10)
    world.log.advance_log_start(5, "DeleteRecords")
    world.log.truncate_to(cut)
    assert (world.log.log_start_offset, world.log.end_offset) == (end, end)
    assert world.append().first_offset == end
    world.kill()
    assert offsets_in(world.log, end) == [end]
