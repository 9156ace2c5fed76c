"""Anomalies that tests find are written to a file for `.ci/run`; timeouts are not."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from tests.support.anomalies import FILE

REPOSITORY = Path(__file__).parents[2]
TESTS = """
from tests.support.anomalies import assert_none, require

def test_nothing():
    assert_none([])
    require(True, "no problems found")

def test_lost():
    assert_none(["a:1 is lost", "a:2 is lost"])

def test_lost_and_stuck():
    try:
        require(False, "a:3 is there twice")
    finally:
        raise TimeoutError("it does not end")

def test_stuck():
    assert not "timed out"
"""


def test_anomalies_are_written_to_file(tmp_path: Path) -> None:
    tests, found = tmp_path / "test_all.py", tmp_path / "found"
    tests.write_text(TESTS)
    words = [
        "-q",
        "-n",
        "0",
        "-p",
        "tests.support.anomalies",
        "-p",
        "no:cacheprovider",
        "-c",
        os.devnull,
    ]
    ended = subprocess.run(
        [sys.executable, "-m", "pytest", *words, str(tests)],
        cwd=REPOSITORY,
        env={**os.environ, FILE: str(found)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert "3 failed, 1 passed" in ended.stdout, ended.stdout + ended.stderr
    assert [line.partition("::")[2] for line in found.read_text().splitlines() if "::" in line] == [
        "test_lost: a:1 is lost",
        "test_lost_and_stuck: a:3 is there twice",
    ]
