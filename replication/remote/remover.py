"""What is done to a deleted partition's segments in the remote tier, step by step (T-27, T-51).

    (none) → MARK → START → REMOVE_SEGMENTS → FINISH

| its deletion is | segments are left | step |
|---|---|---|
| not marked | either | MARK |
| DELETE_PARTITION_MARKED | either | START |
| DELETE_PARTITION_STARTED | yes | REMOVE_SEGMENTS |
| DELETE_PARTITION_STARTED | no | FINISH |
| DELETE_PARTITION_FINISHED | yes | REMOVE_SEGMENTS: somebody who had not heard of it copied one more |
| DELETE_PARTITION_FINISHED | no | FINISH, again: it was, and is over when the census has it no more |

Where a removal stands is read from the metadata topic alone, so that whoever comes after a crash or a
change of leader goes on where the one before stopped; two who remove at once publish the same states,
and each state may follow itself. A segment is removed as one that has expired (`segment_steps.py`).

KIP-405 has the controller publish the mark. Here it is the remover, on the leader of the metadata
partition, as soon as it sees that the cluster has no such topic: nothing is lost if nobody did at the
time. (Apache Kafka 4.x publishes no such records, but reads them.)
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from typing import Final

from odradek.storage.tiered.metadata import PartitionDeleteState

_P = PartitionDeleteState


class Removal(Enum):
    """The next step."""

    MARK = "publish DELETE_PARTITION_MARKED"
    START = "publish DELETE_PARTITION_STARTED"
    REMOVE_SEGMENTS = "remove its segments"
    FINISH = "publish DELETE_PARTITION_FINISHED"


STEPS: Final[Mapping[tuple[PartitionDeleteState | None, bool], Removal]] = {
    (None, True): Removal.MARK,
    (None, False): Removal.MARK,
    (_P.DELETE_PARTITION_MARKED, True): Removal.START,
    (_P.DELETE_PARTITION_MARKED, False): Removal.START,
    (_P.DELETE_PARTITION_STARTED, True): Removal.REMOVE_SEGMENTS,
    (_P.DELETE_PARTITION_STARTED, False): Removal.FINISH,
    (_P.DELETE_PARTITION_FINISHED, True): Removal.REMOVE_SEGMENTS,
    (_P.DELETE_PARTITION_FINISHED, False): Removal.FINISH,
}
"""By the state of the deletion, and whether segments are left."""

PUBLISHES: Final[Mapping[Removal, PartitionDeleteState]] = {
    Removal.MARK: _P.DELETE_PARTITION_MARKED,
    Removal.START: _P.DELETE_PARTITION_STARTED,
    Removal.FINISH: _P.DELETE_PARTITION_FINISHED,
}


def next_step(state: PartitionDeleteState | None, *, segments_left: bool) -> Removal:
    return STEPS[state, segments_left]
