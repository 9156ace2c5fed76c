"""A broker with partitions in a remote tier that a test controls."""

from __future__ import annotations

import threading
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from types import SimpleNamespace
from typing import Any

import trio

from odradek.broker.apis.fetch import fetch
from odradek.broker.apis.list_offsets import list_offsets
from odradek.broker.network.connection import release_files
from odradek.broker.requests.context import RequestContext
from odradek.broker.tiered.remote_read_service import RemoteReadService
from odradek.protocol import apis
from odradek.protocol.apis import Api
from odradek.protocol.fetch_request_reader import FetchPartition, FetchRequest, FetchTopic
from odradek.protocol.fetch_response_writer import FetchedPartition
from odradek.protocol.records.batch import batches
from odradek.replication.partition.partition import Partition
from odradek.seams.files import Buffer, FileSlice
from odradek.storage.tiered.remote_log_reader import partition_of
from odradek.storage.tiered.segment_metadata import (
    RemoteLogSegmentMetadata,
    RemoteLogSegmentMetadataUpdate,
    SegmentState,
)
from odradek.testing import Broker
from odradek.testing.in_memory_remote_log_metadata import InMemoryRemoteLogMetadataManager
from tests.support.partition_logs import NOW_MS, batch
from tests.support.remote_log_reads import Store, as_bytes, copy_sealed

TIMEOUT_SECONDS = 10.0


@dataclass
class SlowStore(Store):
    """Store whose reads of segments block their threads while `gate` is closed."""

    gate: threading.Event = field(default_factory=threading.Event)
    asked: int = 0

    def fetch_segment(
        self, metadata: RemoteLogSegmentMetadata, start: int, end_inclusive: int | None = None
    ) -> Buffer:
        self.asked += 1
        assert self.gate.wait(TIMEOUT_SECONDS)
        return super().fetch_segment(metadata, start, end_inclusive)


@dataclass
class Found:
    """The response of one partition and its records."""

    response: FetchedPartition
    data: bytes

    @property
    def error_code(self) -> int:
        return self.response.error_code

    @property
    def offsets(self) -> list[int]:
        return [
            offset
            for each in batches(memoryview(self.data), check=True)
            for offset in range(each.base_offset, each.next_offset)
        ]


class TieredStage:
    def __init__(self, broker: Broker, partitions: list[Partition]) -> None:
        self.node = broker.node
        self.partitions = partitions
        self.store = SlowStore()
        self.store.gate.set()
        self.metadata = InMemoryRemoteLogMetadataManager()
        self.reads = RemoteReadService(self.node.environment, self.store, self.metadata)
        self._copies = 0

    async def fill(self, partition: Partition, count: int = 20) -> None:
        """Append batches of two records, three per segment. All but the last segment are only in the store."""
        log = partition.log
        tiered = replace(
            log.config,
            internal_segment_bytes=350,
            index_interval_bytes=100,
            file_delete_delay_ms=0,
            remote_storage_enable=True,
            local_retention_bytes=1,
        )
        log.update_config(tiered)
        for number in range(count):
            data = batch(2, timestamps=NOW_MS + number)
            partition.append(data, acks=1, now_ms=NOW_MS)
        log.flush()
        for segment in copy_sealed(log, self.store, self._copies):
            self._copies += 1
            await self._announce(segment)
        log.delete_expired(NOW_MS)
        log.remove_deleted(NOW_MS)
        assert 0 < log.local_log_start_offset < log.end_offset

    async def _announce(self, segment: RemoteLogSegmentMetadata) -> None:
        self.metadata.partitions_changed([segment.partition], [])
        started = replace(segment, state=SegmentState.COPY_SEGMENT_STARTED)
        await self.metadata.add_segment(started)
        await self.metadata.update_segment(self.update(segment, SegmentState.COPY_SEGMENT_FINISHED))

    def update(
        self, segment: RemoteLogSegmentMetadata, state: SegmentState
    ) -> RemoteLogSegmentMetadataUpdate:
        return RemoteLogSegmentMetadataUpdate(segment.id, 1, NOW_MS, state)

    def segments(self, index: int = 0) -> list[RemoteLogSegmentMetadata]:
        return list(self.metadata.segments(partition_of(self.partitions[index].log)))

    def context(self, api: Api, version: int) -> RequestContext:
        async def flush() -> None:
            pass

        endpoint = self.node.endpoints[0]
        return RequestContext(
            self.node.services, api, version, 1, "test", endpoint, endpoint.address, flush
        )

    async def fetch(
        self, *offsets: int, max_bytes: int = 2**17, version: int = 17, **more: Any
    ) -> list[Found]:
        """Fetch one offset of each partition, from the first on; return their responses."""
        request = FetchRequest()
        request.max_bytes = 2**20
        request.min_bytes = 1
        request.max_wait_ms = 100
        for name, value in more.items():
            setattr(request, name, value)
        wanted = [
            FetchPartition(index, -1, offset, -1, 0, max_bytes)
            for index, offset in enumerate(offsets)
        ]
        request.topics = [FetchTopic(None, self.partitions[0].topic_id, wanted)]
        with trio.fail_after(TIMEOUT_SECONDS):
            responded = await fetch(request, self.context(apis.FETCH, version))
        assert responded is not None
        found = []
        for _, each in responded.chosen:
            found.append(Found(each, b"".join(as_bytes(part) for part in each.records)))
            release_files([part for part in each.records if isinstance(part, FileSlice)])
        return found

    async def list_offsets(self, timestamp: int, *, version: int = 11, **more: Any) -> Any:
        """Return the response for the first partition."""
        wanted = SimpleNamespace(partition_index=0, timestamp=timestamp, current_leader_epoch=-1)
        topic = SimpleNamespace(name="t", partitions=[wanted])
        request = SimpleNamespace(
            **{"replica_id": -1, "isolation_level": 0, "topics": [topic], **more}
        )
        with trio.fail_after(TIMEOUT_SECONDS):
            responded = await list_offsets(request, self.context(apis.LIST_OFFSETS, version))
        ((response,),) = [each["partitions"] for each in responded["topics"]]
        return response


@asynccontextmanager
async def tiered_stage(
    partitions: int = 1, configs: Mapping[str, str] | None = None
) -> AsyncIterator[TieredStage]:
    async with (
        Broker(topics={"t": partitions}, configs=configs) as broker,
        trio.open_nursery() as nursery,
    ):
        table = broker.node.partitions
        stage = TieredStage(
            broker, [await table.get("t", None, index) for index in range(partitions)]
        )
        await nursery.start(stage.reads.run)
        room: Any = SimpleNamespace(reads=stage.reads)
        broker.node.services.tiered_storage = room
        try:
            yield stage
        finally:
            stage.store.gate.set()
            broker.node.services.tiered_storage = None
            nursery.cancel_scope.cancel()
