"""The coordinators of diskless topics on this broker: every replica of `__diskless_metadata` that it has (KIP-1164, D-13).

A replica is opened when its partition is, and closed when the partition is removed or its log directory fails. Each one
runs in a task of its own, so that an unexpected error stops one coordinator.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from dataclasses import field
from typing import TYPE_CHECKING, Final
from uuid import UUID

import trio

from odradek.broker.coordination.coordinator_runtime import NotCoordinator
from odradek.broker.coordination.internal_topics import DISKLESS_METADATA_TOPIC
from odradek.broker.coordination.partition_coordinator_log import PartitionCoordinatorLog
from odradek.broker.diskless.coordinator import (
    CoordinatorEnvironment,
    CoordinatorNotAvailable,
    DisklessCoordinator,
    StateStore,
)
from odradek.broker.diskless.snapshots import SnapshotEnvironment
from odradek.protocol.schemas.diskless_apis import (
    DisklessFetchSnapshotRequest,
    DisklessFetchSnapshotResponse,
)
from odradek.replication.controller.image import MetadataDelta
from odradek.replication.partition.partition import Partition
from odradek.seams.containment import STARTED_AGAIN, Containment
from odradek.seams.files import Buffer
from odradek.seams.values import state_class

if TYPE_CHECKING:
    from odradek.broker.environment import NodeEnvironment

log = logging.getLogger("odradek.diskless")

CommitListener = Callable[[UUID, int], None]
"""Called with the topic id and the index of a partition whose batches changed."""


SNAPSHOT_REASON: Final = "the records are in a snapshot of the coordinator's state"
"""Reason of the log start offset, for the log."""


class LocalReplicaLog:
    """`ReplicaLog` of an open partition."""

    def __init__(self, partition: Partition, environment: NodeEnvironment) -> None:
        self._partition = partition
        self._log = PartitionCoordinatorLog(
            DISKLESS_METADATA_TOPIC,
            lambda topic, index: partition,
            lambda: environment.metadata.image,
            environment.seams.offload,
        )

    @property
    def start_offset(self) -> int:
        return self._partition.log.log_start_offset

    @property
    def end_offset(self) -> int:
        return self._partition.log.end_offset

    @property
    def high_watermark(self) -> int:
        return self._partition.log.high_watermark

    @property
    def batch_bytes_max(self) -> int:
        return self._partition.log.config.max_message_bytes

    @property
    def size_bytes(self) -> int:
        return self._partition.log.size_bytes

    @property
    def leader_epoch(self) -> int:
        return self._partition.leader_epoch

    @property
    def directory(self) -> str:
        return str(self._partition.log.directory.parent)

    def append(self, batch: bytearray, now_ms: int) -> int:
        return self._log.append(self._partition.index, batch, now_ms)

    def delete_before(self, offset: int) -> None:
        self._partition.check_leader()
        self._partition.delete_before(offset, SNAPSHOT_REASON)

    async def read(self, offset: int, max_bytes: int) -> Buffer:
        return await self._log.read(self._partition.index, offset, max_bytes)


class _Watcher:
    """Wakes a coordinator when its partition's high watermark advances."""

    def __init__(self, coordinator: DisklessCoordinator) -> None:
        self._coordinator = coordinator

    def visible(self, partition: Partition, size_bytes: int) -> None:
        self._coordinator.wake()

    def interrupted(self, partition: Partition) -> None:
        self._coordinator.wake()


@state_class
class _Replica:
    """A coordinator with the partition that it belongs to."""

    partition: Partition
    coordinator: DisklessCoordinator
    watcher: _Watcher
    scope: trio.CancelScope = field(default_factory=trio.CancelScope)
    closed: trio.Event = field(default_factory=trio.Event)
    previous: trio.Event | None = None
    """Set when the closed replica of the same partition has released its state."""


