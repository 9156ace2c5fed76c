"""A partition log on a virtual disk, and batches to append."""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from uuid import UUID

from odradek.protocol.records.batch import Batch, batches
from odradek.protocol.records.control import end_marker
from odradek.protocol.records.records import Record, build_batch, decode
from odradek.protocol.topics import TopicPartition
from odradek.seams.files import Path
from odradek.storage.log.config import LogConfig
from odradek.storage.log.partition_log import (
    AppendOrigin,
    AppendResult,
    LogEnvironment,
    PartitionLog,
    RecoveryOptions,
)
from odradek.storage.log.segment import Segment
from odradek.storage.log.transaction_verification import VERIFICATION_DISABLED
from odradek.testing.virtual_clock import VirtualClock
from odradek.testing.virtual_disk import VirtualDisk
from odradek.testing.virtual_files import VirtualFiles

TOPIC_ID = UUID("00112233-4455-4677-8899-aabbccddeeff")
ROOT = Path("/logs")
DIRECTORY = ROOT / "t-0"
NOW_MS = 1_767_225_600_000

FOREVER = LogConfig(retention_ms=-1)


def batch(
    count: int = 1,
    *,
    size: int = 20,
    timestamps: Sequence[int] | int = NOW_MS,
    keys: bool = True,
    **more: int | bool,
) -> memoryview:
    """Return a batch of `count` records with values of `size` bytes, as a producer sends it."""
    times = [timestamps] * count if isinstance(timestamps, int) else timestamps
    records = [
        Record(-1, time, b"k%d" % n if keys else None, bytes([n % 251]) * size)
        for n, time in enumerate(times)
    ]
    return memoryview(build_batch(records, **more))  # type: ignore[arg-type]


def idempotent(producer: int, sequence: int, count: int = 1, **more: int | bool) -> memoryview:
    more = {"producer_epoch": 0, **more}
    return batch(count, producer_id=producer, base_sequence=sequence, **more)  # type: ignore[arg-type]


def marker(
    producer: int, epoch: int = 0, *, commit: bool, coordinator: int = 0, timestamp: int = NOW_MS
) -> memoryview:
    return memoryview(
        end_marker(
            commit=commit,
            producer_id=producer,
            producer_epoch=epoch,
            coordinator_epoch=coordinator,
            timestamp_ms=timestamp,
        )
    )


@dataclass
class LogWorld:
    """One log, its restarts (`reopen`), kills of the process (`kill`) and power failures (`power_cut`)."""

    config: LogConfig = FOREVER
    disk: VirtualDisk = field(default_factory=VirtualDisk)
    clock: VirtualClock = field(default_factory=VirtualClock)
    recovery_point: int = 0
    """Recovery point in the checkpoint of the log directory."""
    accepted_gaps_end: int = 0
    log_start_offset: int = 0
    flush_due: list[int] = field(default_factory=list)
    failures: list[OSError] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.files = VirtualFiles(self.disk)
        self.files.make_directory(ROOT)
        self.files.sync_directory(Path("/"))
        self.log = self.open(clean=False)

    def open(self, *, clean: bool, config: LogConfig | None = None) -> PartitionLog:
        log = PartitionLog.open(
            LogEnvironment(self.files, self.clock),
            DIRECTORY,
            TopicPartition("t", 0),
            config or self.config,
            topic_id=TOPIC_ID,
            recovery=RecoveryOptions(
                clean=clean,
                recovery_point=self.recovery_point,
                log_start_offset=self.log_start_offset,
                accepted_gaps_end=self.accepted_gaps_end,
            ),
        )

        def write_checkpoint() -> None:
            self.recovery_point = log.recovery_point

        log.on_failure = self.failures.append
        log.on_checkpoint_due = write_checkpoint
        log.on_flush_due = self.flush_due.append
        return log

    def append(
        self, data: memoryview | None = None, *, epoch: int = 0, **more: object
    ) -> AppendResult:
        return self.log.append_as_leader(
            batch() if data is None else data,
            leader_epoch=epoch,
            now_ms=self.clock.wall_ms(),
            **{"guard": VERIFICATION_DISABLED, **more},  # type: ignore[arg-type]
        )

    def coordinate(self, data: memoryview, **more: object) -> AppendResult:
        return self.append(data, origin=AppendOrigin.COORDINATOR, **more)

    def flush(self) -> None:
        self.log.flush()
        self.recovery_point = self.log.recovery_point

    def reopen(self, *, clean: bool = True) -> PartitionLog:
        self.log.close(clean)
        self.recovery_point = self.log.recovery_point if clean else self.recovery_point
        self.log_start_offset = self.log.log_start_offset
        self.log = self.open(clean=clean)
        return self.log

    def kill(self) -> PartitionLog:
        """Kill the process and restart: the page cache survives."""
        self.files = VirtualFiles(self.disk)
        self.log = self.open(clean=False)
        return self.log

    def power_cut(self, seed: int) -> PartitionLog:
        """Cut the power and restart: unsynced writes may be lost, as `seed` determines."""
        self.disk = self.disk.crash(seed)
        return self.kill()

    def names(self) -> list[str]:
        return self.files.list(DIRECTORY)


