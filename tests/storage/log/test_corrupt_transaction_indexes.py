"""read_committed reads with wrong local transaction indexes return the same records as with right ones."""

from __future__ import annotations

import dataclasses
import random
import struct
from collections.abc import Callable, Iterable
from functools import cache, partial

import pytest

from odradek.protocol.records.batch import Batch, batches
from odradek.protocol.records.control import ControlType, control_type
from odradek.protocol.records.records import decode
from odradek.seams.files import WouldBlock
from odradek.storage.log.partition_log import PartitionLog
from odradek.storage.log.transaction_index import ENTRY, AbortedTransaction
from tests.support.damaged_indexes import damage
from tests.support.partition_logs import (
    DIRECTORY,
    FOREVER,
    NOW_MS,
    LogWorld,
    batch,
    idempotent,
    marker,
)

CONFIG = dataclasses.replace(FOREVER, internal_segment_bytes=2500, index_interval_bytes=150)
PRODUCERS = (7, 8, 9)
LOGS = 4


def append_transactions(
    rng: random.Random, world: LogWorld, count: int, producers: int = 3
) -> None:
    """Append interleaved transactions, half of which are aborted, and batches without a transaction."""
    sequences = dict.fromkeys(PRODUCERS, 0)
    is_open = dict.fromkeys(PRODUCERS, False)
    for _ in range(count):
        producer = rng.choice(PRODUCERS[:producers])
        if rng.random() < 0.1:
            world.append(batch(rng.randint(1, 3)))
        elif is_open[producer] and rng.random() < 0.3:
            world.coordinate(marker(producer, commit=rng.random() < 0.5))
            is_open[producer] = False
        else:
            records = rng.randint(1, 3)
            sequence = sequences[producer]
            world.append(idempotent(producer, sequence, records, transactional=True))
            sequences[producer] += records
            is_open[producer] = True
    for producer in PRODUCERS:
        if is_open[producer]:
            world.coordinate(marker(producer, commit=False))
    world.log.advance_high_watermark(world.log.end_offset)


def filled(seed: int) -> LogWorld:
    world = LogWorld(CONFIG)
    append_transactions(random.Random(seed), world, 150)
    return world


def visible(found: Iterable[Batch], aborted: Iterable[tuple[int, int]]) -> list[int]:
    """Offsets of the records that a read_committed consumer returns: as in Kafka's CompletedFetch."""
    coming = sorted(aborted, key=lambda each: each[1])
    hidden: set[int] = set()
    offsets: list[int] = []
    for each in found:
        while coming and coming[0][1] <= each.last_offset:
            hidden.add(coming.pop(0)[0])
        if each.is_control:
            kind = control_type(next(iter(decode(each))).key)
            if kind is ControlType.ABORT:
                hidden.discard(each.producer_id)
        elif not (each.is_transactional and each.producer_id in hidden):
            offsets += range(each.base_offset, each.next_offset)
    return offsets


def consume(
    log: PartitionLog, start: int, size: int, *, nowait: bool = False
) -> tuple[list[int], int]:
    """Offsets that one read_committed fetch returns, and the next offset."""
    limit = log.last_stable_offset
    read, aborted = log.read_committed(start, size, limit=limit, nowait=nowait)
    assert read.slice is not None
    data = memoryview(read.slice.read())
    read.slice.file.unpin()
    found = [*batches(data, allow_partial=True)]
    shown = visible(found, [(each.producer_id, each.first_offset) for each in aborted])
    return [each for each in shown if each >= start], found[-1].next_offset


@cache
def expected(seed: int) -> tuple[list[int], list[tuple[AbortedTransaction, ...]]]:
    """Committed offsets, and the entries of each segment, of an intact log."""
    log = filled(seed).log
    offsets, _ = consume_all(log, random.Random(0))
    return offsets, [segment.transaction_index.entries for segment in log.segments]


def consume_all(log: PartitionLog, rng: random.Random) -> tuple[list[int], int]:
    found: list[int] = []
    offset = log.log_start_offset
    while offset < log.last_stable_offset:
        more, offset = consume(log, offset, rng.choice([1, 300, 1000]))
        found += more
    return found, offset


def check_reads(log: PartitionLog, rng: random.Random, want: list[int]) -> None:
    end = log.last_stable_offset
    for offset in rng.sample(range(end), 12):
        shown, following = consume(log, offset, rng.choice([1, 300, 1000]))
        assert shown == [each for each in want if offset <= each < following], offset
    assert consume_all(log, rng)[0] == want


