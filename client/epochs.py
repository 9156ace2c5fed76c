"""End offsets of leader epochs, from OffsetForLeaderEpoch (KIP-101, KIP-320)."""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial

import trio

from odradek.client.errors import ClientError, check
from odradek.client.metadata import Cluster
from odradek.protocol.apis import OFFSET_FOR_LEADER_EPOCH
from odradek.protocol.errors import KafkaError
from odradek.protocol.topics import TopicPartition
from odradek.seams.values import value_class

CONSUMER = -1
CONCURRENT_REQUESTS = 32
"""Limit of concurrent requests; each has one epoch of a partition."""


@value_class
class EpochEnd:
    """Largest epoch up to the requested one that has records, and its end offset; -1 for both if none."""

    epoch: int
    end_offset: int


async def epoch_ends(
    cluster: Cluster, where: TopicPartition, epochs: Iterable[int]
) -> dict[int, EpochEnd]:
    """Look up the end of each epoch, with retries.

    Raises KafkaError or ClientError after the timeout of the cluster.
    """
    found: dict[int, EpochEnd] = {}
    failures: list[KafkaError | ClientError] = []
    limit = trio.CapacityLimiter(CONCURRENT_REQUESTS)

    async def look_up(epoch: int) -> None:
        async with limit:
            if failures:
                return
            try:
                found[epoch] = await cluster.retrying(partial(_request_end, cluster, where, epoch))
            except (KafkaError, ClientError) as error:
                failures.append(error)

    async with trio.open_nursery() as nursery:
        for epoch in epochs:
            nursery.start_soon(look_up, epoch)
    if failures:
        raise failures[0]
    return found


async def _request_end(cluster: Cluster, where: TopicPartition, epoch: int) -> EpochEnd:
    leader = await cluster.node(await cluster.leader(*where))
    row = {"partition": where.partition, "current_leader_epoch": -1, "leader_epoch": epoch}
    response = await leader.request(
        OFFSET_FOR_LEADER_EPOCH,
        {"replica_id": CONSUMER, "topics": [{"topic": where.topic, "partitions": [row]}]},
        timeout_s=cluster.timeout_s,
    )
    found = response.topics[0].partitions[0]
    check(found.error_code, about=f"the epochs of {where}")
    return EpochEnd(found.leader_epoch, found.end_offset)
