"""Copies and deletes segments, one step after the other as `segment_steps` has them.

Those that somebody here is at work on are `in_hand`. A copy is given up with the leadership; but what is
copied is published all the same, by a task of its own, so that a copy of this node that is not finished,
and not in hand, never will be.
"""

from __future__ import annotations

import logging
from dataclasses import replace

import trio

from odradek.broker.metrics.registry import Metrics
from odradek.broker.tiered.rounds import BackOff
from odradek.broker.tiered.settings import RemoteLogSettings
from odradek.protocol.errors import KafkaError
from odradek.seams import Seams
from odradek.storage.tiered.errors import (
    InvalidRemoteState,
    RemoteResourceNotFound,
    RemoteStorageError,
)
from odradek.storage.tiered.metadata import (
    RemoteLogSegmentId,
    RemoteLogSegmentMetadata,
    RemoteLogSegmentMetadataUpdate,
    SegmentState,
    TopicIdPartition,
)
from odradek.storage.tiered.remote_metadata import RemoteLogMetadataManager
from odradek.storage.tiered.remote_storage import LogSegmentData, RemoteStorageManager
from odradek.storage.tiered.segment_steps import PUBLISHES, Came, SegmentSteps, Step

log = logging.getLogger("odradek.tiered")

OBJECTS = "objects"
"""The lane of offload."""
DANGLING_MS = 10 * 60 * 1000
"""How long a copy may take that another broker, which led before, may still be at."""


class CustomMetadataTooLarge(RemoteStorageError):
    """A remote storage manager wants to keep more than remote.log.metadata.custom.metadata.max.bytes."""

    retryable = False


