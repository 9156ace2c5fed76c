"""Reads of batches from WAL objects: requests to the store, header rewriting, checks, faults of the store."""

from __future__ import annotations

import logging
import random
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from uuid import UUID

import pytest
import trio
import trio.testing

from odradek.protocol.records.batch import LOG_APPEND_TIME, Batch, batches
from odradek.protocol.records.compression import GZIP
from odradek.protocol.records.records import Record, build_batch, decode
from odradek.protocol.schemas.diskless_apis import DisklessFindBatchesBatchInfo
from odradek.seams.entropy import SeededEntropy
from odradek.storage.diskless.batch_reader import (
    BatchReader,
    DamagedObject,
    ObjectNotFound,
    ObjectUnavailable,
    PartitionRead,
    append_batch,
    batch_fault,
    plan_gets,
)
from odradek.storage.diskless.object_cache import ObjectCache
from odradek.storage.diskless.wal_file import WalFile
from odradek.testing.virtual_object_store import (
    StoreFault,
    StoreFaultKind,
    VirtualBucket,
    VirtualObjectStore,
)
from odradek.testing.virtual_offload import VirtualOffload

TOPIC = UUID(int=7)
NOW_MS = 1_700_000_000_000


def a_batch(first: int, records: int = 3, **framing: int) -> bytes:
    return bytes(
        build_batch(
            [
                Record(-1, NOW_MS + number, None, b"value %d" % (first + number))
                for number in range(records)
            ],
            **framing,  # type: ignore[arg-type]
        )
    )


@dataclass
class Wal:
    """Objects of one coordinator's partitions, whose batches have the offsets that a commit would assign."""

    bucket: VirtualBucket = field(default_factory=VirtualBucket)
    found: dict[int, list[DisklessFindBatchesBatchInfo]] = field(default_factory=dict)

    def write(self, partitions: Sequence[int], *, each: int = 2, **framing: int) -> str:
        """Store an object with `each` batches of these partitions, and return its key."""
        wal = WalFile()
        for index in partitions:
            for _ in range(each):
                wal.add(TOPIC, index, Batch(memoryview(a_batch(0, **framing))))
        built = wal.build()
        key = f"diskless/{len(self.bucket.objects):013d}-1-{UUID(int=1)}"
        self.bucket.store(key, built.data)
        for batch in built.batches:
            of_partition = self.found.setdefault(batch.partition_index, [])
            base_offset = of_partition[-1].last_offset + 1 if of_partition else 0
            of_partition.append(
                DisklessFindBatchesBatchInfo(
                    batch_id=len(of_partition),
                    object_key=key,
                    magic=batch.magic,
                    byte_offset=batch.byte_offset,
                    byte_size=batch.size,
                    base_offset=base_offset,
                    last_offset=base_offset + batch.last_offset,
                    log_append_timestamp=NOW_MS + 50_000,
                    batch_max_timestamp=batch.batch_max_timestamp,
                    timestamp_type=batch.timestamp_type,
                )
            )
        return key

    def reads(self, *indexes: int) -> list[PartitionRead]:
        return [PartitionRead("topic", index, self.found[index]) for index in indexes]

    def gets(self) -> int:
        return sum(operation == "get_range" for operation, _ in self.bucket.requests)


@asynccontextmanager
async def a_reader(
    wal: Wal, *, cache_bytes: int = 1 << 20, seed: int = 0, gets_max: int = 16
) -> AsyncIterator[BatchReader]:
    offload = VirtualOffload(
        entropy=SeededEntropy(random.Random(seed)), delay_seconds=0.01, calls_per_lane=64
    )
    store = VirtualObjectStore(wal.bucket, wait=offload.extend_current_call)
    async with trio.open_nursery() as nursery:
        cache = ObjectCache(cache_bytes)
        yield BatchReader(store, offload, cache, lambda: nursery, gets_max=gets_max)
        nursery.cancel_scope.cancel()


