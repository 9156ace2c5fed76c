"""A broker that leads a partition with a second replica, on a fake broker."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any
from uuid import UUID

import trio
import trio.testing

from odradek.broker.apis.fetch import FetchResponse, fetch
from odradek.broker.network.connection import release_files
from odradek.broker.requests.context import RequestContext
from odradek.protocol import apis
from odradek.protocol.fetch_request_reader import FetchPartition, FetchRequest, FetchTopic
from odradek.protocol.fetch_response_writer import FetchedPartition
from odradek.protocol.schemas.cluster_records import UnregisterBrokerRecord
from odradek.replication.controller.image import PartitionImage
from odradek.replication.controller.image_records import broker_record
from odradek.replication.partition.partition import Partition
from odradek.seams.files import FileSlice
from odradek.testing import Broker
from tests.support.records import batch

TIMEOUT_SECONDS = 20.0
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

    async def register_other(self, rack: str | None = None) -> None:
        """Register broker OTHER, with the listeners of this broker."""
        metadata = self.node.metadata
        other = replace(metadata.image.brokers[self.me], id=OTHER, rack=rack)
        level = metadata.image.features["metadata.version"]
        await metadata.commit([broker_record(other, level)])

    async def forget_other(self) -> None:
        """Unregister broker OTHER: a controlled shutdown would wait for it."""
        other = self.node.metadata.image.brokers.get(OTHER)
        if other is not None:
            gone = UnregisterBrokerRecord(broker_id=OTHER, broker_epoch=other.epoch)
            await self.node.metadata.commit([gone])

    def context(self, version: int) -> RequestContext:
        async def flush() -> None:
            pass

        endpoint = self.node.endpoints[0]
        return RequestContext(
            self.node.services, apis.FETCH, version, 1, "test", endpoint, endpoint.address, flush
        )

    async def ask(self, offset: int, *, version: int = 17, **more: Any) -> FetchedPartition:
        found = await self.whole_response(offset, version=version, **more)
        ((_, response),) = found.chosen
        return response

    async def whole_response(
        self,
        offset: int,
        *,
        version: int = 17,
        epoch: int = EPOCH,
        last_epoch: int = -1,
        **more: Any,
    ) -> FetchResponse:
        request = FetchRequest()
        request.max_bytes = 2**20
        request.min_bytes = 1
        for name, value in more.items():
            setattr(request, name, value)
        name, topic_id = ("t", None) if version < 13 else (None, self.partition.topic_id)
        wanted = FetchPartition(0, epoch, offset, last_epoch, 0, 2**20)
        request.topics = [FetchTopic(name, topic_id, [wanted])] if offset >= 0 else []
        with trio.fail_after(TIMEOUT_SECONDS):
            found = await fetch(request, self.context(version))
        assert found is not None
        release_files(
            part for _, each in found.chosen for part in each.records if isinstance(part, FileSlice)
        )
        return found

    async def follow(self, offset: int, **more: Any) -> FetchedPartition:
        return await self.ask(offset, **{"replica_id": OTHER, **more})


@asynccontextmanager
async def stage(configs: Mapping[str, str] | None = None) -> AsyncIterator[Stage]:
    async with Broker(topics={"t": 1}, configs=configs) as broker:
        on = Stage(broker, await broker.node.partitions.get("t", None, 0))
        yield on
        await on.forget_other()


def records_size(response: FetchedPartition) -> int:
    """Return the size of the records in a response (bytes)."""
    return sum(part.size if isinstance(part, FileSlice) else len(part) for part in response.records)


async def waits_for(ask: Callable[[], Any], happens: Callable[[], Any]) -> FetchedPartition:
    """Return the response of `ask`, which must wait until `happens` was called."""
    responses: list[FetchedPartition] = []

    async def asking() -> None:
        responses.append(await ask())

    async with trio.open_nursery() as nursery:
        nursery.start_soon(asking)
        await trio.sleep(0.05)
        assert responses == []
        happened = happens()
        if happened is not None:
            await happened
    return responses[0]
