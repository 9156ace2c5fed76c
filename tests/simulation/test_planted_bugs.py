"""The simulated cluster finds bugs that were put in on purpose: two of each of election, truncation, the
in-sync set, recovery and reassignment, and one of a missed epoch.

The seeds are some that found them; what a seed does changes with the code, so that others are tried.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import chain

import pytest

from odradek.testing.simulation.plan import draw_plan
from odradek.testing.simulation.run import simulate
from tests.simulation import planted_bugs, planted_tier_bugs

SEEDS_MAX = 600

FOUND_BY = {
    "vote_twice": [66],
    "elect_who_lacks_records": [2],
    "keep_what_the_leader_has_not": [1],
    "tell_nobody_where_logs_part": [4],
    "acknowledge_what_the_leader_has": [1],
    "count_what_is_on_its_way": [13],
    "recover_what_is_broken": [29],
    "take_every_stop_for_a_clean_one": [20],
    "move_before_it_is_copied": [3],
    "stay_in_sync_after_moving_away": [0],
    "know_followers_across_a_missed_epoch": [52],
}
FOUND_IN_TIER_BY = {
    "let_go_of_what_was_not_copied": [0],
    "leave_what_others_began": [27],
    "take_the_store_at_its_word": [17],
    "count_sizes_twice": [0],
    "begin_where_the_disk_does": [19],
    "take_what_moves_for_copied": [19],
    "stay_switched_off": [2],
    "forget_what_is_given_up": [608, 559],
}


@pytest.mark.slow
@pytest.mark.parametrize("plant", planted_bugs.PLANTED, ids=lambda plant: plant.__name__)
def test_planted_bugs_are_found(
    plant: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    plant(monkeypatch)
    seeds = chain(FOUND_BY.get(plant.__name__, ()), range(SEEDS_MAX))
    assert any(not simulate(draw_plan(seed)).is_sound for seed in seeds), "the bug was not found"


def test_all_that_is_planted_was_found_once() -> None:
    assert FOUND_BY.keys() == {plant.__name__ for plant in planted_bugs.PLANTED}
    assert len(FOUND_BY) == 11


@pytest.mark.slow
@pytest.mark.parametrize("plant", planted_tier_bugs.PLANTED, ids=lambda plant: plant.__name__)
def test_bugs_planted_in_the_tier_are_found(
    plant: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    plant(monkeypatch)
    seeds = chain(FOUND_IN_TIER_BY[plant.__name__], range(SEEDS_MAX))
    plans = (draw_plan(seed, tiered=True) for seed in seeds)
    assert any(not simulate(plan).is_sound for plan in plans), "the bug was not found"
