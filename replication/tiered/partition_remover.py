"""RemotePartitionRemover (T-51): deletes the remote log segments of deleted topics on the leader of their metadata partition.

One task per deleted partition runs the steps of the table below until the inventory no longer has the partition. The remover
runs after each metadata change that deletes topics, when an inventory is complete, and periodically (T-09). It retries a failed
step with backoff while this node leads the metadata partition. A recreated topic has another id and is not affected (T-52).

Steps (T-27, T-51):

    (none) → MARK → START → REMOVE_SEGMENTS → FINISH

| state of the deletion | segments remain | step |
|---|---|---|
| not marked | either | MARK |
| DELETE_PARTITION_MARKED | either | START |
| DELETE_PARTITION_STARTED | yes | REMOVE_SEGMENTS |
| DELETE_PARTITION_STARTED | no | FINISH |
| DELETE_PARTITION_FINISHED | yes | REMOVE_SEGMENTS: a leader copied a segment after the deletion |
| DELETE_PARTITION_FINISHED | no | FINISH again: the removal is complete when the inventory no longer has the partition |

The state comes from the metadata topic only, so a new leader continues where the old one stopped. Two nodes that remove at the
same time publish the same states, and each state may follow itself. A segment is deleted like an expired one
(`storage/tiered/segment_state_machine.py`).

In KIP-405 the controller publishes the mark. Here the remover publishes it when the cluster no longer has the topic. (Apache
Kafka 4.x publishes no such records, but reads them.)

A missing topic in the metadata image is not sufficient evidence of a deletion, because images lag and a deletion is final. Either
this node has processed the deletion, or its image is sufficiently newer than the first record about the topic.
"""

from __future__ import annotations

import logging
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping
from enum import Enum
from typing import Final
from uuid import UUID

import trio

from odradek.replication.controller.image import MetadataDelta, MetadataImage
from odradek.replication.tiered.topic_metadata_manager import TopicBasedRemoteLogMetadataManager
from odradek.seams import Seams
from odradek.seams.containment import Containment
from odradek.seams.offload import OBJECTS_LANE
from odradek.seams.values import value_class
from odradek.storage.tiered.errors import RemoteStorageError
from odradek.storage.tiered.remote_storage_manager import RemoteStorageManager
from odradek.storage.tiered.segment_metadata import (
    PartitionDeleteState,
    RemoteLogSegmentMetadata,
    RemoteLogSegmentMetadataUpdate,
    RemotePartitionDeleteMetadata,
    TopicIdPartition,
)
from odradek.storage.tiered.segment_state_machine import PUBLISHES as SEGMENT_PUBLISHES
from odradek.storage.tiered.segment_state_machine import (
    SegmentStateMachine,
    SegmentStep,
    StepOutcome,
)

SKEW_MS: Final = 60_000
"""Maximum difference between the clocks of two nodes, in ms."""
REMEMBERED: Final = 10_000


log = logging.getLogger("odradek.tiered")

BREATH_S: Final = 0.05
"""Minimum time between checks of all inventories, in seconds."""
TOO_EARLY_S: Final = 15.0
PARTITIONS_A_STEP: Final = 500


class TopicState(Enum):
    EXISTS = "exists"
    DELETED = "deleted"
    UNKNOWN = "unknown"


class DeletedTopics:
    """Distinguishes deleted topics from topics that this node does not know yet."""

    def __init__(self) -> None:
        self._seen: OrderedDict[UUID, None] = OrderedDict()

    def metadata_changed(self, delta: MetadataDelta) -> bool:
        """Record the topics that a delta deletes; return whether there are any."""
        for topic_id in delta.deleted_topics:
            self._seen[topic_id] = None
        while len(self._seen) > REMEMBERED:
            self._seen.popitem(last=False)
        return bool(delta.deleted_topics)

    def topic_state(
        self, image: MetadataImage, topic_id: UUID, first_ms: int, *, now_ms: int | None
    ) -> TopicState:
        """Return the state of a topic.

        `first_ms` is the time of the first record about the topic. `now_ms` is the current time on the active
        controller, whose image is current; None on other nodes.
        """
        if topic_id in image.topics_by_id:
            return TopicState.EXISTS
        if topic_id in self._seen:
            return TopicState.DELETED
        as_of_ms = image.timestamp_ms if now_ms is None else now_ms
        return TopicState.DELETED if as_of_ms >= first_ms + SKEW_MS else TopicState.UNKNOWN


_P = PartitionDeleteState


