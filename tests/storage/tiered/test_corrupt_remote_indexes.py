"""Reads and timestamp lookups with wrong remote indexes find the same records as with right ones."""

from __future__ import annotations

import dataclasses
import random
import struct
from dataclasses import dataclass
from functools import cache

import pytest
import trio

from odradek.protocol.uuids import uuid_to_text
from odradek.storage.directories.names import REMOTE_INDEX_CACHE
from odradek.storage.log.timestamp_lookup import TimestampAndOffset
from odradek.storage.log.transaction_index import AbortedTransaction
from odradek.storage.tiered.errors import CorruptRemoteIndex
from odradek.storage.tiered.remote_index_lookup import ENTRY_BYTES, check_index
from odradek.storage.tiered.remote_log_reader import ReadLimits
from odradek.storage.tiered.remote_storage_manager import IndexType
from odradek.storage.tiered.segment_metadata import RemoteLogSegmentMetadata
from tests.support.damaged_indexes import append_random_batches, damage
from tests.support.partition_logs import NOW_MS, LogWorld, batch
from tests.support.remote_log_reads import CACHE_ROOT, TIERED, Readers, Tiers

HERE = CACHE_ROOT / REMOTE_INDEX_CACHE
OFFSET, TIME, TRANSACTION = IndexType.OFFSET, IndexType.TIMESTAMP, IndexType.TRANSACTION


def filled(seed: int, **more: object) -> Tiers:
    config = dataclasses.replace(TIERED, internal_segment_bytes=2500, index_interval_bytes=150)
    tiers = Tiers(LogWorld(config), **more)  # type: ignore[arg-type]
    append_random_batches(random.Random(seed), tiers.log_world, 100)
    tiers.copy_and_expire()
    return tiers


@dataclass
class Expected:
    """Results of a local log with the same records."""

    end: int
    timestamps: dict[int, TimestampAndOffset | None]
    aborted: dict[tuple[int, int], list[AbortedTransaction]]


@cache
def expected(seed: int) -> Expected:
    world = LogWorld(dataclasses.replace(TIERED, remote_storage_enable=False))
    append_random_batches(random.Random(seed), world, 100)
    log = world.log
    times = [NOW_MS + 1000 * each + 400 for each in range(-1, 112, 3)]
    found = {time: log.find_timestamp(time) for time in times}
    exact = {each.timestamp: each for each in found.values() if each is not None}
    end = log.end_offset
    aborted = {
        (start, until): log.aborted_transactions(start, until)
        for start in range(end)
        for until in range(start + 1, end + 1)
    }
    return Expected(end, {**found, **exact}, aborted)


async def check_reads(readers: Readers, rng: random.Random, want: Expected) -> None:
    """Check all records, in random order and in sequence, and a part of the timestamps."""
    log = readers.tiers.log
    start = log.local_log_start_offset
    for offset in rng.sample(range(start), 12):
        limits = ReadLimits(rng.choice([1, 300, 1000]), 1 << 40)
        found = await readers.read(offset, limits, committed=True)
        found.unpin()
        assert found.base_offset <= offset < found.next_offset
        right = want.aborted[offset, found.next_offset]
        assert sorted(map(repr, found.aborted)) == sorted(map(repr, right))
    assert await readers.all_from(0, ReadLimits(400, 1 << 40)) == list(range(start))
    for time in rng.sample(sorted(want.timestamps), 12):
        assert await readers.timestamps.find(log, time) == want.timestamps[time], time - NOW_MS


async def fetch_all(readers: Readers) -> None:
    for segment in readers.tiers.metadata.known:
        for kind in (OFFSET, TIME, TRANSACTION):
            await readers.indexes.fetch(segment, kind)


def path_of(segment: RemoteLogSegmentMetadata, kind: IndexType) -> str:
    return f"{segment.start_offset}_{uuid_to_text(segment.id.id)}{kind.value}"


def rewrite(tiers: Tiers, name: str, data: bytes) -> None:
    files = tiers.log_world.files
    files.remove(HERE / name)
    files.write_new(HERE / name, data)


