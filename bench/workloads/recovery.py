"""Log recovery: the time until a broker responds after kill -9, for several sizes of the log.

Two times are measured from the execution of the new process: until a response to a Metadata request, and until a
response to a Produce request for the partition. A broker may respond before its logs are recovered.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from odradek.bench.load import FILL_RECORD_BYTES, fill
from odradek.bench.model import (
    Feature,
    Metric,
    Parameter,
    Stage,
    Target,
    WorkloadFailed,
    WorkloadOutcome,
)
from odradek.bench.raw_connection import RawConnection, must_be_none
from odradek.bench.workloads.requests import PRODUCE_VERSION, one_record
from odradek.protocol.apis import PRODUCE as PRODUCE_API

TIMEOUT_S = 120.0
ASK_EVERY_S = 0.002

METADATA = Metric("metadata_ms", "ms", "lower")
PRODUCE = Metric("produce_ms", "ms", "lower")
CPU = Metric("cpu_ms", "ms", "lower")

_numbers = itertools.count(1)


@dataclass(frozen=True)
class Recovery:
    """Produces `size_mb` MB to one partition, kills the broker, and restarts it."""

    size_mb: int
    default: bool = True
    metrics: Sequence[Metric] = (METADATA, PRODUCE, CPU)
    needs: frozenset[Feature] = frozenset({Feature.PROCESS, Feature.RESTART})
    stage: Stage = Stage.FRESH

    @property
    def name(self) -> str:
        return f"recovery-{self.size_mb}mb"

    @property
    def title(self) -> str:
        return f"kill -9 and restart, {self.size_mb} MB in one partition"

    @property
    def parameters(self) -> Mapping[str, Parameter]:
        return {"size_mb": self.size_mb, "record_bytes": FILL_RECORD_BYTES}

    def run(self, target: Target) -> WorkloadOutcome:
        process = target.known_process
        topic = f"{self.name}-{next(_numbers)}"
        target.topics.create(topic, 1)
        fill(target, topic, self.size_mb)
        process.kill()
        process.restart()
        wait_for_produce(target, topic)
        produced_at = time.monotonic()
        return WorkloadOutcome(
            {
                METADATA.name: (process.responded_at - process.exec_started_at) * 1e3,
                PRODUCE.name: (produced_at - process.exec_started_at) * 1e3,
                CPU.name: process.cpu_seconds() * 1e3,
            }
        )


def wait_for_produce(target: Target, topic: str) -> None:
    end = time.monotonic() + TIMEOUT_S
    while time.monotonic() < end:
        try:
            with RawConnection(target.address) as wire:
                response = wire.request(PRODUCE_API, one_record(topic), at_most=PRODUCE_VERSION)
                must_be_none(response.responses[0].partition_responses[0].error_code, topic)
                return
        except (OSError, WorkloadFailed):  # the broker or the log is not available yet
            time.sleep(ASK_EVERY_S)
    raise WorkloadFailed(f"no record was acknowledged in {TIMEOUT_S:g} s after the restart")


WORKLOADS = (Recovery(100), Recovery(1000), Recovery(5000, default=False))
