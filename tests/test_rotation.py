"""Each slow test is in a part, the parts take about the same time, and five commits run every part."""

from __future__ import annotations

import json
import subprocess
from collections import Counter
from pathlib import Path

import pytest

from tests.rotation import (
    PARTS,
    QUICK_S,
    ROOT,
    SHARED_SETUP_S,
    Part,
    numbers_of,
    parse,
    part_of_commit,
    seconds_of_parts,
    stored,
    updated,
)

pytest_plugins = ["pytester"]

SECONDS = {f"tests/test_a.py::test[{number}]": float(number % 17 + 1) for number in range(100)}
PLUGIN = ("-p", "no:cacheprovider", "-p", "tests.rotation")
TWO_WORKERS = ("-p", "xdist", "-n", "2")


def test_parts_of_the_stored_tests_take_the_same_time() -> None:
    minutes = [seconds / 60 for seconds in seconds_of_parts(stored(), PARTS).values()]
    assert len(minutes) == PARTS
    assert max(minutes) < 1.05 * min(minutes)


def test_quick_tests_are_in_every_part_and_the_others_in_one() -> None:
    numbers = numbers_of(SECONDS, SECONDS, 3)
    assert numbers.keys() == {test for test, seconds in SECONDS.items() if seconds >= QUICK_S}
    assert set(numbers.values()) == {1, 2, 3}
    quick = sum(seconds for seconds in SECONDS.values() if seconds < QUICK_S)
    totals = seconds_of_parts(SECONDS, 3)
    assert sum(totals.values()) == sum(SECONDS.values()) + 2 * quick
    assert max(totals.values()) - min(totals.values()) <= QUICK_S


def test_tests_of_a_file_that_is_stored_as_a_whole_are_in_one_part() -> None:
    file = "tests/test_b.py"
    tests = [f"{file}::test[{number}]" for number in range(50)]
    assert len(set(numbers_of(tests, {**SECONDS, file: 60.0}, 5).values())) == 1
    assert numbers_of(tests, {**SECONDS, file: QUICK_S / 2}, 5) == {}


def test_five_consecutive_commits_run_every_part() -> None:
    assert PARTS <= 5


@pytest.mark.parametrize("parts", [1, 2, 3, 5])
def test_a_new_test_changes_the_part_of_no_other_test(parts: int) -> None:
    before = numbers_of(SECONDS, SECONDS, parts)
    added = [f"tests/test_b.py::test[{number}]" for number in range(200)]
    after = numbers_of([*SECONDS, *added], SECONDS, parts)
    assert before.items() <= after.items()
    assert numbers_of(sorted([*SECONDS, *added], reverse=True), SECONDS, parts) == after
    assert {after[test] for test in added} == set(range(1, parts + 1))
    assert numbers_of(added, SECONDS, parts) == {test: after[test] for test in added}


def test_a_part_is_parsed_from_its_text() -> None:
    assert parse(str(Part(3, 5))) == Part(3, 5)


@pytest.mark.parametrize("text", ["", "3", "0/5", "6/5", "1/0", "1/2/3", "-1/3", "a/b"])
def test_an_invalid_part_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="not a part"):
        parse(text)


# Commits


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    root = tmp_path / "repository"
    git(tmp_path, "init", "--quiet", "--initial-branch", "main", str(root))
    for number in range(7):
        commit(root, str(number))
    return root


def git(root: Path, *words: str) -> str:
    who = [
        "-c",
        "user.name=nobody",
        "-c",
        "user.email=nobody@example.org",
        "-c",
        "commit.gpgsign=no",
    ]
    return subprocess.run(
        ["git", *who, *words], cwd=root, capture_output=True, text=True, check=True
    ).stdout.strip()


def commit(root: Path, message: str) -> None:
    git(root, "commit", "--quiet", "--allow-empty", "--message", message)


def test_consecutive_commits_choose_consecutive_parts(repository: Path) -> None:
    numbers = []
    for back in range(7):
        git(repository, "checkout", "--quiet", f"main~{back}")
        numbers.append(part_of_commit(repository, 5).number)
    assert numbers == [3, 2, 1, 5, 4, 3, 2]
    assert part_of_commit(repository, 5) == Part(2, 5)


def test_a_merge_counts_as_one_commit(repository: Path) -> None:
    before = part_of_commit(repository, 5).number
    git(repository, "checkout", "--quiet", "-b", "side")
    for number in range(3):
        commit(repository, f"aside {number}")
    git(repository, "checkout", "--quiet", "main")
    git(repository, "merge", "--quiet", "--no-ff", "--message", "merged", "side")
    assert part_of_commit(repository, 5).number == before % 5 + 1


def test_the_commit_id_chooses_the_part_in_a_shallow_clone(
    repository: Path, tmp_path: Path
) -> None:
    numbers = set()
    for number in range(12):
        commit(repository, f"another {number}")
        shallow = tmp_path / f"shallow-{number}"
        git(tmp_path, "clone", "--quiet", "--depth", "1", f"file://{repository}", str(shallow))
        part = part_of_commit(shallow, 2)
        assert part_of_commit(shallow, 2) == part
        numbers.add(part.number)
    assert numbers == {1, 2}


