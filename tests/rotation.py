"""CI runs one part of the slow tests for each commit. The number of the commit chooses the part.

`pytest --part 2/4` leaves out the slow tests of the other parts. `slow_durations.json` stores how many seconds
a test takes, or a file whose tests share a long setup and stay together. What takes a few seconds is in every
part. The rest is divided into parts of about the same duration, longest first. A test without a stored duration
gets its part from a hash of its node ID, and changes the part of no other test.

`python -m tests.rotation` prints the part of this commit. `pytest --record-durations FILE` appends the duration
of each test to FILE, and `python -m tests.rotation --update FILE` stores the durations of the slow tests.
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import zlib
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path
from typing import NamedTuple

import pytest

PARTS = 4
"""CI runs each slow test at least once in this number of consecutive commits."""
QUICK_S = 3.0
"""What takes less is in every part."""
SHARED_SETUP_S = 5.0
"""A file whose setups take longer is stored as a whole, and is in one part: each part would repeat them."""
ROOT = Path(__file__).parents[1]
STORED = Path(__file__).with_name("slow_durations.json")


class Part(NamedTuple):
    number: int
    """From 1."""
    of: int

    def __str__(self) -> str:
        return f"{self.number}/{self.of}"


def parse(text: str) -> Part:
    """Raises ValueError."""
    found = re.fullmatch(r"([0-9]+)/([0-9]+)", text)
    if found is None or not 1 <= int(found[1]) <= int(found[2]):
        raise ValueError(f"not a part, such as 1/{PARTS}: {text!r}")
    return Part(int(found[1]), int(found[2]))


# Which part a test is in


def numbers_of(tests: Iterable[str], seconds: Mapping[str, float], parts: int) -> dict[str, int]:
    """The number of each test's part, from 1, without the tests that are in every part."""
    stored = _divide(seconds, parts)
    numbers = {}
    for test in tests:
        file = file_of(test)
        stored_as = file if file in seconds else test
        if stored_as not in seconds:
            numbers[test] = zlib.crc32(test.encode()) % parts + 1
        elif stored_as in stored:
            numbers[test] = stored[stored_as]
    return numbers


def file_of(test: str) -> str:
    return test.split("::")[0]


def _divide(seconds: Mapping[str, float], parts: int) -> dict[str, int]:
    """The longest first, each to the part that has the least so far."""
    totals = dict.fromkeys(range(1, parts + 1), 0.0)
    numbers = {}
    divided = (name for name, each in seconds.items() if each >= QUICK_S)
    for name in sorted(divided, key=lambda each: (-seconds[each], each)):
        number = min(totals, key=lambda each: (totals[each], each))
        numbers[name] = number
        totals[number] += seconds[name]
    return numbers


# Which part a commit chooses


def part_of_commit(root: Path, parts: int = PARTS) -> Part:
    """The number of the commit chooses the part. A shallow clone cannot count commits: the commit's ID
    chooses the part. Without a repository, the Python sources choose it."""
    if _git(root, "rev-parse", "--is-shallow-repository") == "false":
        count = _git(root, "rev-list", "--count", "--first-parent", "HEAD")
    else:
        count = ""
    number = int(count) if count else zlib.crc32(_content_id(root))
    return Part(number % parts + 1, parts)


def _content_id(root: Path) -> bytes:
    if commit := _git(root, "rev-parse", "--verify", "HEAD"):
        return commit.encode()
    return b"".join(path.read_bytes() for path in sorted(root.glob("[!.]*/**/*.py")))


def _git(root: Path, *words: str) -> str:
    """The output of git; an empty string without git or without a repository."""
    try:
        done = subprocess.run(
            ["git", *words], cwd=root, capture_output=True, text=True, check=False
        )
    except FileNotFoundError:
        return ""
    return done.stdout.strip() if done.returncode == 0 else ""


# In pytest


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("rotation of slow tests")
    group.addoption(
        "--part", type=_part_argument, help=f"such as 1/{PARTS}: run one part of the slow tests"
    )
    group.addoption(
        "--record-durations", type=Path, metavar="FILE", help="append how long tests take"
    )


