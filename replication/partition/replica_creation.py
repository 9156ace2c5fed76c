"""Decision whether a replica without a log on this node gets an empty one, and where (KIP-858).

An empty log in place of a missing one loses acknowledged records: the node could become leader with
it. So the decision uses the log directory of the replica in the cluster metadata, `assigned`:

| replica | assigned to | a directory is offline | others in sync | log is created |
|---|---|---|---|---|
| of a topic created in this run | an online directory | | | there |
| of a topic created in this run | anything else | | | in the best directory |
| known before | anything | yes | | no: it may be in the offline directory |
| known before | an online directory | no | | there: it was never created |
| known before | none (unassigned, migrating, lost) | no | | in the best directory |
| known before | an unknown directory | no | yes | in the best directory: it is replicated again |
| known before | an unknown directory | no | no | no: no other in-sync replica has its records |

Kafka creates the log in the last case too, and may lead with it after the next restart: a disk that
was removed from `log.dirs` loses the partition. Here the replica stays offline until the directory
is back or the topic is deleted.
"""

from __future__ import annotations

from collections.abc import Collection
from uuid import UUID

from odradek.replication.controller.image import RESERVED_DIRECTORIES
from odradek.seams.values import value_class


@value_class
class ReplicaCreation:
    """Decision: the reason of a refusal, or the log directory (None: the best one)."""

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
    """Decide by the table. `assigned` is from the image; `live` are the online directories."""
    if not is_new and any_offline:
        return ReplicaCreation(refusal="it may be in a log directory that is offline")
    if assigned in live:
        return ReplicaCreation(assigned)
    if is_new or others_in_sync or assigned.int < RESERVED_DIRECTORIES:
        return ReplicaCreation()
    return ReplicaCreation(
        refusal=f"it is in the log directory with id {assigned}, which is not in log.dirs: "
        f"restore that directory, or delete the topic"
    )
