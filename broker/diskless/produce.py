"""Produce requests with batches of diskless topics: validation, buffering, and the response after the commit.

A batch is validated as a log does and copied to the writer's buffer in the order of the requests. Then the
connection handles the next requests, and sends the response when all batches of the request are committed or have
failed, at the latest after the timeout of the request. All values of acks mean committed: with acks=0 there is no response,
and an error closes the connection.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING
from uuid import UUID

import trio

from odradek.broker.apis.produce_results import ProducePartitionResult, ProduceResponse
from odradek.broker.diskless.append_buffer import AppendWaiter, BufferedBatch
from odradek.broker.requests.context import RequestContext
from odradek.protocol.errors import ErrorCode, KafkaError
from odradek.protocol.records.batch import Batch
from odradek.replication.controller.image import TopicImage
from odradek.replication.errors import UnknownPartition
from odradek.seams.offload import RECORDS_LANE
from odradek.storage.log.batch_validation import ValidationTooSlow, check_produced

if TYPE_CHECKING:
    from odradek.broker.diskless.diskless import Diskless

UNCERTAIN = "It may be committed later."


@dataclass(slots=True)
class DisklessPartitionResult(ProducePartitionResult):
    """Result of a batch that is buffered."""

    buffered: BufferedBatch | None = None

    def settle(self) -> None:
        """Take the outcome of the batch; without one, the time is over."""
        assert self.buffered is not None
        outcome = self.buffered.outcome
        if outcome is None:
            self.error_code = ErrorCode.request_timed_out
            self.error_message = f"The batch was not committed in time. {UNCERTAIN}"
            return
        self.error_code = outcome.error_code
        self.error_message = outcome.error_message
        self.base_offset = outcome.base_offset
        self.log_append_time_ms = outcome.log_append_ms
        self.log_start_offset = outcome.log_start_offset


class DisklessProduce:
    """The batches of diskless topics in one Produce request, and its response."""

    def __init__(self, diskless: Diskless, ctx: RequestContext, timeout_ms: int) -> None:
        self.deadline = trio.current_time() + max(0, timeout_ms) / 1000
        self._diskless = diskless
        self._ctx = ctx
        self._waiter: AppendWaiter | None = None
        self._results: list[DisklessPartitionResult] = []
        self._respond: Callable[[], ProduceResponse | None] | None = None

    @property
    def has_batches(self) -> bool:
        """Whether any batch is buffered."""
        return bool(self._results)

    def find(self, topic: str | None, topic_id: UUID | None) -> TopicImage | None:
        """The topic by its id or name, if it is diskless."""
        image = self._ctx.services.metadata.image
        if topic_id is not None:
            found = image.topics_by_id.get(topic_id)
        else:
            found = image.topics_by_name.get(topic or "")
        return found if found is not None and found.is_diskless else None

    async def append(
        self, topic: TopicImage, index: int, records: memoryview
    ) -> DisklessPartitionResult:
        """Validate a batch and buffer it. Raises KafkaError."""
        partition = topic.partitions.get(index)
        if partition is None:
            raise UnknownPartition(f"{topic.name} has no partition {index}")
        batch = await self._validate(topic, records)
        writer = self._diskless.writer
        if not writer.has_space(batch.size):
            await self._wait_for_space(batch)
        if self._waiter is None:
            self._waiter = AppendWaiter(request_id=writer.next_request_id())
        buffered = writer.add(topic.id, index, partition.diskless_coordinator, batch, self._waiter)
        result = DisklessPartitionResult(index, buffered=buffered)
        self._results.append(result)
        traffic = self._ctx.services.partitions.traffic_without_replica(topic.name)
        if traffic is not None:
            traffic.appended(batch.record_count, batch.size)
        return result

    async def _validate(self, topic: TopicImage, records: memoryview) -> Batch:
        services = self._ctx.services
        config = self._diskless.log_configs.get(topic.name)
        now_ms = services.seams.clock.wall_ms()
        try:
            return check_produced(records, config, now_ms, from_client=True, at_once=True)
        except ValidationTooSlow:
            return await services.seams.offload.run(
                partial(check_produced, records, config, now_ms, from_client=True),
                lane=RECORDS_LANE,
            )

    async def _wait_for_space(self, batch: Batch) -> None:
        """Wait while too many bytes are not committed, after the responses to earlier requests were sent."""
        await self._ctx.flush()
        with trio.move_on_at(self.deadline) as limit:
            await self._diskless.writer.wait_for_space(batch.size)
        if limit.cancelled_caught:
            raise KafkaError(
                ErrorCode.request_timed_out,
                "The broker has too many batches of diskless topics that are not committed.",
            )

    def refused(self, topic: TopicImage, error: KafkaError, size_bytes: int) -> None:
        """Count a batch that was refused before it was buffered."""
        traffic = self._ctx.services.partitions.traffic_without_replica(topic.name)
        if traffic is not None:
            traffic.refused(size_bytes if error.code == ErrorCode.message_too_large else 0)

    # The response

    async def respond(
        self, respond: Callable[[], ProduceResponse | None]
    ) -> ProduceResponse | None:
        """Pass the response to the connection, which sends it when it is done, or wait for it."""
        self._respond = respond
        ctx = self._ctx
        if ctx.connection is not None:
            await ctx.connection.respond_when_done(ctx, self)
            return None
        await ctx.flush()
        if not self.is_done:
            done = trio.Event()
            self.on_done(done.set)
            with trio.move_on_at(self.deadline):
                await done.wait()
        return self.values()

    @property
    def is_done(self) -> bool:
        return self._waiter is None or not self._waiter.pending

    def on_done(self, call: Callable[[], None]) -> None:
        if self._waiter is not None:
            self._waiter.on_done = call

    def values(self) -> ProduceResponse | None:
        for result in self._results:
            result.settle()
        assert self._respond is not None, "called before `respond`"
        return self._respond()
