"""Reads from the remote tier return the batches of the log's lineage, or raise."""

from __future__ import annotations

import dataclasses
from typing import Any
from uuid import UUID

import pytest
import trio
import trio.testing
from hypothesis import given, settings
from hypothesis import strategies as st

from odradek.protocol.records.batch import batches
from odradek.storage.directories.names import REMOTE_INDEX_CACHE
from odradek.storage.errors import OffsetOutOfRange
from odradek.storage.log.leader_epoch_cache import EpochStart
from odradek.storage.log.offset_index import ENTRY
from odradek.storage.log.truncation import EmptyLogStart
from odradek.storage.tiered import remote_log_reader
from odradek.storage.tiered.errors import (
    CorruptRemoteData,
    RemoteNotReady,
    RemoteStorageError,
    RemoteStorageUnavailable,
)
from odradek.storage.tiered.remote_index_cache import REFETCH_SECONDS
from odradek.storage.tiered.remote_log_reader import ReadLimits
from odradek.storage.tiered.remote_storage_manager import IndexType
from odradek.storage.tiered.segment_range_cache import (
    ReaderLimits,
    RemoteFetchQuotaExceeded,
    TooManyReads,
)
from tests.support.partition_logs import NOW_MS, LogWorld, batch
from tests.support.remote_log_reads import CACHE_ROOT, TIERED, Tiers, as_bytes