def restarted(world: LogWorld, spoil: Callable[[LogWorld], None]) -> LogWorld:
    """Restart cleanly; `spoil` runs while the log is closed."""
    world.log.close(True)
    world.recovery_point = world.log.recovery_point
    spoil(world)
    world.log = world.open(clean=True)
    world.log.advance_high_watermark(world.log.end_offset)
    return world


def index_names(world: LogWorld) -> list[str]:
    return [name for name in world.names() if name.endswith(".txnindex")]


def rewrite(world: LogWorld, name: str, data: bytes) -> None:
    world.files.remove(DIRECTORY / name)
    world.files.write_new(DIRECTORY / name, data)


def damage_one(rng: random.Random, world: LogWorld) -> None:
    name = rng.choice(index_names(world))
    rewrite(world, name, damage(rng, world.files.read(DIRECTORY / name), ENTRY.size))


def flip_one_bit(rng: random.Random, world: LogWorld) -> None:
    """Flip a low bit of an offset or a producer id: the entry still looks right."""
    name = rng.choice(index_names(world))
    data = bytearray(world.files.read(DIRECTORY / name))
    entry = rng.randrange(len(data) // ENTRY.size) * ENTRY.size
    data[entry + rng.choice([9, 17, 25, 33])] ^= 1 << rng.randrange(6)
    rewrite(world, name, bytes(data))


def remove_one_entry(rng: random.Random, world: LogWorld) -> None:
    name = rng.choice(index_names(world))
    data = bytearray(world.files.read(DIRECTORY / name))
    entry = rng.randrange(len(data) // ENTRY.size) * ENTRY.size
    del data[entry : entry + ENTRY.size]
    rewrite(world, name, bytes(data))


SPOILS = [damage_one, flip_one_bit, remove_one_entry]


@pytest.mark.parametrize("spoil", SPOILS)
@pytest.mark.parametrize("number", range(LOGS))
def test_damaged_transaction_index_changes_no_committed_read(
    spoil: Callable[[random.Random, LogWorld], None], number: int
) -> None:
    for seed in range(number, 8 * LOGS, LOGS):
        rng = random.Random(seed)
        world = restarted(filled(number), partial(spoil, rng))
        check_reads(world.log, rng, expected(number)[0])
        found = [segment.transaction_index.entries for segment in world.log.segments]
        assert found == expected(number)[1]
        world.reopen()
        found = [segment.transaction_index.entries for segment in world.log.segments]
        assert found == expected(number)[1]


@pytest.mark.parametrize("spoil", SPOILS)
def test_damaged_transaction_index_changes_no_committed_read_after_new_aborts(
    spoil: Callable[[random.Random, LogWorld], None],
) -> None:
    """New entries are appended to the wrong file, and the log may be truncated, before its first use."""
    for seed in range(24):
        rng = random.Random(seed)
        world, right = filled(seed % LOGS), filled(seed % LOGS)
        restarted(world, partial(spoil, rng))
        cut = rng.random() < 0.3
        for each in (world, right):
            if cut:
                each.log.truncate_to(each.log.end_offset - 20)
            more = random.Random(seed)
            for number in range(6):
                data = idempotent(11, 0, transactional=True, producer_epoch=number)
                each.append(data)
                each.coordinate(marker(11, number, commit=more.random() < 0.5))
            each.log.advance_high_watermark(each.log.end_offset)
        assert world.log.last_stable_offset == right.log.last_stable_offset
        want, _ = consume_all(right.log, rng)
        check_reads(world.log, rng, want)


@pytest.mark.parametrize("spoil", SPOILS)
def test_damaged_transaction_index_changes_no_committed_read_after_recovery(
    spoil: Callable[[random.Random, LogWorld], None],
) -> None:
    for seed in range(24):
        rng = random.Random(seed)
        world = filled(seed % LOGS)
        world.log.flush(rng.randrange(world.log.end_offset))
        world.recovery_point = world.log.recovery_point
        spoil(rng, world)
        world.kill()
        world.log.advance_high_watermark(world.log.end_offset)
        check_reads(world.log, rng, expected(seed % LOGS)[0])


@pytest.mark.parametrize("lost", ["all", "first"])
def test_damaged_transaction_index_is_rebuilt_without_producer_snapshots(lost: str) -> None:
    for seed in range(12):
        rng = random.Random(seed)

        def spoil(world: LogWorld, rng: random.Random = rng) -> None:
            names = [name for name in world.names() if name.endswith(".snapshot")]
            for name in names if lost == "all" else names[1:-1]:
                world.files.remove(DIRECTORY / name)
            flip_one_bit(rng, world)

        world = restarted(filled(seed % LOGS), spoil)
        check_reads(world.log, rng, expected(seed % LOGS)[0])


def wrong_first_offset(world: LogWorld) -> str:
    """Make the last aborted transaction of a segment begin later; the name of the index."""
    name = next(each for each in index_names(world) if world.files.file_size(DIRECTORY / each) > 34)
    data = bytearray(world.files.read(DIRECTORY / name))
    _, _, first, last, _ = ENTRY.unpack_from(data, len(data) - ENTRY.size)
    struct.pack_into(">q", data, len(data) - ENTRY.size + 10, (first + last) // 2 + 1)
    rewrite(world, name, bytes(data))
    return name


def test_wrong_transaction_index_is_rebuilt_with_one_log_line(
    caplog: pytest.LogCaptureFixture,
) -> None:
    names: list[str] = []
    world = restarted(filled(0), lambda world: names.append(wrong_first_offset(world)))
    for _ in range(2):
        assert consume_all(world.log, random.Random(1))[0] == expected(0)[0]
    assert [each.levelname for each in caplog.records] == ["WARNING"]
    text = caplog.records[0].getMessage()
    assert text.startswith("rebuilding transaction index of segment")
    assert names[0].removesuffix(".txnindex") in text
    assert not [name for name in world.names() if "repaired" in name]


def test_right_transaction_indexes_are_not_rebuilt(caplog: pytest.LogCaptureFixture) -> None:
    for seed in range(LOGS):
        world = filled(seed)
        data = {name: world.files.read(DIRECTORY / name) for name in index_names(world)}
        restarted(world, lambda _: None)
        check_reads(world.log, random.Random(seed), expected(seed)[0])
        assert {name: world.files.read(DIRECTORY / name) for name in index_names(world)} == data
    assert not caplog.records


def test_event_loop_does_not_compare_transaction_index() -> None:
    world = restarted(filled(0), lambda _: None)
    log = world.log
    with pytest.raises(WouldBlock):
        consume(log, 0, 300, nowait=True)
    consume(log, 0, 300)
    consume(log, 0, 300, nowait=True)


def test_read_at_end_of_log_compares_only_batches_from_there_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    world = LogWorld(dataclasses.replace(CONFIG, internal_segment_bytes=1 << 20))
    append_transactions(random.Random(0), world, 2000)
    log = restarted(world, lambda _: None).log
    reads = []
    file = log.segments[0].file
    read_at = type(file).read_at

    def counted(file: object, position: int, size: int, **more: bool) -> bytes:
        found: bytes = read_at(file, position, size, **more)  # type: ignore[arg-type]
        reads.append(len(found))
        return found

    monkeypatch.setattr(type(file), "read_at", counted)
    consume(log, log.end_offset - 3, 300)
    assert sum(reads) < log.segments[0].size // 20
    reads.clear()
    consume(log, log.end_offset - 30, 300)
    assert sum(reads) > log.segments[0].size
    reads.clear()
    consume(log, 0, 300)
    assert sum(reads) < log.segments[0].size // 8


def test_log_without_aborted_transactions_is_not_compared(monkeypatch: pytest.MonkeyPatch) -> None:
    world = LogWorld(CONFIG)
    for _ in range(30):
        world.append(batch(2))
    world.log.advance_high_watermark(world.log.end_offset)
    log = restarted(world, lambda _: None).log
    name = "odradek.storage.log.transaction_index_check.verify_transaction_index"
    monkeypatch.setattr(name, None)
    assert consume_all(log, random.Random(0))[0] == [*range(60)]


def test_entry_of_transaction_that_began_before_first_segment_is_kept() -> None:
    """The records are only in the remote tier, and no producer snapshot is left."""
    world = LogWorld(
        dataclasses.replace(CONFIG, internal_segment_bytes=400, file_delete_delay_ms=0)
    )
    world.append(idempotent(7, 0, transactional=True))
    for _ in range(20):
        world.append(batch(1))
    end = world.coordinate(marker(7, commit=False)).first_offset
    log = world.log
    log.advance_high_watermark(log.end_offset)
    world.flush()
    log.advance_log_start(log.segments[2].base_offset, "test")
    log.delete_expired(NOW_MS)
    world.log_start_offset = log.log_start_offset

    def remove_snapshots(world: LogWorld) -> None:
        for name in world.names():
            if name.endswith(".snapshot"):
                world.files.remove(DIRECTORY / name)

    restarted(world, remove_snapshots)
    wanted = [AbortedTransaction(7, 0, end, end + 1)]
    assert [*world.log.aborted_transactions(world.log_start_offset, end)] == wanted
