"""The simulated cluster finds bugs that were put in on purpose: two of each of election, truncation, the
in-sync set, recovery and reassignment, one of a missed epoch and one of a topic made anew, and those of the
tier and of group coordinators; and it finds what each of them does, by an anomaly of a kind that says so.

What a seed does changes with the code: where the one that is named does not find its bug any more, others are
tried, and who does is named in a warning.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from itertools import chain, count, islice

import pytest

from odradek.testing.simulation.plan import FaultKind, draw_plan
from odradek.testing.simulation.run import simulate
from tests.simulation import planted_bugs, planted_group_bugs, planted_tier_bugs

PLANS_MAX = 300
"""So many are tried before it is said that none finds it."""

LOST = {"committed lost", "lost write"}
"""What was acknowledged is not there."""
PARTED = {"committed lost", "other records"}
"""Replicas differ where they must not."""
LATE = {"not healed", "not acknowledged"}
"""It does not become whole, or does not serve, once no problems found."""

FOUND_BY: Mapping[str, tuple[int, set[str]]] = {
    "vote_twice": (6, {"two leaders"}),
    "elect_who_lacks_records": (1, LOST),
    "keep_what_the_leader_has_not": (1, PARTED | LATE),
    "tell_nobody_where_logs_part": (1, PARTED | LATE),
    "acknowledge_what_the_leader_has": (1, LOST),
    "count_what_is_on_its_way": (1, LOST),
    "recover_what_is_broken": (43, PARTED | {"node failed", "an error of its own"}),
    "take_every_stop_for_a_clean_one": (
        169,
        PARTED | {"lost write", "aborted read", "node failed"},
    ),
    "move_before_it_is_copied": (3, LOST),
    "stay_in_sync_after_moving_away": (0, {"not healed"}),
    "know_followers_across_a_missed_epoch": (631, LOST | {"aborted read"}),
    "know_logs_by_their_names": (102, {"another topic's"}),
}
FOUND_IN_TIER_BY: Mapping[str, tuple[int, set[str]]] = {
    "let_go_of_what_was_not_copied": (1, LATE | {"hangs", "lost write", "not copied"}),
    "leave_what_others_began": (11, {"not finished"}),
    "take_the_store_at_its_word": (36, {"other object"}),
    "count_sizes_twice": (1, {"not let go"}),
    "begin_where_the_disk_does": (43, {"hangs", "lost write", "unseen"}),
    "take_what_moves_for_copied": (43, {"hangs", "lost write", "unseen"}),
    "stay_switched_off": (4, {"not copied"}),
    "forget_what_is_given_up": (608, {"not finished"}),
    "remove_only_what_is_heard_of": (2, {"not deleted"}),
}
FOUND_BY_GROUP: Mapping[str, tuple[int, set[str]]] = {
    "forget_offsets_of_the_last_coordinator": (2, {"read again", "group offset"}),
    "take_commits_of_whoever_comes": (44, {"another member's", "read again"}),
    "hand_on_what_nobody_let_go_of": (2, {"another member's", "read again"}),
}
NEEDS: Mapping[str, FaultKind] = {
    "know_followers_across_a_missed_epoch": FaultKind.MISSED_LEADER_EPOCH,
    "know_logs_by_their_names": FaultKind.TOPIC_RECREATED,
}
"""Plans without it are not tried."""


def find(
    found_by: tuple[int, set[str]], *, tiered: bool = False, needs: FaultKind | None = None
) -> None:
    """That it is found by what it does, at once or by another seed."""
    named, kinds = found_by
    drawn = (draw_plan(seed, tiered=tiered) for seed in chain([named], count()))
    plans = (plan for plan in drawn if needs in (None, *(fault.kind for fault in plan.faults)))
    for plan in islice(plans, PLANS_MAX):
        if kinds & {each.kind for each in simulate(plan).anomalies}:
            break
    else:
        pytest.fail(f"neither seed {named} nor those up to {plan.seed} find any of {sorted(kinds)}")
    if plan.seed != named:
        warnings.warn(f"seed {named} does not find it any more, {plan.seed} does", stacklevel=2)


@pytest.mark.slow
@pytest.mark.parametrize("plant", planted_bugs.PLANTED, ids=lambda plant: plant.__name__)
def test_planted_bugs_are_found(
    plant: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    plant(monkeypatch)
    find(FOUND_BY[plant.__name__], needs=NEEDS.get(plant.__name__))


def test_all_that_is_planted_was_found_once() -> None:
    assert FOUND_BY.keys() == {plant.__name__ for plant in planted_bugs.PLANTED}
    assert FOUND_IN_TIER_BY.keys() == {plant.__name__ for plant in planted_tier_bugs.PLANTED}
    assert FOUND_BY_GROUP.keys() == {plant.__name__ for plant in planted_group_bugs.PLANTED}
    assert len(FOUND_BY) == 12


@pytest.mark.slow
@pytest.mark.parametrize("plant", planted_tier_bugs.PLANTED, ids=lambda plant: plant.__name__)
def test_bugs_planted_in_the_tier_are_found(
    plant: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    plant(monkeypatch)
    find(FOUND_IN_TIER_BY[plant.__name__], tiered=True)


@pytest.mark.slow
@pytest.mark.parametrize("plant", planted_group_bugs.PLANTED, ids=lambda plant: plant.__name__)
def test_bugs_planted_in_the_group_coordinators_are_found(
    plant: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    plant(monkeypatch)
    find(FOUND_BY_GROUP[plant.__name__])
