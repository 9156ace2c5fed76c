"""End-to-end latency at a fixed rate, from when a record was due until a consumer receives it.

A C client on librdkafka is producer and consumer (`load/latency.c`). It stores the latency of each record, measured
from the time at which the record should be sent. The time that a record waits behind others counts (no coordinated
omission). `sender_p99_us` is the delay until the client passes a record to librdkafka, which the broker does not
cause.
"""

from __future__ import annotations

import itertools
import tempfile
from array import array
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from hdrh.histogram import HdrHistogram

from odradek.bench.load import Load, run_load
from odradek.bench.model import (
    Feature,
    Histogram,
    Metric,
    Parameter,
    Stage,
    Target,
    WorkloadFailed,
    WorkloadOutcome,
)

P50 = Metric("p50_us", "µs", "lower", limit="paced-ping-pong:p50_us")
P99 = Metric("p99_us", "µs", "lower", limit="paced-ping-pong:p99_us")
P999 = Metric("p999_us", "µs", "lower", limit="paced-ping-pong")
MAX = Metric("max_us", "µs", "lower", diagnostic=True)
SENDER_P99 = Metric("sender_p99_us", "µs", "lower", diagnostic=True)
LATENCIES = (P50, P99, P999, MAX, SENDER_P99)

LONGEST_NS = 60_000_000_000
SIGNIFICANT_DIGITS = 3
KEPT_DIGITS = 2
"""Significant digits of the histogram in the results."""
WARM_UP_S = 1.0

_numbers = itertools.count(1)


@dataclass(frozen=True)
class Stream:
    """Records at a fixed rate: rate per second, duration, size in bytes, and acks."""

    rate: int = 1000
    seconds: float = 20.0
    record_bytes: int = 1024
    acks: str = "all"

    @property
    def parameters(self) -> Mapping[str, Parameter]:
        return {
            "records_per_s": self.rate,
            "seconds": self.seconds,
            "record_bytes": self.record_bytes,
            "acks": self.acks,
            "linger_ms": 0,
        }


@dataclass(frozen=True)
class Latency:
    """Measures a stream through one partition, without other load."""

    stream: Stream = Stream()
    name: str = "latency-1000"
    metrics: Sequence[Metric] = LATENCIES
    needs: frozenset[Feature] = frozenset()
    stage: Stage = Stage.SHARED
    default: bool = True

    @property
    def title(self) -> str:
        return (
            f"end to end at {self.stream.rate:,} records/s of {self.stream.record_bytes:,} bytes, "
            f"acks={self.stream.acks}"
        )

    @property
    def parameters(self) -> Mapping[str, Parameter]:
        return self.stream.parameters

    def run(self, target: Target) -> WorkloadOutcome:
        with target.topic(f"{self.name}-{next(_numbers)}") as topic:
            return measure(target, topic, self.stream)


def measure(target: Target, topic: str, stream: Stream) -> WorkloadOutcome:
    """Run a stream through an existing topic. Raises WorkloadFailed if a record was not received."""
    with tempfile.TemporaryDirectory(prefix="odradek-latency-") as directory:
        output = Path(directory) / "latencies"
        load = run_load(
            [
                "latency", "--bootstrap", target.bootstrap, "--topic", topic,
                "--size", str(stream.record_bytes),
                "--rate", str(stream.rate),
                "--seconds", str(stream.seconds),
                "--warm-up", str(WARM_UP_S),
                "--output", str(output),
                "-X", f"acks={stream.acks}",
            ],
            target.process,
        )  # fmt: skip
        latencies, latenesses = read_output(output)
    check_all_came(load)
    return replace(outcome(latencies, latenesses), client_bound=load.client_bound, notes=load.notes)


def check_all_came(load: Load) -> None:
    """Raise WorkloadFailed if a record was refused or not received."""
    report = load.report
    if report["refused"]:
        raise WorkloadFailed(
            f"{report['refused']} of {report['sent']} records were refused ({report['error']})"
        )
    if not report["received"]:
        raise WorkloadFailed(f"none of the records was received: {report['sent']}")
    if report["received"] < report["sent"]:
        raise WorkloadFailed(f"{report['received']} of {report['sent']} records were received")


def read_output(path: Path) -> tuple[Sequence[int], Sequence[int]]:
    """Return the latency and the sender's delay of each record, in ns."""
    numbers = array("q", path.read_bytes())
    half = len(numbers) // 2
    return numbers[:half], numbers[half:]


def outcome(latencies_ns: Iterable[int], latenesses_ns: Iterable[int]) -> WorkloadOutcome:
    """Return the percentiles and the histogram of a stream."""
    latencies_ns = list(latencies_ns)
    recorded, lateness = _recorded(latencies_ns), _recorded(latenesses_ns)
    values = {
        P50.name: recorded.get_value_at_percentile(50) / 1e3,
        P99.name: recorded.get_value_at_percentile(99) / 1e3,
        P999.name: recorded.get_value_at_percentile(99.9) / 1e3,
        MAX.name: recorded.get_max_value() / 1e3,
        SENDER_P99.name: lateness.get_value_at_percentile(99) / 1e3,
    }
    return WorkloadOutcome(values, histogram=_buckets(_recorded(latencies_ns, KEPT_DIGITS)))


def percentile_us(values_ns: Iterable[int], percentile: float) -> float:
    return float(_recorded(values_ns).get_value_at_percentile(percentile)) / 1e3


def _recorded(values_ns: Iterable[int], digits: int = SIGNIFICANT_DIGITS) -> HdrHistogram:
    histogram = HdrHistogram(1, LONGEST_NS, digits)
    for value in values_ns:
        histogram.record_value(max(1, min(value, LONGEST_NS)))
    return histogram


def _buckets(recorded: HdrHistogram) -> Histogram:
    found = tuple(
        (bucket.value_iterated_to / 1e3, bucket.count_added_in_this_iter_step)
        for bucket in recorded.get_recorded_iterator()
    )
    return Histogram(P50.unit, found)


WORKLOADS: tuple[Latency, ...] = (Latency(),)