def offsets_in(log: PartitionLog, start: int = 0, *, limit: int | None = None) -> list[int]:
    """Return the offsets of all records from `start` on."""
    return [record.offset for record in records_in(log, start, limit=limit)]


def records_in(log: PartitionLog, start: int = 0, *, limit: int | None = None) -> list[Record]:
    end = log.end_offset if limit is None else limit
    found: list[Record] = []
    for each in read_batches(log, start, end):
        found += [record for record in decode(each) if record.offset >= start]
    return found


def read_batches(log: PartitionLog, start: int, limit: int, max_bytes: int = 300) -> list[Batch]:
    found: list[Batch] = []
    offset = start
    while offset < limit:
        read = log.read(offset, max_bytes, limit=limit)
        if read.slice is None:
            break
        data = memoryview(read.slice.read())
        read.slice.file.unpin()
        for each in batches(data, check=True, allow_partial=True):
            found.append(each)
            offset = each.last_offset + 1
    return found


HEADER = struct.Struct(">qiibIhiqq")


def expected_indexes(data: bytes, base: int, interval: int, *, sealed: bool) -> tuple[bytes, bytes]:
    """Build the offset and time indexes of a segment's bytes independently of the product's code."""
    offsets, times = b"", b""
    position = last_entry = 0
    largest, of_largest, last_time = -1, base, -1
    while position < len(data):
        first, length, _, _, _, _, delta, _, timestamp = HEADER.unpack_from(data, position)
        if timestamp > largest:
            largest, of_largest = timestamp, first + delta
        if position - last_entry > interval:
            offsets += struct.pack(">ii", first + delta - base, position)
            last_entry = position
            if largest > last_time:
                times += struct.pack(">qi", largest, of_largest - base)
                last_time = largest
        position += 12 + length
    if sealed and largest > last_time:
        times += struct.pack(">qi", largest, of_largest - base)
    return offsets, times


def check_indexes(world: LogWorld, *, reopened: bool = False) -> None:
    """Assert that each index of the open log equals the expected one.

    The last segment of a log that was closed cleanly and then only opened (`reopened`) may be sealed, too.
    """
    for segment in world.log.segments:
        data = data_of(world, segment)
        base, interval = segment.base_offset, segment.index_interval_bytes
        found = entries_of(world, segment)
        want = expected_indexes(data, base, interval, sealed=True)
        if segment is world.log.segments[-1] and not (reopened and found == want):
            want = expected_indexes(data, base, interval, sealed=False)
        assert found == want, segment


def data_of(world: LogWorld, segment: Segment) -> bytes:
    return world.files.read(segment.path(".log"))[: segment.size]


def entries_of(world: LogWorld, segment: Segment) -> tuple[bytes, bytes]:
    """Return the entries of the offset and time indexes, without the preallocated space after them."""
    offsets = world.files.read(segment.path(".index"))[: 8 * segment.offset_index.count]
    times = world.files.read(segment.path(".timeindex"))[: 12 * segment.time_index.count]
    return offsets, times


def raises_offline(call: Callable[[], object]) -> bool:
    from odradek.storage.errors import LogFailed

    try:
        call()
    except LogFailed:
        return True
    return False
