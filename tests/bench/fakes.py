"""Fake peers, workloads and a fake machine, controlled by a test."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from odradek.bench.model import (
    Feature,
    Metric,
    Parameter,
    Peer,
    PeerUnavailable,
    Stage,
    Target,
    Workload,
    WorkloadOutcome,
)
from odradek.bench.results_file import Failure, Results, Sample, WorkloadResults

SPEED = Metric("mb_per_s", "MB/s", "higher", limit="sendfile")
DELAY = Metric("p99_us", "µs", "lower")

Journal = list[str]
"""The events in order, one line each."""


class FakeTopics:
    def create(self, name: str, partitions: int) -> None: ...

    def delete(self, name: str) -> None: ...


@dataclass
class FakeProcess:
    """A process that can only be asked whether it runs."""

    pid: int = 1
    exec_started_at: float = 0.0
    responded_at: float = 0.0

    def cpu_seconds(self) -> float:
        return 0.0

    def resident_bytes(self) -> int:
        return 0

    def kill(self) -> None: ...

    def restart(self) -> None: ...

    def stop(self) -> None: ...

    def log(self) -> str:
        return ""


@dataclass
class FakePeer:
    name: str
    journal: Journal
    unavailable: str | None = None
    lacks: Mapping[Feature, str] = field(default_factory=dict)
    on_start: Callable[[], None] = lambda: None
    default: bool = True

    @property
    def title(self) -> str:
        return self.name.upper()

    def obtain(self) -> None:
        if self.unavailable is not None:
            raise PeerUnavailable(self.unavailable)

    def version(self) -> str:
        return "1.0"

    def settings(self) -> Mapping[str, str]:
        return {"threads": "1"}

    @contextmanager
    def start(self, directory: Path) -> Iterator[Target]:
        assert not list(directory.iterdir())
        self.on_start()
        (directory / "log").write_bytes(b"records")
        self.journal.append(f"start {self.name}")
        try:
            yield Target(self.name, "127.0.0.1:1", FakeTopics(), FakeProcess(ord(self.name)))
        finally:
            self.journal.append(f"stop {self.name}")


@dataclass
class FakeClusterPeer(FakePeer):
    """A peer that can also be started as a cluster."""

    @contextmanager
    def start_cluster(self, directory: Path) -> Iterator[Target]:
        assert not list(directory.iterdir())
        (directory / "log").write_bytes(b"records")
        self.journal.append(f"start cluster {self.name}")
        try:
            process = FakeProcess(ord(self.name))
            yield Target(
                self.name, "127.0.0.1:1", FakeTopics(), process, settings={"replicas": "3"}
            )
        finally:
            self.journal.append(f"stop cluster {self.name}")


@dataclass
class FakeWorkload:
    """Returns the outcome of the target's peer, or raises it."""

    name: str
    journal: Journal
    outcome: Callable[[str], WorkloadOutcome] = lambda peer: WorkloadOutcome({SPEED.name: 100.0})
    metrics: Sequence[Metric] = (SPEED,)
    needs: frozenset[Feature] = frozenset()
    stage: Stage = Stage.SHARED
    default: bool = True

    @property
    def title(self) -> str:
        return f"the workload {self.name}"

    @property
    def parameters(self) -> Mapping[str, Parameter]:
        return {"bytes": 1024}

    def run(self, target: Target) -> WorkloadOutcome:
        self.journal.append(f"{self.name} {target.peer}")
        return self.outcome(target.peer)


@dataclass(frozen=True)
class FakeUsage:
    others_cores: float


class FakeWatch:
    """A machine whose other processes use the next of `shares`; none when there are no more."""

    def __init__(self, shares: Iterator[float]) -> None:
        self._share = next(shares, 0.0)

    def stop(self) -> FakeUsage:
        return FakeUsage(self._share)


@dataclass
class QuietProgress:
    """A progress report that records its calls."""

    ends: list[Sample | Failure] = field(default_factory=list)
    through: list[str] = field(default_factory=list)

    def doing(self, what: str) -> None: ...

    def ran(self, workload: Workload, peer: Peer, end: Sample | Failure) -> None:
        self.ends.append(end)

    def measured(self, workload: WorkloadResults, results: Results) -> None:
        self.through.append(workload.name)


def empty_results() -> Results:
    return Results(
        "0.1.0", "2026-01-01T00:00:00+00:00", {"processor": "abacus", "cores": "2"}, {"rounds": 2}
    )
