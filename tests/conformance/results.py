"""What became of every entry, kept from run to run so that a single entry can be run again.

A run of everything begins anew; a run of a part replaces what it ran. Each result knows which
broker, exactly, it was had from.
"""

from __future__ import annotations

import datetime
import json
from collections.abc import Mapping
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
    """suite → broker → entry → Kept, in a JSON file."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self._kept: dict[str, dict[str, dict[str, Kept]]] = {}
        if file.exists():
            for suite, broker, entry, *rest in json.loads(file.read_text()):
                outcome, seconds, reason, broker_version, day = rest
                result = Result(Outcome(outcome), seconds, reason)
                self._of(suite, broker)[entry] = Kept(result, broker_version, day)

    def forget(self, suite: str, broker: str) -> None:
        self._of(suite, broker).clear()

    def put(self, suite: str, broker: str, entry: str, result: Result, version: str) -> None:
        today = datetime.datetime.now(datetime.UTC).date().isoformat()
        self._of(suite, broker)[entry] = Kept(result, version, today)
        self._save()

    def of(self, suite: str, broker: str) -> Mapping[str, Kept]:
        return self._of(suite, broker)

    def _of(self, suite: str, broker: str) -> dict[str, Kept]:
        return self._kept.setdefault(suite, {}).setdefault(broker, {})

    def _save(self) -> None:
        rows = [
            [suite, broker, entry, kept.result.outcome.value, round(kept.result.seconds, 2),
             kept.result.reason, kept.broker_version, kept.day]
            for suite, brokers in self._kept.items()
            for broker, entries in brokers.items()
            for entry, kept in entries.items()
        ]  # fmt: skip
        self._file.parent.mkdir(parents=True, exist_ok=True)
        new = self._file.with_suffix(".new")
        new.write_text("[\n" + ",\n".join(json.dumps(row) for row in rows) + "\n]\n")
        new.replace(self._file)
