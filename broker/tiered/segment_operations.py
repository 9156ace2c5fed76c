"""Executes copies and deletions of remote log segments, step by step (`segment_state_machine.py`).

`in_progress` has the segments that this broker works on. When leadership ends or the topic is
deleted, a separate task deletes the copy in progress, or publishes it if it is complete. Such a
task also publishes a copy that cannot be published at once, so that the copy task is free. So an
incomplete copy of this node that is not in progress will never be completed. Neither will one of another node that
has ended its copies, because tiered storage of the topic was disabled.

The start of a deletion is published by a separate task too, which continues if its caller is
cancelled, because a record that is being sent cannot be recalled. Until it is read back the segment
seems to count, so a new task waits for it (`wait_for_pending_deletions`).
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from typing import TypeVar
from uuid import UUID

import trio

from odradek.broker.metrics.registry import Metrics
from odradek.broker.tiered.periodic_task import BackOff
from odradek.broker.tiered.settings import RemoteLogSettings
from odradek.protocol.errors import KafkaError
from odradek.replication.controller.image import (
    NEVER_DISABLED,
    DisablePolicy,
    TieredState,
    TopicTiering,
)
from odradek.seams import Seams
from odradek.seams.offload import OBJECTS_LANE
from odradek.seams.values import state_class
from odradek.storage.tiered.errors import (
    InvalidRemoteState,
    RemoteMetadataUnavailable,
    RemoteResourceNotFound,
    RemoteStorageError,
)
from odradek.storage.tiered.metadata_records import METADATA_TOPIC
from odradek.storage.tiered.partition_summary import PartitionSummaryBuilder
from odradek.storage.tiered.remote_log_metadata_manager import RemoteLogMetadataManager
from odradek.storage.tiered.remote_storage_manager import LogSegmentData, RemoteStorageManager
from odradek.storage.tiered.segment_metadata import (
    RemoteLogSegmentId,
    RemoteLogSegmentMetadata,
    RemoteLogSegmentMetadataUpdate,
    SegmentState,
    TopicIdPartition,
)
from odradek.storage.tiered.segment_state_machine import (
    PUBLISHES,
    SegmentStateMachine,
    SegmentStep,
    StepOutcome,
)

log = logging.getLogger("odradek.tiered")

Key = TypeVar("Key")

_DELETING = frozenset({SegmentStep.PUBLISH_DELETE_STARTED, SegmentStep.PUBLISH_DELETE_FINISHED})
DANGLING_MS = 10 * 60 * 1000
"""Time after which an incomplete copy of another broker is deleted."""


class CustomMetadataTooLarge(RemoteStorageError):
    """The custom metadata of the RemoteStorageManager exceeds
    remote.log.metadata.custom.metadata.max.bytes."""

    retryable = False


@state_class
class _PendingDeletion:
    """Start of a deletion that is being published."""

    is_known: trio.Event
    """Set when the result is known."""
    failure: Exception | None


class SegmentOperations:
    """Copies and deletes segments; shared by all tasks of the node."""

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
        tiering_of: Callable[[UUID], TopicTiering] = lambda topic_id: NEVER_DISABLED,
    ) -> None:
        """`topic_exists`: whether this node's metadata image has the topic. `tiering_of`: its tiering there."""
        self._topic_exists = topic_exists
        self._tiering_of = tiering_of
        self._node_id = node_id
        self._storage = storage
        self._metadata = metadata
        self._seams = seams
        self._metrics = metrics
        self._settings = settings
        self.in_progress: Counter[RemoteLogSegmentId] = Counter()
        """Number of operations per segment."""
        self._to_publish: set[RemoteLogSegmentId] = set()
        """Segments in progress that are copied and not published yet."""
        self._copying: Counter[TopicIdPartition] = Counter()
        """Number of copies of this broker per partition, including those that a separate task completes or deletes."""
        self._copying_brokers: dict[UUID, tuple[int, frozenset[int]]] = {}
        """By topic that is being disabled: its tiered epoch, and the brokers that may still copy (KIP-950)."""
        self._writing_summaries: Counter[TopicIdPartition] = Counter()
        """Number of summaries per partition that are being stored."""
        self._nursery: trio.Nursery | None = None
        self._pending_deletions: dict[TopicIdPartition, list[_PendingDeletion]] = {}

    def start(self, nursery: trio.Nursery) -> None:
        """Run tasks that complete abandoned copies in `nursery`."""
        self._nursery = nursery

    def is_in_progress(self, segment: RemoteLogSegmentMetadata) -> bool:
        """Whether this broker is copying or deleting the segment."""
        return segment.id in self.in_progress

    def is_busy(self, partition: TopicIdPartition) -> bool:
        """Whether this broker is copying or deleting a segment of the partition, or stores its summary."""
        return partition in self._writing_summaries or any(
            segment.partition == partition for segment in self.in_progress
        )

    def is_copying(self, partition: TopicIdPartition) -> bool:
        """Whether this broker is copying a segment of the partition, or completes or deletes such a copy."""
        return partition in self._copying

    def set_copying_brokers(
        self, topic_id: UUID, tiered_epoch: int, brokers: Iterable[int]
    ) -> bool:
        """Set the brokers that may still copy segments of a topic while it is being disabled in this tiered epoch.
        Returns whether they changed."""
        before = self._copying_brokers.get(topic_id, (-1, frozenset()))
        now = tiered_epoch, frozenset(brokers)
        if before == now or before[0] > tiered_epoch:
            return False
        for other in list(self._copying_brokers):
            if self._tiering_of(other).state is not TieredState.DISABLING:
                del self._copying_brokers[other]
        self._copying_brokers[topic_id] = now
        return True

    def is_dangling(self, segment: RemoteLogSegmentMetadata) -> bool:
        """Whether no broker continues an incomplete copy that is not in progress here. A copy of
        this node was abandoned, maybe in an earlier run. Another broker deletes its own copies;
        it may still publish one until it has ended its copies because of a disablement (KIP-950), or DANGLING_MS
        have passed."""
        if segment.broker_id == self._node_id or self._has_ended(segment):
            return True
        return self._seams.clock.wall_ms() - segment.event_timestamp_ms > DANGLING_MS

    def _has_ended(self, segment: RemoteLogSegmentMetadata) -> bool:
        """Whether the remote data before a later tiered epoch is deleted, and the segment's broker has ended its
        copies of that data. All brokers have when the state is not DISABLING any more."""
        topic_id = segment.partition.topic_id
        tiering = self._tiering_of(topic_id)
        if segment.tiered_epoch >= tiering.first_epoch:
            return False
        if tiering.state is not TieredState.DISABLING or tiering.first_epoch < tiering.epoch:
            return True
        epoch, copying = self._copying_brokers.get(topic_id, (-1, frozenset()))
        return epoch == tiering.epoch and segment.broker_id not in copying

    async def copy(self, segment: RemoteLogSegmentMetadata, data: LogSegmentData) -> None:
        """Copy a segment and publish it. Raises KafkaError, or OSError of the local disk, after the
        copy was deleted or left to the expiration task or `check_published`."""
        topic = segment.partition.topic
        self._metrics.meter("RemoteCopyRequestsPerSec", topic=topic).mark()
        try:
            await self._go(SegmentStateMachine(), segment, data, is_own=True)
        except (KafkaError, OSError):
            self._metrics.meter("RemoteCopyErrorsPerSec", topic=topic).mark()
            raise

    def check_published(self, partition: TopicIdPartition) -> None:
        """Raise RemoteMetadataUnavailable while a copy of the partition is not published, because
        the next segment to copy depends on it."""
        for each in self._metadata.unfinished(partition):
            if each.id in self._to_publish and each.state is SegmentState.COPY_SEGMENT_STARTED:
                raise RemoteMetadataUnavailable(
                    f"{each.id} is copied and not yet published in {METADATA_TOPIC}"
                )

    async def begin_to_delete(self, segment: RemoteLogSegmentMetadata) -> RemoteLogSegmentMetadata:
        """Publish the start of the deletion; returns the segment in its new state. Raises
        KafkaError."""
        if segment.state is SegmentState.DELETE_SEGMENT_STARTED:
            return segment
        assert self._nursery is not None, "not started"
        await trio.lowlevel.checkpoint_if_cancelled()
        going = _PendingDeletion(
            trio.Event(), RemoteMetadataUnavailable("the broker is shutting down")
        )
        self._pending_deletions.setdefault(segment.partition, []).append(going)
        self._nursery.start_soon(self._publish_deletion, segment, going)
        try:
            await going.is_known.wait()
            if going.failure is not None:
                raise going.failure
        except KafkaError as error:
            log.info("cannot start the deletion of %s: %s", segment.id, error)
            for meter in ("RemoteDeleteRequestsPerSec", "RemoteDeleteErrorsPerSec"):
                self._metrics.meter(meter, topic=segment.partition.topic).mark()
            raise
        return replace(segment, state=SegmentState.DELETE_SEGMENT_STARTED)

    async def _publish_deletion(
        self, segment: RemoteLogSegmentMetadata, going: _PendingDeletion
    ) -> None:
        try:
            await self._publish(segment, SegmentState.DELETE_SEGMENT_STARTED)
            going.failure = None
        except Exception as error:  # raised by the caller
            going.failure = error
        finally:
            others = self._pending_deletions[segment.partition]
            others.remove(going)
            if not others:
                del self._pending_deletions[segment.partition]
            going.is_known.set()

    async def wait_for_pending_deletions(self, partition: TopicIdPartition) -> None:
        """Wait until no start of a deletion is being published; the highest copied offset is not
        known before."""
        while going := self._pending_deletions.get(partition):
            await going[0].is_known.wait()

    async def delete(self, segment: RemoteLogSegmentMetadata) -> None:
        """Delete a segment in any state. Raises KafkaError; retry later."""
        topic = segment.partition.topic
        self._metrics.meter("RemoteDeleteRequestsPerSec", topic=topic).mark()
        try:
            await self._go(SegmentStateMachine.to_delete(segment.state), segment)
        except KafkaError:
            self._metrics.meter("RemoteDeleteErrorsPerSec", topic=topic).mark()
            raise

    async def put_summary(
        self, partition: TopicIdPartition, leader_epoch: int, builder: PartitionSummaryBuilder
    ) -> None:
        """Store a summary, and delete it if the topic or its remote data was deleted meanwhile. Raises
        KafkaError, which is counted as a copy error."""

        def put() -> None:
            self._storage.put_summary(partition, leader_epoch, builder.encode())

        self._writing_summaries[partition] += 1
        try:
            await self._seams.offload.run(put, lane=OBJECTS_LANE)
        except KafkaError:
            self._metrics.meter("RemoteCopyErrorsPerSec", topic=partition.topic).mark()
            raise
        finally:
            try:
                if self._is_deleted(partition.topic_id):
                    with trio.CancelScope(shield=True):
                        await self.remove_summaries(partition)
            finally:
                _remove_one(self._writing_summaries, partition)

    def _is_deleted(self, topic_id: UUID) -> bool:
        """Whether the topic, or its remote data (KIP-950), is deleted."""
        is_removed = self._tiering_of(topic_id).policy is DisablePolicy.DELETE
        return is_removed or not self._topic_exists(topic_id)

    async def remove_summaries(self, partition: TopicIdPartition) -> None:
        """Delete all summaries of a partition. Raises KafkaError."""
        await self._seams.offload.run(self._storage.remove_summaries, partition, lane=OBJECTS_LANE)

    async def delete_own(self, partition: TopicIdPartition) -> None:
        """Delete the abandoned copies of this node. Raises KafkaError."""
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
        """Run all steps. `data` is that of a copy; a separate task takes over if it is cancelled or
        cannot be published at once. `is_own`: an incomplete copy of this node. Raises the first
        failure, unless the goal was reached."""
        failure: KafkaError | OSError | None = None
        back_off = BackOff(self._settings, self._seams.entropy)
        with self._track(segment, is_own=is_own):
            try:
                while not steps.is_finished:
                    try:
                        segment = await self._do(steps.step, segment, data)
                    except (KafkaError, OSError) as error:
                        failure = failure or error
                        log.info("%s of %s failed: %s", steps.step.value, segment.id, error)
                        before = steps.step
                        steps.advance(self._classify_outcome(before, segment, error, is_own=is_own))
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
            log.info(
                "Copied remote log segment %s with offsets %d to %d",
                segment.id,
                segment.start_offset,
                segment.end_offset,
            )
            bytes_copied = self._metrics.meter(
                "RemoteCopyBytesPerSec", topic=segment.partition.topic
            )
            bytes_copied.mark(segment.size_bytes)
        wanted = SegmentStep.DELETED if data is None else SegmentStep.COPIED
        if failure is not None and steps.step not in (wanted, SegmentStep.COPIED):
            raise failure

    @contextmanager
    def _track(self, segment: RemoteLogSegmentMetadata, *, is_own: bool) -> Iterator[None]:
        """Keep the segment in progress. `is_own`: as an incomplete copy of this node."""
        self.in_progress[segment.id] += 1
        if is_own:
            self._copying[segment.partition] += 1
        try:
            yield
        finally:
            _remove_one(self.in_progress, segment.id)
            if is_own:
                _remove_one(self._copying, segment.partition)

    def _classify_outcome(
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
                # A partition that is ready and does not know the segment has deleted it
                is_known = self._metadata.is_ready(segment.partition)
                counts = is_gone and self._topic_exists(segment.partition.topic_id)
                return StepOutcome.GONE if counts and not is_known else StepOutcome.REFUSED
        return StepOutcome.FAILED

    def _hand_over(self, step: SegmentStep, segment: RemoteLogSegmentMetadata) -> None:
        """Continue the operation of a cancelled copy task in a separate task. The segment stays in
        progress, so that no other task starts with it."""
        if self._nursery is None or step is SegmentStep.PUBLISH_COPY_STARTED:
            return  # nothing is copied
        is_copied = step is SegmentStep.PUBLISH_COPY_FINISHED
        if is_copied:
            self._to_publish.add(segment.id)
        tracked = ExitStack()
        tracked.enter_context(self._track(segment, is_own=True))
        self._nursery.start_soon(
            self._complete_abandoned,
            step if is_copied else SegmentStep.PUBLISH_DELETE_STARTED,
            segment,
            tracked,
        )

    async def _complete_abandoned(
        self, step: SegmentStep, segment: RemoteLogSegmentMetadata, tracked: ExitStack
    ) -> None:
        """Publish a complete copy or delete an incomplete one."""
        with tracked:
            try:
                await self._retry_until_complete(step, segment)
            finally:
                self._to_publish.discard(segment.id)

    async def _retry_until_complete(
        self, step: SegmentStep, segment: RemoteLogSegmentMetadata
    ) -> None:
        back_off = BackOff(self._settings, self._seams.entropy)
        while True:
            steps = SegmentStateMachine(step)
            task = "publication" if step is SegmentStep.PUBLISH_COPY_FINISHED else "deletion"
            try:
                await self._go(steps, segment, is_own=True)
                return
            except KafkaError as error:
                if steps.last is StepOutcome.GONE:
                    return  # this node has no replica any more; the leader decides about the copy
                log.info(
                    "%s of the abandoned copy %s failed, retrying: %s", task, segment.id, error
                )
                step = SegmentStep.PUBLISH_DELETE_STARTED
            except Exception:  # the failure of one segment must not end the node
                log.exception("%s of the abandoned copy %s failed, retrying", task, segment.id)
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
            await trio.lowlevel.checkpoint_if_cancelled()  # a deposed leader publishes nothing
            segment = replace(segment, custom_metadata=custom)
        elif step is SegmentStep.DELETE:
            await run(self._storage.delete_segment, segment, lane=OBJECTS_LANE)
        else:
            await self._publish(segment, PUBLISHES[step])
        return segment

    async def _publish(self, segment: RemoteLogSegmentMetadata, state: SegmentState) -> None:
        """Publish the next state. The deletion of an incomplete copy is refused if the copy was
        finished meanwhile: an event of an earlier run of this node may still arrive, and the
        current leader may have deleted its local segment for it. No leader relies on a copy of an earlier
        tiered epoch. If this leader has refused to finish it, others have not, and must accept the deletion."""
        is_given_up = (
            state is SegmentState.DELETE_SEGMENT_STARTED
            and segment.state is SegmentState.COPY_SEGMENT_STARTED
            and segment.tiered_epoch >= self._tiering_of(segment.partition.topic_id).first_epoch
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
            f"the custom metadata of {segment.id} has {len(custom)} bytes;"
            f" remote.log.metadata.custom.metadata.max.bytes allows {limit}"
        )


def _remove_one(counter: Counter[Key], key: Key) -> None:
    """Count one less, without an entry of 0."""
    counter[key] -= 1
    if not counter[key]:
        del counter[key]
