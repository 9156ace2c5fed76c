"""Compares compaction with Apache Kafka's: its cleaner leaves the same batches of a copy of the
log, pass after pass; its tools accept the compacted log, and its log opens it."""

from __future__ import annotations

import random
import shutil
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from odradek.seams.entropy import SeededEntropy
from odradek.seams.files import Path as SeamPath
from odradek.seams.real_files import RealFiles
from odradek.storage.directories.opening import open_directories
from odradek.storage.log.partition_log import PartitionLog
from odradek.storage.log_manager.log_manager import LogManager, LogServices
from odradek.testing.virtual_clock import VirtualClock
from odradek.testing.virtual_offload import VirtualOffload
from odradek.testing.virtual_workers import VirtualWorkers
from tests.storage.compaction.random_log_content import COMPACTED, History, content
from tests.support.kafka_dist import KafkaUnavailable, kafka_dist
from tests.support.kafka_tools import run_tool
from tests.support.log_managers import ONE

pytestmark = pytest.mark.interop

ROUNDS = 3


@pytest.fixture(autouse=True)
def kafka_is_there() -> None:
    try:
        kafka_dist()
    except KafkaUnavailable as unavailable:
        pytest.fail(str(unavailable), pytrace=False)


@asynccontextmanager
async def opened(
    directory: Path, clock: VirtualClock
) -> AsyncIterator[tuple[LogManager, PartitionLog]]:
    """The only log of the log directory, and its manager; both are closed cleanly at the end."""
    files, entropy = RealFiles(), SeededEntropy(random.Random(1))
    directories = open_directories(files, entropy, [SeamPath(str(directory))], node_id=1)
    manager = LogManager(
        LogServices(
            files,
            clock,
            entropy,
            VirtualOffload(),
            directories,
            config_for=lambda topic: COMPACTED,
        ),
        workers=VirtualWorkers(files),
    )
    await manager.load()
    yield manager, await manager.create("t", 0, ONE)
    await manager.close()
    directories.close()


def java(program: str, *args: object) -> str:
    return run_tool(program, *map(str, args)).stdout


def kafka_compacts(directory: Path, first_dirty_offset: int, now_ms: int) -> str:
    return java(
        "clean-log",
        directory / "t-0",
        COMPACTED.max_segment_bytes,
        COMPACTED.index_interval_bytes,
        COMPACTED.delete_retention_ms,
        first_dirty_offset,
        now_ms,
    )


@pytest.mark.parametrize("seed", range(2))
async def test_kafka_cleaner_retains_same_batches(
    clock: VirtualClock, tmp_path: Path, seed: int
) -> None:
    own_directory, theirs = tmp_path / "own_directory", tmp_path / "theirs"
    rng = random.Random(seed)
    first_dirty_offset = 0
    sequences: dict[int, int] = {}
    epochs: dict[int, int] = {}
    for _ in range(ROUNDS):
        state = rng.getstate()
        now_ms = clock.wall_ms()
        for place in (own_directory, theirs):
            rng.setstate(state)
            again = VirtualClock(epoch_ms=now_ms)
            async with opened(place, again) as (_, log):
                history = History(log, rng, again, sequences=dict(sequences), epochs=dict(epochs))
                history.go_on(60)
                history.seal()
        sequences, epochs = history.sequences, history.epochs
        clock.advance(1 + again.monotonic())
        async with opened(own_directory, clock) as (manager, log):
            assert manager.log_cleaner is not None
            assert await manager.log_cleaner.clean_due_logs() == 1
            mine = content(log)
            assert log.cleaned_to is not None
            output = kafka_compacts(theirs, first_dirty_offset, clock.wall_ms())
            assert output.startswith(f"end {log.cleaned_to} segments {len(log.segments)}\n")
            first_dirty_offset = log.cleaned_to
        async with opened(theirs, clock) as (_, log):
            assert content(log) == mine
        clock.advance(rng.choice((1, 90)))  # some delete horizons pass


async def test_compacted_log_is_read_by_kafka_tools_and_log(
    clock: VirtualClock, tmp_path: Path
) -> None:
    directory = tmp_path / "t-0"
    async with opened(tmp_path, clock) as (manager, log):
        history = History(log, random.Random(7), clock)
        for _ in range(2):
            history.go_on(80)
            history.seal()
            assert manager.log_cleaner is not None
            assert await manager.log_cleaner.clean_due_logs() == 1
        batches = content(log)
        end, producers = log.end_offset, len(log.producers.active)
    out = dumped(directory, ".log", "--deep-iteration", "--print-data-log")
    assert "isvalid: false" not in out
    assert out.count("isvalid: true") == len(batches)
    assert "deleteHorizonMs: OptionalLong[" in out
    records = [record.offset for batch in batches for record in batch.records]
    assert [
        int(line.split()[2]) for line in out.splitlines() if line.startswith("| offset: ")
    ] == records
    for suffix in (".index", ".timeindex"):
        sane = dumped(directory, suffix, "--index-sanity-check")
        count = sane.count("passed sanity check") + sane.count("is empty")
        assert count == len(list(directory.glob(f"*{suffix}")))
        verified = dumped(directory, suffix, "--verify-index-only").lower()
        for complaint in ("mismatches", "misaligned", "not found", "out of order", "could not"):
            assert complaint not in verified
    before = data_of(directory)
    sizes = COMPACTED.max_segment_bytes, COMPACTED.index_interval_bytes
    copy = tmp_path / "recovered" / "t-0"
    shutil.copytree(directory, copy)
    output = java("recover-log", directory, *sizes, "clean")
    assert f"end {end}\n" in output
    assert f"producers {producers}\n" in output
    assert data_of(directory) == before
    # Also after an unclean shutdown: all scanned batches are valid.
    for path in copy.glob("*.snapshot"):
        path.unlink()
    output = java("recover-log", copy, *sizes)
    assert f"end {end}\n" in output
    assert f"producers {producers}\n" in output
    assert data_of(copy) == before


def data_of(directory: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted(directory.glob("*.log"))}


def dumped(directory: Path, suffix: str, *options: str) -> str:
    files = ",".join(str(path) for path in sorted(directory.glob(f"*{suffix}")))
    return run_tool("dump-log", "--files", files, *options).stdout


@pytest.fixture
def clock() -> VirtualClock:
    # Kafka's log uses the machine's clock to expire producers.
    return VirtualClock(epoch_ms=time.time_ns() // 1_000_000)