def filled(count: int = 30, **more: object) -> Tiers:
    """Batches of two records, about three per segment; a new epoch for every tenth batch."""
    tiers = Tiers(**more)  # type: ignore[arg-type]
    for number in range(count):
        tiers.append(batch(2, timestamps=NOW_MS + 2 * number), epoch=number // 10)
    tiers.copy_and_expire()
    return tiers


async def test_offsets_below_local_log_are_read_from_remote_tier() -> None:
    """T-32, T-33."""
    tiers = filled()
    start = tiers.log.local_log_start_offset
    assert start > 40
    async with tiers.readers() as readers:
        for offset in range(start):
            found = await readers.batches(offset)
            assert found[0].base_offset == offset - offset % 2
            assert found[0].leader_epoch == offset // 20
        assert await readers.all_from(0) == list(range(start))


async def test_sequential_reader_fetches_no_index() -> None:
    tiers = filled()
    async with tiers.readers() as readers:
        await readers.all_from(0)
        assert readers.indexes.fetches == 0
        assert {what for what, _, _ in tiers.store.fetched} == {".log"}
        await readers.offsets(9)
        assert readers.indexes.fetches == 1


async def test_cached_ranges_are_not_fetched_again() -> None:
    tiers = filled()
    async with tiers.readers() as readers:
        await readers.all_from(0)
        fetched = len(tiers.store.fetched)
        assert fetched == len(tiers.metadata.known)
        await readers.all_from(0)
        assert len(tiers.store.fetched) == fetched


@pytest.mark.parametrize("at_least_one", [True, False])
async def test_read_ends_between_batches(at_least_one: bool) -> None:
    tiers = filled()
    size = len(batch(2))
    async with tiers.readers() as readers:
        assert await readers.offsets(0, ReadLimits(2 * size, 1000, at_least_one)) == [0, 1, 2, 3]
        assert await readers.offsets(0, ReadLimits(2 * size - 1, 1000, at_least_one)) == [0, 1]
        found = await readers.read(0, ReadLimits(size - 1, 1000, at_least_one))
        assert [each.size for each in found.records] == ([size] if at_least_one else [])
        found.unpin()


async def test_read_returns_nothing_past_limit() -> None:
    tiers = filled()
    async with tiers.readers() as readers:
        assert await readers.offsets(0, ReadLimits(1 << 20, 2)) == [0, 1]
        assert await readers.offsets(2, ReadLimits(1 << 20, 2)) == []
        assert await readers.offsets(1, ReadLimits(1 << 20, 1)) == []


async def test_slices_stay_readable_until_unpinned() -> None:
    tiers = filled()
    async with tiers.readers() as readers:
        found = await readers.read(0)
        readers.ranges.forget([each.id.id for each in tiers.metadata.known])
        held = readers.ranges.total_bytes
        assert held >= found.size > 0
        assert b"".join(each.read() for each in found.records)[:8] == bytes(8)
        found.unpin()
        assert readers.ranges.total_bytes < held


# Lineages


@pytest.mark.parametrize("number", [0, 1, -1])
async def test_segment_without_records_is_skipped(number: int) -> None:
    """The topic was compacted before it was tiered; as in Kafka, the empty segment exists."""
    tiers = filled()
    known = tiers.metadata.known
    empty = known[number]
    known[known.index(empty)] = dataclasses.replace(empty, size_bytes=0)
    for kind in (None, IndexType.OFFSET, IndexType.TIMESTAMP):
        tiers.store.objects[empty.id.id, kind] = b""
    start = tiers.log.local_log_start_offset
    async with tiers.readers() as readers:
        for offset in (empty.start_offset, empty.start_offset + 1, empty.end_offset):
            found = await readers.read(offset)
            if number == -1:
                assert (found.next_offset, found.size) == (start, 0)
            else:
                assert found.base_offset == empty.end_offset + 1
            found.unpin()


async def test_records_of_diverging_segment_are_not_read() -> None:
    """T-60, E15: a segment of a deposed leader has more records after the divergence."""
    tiers = filled(2)
    tiers.log.roll()
    tiers.copy_and_expire()
    (segment,) = tiers.metadata.known
    assert (segment.start_offset, segment.end_offset) == (0, 3)
    log = LogWorld(TIERED).log
    log.truncate_fully(EmptyLogStart(10, 0, (EpochStart(0, 0), EpochStart(1, 2))))
    tiers.log_world.log = log
    async with tiers.readers() as readers:
        assert await readers.offsets(0) == [0, 1]
        with pytest.raises(RemoteNotReady):
            await readers.read(2)  # it has offset 2 of epoch 0, not of 1
        tiers.metadata.known[0] = dataclasses.replace(
            segment, epochs=(EpochStart(0, 0), EpochStart(1, 2))
        )
        with pytest.raises(CorruptRemoteData, match="epoch"):
            await readers.read(2)


async def test_overlapping_copies_serve_their_own_offsets() -> None:
    """E15, E16."""
    tiers = filled(10)
    first = tiers.metadata.known[0]
    async with tiers.readers() as readers:
        again = dataclasses.replace(first, id=dataclasses.replace(first.id, id=UUID(int=99)))
        tiers.metadata.known.append(again)
        for kind in (None, *IndexType):
            data = tiers.store.objects.get((first.id.id, kind))
            if data is not None:
                tiers.store.objects[again.id.id, kind] = data
        start = tiers.log.local_log_start_offset
        assert await readers.all_from(0) == list(range(start))


# Missing segments and corrupt data


async def test_offset_without_segment_raises_retriable_error() -> None:
    """A consumer must not reset its position because this leader has not read all metadata."""
    tiers = filled()
    async with tiers.readers() as readers:
        tiers.metadata.known.pop(0)
        with pytest.raises(RemoteNotReady):
            await readers.read(0)
        tiers.metadata.ready = False
        with pytest.raises(RemoteNotReady):
            await readers.read(10)


async def test_offset_below_log_start_raises_offset_out_of_range() -> None:
    """T-33: a deleted segment."""
    tiers = filled()
    async with tiers.readers() as readers:
        tiers.store.delete_segment(tiers.metadata.known.pop(0))
        tiers.log.advance_log_start(8, "test")
        with pytest.raises(OffsetOutOfRange):
            await readers.read(0)


async def test_segment_deleted_during_read_is_looked_up_again() -> None:
    tiers = filled()
    async with tiers.readers() as readers:
        assert await readers.offsets(0) == [0, 1, 2, 3]
        first = tiers.metadata.known[0]
        again = dataclasses.replace(first, id=dataclasses.replace(first.id, id=UUID(int=99)))
        for kind in (None, *IndexType):
            data = tiers.store.objects.get((first.id.id, kind))
            if data is not None:
                tiers.store.objects[again.id.id, kind] = data
        tiers.store.delete_segment(first)
        readers.ranges.forget([first.id.id])
        with pytest.raises(RemoteStorageError):
            await readers.read(2)
        tiers.metadata.known[0] = again
        assert await readers.offsets(2) == [2, 3]


async def test_truncated_object_raises_error_with_its_name() -> None:
    tiers = filled()
    async with tiers.readers() as readers:
        key = tiers.metadata.known[0].id.id, None
        whole = tiers.store.objects[key]
        tiers.store.objects[key] = whole[:-10]
        with pytest.raises(CorruptRemoteData, match="truncated"):
            await readers.read(0)
        tiers.store.objects[key] = whole
        assert await readers.offsets(0) == [0, 1, 2, 3]


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 60), st.integers(1, 255))
def test_corrupt_batch_header_never_returns_wrong_data(at: int, flip: int) -> None:
    tiers = filled(9)
    segment = tiers.metadata.known[0]
    data = bytearray(tiers.store.objects[segment.id.id, None])
    right = list(range(segment.start_offset, segment.end_offset + 1))
    data[at] ^= flip
    tiers.store.objects[segment.id.id, None] = bytes(data)

    async def main() -> tuple[list[int], str]:
        async with tiers.readers() as readers:
            try:
                found = await readers.read(0)
            except RemoteStorageError as error:
                return right, str(error)
            found.unpin()
            return list(range(found.base_offset, found.next_offset)), str(segment.id)

    offsets, text = trio.run(main)
    assert offsets == right  # consumers check what the CRC covers
    assert str(segment.id) in text


