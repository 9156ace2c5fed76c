"""Reads, timestamp lookups and retention with wrong local indexes have the same results as with right ones."""

from __future__ import annotations

import dataclasses
import random
import struct
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, partial

import pytest

from odradek.seams.files import Path
from odradek.storage.log import offset_index, time_index
from odradek.storage.log.partition_log import PartitionLog
from odradek.storage.log.timestamp_lookup import TimestampAndOffset
from odradek.storage.log.transaction_index import AbortedTransaction
from tests.support.damaged_indexes import append_random_batches, damage
from tests.support.partition_logs import (
    DIRECTORY,
    FOREVER,
    NOW_MS,
    LogWorld,
    batch,
    check_indexes,
    offsets_in,
)

CONFIG = dataclasses.replace(FOREVER, internal_segment_bytes=2500, index_interval_bytes=150)
ENTRY_BYTES = {".index": offset_index.ENTRY.size, ".timeindex": time_index.ENTRY.size}
MORE = 20
"""Batches that are appended after the restart."""


def filled(seed: int, count: int = 100) -> LogWorld:
    world = LogWorld(CONFIG)
    append_random_batches(random.Random(seed), world, count)
    world.log.advance_high_watermark(world.log.end_offset)
    return world


@dataclass
class Expected:
    """Results of a log with right indexes."""

    offsets: list[int]
    timestamps: dict[int, TimestampAndOffset | None]
    latest: TimestampAndOffset | None
    largest: list[int]
    aborted: list[AbortedTransaction]

    @classmethod
    def of(cls, log: PartitionLog) -> Expected:
        times = [NOW_MS + 1000 * each + 400 for each in range(-1, 112, 3)]
        found = {time: log.find_timestamp(time) for time in times}
        exact = {each.timestamp: each for each in found.values() if each is not None}
        return cls(
            offsets_in(log),
            {**found, **exact},
            log.max_timestamp(),
            [segment.max_timestamp for segment in log.segments],
            list(log.aborted_transactions(0, log.end_offset)),
        )


@cache
def expected(seed: int) -> Expected:
    return Expected.of(filled(seed).log)


@cache
def expected_with_more(seed: int) -> Expected:
    world = filled(seed)
    append_more(world)
    return Expected.of(world.log)


def append_more(world: LogWorld) -> None:
    for number in range(MORE):
        world.append(batch(2, timestamps=NOW_MS + 100_000 + 1000 * number))
    world.log.advance_high_watermark(world.log.end_offset)


def check_results(world: LogWorld, rng: random.Random, want: Expected) -> None:
    log = world.log
    for offset in rng.sample(want.offsets, 25):
        size = rng.choice([1, 300, 1000])
        read, aborted = log.read_committed(offset, size, limit=log.high_watermark)
        assert read.slice is not None
        data = read.slice.read()
        read.slice.file.unpin()
        first, delta = struct.unpack_from(">q15xi", data)
        assert first <= offset <= first + delta
        overlapping = [
            each
            for each in want.aborted
            if each.last_offset >= offset and each.first_offset <= first + delta
        ]
        assert {*overlapping} <= {*aborted} <= {*want.aborted}
    assert offsets_in(log) == want.offsets
    for time in rng.sample(sorted(want.timestamps), 15):
        assert log.find_timestamp(time) == want.timestamps[time], time - NOW_MS
    assert log.max_timestamp() == want.latest
    assert [segment.max_timestamp for segment in log.segments] == want.largest


def rewrite(world: LogWorld, path: Path, data: bytes) -> None:
    world.files.remove(path)
    world.files.write_new(path, data)


def restarted(world: LogWorld, spoil: Callable[[LogWorld], None]) -> LogWorld:
    """Restart cleanly; `spoil` runs while the log is closed."""
    world.log.close(True)
    world.recovery_point = world.log.recovery_point
    spoil(world)
    world.log = world.open(clean=True)
    world.log.advance_high_watermark(world.log.end_offset)
    return world


