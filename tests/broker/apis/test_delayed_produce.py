"""Tests of Produce with acks=all while in-sync replicas lag behind the leader."""

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


def set_in_sync(
    partition: Partition, *replicas: int, leader: int = -1, leader_epoch: int = -1
) -> None:
    """Apply a partition image with these in-sync replicas, by default with the same leader and leader epoch."""
    directories = tuple(UUID(int=1000 + replica) for replica in replicas)
    leader = partition.leader if leader < 0 else leader
    leader_epoch = partition.leader_epoch if leader_epoch < 0 else leader_epoch
    partition.update(PartitionImage(replicas, directories, replicas, leader, leader_epoch, 0))


async def produce_with_lagging_replica(
    broker: Broker, timeout_ms: int, flush: Callable[[Partition], Awaitable[None]]
) -> Topics:
    """Results of a Produce request to a partition whose second replica has no records; `flush` runs while
    earlier responses are sent."""
    partition = await broker.node.partitions.get("t", None, 0)
    set_in_sync(partition, partition.leader, partition.leader + 1)

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


def shrink_below_min_isr(broker: Broker) -> None:
    """One of two replicas is in sync, and min.insync.replicas is 2."""

    async def one_of_two() -> None:
        partition = await broker.node.partitions.get("t", None, 0)
        log, me = partition.log, partition.leader
        log.update_config(replace(log.config, min_insync_replicas=2))
        both, directories = (me, me + 1), (UUID(int=1001), UUID(int=1002))
        epoch = partition.leader_epoch
        partition.update(PartitionImage(both, directories, (me,), me, epoch, 0))

    broker._call(one_of_two)


def test_replication_during_flush_completes_produce(
    broker: Broker,
) -> None:
    async def alone_again(partition: Partition) -> None:
        set_in_sync(partition, partition.leader)

    async def run() -> Topics:
        return await produce_with_lagging_replica(broker, int(4000 * TIMEOUT_SECONDS), alone_again)

    ((_, _, (outcome,)),) = broker._call(run)
    assert outcome.error_code == ErrorCode.none
    assert outcome.base_offset == 0


@pytest.mark.parametrize("timeout_ms", [0, -1, -(2**31)])
def test_produce_without_timeout_times_out_at_once(broker: Broker, timeout_ms: int) -> None:
    async def nothing(partition: Partition) -> None:
        pass

    async def run() -> Topics:
        return await produce_with_lagging_replica(broker, timeout_ms, nothing)

    ((_, _, (outcome,)),) = broker._call(run)
    assert outcome.error_code == ErrorCode.request_timed_out


def test_produce_is_not_acknowledged_after_leader_changes(broker: Broker) -> None:
    """The broker leads again, and the offset is below the high watermark, but it may be of another record."""

    async def deposed_and_elected(partition: Partition) -> None:
        me, epoch = partition.leader, partition.leader_epoch
        set_in_sync(partition, me, me + 1, leader=me + 1, leader_epoch=epoch + 1)
        set_in_sync(partition, me, leader=me, leader_epoch=epoch + 2)

    async def run() -> Topics:
        return await produce_with_lagging_replica(
            broker, int(4000 * TIMEOUT_SECONDS), deposed_and_elected
        )

    ((_, _, (outcome,)),) = broker._call(run)
    assert outcome.error_code == ErrorCode.not_leader_or_follower


def test_duplicate_of_committed_batch_is_acknowledged_below_min_isr(broker: Broker) -> None:
    """The response to the first request was lost; the duplicate gets its base offset at once."""
    records = batch(producer_id=7, producer_epoch=0, base_sequence=0)
    first = produce_batch(broker, "t", records)

    shrink_below_min_isr(broker)
    again = produce_batch(broker, "t", records)
    assert (again.error_code, again.base_offset) == (ErrorCode.none, first.base_offset)
    another = batch(producer_id=7, producer_epoch=0, base_sequence=1)
    assert produce_batch(broker, "t", another).error_code == ErrorCode.not_enough_replicas


def test_batches_after_rejected_batch_are_not_out_of_order(
    broker: Broker,
) -> None:
    """The producer sent them before it received the error; librdkafka would start a new epoch after
    OUT_OF_ORDER_SEQUENCE_NUMBER."""

    def send(sequence: int) -> ErrorCode:
        records = batch(producer_id=7, producer_epoch=0, base_sequence=sequence)
        return produce_batch(broker, "t", records).error_code

    assert send(0) == ErrorCode.none
    shrink_below_min_isr(broker)
    assert send(1) == ErrorCode.not_enough_replicas

    async def enough() -> None:
        partition = await broker.node.partitions.get("t", None, 0)
        set_in_sync(partition, partition.leader)

    broker._call(enough)
    assert send(2) == ErrorCode.not_enough_replicas
    assert [send(1), send(2)] == [ErrorCode.none, ErrorCode.none]
    assert send(9) == ErrorCode.out_of_order_sequence_number
