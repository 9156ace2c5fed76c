"""What a suite is to the command: jobs that it runs one at a time, and what became of each entry."""

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
    """How one entry of a suite ended on one broker; `reason` is empty for what passed."""

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
    """One start of a suite's program: mostly one entry, more where the suite can't part them.

    `settings` are broker configs that these entries ask for beyond their suite's.
    """

    name: str
    entries: tuple[str, ...]
    timeout_s: float
    settings: Mapping[str, str] = field(default_factory=dict)


class Suite(Protocol):
    """Somebody else's tests: fetched, built, listed, run."""

    name: str
    title: str
    version: str
    source: str  # where it comes from, for the page
    settings: Mapping[str, str]  # the broker configs that it expects

    def obtain(self) -> None:
        """Fetch and build what is not in the cache yet; PeerUnavailable says what is missing."""

    def jobs(self) -> Sequence[Job]:
        """What can be run, in the suite's order."""

    def excluded(self) -> Mapping[str, str]:
        """The entries that are run on no broker, with the reason."""

    def run(self, job: Job, bootstrap: str, directory: Path) -> Mapping[str, Result]:
        """Run `job` against the broker, its output in `directory`; a result for each of its entries."""