def damage_one(rng: random.Random, kind: str, world: LogWorld) -> None:
    names = [name for name in world.names() if name.endswith(kind)]
    path = DIRECTORY / rng.choice(
        [each for each in names if world.files.file_size(DIRECTORY / each)]
    )
    rewrite(world, path, damage(rng, world.files.read(path), ENTRY_BYTES[kind]))


@pytest.mark.parametrize("kind", [".index", ".timeindex"])
@pytest.mark.parametrize("number", range(4))
def test_damaged_index_changes_no_result(kind: str, number: int) -> None:
    for seed in range(number, 160, 4):
        rng = random.Random(seed)
        world = restarted(filled(number), partial(damage_one, rng, kind))
        check_results(world, rng, expected(number))


@pytest.mark.parametrize("kind", [".index", ".timeindex"])
@pytest.mark.parametrize("number", range(4))
def test_damaged_index_of_segment_with_new_records_changes_no_result(
    kind: str, number: int
) -> None:
    for seed in range(number, 160, 4):
        rng = random.Random(seed)
        world = restarted(filled(number), partial(damage_one, rng, kind))
        append_more(world)
        check_results(world, rng, expected_with_more(number))


@pytest.mark.parametrize("position", [(1 << 31) - 1, -1, -(1 << 31), 7, 0])
def test_index_with_wrong_position_is_rebuilt_with_one_log_line(
    position: int, caplog: pytest.LogCaptureFixture
) -> None:
    world = filled(0)
    path = world.log.segments[1].path(".index")

    def spoil(world: LogWorld) -> None:
        entries = [*struct.iter_unpack(">ii", world.files.read(path))]
        at = len(entries) // 2
        entries[at] = entries[at][0], position
        rewrite(world, path, b"".join(struct.pack(">ii", *each) for each in entries))

    restarted(world, spoil)
    for offset in reversed(range(world.log.end_offset)):
        read = world.log.read(offset, 1, limit=world.log.end_offset)
        assert read.slice is not None
        assert read.base_offset <= offset < read.base_offset + 4
        read.slice.file.unpin()
    if position:
        assert [each.levelname for each in caplog.records] == ["WARNING"]
        assert "rebuilding index files of segment" in caplog.text
        check_indexes(world, reopened=True)
    else:
        assert not caplog.records  # it leads to the segment's start


def test_wrong_largest_timestamp_does_not_expire_records() -> None:
    """Retention would delete the segment."""
    world = filled(0)
    path, right = world.log.segments[0].path(".timeindex"), world.log.segments[0].max_timestamp

    def spoil(world: LogWorld) -> None:
        data = world.files.read(path)
        timestamp, relative = struct.unpack(">qi", data[-12:])
        assert timestamp == right
        rewrite(world, path, struct.pack(">qi", 1, relative))

    restarted(world, spoil)
    world.log.update_config(dataclasses.replace(CONFIG, retention_ms=1000_000))
    assert world.log.delete_expired(NOW_MS + 500_000) == 0
    assert world.log.segments[0].max_timestamp == right


def test_wrong_entry_of_segment_that_is_appended_to_is_logged_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    world = LogWorld(dataclasses.replace(CONFIG, internal_segment_bytes=10_000))
    for _ in range(40):
        world.append(batch(2))

    def spoil(world: LogWorld) -> None:
        path = world.log.segments[0].path(".index")
        entries = [*struct.iter_unpack(">ii", world.files.read(path))]
        entries[3] = entries[3][0], entries[5][1]
        rewrite(world, path, b"".join(struct.pack(">ii", *each) for each in entries))

    restarted(world, spoil)
    world.append(batch(2))
    for _ in range(2):
        for offset in reversed(range(82)):
            read = world.log.read(offset, 1, limit=world.log.end_offset)
            assert read.slice is not None
            assert read.base_offset == offset - offset % 2
            read.slice.file.unpin()
    assert len(caplog.records) == 1
    world.log.roll()
    assert world.log.read(10, 1, limit=82).base_offset == 10
    for offset in reversed(range(82)):
        assert world.log.segments[0].locate(offset) is not None
    assert "rebuilding index files" in caplog.records[-1].getMessage()
    check_indexes(world)
