"""Offset lookup by timestamp in both tiers (T-39, E5)."""

from __future__ import annotations

import dataclasses
from typing import Any
from uuid import UUID

import pytest
import trio

from odradek.seams.files import Buffer
from odradek.storage.directories.names import REMOTE_INDEX_CACHE
from odradek.storage.log.leader_epoch_cache import EpochStart
from odradek.storage.log.offset_index import ENTRY
from odradek.storage.log.timestamp_lookup import TimestampAndOffset
from odradek.storage.tiered import remote_timestamp_lookup
from odradek.storage.tiered.errors import RemoteNotReady
from odradek.storage.tiered.remote_storage_manager import IndexType
from odradek.storage.tiered.segment_metadata import RemoteLogSegmentMetadata, SegmentState
from tests.support.partition_logs import NOW_MS, LogWorld, batch
from tests.support.remote_log_reads import CACHE_ROOT, TIERED, Tiers

TIMES = [0, 10, 5, 20, 20, 15, 30, 25, 40, 40, 60, 50, 45, 70, 65, 80, 75, 95, 90, 100, 85, 110]
"""Of the records, two to a batch: not in order, as producers have them."""


def append_to(world: LogWorld) -> None:
    for number in range(0, len(TIMES), 2):
        times = [NOW_MS + each for each in TIMES[number : number + 2]]
        world.append(batch(2, timestamps=times), epoch=number // 8)


def filled() -> Tiers:
    tiers = Tiers()
    append_to(tiers.log_world)
    tiers.copy_and_expire()
    return tiers


async def test_timestamp_lookup_equals_local_lookup() -> None:
    """T-39, E5."""
    tiers = filled()
    local = LogWorld(dataclasses.replace(TIERED, remote_storage_enable=False))
    append_to(local)
    assert 0 < tiers.log.local_log_start_offset < tiers.log.end_offset
    async with tiers.readers() as readers:
        for time in range(-1, 112):
            found = await readers.timestamps.find(tiers.log, NOW_MS + time)
            assert found == local.log.find_timestamp(NOW_MS + time), time
        assert await readers.timestamps.find_max(tiers.log) == local.log.max_timestamp()


async def test_timestamp_lookup_ignores_fetch_quota() -> None:
    """As in Kafka: remote.log.manager.fetch.max.bytes.per.second applies to fetches."""
    tiers = filled()
    tiers.over_quota = True
    async with tiers.readers() as readers:
        found = await readers.timestamps.find(tiers.log, NOW_MS + 30)
        assert found == TimestampAndOffset(NOW_MS + 30, 6, 0)
        assert readers.counted == []


async def test_timestamp_lookup_starts_at_log_start_offset() -> None:
    tiers = filled()
    tiers.log.advance_log_start(5, "test")
    async with tiers.readers() as readers:
        found = await readers.timestamps.find(tiers.log, NOW_MS)
        assert found == TimestampAndOffset(NOW_MS + 15, 5, 0)


async def test_max_timestamp_may_be_remote() -> None:
    tiers = Tiers()
    for time in (5, 9, 3, 2, 1, 1, 1, 1, 1):
        tiers.append(batch(2, timestamps=NOW_MS + time))
    tiers.copy_and_expire()
    async with tiers.readers() as readers:
        found = await readers.timestamps.find_max(tiers.log)
        assert found == TimestampAndOffset(NOW_MS + 9, 2, 0)


async def test_max_timestamp_with_two_copies_of_same_start_offset() -> None:
    """A deposed leader has copied a part of the segment; both end in the same millisecond."""
    tiers = Tiers()
    for time in (5, 9, 9, 9, 3, 2, 1, 1, 1, 1, 1):
        tiers.append(batch(2, timestamps=NOW_MS + time))
    tiers.copy_and_expire()
    (slot,) = (n for n, each in enumerate(tiers.metadata.known) if each.start_offset == 0)
    ours = tiers.metadata.known[slot]
    shorter = dataclasses.replace(ours.id, id=UUID(int=99))
    tiers.metadata.known.insert(
        slot, dataclasses.replace(ours, id=shorter, end_offset=ours.end_offset - 2)
    )
    for kind in (None, *IndexType):
        if (ours.id.id, kind) in tiers.store.objects:
            tiers.store.objects[shorter.id, kind] = tiers.store.objects[ours.id.id, kind]
    async with tiers.readers() as readers:
        found = await readers.timestamps.find_max(tiers.log)
        assert found == TimestampAndOffset(NOW_MS + 9, 2, 0)


async def test_segments_without_timestamps_are_not_fetched() -> None:
    """As in Kafka's LogSegment.largestTimestamp, their metadata has the time when they became
    inactive. They have no record with that timestamp."""
    tiers = Tiers()
    world = tiers.log_world
    times = [-1, -1, -1, NOW_MS + 9, NOW_MS + 7, -1, -1, -1, -1, -1, -1]
    for number, each in enumerate(times):
        world.clock.advance(1)
        world.append(batch(2, timestamps=each))
        if number % 3 == 2:
            world.log.roll()
    tiers.copy_and_expire()
    told = [each.max_timestamp_ms for each in tiers.metadata.known]
    sealed_ms = [each.created_ms for each in world.log.segments]
    assert NOW_MS + 9 in told
    assert all(each > 0 for each in told)
    assert max(told) <= max(sealed_ms) <= world.clock.wall_ms()
    async with tiers.readers() as readers:
        found = await readers.timestamps.find_max(tiers.log)
        assert found == TimestampAndOffset(NOW_MS + 9, 6, 0)
        fetched = {start for what, start, _ in tiers.store.fetched if what == ".log"}
        assert fetched == {6}
        assert await readers.timestamps.find(tiers.log, NOW_MS + 10) is None


async def test_segments_outside_lineage_are_ignored() -> None:
    """E15."""
    tiers = filled()
    first = tiers.metadata.known[0]
    async with tiers.readers() as readers:
        right = await readers.timestamps.find(tiers.log, NOW_MS + 5)
        for wrong in (
            dataclasses.replace(first, epochs=(EpochStart(7, 0),)),
            dataclasses.replace(first, state=SegmentState.DELETE_SEGMENT_STARTED),
        ):
            tiers.metadata.known[0] = wrong
            found = await readers.timestamps.find(tiers.log, NOW_MS + 5)
            assert found is not None
            assert found.offset > first.end_offset
        tiers.metadata.known[0] = first
        assert await readers.timestamps.find(tiers.log, NOW_MS + 5) == right


@pytest.mark.parametrize("kind", [IndexType.OFFSET, IndexType.TIMESTAMP])
async def test_segment_without_index_is_read_from_its_start(kind: IndexType) -> None:
    """T-19."""
    tiers = filled()
    async with tiers.readers() as readers:
        for segment in tiers.metadata.known:
            del tiers.store.objects[segment.id.id, kind]
        found = await readers.timestamps.find(tiers.log, NOW_MS + 25)
        assert found == TimestampAndOffset(NOW_MS + 30, 6, 0)


@pytest.mark.parametrize("largest", [False, True])
async def test_segment_deleted_during_lookup_is_skipped(largest: bool) -> None:
    """T-39: the log start offset is higher by then."""
    tiers = Tiers()
    for time in (9, 9, 9, 9, 8, 7, 6, 5, 4, 3, 2):
        tiers.append(batch(2, timestamps=NOW_MS + time))
    tiers.copy_and_expire()
    first, second, *_ = tiers.metadata.known
    fetch_index = tiers.store.fetch_index

    def expire(metadata: RemoteLogSegmentMetadata, kind: IndexType) -> Buffer:
        tiers.store.fetch_index = fetch_index  # type: ignore[method-assign]
        found = fetch_index(metadata, kind)
        assert metadata == first
        tiers.log.advance_log_start(second.start_offset, "retention")
        tiers.metadata.known[0] = dataclasses.replace(
            first, state=SegmentState.DELETE_SEGMENT_STARTED
        )
        tiers.store.delete_segment(first)
        return found

    tiers.store.fetch_index = expire  # type: ignore[method-assign]
    async with tiers.readers() as readers:
        if largest:
            found = await readers.timestamps.find_max(tiers.log)
        else:
            found = await readers.timestamps.find(tiers.log, NOW_MS + 5)
    assert found == TimestampAndOffset(NOW_MS + 9, second.start_offset, 0)


@pytest.mark.parametrize("wrong", ["no batch", "another batch"])
async def test_corrupt_cached_index_is_fetched_again(wrong: str) -> None:
    """T-10: as who reads there has it."""
    tiers = Tiers(LogWorld(dataclasses.replace(TIERED, internal_segment_bytes=800)))
    append_to(tiers.log_world)
    tiers.copy_and_expire()
    files, directory = tiers.log_world.files, CACHE_ROOT / REMOTE_INDEX_CACHE
    async with tiers.readers() as readers:
        right = await readers.timestamps.find(tiers.log, NOW_MS + 30)
        assert right == TimestampAndOffset(NOW_MS + 30, 6, 0)
        (name,) = (each for each in files.list(directory) if each.endswith(".index"))
        *entries, last = ENTRY.iter_unpack(files.read(directory / name))
        after = [*entries[1:], last]
        damaged = [
            (offset, position + 7 if wrong == "no batch" else next_position)
            for (offset, position), (_, next_position) in zip(entries, after, strict=True)
        ]
        files.remove(directory / name)
        files.write_new(directory / name, b"".join(ENTRY.pack(*each) for each in [*damaged, last]))
        assert await readers.timestamps.find(tiers.log, NOW_MS + 30) == right


async def test_unread_metadata_raises() -> None:
    tiers = filled()
    tiers.metadata.ready = False
    async with tiers.readers() as readers:
        with pytest.raises(RemoteNotReady):
            await readers.timestamps.find(tiers.log, NOW_MS)


async def test_segment_deleted_locally_during_lookup_is_found(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """T-39: it is local while the remote tier is searched, and deleted while the local log is searched."""
    tiers = Tiers()
    log, run = tiers.log, tiers.offload.run

    def keep_on_disk(size_bytes: int) -> None:
        log.update_config(dataclasses.replace(log.config, local_retention_bytes=size_bytes))
        log.delete_expired(NOW_MS)

    keep_on_disk(1 << 20)
    append_to(tiers.log_world)
    tiers.copy_and_expire()
    assert log.local_log_start_offset == 0

    async def late(fn: Any, *args: Any, lane: str) -> Any:
        if fn in (log.find_timestamp, log.max_timestamp):
            keep_on_disk(1)
        return await run(fn, *args, lane=lane)

    right = log.find_timestamp(NOW_MS + 10)
    monkeypatch.setattr(tiers.offload, "run", late)
    async with tiers.readers() as readers:
        assert await readers.timestamps.find(log, NOW_MS + 10) == right
        assert log.local_log_start_offset > 0


async def test_concurrent_lookups_in_large_batches_do_not_deadlock(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """ListOffsets searches all its partitions at once. Each lookup has the beginning of its batch
    in memory, and no memory is free for the rest."""
    monkeypatch.setattr(remote_timestamp_lookup, "SEARCH_BYTES", 300)
    tiers = Tiers(bytes_max=6000)
    tiers.log.update_config(dataclasses.replace(tiers.log.config, internal_segment_bytes=3000))
    for number in range(21):
        tiers.append(batch(1, size=2500, timestamps=NOW_MS + number))
    tiers.copy_and_expire()
    found: list[int] = []
    async with tiers.readers() as readers:

        async def search(number: int) -> None:
            first = await readers.timestamps.find(tiers.log, NOW_MS + number)
            assert first is not None
            found.append(first.offset)
            assert readers.ranges.total_bytes <= 6000 + 2600  # one range may exceed the limit

        with trio.fail_after(5):
            async with trio.open_nursery() as nursery:
                for number in range(20):
                    nursery.start_soon(search, number)
    assert sorted(found) == list(range(20))