class SegmentWork:
    """See the module."""

    def __init__(
        self,
        node_id: int,
        storage: RemoteStorageManager,
        metadata: RemoteLogMetadataManager,
        seams: Seams,
        metrics: Metrics,
        settings: RemoteLogSettings,
    ) -> None:
        self._node_id = node_id
        self._storage = storage
        self._metadata = metadata
        self._seams = seams
        self._metrics = metrics
        self._settings = settings
        self.in_hand: dict[RemoteLogSegmentId, None] = {}
        self._nursery: trio.Nursery | None = None

    def start(self, nursery: trio.Nursery) -> None:
        """Copies are published to their end in `nursery`, whoever leads by then."""
        self._nursery = nursery

    def is_in_hand(self, segment: RemoteLogSegmentMetadata) -> bool:
        """Whether somebody here is at work on it."""
        return segment.id in self.in_hand

    def is_dangling(self, segment: RemoteLogSegmentMetadata) -> bool:
        """Of a copy that is not finished, and not in hand: whether nobody goes on with it. One of ours was
        given up, in this life of the node or an earlier one. Another broker, which led before, deletes
        its own; until it has been silent for long, it may still be about to publish it."""
        if segment.broker_id == self._node_id:
            return True
        return self._seams.clock.wall_ms() - segment.event_timestamp_ms > DANGLING_MS

    async def copy(self, segment: RemoteLogSegmentMetadata, data: LogSegmentData) -> None:
        """Copy it, and return when that is known. Raises what went wrong, once nothing is left of the
        copy, or what is left is left to expiry: KafkaError, or OSError of the local disk."""
        topic = segment.partition.topic
        self._metrics.meter("RemoteCopyRequestsPerSec", topic=topic).mark()
        steps = SegmentSteps()
        try:
            await self._go(steps, segment, data)
        except (KafkaError, OSError):
            self._metrics.meter("RemoteCopyErrorsPerSec", topic=topic).mark()
            raise
        self._metrics.meter("RemoteCopyBytesPerSec", topic=topic).mark(segment.size_bytes)

    async def delete(self, segment: RemoteLogSegmentMetadata) -> None:
        """Delete it, in whatever state it is. Raises KafkaError: it is to be tried again later."""
        topic = segment.partition.topic
        self._metrics.meter("RemoteDeleteRequestsPerSec", topic=topic).mark()
        try:
            await self._go(SegmentSteps.to_delete(segment.state), segment, None)
        except KafkaError:
            self._metrics.meter("RemoteDeleteErrorsPerSec", topic=topic).mark()
            raise

    async def delete_own(self, partition: TopicIdPartition) -> None:
        """Delete the copies of this partition that this node has begun and given up. Raises KafkaError."""
        for segment in self._metadata.unfinished(partition):
            is_copy = segment.state is SegmentState.COPY_SEGMENT_STARTED
            if is_copy and segment.broker_id == self._node_id and not self.is_in_hand(segment):
                await self.delete(segment)

    async def _go(
        self, steps: SegmentSteps, segment: RemoteLogSegmentMetadata, data: LogSegmentData | None
    ) -> None:
        failure: KafkaError | OSError | None = None
        back_off = BackOff(self._settings, self._seams.entropy)
        self.in_hand[segment.id] = None
        try:
            while not steps.is_over:
                try:
                    segment = await self._do(steps.step, segment, data)
                except (KafkaError, OSError) as error:
                    failure = failure or error
                    log.info("%s of %s failed: %s", steps.step.value, segment.id, error)
                    before = steps.step
                    steps.came(_what_came(before, error))
                    if steps.step is before:
                        await self._seams.clock.sleep(back_off.next())
                else:
                    refusal = self._refusal(segment) if steps.step is Step.COPY else None
                    failure = failure or refusal
                    steps.came(Came.DONE if refusal is None else Came.REFUSED)
        finally:
            del self.in_hand[segment.id]
            if data is not None and steps.step is Step.PUBLISH_COPY_FINISHED:
                self._hand_over(steps, segment)
        if failure is not None and steps.step is not Step.COPIED:
            raise failure

    def _hand_over(self, steps: SegmentSteps, segment: RemoteLogSegmentMetadata) -> None:
        """It is copied, and its copier was cancelled: a task of its own publishes it."""
        if self._nursery is not None:
            self.in_hand[segment.id] = None
            self._nursery.start_soon(self._publish_to_the_end, steps, segment)

    async def _publish_to_the_end(
        self, steps: SegmentSteps, segment: RemoteLogSegmentMetadata
    ) -> None:
        try:
            await self._go(steps, segment, None)
        except KafkaError as error:
            log.info("%s is copied, and is not published: %s", segment.id, error)

    async def _do(
        self, step: Step, segment: RemoteLogSegmentMetadata, data: LogSegmentData | None
    ) -> RemoteLogSegmentMetadata:
        run = self._seams.offload.run
        if step is Step.PUBLISH_COPY_STARTED:
            await self._metadata.add_segment(segment)
        elif step is Step.COPY:
            assert data is not None
            custom = await run(self._storage.copy_segment, segment, data, lane=OBJECTS)
            await trio.lowlevel.checkpoint_if_cancelled()  # whoever leads no more publishes nothing
            segment = replace(segment, custom_metadata=custom)
        elif step is Step.DELETE:
            await run(self._storage.delete_segment, segment, lane=OBJECTS)
        else:
            await self._publish(segment, PUBLISHES[step])
        return segment

    async def _publish(self, segment: RemoteLogSegmentMetadata, state: SegmentState) -> None:
        await self._metadata.update_segment(
            RemoteLogSegmentMetadataUpdate(
                segment.id,
                self._node_id,
                self._seams.clock.wall_ms(),
                state,
                segment.custom_metadata,
            )
        )

    def _refusal(self, segment: RemoteLogSegmentMetadata) -> CustomMetadataTooLarge | None:
        limit, custom = self._settings.custom_metadata_bytes_max, segment.custom_metadata
        if custom is None or len(custom) <= limit:
            return None
        return CustomMetadataTooLarge(
            f"the remote storage manager wants to keep {len(custom)} bytes with {segment.id};"
            f" remote.log.metadata.custom.metadata.max.bytes allows {limit}"
        )


def _what_came(step: Step, error: KafkaError | OSError) -> Came:
    if step is Step.PUBLISH_COPY_FINISHED and isinstance(error, InvalidRemoteState):
        return Came.REFUSED
    if step is Step.PUBLISH_COPY_FINISHED and isinstance(error, RemoteResourceNotFound):
        return Came.GONE
    return Came.FAILED
