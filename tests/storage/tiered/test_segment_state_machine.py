"""State machine of copies and deletions: every path through the table."""

from __future__ import annotations

import pytest

from odradek.storage.tiered.segment_metadata import SegmentState, is_valid_transition
from odradek.storage.tiered.segment_state_machine import (
    ENDS,
    NEXT_STEP,
    PUBLISHES,
    SegmentStateMachine,
    SegmentStep,
    StepOutcome,
)

DONE, FAILED, REFUSED = StepOutcome.DONE, StepOutcome.FAILED, StepOutcome.REFUSED


def walk(steps: SegmentStateMachine, advance: list[StepOutcome]) -> list[SegmentStep]:
    seen = [steps.step]
    for each in advance:
        steps.advance(each)
        seen.append(steps.step)
    return seen


def test_copy_is_published_before_and_after() -> None:
    """T-29: STARTED, the copy, FINISHED."""
    steps = SegmentStateMachine()
    assert walk(steps, [DONE, DONE, DONE]) == [
        SegmentStep.PUBLISH_COPY_STARTED,
        SegmentStep.COPY,
        SegmentStep.PUBLISH_COPY_FINISHED,
        SegmentStep.COPIED,
    ]
    assert steps.is_finished


@pytest.mark.parametrize("how", [FAILED, REFUSED])
def test_failed_copy_is_deleted(how: StepOutcome) -> None:
    """E15: a failed copy leaves nothing dangling."""
    assert walk(SegmentStateMachine(), [DONE, how, DONE, DONE, DONE])[2:] == [
        SegmentStep.PUBLISH_DELETE_STARTED,
        SegmentStep.DELETE,
        SegmentStep.PUBLISH_DELETE_FINISHED,
        SegmentStep.DELETED,
    ]


def test_copy_whose_deletion_started_is_deleted_again() -> None:
    """T-36: objects may have been written after that deletion."""
    assert walk(SegmentStateMachine(SegmentStep.PUBLISH_COPY_FINISHED), [REFUSED, DONE, DONE])[
        1:
    ] == [
        SegmentStep.DELETE,
        SegmentStep.PUBLISH_DELETE_FINISHED,
        SegmentStep.DELETED,
    ]


def test_finished_copy_is_published_until_result_is_known() -> None:
    """T-29: FINISHED may have been published, so the copy is never deleted."""
    steps = SegmentStateMachine(SegmentStep.PUBLISH_COPY_FINISHED)
    walk(steps, [FAILED, FAILED])
    assert steps.step is SegmentStep.PUBLISH_COPY_FINISHED
    steps.advance(DONE)
    assert steps.step is SegmentStep.COPIED


@pytest.mark.parametrize(
    "state", [SegmentState.COPY_SEGMENT_STARTED, SegmentState.COPY_SEGMENT_FINISHED]
)
def test_deletion_is_published_before_and_after(state: SegmentState) -> None:
    """T-36."""
    assert walk(SegmentStateMachine.to_delete(state), [DONE, DONE, DONE]) == [
        SegmentStep.PUBLISH_DELETE_STARTED,
        SegmentStep.DELETE,
        SegmentStep.PUBLISH_DELETE_FINISHED,
        SegmentStep.DELETED,
    ]


def test_started_deletion_continues() -> None:
    """T-36: DELETE_STARTED retried."""
    assert (
        SegmentStateMachine.to_delete(SegmentState.DELETE_SEGMENT_STARTED).step
        is SegmentStep.DELETE
    )


def test_every_path_ends_and_publishes_only_valid_transitions() -> None:
    """T-25."""
    seen: set[tuple[SegmentStep, SegmentState | None]] = set()
    todo: list[tuple[SegmentStep, SegmentState | None]] = [(SegmentStep.PUBLISH_COPY_STARTED, None)]
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
            assert is_valid_transition(state, published), (step, state)
        after = state if published is None else published
        for advance in StepOutcome:
            if (step, advance) in NEXT_STEP:
                # Refused: another broker had published the start of the deletion
                refused = advance is REFUSED and step in PUBLISHES
                then = SegmentState.DELETE_SEGMENT_STARTED if refused else after
                todo.append((NEXT_STEP[step, advance], then))
    assert (SegmentStep.COPIED, SegmentState.COPY_SEGMENT_FINISHED) in ends
    assert (SegmentStep.DELETED, SegmentState.DELETE_SEGMENT_FINISHED) in ends
    assert {step for step, _ in ends} == ENDS