def _part_argument(text: str) -> str:
    """Checked here, and kept as text, which pytest-xdist can send to its workers."""
    try:
        return str(parse(text))
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from error


def pytest_configure(config: pytest.Config) -> None:
    file = config.getoption("--record-durations", None)
    if file is not None and not hasattr(config, "workerinput"):
        config.pluginmanager.register(_Recorder(file.absolute()))


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if not (chosen := config.getoption("--part", None)):
        return
    part = parse(chosen)
    slow = [item.nodeid for item in items if item.get_closest_marker("slow")]
    numbers = numbers_of(slow, stored(), part.of)
    out = [item for item in items if numbers.get(item.nodeid, part.number) != part.number]
    if out:
        left_out = set(out)
        items[:] = [item for item in items if item not in left_out]
        config.hook.pytest_deselected(items=out)


def pytest_sessionfinish(session: pytest.Session, exitstatus: int) -> None:
    """A part that has none of the tests that `-m` selects passes."""
    if (
        session.config.getoption("--part", None)
        and exitstatus == pytest.ExitCode.NO_TESTS_COLLECTED
    ):
        session.exitstatus = pytest.ExitCode.OK


class _Recorder:
    """Writes each duration when its test ends, so that a killed run loses none."""

    def __init__(self, file: Path) -> None:
        self._file = file

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        processes = 2 if "alone" in report.keywords else 1  # the other one is idle
        row = {
            "test": report.nodeid,
            "slow": "slow" in report.keywords,
            "when": report.when,
            "skipped": report.skipped,
            "seconds": round(report.duration * processes, 2),
        }
        with self._file.open("a") as file:
            file.write(json.dumps(row) + "\n")


# What is stored


def stored(path: Path = STORED) -> dict[str, float]:
    return dict(json.loads(path.read_text()))


def updated(
    before: Mapping[str, float], rows: Iterable[Mapping[str, object]], files: Collection[str]
) -> dict[str, float]:
    """Replaces the durations of the recorded files, so a record has to contain all tests of a file. Skipped
    tests are not stored. Files that do not exist are removed."""
    tests: defaultdict[str, float] = defaultdict(float)
    setups: defaultdict[str, float] = defaultdict(float)
    skipped = set()
    for row in rows:
        if not row["slow"]:
            continue
        test, seconds = str(row["test"]), float(str(row["seconds"]))
        tests[test] += seconds
        setups[file_of(test)] += seconds if row["when"] == "setup" else 0.0
        if row["skipped"]:
            skipped.add(test)
    recorded: defaultdict[str, float] = defaultdict(float)
    for test, seconds in tests.items():
        if test not in skipped:
            recorded[file_of(test) if setups[file_of(test)] > SHARED_SETUP_S else test] += seconds
    measured = {file_of(name) for name in recorded}
    kept = {name: each for name, each in before.items() if file_of(name) not in measured}
    after = {**kept, **{name: round(each, 1) for name, each in recorded.items()}}
    return {name: after[name] for name in sorted(after) if file_of(name) in files}


def seconds_of_parts(seconds: Mapping[str, float], parts: int) -> dict[int, float]:
    numbers = numbers_of(seconds, seconds, parts)
    return {
        part: sum(each for name, each in seconds.items() if numbers.get(name, part) == part)
        for part in range(1, parts + 1)
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="tests.rotation", description="The parts of the slow tests."
    )
    parser.add_argument("--update", type=Path, metavar="FILE", help="store the durations in FILE")
    file = parser.parse_args().update
    if file is None:
        print(part_of_commit(ROOT))
        return
    rows = [json.loads(line) for line in file.read_text().splitlines()]
    files = {path.relative_to(ROOT).as_posix() for path in ROOT.glob("tests/**/*.py")}
    after = updated(stored(), rows, files)
    STORED.write_text(json.dumps(after, indent=1, ensure_ascii=False) + "\n")
    for number, seconds in seconds_of_parts(after, PARTS).items():
        print(f"{Part(number, PARTS)}: {seconds / 60:.1f} minutes in one process")


if __name__ == "__main__":
    main()