def damage_one_cached(rng: random.Random, tiers: Tiers, kind: IndexType) -> None:
    files = tiers.log_world.files
    names = [name for name in files.list(HERE) if name.endswith(kind.value)]
    name = rng.choice([each for each in names if files.file_size(HERE / each)])
    rewrite(tiers, name, damage(rng, files.read(HERE / name), ENTRY_BYTES[kind]))


@pytest.mark.parametrize("kind", [OFFSET, TIME, TRANSACTION])
@pytest.mark.parametrize("is_restarted", [False, True])
def test_damaged_cached_index_changes_no_result(kind: IndexType, is_restarted: bool) -> None:
    async def run(seed: int) -> None:
        rng = random.Random(seed)
        tiers = filled(seed % 4)
        async with tiers.readers() as readers:
            await fetch_all(readers)
            if not is_restarted:
                damage_one_cached(rng, tiers, kind)
                await check_reads(readers, rng, expected(seed % 4))
        if is_restarted:
            damage_one_cached(rng, tiers, kind)
            async with tiers.readers() as readers:
                await check_reads(readers, rng, expected(seed % 4))

    for seed in range(40):
        trio.run(run, seed)


@pytest.mark.parametrize("kind", [OFFSET, TIME])
def test_index_that_is_wrong_in_store_changes_no_result(kind: IndexType) -> None:
    """A store with checksums finds most of these; the index may have been wrong when it was copied."""

    async def run(seed: int) -> None:
        rng = random.Random(seed)
        tiers = filled(seed % 4)
        key = rng.choice(tiers.metadata.known).id.id, kind
        right = tiers.store.objects[key]
        wrong = damage(rng, right, ENTRY_BYTES[kind])
        if not wrong:
            return  # without a time index, a segment has no timestamps
        tiers.store.objects[key] = wrong
        async with tiers.readers() as readers:
            await check_reads(readers, rng, expected(seed % 4))
            assert readers.indexes.fetches <= 3 * len(tiers.metadata.known) + 1

    for seed in range(60):
        trio.run(run, seed)


