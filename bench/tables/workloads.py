"""The queries of the tables and their expected results; a wrong result fails the workload."""

from __future__ import annotations

import shutil
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from odradek.bench.model import (
    Feature,
    Metric,
    Parameter,
    Stage,
    Target,
    WorkloadFailed,
    WorkloadOutcome,
)
from odradek.bench.tables.records import ORDERS, SMALL, Topic, TopicContent
from odradek.bench.tables.sources import ALL_CORES, ONE_CORE, ReaderTarget, SourceApplication

RATE = Metric("mb_per_s", "MB/s", "higher")
SECONDS = Metric("seconds", "s", "lower")
CPU = Metric("cpu_s", "s", "lower")
BROKER_CPU = Metric("broker_cpu_s", "s", "lower")
WATCH_EVERY_S = 0.25


def _reading(target: Target) -> SourceApplication:
    assert isinstance(target, ReaderTarget), "these workloads are run against readers"
    assert target.reading is not None
    return target.reading


@dataclass(frozen=True)
class QueryWorkload:
    """A query of a whole topic, timed by the application's clock.

    CPU time is that of all processes of the application: the driver's Python, its JVM, and the workers.
    """

    name: str
    title: str
    query: str
    topic: Topic
    master: str = ALL_CORES
    metrics: Sequence[Metric] = (RATE, SECONDS, CPU, BROKER_CPU)
    needs: frozenset[Feature] = frozenset()
    stage: Stage = Stage.SHARED
    default: bool = True

    @property
    def parameters(self) -> Mapping[str, Parameter]:
        return {"query": self.query, "topic": self.topic.name, "master": self.master}

    def run(self, target: Target) -> WorkloadOutcome:
        reading = _reading(target)
        content = reading.brokers.content(self.topic.name)
        return self._asked(target, content, {}, self._expected(content))

    def _expected(self, content: TopicContent) -> dict[str, int]:
        found = {"rows": content.records}
        return found | (
            {"amount": content.total_amount()} if self.query.startswith("aggregate") else {}
        )

    def _asked(
        self,
        target: Target,
        content: TopicContent,
        more: Mapping[str, Any],
        expected: Mapping[str, int],
    ) -> WorkloadOutcome:
        broker = getattr(target, "broker", None)
        before = broker.cpu_seconds() if broker else 0.0
        response = _reading(target).run_query(self.query, self.topic.name, self.master, **more)
        broker_cpu_s = broker.cpu_seconds() - before if broker else 0.0
        if response.found != expected:
            raise WorkloadFailed(f"it found {response.found}, and there is {expected}")
        return WorkloadOutcome(
            {
                RATE.name: content.record_bytes / 1e6 / response.seconds,
                SECONDS.name: response.seconds,
                CPU.name: response.cpu_s,
                BROKER_CPU.name: broker_cpu_s,
            }
        )


@dataclass(frozen=True)
class OneCore(QueryWorkload):
    """A query on one core, for Odradek's source only; the connector would take half an hour."""

    master: str = ONE_CORE
    needs: frozenset[Feature] = frozenset({Feature.TIERED})


@dataclass(frozen=True)
class HourQuery(QueryWorkload):
    """A query of one hour of the thirty days."""

    metrics: Sequence[Metric] = (SECONDS, CPU, BROKER_CPU)

    def run(self, target: Target) -> WorkloadOutcome:
        content = _reading(target).brokers.content(self.topic.name)
        since_ms, until_ms = content.hour_ms()
        expected = {"rows": content.records_between(since_ms, until_ms)}
        return self._asked(target, content, {"between_ms": [since_ms, until_ms]}, expected)


@dataclass(frozen=True)
class Export(QueryWorkload):
    """Exports to Parquet, in a directory that is deleted afterwards."""

    def run(self, target: Target) -> WorkloadOutcome:
        reading = _reading(target)
        content = reading.brokers.content(self.topic.name)
        out = reading.launch.directory / "export"
        try:
            return self._asked(target, content, {"out": str(out)}, self._expected(content))
        finally:
            shutil.rmtree(out, ignore_errors=True)


@dataclass(frozen=True)
class SourceMemory(QueryWorkload):
    """Resident memory of the application while it reads: the maximum in each half of the time, and their ratio.

    The ratio is 1 if memory does not grow.
    """

    metrics: Sequence[Metric] = (
        Metric("first_half_mb", "MB", "lower"),
        Metric("second_half_mb", "MB", "lower"),
        Metric("growth", "times", "lower"),
    )

    def run(self, target: Target) -> WorkloadOutcome:
        reading = _reading(target)
        content = reading.brokers.content(self.topic.name)
        with _watched(reading) as sizes:
            self._asked(target, content, {}, self._expected(content))
        half = len(sizes) // 2
        first, second = max(sizes[:half], default=0), max(sizes[half:], default=0)
        timeline = "MB each quarter of a second: " + " ".join(f"{size / 1e6:.0f}" for size in sizes)
        return WorkloadOutcome(
            {
                "first_half_mb": first / 1e6,
                "second_half_mb": second / 1e6,
                "growth": second / first if first else 1.0,
            },
            notes=(timeline,),
        )


