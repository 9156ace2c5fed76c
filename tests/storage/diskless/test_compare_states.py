"""SQLite and the in-memory model are equal after random records, kills and damaged files (D-16)."""

from __future__ import annotations

import pytest

from tests.storage.diskless.compare_states import compare


@pytest.mark.parametrize("seed", range(1000, 1002))
def test_states_are_equal_after_random_records_and_kills(seed: int) -> None:
    compare(seed, operations=300)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(5))
def test_states_are_equal_after_many_random_records_and_kills(seed: int) -> None:
    kills, rebuilds = compare(seed, operations=10_000)
    assert kills > rebuilds > 0
