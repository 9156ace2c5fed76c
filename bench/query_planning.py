"""Measures the planning of a query over a long history in Spark's driver: requests, time and memory.

    python -m odradek.bench.query_planning [--partitions N] [--segments N] [--latency-ms MS] [--cores N] [--json]

The object store is generated: a topic of N partitions with N segments each (100 MB; thirty days in total). The last
few segments of each partition are not in its summary. Summaries are written to disk before the measurement; listings
and manifests are generated for each request, which is delayed like one to an object store. The planning is the real
one, from the names of the partitions to the pickled tasks of Spark. Each plan runs in a separate process; memory is
the maximum of the process, including the interpreter and Spark's client.
"""

from __future__ import annotations

import argparse
import json
import pickle
import resource
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import lru_cache
from pathlib import Path
from threading import Lock
from uuid import UUID

import numpy as np

from odradek.pipeline.filters import PushedFilters
from odradek.pipeline.segment_columns import ROW, SPAN, Array, PackedSlices, Segments
from odradek.seams.entropy import RealEntropy
from odradek.seams.files import Buffer
from odradek.seams.objects import ObjectInfo, ObjectMissing, Objects
from odradek.storage.tiered.manifest import Manifest
from odradek.storage.tiered.object_names import (
    MANIFEST_SUFFIX,
    SUFFIXES,
    parse_directory,
    parse_key,
    parse_summary,
    partition_directory,
    segment_key,
    summary_key,
)
from odradek.storage.tiered.object_store import ObjectStoreStorage
from odradek.storage.tiered.partition_summary import TXN_INDEX_EMPTY, PartitionSummary, encode
from odradek.storage.tiered.remote_storage_manager import IndexType
from odradek.storage.tiered.segment_metadata import (
    RemoteLogSegmentMetadata,
    TopicIdPartition,
)

TOPIC, TOPIC_ID = "history", UUID(int=1)
PARTITIONS, SEGMENTS, LATENCY_MS, CORES = 1000, 10_000, 20.0, 1000
RECORDS, SEGMENT_BYTES = 100_000, 100_000_000
BEHIND_SUMMARY = 5
ENDS_MS, LASTS_MS = 1_790_000_000_000, 30 * 86_400_000
HOUR_MS = 3_600_000
PAGE = 1000
NOT_THERE = (IndexType.TRANSACTION.value,)


class GeneratedHistory:
    """Segments and sizes of each partition."""

    def __init__(self, partitions: int, segments: int) -> None:
        self.partitions = [TopicIdPartition(TOPIC_ID, TOPIC, n) for n in range(partitions)]
        self.segments = segments

    def segment(self, of: TopicIdPartition, number: int) -> RemoteLogSegmentMetadata:
        (found,) = Segments(
            of, rows_of(of.partition, self.segments)[number : number + 1], _NO_SPANS
        )
        return found

    def write_summaries(self, directory: Path) -> None:
        for of in self.partitions:
            rows = rows_of(of.partition, self.segments)[:-BEHIND_SUMMARY]
            data = encode(PartitionSummary(rows.tobytes(), b"", ()))
            (directory / str(of.partition)).write_bytes(data)


_NO_SPANS = np.empty(0, SPAN)


@lru_cache(maxsize=64)
def rows_of(partition: int, segments: int) -> Array:
    draw = np.random.default_rng(partition)
    rows = np.zeros(segments, ROW)
    rows["id"] = np.frombuffer(draw.bytes(16 * segments), "V16")
    numbers = np.arange(segments)
    closed_ms = ENDS_MS - LASTS_MS + (numbers + 1) * LASTS_MS // segments
    rows["start"], rows["last"] = numbers * RECORDS, RECORDS - 1
    rows["newest"] = closed_ms - draw.integers(0, 1000, segments)
    rows["copied"] = closed_ms + draw.integers(0, 60_000, segments)
    rows["size"] = SEGMENT_BYTES - draw.integers(0, 1 << 16, segments)
    rows["broker"] = 1
    rows["flags"] = TXN_INDEX_EMPTY
    return rows