@pytest.mark.parametrize("field", [9, 25])
def test_transaction_index_that_is_wrong_in_store_returns_no_wrong_transaction(field: int) -> None:
    """A bit of the producer id or of the last offset; the entry still looks right."""

    async def run(seed: int) -> int:
        rng = random.Random(seed)
        tiers = filled(seed % 4)
        segment = rng.choice([each for each in tiers.metadata.known if not each.txn_index_empty])
        key = segment.id.id, TRANSACTION
        wrong = bytearray(tiers.store.objects[key])
        entry = rng.randrange(len(wrong) // ENTRY_BYTES[TRANSACTION]) * ENTRY_BYTES[TRANSACTION]
        wrong[entry + field] ^= 1 << rng.randrange(5)
        tiers.store.objects[key] = bytes(wrong)
        errors = 0
        async with tiers.readers() as readers:
            for offset in range(tiers.log.local_log_start_offset):
                try:
                    found = await readers.read(offset, ReadLimits(300, 1 << 40), committed=True)
                except CorruptRemoteIndex:
                    errors += 1
                    continue
                found.unpin()
                right = expected(seed % 4).aborted[offset, found.next_offset]
                assert sorted(map(repr, found.aborted)) == sorted(map(repr, right))
        return errors

    assert sum(trio.run(run, seed) for seed in range(10)) > 10


async def test_markers_of_transaction_index_are_read_once() -> None:
    tiers = filled(0)
    async with tiers.readers() as readers:
        await check_reads(readers, random.Random(0), expected(0))
        await fetch_all(readers)
        tiers.store.fetched.clear()
        for offset in range(tiers.log.local_log_start_offset):
            found = await readers.read(offset, committed=True)
            found.unpin()
        assert not tiers.store.fetched


POSITIONS = [(1 << 31) - 1, -1, -(1 << 31), 0, 7]


@pytest.mark.parametrize("position", POSITIONS)
@pytest.mark.parametrize("is_restarted", [False, True])
async def test_wrong_position_in_cached_index_skips_no_records(
    position: int, is_restarted: bool
) -> None:
    tiers = filled(0)
    segment = tiers.metadata.known[1]
    name = path_of(segment, OFFSET)
    middle, fetches = (segment.start_offset + segment.end_offset) // 2, 0

    async def check(readers: Readers) -> None:
        for offset in range(segment.start_offset + 1, segment.end_offset + 1):
            found = await readers.read(offset, ReadLimits(1, 1 << 40))
            found.unpin()
            assert found.base_offset <= offset < found.next_offset
        assert readers.indexes.fetches == fetches + 1

    def spoil() -> None:
        entries = [*struct.iter_unpack(">ii", tiers.log_world.files.read(HERE / name))]
        at = max(n for n, each in enumerate(entries) if segment.start_offset + each[0] <= middle)
        entries[at] = entries[at][0], position
        rewrite(tiers, name, b"".join(struct.pack(">ii", *each) for each in entries))

    async with tiers.readers() as readers:
        await readers.indexes.fetch(segment, OFFSET)
        fetches = readers.indexes.fetches
        spoil()
        if not is_restarted:
            await check(readers)
    if is_restarted:
        fetches = 0
        async with tiers.readers() as readers:
            await check(readers)


@pytest.mark.parametrize(
    ("kind", "entries"),
    [
        pytest.param(OFFSET, [(5, 100), (4, 200)], id="offsets go backwards"),
        pytest.param(OFFSET, [(5, 200), (6, 100)], id="positions go backwards"),
        pytest.param(OFFSET, [(5, -100), (6, 100)], id="negative position"),
        pytest.param(OFFSET, [(5, 100), (6, (1 << 31) - 1), (7, 300)], id="position past the end"),
        pytest.param(TIME, [(50, 1), (49, 2)], id="timestamps go backwards"),
        pytest.param(TIME, [(50, 2), (51, 1)], id="offsets of timestamps go backwards"),
        pytest.param(TIME, [(-5, 2), (51, 3)], id="negative timestamp"),
        pytest.param(TIME, [(5, 2), (7, 1 << 30), (8, 5)], id="offset past the end"),
        pytest.param(TRANSACTION, [(0, 7, 9, 5, 6)], id="first offset past the marker"),
        pytest.param(TRANSACTION, [(1, 7, 3, 5, 6)], id="version"),
        pytest.param(TRANSACTION, [(0, -7, 3, 5, 6)], id="negative producer id"),
        pytest.param(TRANSACTION, [(0, 7, 3, 5, 1 << 40)], id="last stable offset past the end"),
        pytest.param(TRANSACTION, [(0, 7, 3, 5, 6), (0, 7, 6, 9, 5)], id="last stable offset"),
        pytest.param(TRANSACTION, [(0, 7, 3, 8, 6), (0, 7, 6, 8, 9)], id="two markers"),
    ],
)
def test_index_with_entries_out_of_order_or_range_is_refused(
    kind: IndexType, entries: list[tuple[int, ...]]
) -> None:
    segment = dataclasses.replace(filled(0).metadata.known[0], start_offset=0, end_offset=40)
    form = {OFFSET: ">ii", TIME: ">qi", TRANSACTION: ">hqqqq"}[kind]
    with pytest.raises(CorruptRemoteIndex, match=kind.value):
        check_index(b"".join(struct.pack(form, *each) for each in entries), kind, segment)


async def test_wrong_time_index_in_store_is_reported_once(caplog: pytest.LogCaptureFixture) -> None:
    tiers = Tiers(LogWorld(dataclasses.replace(TIERED, internal_segment_bytes=2000)))
    for number in range(40):
        tiers.append(batch(1, timestamps=NOW_MS + number))
    tiers.copy_and_expire()
    segment = tiers.metadata.known[0]
    key = segment.id.id, TIME
    entries = [*struct.iter_unpack(">qi", tiers.store.objects[key])]
    assert len(entries) > 4
    later = [(time, relative + 1) for time, relative in entries[:-2]] + entries[-2:]
    tiers.store.objects[key] = b"".join(struct.pack(">qi", *each) for each in later)
    async with tiers.readers() as readers:
        for number in range(segment.end_offset + 1):
            found = await readers.timestamps.find(tiers.log, NOW_MS + number)
            assert found == TimestampAndOffset(NOW_MS + number, number, 0)
        assert readers.indexes.fetches == 2
    warnings = [each for each in caplog.records if each.levelname == "WARNING"]
    assert len(warnings) == 1
    assert ".timeindex" in warnings[0].getMessage()
