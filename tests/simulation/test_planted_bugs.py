"""The simulator finds planted bugs, each by an anomaly of a kind that the bug causes.

There are two bugs each of elections, truncation, the ISR, log recovery and reassignment, one of a missed leader
epoch, one of a recreated topic, and bugs of tiered storage, of disabling it, of diskless topics, and of group
coordinators.

The run of a seed changes with the code. If the listed seed does not find its bug any more, other seeds are tried,
and a warning names the first one that finds it.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from itertools import chain, count, islice

import pytest

from odradek.testing.simulation.plan import FaultKind, draw_plan
from odradek.testing.simulation.run import simulate
from tests.simulation import (
    planted_bugs,
    planted_disablement_bugs,
    planted_diskless_bugs,
    planted_group_bugs,
    planted_tier_bugs,
)

PLANS_MAX = 300
"""The number of plans that are tried before the test fails."""

LOST = {"lost committed records", "lost write"}
"""Kinds of anomalies of lost acknowledged records."""
DIVERGED = {"lost committed records", "different records"}
"""Kinds of anomalies of replicas that differ."""
NOT_RECOVERED = {"not recovered", "not acknowledged"}
"""Kinds of anomalies of a cluster that does not recover after the faults."""

FOUND_BY: Mapping[str, tuple[int, set[str]]] = {
    "grant_two_votes_per_epoch": (6, {"two leaders"}),
    "skip_log_comparison_of_candidates": (1, LOST),
    "skip_follower_truncation": (1, DIVERGED | NOT_RECOVERED),
    "omit_diverging_epoch": (1, DIVERGED | NOT_RECOVERED),
    "advance_high_watermark_without_isr": (1, LOST),
    "overestimate_follower_offsets": (1, LOST),
    "skip_crc_checks_in_log_recovery": (43, DIVERGED | {"node failed", "logged error"}),
    "assume_clean_shutdown": (
        169,
        DIVERGED | {"lost write", "aborted read", "node failed"},
    ),
    "complete_reassignment_before_catch_up": (3, LOST),
    "keep_removed_replicas_in_isr": (0, {"not recovered"}),
    "keep_follower_state_across_missed_epoch": (631, LOST | {"aborted read"}),
    "ignore_topic_ids_of_logs": (102, {"records of another topic"}),
}
FOUND_IN_TIER_BY: Mapping[str, tuple[int, set[str]]] = {
    "delete_local_segments_before_copy": (
        1,
        NOT_RECOVERED | {"timeout", "lost write", "not copied"},
    ),
    "keep_dangling_segments": (45, {"not finished"}),
    "skip_verification_after_put": (36, {"wrong object size"}),
    "count_remote_bytes_twice": (1, {"not expired"}),
    "start_log_at_local_start_after_move": (43, {"timeout", "lost write", "unread"}),
    "overestimate_copied_offset_after_move": (43, {"timeout", "lost write", "unread"}),
    "ignore_enabled_copies": (4, {"not copied"}),
    "forget_abandoned_copies": (608, {"not finished"}),
    "ignore_topics_deleted_before_election": (2, {"not deleted"}),
}
FOUND_WHILE_DISABLED_BY: Mapping[str, tuple[int, set[str]]] = {
    "count_responses_of_one_broker_twice": (1, {"disabled too early"}),
    "publish_copies_of_earlier_tiered_epochs": (2478, {"copy of an earlier tiered epoch"}),
    "delete_before_the_log_start_moves": (1, {"deleted above the log start"}),
}
FOUND_IN_DISKLESS_BY: Mapping[str, tuple[int, set[str]]] = {
    "respond_before_the_high_watermark": (3, {"lost write"}),
    "ignore_pending_operations": (1, {"lost write"}),
    "delete_files_without_hand_over": (1, {"live object deleted"}),
    "ignore_grace_period_of_files": (1, {"deleted too early"}),
    "store_applied_offset_before_records": (3, {"different states"}),
    "forget_producers_at_an_election": (0, {"duplicate"}),
}
FOUND_BY_GROUP: Mapping[str, tuple[int, set[str]]] = {
    "skip_loading_of_committed_offsets": (2, {"read again", "wrong committed offset"}),
    "skip_fencing_of_offset_commits": (44, {"partition of another member", "read again"}),
    "assign_partitions_before_revocation": (2, {"partition of another member", "read again"}),
}
NEEDS: Mapping[str, FaultKind] = {
    "keep_follower_state_across_missed_epoch": FaultKind.MISSED_LEADER_EPOCH,
    "ignore_topic_ids_of_logs": FaultKind.TOPIC_RECREATED,
}
"""Kinds of faults that a plan must have for its bug."""


def find(
    found_by: tuple[int, set[str]],
    *,
    tiered: bool = False,
    disables_tiering: bool = False,
    diskless: bool = False,
    needs: FaultKind | None = None,
) -> None:
    """Fail unless the listed seed or another one finds the bug by an expected kind of anomaly."""
    named, kinds = found_by
    drawn = (
        draw_plan(seed, tiered=tiered, disables_tiering=disables_tiering, diskless=diskless)
        for seed in chain([named], count())
    )
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


def test_planted_bugs_all_have_expected_anomalies() -> None:
    assert FOUND_BY.keys() == {plant.__name__ for plant in planted_bugs.PLANTED}
    assert FOUND_IN_TIER_BY.keys() == {plant.__name__ for plant in planted_tier_bugs.PLANTED}
    assert FOUND_WHILE_DISABLED_BY.keys() == {
        plant.__name__ for plant in planted_disablement_bugs.PLANTED
    }
    assert FOUND_IN_DISKLESS_BY.keys() == {
        plant.__name__ for plant in planted_diskless_bugs.PLANTED
    }
    assert FOUND_BY_GROUP.keys() == {plant.__name__ for plant in planted_group_bugs.PLANTED}
    assert len(FOUND_BY) == 12


@pytest.mark.parametrize(
    "plant",
    [
        *planted_bugs.PLANTED,
        *planted_tier_bugs.PLANTED,
        *planted_disablement_bugs.PLANTED,
        *planted_diskless_bugs.PLANTED,
        *planted_group_bugs.PLANTED,
    ],
    ids=lambda plant: plant.__name__,
)
def test_planted_bugs_replace_existing_attributes(
    plant: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    plant(monkeypatch)  # raises AttributeError after a rename in the product


@pytest.mark.slow
@pytest.mark.parametrize("plant", planted_tier_bugs.PLANTED, ids=lambda plant: plant.__name__)
def test_planted_bugs_of_tiered_storage_are_found(
    plant: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    plant(monkeypatch)
    find(FOUND_IN_TIER_BY[plant.__name__], tiered=True)


@pytest.mark.slow
@pytest.mark.parametrize(
    "plant", planted_disablement_bugs.PLANTED, ids=lambda plant: plant.__name__
)
def test_planted_bugs_of_tiering_disablement_are_found(
    plant: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    plant(monkeypatch)
    find(FOUND_WHILE_DISABLED_BY[plant.__name__], disables_tiering=True)


@pytest.mark.slow
@pytest.mark.parametrize("plant", planted_diskless_bugs.PLANTED, ids=lambda plant: plant.__name__)
def test_planted_bugs_of_diskless_topics_are_found(
    plant: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    plant(monkeypatch)
    find(FOUND_IN_DISKLESS_BY[plant.__name__], diskless=True)


@pytest.mark.slow
@pytest.mark.parametrize("plant", planted_group_bugs.PLANTED, ids=lambda plant: plant.__name__)
def test_planted_bugs_of_group_coordinators_are_found(
    plant: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    plant(monkeypatch)
    find(FOUND_BY_GROUP[plant.__name__])
