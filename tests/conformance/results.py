"""Results of all entries, kept between runs: an entry that passed is not run again.

The results of a suite on a broker are in a directory whose name contains the versions of both (`builds`), so
results of different versions are separate. A failed entry is run again, and all runs are kept.
"""

from __future__ import annotations

import datetime
import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from tests.conformance.builds import Build
from tests.conformance.model import Outcome, Result


@dataclass(frozen=True)
class Kept:
    """Runs of an entry, oldest first, at least one, and the date of the last one."""

    runs: tuple[Result, ...]
    day: str

    @property
    def result(self) -> Result:
        """Result of the last run; an entry that passed is not run again."""
        return self.runs[-1]

    @property
    def passes(self) -> int:
        return sum(run.outcome is Outcome.PASSED for run in self.runs)

    @property
    def reason(self) -> str:
        """First reason of a failed run."""
        return next((run.reason for run in self.runs if run.reason), "")


class Side:
    """Results of one suite on one broker, in `directory`; `version` is the broker's version for people."""

    def __init__(self, directory: Path, build: Build) -> None:
        self.directory = directory
        self.version = build.version
        self._file = directory / "results.json"
        self._kept: dict[str, Kept] = {}
        if self._file.exists():
            text = json.loads(self._file.read_text())
            self._kept = dict(_read(text["entries"]))
            if not text["version"].endswith("-dirty)"):
                self.version = text["version"]  # the commit with the same sources

    def kept(self) -> Mapping[str, Kept]:
        return self._kept

    def begin(self, entries: Iterable[str], *, again: bool) -> None:
        """Prepare for a run of these entries; existing results are kept unless `again` is set."""
        if again:
            for entry in entries:
                self._kept.pop(entry, None)

    def put(self, entry: str, result: Result) -> None:
        """Add a run of `entry`."""
        today = datetime.datetime.now(datetime.UTC).date().isoformat()
        before = self._kept[entry].runs if entry in self._kept else ()
        self._kept[entry] = Kept((*before, result), today)
        self._save()

    def is_to_run(self, entry: str) -> bool:
        """Whether the entry was never run, or failed in its last run, which may be due to the machine."""
        kept = self._kept.get(entry)
        return kept is None or kept.result.outcome is Outcome.FAILED

    def _save(self) -> None:
        entries = {
            entry: [kept.day, *([run.outcome.value, round(run.seconds, 2), run.reason] for run in kept.runs)]
            for entry, kept in self._kept.items()
        }  # fmt: skip
        self.directory.mkdir(parents=True, exist_ok=True)
        new = self._file.with_suffix(".new")
        new.write_text(json.dumps({"version": self.version, "entries": entries}, indent=1) + "\n")
        new.replace(self._file)


def _read(entries: Mapping[str, list[object]]) -> Iterator[tuple[str, Kept]]:
    for entry, (day, *runs) in entries.items():
        yield entry, Kept(tuple(_result(*run) for run in runs), str(day))  # type: ignore[misc]


def _result(outcome: str, seconds: float, reason: str) -> Result:
    return Result(Outcome(outcome), seconds, reason)