@contextmanager
def _watched(reading: SourceApplication) -> Iterator[list[int]]:
    """Sample the resident bytes of a source's application during the block."""
    sizes: list[int] = []
    enough = threading.Event()

    def watch() -> None:
        while not enough.wait(WATCH_EVERY_S):
            sizes.append(reading.application.resident_bytes())

    thread = threading.Thread(target=watch, name="memory")
    thread.start()
    try:
        yield sizes
    finally:
        enough.set()
        thread.join()


@dataclass(frozen=True)
class DecoderOnly:
    """Odradek's decoder alone on one core: segments of the store, in memory, to Arrow columns.

    GB are those of the decompressed records.
    """

    name: str
    title: str
    topic: Topic
    metrics: Sequence[Metric] = (
        Metric("gb_per_s", "GB/s", "higher"),
        Metric("mrecords_per_s", "M/s", "higher"),
    )
    parameters: Mapping[str, Parameter] = field(default_factory=dict)
    needs: frozenset[Feature] = frozenset({Feature.TIERED})
    stage: Stage = Stage.SHARED
    default: bool = True

    def run(self, target: Target) -> WorkloadOutcome:
        reading = _reading(target)
        logs = sorted(reading.brokers.store.glob(f"{self.topic.name}-0-*/*.log"))[:MOST_SEGMENTS]
        if not logs:
            raise WorkloadFailed(f"the store has no segment of {self.topic.name}")
        pieces = [log.read_bytes() for log in logs]
        _decoded(self.topic, pieces[:1])
        began = time.thread_time()
        rows = _decoded(self.topic, pieces)
        seconds = time.thread_time() - began
        return WorkloadOutcome(
            {
                "gb_per_s": rows * self.topic.record_bytes / 1e9 / seconds,
                "mrecords_per_s": rows / 1e6 / seconds,
            }
        )


MOST_SEGMENTS = 8
PIECE_BYTES = 8 << 20


def _decoded(topic: Topic, logs: Sequence[bytes]) -> int:
    """Return the number of records, after decoding every column of each."""
    from odradek.pipeline.decoding.record_decoder import RecordDecoder, RecordSelection
    from odradek.pipeline.decoding.schema import COLUMNS

    rows = 0
    for log in logs:
        decoder = RecordDecoder(RecordSelection(topic.name, 0, COLUMNS), topic.name)
        for start in range(0, len(log), PIECE_BYTES):
            rows += sum(
                each.num_rows for each in decoder.feed(memoryview(log)[start : start + PIECE_BYTES])
            )
        rows += sum(each.num_rows for each in decoder.end())
    return rows


WORKLOADS = (
    QueryWorkload("table-count-100b", "count, 100 bytes", "count", SMALL),
    QueryWorkload("table-count-1k", "count, 1 KiB in lz4", "count", ORDERS),
    QueryWorkload("table-batches-100b", "count by batches, 100 bytes", "count-by-batches", SMALL),
    QueryWorkload("table-batches-1k", "count by batches, 1 KiB in lz4", "count-by-batches", ORDERS),
    QueryWorkload("table-full-100b", "all columns of all records, 100 bytes", "full", SMALL),
    QueryWorkload("table-full-1k", "all columns of all records, 1 KiB in lz4", "full", ORDERS),
    QueryWorkload(
        "table-json-1k", "sums by a field of the JSON, 1 KiB in lz4", "aggregate", ORDERS
    ),
    QueryWorkload(
        "table-json-columns-1k",
        "sums by a field of the JSON, parsed by the Odradek source, 1 KiB in lz4",
        "aggregate-columns",
        ORDERS,
    ),
    HourQuery("table-hour-1k", "one hour of thirty days, by a filter", "between", ORDERS),
    HourQuery(
        "table-hour-options-1k",
        "one hour of thirty days, by startingTimestamp and endingTimestamp",
        "between-options",
        ORDERS,
    ),
    Export("table-export-1k", "export to Parquet by date, 1 KiB in lz4", "export", ORDERS),
    SourceMemory("table-memory-100b", "memory while 100 bytes are read", "full", SMALL),
    SourceMemory("table-memory-1k", "memory while 1 KiB in lz4 is read", "full", ORDERS),
    DecoderOnly("table-decode-100b", "the decoder alone, 100 bytes, one core", SMALL),
    DecoderOnly("table-decode-1k", "the decoder alone, 1 KiB in lz4, one core", ORDERS),
    OneCore("table-full-100b-1", "all columns, 100 bytes, one core", "full", SMALL),
    OneCore("table-full-1k-1", "all columns, 1 KiB in lz4, one core", "full", ORDERS),
    OneCore("table-json-1k-1", "sums by a field of the JSON, one core", "aggregate", ORDERS),
)
"""Workloads of one core are last: they need a separate application."""
