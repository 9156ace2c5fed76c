"""The log manager of a node on a virtual disk, which tests start, crash and restart."""

from __future__ import annotations

import random
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from uuid import UUID

import trio

from odradek.protocol.records.records import Record, build_batch
from odradek.seams.entropy import SeededEntropy
from odradek.seams.files import Path
from odradek.seams.threads import ThreadOffload
from odradek.storage.compaction.cleaner_settings import CleanerSettings
from odradek.storage.directories.log_directory import LogDirectory
from odradek.storage.directories.opening import open_directories
from odradek.storage.log.config import LogConfig
from odradek.storage.log.partition_log import AppendResult, PartitionLog
from odradek.storage.log_manager.log_manager import LogManager, LogManagerIntervals, LogServices
from odradek.storage.log_registry.registry import IsStray, no_stray_logs
from odradek.storage.moving.mover import MoverSettings
from odradek.testing.virtual_clock import VirtualClock
from odradek.testing.virtual_disk import VirtualDisk
from odradek.testing.virtual_files import VirtualFiles
from odradek.testing.virtual_offload import VirtualOffload
from odradek.testing.virtual_workers import VirtualWorkers

A, B = Path("/a"), Path("/b")
T0 = 1_767_225_600_000
ONE, TWO, THREE = UUID(int=1), UUID(int=2), UUID(int=3)
SMALL = LogConfig(internal_segment_bytes=300, index_interval_bytes=100, file_delete_delay_ms=60_000)


@dataclass
class LogManagerWorld:
    """Successive runs of one node's log manager on one disk."""

    disk: VirtualDisk = field(default_factory=VirtualDisk)
    paths: Sequence[Path] = (A, B)
    clock: VirtualClock = field(default_factory=VirtualClock)
    intervals: LogManagerIntervals = field(default_factory=LogManagerIntervals)
    configs: dict[str, LogConfig] = field(default_factory=dict)
    default: LogConfig = SMALL
    seed: int = 1
    threads: bool = False
    """Whether calls are offloaded to real threads instead of virtual ones."""
    failures: list[tuple[LogDirectory, list[PartitionLog]]] = field(default_factory=list)

    cleaner: CleanerSettings = field(default_factory=CleanerSettings)
    mover: MoverSettings = field(default_factory=MoverSettings)

    def __post_init__(self) -> None:
        self.files = VirtualFiles(self.disk)
        self.workers = VirtualWorkers(self.files, self.files.power)

    def on_failure(self, directory: LogDirectory, logs: Sequence[PartitionLog]) -> None:
        self.failures.append((directory, list(logs)))

    def config(self, topic: str) -> LogConfig:
        return self.configs.get(topic, self.default)

    def manager(self) -> LogManager:
        """Open the log directories and return their log manager. The caller closes the directories."""
        self.seed += 1
        entropy = SeededEntropy(random.Random(self.seed))
        directories = open_directories(self.files, entropy, self.paths, node_id=1)
        services = LogServices(
            self.files,
            self.clock,
            entropy,
            ThreadOffload() if self.threads else VirtualOffload(self.files.power),
            directories,
            config_for=self.config,
            intervals=lambda: self.intervals,
        )
        return LogManager(
            services,
            on_failure=self.on_failure,
            workers=self.workers,
            cleaner_settings=lambda: self.cleaner,
            mover_settings=lambda: self.mover,
        )

    @asynccontextmanager
    async def running(
        self,
        *,
        housekeeping: bool = False,
        is_stray: IsStray = no_stray_logs,
    ) -> AsyncIterator[LogManager]:
        """Run a log manager, and close it at the end."""
        manager = self.manager()
        await manager.load(is_stray)
        async with trio.open_nursery() as nursery:
            if housekeeping:
                await nursery.start(manager.run)
            yield manager
            nursery.cancel_scope.cancel()
        await manager.close(broker_epoch=7)
        manager.directories.close()

    def killed(self) -> LogManagerWorld:
        """Return the world after a kill of the process: the page cache survives."""
        self.files = VirtualFiles(self.disk)
        self.workers.power = self.files.power
        return self

    def crashed(self, seed: int) -> LogManagerWorld:
        """Return a world after a power failure: unsynced writes may be lost, as `seed` determines."""
        return replace(self, disk=self.disk.crash(seed), failures=[])

    def read(self, path: Path | str) -> str:
        return VirtualFiles(self.disk).read(Path(path)).decode()

    def names(self, path: Path) -> list[str]:
        return VirtualFiles(self.disk).list(path)


def append(
    log: PartitionLog,
    *values: str,
    now_ms: int = T0,
    epoch: int = 0,
    key: bytes | None = None,
) -> AppendResult:
    """Append a batch of these values, and advance the high watermark as with one replica."""
    records = [Record(-1, now_ms, key, value.encode()) for value in values]
    appended = log.append_as_leader(
        memoryview(build_batch(records)), leader_epoch=epoch, now_ms=now_ms
    )
    log.advance_high_watermark(log.end_offset)
    return appended


def contents(log: PartitionLog) -> list[str]:
    """Return the values in the local log, in order."""
    from odradek.protocol.records.batch import batches
    from odradek.protocol.records.records import decode

    found: list[str] = []
    offset = log.local_log_start_offset
    while offset < log.end_offset:
        read = log.read(offset, 1 << 20, limit=log.end_offset)
        assert read.slice is not None
        data = read.slice.read()
        read.slice.file.unpin()
        for batch in batches(memoryview(data)):
            found += [
                (record.value or b"").decode()
                for record in decode(batch)
                if record.offset >= offset
            ]
            offset = batch.last_offset + 1
    return found


def append_keyed(
    log: PartitionLog, values: Mapping[bytes, bytes | None], *, now_ms: int = T0
) -> AppendResult:
    """Append a batch of these keys and values, as `append` does."""
    records = [Record(-1, now_ms, key, value) for key, value in values.items()]
    appended = log.append_as_leader(memoryview(build_batch(records)), leader_epoch=0, now_ms=now_ms)
    log.advance_high_watermark(log.end_offset)
    return appended
