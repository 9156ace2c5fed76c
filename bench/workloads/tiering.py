"""Latency of producers with tiered storage, alone and during reads of old segments (KIP-405, first table).

The cluster has three brokers, and topics have three replicas. Two topics of one partition receive the same stream.
Latency is measured from when a record was due until its acknowledgement. The topic `off` is not tiered. The topic
`on` is tiered, with segments so small that one is copied every one or two seconds. Both have older records: those of
`off` are on the brokers' disks, and most of those of `on` are only in remote storage. There are four measurements:

| | off | on |
|---|---|---|
| no other load | `off_p99_us` | `on_p99_us`: segments are copied and deleted |
| a consumer reads the old records repeatedly | `off_reading_p99_us` | `on_reading_p99_us` |

`on_times` is the second divided by the first, `reading_times` the fourth divided by the first. The brokers are new
and have a warm-up of `WARM_UP_S` with the same stream. Every second run of a peer begins with `on`, so that each
topic is measured on the warmer brokers equally often.
"""

from __future__ import annotations

import itertools
import threading
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from odradek.bench.load import FILL_RECORD_BYTES, fill, run_load
from odradek.bench.model import (
    Feature,
    Metric,
    Parameter,
    Stage,
    Target,
    WorkloadFailed,
    WorkloadOutcome,
)
from odradek.bench.workloads.latency import percentile_us
from odradek.bench.workloads.streams import background_stream
from odradek.bench.workloads.tiered_topics import LINGER_MS, TieredTopic, tiered_topic

RATE = 5000
"""Records a second: 5 MB/s."""
SECONDS = 15.0
WARM_UP_S = 15.0
SEGMENT_BYTES = 8 << 20
LOCAL_BYTES = 4 * SEGMENT_BYTES
HISTORY_MB = 512

PHASES = ("off", "off_reading", "on", "on_reading")
TIMES = (
    Metric("on_times", "", "lower"),
    Metric("reading_times", "", "lower"),
)
READ_RATES = (
    Metric("off_read_mb_per_s", "MB/s", "higher"),
    Metric("on_read_mb_per_s", "MB/s", "higher"),
)

_numbers = itertools.count(1)
_runs: Counter[str] = Counter()
"""Number of runs so far, by peer."""


@dataclass(frozen=True)
class ProduceWhileTiering:
    """Measures producers with the given `acks`."""

    acks: str
    default: bool = False
    needs: frozenset[Feature] = frozenset({Feature.TIERED})
    stage: Stage = Stage.TIERED

    @property
    def name(self) -> str:
        return f"tiering-acks-{self.acks}"

    @property
    def title(self) -> str:
        return f"produce latency with tiering and without, acks={self.acks}, 3 replicas"

    @property
    def metrics(self) -> Sequence[Metric]:
        return (
            *(
                Metric(f"{phase}_{part}_us", "µs", "lower")
                for phase in PHASES
                for part in ("p50", "p99")
            ),
            *TIMES,
            *READ_RATES,
        )

    @property
    def parameters(self) -> Mapping[str, Parameter]:
        return {
            "record_bytes": FILL_RECORD_BYTES,
            "records_per_s": RATE,
            "linger_ms": LINGER_MS,
            "seconds": SECONDS,
            "warm_up_s": WARM_UP_S,
            "acks": self.acks,
            "segment_bytes": SEGMENT_BYTES,
            "local_bytes": LOCAL_BYTES,
            "history_mb": HISTORY_MB,
        }

    def run(self, target: Target) -> WorkloadOutcome:
        values: dict[str, float] = {}
        self._warm_up(target)
        for kind in order(target.peer):
            name = f"{self.name}-{kind}-{next(_numbers)}"
            local_bytes = LOCAL_BYTES if kind == "on" else None
            with tiered_topic(target, name, SEGMENT_BYTES, local_bytes) as topic:
                fill(target, name, HISTORY_MB)
                topic.wait_until_settled()
                values |= self._measured(target, kind, topic)
                with reading(target, topic) as read:
                    values |= self._measured(target, f"{kind}_reading", topic)
                values[f"{kind}_read_mb_per_s"] = read.mb_per_s
        values["on_times"] = values["on_p99_us"] / values["off_p99_us"]
        values["reading_times"] = values["on_reading_p99_us"] / values["off_p99_us"]
        return WorkloadOutcome(values)

    def _warm_up(self, target: Target) -> None:
        name = f"{self.name}-warm-up-{next(_numbers)}"
        with tiered_topic(target, name, SEGMENT_BYTES, LOCAL_BYTES) as topic:
            self._stream(target, topic, WARM_UP_S)

    def _stream(self, target: Target, topic: TieredTopic, seconds: float) -> Sequence[int]:
        """Run the stream for `seconds`; returns latencies in ns."""
        words = ["--acknowledged", "1", "-X", f"linger.ms={LINGER_MS}", "-X", f"acks={self.acks}"]
        with background_stream(
            target, topic.name, RATE, longest_s=2 * seconds, words=words
        ) as stream:
            began = time.monotonic()
            time.sleep(seconds)
            ended = time.monotonic()
        return stream.result().between(began, ended)

    def _measured(self, target: Target, phase: str, topic: TieredTopic) -> dict[str, float]:
        found = self._stream(target, topic, SECONDS)
        return {
            f"{phase}_{part}_us": percentile_us(found, float(part[1:])) for part in ("p50", "p99")
        }


def order(peer: str) -> tuple[str, str]:
    """Return the order of the two topics in the next run on a peer."""
    _runs[peer] += 1
    return ("off", "on") if _runs[peer] % 2 else ("on", "off")


class _Reading:
    """Bytes that the consumer read, and the time that it took."""

    def __init__(self) -> None:
        self.bytes = 0.0
        self.seconds = 0.0
        self.failure: Exception | None = None

    @property
    def mb_per_s(self) -> float:
        if self.failure is not None:
            raise WorkloadFailed(f"the reading consumer: {self.failure}")
        if not self.seconds:
            raise WorkloadFailed("the reading consumer did not finish a pass")
        return self.bytes / self.seconds / 1e6


@contextmanager
def reading(target: Target, topic: TieredTopic) -> Iterator[_Reading]:
    """Run a consumer that reads the old records repeatedly during the `with` block."""
    found, enough = _Reading(), threading.Event()
    words = [
        "consume", "--bootstrap", target.bootstrap, "--topic", topic.name,
        "--count", str(topic.history_records),
        "--seconds", str(SECONDS),
    ]  # fmt: skip

    def work() -> None:
        try:
            while not enough.is_set():
                load = run_load(words, target.process)
                found.bytes += load.report["bytes"]
                found.seconds += load.seconds
        except Exception as failure:
            found.failure = failure

    thread = threading.Thread(target=work, name="reading")
    thread.start()
    try:
        yield found
    finally:
        enough.set()
        thread.join()


WORKLOADS = (ProduceWhileTiering("all"), ProduceWhileTiering("1"))
