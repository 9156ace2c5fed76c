"""Where a partition's leader epochs ended, as its leader knows (KIP-101, KIP-320)."""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial

import trio

from odradek.client.consumer import TopicPartition
from odradek.client.errors import ClientError, check
from odradek.client.metadata import Cluster
from odradek.protocol.apis import OFFSET_FOR_LEADER_EPOCH
from odradek.protocol.errors import KafkaError
from odradek.seams.values import value_class

CONSUMER = -1
AT_ONCE = 32
"""Epochs that are asked for before the first of them is answered: a request has one of a partition."""


@value_class
class EpochEnd:
    """The latest epoch at or before the one asked for that the leader has records of, and the offset
    behind its last record; -1 for both if there is none."""

    epoch: int
    end_offset: int


async def epoch_ends(
    cluster: Cluster, where: TopicPartition, epochs: Iterable[int]
) -> dict[int, EpochEnd]:
    """By the epoch asked for. Repeated until a leader has answered; raises KafkaError or ClientError past
    the time-out."""

    async def ask(epoch: int) -> EpochEnd:
        leader = await cluster.node(await cluster.leader(*where))
        row = {"partition": where.partition, "current_leader_epoch": -1, "leader_epoch": epoch}
        respond = await leader.request(
            OFFSET_FOR_LEADER_EPOCH,
            {
                "replica_id": CONSUMER,
                "topics": [{"topic": where.topic, "partitions": [row]}],
            },
            timeout_s=cluster.timeout_s,
        )
        found = respond.topics[0].partitions[0]
        check(found.error_code, about=f"the epochs of {where}")
        return EpochEnd(found.leader_epoch, found.end_offset)

    found: dict[int, EpochEnd] = {}
    failures: list[KafkaError | ClientError] = []
    limit = trio.CapacityLimiter(AT_ONCE)

    async def look_up(epoch: int) -> None:
        async with limit:
            if failures:
                return
            try:
                found[epoch] = await cluster.retrying(partial(ask, epoch))
            except (KafkaError, ClientError) as error:
                failures.append(error)

    async with trio.open_nursery() as nursery:
        for epoch in epochs:
            nursery.start_soon(look_up, epoch)
    if failures:
        raise failures[0]
    return found
