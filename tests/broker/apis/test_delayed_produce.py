"""A produce with acks=all, while the in-sync replicas have less than the leader."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Any, cast
from uuid import UUID

import pytest
import trio

from odradek.broker.apis.produce import Topics, produce
from odradek.broker.requests.context import RequestContext
from odradek.protocol import apis
from odradek.protocol.errors import ErrorCode
from odradek.protocol.produce_request_reader import ProduceRequest, ProduceTopic
from odradek.replication.controller.image import PartitionImage
from odradek.replication.partition.partition import Partition
from odradek.seams.network import Address
from odradek.testing import Broker
from tests.support.brokers import broker_fixture
from tests.support.produce_requests import produce_batch
from tests.support.records import batch

TIMEOUT_SECONDS = 20.0


broker = broker_fixture(scope="function", topics={"t": 1})


def in_sync(partition: Partition, *replicas: int, leader: int = -1, leader_epoch: int = -1) -> None:
    """The cluster's word on who is in sync, and who leads: the same as before unless it is said."""
    directories = tuple(UUID(int=1000 + replica) for replica in replicas)
    leader = partition.leader if leader < 0 else leader
    leader_epoch = partition.leader_epoch if leader_epoch < 0 else leader_epoch
    partition.update(PartitionImage(replicas, directories, replicas, leader, leader_epoch, 0))


async def produce_to_two(
    broker: Broker, timeout_ms: int, flush: Callable[[Partition], Awaitable[None]]
) -> Topics:
    """The answer of a partition with a second replica that has nothing yet; `flush` is what happens
    while the answers before this one are sent."""
    partition = await broker.node.partitions.get("t", None, 0)
    in_sync(partition, partition.leader, partition.leader + 1)

    async def flush_responses() -> None:
        await flush(partition)

    ctx = RequestContext(
        broker.node.services,
        apis.PRODUCE,
        9,
        1,
        "test",
        cast(Any, None),
        Address("127.0.0.1", 1),
        flush_responses,
    )
    topic = ProduceTopic("t", None, [(0, memoryview(bytearray(batch())))])
    with trio.fail_after(TIMEOUT_SECONDS):
        response = await produce(ProduceRequest(None, -1, timeout_ms, [topic]), ctx)
    assert response is not None
    return response.topics


def too_few_in_sync(broker: Broker) -> None:
    """Of two replicas one is, and that is not enough any more."""

    async def one_of_two() -> None:
        partition = await broker.node.partitions.get("t", None, 0)
        log, me = partition.log, partition.leader
        log.update_config(replace(log.config, min_insync_replicas=2))
        both, directories = (me, me + 1), (UUID(int=1001), UUID(int=1002))
        epoch = partition.leader_epoch
        partition.update(PartitionImage(both, directories, (me,), me, epoch, 0))

    broker._call(one_of_two)


def test_what_is_replicated_while_earlier_answers_are_sent_is_not_waited_for(
    broker: Broker,
) -> None:
    async def alone_again(partition: Partition) -> None:
        in_sync(partition, partition.leader)

    async def run() -> Topics:
        return await produce_to_two(broker, int(4000 * TIMEOUT_SECONDS), alone_again)

    ((_, _, (outcome,)),) = broker._call(run)
    assert outcome.error_code == ErrorCode.none
    assert outcome.base_offset == 0


@pytest.mark.parametrize("timeout_ms", [0, -1, -(2**31)])
def test_without_time_the_answer_is_that_it_is_up(broker: Broker, timeout_ms: int) -> None:
    async def nothing(partition: Partition) -> None:
        pass

    async def run() -> Topics:
        return await produce_to_two(broker, timeout_ms, nothing)

    ((_, _, (outcome,)),) = broker._call(run)
    assert outcome.error_code == ErrorCode.request_timed_out


def test_who_has_ceased_to_lead_acknowledges_nothing(broker: Broker) -> None:
    """Though it leads again, and the offset is below the high watermark: it may be another record."""

    async def deposed_and_elected(partition: Partition) -> None:
        me, epoch = partition.leader, partition.leader_epoch
        in_sync(partition, me, me + 1, leader=me + 1, leader_epoch=epoch + 1)
        in_sync(partition, me, leader=me, leader_epoch=epoch + 2)

    async def run() -> Topics:
        return await produce_to_two(broker, int(4000 * TIMEOUT_SECONDS), deposed_and_elected)

    ((_, _, (outcome,)),) = broker._call(run)
    assert outcome.error_code == ErrorCode.not_leader_or_follower


def test_what_is_committed_is_acknowledged_again_though_too_few_are_in_sync(broker: Broker) -> None:
    """At once, and by where it is: its first answer was lost."""
    records = batch(producer_id=7, producer_epoch=0, base_sequence=0)
    first = produce_batch(broker, "t", records)

    too_few_in_sync(broker)
    again = produce_batch(broker, "t", records)
    assert (again.error_code, again.base_offset) == (ErrorCode.none, first.base_offset)
    another = batch(producer_id=7, producer_epoch=0, base_sequence=1)
    assert produce_batch(broker, "t", another).error_code == ErrorCode.not_enough_replicas


def test_what_was_on_its_way_behind_one_that_was_refused_is_not_out_of_order(
    broker: Broker,
) -> None:
    """Its producer did not know yet, and librdkafka would begin a new epoch."""

    def send(sequence: int) -> ErrorCode:
        records = batch(producer_id=7, producer_epoch=0, base_sequence=sequence)
        return produce_batch(broker, "t", records).error_code

    assert send(0) == ErrorCode.none
    too_few_in_sync(broker)
    assert send(1) == ErrorCode.not_enough_replicas

    async def enough() -> None:
        partition = await broker.node.partitions.get("t", None, 0)
        in_sync(partition, partition.leader)

    broker._call(enough)
    assert send(2) == ErrorCode.not_enough_replicas
    assert [send(1), send(2)] == [ErrorCode.none, ErrorCode.none]
    assert send(9) == ErrorCode.out_of_order_sequence_number
