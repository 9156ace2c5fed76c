"""Rack-aware selection of the replica that a consumer reads from (KIP-392), by the leader's
follower progress."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from odradek.broker.requests.context import RequestContext
from odradek.replication.controller.image import BrokerImage
from odradek.replication.partition.leader_role import LeaderRole
from odradek.replication.partition.partition import Partition
from odradek.seams.values import value_class


@value_class
class ReadReplica:
    """In-sync follower that has the fetch offset; `rack` is None if its broker has none."""

    node_id: int
    rack: str | None
    end_offset: int
    caught_up_ms_ago: int


def choose_read_replica(
    rack: str, leader_rack: str | None, followers: Iterable[ReadReplica]
) -> int | None:
    """Return the follower in `rack` with the highest end offset, and among equals the one that
    caught up last.

    None: the leader, because it is in that rack, or no follower is.
    """
    if not rack or rack == leader_rack:
        return None
    near = [each for each in followers if each.rack == rack]
    if not near:
        return None
    best = max(near, key=lambda each: (each.end_offset, -each.caught_up_ms_ago, each.node_id))
    return best.node_id


def nearest_replica(
    partition: Partition, offset: int, rack: str, ctx: RequestContext
) -> int | None:
    """Return the follower that a consumer in `rack` should fetch `offset` from; None: this leader."""
    leader_role = partition.leader_role
    if leader_role is None:
        return None
    own = _reachable(ctx, partition.leader)
    return choose_read_replica(
        rack, None if own is None else own.rack, _candidates(leader_role, offset, ctx)
    )


def _candidates(leader_role: LeaderRole, offset: int, ctx: RequestContext) -> Iterator[ReadReplica]:
    """Yield the in-sync followers that have the offset. A lagging one could delay its consumers
    forever."""
    leader = leader_role.state
    for follower, progress in leader.followers.items():
        broker = _reachable(ctx, follower)
        if (
            broker is not None
            and follower in leader.isr.committed
            and progress.start_offset <= offset <= progress.end_offset
        ):
            yield ReadReplica(
                follower, broker.rack, progress.end_offset, leader_role.caught_up_ms_ago(follower)
            )


def _reachable(ctx: RequestContext, node_id: int) -> BrokerImage | None:
    """Return the broker if it is unfenced and has the client's listener."""
    broker = ctx.services.metadata.image.brokers.get(node_id)
    if broker is None or broker.fenced or broker.endpoint(ctx.endpoint.name) is None:
        return None
    return broker