async def test_wrong_index_in_store_is_not_used_and_fetched_again_later(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """T-19: the caller may do without the index."""
    tiers = filled()
    async with tiers.readers() as readers:
        segment = next(each for each in tiers.metadata.known if each.start_offset > 0)
        key = segment.id.id, IndexType.OFFSET
        right = tiers.store.objects[key]
        assert len(right) >= 8
        tiers.store.objects[key] = right[:4] + bytes([0, 0, 0, 7]) + right[8:]
        for _ in range(5):
            assert segment.end_offset in await readers.offsets(segment.end_offset)
        assert readers.indexes.fetches == 1
        warnings = [each for each in caplog.records if each.levelname == "WARNING"]
        assert len(warnings) == 1
        assert "wrong in the remote storage" in warnings[0].getMessage()
        tiers.store.objects[key] = right
        tiers.log_world.clock.advance(REFETCH_SECONDS)
        assert segment.end_offset in await readers.offsets(segment.end_offset)
        assert readers.indexes.fetches == 2
        assert await readers.indexes.fetch(segment, IndexType.OFFSET) == right
        assert readers.indexes.fetches == 2
        other = tiers.metadata.known[-1]
        del tiers.store.objects[other.id.id, IndexType.OFFSET]
        assert other.end_offset in await readers.offsets(other.end_offset)


async def test_index_of_older_kafka_leads_to_first_of_several_batches() -> None:
    """Its entries cover all batches of one append: the last offset of the last one, and the
    position of the first one."""
    world = LogWorld(dataclasses.replace(TIERED, internal_segment_bytes=1000))
    segment = (tiers := filled(log_world=world)).metadata.known[0]
    key = segment.id.id, IndexType.OFFSET
    entries = [*ENTRY.iter_unpack(tiers.store.objects[key])]
    assert len(entries) >= 6
    of_two = zip(entries[::2], entries[1::2], strict=False)
    tiers.store.objects[key] = b"".join(
        ENTRY.pack(last_offset, position) for (_, position), (last_offset, _) in of_two
    )
    async with tiers.readers() as readers:
        for offset in range(segment.end_offset + 1):
            assert offset in await readers.offsets(offset)


async def test_reads_succeed_after_store_recovers() -> None:
    tiers = filled()
    async with tiers.readers() as readers:
        tiers.store.error = RemoteStorageUnavailable("503")
        with pytest.raises(RemoteStorageUnavailable):
            await readers.read(0)
        assert readers.ranges.total_bytes == 0
        tiers.store.error = None
        assert await readers.offsets(0) == [0, 1, 2, 3]


# Limits


async def test_reads_beyond_pending_limit_are_refused() -> None:
    """T-13."""
    tiers = filled(60, reader_limits=ReaderLimits(threads=1, pending_max=1))
    starts = [each.start_offset for each in tiers.metadata.known[:6]]
    refused: list[int] = []
    async with tiers.readers() as readers:

        async def read(offset: int) -> None:
            try:
                (await readers.read(offset)).unpin()
            except TooManyReads:
                refused.append(offset)

        async with trio.open_nursery() as nursery:
            for offset in starts:
                nursery.start_soon(read, offset)
        assert 0 < len(refused) < len(starts)
        assert readers.ranges.pending == 0
        for offset in refused:
            assert await readers.offsets(offset)


async def test_read_over_quota_fetches_nothing() -> None:
    tiers = filled()
    async with tiers.readers() as readers:
        await readers.offsets(0)
        tiers.over_quota = True
        assert await readers.offsets(0) == [0, 1, 2, 3]
        with pytest.raises(RemoteFetchQuotaExceeded):
            await readers.read(10)
        tiers.over_quota = False
        assert await readers.offsets(10)


async def test_sequential_reader_is_prefetched(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(remote_log_reader, "FETCH_BYTES", 300)
    tiers = filled(60)
    async with tiers.readers() as readers:
        offset = (await readers.offsets(0))[-1] + 1
        offset = (await readers.offsets(offset))[-1] + 1
        assert len(tiers.store.fetched) == 2
        offset = (await readers.offsets(offset))[-1] + 1
        await trio.testing.wait_all_tasks_blocked()
        ahead = len(tiers.store.fetched)
        assert ahead > 3
        assert readers.ranges.prefetched_bytes > 0
        await readers.offsets(offset)
        assert await readers.all_from(offset)
        assert len(tiers.store.fetched) == len(set(tiers.store.fetched))


async def test_slow_reader_does_not_block_others() -> None:
    """Responses that wait for their sockets leave half of the memory to other reads."""
    tiers = filled(60, bytes_max=2000)
    async with tiers.readers() as readers:
        files, held = tiers.log_world.files, []
        for offset in range(0, 100, 4):
            held.append(await readers.read(offset))
            assert readers.ranges.total_bytes <= 2000
        assert not readers.ranges.is_half_pinned
        assert 0 < readers.spill.total_bytes < sum(each.size for each in held)
        assert files.list(CACHE_ROOT / REMOTE_INDEX_CACHE) == []
        for number, each in enumerate(held):
            data = b"".join(as_bytes(part) for part in each.records)
            assert next(iter(batches(memoryview(data), check=True))).base_offset == 4 * number
            each.unpin()
        assert readers.spill.total_bytes == 0


@pytest.mark.parametrize("is_full", [True, False])
async def test_memory_is_bounded_on_full_disk_with_slow_readers(
    autojump_clock: trio.testing.MockClock, is_full: bool
) -> None:
    tiers = filled(60, bytes_max=2000, aside_max=1 << 20 if is_full else 500)
    mount = tiers.log_world.disk.mount(CACHE_ROOT)
    async with tiers.readers() as readers:
        mount.capacity_bytes = 0 if is_full else 1 << 20
        held = []
        for offset in range(0, 100, 6):
            with trio.move_on_after(0.05) as waited:
                held.append(await readers.read(offset))
            assert readers.ranges.total_bytes <= 2000
        assert waited.cancelled_caught
        for each in held:
            each.unpin()
        assert await readers.offsets(98) == [98, 99]


async def test_batch_larger_than_cache_is_read() -> None:
    """KIP-74: otherwise its reader could not continue."""
    tiers = Tiers(bytes_max=4 << 20)
    tiers.log.update_config(
        dataclasses.replace(
            tiers.log.config, max_message_bytes=8 << 20, internal_segment_bytes=16 << 20
        )
    )
    for size in (10, 5 << 20, 10, 10):
        tiers.append(batch(1, size=size))
        tiers.log.roll()
    tiers.copy_and_expire()
    async with tiers.readers() as readers:
        assert await readers.all_from(0) == [0, 1, 2]
        assert await readers.offsets(1, ReadLimits(100, 1000)) == [1]


async def test_concurrent_reads_of_large_batches_do_not_deadlock(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Each read has the beginning of its batch in memory, and no memory is free for the rest."""
    monkeypatch.setattr(remote_log_reader, "FETCH_BYTES", 300)
    monkeypatch.setattr(remote_log_reader, "FETCH_BYTES_MAX", 300)
    tiers = Tiers(bytes_max=6000)
    tiers.log.update_config(dataclasses.replace(tiers.log.config, internal_segment_bytes=3000))
    for _ in range(21):
        tiers.append(batch(1, size=2500))
    tiers.copy_and_expire()
    read: list[int] = []
    async with tiers.readers() as readers:

        async def read_at(offset: int) -> None:
            read.extend(await readers.offsets(offset, ReadLimits(300, 1000)))
            assert readers.ranges.total_bytes <= 6000 + 2600  # one range may exceed the limit

        async with trio.open_nursery() as nursery:
            for offset in range(20):
                nursery.start_soon(read_at, offset)
    assert sorted(read) == list(range(20))


async def test_large_batch_is_read_during_continuous_small_reads(
    autojump_clock: trio.testing.MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another read may hold more of the memory than this one leaves."""
    monkeypatch.setattr(remote_log_reader, "FETCH_BYTES", 300)
    monkeypatch.setattr(remote_log_reader, "FETCH_BYTES_MAX", 300)
    tiers = Tiers(bytes_max=2000, aside_max=0)
    tiers.log.update_config(dataclasses.replace(tiers.log.config, internal_segment_bytes=3000))
    for size in (1500, *[100] * 10):
        tiers.append(batch(1, size=size))
        tiers.log.roll()
    tiers.copy_and_expire()
    async with tiers.readers() as readers:
        held = [await readers.read(offset) for offset in range(1, 9)]
        assert readers.ranges.total_bytes > 1000
        with trio.fail_after(5):
            assert await readers.offsets(0, ReadLimits(100, 1000)) == [0]
        for each in held:
            each.unpin()
        readers.ranges.forget([each.id.id for each in tiers.metadata.known])
        assert readers.ranges.total_bytes == 0


async def test_cancelled_read_keeps_its_fetch(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """Unlike in Kafka, where reads are cancelled after 500 ms and start again."""
    tiers = filled()
    tiers.offload.delay_seconds = 1.0
    async with tiers.readers() as readers:
        with trio.move_on_after(0.01) as scope:
            await readers.read(0)
        assert scope.cancelled_caught
        assert await readers.offsets(0) == [0, 1, 2, 3]
        assert len(tiers.store.fetched) == 1


async def test_finished_fetch_of_cancelled_read_frees_memory(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The range is not pinned by then, so only the fetch can notify waiting reads."""
    tiers = filled()
    first, second = tiers.metadata.known[:2]
    tiers.bytes_max = max(first.size_bytes, second.size_bytes)
    run, may_end = tiers.offload.run, trio.Event()

    async def slow(fn: Any, *args: Any, lane: str) -> Any:
        if args and args[0] is first:
            await may_end.wait()
        return await run(fn, *args, lane=lane)

    monkeypatch.setattr(tiers.offload, "run", slow)
    async with tiers.readers() as readers, trio.open_nursery() as nursery:
        async with trio.open_nursery() as leaving:
            leaving.start_soon(readers.ranges.fetch, first, 0, first.size_bytes)
            await trio.testing.wait_all_tasks_blocked()
            leaving.cancel_scope.cancel()
        nursery.start_soon(readers.ranges.fetch, second, 0, second.size_bytes)
        await trio.testing.wait_all_tasks_blocked()
        assert readers.ranges.find(second.id.id, 0) is None
        may_end.set()
        with trio.fail_after(5):
            while readers.ranges.find(second.id.id, 0) is None:
                await trio.lowlevel.checkpoint()
        nursery.cancel_scope.cancel()
