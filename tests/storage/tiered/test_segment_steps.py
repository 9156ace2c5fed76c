"""Copies and deletions step by step: every way through the table."""

from __future__ import annotations

import pytest

from odradek.storage.tiered.metadata import SegmentState, may_follow
from odradek.storage.tiered.segment_steps import (
    ENDS,
    FOLLOWS,
    PUBLISHES,
    Came,
    SegmentSteps,
    Step,
)

DONE, FAILED, REFUSED = Came.DONE, Came.FAILED, Came.REFUSED


def walk(steps: SegmentSteps, came: list[Came]) -> list[Step]:
    seen = [steps.step]
    for each in came:
        steps.came(each)
        seen.append(steps.step)
    return seen


def test_a_copy_is_published_before_and_after() -> None:
    """T-29: STARTED, the copy, FINISHED."""
    steps = SegmentSteps()
    assert walk(steps, [DONE, DONE, DONE]) == [
        Step.PUBLISH_COPY_STARTED,
        Step.COPY,
        Step.PUBLISH_COPY_FINISHED,
        Step.COPIED,
    ]
    assert steps.is_over


@pytest.mark.parametrize("how", [FAILED, REFUSED])
def test_a_failed_copy_is_deleted(how: Came) -> None:
    """E15: a failed copy leaves nothing dangling."""
    assert walk(SegmentSteps(), [DONE, how, DONE, DONE, DONE])[2:] == [
        Step.PUBLISH_DELETE_STARTED,
        Step.DELETE,
        Step.PUBLISH_DELETE_FINISHED,
        Step.DELETED,
    ]


def test_a_copy_that_others_have_begun_to_delete_is_deleted_again() -> None:
    """T-36: its objects may have come after those were deleted."""
    assert walk(SegmentSteps(Step.PUBLISH_COPY_FINISHED), [REFUSED, DONE, DONE])[1:] == [
        Step.DELETE,
        Step.PUBLISH_DELETE_FINISHED,
        Step.DELETED,
    ]


def test_a_copy_that_is_done_is_published_until_it_is_known() -> None:
    """T-29: FINISHED may have been published; the copy is never deleted for that."""
    steps = SegmentSteps(Step.PUBLISH_COPY_FINISHED)
    walk(steps, [FAILED, FAILED])
    assert steps.step is Step.PUBLISH_COPY_FINISHED
    steps.came(DONE)
    assert steps.step is Step.COPIED


@pytest.mark.parametrize(
    "state", [SegmentState.COPY_SEGMENT_STARTED, SegmentState.COPY_SEGMENT_FINISHED]
)
def test_a_deletion_is_published_before_and_after(state: SegmentState) -> None:
    """T-36."""
    assert walk(SegmentSteps.to_delete(state), [DONE, DONE, DONE]) == [
        Step.PUBLISH_DELETE_STARTED,
        Step.DELETE,
        Step.PUBLISH_DELETE_FINISHED,
        Step.DELETED,
    ]


def test_a_deletion_that_has_begun_goes_on() -> None:
    """T-36: DELETE_STARTED retried."""
    assert SegmentSteps.to_delete(SegmentState.DELETE_SEGMENT_STARTED).step is Step.DELETE


def test_every_way_ends_and_publishes_only_what_may_follow() -> None:
    """T-25: no way through the table publishes a state that cannot follow the one before."""
    seen: set[tuple[Step, SegmentState | None]] = set()
    todo: list[tuple[Step, SegmentState | None]] = [(Step.PUBLISH_COPY_STARTED, None)]
    ends = set()
    while todo:
        step, state = todo.pop()
        if (step, state) in seen:
            continue
        seen.add((step, state))
        if step in ENDS:
            ends.add((step, state))
            continue
        published = PUBLISHES.get(step)
        if published is not None:
            assert may_follow(state, published), (step, state)
        after = state if published is None else published
        for came in Came:
            if (step, came) in FOLLOWS:
                # Refused: somebody else had published that it is being deleted
                refused = came is REFUSED and step in PUBLISHES
                then = SegmentState.DELETE_SEGMENT_STARTED if refused else after
                todo.append((FOLLOWS[step, came], then))
    assert (Step.COPIED, SegmentState.COPY_SEGMENT_FINISHED) in ends
    assert (Step.DELETED, SegmentState.DELETE_SEGMENT_FINISHED) in ends
    assert {step for step, _ in ends} == ENDS