class RemovalStep(Enum):
    """Steps of a removal."""

    MARK = "publish DELETE_PARTITION_MARKED"
    START = "publish DELETE_PARTITION_STARTED"
    REMOVE_SEGMENTS = "remove its segments"
    FINISH = "publish DELETE_PARTITION_FINISHED"


STEPS: Final[Mapping[tuple[PartitionDeleteState | None, bool], RemovalStep]] = {
    (None, True): RemovalStep.MARK,
    (None, False): RemovalStep.MARK,
    (_P.DELETE_PARTITION_MARKED, True): RemovalStep.START,
    (_P.DELETE_PARTITION_MARKED, False): RemovalStep.START,
    (_P.DELETE_PARTITION_STARTED, True): RemovalStep.REMOVE_SEGMENTS,
    (_P.DELETE_PARTITION_STARTED, False): RemovalStep.FINISH,
    (_P.DELETE_PARTITION_FINISHED, True): RemovalStep.REMOVE_SEGMENTS,
    (_P.DELETE_PARTITION_FINISHED, False): RemovalStep.FINISH,
}
"""Next step by the state of the deletion and whether segments remain."""

PUBLISHES: Final[Mapping[RemovalStep, PartitionDeleteState]] = {
    RemovalStep.MARK: _P.DELETE_PARTITION_MARKED,
    RemovalStep.START: _P.DELETE_PARTITION_STARTED,
    RemovalStep.FINISH: _P.DELETE_PARTITION_FINISHED,
}


def next_step(state: PartitionDeleteState | None, *, segments_left: bool) -> RemovalStep:
    return STEPS[state, segments_left]


@value_class
class RemoverSettings:
    """Settings in seconds; `jitter` is the random fraction of a pause."""

    interval_s: float = 3600.0
    backoff_s: float = 0.5
    backoff_max_s: float = 30.0
    jitter: float = 0.2
    partitions_at_once: int = 4
    segments_at_once: int = 10


