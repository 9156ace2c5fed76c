"""Splitting of the records of a controller result into batches."""

from __future__ import annotations

import pytest

from odradek.replication.controller.controller_result import ControllerResult


@pytest.mark.parametrize(
    ("records", "atomic", "batches"),
    [
        (0, True, []),
        (0, False, []),
        (5, True, [5]),
        (5, False, [2, 2, 1]),
        (4, False, [2, 2]),
        (1, False, [1]),
    ],
)
def test_only_non_atomic_results_are_split(records: int, atomic: bool, batches: list[int]) -> None:
    plan = ControllerResult(range(records), None, atomic=atomic)
    cut = list(plan.batches(max_records=2))
    assert [len(batch) for batch in cut] == batches
    assert [record for batch in cut for record in batch] == list(range(records))
