"""Which replica a consumer should read from (KIP-392): the nearest one, if that is not the leader.

A decision without I/O, as Kafka's RackAwareReplicaSelector makes it.
"""

from __future__ import annotations

from collections.abc import Iterable

from odradek.seams.values import value_class


@value_class
class ReadReplica:
    """A follower that is in sync and has the offset asked for; `rack` None where it tells none."""

    node_id: int
    rack: str | None
    end_offset: int
    caught_up_ms_ago: int


def choose_read_replica(
    rack: str, leader_rack: str | None, followers: Iterable[ReadReplica]
) -> int | None:
    """The follower for a consumer in `rack`: of those there the one that has most, and has had it most
    lately. None: the leader, for it is there too, or nobody is."""
    if not rack or rack == leader_rack:
        return None
    near = [each for each in followers if each.rack == rack]
    if not near:
        return None
    best = max(near, key=lambda each: (each.end_offset, -each.caught_up_ms_ago, each.node_id))
    return best.node_id
