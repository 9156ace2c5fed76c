"""Compares compaction of random logs with a model, batch by batch and pass after pass; readers
and producers lose nothing that they rely on."""

from __future__ import annotations

import dataclasses
import random

import pytest

from odradek.storage.compaction.cleaner_settings import CleanerSettings
from odradek.storage.log.config import LogConfig
from odradek.storage.log.partition_log import PartitionLog
from odradek.storage.log_manager.log_manager import LogManager
from odradek.testing.virtual_clock import VirtualClock
from tests.storage.compaction.compacted_logs import check_files, latest_values
from tests.storage.compaction.compaction_model import Kept, compacted, kept
from tests.storage.compaction.random_log_content import COMPACTED, History, content, last_batches
from tests.support.log_managers import ONE, LogManagerWorld, append
from tests.support.partition_logs import read_batches


@pytest.fixture
def clock() -> VirtualClock:
    return VirtualClock()


@pytest.fixture
def world(clock: VirtualClock) -> LogManagerWorld:
    return LogManagerWorld(clock=clock, configs={"t": COMPACTED})


async def compact_once(manager: LogManager, log: PartitionLog) -> list[Kept]:
    """Run one pass; returns the content that the model expects."""
    assert manager.log_cleaner is not None
    before, first_dirty_offset = content(log), log.cleaned_to or log.log_start_offset
    bases, producers = [segment.base_offset for segment in log.segments], last_batches(log)
    now_ms = manager.clock.wall_ms()
    assert await manager.log_cleaner.clean_due_logs(passes_max=1) == 1
    assert log.cleaned_to is not None
    return compacted(
        before,
        first_dirty_offset=first_dirty_offset,
        cleaned_to=log.cleaned_to,
        end=bases[-1],
        rewritten_to=min(base for base in bases if base >= log.cleaned_to),
        now_ms=now_ms,
        delete_retention_ms=log.config.delete_retention_ms,
        producers=producers,
    )


@pytest.mark.parametrize("seed", range(40))
async def test_retained_records_match_model(
    world: LogManagerWorld, clock: VirtualClock, seed: int
) -> None:
    rng = random.Random(seed)
    async with world.running() as manager:
        log = await manager.create("t", 0, ONE)
        history = History(log, rng, clock, keys=rng.choice((3, 12, 40)))
        for _ in range(4):
            history.go_on(rng.randint(5, 60))
            history.seal()
            want = await compact_once(manager, log)
            assert content(log) == want
            check_files(world, log)
            clock.advance(rng.choice((1, 61, 200)))  # some delete horizons pass


@pytest.mark.parametrize("seed", range(10))
async def test_small_offset_map_needs_several_passes(
    world: LogManagerWorld, clock: VirtualClock, seed: int
) -> None:
    world.cleaner = CleanerSettings(dedupe_buffer_size=24 * 11)
    async with world.running() as manager:
        log = await manager.create("t", 0, ONE)
        history = History(log, random.Random(seed), clock, keys=40)
        history.go_on(100)
        history.seal()
        passes = 0
        while log.cleaned_to is None or log.cleaned_to < log.segments[-1].base_offset:
            want = await compact_once(manager, log)
            assert content(log) == want
            passes += 1
        assert passes > 2
        check_files(world, log)


@pytest.mark.parametrize("seed", range(5))
async def test_second_pass_changes_nothing(
    world: LogManagerWorld, clock: VirtualClock, seed: int
) -> None:
    async with world.running() as manager:
        log = await manager.create("t", 0, ONE)
        history = History(log, random.Random(seed), clock)
        history.go_on(80)
        history.seal()
        await compact_once(manager, log)
        # The second pass does not change a delete horizon, but may set that of a marker.
        log.cleaned_to = None
        await compact_once(manager, log)
        first = content(log)
        data = [world.files.read(segment.path(".log")) for segment in log.segments]
        log.cleaned_to = None
        await compact_once(manager, log)
        assert content(log) == first
        assert [world.files.read(segment.path(".log")) for segment in log.segments] == data


