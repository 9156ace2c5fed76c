"""The planner of `odradek log-dirs balance`: never worse, converges, moves the least."""

from __future__ import annotations

import random
from itertools import product

from hypothesis import assume, given, settings
from hypothesis import strategies as st

from odradek.cli.balance_plan import Goal, by_steps, plan, score

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
def test_of_all_states_it_is_the_best_with_the_least_data(
    state: tuple[list[int], list[int], int],
) -> None:
    """Against brute force: the least uneven, and of those the one that moves the fewest bytes."""
    sizes, homes, directories = state
    goal = Goal.of(sizes, directories)
    every = product(range(directories), repeat=len(sizes))
    best = min(score(goal, sizes, homes, places) for places in every)
    assert score(goal, sizes, homes, plan(sizes, homes, directories)) == best


@settings(deadline=None, max_examples=40)
@given(LARGE)
def test_a_plan_is_never_worse_than_doing_nothing(state: tuple[list[int], list[int], int]) -> None:
    sizes, homes, directories = state
    goal = Goal.of(sizes, directories)
    for places in (plan(sizes, homes, directories), by_steps(goal, sizes, homes)):
        assert score(goal, sizes, homes, places)[:2] <= score(goal, sizes, homes, homes)[:2]


@settings(deadline=None, max_examples=40)
@given(LARGE)
def test_carried_out_there_is_nothing_left_to_do(state: tuple[list[int], list[int], int]) -> None:
    sizes, homes, directories = state
    places = plan(sizes, homes, directories)
    assert plan(sizes, places, directories) == places


@settings(deadline=None)
@given(SMALL)
def test_by_steps_it_is_nearly_as_good_as_by_trying_all(
    state: tuple[list[int], list[int], int],
) -> None:
    """What large states are planned by, where it can be checked."""
    sizes, homes, directories = state
    goal = Goal.of(sizes, directories)
    places = by_steps(goal, sizes, homes)
    before = score(goal, sizes, homes, homes)
    assert score(goal, sizes, homes, places)[:2] <= before[:2]
    if plan(sizes, homes, directories) == homes:
        assert places == homes


@settings(deadline=None, max_examples=10)
@given(st.integers(0, 2**32), st.integers(2, 6))
def test_many_replicas_are_evened_out_with_hardly_more_data_than_must_move(
    seed: int, directories: int
) -> None:
    """What is above the tolerance must go, what is missing below it must come: no plan moves less."""
    chance = random.Random(seed)
    sizes = [int(chance.lognormvariate(0, 1.5) * 1e6) for _ in range(300)]
    homes = [min(chance.randrange(directories), chance.randrange(directories)) for _ in sizes]
    goal = Goal.of(sizes, directories)
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


def test_what_is_even_within_the_tolerance_stays() -> None:
    assert plan([100, 96], [0, 1], 2) == [0, 1]
    assert plan([100, 90, 1, 1], [0, 1, 0, 1], 2) != [0, 1, 0, 1]
    assert plan([100, 90, 1, 1], [0, 1, 0, 1], 2, tolerance_percent=20) == [0, 1, 0, 1]


def test_an_empty_directory_is_filled_with_what_is_needed() -> None:
    sizes = [50, 30, 20, 10, 10, 10, 10, 10, 10]
    places = plan(sizes, [0] * 9, 2, tolerance_percent=0)
    assert sum(size for size, place in zip(sizes, places, strict=True) if place) == 80
    assert abs(places.count(1) - 4.5) < 1


def test_empty_replicas_even_out_the_counts_for_nothing() -> None:
    places = plan([100, 100] + [0] * 6, [0, 1] + [0] * 6, 2)
    assert places[:2] == [0, 1]
    assert places.count(1) == 4


def test_a_giant_has_a_directory_to_itself_and_the_others_share() -> None:
    sizes = [1000] + [10] * 20
    homes = [0] + [0] * 12 + [1] * 8
    places = by_steps(Goal.of(sizes, 3), sizes, homes)
    loads = [sum(s for s, p in zip(sizes, places, strict=True) if p == each) for each in range(3)]
    assert loads == [1000, 100, 100]