def offsets(read: PartitionRead) -> list[int]:
    """Offsets of the records that were read, whose batches have right CRCs."""
    return [
        record.offset
        for batch in batches(memoryview(read.records or b""), check=True)
        for record in decode(batch)
    ]


def info(
    key: str,
    byte_offset: int,
    byte_size: int,
    *,
    base_offset: int = 0,
    records: int = 3,
    timestamp_type: int = 0,
) -> DisklessFindBatchesBatchInfo:
    return DisklessFindBatchesBatchInfo(
        batch_id=0,
        object_key=key,
        magic=2,
        byte_offset=byte_offset,
        byte_size=byte_size,
        base_offset=base_offset,
        last_offset=base_offset + records - 1,
        log_append_timestamp=NOW_MS + 50_000,
        batch_max_timestamp=NOW_MS + 2,
        timestamp_type=timestamp_type,
    )


def test_neighbouring_batches_share_a_get_across_small_gaps() -> None:
    """KIP-1163: batches of an object are read with as few requests as its gaps allow."""
    found = plan_gets(
        [
            info("b", 0, 10),
            info("a", 300, 50),
            info("a", 0, 100),
            info("a", 100, 50),
            info("a", 160, 40),
        ],
        gap_bytes_max=10,
    )
    assert [(get.key, get.start, get.end, len(get.batches)) for get in found] == [
        ("a", 0, 200, 3),
        ("a", 300, 350, 1),
        ("b", 0, 10, 1),
    ]


def test_gets_are_split_at_their_size_limit_except_for_large_batches() -> None:
    found = plan_gets(
        [info("a", 0, 500), info("a", 500, 60), info("a", 560, 60), info("a", 620, 60)],
        get_bytes_max=120,
    )
    assert [(get.start, get.end) for get in found] == [(0, 500), (500, 620), (620, 680)]


def test_base_offset_and_leader_epoch_are_set_in_the_header() -> None:
    data = memoryview(a_batch(0, compression=GZIP))
    described = info("a", 0, len(data), base_offset=1000)
    out = bytearray()
    append_batch(out, data, described)
    (batch,) = batches(memoryview(out), check=True)
    assert (batch.base_offset, batch.last_offset, batch.leader_epoch) == (1000, 1002, 0)
    assert bytes(batch.view[16:]) == bytes(data[16:])


def test_log_append_time_sets_timestamp_type_max_timestamp_and_crc() -> None:
    data = memoryview(a_batch(0))
    described = info("a", 0, len(data), base_offset=5, timestamp_type=LOG_APPEND_TIME)
    out = bytearray()
    append_batch(out, data, described)
    (batch,) = batches(memoryview(out), check=True)
    assert (batch.timestamp_type, batch.max_timestamp) == (LOG_APPEND_TIME, NOW_MS + 50_000)
    assert [each.timestamp for each in decode(batch)] == [NOW_MS + 50_000] * 3


def test_each_difference_from_the_committed_batch_is_a_fault() -> None:
    data = a_batch(0)
    right = info("a", 0, len(data))
    assert batch_fault(memoryview(data), right) is None
    for position in (11, 16, 17, 26, 61, len(data) - 1):
        damaged = bytearray(data)
        damaged[position] ^= 1
        assert batch_fault(memoryview(damaged), right) is not None
    assert batch_fault(memoryview(data)[:-1], right) is not None
    assert batch_fault(memoryview(b""), right) is not None


async def test_read_returns_batches_of_all_partitions_with_one_get_per_object(
    autojump_clock: trio.testing.MockClock,
) -> None:
    wal = Wal()
    for _ in range(3):
        wal.write([0, 1, 2])
    async with a_reader(wal) as reader:
        reads = wal.reads(0, 2)
        await reader.read(reads)
        assert [offsets(each) for each in reads] == [list(range(18))] * 2
        assert wal.gets() == 3
        again = wal.reads(0, 1, 2)
        await reader.read(again)  # the gaps with partition 1 were read, too
        assert [offsets(each) for each in again] == [list(range(18))] * 3
        assert wal.gets() == 3


