"""Concurrent readers of one log while the store fails, is slow, or returns truncated data: every
result is correct, and after the faults end every reader gets all records."""

from __future__ import annotations

import random
from dataclasses import dataclass, field

import pytest
import trio
import trio.testing

from odradek.seams.entropy import SeededEntropy
from odradek.seams.files import Buffer
from odradek.storage.errors import OffsetOutOfRange
from odradek.storage.tiered import remote_log_reader
from odradek.storage.tiered.errors import RemoteStorageError, RemoteStorageUnavailable
from odradek.storage.tiered.remote_log_reader import ReadLimits
from odradek.storage.tiered.remote_storage_manager import IndexType
from odradek.storage.tiered.segment_metadata import RemoteLogSegmentMetadata
from odradek.storage.tiered.segment_range_cache import ReaderLimits
from odradek.testing.virtual_offload import VirtualOffload
from tests.support.partition_logs import NOW_MS, batch
from tests.support.remote_log_reads import Readers, Store, Tiers

BATCHES = 120
READERS = 5
ROUNDS = 60


@dataclass
class FaultyStore(Store):
    rng: random.Random = field(default_factory=random.Random)
    faults: float = 0.3
    """The part of the calls that go wrong."""

    def fetch_segment(
        self, metadata: RemoteLogSegmentMetadata, start: int, end_inclusive: int | None = None
    ) -> Buffer:
        return self._spoilt(super().fetch_segment(metadata, start, end_inclusive))

    def fetch_index(self, metadata: RemoteLogSegmentMetadata, kind: IndexType) -> Buffer:
        return self._spoilt(super().fetch_index(metadata, kind))

    def _spoilt(self, data: Buffer) -> Buffer:
        if self.rng.random() > self.faults:
            return data
        if self.rng.random() < 0.5 or not data:
            raise RemoteStorageUnavailable("503")
        return data[: self.rng.randrange(len(data))]


@pytest.mark.parametrize("seed", range(8))
async def test_readers_get_only_correct_records_during_store_faults(
    seed: int, monkeypatch: pytest.MonkeyPatch, autojump_clock: trio.testing.MockClock
) -> None:
    monkeypatch.setattr(remote_log_reader, "FETCH_BYTES", 200)
    monkeypatch.setattr(remote_log_reader, "FETCH_BYTES_MAX", 700)
    rng = random.Random(seed)
    store = FaultyStore(rng=rng)
    tiers = Tiers(
        store=store,
        reader_limits=ReaderLimits(threads=3, pending_max=4),
        bytes_max=4000,
        limit_bytes=rng.choice([1, 200, 1 << 20]),
    )
    tiers.offload = VirtualOffload(entropy=SeededEntropy(random.Random(seed)), delay_seconds=0.01)
    for number in range(BATCHES):
        tiers.append(batch(2, timestamps=NOW_MS + number), epoch=number // 30)
    tiers.copy_and_expire()
    async with tiers.readers() as readers:
        async with trio.open_nursery() as nursery:
            for _ in range(READERS):
                nursery.start_soon(_read_about, readers, random.Random(rng.random()))
        store.faults = 0.0
        await _read_all(readers)
        readers.ranges.forget([each.id.id for each in tiers.metadata.known])
        await trio.testing.wait_all_tasks_blocked()
        assert readers.ranges.pending == 0


async def _read_about(readers: Readers, rng: random.Random) -> None:
    """Sequential reads from random offsets, some of them cancelled."""
    log, offset = readers.tiers.log, 0
    for _ in range(ROUNDS):
        if rng.random() < 0.2:
            offset = rng.randrange(log.local_log_start_offset)
        limits = ReadLimits(rng.choice([1, 250, 2000]), log.end_offset, rng.random() < 0.8)
        with trio.move_on_after(rng.choice([0.003, 1.0])):
            try:
                found = await readers.batches(offset, limits)
            except (RemoteStorageError, trio.TooSlowError):
                await trio.sleep(0.01)
                continue
            except OffsetOutOfRange:
                raise AssertionError("the log has not moved") from None
            assert readers.ranges.total_bytes <= 2 * readers.tiers.bytes_max
            for each in found:
                assert each.base_offset <= offset < each.next_offset
                assert each.leader_epoch == each.base_offset // 60
                offset = each.next_offset
        if offset >= log.local_log_start_offset:
            offset = 0


async def _read_all(readers: Readers) -> None:
    found: list[int] = []
    start = readers.tiers.log.local_log_start_offset
    for _ in range(10 * BATCHES):
        if len(found) >= start:
            break
        try:
            found += await readers.offsets(len(found))
        except RemoteStorageError:
            await trio.sleep(0.1)  # failed fetches are repeated
    assert found == list(range(start))