class GeneratedObjects(Objects):
    """Read-only `Objects` of a history; counts requests, one for each page of a listing."""

    def __init__(self, history: GeneratedHistory, summaries: Path, latency_ms: float) -> None:
        self._history = history
        self._summaries = summaries
        self._latency_s = latency_ms / 1000
        self._lock = Lock()
        self.requests: Counter[str] = Counter()
        self.bytes_read = 0

    def _asked(self, what: str) -> None:
        with self._lock:
            self.requests[what] += 1
        time.sleep(self._latency_s)

    def directories(self, prefix: str) -> Sequence[str]:
        names = sorted(partition_directory(each) for each in self._history.partitions)
        for _ in range(0, len(names), PAGE):
            self._asked("list")
        return names

    def outside_directories(self, prefix: str) -> Sequence[ObjectInfo]:
        return []

    def pages(self, prefix: str, after: str = "") -> Iterator[Sequence[ObjectInfo]]:
        of = parse_directory(prefix)
        assert of is not None, prefix
        keys = self._keys(of, after)
        while True:
            self._asked("list")
            page = [ObjectInfo(key, 1) for key, _ in zip(keys, range(PAGE), strict=False)]
            if page:
                yield page
            if len(page) < PAGE:
                return

    def _keys(self, of: TopicIdPartition, after: str) -> Iterator[str]:
        first = 0
        if after:
            first = int(after.rpartition("/")[2][:20]) // RECORDS
        else:
            yield summary_key(of, 0)
        for number in range(first, self._history.segments):
            segment = self._history.segment(of, number)
            for suffix in sorted(SUFFIXES):
                if suffix not in NOT_THERE and (key := segment_key(segment, suffix)) > after:
                    yield key

    def get(self, key: str) -> Buffer:
        self._asked("get")
        data = self._data(key)
        with self._lock:
            self.bytes_read += len(data)
        return data

    def _data(self, key: str) -> bytes:
        if (named := parse_summary(key)) is not None:
            return (self._summaries / str(named[0].partition)).read_bytes()
        name = parse_key(key)
        if name is None:
            raise ObjectMissing(key)
        segment = self._history.segment(name.id.partition, name.start_offset // RECORDS)
        if name.suffix == MANIFEST_SUFFIX:
            return Manifest(segment, {}).render()
        if name.suffix == IndexType.LEADER_EPOCH.value:
            return b"0\n1\n0 0\n"
        raise ObjectMissing(key)

    def get_range(self, key: str, start: int, size: int) -> Buffer:
        raise ObjectMissing(key)

    def head(self, key: str) -> ObjectInfo:
        raise ObjectMissing(key)

    def put(self, key: str, parts: Iterable[Buffer]) -> None:
        raise AssertionError("a plan changes nothing")

    def delete(self, key: str) -> None:
        raise AssertionError("a plan changes nothing")

    def delete_all(self, keys: Iterable[str]) -> None:
        raise AssertionError("a plan changes nothing")

    def sweep(self, put_before_ms: int) -> Sequence[str]:
        return []


@dataclass(frozen=True)
class PlanningCost:
    """Measurements of one plan. `peak_mb` is the memory of the Python process that plans, without Spark's driver."""

    case: str
    segments: int
    """The number of segments to read."""
    tasks: int
    tasks_a_core: float
    """Tasks divided by the number of cores."""
    task_mean_gb: float
    """Mean size that a task reads, in GB."""
    lists: int
    gets: int
    mb_read: float
    planning_s: float
    processor_s: float
    peak_mb: float
    task_mean_bytes: int
    """Size of a serialized task; Spark's driver keeps all of them."""
    tasks_mb: float


def plan(
    case: str, history: GeneratedHistory, summaries: Path, latency_ms: float, cores: int = CORES
) -> PlanningCost:
    """Measure a plan in this process."""
    from odradek.pipeline.options import parse_options
    from odradek.pipeline.planning import TASK_BYTES, tasks_of
    from odradek.pipeline.query import Query
    from odradek.pipeline.store import Store
    from odradek.pipeline.table_reader import ReadTask

    objects = GeneratedObjects(history, summaries, latency_ms)
    store = Store(objects, ObjectStoreStorage(objects, RealEntropy()))
    options = parse_options({"subscribe": TOPIC, "tiered.url": "made up"}, streaming=False)
    began = time.perf_counter()
    query = Query(options, CASES[case], store=store)
    planned = query.plan(query.ranges())
    stored = [each for each in planned.pieces if isinstance(each, PackedSlices)]
    segments, size_bytes = sum(map(len, stored)), sum(each.size_bytes for each in stored)
    found = tasks_of(planned.pieces, task_bytes=options.task_bytes or TASK_BYTES)
    sizes = np.array([len(pickle.dumps(ReadTask(pieces, {}))) for pieces in found])
    took = time.perf_counter() - began
    return PlanningCost(
        case=case,
        segments=segments,
        tasks=len(found),
        tasks_a_core=len(found) / cores,
        task_mean_gb=size_bytes / len(found) / 1e9,
        lists=objects.requests["list"],
        gets=objects.requests["get"],
        mb_read=objects.bytes_read / 1e6,
        planning_s=took,
        processor_s=time.process_time(),
        peak_mb=resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
        task_mean_bytes=int(sizes.mean()),
        tasks_mb=int(sizes.sum()) / 1e6,
    )


CASES: Mapping[str, PushedFilters] = {
    "everything": PushedFilters(),
    "one partition": PushedFilters(partitions=frozenset({0})),
    "the last hour of thirty days": PushedFilters(since_ms=ENDS_MS - HOUR_MS),
}


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="odradek.bench.query_planning", description=(__doc__ or "").splitlines()[0]
    )
    parser.add_argument("--partitions", type=int, default=PARTITIONS)
    parser.add_argument("--segments", type=int, default=SEGMENTS, help="of each partition")
    parser.add_argument("--cores", type=int, default=CORES, help="that the tasks are for")
    parser.add_argument("--latency-ms", type=float, default=LATENCY_MS, help="of each request")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--only", choices=CASES, help=argparse.SUPPRESS)
    parser.add_argument("--summaries", type=Path, help=argparse.SUPPRESS)
    args = parser.parse_args(argv)
    history = GeneratedHistory(args.partitions, args.segments)
    if args.only:
        cost = plan(args.only, history, args.summaries, args.latency_ms, args.cores)
        json.dump(asdict(cost), sys.stdout)
        return 0
    given = [f"--partitions={args.partitions}", f"--segments={args.segments}"]
    given += [f"--latency-ms={args.latency_ms}", f"--cores={args.cores}"]
    with tempfile.TemporaryDirectory() as directory:
        history.write_summaries(Path(directory))
        costs = [_planned(case, [*given, f"--summaries={directory}"]) for case in CASES]
    if args.json:
        json.dump([asdict(each) for each in costs], sys.stdout, indent=2)
        sys.stdout.write("\n")
        return 0
    for name in asdict(costs[0]):
        values = [getattr(each, name) for each in costs]
        shown = (f"{each:>30,.1f}" if isinstance(each, float) else f"{each:>30}" for each in values)
        sys.stdout.write(f"{name:16}{''.join(shown)}\n")
    return 0


def _planned(case: str, given: Sequence[str]) -> PlanningCost:
    """Measure a plan in a separate process."""
    command = [sys.executable, "-m", "odradek.bench.query_planning", f"--only={case}", *given]
    ran = subprocess.run(command, stdout=subprocess.PIPE, check=True)
    return PlanningCost(**json.loads(ran.stdout))


if __name__ == "__main__":
    sys.exit(main())
