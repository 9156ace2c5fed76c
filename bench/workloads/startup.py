"""Start-up time, and the memory of a broker when idle and after the whole run."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from odradek.bench.model import (
    Feature,
    Metric,
    Parameter,
    Stage,
    Target,
    WorkloadOutcome,
)

SETTLE_S = 3.0

READY = Metric("ready_ms", "ms", "lower")
RESIDENT = Metric("resident_mb", "MB", "lower")
CPU = Metric("start_cpu_ms", "ms", "lower")
IDLE_CPU = Metric("idle_cpu", "% of a core", "lower")


@dataclass(frozen=True)
class Startup:
    """Measures the time from execution to the first Metadata response, and idle memory and CPU."""

    name: str = "startup"
    title: str = "start to the first Metadata response; memory and CPU when idle"
    metrics: Sequence[Metric] = (READY, CPU, RESIDENT, IDLE_CPU)
    needs: frozenset[Feature] = frozenset({Feature.PROCESS})
    stage: Stage = Stage.FRESH
    default: bool = True

    @property
    def parameters(self) -> Mapping[str, Parameter]:
        return {"settle_s": SETTLE_S}

    def run(self, target: Target) -> WorkloadOutcome:
        process = target.known_process
        started = process.cpu_seconds()
        began = time.monotonic()
        time.sleep(SETTLE_S)
        rested = process.cpu_seconds() - started
        return WorkloadOutcome(
            {
                READY.name: (process.responded_at - process.exec_started_at) * 1e3,
                CPU.name: started * 1e3,
                RESIDENT.name: process.resident_bytes() / 1e6,
                IDLE_CPU.name: rested / (time.monotonic() - began) * 100,
            }
        )


@dataclass(frozen=True)
class ResidentMemoryAfterRun:
    """Measures resident memory after all other workloads."""

    name: str = "resident-after"
    title: str = "memory after the whole run"
    metrics: Sequence[Metric] = (RESIDENT,)
    needs: frozenset[Feature] = frozenset({Feature.PROCESS})
    stage: Stage = Stage.LAST
    default: bool = True

    @property
    def parameters(self) -> Mapping[str, Parameter]:
        return {}

    def run(self, target: Target) -> WorkloadOutcome:
        return WorkloadOutcome({RESIDENT.name: target.known_process.resident_bytes() / 1e6})


WORKLOADS = (Startup(), ResidentMemoryAfterRun())
