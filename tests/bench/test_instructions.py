"""The arithmetic of instruction counts, and (slow) the counts compared with the stored ones."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from odradek.bench import hot_path, instructions
from odradek.bench.instructions import (
    STORED,
    CannotCount,
    Difference,
    count,
    differences,
    interpreter,
    load,
    per_operation,
    store,
)


def test_fixed_cost_of_a_phase_is_subtracted() -> None:
    def phase(times: int) -> int:
        return 5_000 + 70 * times

    phases = [("a", 10), ("a", 10), ("a", 20), ("b", 1), ("b", 1), ("b", 2)]
    dumps = []
    for _, times in phases:
        dumps += [123_456, phase(times)]
    assert per_operation(phases, dumps) == {"a": 70, "b": 70}


def test_missing_dumps_are_reported() -> None:
    with pytest.raises(CannotCount, match="3 dumps for 3 phases"):
        per_operation([("a", 1), ("a", 1), ("a", 2)], [1, 2, 3])


def test_change_of_five_percent_is_tolerated() -> None:
    found = differences(
        {"same": 104, "worse": 106, "better": 94, "new": 1},
        {"same": 100, "worse": 100, "better": 100, "gone": 100},
    )
    assert [each.case for each in found if each.is_off] == ["worse", "better", "new", "gone"]
    assert found[1] == Difference("worse", 100, 106)


def test_update_keeps_counts_of_other_interpreters(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "instructions.json"
    store({"a": 1}, path)
    monkeypatch.setattr(instructions, "interpreter", lambda: "CPython 9.9 abacus")
    store({"a": 2}, path)
    assert load(path) == {interpreter(): {"a": 1}, "CPython 9.9 abacus": {"a": 2}}


def test_every_case_receives_the_expected_response(tmp_path: Path) -> None:
    """Without valgrind, a few times each: the run raises if a response is wrong."""
    phases = hot_path.run(str(tmp_path / "data"))
    assert [case for case, _ in phases] == [case.name for case in hot_path.CASES for _ in range(3)]


@pytest.mark.slow
def test_instruction_counts_match_the_stored_counts() -> None:
    """After a change of more than 5%, fix the code or store the counts: `odradek bench instructions
    --update`."""
    if shutil.which("valgrind") is None:
        pytest.skip("valgrind is not there to count instructions")
    stored = load(STORED).get(interpreter())
    if stored is None:
        pytest.skip(f"no counts are stored for {interpreter()}")
    off = [each for each in differences(count(), stored) if each.is_off]
    assert not off, "\n".join(
        f"{each.case}: {each.stored} stored, {each.counted} counted" for each in off
    )
