"""Results file of a benchmark run: every sample and failure, the machine and the settings.

The file has no medians. `summary.py` computes medians, ranges and fractions of limits from the samples, so a
later version can evaluate an old file.

The file is JSON with a `schema`; another schema is refused. A histogram is one string of "upper bound:count"
pairs, which keeps the file small.
"""

from __future__ import annotations

import enum
import errno
import json
import os
import statistics
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from types import UnionType
from typing import Any

from odradek.bench.model import Better, Histogram, Metric, Parameter

SCHEMA = 1


class InvalidResults(Exception):
    """A file that is no results file, or one of another schema; the text names it."""


class SampleState(enum.Enum):
    """Whether a sample is used for medians."""

    COUNTED = "counted"
    WARM_UP = "warm-up"
    DISTURBED = "disturbed"
    """Other processes used the machine. The sample counts only if no other sample of its workload does."""


@dataclass(frozen=True)
class Sample:
    """One run of a workload against a peer.

    `others_cores` is the CPU use of other processes during the run, in cores; None if it is not known.
    """

    round: int
    values: Mapping[str, float]
    state: SampleState = SampleState.COUNTED
    seconds: float = 0.0
    others_cores: float | None = None
    client_bound: bool = False
    notes: tuple[str, ...] = ()
    histogram: Histogram | None = None


@dataclass(frozen=True)
class Failure:
    """A run that ended without a result."""

    round: int
    reason: str


@dataclass
class Measured:
    """Samples of a workload on one peer. `skipped` is the reason if the workload was not run."""

    samples: list[Sample] = field(default_factory=list)
    failures: list[Failure] = field(default_factory=list)
    skipped: str | None = None

    @property
    def counted(self) -> list[Sample]:
        """Return the samples for medians: the undisturbed ones, or all disturbed ones if there are no others."""
        calm = [each for each in self.samples if each.state is SampleState.COUNTED]
        return calm or [each for each in self.samples if each.state is SampleState.DISTURBED]

    @property
    def only_disturbed(self) -> bool:
        return bool(self.counted) and all(
            each.state is SampleState.DISTURBED for each in self.counted
        )


@dataclass
class WorkloadResults:
    name: str
    title: str
    metrics: tuple[Metric, ...]
    parameters: Mapping[str, Parameter]
    peers: dict[str, Measured] = field(default_factory=dict)
    rounds: int | None = None
    """Number of rounds that should count; None: as in the run's settings."""

    def metric(self, name: str) -> Metric | None:
        return next((each for each in self.metrics if each.name == name), None)


@dataclass(frozen=True)
class PeerRecord:
    """A peer of the run. `unavailable` is the reason if it was not measured.

    `settings` are those of the single process. `clusters` maps the name of a stage to the settings of its nodes.
    """

    name: str
    title: str
    version: str | None = None
    settings: Mapping[str, str] = field(default_factory=dict)
    unavailable: str | None = None
    clusters: dict[str, dict[str, str]] = field(default_factory=dict)


@dataclass
class LimitResults:
    """Measurements of a physical limit, as (value, other figures)."""

    name: str
    title: str
    metric: Metric
    samples: list[tuple[float, Mapping[str, float]]] = field(default_factory=list)
    failure: str | None = None

    def median(self, name: str) -> float | None:
        """Return the median of a figure: the limit's metric or another one. None if it was not measured."""
        figures = [{**details, self.metric.name: value} for value, details in self.samples]
        values = [each[name] for each in figures if name in each]
        return statistics.median(values) if values else None


@dataclass
class Results:
    """Results of one run. `started` is ISO 8601 in UTC; `remarks` are about the whole run."""

    version: str
    started: str
    machine: Mapping[str, str | int | float]
    settings: Mapping[str, Parameter]
    seconds: float = 0.0
    interrupted: bool = False
    remarks: list[str] = field(default_factory=list)
    peers: list[PeerRecord] = field(default_factory=list)
    limits: list[LimitResults] = field(default_factory=list)
    workloads: list[WorkloadResults] = field(default_factory=list)

    def workload(self, name: str) -> WorkloadResults | None:
        return next((each for each in self.workloads if each.name == name), None)

    def other_rounds(self, workload: WorkloadResults) -> int | None:
        """Return the number of rounds of a workload if it differs from the run's setting, otherwise None."""
        usual = self.settings.get("rounds")
        return None if workload.rounds in (None, usual) else workload.rounds

    def bound_of(self, metric: Metric) -> float | None:
        """Return the median of the physical limit of a metric.

        None if the limit was not measured, or has another unit and is not named as `NAME:FIGURE`.
        """
        name, _, further = (metric.limit or "").partition(":")
        for limit in self.limits:
            if limit.name == name and (further or limit.metric.unit == metric.unit):
                return limit.median(further or limit.metric.name)
        return None

    def has_failures(self) -> bool:
        return any(each.failures for each in self._measured())

    def has_figures(self) -> bool:
        """Whether any workload was measured on any peer."""
        return any(each.counted for each in self._measured())

    def _measured(self) -> Iterator[Measured]:
        return (each for workload in self.workloads for each in workload.peers.values())


