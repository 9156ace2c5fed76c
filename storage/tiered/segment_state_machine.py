"""What is done to one segment of the remote tier, step by step: a copy, or a deletion.

A copy publishes before it puts objects, so that none is there that nobody knows of (T-29); what may
be there after a failure is deleted again, in the same way as a segment that has expired (T-36).

| step | done | failed |
|---|---|---|
| PUBLISH_COPY_STARTED | COPY | LEFT: nothing was copied; if it was published all the same, expiry finds it |
| COPY | PUBLISH_COPY_FINISHED | PUBLISH_DELETE_STARTED: parts of it may be there |
| PUBLISH_COPY_FINISHED | COPIED | the same again, later, by another task: it may have been published, and then counts |
| | | REFUSED, since it is being deleted by now: DELETE, again, for its objects may have come after that |
| | | GONE, since this node is no replica any more: LEFT |
| PUBLISH_DELETE_STARTED | DELETE | LEFT |
| | | REFUSED, of a copy that never counted: DELETE, whoever else has deleted it, or the partition |
| DELETE | PUBLISH_DELETE_FINISHED | LEFT |
| PUBLISH_DELETE_FINISHED | DELETED | LEFT |
| | | REFUSED, as above: DELETED |

A copy whose custom metadata is too large is REFUSED as if it had failed: it is deleted. What is LEFT,
expiry comes back to. Whoever loses the leadership, or its partition, stops wherever it is, and deletes
what it has begun to copy, since nobody else knows when its last object comes; only what is being
published as copied is published all the same.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping

from odradek.storage.tiered.metadata import SegmentState


class SegmentStep(enum.Enum):
    PUBLISH_COPY_STARTED = "publish COPY_SEGMENT_STARTED"
    COPY = "copy"
    PUBLISH_COPY_FINISHED = "publish COPY_SEGMENT_FINISHED"
    PUBLISH_DELETE_STARTED = "publish DELETE_SEGMENT_STARTED"
    DELETE = "delete"
    PUBLISH_DELETE_FINISHED = "publish DELETE_SEGMENT_FINISHED"
    # The ends
    COPIED = "copied"
    DELETED = "deleted"
    LEFT = "left"


class StepOutcome(enum.Enum):
    """What came of a step."""

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
    """See the module: `step` is what is to be done now."""

    def __init__(self, step: SegmentStep = SegmentStep.PUBLISH_COPY_STARTED) -> None:
        self.step = step
        self.last: StepOutcome | None = None
        """What came of the step before."""

    @classmethod
    def to_delete(cls, state: SegmentState) -> SegmentStateMachine:
        """Of a segment in `state`; one whose deletion has begun is not announced again."""
        begun = state is SegmentState.DELETE_SEGMENT_STARTED
        return cls(SegmentStep.DELETE if begun else SegmentStep.PUBLISH_DELETE_STARTED)

    @property
    def is_finished(self) -> bool:
        return self.step in ENDS

    def advance(self, what: StepOutcome) -> None:
        """The step was done, or not."""
        self.step = NEXT_STEP[self.step, what]
        self.last = what