class DisklessCoordinators:
    """Replicas of `__diskless_metadata` on this broker, by partition. `run` comes first."""

    def __init__(self, environment: NodeEnvironment, states: StateStore) -> None:
        self._environment = environment
        self._replicas: dict[int, _Replica] = {}
        self._closing: dict[int, trio.Event] = {}
        self._listeners: dict[CommitListener, None] = {}
        self._nursery: trio.Nursery | None = None
        self.snapshots: SnapshotEnvironment | None = None
        """Set before `run`, for snapshots of the replicas that are opened."""
        self._has_ended = False
        """Whether this broker stops: partitions may still be opened then."""
        seams = environment.seams
        self._coordinator_environment = CoordinatorEnvironment(
            environment.node_id,
            seams.clock,
            seams.offload,
            states,
            lambda: environment.metadata.image,
            environment.config.get_int("producer.id.expiration.ms"),
            self.notify,
        )
        self._tasks: Containment[DisklessCoordinator] = Containment(
            "the coordinator of diskless topics",
            DisklessCoordinator.mark_failed,
            name=lambda coordinator: coordinator.name,
            consequence=STARTED_AGAIN,
        )
        self._listener_errors: Containment[str] = Containment(
            "a listener of diskless commits", consequence="a fetch may wait longer than needed"
        )

    def __iter__(self) -> Iterator[DisklessCoordinator]:
        """Iterate over the replicas by partition."""
        return iter([self._replicas[index].coordinator for index in sorted(self._replicas)])

    def find(self, coordinator_id: int) -> DisklessCoordinator | None:
        """The replica of a partition of `__diskless_metadata`, None if this broker has none."""
        replica = self._replicas.get(coordinator_id)
        return None if replica is None else replica.coordinator

    def leader(self, coordinator_id: int) -> DisklessCoordinator:
        """The coordinator that this broker leads, loaded or not. Raises NotCoordinator."""
        found = self.find(coordinator_id)
        if found is None or not found.is_leader:
            raise NotCoordinator(
                f"this broker is not the leader of {DISKLESS_METADATA_TOPIC}-{coordinator_id}"
            )
        return found

    def with_state(self, coordinator_id: int) -> DisklessCoordinator:
        """The replica for stale reads, a leader or a follower. Raises KafkaError."""
        found = self.find(coordinator_id)
        if found is None:
            raise NotCoordinator(
                f"this broker has no replica of {DISKLESS_METADATA_TOPIC}-{coordinator_id}"
            )
        if not found.has_state:
            raise CoordinatorNotAvailable(f"the state of {found.name} is not open")
        return found

    def led(self) -> list[DisklessCoordinator]:
        """Coordinators that this broker leads, loaded or not."""
        return [coordinator for coordinator in self if coordinator.is_leader]

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Run the coordinators of the partitions that are opened from now on, until cancelled."""
        try:
            async with trio.open_nursery() as self._nursery:
                task_status.started()
                await trio.sleep_forever()
        finally:
            self._has_ended = True

    async def read_snapshot(
        self, request: DisklessFetchSnapshotRequest
    ) -> DisklessFetchSnapshotResponse:
        """A part of a snapshot of a replica on this broker (D-20). Raises KafkaError."""
        found = self.find(request.coordinator_id)
        if found is None or found.snapshots is None:
            raise NotCoordinator(
                f"this broker has no replica of {DISKLESS_METADATA_TOPIC}-{request.coordinator_id}"
            )
        return await found.snapshots.read(request)

    # Changes of partitions and metadata

    def role_changed(self, partition: Partition) -> None:
        """Open the replica of a partition of `__diskless_metadata`, or change its role."""
        if self._has_ended:
            return
        replica = self._replicas.get(partition.index)
        if replica is not None and replica.partition is not partition:
            self._close(partition.index)
            replica = None
        if replica is None:
            replica = self._open(partition)
        replica.coordinator.lead_since(partition.leading_since)

    def partition_gone(self, index: int) -> None:
        """Close the replica of a partition that was removed, or whose log directory failed."""
        self._close(index)

    def metadata_changed(self, delta: MetadataDelta) -> None:
        """Compare the coordinators that this broker leads with the new diskless topics."""
        if delta.image.diskless_topics or delta.before.diskless_topics:
            for replica in self._replicas.values():
                replica.coordinator.metadata_changed(delta)

    def _open(self, partition: Partition) -> _Replica:
        assert self._nursery is not None, "the coordinators do not run"
        coordinator = DisklessCoordinator(
            partition.index,
            partition.topic_id,
            LocalReplicaLog(partition, self._environment),
            self._coordinator_environment,
            self.snapshots,
        )
        replica = _Replica(partition, coordinator, _Watcher(coordinator))
        replica.previous = self._closing.get(partition.index)
        self._replicas[partition.index] = replica
        partition.watch(replica.watcher)
        self._nursery.start_soon(self._run_replica, replica)
        return replica

    def _close(self, index: int) -> None:
        replica = self._replicas.pop(index, None)
        if replica is not None:
            self._closing[index] = replica.closed
            replica.partition.unwatch(replica.watcher)
            replica.coordinator.lead_since(-1)
            replica.scope.cancel()

    async def _run_replica(self, replica: _Replica) -> None:
        coordinator = replica.coordinator
        try:
            with replica.scope:
                if replica.previous is not None:
                    await replica.previous.wait()
                await self._tasks.keep_running(coordinator, coordinator.run)
        finally:
            await self._remove_unassigned(coordinator)
            replica.closed.set()
            if self._closing.get(coordinator.coordinator_id) is replica.closed:
                del self._closing[coordinator.coordinator_id]

    async def _remove_unassigned(self, coordinator: DisklessCoordinator) -> None:
        """Remove the closed state of a replica that the cluster does not assign to this broker any more."""
        environment = self._environment
        image = environment.metadata.image
        partition = image.partition(DISKLESS_METADATA_TOPIC, coordinator.coordinator_id)
        if partition is not None and environment.node_id in partition.replicas:
            return
        with trio.CancelScope(shield=True):
            try:
                await coordinator.remove_state()
                if coordinator.snapshots is not None:
                    await coordinator.snapshots.remove()
            except OSError as error:
                log.warning("The state of %s is left: %s", coordinator.name, error)

    # Commit listeners

    def add_commit_listener(self, listener: CommitListener) -> Callable[[], None]:
        """Call `listener` on the event loop after a change of a partition's batches was applied on this broker, or was
        committed by this broker. Returns a function that removes the listener."""
        self._listeners[listener] = None
        return lambda: self._listeners.pop(listener, None) and None

    def notify(self, topic_id: UUID, index: int) -> None:
        """Call the commit listeners."""
        for listener in tuple(self._listeners):
            self._listener_errors.call(f"{topic_id}-{index}", listener, topic_id, index)
