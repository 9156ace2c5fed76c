"""Disk cache of remote indexes: limit, shared fetches, validation of files, and disk failures."""

from __future__ import annotations

import errno
import struct

import pytest
import trio

from odradek.protocol.uuids import uuid_to_text
from odradek.storage.directories.names import REMOTE_INDEX_CACHE
from odradek.storage.tiered.errors import CorruptRemoteData, RemoteStorageUnavailable
from odradek.storage.tiered.remote_storage_manager import IndexType
from odradek.storage.tiered.segment_metadata import RemoteLogSegmentMetadata
from odradek.testing.power import NodeCrashed
from odradek.testing.virtual_files import VirtualFiles
from tests.support.partition_logs import NOW_MS, batch
from tests.support.remote_log_reads import CACHE_ROOT, Readers, Tiers

HERE = CACHE_ROOT / REMOTE_INDEX_CACHE
KINDS = (IndexType.OFFSET, IndexType.TIMESTAMP, IndexType.TRANSACTION)


def filled(**more: object) -> Tiers:
    tiers = Tiers(**more)  # type: ignore[arg-type]
    for number in range(30):
        tiers.append(batch(2, timestamps=NOW_MS + 2 * number))
    tiers.copy_and_expire()
    return tiers


def names(tiers: Tiers) -> list[str]:
    return tiers.log_world.files.list(HERE)


def name_of(segment: RemoteLogSegmentMetadata, kind: IndexType) -> str:
    return f"{segment.start_offset}_{uuid_to_text(segment.id.id)}{kind.value}"


async def fetch(readers: Readers, number: int, kind: IndexType = IndexType.OFFSET) -> bytes:
    return bytes(await readers.indexes.fetch(readers.tiers.metadata.known[number], kind))


async def test_index_is_fetched_once_and_stored_under_kafka_name() -> None:
    """T-10."""
    tiers = filled()
    segment = tiers.metadata.known[1]
    async with tiers.readers() as readers:
        for kind in KINDS:
            right = tiers.store.objects.get((segment.id.id, kind), b"")
            assert await fetch(readers, 1, kind) == right
            assert await fetch(readers, 1, kind) == right
        assert readers.indexes.fetches == 3
        assert names(tiers) == sorted(name_of(segment, kind) for kind in KINDS)


async def test_concurrent_readers_share_fetch() -> None:
    tiers = filled()
    found: list[bytes] = []
    async with tiers.readers() as readers:

        async def ask() -> None:
            found.append(await fetch(readers, 0))

        async with trio.open_nursery() as nursery:
            for _ in range(5):
                nursery.start_soon(ask)
        assert len(set(found)) == 1
        assert len(found) == 5
        assert readers.indexes.fetches == 1


async def test_restart_reuses_cached_indexes() -> None:
    tiers = filled()
    async with tiers.readers() as readers:
        before = [await fetch(readers, number) for number in range(5)]
        total = readers.indexes.total_bytes
    tiers.log_world.files.open(HERE / "7_x.index.tmp", create=True).close()
    tiers.log_world.files.open(HERE / "notes.txt", create=True).close()
    async with tiers.readers() as readers:
        assert readers.indexes.total_bytes == total
        assert [await fetch(readers, number) for number in range(5)] == before
        assert readers.indexes.fetches == 0
    assert "7_x.index.tmp" not in names(tiers)
    assert "notes.txt" in names(tiers)


@pytest.mark.parametrize("damage", ["longer", "out of the segment", "gone", "shorter"])
async def test_corrupt_cached_index_is_fetched_again(damage: str) -> None:
    tiers = filled()
    async with tiers.readers() as readers:
        right = await fetch(readers, 1)
    files, path = tiers.log_world.files, HERE / name_of(tiers.metadata.known[1], IndexType.OFFSET)
    content = {
        "longer": right + b"\1",
        "out of the segment": right[:-8] + struct.pack(">ii", 1 << 20, 5),
        "gone": None,
        "shorter": right[:-3],
    }[damage]
    files.remove(path)
    if content is not None:
        files.open(path, create=True).append_v([content])
    async with tiers.readers() as readers:
        assert await fetch(readers, 1) == right
        assert readers.indexes.fetches == 1


