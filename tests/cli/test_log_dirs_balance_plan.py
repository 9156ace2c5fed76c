"""Tests of the plan of `odradek log-dirs balance`: it never increases the imbalance, converges, and moves
little data.
"""

from __future__ import annotations

import random
from itertools import product

from hypothesis import assume, given, settings
from hypothesis import strategies as st

from odradek.cli.log_dirs_balance_plan import BalanceGoal, by_steps, plan, score

SIZES = st.one_of(st.just(0), st.integers(1, 20), st.integers(1, 10**9))


@st.composite
def states(
    draw: st.DrawFn, directories_max: int, replicas_max: int
) -> tuple[list[int], list[int], int]:
    directories = draw(st.integers(1, directories_max))
    replicas = draw(
        st.lists(st.tuples(SIZES, st.integers(0, directories - 1)), max_size=replicas_max)
    )
    return [size for size, _ in replicas], [home for _, home in replicas], directories


SMALL, LARGE = states(3, 6), states(5, 60)


@settings(deadline=None)
@given(SMALL)
def test_exact_plan_matches_brute_force(
    state: tuple[list[int], list[int], int],
) -> None:
    """The plan has the least imbalance, and among equal plans the fewest moved bytes."""
    sizes, homes, directories = state
    goal = BalanceGoal.of(sizes, directories)
    every = product(range(directories), repeat=len(sizes))
    best = min(score(goal, sizes, homes, places) for places in every)
    assert score(goal, sizes, homes, plan(sizes, homes, directories)) == best


@settings(deadline=None, max_examples=40)
@given(LARGE)
def test_plan_never_increases_imbalance(state: tuple[list[int], list[int], int]) -> None:
    sizes, homes, directories = state
    goal = BalanceGoal.of(sizes, directories)
    for places in (plan(sizes, homes, directories), by_steps(goal, sizes, homes)):
        assert score(goal, sizes, homes, places)[:2] <= score(goal, sizes, homes, homes)[:2]


@settings(deadline=None, max_examples=40)
@given(LARGE)
def test_plan_after_execution_is_empty(state: tuple[list[int], list[int], int]) -> None:
    sizes, homes, directories = state
    places = plan(sizes, homes, directories)
    assert plan(sizes, places, directories) == places


@settings(deadline=None)
@given(SMALL)
def test_greedy_plan_is_close_to_exact_plan(
    state: tuple[list[int], list[int], int],
) -> None:
    """Compare the greedy planner with the exact one on small states."""
    sizes, homes, directories = state
    goal = BalanceGoal.of(sizes, directories)
    places = by_steps(goal, sizes, homes)
    before = score(goal, sizes, homes, homes)
    assert score(goal, sizes, homes, places)[:2] <= before[:2]
    if plan(sizes, homes, directories) == homes:
        assert places == homes


@settings(deadline=None, max_examples=10)
@given(st.integers(0, 2**32), st.integers(2, 6))
def test_greedy_plan_moves_little_more_than_necessary(seed: int, directories: int) -> None:
    """The lower bound is the number of bytes outside of the tolerance."""
    chance = random.Random(seed)
    sizes = [int(chance.lognormvariate(0, 1.5) * 1e6) for _ in range(300)]
    homes = [min(chance.randrange(directories), chance.randrange(directories)) for _ in sizes]
    goal = BalanceGoal.of(sizes, directories)
    # A giant's directory is never even; one that is nearly a giant would have to stay by itself, and
    # there are numbers to be even, too.
    assume(goal.sharing == directories and max(sizes) < 0.9 * goal.share_bytes / directories)
    uneven_bytes, uneven_replicas, moved_bytes, _ = score(
        goal, sizes, homes, plan(sizes, homes, directories)
    )
    before = score(goal, sizes, homes, homes)
    assert uneven_bytes == 0
    assert uneven_replicas < max(1, before[1])
    loads = [0] * directories
    for size, home in zip(sizes, homes, strict=True):
        loads[home] += size
    must_go = sum(max(0, load - goal.high_bytes) for load in loads)
    must_come = sum(max(0, goal.low_bytes - load) for load in loads)
    # Counts need small ones to move that bytes alone would not; one replica may be too large a grain.
    slack = sum(sorted(sizes)[: len(sizes) // 2]) + max(sizes)
    assert moved_bytes <= max(must_go, must_come) + slack


def test_plan_within_tolerance_is_empty() -> None:
    assert plan([100, 96], [0, 1], 2) == [0, 1]
    assert plan([100, 90, 1, 1], [0, 1, 0, 1], 2) != [0, 1, 0, 1]
    assert plan([100, 90, 1, 1], [0, 1, 0, 1], 2, tolerance_percent=20) == [0, 1, 0, 1]


def test_empty_directory_gets_most_needed_replicas() -> None:
    sizes = [50, 30, 20, 10, 10, 10, 10, 10, 10]
    places = plan(sizes, [0] * 9, 2, tolerance_percent=0)
    assert sum(size for size, place in zip(sizes, places, strict=True) if place) == 80
    assert abs(places.count(1) - 4.5) < 1


def test_empty_replicas_balance_counts_without_bytes() -> None:
    places = plan([100, 100] + [0] * 6, [0, 1] + [0] * 6, 2)
    assert places[:2] == [0, 1]
    assert places.count(1) == 4


def test_oversized_replica_gets_its_own_directory() -> None:
    sizes = [1000] + [10] * 20
    homes = [0] + [0] * 12 + [1] * 8
    places = by_steps(BalanceGoal.of(sizes, 3), sizes, homes)
    loads = [sum(s for s, p in zip(sizes, places, strict=True) if p == each) for each in range(3)]
    assert loads == [1000, 100, 100]