def to_json(results: Results) -> str:
    """The text of a results file."""
    document = {"schema": SCHEMA, **asdict(results)}
    for workload in document["workloads"]:
        for measured in workload["peers"].values():
            for sample in measured["samples"]:
                if sample["histogram"] is not None:
                    buckets = sample["histogram"]["buckets"]
                    text = " ".join(f"{bound:g}:{count}" for bound, count in buckets)
                    sample["histogram"]["buckets"] = text
    return json.dumps(document, indent=1, ensure_ascii=False, default=_plain) + "\n"


def _plain(value: object) -> str:
    if isinstance(value, enum.Enum):
        return str(value.value)
    raise TypeError(f"{value!r} has no place in a results file")


def from_json(text: str, about: str) -> Results:
    """Parse the output of `to_json`. Raises InvalidResults, with `about` in its text."""
    try:
        document = json.loads(text)
    except ValueError as error:
        raise InvalidResults(f"{about} is not JSON: {error}") from None
    if not isinstance(document, dict) or "schema" not in document:
        raise InvalidResults(f"{about} is not a results file of the bench")
    if document.pop("schema") != SCHEMA:
        raise InvalidResults(
            f"{about} has another schema than {SCHEMA}, which is what is read here"
        )
    try:
        return _results(document)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise InvalidResults(f"{about} is damaged: {error!r}") from None


def load(path: Path) -> Results:
    """Read a results file. Raises InvalidResults, or OSError."""
    try:
        text = path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise InvalidResults(f"{path} is not text: {error}") from None
    return from_json(text, str(path))


def save(results: Results, path: Path) -> None:
    """Write a results file, whole or not at all."""
    unfinished = _unfinished(path)
    unfinished.write_text(to_json(results), encoding="utf-8")
    unfinished.replace(path)


def check_writable(path: Path) -> None:
    """Raises OSError if no file can be written there; makes the directory."""
    if path.is_dir():
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
    unfinished = _unfinished(path)
    unfinished.write_bytes(b"")
    unfinished.unlink()


def _unfinished(path: Path) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    return path.with_name(f".{path.name}.unfinished")


def _results(document: dict[str, Any]) -> Results:
    document["peers"] = [PeerRecord(**each) for each in document["peers"]]
    document["limits"] = [_limit(each) for each in document["limits"]]
    document["workloads"] = [_workload(each) for each in document["workloads"]]
    results = Results(**document)
    for name, kind in _KINDS.items():
        if not isinstance(value := getattr(results, name), kind):
            raise TypeError(f"{name} is {value!r}")
    known = {peer.name for peer in results.peers}
    for workload in results.workloads:
        for name in workload.peers.keys() - known:
            raise ValueError(f"{workload.name} was run on {name!r}, which is none of its peers")
    return results


_KINDS: Mapping[str, type | UnionType] = {
    "version": str,
    "started": str,
    "machine": dict,
    "settings": dict,
    "seconds": float | int,
    "interrupted": bool,
    "remarks": list,
}
"""Of what is taken as the file has it."""


def _limit(document: dict[str, Any]) -> LimitResults:
    return LimitResults(
        document["name"],
        document["title"],
        _metric(document["metric"]),
        [(float(value), details) for value, details in document["samples"]],
        document["failure"],
    )


def _workload(document: dict[str, Any]) -> WorkloadResults:
    return WorkloadResults(
        document["name"],
        document["title"],
        tuple(_metric(each) for each in document["metrics"]),
        document["parameters"],
        {name: _measured(each) for name, each in document["peers"].items()},
        document.get("rounds"),
    )


def _measured(document: dict[str, Any]) -> Measured:
    return Measured(
        [_sample(each) for each in document["samples"]],
        [Failure(**each) for each in document["failures"]],
        document["skipped"],
    )


def _sample(document: dict[str, Any]) -> Sample:
    histogram = document.pop("histogram")
    if histogram is not None:
        pairs = (pair.partition(":") for pair in histogram["buckets"].split())
        buckets = tuple((float(bound), int(count)) for bound, _, count in pairs)
        histogram = Histogram(histogram["unit"], buckets)
    state, notes = SampleState(document.pop("state")), tuple(document.pop("notes"))
    values = {name: float(value) for name, value in document.pop("values").items()}
    return Sample(values=values, state=state, notes=notes, histogram=histogram, **document)


def _metric(document: dict[str, Any]) -> Metric:
    better: Better = "higher" if document["better"] == "higher" else "lower"
    return Metric(
        document["name"],
        document["unit"],
        better,
        document["limit"],
        bool(document.get("diagnostic")),
    )
