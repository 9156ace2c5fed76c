"""Copies and deletes segments, one step after the other as `segment_steps` has them.

Those that somebody here is at work on are `in_progress`. A copy is given up with the leadership, or with its
topic; a task of its own then deletes it, or publishes it where that was under way. Such a task also
publishes what cannot be published at once: a copier's place is for copies. So a copy of this node that is
not finished, and not in hand, never will be.

That a deletion begins is published by a task of its own, too, which goes on when whoever wanted it has to
stop: what is on its way to the metadata topic cannot be taken back. Until it has arrived, the segment seems to
count, and who begins anew waits for that (`wait_for_pending_deletions`).
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from uuid import UUID

import trio

from odradek.broker.metrics.registry import Metrics
from odradek.broker.tiered.periodic_task import BackOff
from odradek.broker.tiered.settings import RemoteLogSettings
from odradek.protocol.errors import KafkaError
from odradek.seams import Seams
from odradek.seams.offload import OBJECTS_LANE
from odradek.seams.values import state_class
from odradek.storage.tiered.errors import (
    InvalidRemoteState,
    RemoteMetadataUnavailable,
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
from odradek.storage.tiered.metadata_records import METADATA_TOPIC
from odradek.storage.tiered.remote_log_metadata_manager import RemoteLogMetadataManager
from odradek.storage.tiered.remote_storage_manager import LogSegmentData, RemoteStorageManager
from odradek.storage.tiered.segment_state_machine import (
    PUBLISHES,
    SegmentStateMachine,
    SegmentStep,
    StepOutcome,
)
from odradek.storage.tiered.summary import SummaryBuilder

log = logging.getLogger("odradek.tiered")

_DELETING = frozenset({SegmentStep.PUBLISH_DELETE_STARTED, SegmentStep.PUBLISH_DELETE_FINISHED})
DANGLING_MS = 10 * 60 * 1000
"""How long a copy may take that another broker, which led before, may still be at."""


class CustomMetadataTooLarge(RemoteStorageError):
    """A remote storage manager wants to keep more than remote.log.metadata.custom.metadata.max.bytes."""

    retryable = False


@state_class
class _GivingUp:
    """That a deletion begins, on its way to the metadata topic."""

    is_known: trio.Event
    """What came of it."""
    failure: Exception | None


class SegmentOperations:
    """See the module."""

    def __init__(
        self,
        node_id: int,
        storage: RemoteStorageManager,
        metadata: RemoteLogMetadataManager,
        seams: Seams,
        metrics: Metrics,
        settings: RemoteLogSettings,
        *,
        topic_exists: Callable[[UUID], bool] = lambda topic_id: True,
    ) -> None:
        """`topic_exists`: as far as this node knows by now."""
        self._topic_exists = topic_exists
        self._node_id = node_id
        self._storage = storage
        self._metadata = metadata
        self._seams = seams
        self._metrics = metrics
        self._settings = settings
        self.in_progress: Counter[RemoteLogSegmentId] = Counter()
        """How many here are at work on it."""
        self._to_publish: set[RemoteLogSegmentId] = set()
        """Those in hand that are copied, and were not published so yet."""
        self._nursery: trio.Nursery | None = None
        self._giving_up: dict[TopicIdPartition, list[_GivingUp]] = {}

    def start(self, nursery: trio.Nursery) -> None:
        """Copies that were given up are seen to their end in `nursery`, whoever leads by then."""
        self._nursery = nursery

    def is_in_progress(self, segment: RemoteLogSegmentMetadata) -> bool:
        """Whether somebody here is at work on it."""
        return segment.id in self.in_progress

    def is_dangling(self, segment: RemoteLogSegmentMetadata) -> bool:
        """Of a copy that is not finished, and not in hand: whether nobody goes on with it. One of ours was
        given up, in this life of the node or an earlier one. Another broker, which led before, deletes
        its own; until it has been silent for long, it may still be about to publish it."""
        if segment.broker_id == self._node_id:
            return True
        return self._seams.clock.wall_ms() - segment.event_timestamp_ms > DANGLING_MS

    async def copy(self, segment: RemoteLogSegmentMetadata, data: LogSegmentData) -> None:
        """Copy it, and return when that is known. Raises what went wrong, once nothing is left of the
        copy, or what is left is left to expiry, or to `check_published`: KafkaError, or OSError of the
        local disk."""
        topic = segment.partition.topic
        self._metrics.meter("RemoteCopyRequestsPerSec", topic=topic).mark()
        try:
            await self._go(SegmentStateMachine(), segment, data, is_own=True)
        except (KafkaError, OSError):
            self._metrics.meter("RemoteCopyErrorsPerSec", topic=topic).mark()
            raise

    def check_published(self, partition: TopicIdPartition) -> None:
        """Raises RemoteMetadataUnavailable while there is a copy of it here of which nobody knows yet: what
        is to be copied next follows from that."""
        for each in self._metadata.unfinished(partition):
            if each.id in self._to_publish and each.state is SegmentState.COPY_SEGMENT_STARTED:
                raise RemoteMetadataUnavailable(
                    f"{each.id} is copied, and not published in {METADATA_TOPIC} yet"
                )

    async def begin_to_delete(self, segment: RemoteLogSegmentMetadata) -> RemoteLogSegmentMetadata:
        """Nobody is to read it from now on; it is returned as `delete` takes it. Raises KafkaError."""
        if segment.state is SegmentState.DELETE_SEGMENT_STARTED:
            return segment
        assert self._nursery is not None, "it runs not yet"
        await trio.lowlevel.checkpoint_if_cancelled()
        going = _GivingUp(trio.Event(), RemoteMetadataUnavailable("the broker stops"))
        self._giving_up.setdefault(segment.partition, []).append(going)
        self._nursery.start_soon(self._give_up, segment, going)
        try:
            await going.is_known.wait()
            if going.failure is not None:
                raise going.failure
        except KafkaError as error:
            log.info("the deletion of %s cannot begin: %s", segment.id, error)
            for meter in ("RemoteDeleteRequestsPerSec", "RemoteDeleteErrorsPerSec"):
                self._metrics.meter(meter, topic=segment.partition.topic).mark()
            raise
        return replace(segment, state=SegmentState.DELETE_SEGMENT_STARTED)

    async def _give_up(self, segment: RemoteLogSegmentMetadata, going: _GivingUp) -> None:
        try:
            await self._publish(segment, SegmentState.DELETE_SEGMENT_STARTED)
            going.failure = None
        except Exception as error:  # raised where it is awaited
            going.failure = error
        finally:
            others = self._giving_up[segment.partition]
            others.remove(going)
            if not others:
                del self._giving_up[segment.partition]
            going.is_known.set()

    async def wait_for_pending_deletions(self, partition: TopicIdPartition) -> None:
        """Return when no beginning of a deletion is on its way: what is copied is not known before."""
        while going := self._giving_up.get(partition):
            await going[0].is_known.wait()

    async def delete(self, segment: RemoteLogSegmentMetadata) -> None:
        """Delete it, in whatever state it is. Raises KafkaError: it is to be tried again later."""
        topic = segment.partition.topic
        self._metrics.meter("RemoteDeleteRequestsPerSec", topic=topic).mark()
        try:
            await self._go(SegmentStateMachine.to_delete(segment.state), segment)
        except KafkaError:
            self._metrics.meter("RemoteDeleteErrorsPerSec", topic=topic).mark()
            raise

    async def put_summary(
        self, partition: TopicIdPartition, leader_epoch: int, builder: SummaryBuilder
    ) -> None:
        """Nothing of it stays if the topic was deleted meanwhile. Raises KafkaError, which counts as a copy's."""

        def put() -> None:
            self._storage.put_summary(partition, leader_epoch, builder.encode())

        try:
            await self._seams.offload.run(put, lane=OBJECTS_LANE)
        except KafkaError:
            self._metrics.meter("RemoteCopyErrorsPerSec", topic=partition.topic).mark()
            raise
        finally:
            if not self._topic_exists(partition.topic_id):
                with trio.CancelScope(shield=True):
                    await self.remove_summaries(partition)

    async def remove_summaries(self, partition: TopicIdPartition) -> None:
        """Nothing is left of what they were of. Raises KafkaError."""
        await self._seams.offload.run(self._storage.remove_summaries, partition, lane=OBJECTS_LANE)

    async def delete_own(self, partition: TopicIdPartition) -> None:
        """Delete the copies of this partition that this node has begun and given up. Raises KafkaError."""
        for segment in self._metadata.unfinished(partition):
            is_copy = segment.state is SegmentState.COPY_SEGMENT_STARTED
            if is_copy and segment.broker_id == self._node_id and not self.is_in_progress(segment):
                await self.delete(segment)

    async def _go(
        self,
        steps: SegmentStateMachine,
        segment: RemoteLogSegmentMetadata,
        data: LogSegmentData | None = None,
        *,
        is_own: bool = False,
    ) -> None:
        """To the end of the steps; `data` is that of a copy, which is handed over if it is cancelled, or
        cannot be published at once.
        `is_own`: it is a copy of this node that never counted yet. Raises what went wrong, unless it is over
        all the same."""
        failure: KafkaError | OSError | None = None
        back_off = BackOff(self._settings, self._seams.entropy)
        with self._taking_in_hand(segment):
            try:
                while not steps.is_finished:
                    try:
                        segment = await self._do(steps.step, segment, data)
                    except (KafkaError, OSError) as error:
                        failure = failure or error
                        log.info("%s of %s failed: %s", steps.step.value, segment.id, error)
                        before = steps.step
                        steps.advance(self._what_came(before, segment, error, is_own=is_own))
                        if steps.step is before:
                            if data is not None:
                                raise
                            await self._seams.clock.sleep(back_off.next())
                    else:
                        refusal = self._refusal(segment) if steps.step is SegmentStep.COPY else None
                        failure = failure or refusal
                        steps.advance(StepOutcome.DONE if refusal is None else StepOutcome.REFUSED)
            finally:
                if data is not None and not steps.is_finished:
                    self._hand_over(steps.step, segment)
        if steps.step is SegmentStep.COPIED:
            log.info("%s is copied: %d to %d", segment.id, segment.start_offset, segment.end_offset)
            bytes_copied = self._metrics.meter(
                "RemoteCopyBytesPerSec", topic=segment.partition.topic
            )
            bytes_copied.mark(segment.size_bytes)
        wanted = SegmentStep.DELETED if data is None else SegmentStep.COPIED
        if failure is not None and steps.step not in (wanted, SegmentStep.COPIED):
            raise failure

    @contextmanager
    def _taking_in_hand(self, segment: RemoteLogSegmentMetadata) -> Iterator[None]:
        self.in_progress[segment.id] += 1
        try:
            yield
        finally:
            self._let_go(segment)

    def _let_go(self, segment: RemoteLogSegmentMetadata) -> None:
        self.in_progress[segment.id] -= 1
        if not self.in_progress[segment.id]:
            del self.in_progress[segment.id]

    def _what_came(
        self,
        step: SegmentStep,
        segment: RemoteLogSegmentMetadata,
        error: Exception,
        *,
        is_own: bool,
    ) -> StepOutcome:
        is_gone = isinstance(error, RemoteResourceNotFound)
        if is_own and (is_gone or isinstance(error, InvalidRemoteState)):
            if step in _DELETING:
                return StepOutcome.REFUSED
            if step is SegmentStep.PUBLISH_COPY_FINISHED:
                is_known = self._metadata.is_ready(segment.partition)  # then the segment is gone
                counts = is_gone and self._topic_exists(segment.partition.topic_id)
                return StepOutcome.GONE if counts and not is_known else StepOutcome.REFUSED
        return StepOutcome.FAILED

    def _hand_over(self, step: SegmentStep, segment: RemoteLogSegmentMetadata) -> None:
        """Its copier goes. `segment` has what the store said of it, if it was copied. It stays in hand,
        also between attempts: nobody else is to begin with it."""
        if self._nursery is None or step is SegmentStep.PUBLISH_COPY_STARTED:
            return  # nothing is copied
        is_copied = step is SegmentStep.PUBLISH_COPY_FINISHED
        self.in_progress[segment.id] += 1
        if is_copied:
            self._to_publish.add(segment.id)
        self._nursery.start_soon(
            self._see_to_the_end, step if is_copied else SegmentStep.PUBLISH_DELETE_STARTED, segment
        )

    async def _see_to_the_end(self, step: SegmentStep, segment: RemoteLogSegmentMetadata) -> None:
        """What is copied is published; else it is deleted, in the end, and let go."""
        try:
            await self._try_to_the_end(step, segment)
        finally:
            self._to_publish.discard(segment.id)
            self._let_go(segment)

    async def _try_to_the_end(self, step: SegmentStep, segment: RemoteLogSegmentMetadata) -> None:
        back_off = BackOff(self._settings, self._seams.entropy)
        while True:
            steps = SegmentStateMachine(step)
            try:
                await self._go(steps, segment, is_own=True)
                return
            except KafkaError as error:
                log.info("%s was given up, and is not deleted yet: %s", segment.id, error)
                if steps.last is StepOutcome.GONE:
                    return  # this node is no replica any more: others see whether it counts
                step = SegmentStep.PUBLISH_DELETE_STARTED
            await self._seams.clock.sleep(back_off.next())

    async def _do(
        self, step: SegmentStep, segment: RemoteLogSegmentMetadata, data: LogSegmentData | None
    ) -> RemoteLogSegmentMetadata:
        run = self._seams.offload.run
        if step is SegmentStep.PUBLISH_COPY_STARTED:
            await self._metadata.add_segment(segment)
        elif step is SegmentStep.COPY:
            assert data is not None
            custom = await run(self._storage.copy_segment, segment, data, lane=OBJECTS_LANE)
            await trio.lowlevel.checkpoint_if_cancelled()  # whoever leads no more publishes nothing
            segment = replace(segment, custom_metadata=custom)
        elif step is SegmentStep.DELETE:
            await run(self._storage.delete_segment, segment, lane=OBJECTS_LANE)
        else:
            await self._publish(segment, PUBLISHES[step])
        return segment

    async def _publish(self, segment: RemoteLogSegmentMetadata, state: SegmentState) -> None:
        """A copy that is not finished is given up unless it is by the time that others hear so: what an
        earlier life of this node has published may still be on its way, and whoever leads by now deletes
        what is copied from its disk."""
        is_given_up = (
            state is SegmentState.DELETE_SEGMENT_STARTED
            and segment.state is SegmentState.COPY_SEGMENT_STARTED
        )
        await self._metadata.update_segment(
            RemoteLogSegmentMetadataUpdate(
                segment.id,
                self._node_id,
                self._seams.clock.wall_ms(),
                state,
                segment.custom_metadata if state is SegmentState.COPY_SEGMENT_FINISHED else None,
                unless_finished=is_given_up,
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
