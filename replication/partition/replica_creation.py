"""Whether a replica that has no log here may be given an empty one, and where (KIP-858).

An empty log in place of a lost one is how acknowledged records disappear: the node would lead with it.
So the decision asks where the cluster knows the replica to be, `assigned`:

| replica | assigned to | a directory is offline | others in sync | |
|---|---|---|---|---|
| of a topic made in this run | a live directory | | | there |
| of a topic made in this run | anything else | | | in the best place |
| known before | anything | yes | | no: it may be in there |
| known before | a live directory | no | | there: it was never made |
| known before | none (unassigned, migrating, lost) | no | | in the best place |
| known before | a directory that is not here | no | yes | in the best place: it is copied anew |
| known before | a directory that is not here | no | no | no: nobody else has its records |

Kafka makes the log in the last case too, and leads with it from its next start on: a disk that was taken
out of `log.dirs` costs the partition. Here it stays offline until the directory is back or the topic is
deleted.
"""

from __future__ import annotations

from collections.abc import Collection
from uuid import UUID

from odradek.replication.controller.image import RESERVED_DIRECTORIES
from odradek.seams.values import value_class


@value_class
class ReplicaCreation:
    """`refusal` says why not; else the log goes to `directory`, or to the best one."""

    directory: UUID | None = None
    refusal: str | None = None


def decide_replica_creation(
    assigned: UUID,
    *,
    is_new: bool,
    live: Collection[UUID],
    any_offline: bool,
    others_in_sync: bool,
) -> ReplicaCreation:
    """See the table. `assigned` is what the image says, `live` the directories that are online."""
    if not is_new and any_offline:
        return ReplicaCreation(refusal="it may be in a log directory that is offline")
    if assigned in live:
        return ReplicaCreation(assigned)
    if is_new or others_in_sync or assigned.int < RESERVED_DIRECTORIES:
        return ReplicaCreation()
    return ReplicaCreation(
        refusal=f"it is in the log directory with the id {assigned}, which is none of log.dirs: "
        f"bring that one back, or delete the topic"
    )
