"""Latency of one small client during a background load.

A `BackgroundLoad` runs inside a `with` block. `Producers`, which produce at full speed, are one; `Compaction` is
another. To measure another background load, implement the protocol and add a row to `WORKLOADS`.
"""

from __future__ import annotations

import itertools
import json
import subprocess
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, replace
from typing import Protocol

from odradek.bench.load import load_command
from odradek.bench.model import (
    Feature,
    Metric,
    Parameter,
    Stage,
    Target,
    WorkloadFailed,
    WorkloadOutcome,
)
from odradek.bench.workloads.latency import MAX, P50, P99, P999, SENDER_P99, Stream, measure

SMALL_CLIENT = Stream(rate=500, seconds=5.0, record_bytes=100, acks="all")
BACKGROUND = Metric("background_mb_per_s", "MB/s", "higher")
PRODUCED = Metric("background_mb_per_s", "MB/s", "higher", limit="socket-to-file")
LATENCIES = tuple(replace(metric, limit=None) for metric in (P50, P99, P999, MAX, SENDER_P99))
"""The metrics of `latency` without limits, because the background load determines the latency."""
WARM_UP_S = 0.5
UNLIMITED = 10**12
QUEUED = 10_000
"""Maximum number of queued records per producer: enough for full batches, few to discard at the end."""
TIMEOUT_S = 60.0

_numbers = itertools.count(1)


class BackgroundLoad(Protocol):
    """Load on a broker during the measurement of another client."""

    @property
    def name(self) -> str: ...
    @property
    def title(self) -> str: ...
    @property
    def parameters(self) -> Mapping[str, Parameter]: ...
    @property
    def needs(self) -> frozenset[Feature]: ...

    def running(self, target: Target) -> AbstractContextManager[dict[str, float]]:
        """Run the load inside the `with` block.

        The values in the yielded dictionary at the end become values of the outcome (`BACKGROUND`).
        """
        ...


@dataclass(frozen=True)
class Producers:
    """Clients that produce records of 1 KiB at full speed, each with its own connection."""

    clients: int
    partitions: int = 8
    needs: frozenset[Feature] = frozenset()

    @property
    def name(self) -> str:
        return f"producers-{self.clients}"

    @property
    def title(self) -> str:
        return f"{self.clients} producers at full speed"

    @property
    def parameters(self) -> Mapping[str, Parameter]:
        return {
            "clients": self.clients,
            "partitions": self.partitions,
            "background_record_bytes": 1024,
        }

    @contextmanager
    def running(self, target: Target) -> Iterator[dict[str, float]]:
        found: dict[str, float] = {}
        with target.topic(f"background-{next(_numbers)}", self.partitions) as topic:
            words = [
                "produce", "--bootstrap", target.bootstrap, "--topic", topic,
                "--count", str(UNLIMITED),
                "--size", "1024",
                "--partitions", str(self.partitions),
                "--connections", str(self.clients),
                "--seconds", str(UNLIMITED),
                "--warm-up", str(WARM_UP_S),
                "-X", "acks=1",
                "-X", f"queue.buffering.max.messages={QUEUED}",
            ]  # fmt: skip
            with (
                tempfile.TemporaryFile("w+") as stderr,
                subprocess.Popen(
                    load_command(words, target.process),
                    stdout=subprocess.PIPE,
                    stderr=stderr,
                    text=True,
                ) as program,
            ):
                try:
                    assert program.stdout is not None
                    program.stdout.readline()  # the measured part has begun
                    yield found
                    program.terminate()  # it prints its result
                    out, _ = program.communicate(timeout=TIMEOUT_S)
                finally:
                    program.kill()
                stderr.seek(0)
                errors = stderr.read()
        if program.returncode != 0:
            raise WorkloadFailed(f"the background load failed: {errors.strip()}")
        report = json.loads(out.splitlines()[-1])
        found[BACKGROUND.name] = report["bytes"] / report["seconds"] / 1e6


@dataclass(frozen=True)
class LatencyUnderLoad:
    """Measures the latency of a small client during a background load."""

    load: BackgroundLoad
    stream: Stream = SMALL_CLIENT
    metrics: Sequence[Metric] = (*LATENCIES, PRODUCED)
    stage: Stage = Stage.SHARED
    default: bool = True

    @property
    def name(self) -> str:
        return f"latency-with-{self.load.name}"

    @property
    def title(self) -> str:
        return f"one small client at {self.stream.rate:,} records/s during {self.load.title}"

    @property
    def needs(self) -> frozenset[Feature]:
        return self.load.needs

    @property
    def parameters(self) -> Mapping[str, Parameter]:
        return {**self.stream.parameters, **self.load.parameters}

    def run(self, target: Target) -> WorkloadOutcome:
        with (
            target.topic(f"small-{next(_numbers)}") as topic,
            self.load.running(target) as found,
        ):
            small = measure(target, topic, self.stream)
        return replace(small, values={**small.values, **found})


WORKLOADS: tuple[LatencyUnderLoad, ...] = (
    LatencyUnderLoad(Producers(8)),
    LatencyUnderLoad(Producers(32)),
)
