"""Measures the metadata cache of one partition with up to 100,000 remote log segments.

    python -m odradek.bench.remote_segments [--segments N,N,…] [--json]

Memory is that of the interpreter's allocator after garbage collection. Start time is the time to load a snapshot
file; its longest step blocks the event loop. A retention run is that of a leader without expired segments: the size
of the lineage, and the decision. Times are CPU times, so that other processes do not affect them.
"""

from __future__ import annotations

import argparse
import gc
import json
import random
import sys
import time
import tracemalloc
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from uuid import UUID

from odradek.storage.tiered.metadata_snapshot_file import MetadataSnapshotReader, encode_snapshot
from odradek.storage.tiered.remote_log_metadata_cache import RemoteLogMetadataCache
from odradek.storage.tiered.remote_retention import RetentionInput, decide_expiration
from odradek.storage.tiered.segment_metadata import (
    EpochStart,
    RemoteLogSegmentId,
    RemoteLogSegmentMetadata,
    RemoteLogSegmentMetadataUpdate,
    SegmentState,
    TopicIdPartition,
)

PARTITION = TopicIdPartition(UUID(int=1), "measured", 0)
SIZES = (1_000, 10_000, 100_000)
RECORDS, BYTES, SEGMENTS_AN_EPOCH = 1_000, 1 << 30, 997
LOOKED_UP = 5_000


@dataclass(frozen=True)
class SegmentMetadataCost:
    """Measurements of a partition with `segments` segments. Names end with their unit."""

    segments: int
    resident_bytes_a_segment: float
    event_us: float
    event_longest_ms: float
    snapshot_bytes: int
    snapshot_write_s: float
    start_up_s: float
    start_up_longest_step_ms: float
    find_offset_us: float
    find_id_us: float
    retention_run_ms: float


def measure(count: int) -> SegmentMetadataCost:
    resident = _resident(lambda: _filled(count)[0]) / count
    metadata, took = _filled(count)
    began = time.thread_time()
    data = b"".join(encode_snapshot(metadata, 7))
    written_s = time.thread_time() - began
    restored, steps = _restored(data)
    assert len(restored) == count
    draw = random.Random(2)
    offsets = [draw.randrange(count * RECORDS) for _ in range(LOOKED_UP)]
    epochs = [offset // RECORDS // SEGMENTS_AN_EPOCH for offset in offsets]
    ids = [each.id for each in restored.segments()][:: max(1, count // LOOKED_UP)]
    return SegmentMetadataCost(
        segments=count,
        resident_bytes_a_segment=resident,
        event_us=sum(took) / len(took) * 1e6,
        event_longest_ms=max(took) * 1e3,
        snapshot_bytes=len(data),
        snapshot_write_s=written_s,
        start_up_s=sum(steps),
        start_up_longest_step_ms=max(steps) * 1e3,
        find_offset_us=_mean_us(restored.find, list(zip(epochs, offsets, strict=True))),
        find_id_us=_mean_us(restored.segment, [(each,) for each in ids]),
        retention_run_ms=_mean_us(_retention_run, [(restored, count)] * 20) / 1e3,
    )


def _segments(count: int) -> Iterator[RemoteLogSegmentMetadata]:
    """Yield copies in order; the leader changes during some of them."""
    draw = random.Random(1)
    for number in range(count):
        start, epoch = number * RECORDS, number // SEGMENTS_AN_EPOCH
        epochs: tuple[EpochStart, ...] = (EpochStart(epoch, start),)
        if number % SEGMENTS_AN_EPOCH == 0 and epoch:
            epochs = (EpochStart(epoch - 1, start), EpochStart(epoch, start + RECORDS // 2))
        yield RemoteLogSegmentMetadata(
            RemoteLogSegmentId(PARTITION, UUID(int=draw.getrandbits(128))),
            start,
            start + RECORDS - 1,
            broker_id=1,
            max_timestamp_ms=number,
            event_timestamp_ms=number,
            epochs=epochs,
            size_bytes=BYTES - 1,
            txn_index_empty=True,
        )


def _lineage(count: int) -> tuple[EpochStart, ...]:
    epochs = range((count - 1) // SEGMENTS_AN_EPOCH + 1)
    half = RECORDS // 2
    return tuple(
        EpochStart(each, each * SEGMENTS_AN_EPOCH * RECORDS + (half if each else 0))
        for each in epochs
    )


def _filled(count: int) -> tuple[RemoteLogMetadataCache, list[float]]:
    """Apply the events of complete copies; returns the time of each event."""
    metadata, took = RemoteLogMetadataCache(PARTITION), []
    for copy in _segments(count):
        done = RemoteLogSegmentMetadataUpdate(copy.id, 1, 5, SegmentState.COPY_SEGMENT_FINISHED)
        for event in (copy, done):
            began = time.thread_time()
            metadata.apply(event)
            took.append(time.thread_time() - began)
    return metadata, took


def _resident(make: Callable[[], RemoteLogMetadataCache]) -> int:
    gc.collect()
    tracemalloc.start()
    try:
        kept = make()
        gc.collect()
        size, _ = tracemalloc.get_traced_memory()
        del kept
        return size
    finally:
        tracemalloc.stop()


def _restored(data: bytes) -> tuple[RemoteLogMetadataCache, list[float]]:
    steps, more = [], True
    began = time.thread_time()
    snapshot = MetadataSnapshotReader(data, PARTITION)
    while more:
        more = snapshot.load()
        steps.append(time.thread_time() - began)
        began = time.thread_time()
    return snapshot.metadata, steps


def _retention_run(metadata: RemoteLogMetadataCache, count: int) -> None:
    lineage, end = _lineage(count), count * RECORDS + 1
    retained = RetentionInput(
        epochs=lineage,
        log_start_offset=0,
        log_end_offset=end,
        retention_ms=-1,
        retention_bytes=count * BYTES,
        local_only_bytes=0,
        remote_bytes=metadata.lineage_bytes(lineage, end),
        now_ms=0,
    )
    assert retained.remote_bytes == count * (BYTES - 1)
    *_, decided = decide_expiration(retained, metadata.segments(), metadata.unfinished())
    assert decided is not None
    assert decided.expired == ()


def _mean_us(look_up: Callable[..., object], arguments: Sequence[tuple[object, ...]]) -> float:
    began = time.thread_time()
    for each in arguments:
        look_up(*each)
    return (time.thread_time() - began) / len(arguments) * 1e6


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="odradek.bench.remote_segments", description=(__doc__ or "").splitlines()[0]
    )
    parser.add_argument("--segments", default=",".join(map(str, SIZES)), metavar="N,N,…")
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args(argv)
    costs = [measure(int(each)) for each in args.segments.split(",")]
    if args.json:
        json.dump([asdict(each) for each in costs], sys.stdout, indent=2)
        sys.stdout.write("\n")
        return 0
    for name in asdict(costs[0]):
        values = (f"{getattr(each, name):>14,.2f}".replace(".00", "   ") for each in costs)
        sys.stdout.write(f"{name:26}{''.join(values)}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