@pytest.mark.parametrize("has_git", [True, False])
def test_the_sources_choose_the_part_without_a_repository(
    has_git: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path.parent))
    if not has_git:
        monkeypatch.setenv("PATH", str(tmp_path))
    source = tmp_path / "broker" / "some.py"
    source.parent.mkdir()
    numbers = set()
    for number in range(12):
        source.write_text(f"NUMBER = {number}\n")
        part = part_of_commit(tmp_path, 2)
        assert part_of_commit(tmp_path, 2) == part
        numbers.add(part.number)
    assert numbers == {1, 2}


# In pytest


@pytest.fixture
def suite(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> pytest.Pytester:
    monkeypatch.setenv("PYTHONPATH", str(ROOT))  # for workers
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")
    pytester.makeini("[pytest]\nmarkers =\n  slow: takes long\n  alone: too")
    pytester.makepyfile(
        """
        import pytest

        @pytest.mark.slow
        @pytest.mark.parametrize("number", range(20))
        def test_slow(number):
            pass

        @pytest.mark.alone
        @pytest.mark.slow
        def test_alone():
            pass

        @pytest.mark.slow
        def test_skipped():
            pytest.skip()

        def test_fast():
            pass
        """
    )
    return pytester


def passed(suite: pytest.Pytester, *arguments: str) -> list[str]:
    ran = suite.runpytest_inprocess(*PLUGIN, "-v", *arguments)
    assert ran.ret == 0
    return [line.split(" ")[0] for line in ran.outlines if " PASSED" in line]


def test_each_slow_test_runs_in_one_part_and_fast_tests_run_in_all(suite: pytest.Pytester) -> None:
    by_part = [passed(suite, "--part", f"{number}/3") for number in (1, 2, 3)]
    runs = Counter(test for part in by_part for test in part)
    assert len(runs) == 22
    assert {test: n for test, n in runs.items() if n > 1} == {
        "test_each_slow_test_runs_in_one_part_and_fast_tests_run_in_all.py::test_fast": 3
    }
    assert all(len(part) > 1 for part in by_part)


def test_workers_run_the_same_part(suite: pytest.Pytester) -> None:
    arguments = [*PLUGIN, "--part", "2/3", "-m", "slow"]
    in_one_process = suite.runpytest_inprocess(*arguments).parseoutcomes()["passed"]
    in_workers = suite.runpytest_subprocess(*arguments, *TWO_WORKERS).parseoutcomes()["passed"]
    assert in_workers == in_one_process < 21


def test_a_part_that_has_none_of_the_selected_tests_passes(suite: pytest.Pytester) -> None:
    by_part = [passed(suite, "--part", f"{number}/2", "-m", "alone") for number in (1, 2)]
    assert sorted(map(len, by_part)) == [0, 1]
    assert suite.runpytest_inprocess(*PLUGIN, "-k", "nothing").ret == 5


def test_pytest_refuses_an_invalid_part(suite: pytest.Pytester) -> None:
    ran = suite.runpytest_inprocess(*PLUGIN, "--part", "4/3")
    assert ran.ret == pytest.ExitCode.USAGE_ERROR
    ran.stderr.fnmatch_lines(["*not a part, such as 1/4: '4/3'*"])


@pytest.mark.parametrize("workers", [(), TWO_WORKERS], ids=["one process", "two workers"])
def test_durations_are_recorded(suite: pytest.Pytester, workers: tuple[str, ...]) -> None:
    record = suite.path / "durations"
    passed(suite, "--record-durations", "durations", *workers)
    rows = [json.loads(line) for line in record.read_text().splitlines()]
    assert len(rows) == 23 * 3  # setup, the test, and teardown
    file = f"{suite._name}.py"
    names = {row["test"] for row in rows if row["slow"]}
    assert len(names) == 22
    assert updated({}, rows, {file}).keys() == names - {f"{file}::test_skipped"}


def row(test: str, when: str, seconds: float) -> dict[str, object]:
    return {"test": test, "slow": True, "when": when, "skipped": False, "seconds": seconds}


def test_an_update_replaces_recorded_files_and_removes_missing_ones() -> None:
    before = {"a.py::test_one": 60.0, "a.py::test_renamed": 7.0, "b.py": 5.0, "missing.py": 3.0}
    rows = [row("a.py::test_one", "setup", 1.0), row("a.py::test_one", "call", 2.0)]
    assert updated(before, rows, {"a.py", "b.py"}) == {"a.py::test_one": 3.0, "b.py": 5.0}


def test_a_file_with_long_setups_is_stored_as_a_whole() -> None:
    rows = [
        row("a.py::test_one", "setup", SHARED_SETUP_S + 1),
        row("a.py::test_one", "call", 2.0),
        row("a.py::test_two", "call", 4.0),
    ]
    assert updated({"a.py::test_one": 60.0}, rows, {"a.py"}) == {"a.py": SHARED_SETUP_S + 7}
