"""Current leader and node endpoints in Produce and Fetch responses with a leader error (KIP-951)."""

from __future__ import annotations

from collections.abc import Iterable
from uuid import UUID

from odradek.broker.requests.context import RequestContext
from odradek.protocol.leader_tags import NodeEndpoint

UNKNOWN = (-1, -1)


def current_leader(
    ctx: RequestContext, topic: str | None, topic_id: UUID | None, index: int
) -> tuple[int, int]:
    """Return (leader id, leader epoch) of the local replica, or of the image; (-1, -1) if unknown.

    Partitions of diskless topics have no leader.
    """
    partition = ctx.services.partitions.find(topic, topic_id, index)
    if partition is not None:
        return partition.leader, partition.leader_epoch
    image = ctx.services.metadata.image
    found = image.topics_by_name.get(topic or "")
    if topic_id is not None:
        found = image.topics_by_id.get(topic_id)
    known = None if found is None else found.partitions.get(index)
    if known is None or known.is_diskless:
        return UNKNOWN
    return known.leader, known.leader_epoch


def endpoints_of(ctx: RequestContext, brokers: Iterable[int]) -> list[NodeEndpoint]:
    """Return the endpoints of the unfenced brokers among `brokers`, at the client's listener, each
    once."""
    known = ctx.services.metadata.image.brokers
    endpoints = []
    for node_id in dict.fromkeys(brokers):
        broker = known.get(node_id)
        if broker is None or broker.fenced:
            continue
        endpoint = broker.endpoint(ctx.endpoint.name)
        if endpoint is not None:
            endpoints.append(
                NodeEndpoint(
                    node_id=node_id, host=endpoint.host, port=endpoint.port, rack=broker.rack
                )
            )
    return endpoints