@pytest.mark.parametrize("seed", range(8))
async def test_readers_find_last_record_of_every_key(
    world: LogManagerWorld, clock: VirtualClock, seed: int
) -> None:
    async with world.running() as manager:
        log = await manager.create("t", 0, ONE)
        history = History(log, random.Random(seed), clock)
        history.go_on(120)
        history.seal()
        latest = latest_values(log)
        aborted = log.aborted_transactions(0, log.end_offset)
        await compact_once(manager, log)
        assert latest_values(log) == latest
        left = content(log)
        for start in range(log.end_offset):
            found = [
                record
                for batch in content_from(log, start)
                for record in batch.records
                if record.offset >= start
            ]
            want = [record for batch in left for record in batch.records if record.offset >= start]
            assert found == want
        assert set(log.aborted_transactions(0, log.end_offset)) <= set(aborted)
        for each in aborted:  # no aborted records remain
            assert not any(
                batch.records
                for batch in left
                if batch.producer[0] == each.producer_id
                and not batch.is_control
                and each.first_offset <= batch.base_offset < each.last_offset
            )


def content_from(log: PartitionLog, start: int) -> list[Kept]:
    return [kept(batch) for batch in read_batches(log, start, log.end_offset)]


@pytest.mark.parametrize("seed", range(10))
async def test_producers_continue_after_log_recovery_of_compacted_log(
    world: LogManagerWorld, clock: VirtualClock, seed: int
) -> None:
    async with world.running() as manager:
        log = await manager.create("t", 0, ONE)
        history = History(log, random.Random(seed), clock, keys=4)
        history.go_on(100)
        history.seal()
        await compact_once(manager, log)
        states = {
            number: (entry.epoch, entry.last_sequence)
            for number, entry in log.producers.active.items()
        }
        assert len(states) > 5
        directory = log.directory
    for name in world.names(directory):
        if name.endswith(".snapshot"):
            world.files.remove(directory / name)
    world.files.remove(directory.parent / ".kafka_cleanshutdown")
    async with world.running() as manager:
        recovered = manager.get("t", 0)
        assert recovered is not None
        assert states == {
            number: (entry.epoch, entry.last_sequence)
            for number, entry in recovered.producers.active.items()
        }
        assert recovered.producers.first_unstable_offset is None


async def test_maximum_delete_retention_keeps_tombstones(
    world: LogManagerWorld, clock: VirtualClock
) -> None:
    """delete.retention.ms has the maximum value, so the sum with the current time overflows an
    int64."""
    world.configs["t"] = dataclasses.replace(COMPACTED, delete_retention_ms=2**63 - 1)
    async with world.running() as manager:
        log = await manager.create("t", 0, ONE)
        history = History(log, random.Random(1), clock)
        for _ in range(2):
            history.go_on(60)
            history.seal()
            want = await compact_once(manager, log)
            assert content(log) == want
            assert {batch.horizon_ms for batch in want} == {None, 2**63 - 1}
            clock.advance(10**9)


async def test_small_segments_are_merged(world: LogManagerWorld, clock: VirtualClock) -> None:
    async with world.running() as manager:
        log = await manager.create("t", 0, ONE)
        history = History(log, random.Random(1), clock, keys=2)
        history.go_on(60)
        history.seal()
        assert len(log.segments) > 5
        log.update_config(dataclasses.replace(COMPACTED, internal_segment_bytes=1 << 20))
        await compact_once(manager, log)
        assert len(log.segments) == 2
        check_files(world, log)


async def test_records_without_key_are_removed_by_first_pass(
    world: LogManagerWorld, clock: VirtualClock
) -> None:
    """They were written while cleanup.policy was delete."""
    world.configs["t"] = LogConfig()
    async with world.running() as manager:
        log = await manager.create("t", 0, ONE)
        append(log, "no key")
        world.configs["t"] = COMPACTED
        manager.update_configs()
        history = History(log, random.Random(1), clock)
        history.go_on(3)
        history.seal()
        await compact_once(manager, log)
        assert content(log)[0].base_offset > 0


@pytest.mark.parametrize("seed", range(6))
async def test_transaction_indexes_of_compacted_segments_are_right(
    world: LogManagerWorld, clock: VirtualClock, seed: int, caplog: pytest.LogCaptureFixture
) -> None:
    """They are compared with the log before their first use."""
    async with world.running() as manager:
        log = await manager.create("t", 0, ONE)
        history = History(log, random.Random(seed), clock)
        for _ in range(3):
            history.go_on(60)
            history.seal()
            latest = latest_values(log)
            await compact_once(manager, log)
            assert latest_values(log) == latest
    assert "transaction index" not in caplog.text
