"""The RemotePartitionRemover (T-51): on the leader of a metadata partition, one task for each partition
in its census whose topic was deleted, doing what `remover.py` says until the census has it no more.

It looks after each change of the cluster that deletes topics, when a census is complete, and every so
often (T-09). A step that fails is tried again, later and later, for as long as this node leads; what was
done stays done. A topic of the same name that lives meanwhile has another id, and nothing to do with it
(T-52).

What is done to a deleted partition's segments in the remote tier, step by step (T-27, T-51).

    (none) → MARK → START → REMOVE_SEGMENTS → FINISH

| its deletion is | segments are left | step |
|---|---|---|
| not marked | either | MARK |
| DELETE_PARTITION_MARKED | either | START |
| DELETE_PARTITION_STARTED | yes | REMOVE_SEGMENTS |
| DELETE_PARTITION_STARTED | no | FINISH |
| DELETE_PARTITION_FINISHED | yes | REMOVE_SEGMENTS: somebody who had not heard of it copied one more |
| DELETE_PARTITION_FINISHED | no | FINISH, again: it was, and is over when the census has it no more |

Where a removal stands is read from the metadata topic alone, so that whoever comes after a crash or a
change of leader goes on where the one before stopped; two who remove at once publish the same states,
and each state may follow itself. A segment is removed as one that has expired (`segment_steps.py`).

KIP-405 has the controller publish the mark. Here it is the remover, on the leader of the metadata
partition, as soon as it sees that the cluster has no such topic: nothing is lost if nobody did at the
time. (Apache Kafka 4.x publishes no such records, but reads them.)

Whether a topic that the remote tier has something of was deleted, or is not known here yet.

That the cluster's image has no topic of an id may mean either: images lag, and what a lagging node took
for deleted would be gone for good. So it takes evidence: this node saw the deletion, or its image is of
a time well after the first record about the topic, and must have had it if it lived.
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
from odradek.replication.remote.topic_metadata_manager import TopicBasedRemoteLogMetadataManager
from odradek.seams import Seams
from odradek.seams.offload import OBJECTS_LANE
from odradek.seams.values import value_class
from odradek.storage.tiered.errors import RemoteStorageError
from odradek.storage.tiered.metadata import (
    PartitionDeleteState,
    RemoteLogSegmentMetadata,
    RemoteLogSegmentMetadataUpdate,
    RemotePartitionDeleteMetadata,
    TopicIdPartition,
)
from odradek.storage.tiered.remote_storage_manager import RemoteStorageManager
from odradek.storage.tiered.segment_state_machine import PUBLISHES as SEGMENT_PUBLISHES
from odradek.storage.tiered.segment_state_machine import (
    SegmentStateMachine,
    SegmentStep,
    StepOutcome,
)

SKEW_MS: Final = 60_000
"""By how much the clocks of two nodes may differ."""
REMEMBERED: Final = 10_000


class TopicState(Enum):
    EXISTS = "lives"
    DELETED = "deleted"
    UNKNOWN = "too early to tell"


class DeletedTopics:
    """See the module."""

    def __init__(self) -> None:
        self._seen: OrderedDict[UUID, None] = OrderedDict()

    def metadata_changed(self, delta: MetadataDelta) -> bool:
        """Whether topics were deleted."""
        for topic_id in delta.deleted_topics:
            self._seen[topic_id] = None
        while len(self._seen) > REMEMBERED:
            self._seen.popitem(last=False)
        return bool(delta.deleted_topics)

    def topic_state(
        self, image: MetadataImage, topic_id: UUID, first_ms: int, *, now_ms: int | None
    ) -> TopicState:
        """`first_ms` is when the topic was first heard of in the remote tier. `now_ms` is the time on
        the active controller, whose image is of the present; None anywhere else."""
        if topic_id in image.topics_by_id:
            return TopicState.EXISTS
        if topic_id in self._seen:
            return TopicState.DELETED
        as_of_ms = image.timestamp_ms if now_ms is None else now_ms
        return TopicState.DELETED if as_of_ms >= first_ms + SKEW_MS else TopicState.UNKNOWN


_P = PartitionDeleteState


class RemovalStep(Enum):
    """The next step."""

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
"""By the state of the deletion, and whether segments are left."""

PUBLISHES: Final[Mapping[RemovalStep, PartitionDeleteState]] = {
    RemovalStep.MARK: _P.DELETE_PARTITION_MARKED,
    RemovalStep.START: _P.DELETE_PARTITION_STARTED,
    RemovalStep.FINISH: _P.DELETE_PARTITION_FINISHED,
}


def next_step(state: PartitionDeleteState | None, *, segments_left: bool) -> RemovalStep:
    return STEPS[state, segments_left]


log = logging.getLogger("odradek.tiered")

BREATH_S: Final = 0.05
"""Between two looks at all censuses, while much changes."""
TOO_EARLY_S: Final = 15.0
PARTITIONS_A_STEP: Final = 500


@value_class
class RemoverSettings:
    """Times in seconds; `jitter` is the part of a pause that is left to chance."""

    interval_s: float = 3600.0
    backoff_s: float = 0.5
    backoff_max_s: float = 30.0
    jitter: float = 0.2
    partitions_at_once: int = 4
    segments_at_once: int = 10


class RemotePartitionRemover:
    """See the module. `topic_state` says whether a partition's topic was deleted, given when (ms) it was
    first heard of."""

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
        self._removing: dict[TopicIdPartition, trio.CancelScope] = {}
        self._to_begin: list[TopicIdPartition] = []
        self._partitions = trio.CapacityLimiter(settings.partitions_at_once)
        self._segments = trio.CapacityLimiter(settings.segments_at_once)
        manager.on_inventory_changed(self.wake)

    @property
    def removing(self) -> list[TopicIdPartition]:
        """What is being removed, or waits for its turn."""
        return list(self._removing)

    def wake(self) -> None:
        """Something changed: look."""
        self._woken.set()

    def topics_deleted(self, ids: Iterable[UUID]) -> None:
        """The cluster has just deleted these. Told before their replicas end, so that what is known of
        their segments need not be read again."""
        deleted = dict.fromkeys(ids)
        found = [
            partition
            for _, census in self._manager.inventories()
            for partition in census.of_topics(deleted)
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
        """Until cancelled."""
        async with trio.open_nursery() as nursery:
            task_status.started()
            while True:
                self._woken = trio.Event()
                is_certain = await self._look(nursery)
                await trio.sleep(BREATH_S)
                pause_s = self._settings.interval_s if is_certain else TOO_EARLY_S
                with trio.move_on_after(pause_s):
                    await self._woken.wait()

    async def _look(self, nursery: trio.Nursery) -> bool:
        """Begin what is to be removed, end what is not ours any more; whether all could be told."""
        inventories = dict(self._manager.inventories())
        for partition, scope in self._removing.items():
            if self._manager.place_of(partition) not in inventories:
                scope.cancel()
        is_certain = True
        looked = 0
        for census in inventories.values():
            for partition, first_ms in census:
                topic_state = self._topic_state(partition, first_ms)
                is_certain = is_certain and topic_state is not TopicState.UNKNOWN
                if topic_state is TopicState.DELETED:
                    self._hold(partition)
                looked += 1
                if looked % PARTITIONS_A_STEP == 0:
                    await trio.lowlevel.checkpoint()
        to_begin, self._to_begin = self._to_begin, []
        for partition in to_begin:
            nursery.start_soon(self._remove_when_due, partition)
        return is_certain

    # One partition

    async def _remove_when_due(self, partition: TopicIdPartition) -> None:
        scope = self._removing[partition]
        try:
            with scope:
                await self._remove(partition)
        finally:
            del self._removing[partition]
            self._manager.release(partition)
            if scope.cancel_called:
                self.wake()  # its census may be here again, and was looked at while this went on

    async def _remove(self, partition: TopicIdPartition) -> None:
        """Until nothing is left of it, or somebody else leads its metadata partition."""
        log.info("%s was deleted: its segments in the remote tier go too", partition)
        pauses, trouble = self._pauses(), ""
        while self._manager.is_in_inventory(partition):
            try:
                await self._manager.wait_ready(partition)
                async with self._partitions:  # who waits keeps no place: it may be for ever
                    await self._step(partition)
                pauses = self._pauses()
            except RemoteStorageError as error:
                if str(error) != trouble:  # once, not at every attempt
                    trouble = str(error)
                    log.warning(
                        "removing %s from the remote tier, again and again: %s", partition, error
                    )
                await self._seams.clock.sleep(next(pauses))

    async def _step(self, partition: TopicIdPartition) -> None:
        """Raises RemoteStorageError if it is to be repeated."""
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
            log.info("%s is gone from the remote tier", partition)

    async def _remove_segments(self, partition: TopicIdPartition) -> None:
        """Several at once, as long as not too many fail. Raises what the first failure was."""
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
                if len(failures) > self._settings.segments_at_once:  # the store is away
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
        """T-12: longer and longer, with jitter."""
        settings, pause = self._settings, self._settings.backoff_s
        while True:
            spread = settings.jitter * pause
            yield self._seams.entropy.uniform(pause - spread, pause + spread)
            pause = min(2 * pause, settings.backoff_max_s)
