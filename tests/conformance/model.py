"""Model of a test suite: jobs that are run one at a time, and the result of each entry."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from typing import Protocol


class Outcome(Enum):
    PASSED = "passed"
    FAILED = "failed"
    NOT_APPLICABLE = "not applicable"


@dataclass(frozen=True)
class Result:
    """Result of an entry on a broker; `reason` is empty if it passed."""

    outcome: Outcome
    seconds: float = 0.0
    reason: str = ""


def passed(seconds: float) -> Result:
    return Result(Outcome.PASSED, seconds)


def failed(seconds: float, reason: str) -> Result:
    return Result(Outcome.FAILED, seconds, reason)


def not_applicable(reason: str) -> Result:
    return Result(Outcome.NOT_APPLICABLE, reason=reason)


@dataclass(frozen=True)
class Job:
    """One run of a suite's program: usually one entry, or several that the suite cannot run separately.

    `settings` are broker configs of these entries in addition to those of the suite.
    """

    name: str
    entries: tuple[str, ...]
    timeout_s: float
    settings: Mapping[str, str] = field(default_factory=dict)


class Suite(Protocol):
    """A test suite of another project: fetch, build, list and run its entries."""

    name: str
    title: str
    version: str
    source: str  # source, for the page
    settings: Mapping[str, str]  # broker configs

    def obtain(self) -> None:
        """Fetch and build what is not cached. Raises PeerUnavailable if something is missing."""

    def jobs(self) -> Sequence[Job]:
        """Jobs, in the suite's order."""

    def excluded(self) -> Mapping[str, str]:
        """Entries that are not run on any broker, with the reason."""

    def run(self, job: Job, bootstrap: str, directory: Path) -> Mapping[str, Result]:
        """Run `job` against the broker with its output in `directory`; returns a result for each entry."""
