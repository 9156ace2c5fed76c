"""The RemotePartitionRemover (T-51): on the leader of a metadata partition, one task for each partition
in its census whose topic was deleted, doing what `remover.py` says until the census has it no more.

It looks after each change of the cluster that deletes topics, when a census is complete, and every so
often (T-09). A step that fails is tried again, later and later, for as long as this node leads; what was
done stays done. A topic of the same name that lives meanwhile has another id, and nothing to do with it
(T-52).
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator
from typing import Final
from uuid import UUID

import trio

from odradek.replication.remote.deleted_topics import Verdict
from odradek.replication.remote.remover import PUBLISHES, Removal, next_step
from odradek.replication.remote.topic_metadata_manager import TopicBasedRemoteLogMetadataManager
from odradek.seams import Seams
from odradek.seams.offload import OBJECTS_LANE
from odradek.seams.values import value_class
from odradek.storage.tiered.errors import RemoteStorageError
from odradek.storage.tiered.metadata import (
    RemoteLogSegmentMetadata,
    RemoteLogSegmentMetadataUpdate,
    RemotePartitionDeleteMetadata,
    TopicIdPartition,
)
from odradek.storage.tiered.remote_storage import RemoteStorageManager
from odradek.storage.tiered.segment_steps import PUBLISHES as SEGMENT_PUBLISHES
from odradek.storage.tiered.segment_steps import Came, SegmentSteps, Step

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


class PartitionRemover:
    """See the module. `verdict` says whether a partition's topic was deleted, given when (ms) it was
    first heard of."""

    def __init__(
        self,
        manager: TopicBasedRemoteLogMetadataManager,
        storage: RemoteStorageManager,
        seams: Seams,
        settings: RemoverSettings,
        *,
        node_id: int,
        verdict: Callable[[TopicIdPartition, int], Verdict],
    ) -> None:
        self._manager = manager
        self._storage = storage
        self._seams = seams
        self._settings = settings
        self._node_id = node_id
        self._verdict = verdict
        self._woken = trio.Event()
        self._removing: dict[TopicIdPartition, trio.CancelScope] = {}
        self._to_begin: list[TopicIdPartition] = []
        self._partitions = trio.CapacityLimiter(settings.partitions_at_once)
        self._segments = trio.CapacityLimiter(settings.segments_at_once)
        manager.on_census(self.wake)

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
            for _, census in self._manager.censuses()
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
        censuses = dict(self._manager.censuses())
        for partition, scope in self._removing.items():
            if self._manager.place_of(partition) not in censuses:
                scope.cancel()
        is_certain = True
        looked = 0
        for census in censuses.values():
            for partition, first_ms in census:
                verdict = self._verdict(partition, first_ms)
                is_certain = is_certain and verdict is not Verdict.TOO_EARLY
                if verdict is Verdict.DELETED:
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
        while self._manager.is_in_census(partition):
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
        if step is Removal.REMOVE_SEGMENTS:
            await self._remove_segments(partition)
            return
        if step is Removal.FINISH:
            await self._seams.offload.run(
                self._storage.remove_summaries, partition, lane=OBJECTS_LANE
            )
        await manager.put_partition_delete(
            RemotePartitionDeleteMetadata(partition, self._node_id, self._now(), PUBLISHES[step])
        )
        if step is Removal.FINISH:
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
        steps = SegmentSteps.to_delete(segment.state)
        while not steps.is_over:
            await self._do(steps.step, segment)
            steps.came(Came.DONE)

    async def _do(self, step: Step, segment: RemoteLogSegmentMetadata) -> None:
        if step is Step.DELETE:
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