async def test_transaction_index_of_zeros_is_not_empty() -> None:
    tiers = filled()
    segment = tiers.metadata.known[0]
    async with tiers.readers() as readers:
        tiers.store.objects[segment.id.id, IndexType.TRANSACTION] = bytes(34)
        with pytest.raises(CorruptRemoteData, match="txnindex"):
            await fetch(readers, 0, IndexType.TRANSACTION)
        assert names(tiers) == []


async def test_least_recently_used_indexes_are_evicted() -> None:
    tiers = filled()
    async with tiers.readers() as readers:
        size = len(await fetch(readers, 0))
        tiers.limit_bytes = 3 * size
        for number in (1, 2, 0, 3):
            assert len(await fetch(readers, number)) == size
        assert readers.indexes.total_bytes == 3 * size
        known = tiers.metadata.known
        assert names(tiers) == sorted(name_of(known[n], IndexType.OFFSET) for n in (0, 2, 3))
        tiers.limit_bytes = size  # dynamic config: the next store applies it
        await fetch(readers, 4)
        assert names(tiers) == [name_of(known[4], IndexType.OFFSET)]


async def test_unused_indexes_are_evicted_after_ttl() -> None:
    tiers = filled(ttl_ms=1000)
    async with tiers.readers() as readers:
        await fetch(readers, 0)
        await fetch(readers, 1)
        tiers.log_world.clock.advance(0.9)
        await fetch(readers, 1)
        tiers.log_world.clock.advance(0.9)
        await fetch(readers, 2)
        known = tiers.metadata.known
        assert names(tiers) == sorted(name_of(known[n], IndexType.OFFSET) for n in (1, 2))


async def test_indexes_of_deleted_segments_are_removed() -> None:
    tiers = filled()
    async with tiers.readers() as readers:
        for kind in KINDS:
            await fetch(readers, 0, kind)
            await fetch(readers, 1, kind)
        await readers.indexes.forget([tiers.metadata.known[0].id.id])
        assert names(tiers) == sorted(name_of(tiers.metadata.known[1], kind) for kind in KINDS)


async def test_full_disk_disables_cache_only() -> None:
    tiers = filled()
    async with tiers.readers() as readers:
        tiers.log_world.disk.fail(f"{HERE}/*", errno.ENOSPC, {"write"})
        assert await readers.offsets(9)
        assert await fetch(readers, 1)
        assert readers.indexes.total_bytes == 0
        tiers.log_world.disk.heal()
        await fetch(readers, 1)
        assert readers.indexes.total_bytes > 0


async def test_store_error_is_raised_to_all_callers() -> None:
    tiers = filled()
    tiers.store.error = RemoteStorageUnavailable("503")
    failed = 0
    async with tiers.readers() as readers:

        async def ask() -> None:
            nonlocal failed
            with pytest.raises(RemoteStorageUnavailable):
                await fetch(readers, 0)
            failed += 1

        async with trio.open_nursery() as nursery:
            nursery.start_soon(ask)
            nursery.start_soon(ask)
        assert failed == 2
        tiers.store.error = None
        assert await fetch(readers, 0)


@pytest.mark.parametrize("cut_at", [1, 2, 3])
@pytest.mark.parametrize("after", [False, True])
async def test_crash_at_any_sync_leaves_only_complete_files(cut_at: int, after: bool) -> None:
    tiers = filled()
    async with tiers.readers() as readers:
        right = [await fetch(readers, 1, kind) for kind in KINDS]
        await readers.indexes.forget([tiers.metadata.known[1].id.id])
    files = tiers.log_world.files
    for directory in (CACHE_ROOT.parent, CACHE_ROOT, HERE):
        files.sync_directory(directory)
    sync = files.syncs + cut_at
    _ = files.cut_power_after(sync) if after else files.cut_power_at(sync)

    async def read_on() -> None:
        async with tiers.readers() as readers:
            for kind in KINDS:
                await fetch(readers, 1, kind)

    with pytest.raises(BaseExceptionGroup) as caught:
        await read_on()
    assert caught.group_contains(NodeCrashed)
    for seed in range(4):
        tiers.log_world.files = VirtualFiles(tiers.log_world.disk.crash(seed))
        async with tiers.readers() as readers:
            assert [await fetch(readers, 1, kind) for kind in KINDS] == right
            assert all(not name.endswith(".tmp") for name in names(tiers))