class RemotePartitionRemover:
    """Removes deleted partitions. `topic_state` returns the state of a topic, given the time (ms) of its first record."""

    def __init__(
        self,
        manager: TopicBasedRemoteLogMetadataManager,
        storage: RemoteStorageManager,
        seams: Seams,
        settings: RemoverSettings,
        *,
        node_id: int,
        topic_state: Callable[[TopicIdPartition, int], TopicState],
    ) -> None:
        self._manager = manager
        self._storage = storage
        self._seams = seams
        self._settings = settings
        self._node_id = node_id
        self._topic_state = topic_state
        self._woken = trio.Event()
        self._containment: Containment[str] = Containment(
            "removing remote log segments", consequence="the next round tries again"
        )
        self._removing: dict[TopicIdPartition, trio.CancelScope] = {}
        self._to_begin: list[TopicIdPartition] = []
        self._partitions = trio.CapacityLimiter(settings.partitions_at_once)
        self._segments = trio.CapacityLimiter(settings.segments_at_once)
        manager.on_inventory_changed(self.wake)

    @property
    def removing(self) -> list[TopicIdPartition]:
        """Partitions that are being removed or wait."""
        return list(self._removing)

    def wake(self) -> None:
        """Check the inventories, because something changed."""
        self._woken.set()

    def topics_deleted(self, ids: Iterable[UUID]) -> None:
        """Handle deleted topics. Call it before their replicas end, so that their metadata is not read again."""
        deleted = dict.fromkeys(ids)
        found = [
            partition
            for _, inventory in self._manager.inventories()
            for partition in inventory.of_topics(deleted)
        ]
        for partition in found:
            self._hold(partition)
        if found:
            self.wake()

    def _hold(self, partition: TopicIdPartition) -> None:
        if partition not in self._removing:
            self._removing[partition] = trio.CancelScope()
            self._to_begin.append(partition)
            self._manager.hold(partition)

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Remove deleted partitions until cancelled."""
        async with trio.open_nursery() as nursery:
            task_status.started()
            while True:
                self._woken = trio.Event()
                is_certain = await self._containment.run("all partitions", self._look, nursery)
                await trio.sleep(BREATH_S)
                pause_s = self._settings.interval_s if is_certain else TOO_EARLY_S
                with trio.move_on_after(pause_s):
                    await self._woken.wait()

    async def _look(self, nursery: trio.Nursery) -> bool:
        """Start removals, and end those of other leaders; return whether the state of all topics is known."""
        inventories = dict(self._manager.inventories())
        for partition, scope in self._removing.items():
            if self._manager.metadata_partition_of(partition) not in inventories:
                scope.cancel()
        is_certain = True
        looked = 0
        for inventory in inventories.values():
            for partition, first_ms in inventory:
                topic_state = self._topic_state(partition, first_ms)
                is_certain = is_certain and topic_state is not TopicState.UNKNOWN
                if topic_state is TopicState.DELETED:
                    self._hold(partition)
                looked += 1
                if looked % PARTITIONS_A_STEP == 0:
                    await trio.lowlevel.checkpoint()
        to_begin, self._to_begin = self._to_begin, []
        for partition in to_begin:
            nursery.start_soon(
                self._containment.run, str(partition), self._remove_when_due, partition
            )
        return is_certain

    # Removal of one partition

    async def _remove_when_due(self, partition: TopicIdPartition) -> None:
        scope = self._removing[partition]
        try:
            with scope:
                await self._remove(partition)
        finally:
            del self._removing[partition]
            self._manager.release(partition)
            if scope.cancel_called:
                self.wake()  # the inventory may have been checked while this task was running

    async def _remove(self, partition: TopicIdPartition) -> None:
        """Remove a partition until nothing remains or another node leads its metadata partition."""
        log.info("%s was deleted: deleting its remote log segments", partition)
        pauses, trouble = self._pauses(), ""
        while self._manager.is_in_inventory(partition):
            try:
                await self._manager.wait_ready(partition)
                # A waiting task does not count against the limit, because it may wait forever
                async with self._partitions:
                    await self._step(partition)
                pauses = self._pauses()
            except (
                Exception
            ) as error:  # of any kind: the failure of one partition must not end the node
                if str(error) != trouble:  # log it once, not for every attempt
                    trouble = str(error)
                    is_expected = isinstance(error, RemoteStorageError)
                    log.warning(
                        "Failed to delete the remote log segments of %s, retrying: %s",
                        partition,
                        error,
                        exc_info=None if is_expected else error,
                    )
                await self._seams.clock.sleep(next(pauses))

    async def _step(self, partition: TopicIdPartition) -> None:
        """Run the next step. Raises RemoteStorageError if it must be repeated."""
        manager = self._manager
        segments_left = any(True for _ in manager.segments(partition))
        step = next_step(manager.partition_delete_state(partition), segments_left=segments_left)
        if step is RemovalStep.REMOVE_SEGMENTS:
            await self._remove_segments(partition)
            return
        if step is RemovalStep.FINISH:
            await self._seams.offload.run(
                self._storage.remove_summaries, partition, lane=OBJECTS_LANE
            )
        await manager.put_partition_delete(
            RemotePartitionDeleteMetadata(partition, self._node_id, self._now(), PUBLISHES[step])
        )
        if step is RemovalStep.FINISH:
            log.info("the remote log segments of %s are deleted", partition)

    async def _remove_segments(self, partition: TopicIdPartition) -> None:
        """Delete segments concurrently; stop after several failures and raise the first one."""
        failures: list[RemoteStorageError] = []

        async def remove(segment: RemoteLogSegmentMetadata) -> None:
            try:
                await self._remove_segment(segment)
            except RemoteStorageError as error:
                failures.append(error)
            finally:
                self._segments.release_on_behalf_of(segment.id)

        async with trio.open_nursery() as nursery:
            for segment in self._manager.segments(partition):
                await self._segments.acquire_on_behalf_of(segment.id)
                if len(failures) > self._settings.segments_at_once:  # the store is unavailable
                    self._segments.release_on_behalf_of(segment.id)
                    break
                nursery.start_soon(remove, segment)
        if failures:
            raise failures[0]

    async def _remove_segment(self, segment: RemoteLogSegmentMetadata) -> None:
        steps = SegmentStateMachine.to_delete(segment.state)
        while not steps.is_finished:
            await self._do(steps.step, segment)
            steps.advance(StepOutcome.DONE)

    async def _do(self, step: SegmentStep, segment: RemoteLogSegmentMetadata) -> None:
        if step is SegmentStep.DELETE:
            await self._seams.offload.run(self._storage.delete_segment, segment, lane=OBJECTS_LANE)
            return
        await self._manager.update_segment(
            RemoteLogSegmentMetadataUpdate(
                segment.id, self._node_id, self._now(), SEGMENT_PUBLISHES[step]
            )
        )

    def _now(self) -> int:
        return self._seams.clock.wall_ms()

    def _pauses(self) -> Iterator[float]:
        """Yield pauses that grow, with jitter (T-12)."""
        settings, pause = self._settings, self._settings.backoff_s
        while True:
            spread = settings.jitter * pause
            yield self._seams.entropy.uniform(pause - spread, pause + spread)
            pause = min(2 * pause, settings.backoff_max_s)