async def test_object_of_the_local_writer_is_read_from_memory(
    autojump_clock: trio.testing.MockClock,
) -> None:
    wal = Wal()
    key = wal.write([0])
    async with a_reader(wal) as reader:
        reader.cache.put(key, wal.bucket.objects[key])
        (read,) = wal.reads(0)
        await reader.read([read])
        assert offsets(read) == list(range(6))
        assert wal.gets() == 0


async def test_concurrent_reads_of_the_same_bytes_share_a_get(
    autojump_clock: trio.testing.MockClock,
) -> None:
    wal = Wal()
    wal.write([0])
    async with a_reader(wal) as reader, trio.open_nursery() as nursery:
        reads = [wal.reads(0)[0] for _ in range(5)]
        for each in reads:
            nursery.start_soon(reader.read, [each])
        await trio.sleep(1)
        assert [offsets(each) for each in reads] == [list(range(6))] * 5
        assert wal.gets() == 1


async def test_unavailable_store_fails_the_partition_and_is_logged_once(
    autojump_clock: trio.testing.MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    wal = Wal()
    wal.write([0])
    wal.write([1])
    wal.bucket.inject(StoreFault(StoreFaultKind.THROTTLED))
    async with a_reader(wal) as reader:
        reads = wal.reads(0, 1)
        await reader.read(reads)
        assert all(isinstance(each.failure, ObjectUnavailable) for each in reads)
        assert all(each.records is None for each in reads)
        wal.bucket.heal()
        again = wal.reads(0, 1)
        await reader.read(again)
        assert [offsets(each) for each in again] == [list(range(6))] * 2
    messages = [each.getMessage() for each in caplog.records]
    assert len(messages) == 2
    assert "does not respond" in messages[0]
    assert "503 Slow Down" in messages[0]
    assert "responds again" in messages[1]


async def test_damaged_batch_ends_the_records_and_is_logged_once(
    autojump_clock: trio.testing.MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    wal = Wal()
    key = wal.write([0, 1], each=3)
    second = wal.found[0][1]
    damaged = bytearray(wal.bucket.objects[key])
    damaged[second.byte_offset + 70] ^= 0x40
    wal.bucket.store(key, bytes(damaged))
    async with a_reader(wal) as reader:
        for _ in range(3):
            reads = wal.reads(0, 1)
            await reader.read(reads)
            for each in reads:
                reader.report(each)
            assert offsets(reads[0]) == [0, 1, 2]
            assert isinstance(reads[0].failure, DamagedObject)
            assert offsets(reads[1]) == list(range(9))
            assert reads[1].failure is None
    (line,) = [each.getMessage() for each in caplog.records]
    assert f"offsets 3 to 5 of topic-0 cannot be read from byte {second.byte_offset}" in line
    assert key in line
    assert "Record is corrupt" in line


async def test_missing_object_fails_the_partition(
    autojump_clock: trio.testing.MockClock,
) -> None:
    wal = Wal()
    wal.write([0])
    gone = wal.write([0])
    wal.bucket.remove(gone)
    async with a_reader(wal) as reader:
        (read,) = wal.reads(0)
        await reader.read([read])
        assert offsets(read) == list(range(6))
        assert isinstance(read.failure, ObjectNotFound)


async def test_range_that_is_cut_short_is_read_again(
    autojump_clock: trio.testing.MockClock,
) -> None:
    wal = Wal()
    wal.write([0], each=5)
    wal.bucket.inject(StoreFault(StoreFaultKind.HALF_DONE, times=1))
    async with a_reader(wal) as reader:
        (read,) = wal.reads(0)
        await reader.read([read])
        assert offsets(read) == list(range(15))
        assert wal.gets() == 2


async def test_truncated_object_is_never_returned(
    autojump_clock: trio.testing.MockClock,
) -> None:
    wal = Wal()
    key = wal.write([0], each=5)
    wal.bucket.store(key, wal.bucket.objects[key][:-10])
    async with a_reader(wal) as reader:
        (read,) = wal.reads(0)
        await reader.read([read])
        assert offsets(read) == list(range(12))
        assert isinstance(read.failure, DamagedObject)


async def test_read_returns_what_it_has_while_another_object_hangs(
    autojump_clock: trio.testing.MockClock,
) -> None:
    wal = Wal()
    hanging = wal.write([0])
    wal.write([1])
    wal.bucket.inject(StoreFault(StoreFaultKind.SLOW, pattern=hanging, seconds=30, times=1))
    async with a_reader(wal) as reader:
        reads = wal.reads(0, 1)
        await reader.read(reads, slow_seconds=0.5, seconds_max=10)
        assert trio.current_time() < 1
        assert (reads[0].records, reads[0].failure) == (None, None)
        assert offsets(reads[1]) == list(range(6))
        alone = wal.reads(0)
        await reader.read(alone, slow_seconds=0.5, seconds_max=10)
        assert 10 < trio.current_time() < 12
        assert (alone[0].records, alone[0].failure) == (None, None)
        await trio.sleep(30)
        later = wal.reads(0)
        await reader.read(later)
        assert offsets(later[0]) == list(range(6))
        assert wal.gets() == 2  # the slow GET has filled the cache


async def test_read_ahead_leaves_gets_to_waiting_reads(
    autojump_clock: trio.testing.MockClock,
) -> None:
    wal = Wal()
    for _ in range(20):
        wal.write([0])
    object_bytes = 2 * wal.found[0][0].byte_size
    async with a_reader(wal, gets_max=6) as reader:
        reader.read_ahead(wal.found[0], 1 << 20)
        assert reader.read_ahead_bytes == 2 * object_bytes
        reader.read_ahead(wal.found[0][4:], 3 * object_bytes)
        assert reader.read_ahead_bytes <= 3 * object_bytes
        await trio.sleep(1)
        assert reader.read_ahead_bytes == 0
        before = wal.gets()
        await reader.read([PartitionRead("topic", 0, wal.found[0][:4])])
        assert wal.gets() == before


@pytest.mark.parametrize("seed", range(10))
async def test_random_faults_never_give_wrong_bytes(
    seed: int, autojump_clock: trio.testing.MockClock
) -> None:
    rng = random.Random(seed)
    wal = Wal()
    for _ in range(30):
        framing = {"timestamp_type": LOG_APPEND_TIME} if rng.random() < 0.2 else {}
        wal.write(
            sorted(rng.sample(range(4), rng.randint(1, 4))), each=rng.randint(1, 3), **framing
        )
    kinds = [
        StoreFaultKind.THROTTLED,
        StoreFaultKind.HANGS,
        StoreFaultKind.SLOW,
        StoreFaultKind.HALF_DONE,
        StoreFaultKind.FALSE_SUCCESS,
        StoreFaultKind.RESPONSE_LOST,
    ]

    def draw(operation: str, key: str) -> StoreFault | None:
        return StoreFault(rng.choice(kinds)) if rng.random() < 0.3 else None

    async def consume(reader: BatchReader, index: int) -> None:
        at = 0
        all_batches = wal.found[index]
        while at < len(all_batches):
            wanted = all_batches[at : at + rng.randint(1, 6)]
            read = PartitionRead("topic", index, wanted)
            await reader.read([read], slow_seconds=0.5, seconds_max=5)
            expected = [
                offset
                for batch in wanted[: read.batches_read]
                for offset in range(batch.base_offset, batch.last_offset + 1)
            ]
            assert offsets(read) == expected
            at += read.batches_read
            if rng.random() < 0.3:
                reader.read_ahead(all_batches[at : at + 10], 4000)

    wal.bucket.draw = draw
    async with a_reader(wal, cache_bytes=6000, seed=seed) as reader:
        async with trio.open_nursery() as nursery:
            for index in range(4):
                nursery.start_soon(consume, reader, index)
                nursery.start_soon(consume, reader, index)
    assert wal.bucket.affected_requests > 5
