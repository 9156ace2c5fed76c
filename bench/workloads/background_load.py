"""One small client's latency while something else keeps the broker busy.

What runs beside is a `BackgroundLoad`: entered, it is at work; left, it is over. Many clients that produce as
fast as they can are one; whatever else a broker does in the background (compaction, recovery, copying
to a tier, moving a partition) is measured by writing another and adding a row to `WORKLOADS`.
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
    Outcome,
    Parameter,
    Stage,
    Target,
    WorkloadFailed,
)
from odradek.bench.workloads.latency import MAX, P50, P99, P999, SENDER_P99, Stream, measure

SMALL_CLIENT = Stream(rate=500, seconds=5.0, record_bytes=100, acks="all")
BACKGROUND = Metric("beside_mb_per_s", "MB/s", "higher")
PRODUCED = Metric("beside_mb_per_s", "MB/s", "higher", limit="socket-to-file")
LATENCIES = tuple(replace(metric, limit=None) for metric in (P50, P99, P999, MAX, SENDER_P99))
"""What is beside is what there is to wait for, and no round trip."""
WARM_UP_S = 0.5
UNLIMITED = 10**12
QUEUED = 10_000
"""Records that each producer may hold: enough for full batches, little to get rid of at the end."""
TIMEOUT_S = 60.0

_numbers = itertools.count(1)


class BackgroundLoad(Protocol):
    """Something that keeps a broker busy."""

    @property
    def name(self) -> str: ...
    @property
    def title(self) -> str: ...
    @property
    def parameters(self) -> Mapping[str, Parameter]: ...
    @property
    def needs(self) -> frozenset[Feature]: ...

    def running(self, target: Target) -> AbstractContextManager[dict[str, float]]:
        """At work while it is entered. What it leaves in the dictionary by its end are values of the
        outcome (`BACKGROUND`)."""
        ...


@dataclass(frozen=True)
class Producers:
    """Clients that produce records of 1 KiB as fast as they can, each on a connection of its own."""

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
        return {"clients": self.clients, "partitions": self.partitions, "beside_record_bytes": 1024}

    @contextmanager
    def running(self, target: Target) -> Iterator[dict[str, float]]:
        found: dict[str, float] = {}
        with target.topic(f"beside-{next(_numbers)}", self.partitions) as topic:
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
                    program.stdout.readline()  # it has begun
                    yield found
                    program.terminate()  # it says what it has done
                    out, _ = program.communicate(timeout=TIMEOUT_S)
                finally:
                    program.kill()
                stderr.seek(0)
                errors = stderr.read()
        if program.returncode != 0:
            raise WorkloadFailed(f"the load beside: {errors.strip()}")
        report = json.loads(out.splitlines()[-1])
        found[BACKGROUND.name] = report["bytes"] / report["seconds"] / 1e6


@dataclass(frozen=True)
class LatencyUnderLoad:
    """The small client, beside something."""

    load: BackgroundLoad
    stream: Stream = SMALL_CLIENT
    metrics: Sequence[Metric] = (*LATENCIES, PRODUCED)
    stage: Stage = Stage.SHARED
    default: bool = True

    @property
    def name(self) -> str:
        return f"latency-beside-{self.load.name}"

    @property
    def title(self) -> str:
        return f"one small client at {self.stream.rate:,} records/s during {self.load.title}"

    @property
    def needs(self) -> frozenset[Feature]:
        return self.load.needs

    @property
    def parameters(self) -> Mapping[str, Parameter]:
        return {**self.stream.parameters, **self.load.parameters}

    def run(self, target: Target) -> Outcome:
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
