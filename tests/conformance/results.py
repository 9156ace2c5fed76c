"""What became of every entry, kept from run to run so that a single entry can be run again.

A run of everything begins anew; a run of a part replaces what it ran. Each result knows which
broker, exactly, it was had from.
"""

from __future__ import annotations

import datetime
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from tests.conformance.model import Outcome, Result


@dataclass(frozen=True)
class Kept:
    """A result, the version of the broker, and the day."""

    result: Result
    broker_version: str
    day: str


class Results:
    """A JSON file for each suite and broker, so that runs of several don't undo each other's."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._kept: dict[Path, dict[str, Kept]] = {}

    def forget(self, suite: str, broker: str) -> None:
        self._of(suite, broker).clear()

    def put(self, suite: str, broker: str, entry: str, result: Result, version: str) -> None:
        today = datetime.datetime.now(datetime.UTC).date().isoformat()
        self._of(suite, broker)[entry] = Kept(result, version, today)
        self._save(self._file(suite, broker))

    def of(self, suite: str, broker: str) -> Mapping[str, Kept]:
        return self._of(suite, broker)

    def _file(self, suite: str, broker: str) -> Path:
        return self._directory / suite / f"{broker}.json"

    def _of(self, suite: str, broker: str) -> dict[str, Kept]:
        file = self._file(suite, broker)
        if file not in self._kept:
            self._kept[file] = dict(_read(file)) if file.exists() else {}
        return self._kept[file]

    def _save(self, file: Path) -> None:
        rows = [
            [entry, kept.result.outcome.value, round(kept.result.seconds, 2), kept.result.reason,
             kept.broker_version, kept.day]
            for entry, kept in self._kept[file].items()
        ]  # fmt: skip
        file.parent.mkdir(parents=True, exist_ok=True)
        new = file.with_suffix(".new")
        new.write_text("[\n" + ",\n".join(json.dumps(row) for row in rows) + "\n]\n")
        new.replace(file)


def _read(file: Path) -> Iterator[tuple[str, Kept]]:
    for entry, outcome, seconds, reason, version, day in json.loads(file.read_text()):
        yield entry, Kept(Result(Outcome(outcome), seconds, reason), version, day)
