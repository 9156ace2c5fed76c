"""Which replica a consumer is sent to (KIP-392), from what the leader knows of its followers."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from odradek.broker.requests.context import RequestContext
from odradek.replication.controller.image import BrokerImage
from odradek.replication.partition.leader_role import LeaderRole
from odradek.replication.partition.partition import Partition
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


def nearest_replica(
    partition: Partition, offset: int, rack: str, ctx: RequestContext
) -> int | None:
    """The follower that a consumer in `rack` should fetch `offset` from; None: this leader."""
    leader_role = partition.leader_role
    if leader_role is None:
        return None
    own = _reachable(ctx, partition.leader)
    return choose_read_replica(
        rack, None if own is None else own.rack, _candidates(leader_role, offset, ctx)
    )


def _candidates(leader_role: LeaderRole, offset: int, ctx: RequestContext) -> Iterator[ReadReplica]:
    """The followers in sync that have the offset: one that lags might lag for ever, and its consumers
    with it."""
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
    """The broker, if it is up and at the listener that the client came by."""
    broker = ctx.services.metadata.image.brokers.get(node_id)
    if broker is None or broker.fenced or broker.endpoint(ctx.endpoint.name) is None:
        return None
    return broker
