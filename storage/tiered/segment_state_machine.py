"""State machine for copying or deleting one remote log segment.

A copy publishes its start before it writes objects, so that every object belongs to a known segment
(T-29). Objects of a failed copy are deleted like those of an expired segment (T-36).

| step | success | failure |
|---|---|---|
| PUBLISH_COPY_STARTED | COPY | LEFT: nothing was copied; if the event was published, the expiration task deletes the segment |
| COPY | PUBLISH_COPY_FINISHED | PUBLISH_DELETE_STARTED: some objects may exist |
| PUBLISH_COPY_FINISHED | COPIED | the same step again, later, in another task: the event may have been published, and the copy is then valid |
| | | REFUSED because the segment is being deleted: DELETE again, for objects written after the deletion |
| | | GONE because this node has no replica any more: LEFT |
| PUBLISH_DELETE_STARTED | DELETE | LEFT |
| | | REFUSED for a copy that was never finished: DELETE, even if another broker deleted it or its partition |
| DELETE | PUBLISH_DELETE_FINISHED | LEFT |
| PUBLISH_DELETE_FINISHED | DELETED | LEFT |
| | | REFUSED, as above: DELETED |

A copy whose custom metadata is too large is REFUSED and then deleted. The expiration task handles
segments that are LEFT. A broker that loses leadership or its replica stops at any step and deletes
the copy that it started, because no other broker knows when the last object is written. Only a copy
that is being published as finished is still published.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping

from odradek.storage.tiered.segment_metadata import SegmentState


class SegmentStep(enum.Enum):
    """Next step of a copy or deletion; the last three are final."""

    PUBLISH_COPY_STARTED = "publish COPY_SEGMENT_STARTED"
    COPY = "copy"
    PUBLISH_COPY_FINISHED = "publish COPY_SEGMENT_FINISHED"
    PUBLISH_DELETE_STARTED = "publish DELETE_SEGMENT_STARTED"
    DELETE = "delete"
    PUBLISH_DELETE_FINISHED = "publish DELETE_SEGMENT_FINISHED"
    # Final steps
    COPIED = "copied"
    DELETED = "deleted"
    LEFT = "left"


class StepOutcome(enum.Enum):
    """Result of one step."""

    DONE = "done"
    FAILED = "failed"
    REFUSED = "refused"
    GONE = "gone"


_S, _C = SegmentStep, StepOutcome

NEXT_STEP: Mapping[tuple[SegmentStep, StepOutcome], SegmentStep] = {
    (_S.PUBLISH_COPY_STARTED, _C.DONE): _S.COPY,
    (_S.PUBLISH_COPY_STARTED, _C.FAILED): _S.LEFT,
    (_S.COPY, _C.DONE): _S.PUBLISH_COPY_FINISHED,
    (_S.COPY, _C.FAILED): _S.PUBLISH_DELETE_STARTED,
    (_S.COPY, _C.REFUSED): _S.PUBLISH_DELETE_STARTED,
    (_S.PUBLISH_COPY_FINISHED, _C.DONE): _S.COPIED,
    (_S.PUBLISH_COPY_FINISHED, _C.FAILED): _S.PUBLISH_COPY_FINISHED,
    (_S.PUBLISH_COPY_FINISHED, _C.REFUSED): _S.DELETE,
    (_S.PUBLISH_COPY_FINISHED, _C.GONE): _S.LEFT,
    (_S.PUBLISH_DELETE_STARTED, _C.DONE): _S.DELETE,
    (_S.PUBLISH_DELETE_STARTED, _C.FAILED): _S.LEFT,
    (_S.PUBLISH_DELETE_STARTED, _C.REFUSED): _S.DELETE,
    (_S.DELETE, _C.DONE): _S.PUBLISH_DELETE_FINISHED,
    (_S.DELETE, _C.FAILED): _S.LEFT,
    (_S.PUBLISH_DELETE_FINISHED, _C.DONE): _S.DELETED,
    (_S.PUBLISH_DELETE_FINISHED, _C.FAILED): _S.LEFT,
    (_S.PUBLISH_DELETE_FINISHED, _C.REFUSED): _S.DELETED,
}

ENDS = frozenset({_S.COPIED, _S.DELETED, _S.LEFT})

PUBLISHES: Mapping[SegmentStep, SegmentState] = {
    _S.PUBLISH_COPY_STARTED: SegmentState.COPY_SEGMENT_STARTED,
    _S.PUBLISH_COPY_FINISHED: SegmentState.COPY_SEGMENT_FINISHED,
    _S.PUBLISH_DELETE_STARTED: SegmentState.DELETE_SEGMENT_STARTED,
    _S.PUBLISH_DELETE_FINISHED: SegmentState.DELETE_SEGMENT_FINISHED,
}


class SegmentStateMachine:
    """Tracks the next step of one copy or deletion."""

    def __init__(self, step: SegmentStep = SegmentStep.PUBLISH_COPY_STARTED) -> None:
        self.step = step
        self.last: StepOutcome | None = None
        """Outcome of the previous step."""

    @classmethod
    def to_delete(cls, state: SegmentState) -> SegmentStateMachine:
        """State machine that deletes a segment in `state`; a deletion that has started is not
        published again."""
        begun = state is SegmentState.DELETE_SEGMENT_STARTED
        return cls(SegmentStep.DELETE if begun else SegmentStep.PUBLISH_DELETE_STARTED)

    @property
    def is_finished(self) -> bool:
        return self.step in ENDS

    def advance(self, outcome: StepOutcome) -> None:
        """Go to the step that follows this outcome."""
        self.step = NEXT_STEP[self.step, outcome]
        self.last = outcome
