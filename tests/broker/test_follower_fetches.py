"""Fetches by followers from their leader, and by consumers from followers (KIP-392)."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any
from uuid import UUID

import pytest
import trio
import trio.testing

from odradek.broker.apis.fetch import Answer, fetch
from odradek.broker.connection import unpin
from odradek.broker.context import RequestContext
from odradek.protocol import apis
from odradek.protocol.errors import ErrorCode
from odradek.protocol.fetch import FetchedPartition
from odradek.protocol.fetch_request import FetchPartition, FetchRequest, FetchTopic
from odradek.replication.controller.image import BrokerImage, MetadataImage, PartitionImage
from odradek.replication.partition.partition import Partition
from odradek.seams.files import FileSlice
from odradek.testing import Broker
from tests.broker.test_produce import batch

PATIENCE_SECONDS = 20.0
OTHER, STRANGER = 77, 78
EPOCH = 9
SIZE = len(batch())
NOW_MS = 1_700_000_000_000


class Stage:
    """A broker with a partition that has a second replica, on broker OTHER."""

    def __init__(self, broker: Broker, partition: Partition) -> None:
        self.node = broker.node
        self.partition = partition
        self.me = partition.leader
        self.image = PartitionImage(
            (self.me, OTHER), (UUID(int=1001), UUID(int=1002)), (self.me, OTHER), self.me, EPOCH, 5
        )
        self.partition.update(self.image)

    def append(self) -> None:
        self.partition.append(memoryview(bytearray(batch())), acks=1, now_ms=NOW_MS)

    def context(self, version: int) -> RequestContext:
        async def flush() -> None:
            pass

        endpoint = self.node.endpoints[0]
        return RequestContext(
            self.node, apis.FETCH, version, 1, "test", endpoint, endpoint.address, flush
        )

    async def ask(self, offset: int, *, version: int = 17, **more: Any) -> FetchedPartition:
        found = await self.whole_answer(offset, version=version, **more)
        ((_, answer),) = found.chosen
        return answer

    async def whole_answer(
        self,
        offset: int,
        *,
        version: int = 17,
        epoch: int = EPOCH,
        last_epoch: int = -1,
        **more: Any,
    ) -> Answer:
        request = FetchRequest()
        request.max_bytes = 2**20
        request.min_bytes = 1
        for name, value in more.items():
            setattr(request, name, value)
        name, topic_id = ("t", None) if version < 13 else (None, self.partition.topic_id)
        wanted = FetchPartition(0, epoch, offset, last_epoch, 0, 2**20)
        request.topics = [FetchTopic(name, topic_id, [wanted])]
        with trio.fail_after(PATIENCE_SECONDS):
            found = await fetch(request, self.context(version))
        assert found is not None
        unpin(
            part for _, each in found.chosen for part in each.records if isinstance(part, FileSlice)
        )
        return found

    async def follow(self, offset: int, **more: Any) -> FetchedPartition:
        return await self.ask(offset, **{"replica_id": OTHER, **more})


@asynccontextmanager
async def stage() -> AsyncIterator[Stage]:
    async with Broker(topics={"t": 1}) as broker:
        yield Stage(broker, await broker.node.partitions.get("t", None, 0))


def size(answer: FetchedPartition) -> int:
    return sum(part.size if isinstance(part, FileSlice) else len(part) for part in answer.records)


async def test_a_follower_reads_to_the_end_and_a_consumer_what_is_replicated() -> None:
    async with stage() as on:
        on.append()
        on.append()
        assert size(await on.ask(0)) == 0
        found = await on.follow(0)
        assert (size(found), found.high_watermark) == (2 * SIZE, 0)
        found = await on.follow(1)
        assert (size(found), found.high_watermark) == (SIZE, 1)  # it has the first, by what it asks
        assert size(await on.ask(0)) == SIZE


async def waits_for(ask: Callable[[], Any], happens: Callable[[], Any]) -> FetchedPartition:
    """The answer to `ask`, which must wait until something `happens`."""
    answers: list[FetchedPartition] = []

    async def asking() -> None:
        answers.append(await ask())

    async with trio.open_nursery() as nursery:
        nursery.start_soon(asking)
        await trio.sleep(0.05)
        assert answers == []
        happened = happens()
        if happened is not None:
            await happened
    return answers[0]


async def test_a_follower_waits_for_appends_and_a_consumer_for_followers() -> None:
    async with stage() as on:
        patient = {"max_wait_ms": int(2000 * PATIENCE_SECONDS)}
        found = await waits_for(lambda: on.follow(0, **patient), on.append)
        assert (size(found), found.high_watermark) == (SIZE, 0)
        found = await waits_for(lambda: on.ask(0, **patient), lambda: on.follow(1))
        assert (size(found), found.high_watermark) == (SIZE, 1)


async def test_what_was_read_again_is_not_taken_for_progress() -> None:
    async with stage() as on:
        await waits_for(lambda: on.follow(0, max_wait_ms=60_000), on.append)
        assert on.partition.leading is not None
        assert on.partition.leading.leader.progress_of(OTHER).end_offset == 0


@pytest.mark.parametrize(
    ("epoch", "error"),
    [
        (EPOCH, ErrorCode.unknown_leader_epoch),
        (-1, ErrorCode.not_leader_or_follower),
        (EPOCH - 1, ErrorCode.fenced_leader_epoch),
        (EPOCH + 1, ErrorCode.unknown_leader_epoch),
    ],
)
async def test_who_is_no_replica_as_far_as_is_known(epoch: int, error: ErrorCode) -> None:
    async with stage() as on:
        assert (await on.follow(0, replica_id=STRANGER, epoch=epoch)).error_code == error


async def test_an_epoch_that_is_later_than_all_is_out_of_range() -> None:
    async with stage() as on:
        on.append()
        found = await on.follow(1, last_epoch=EPOCH + 1)
        assert found.error_code == ErrorCode.offset_out_of_range


async def test_where_the_logs_part_is_told_and_is_no_progress() -> None:
    async with stage() as on:
        on.append()
        on.partition.update(replace(on.image, leader_epoch=EPOCH + 1, partition_epoch=6))
        on.append()
        found = await on.follow(2, epoch=EPOCH + 1, last_epoch=EPOCH)
        assert found.diverging_epoch == (EPOCH, 1)
        assert on.partition.log.high_watermark == 0
        assert size(await on.follow(1, epoch=EPOCH + 1, last_epoch=EPOCH)) == SIZE


async def test_consumers_read_from_followers_what_these_know_to_be_replicated() -> None:
    async with stage() as on:
        on.append()
        on.append()
        on.partition.update(replace(on.image, leader=OTHER, leader_epoch=10, partition_epoch=6))
        on.partition.replicated(1, 0)
        assert size(await on.ask(0, epoch=10)) == SIZE
        found = await waits_for(
            lambda: on.ask(1, epoch=10, max_wait_ms=60_000), lambda: on.partition.replicated(2, 0)
        )
        assert size(found) == SIZE
        assert (await on.ask(0, epoch=10, version=10)).error_code == (
            ErrorCode.not_leader_or_follower
        )
        assert (await on.follow(0, epoch=10)).error_code == ErrorCode.not_leader_or_follower


def with_brokers(on: Stage, **racks: str | None) -> MetadataImage:
    """The image, with brokers `me` and `other` in these racks."""
    image = on.node.metadata.image
    me = image.brokers[on.me]
    brokers: dict[int, BrokerImage] = {
        on.me: replace(me, rack=racks.get("me")),
        OTHER: replace(me, id=OTHER, rack=racks.get("other")),
    }
    return replace(image, brokers=brokers)


async def test_who_leads_now_is_told_and_where_that_is() -> None:
    async with stage() as on:
        on.node.metadata.image = with_brokers(on)
        on.partition.update(replace(on.image, leader=OTHER, leader_epoch=10, partition_epoch=6))
        found = await on.whole_answer(0)
        ((_, answer),) = found.chosen
        assert answer.error_code == ErrorCode.fenced_leader_epoch
        assert answer.current_leader == (OTHER, 10)
        assert [each.node_id for each in found.endpoints] == [OTHER]


@pytest.mark.parametrize(
    ("rack", "offset", "preferred"),
    [("there", 1, OTHER), ("here", 1, -1), ("nowhere", 1, -1), ("", 1, -1), ("there", 2, -1)],
    ids=["nearer", "the leader is there", "nobody is there", "no rack", "it lags"],
)
async def test_a_consumer_is_sent_to_the_replica_in_its_rack(
    rack: str, offset: int, preferred: int
) -> None:
    selector = {
        "replica.selector.class": "org.apache.kafka.common.replica.RackAwareReplicaSelector"
    }
    async with Broker(topics={"t": 1}, configs=selector) as broker:
        on = Stage(broker, await broker.node.partitions.get("t", None, 0))
        on.node.metadata.image = with_brokers(on, me="here", other="there")
        on.append()
        on.append()
        await on.follow(1)
        found = await on.ask(offset, rack=rack)
        assert found.preferred_read_replica == preferred
        if preferred >= 0:
            assert (size(found), found.high_watermark) == (0, 1)
