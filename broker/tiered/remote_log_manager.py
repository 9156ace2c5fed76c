"""RemoteLogManager: runs the copy, expiration and follower tasks of this node's tiered partitions
(KIP-405).

| role | copy task | expiration task | follower task |
|---|---|---|---|
| leader | yes | yes | |
| leader, remote.log.copy.disable, or the policy retain | | yes | |
| leader, remote storage disabled with remote.log.delete.on.disable, or the policy delete | | deletes all segments | |
| follower, or no leader | | its own abandoned copies | yes (T-53) |
| no replica, or not tiered | | | |

Each task runs periodically (periodic_task.py) in a pool. It starts when the metadata of the
partition is read to its end and the store has the copied segments (remote_storage_check.py) or is
unavailable. It is cancelled when the role changes (T-38). If a log has lost leader epochs of
offsets in the remote tier and no copy of them can be read, copying continues and nothing expires.
"""

from __future__ import annotations

import enum
import logging
from collections.abc import Awaitable, Callable, Iterable
from contextlib import suppress
from functools import partial
from uuid import UUID

import trio

from odradek.broker.metrics.registry import Metrics
from odradek.broker.tiered.copy_failures import (
    REMIND_SECONDS,
    CopyBacklog,
    CopyFailureMonitor,
    FailingComponent,
)
from odradek.broker.tiered.copy_task import (
    CopyQuota,
    CopyTask,
    CopyTaskContext,
    update_highest_copied_offset,
)
from odradek.broker.tiered.expiration_task import (
    ExpirationTask,
    ExpirationTaskContext,
    RemoteDeletionTask,
)
from odradek.broker.tiered.periodic_task import BackOff, run_periodically
from odradek.broker.tiered.remote_storage_check import RemoteStorageCheck
from odradek.broker.tiered.segment_operations import SegmentOperations
from odradek.broker.tiered.settings import RemoteLogSettings
from odradek.protocol.errors import KafkaError
from odradek.replication.controller.image import NEVER_DISABLED, TopicTiering
from odradek.replication.partition.partition import Partition
from odradek.replication.tiered.leader_epoch_recovery import (
    LeaderEpochRecovery,
    lacks_leader_epochs,
)
from odradek.seams import Seams
from odradek.seams.containment import STARTED_AGAIN, Containment
from odradek.seams.values import value_class
from odradek.storage.log_manager.log_manager import LogManager
from odradek.storage.tiered.errors import (
    RemoteMetadataUnavailable,
    RemoteNotReady,
    RemoteResourceNotFound,
    RemoteStorageError,
)
from odradek.storage.tiered.remote_log_metadata_manager import RemoteLogMetadataManager
from odradek.storage.tiered.remote_storage_manager import RemoteStorageManager
from odradek.storage.tiered.segment_metadata import (
    RemoteLogSegmentMetadata,
    SegmentState,
    TopicIdPartition,
)

log = logging.getLogger("odradek.tiered")

Name = tuple[str, int]
DELETIONS_AT_ONCE = 10
PARTITIONS_PER_STEP = 50
"""Partitions per step, about 10 µs each."""


@value_class
class _Task:
    """Periodic task of one partition."""

    name: str
    run_once: Callable[[], Awaitable[bool]]
    """Runs the task once; returns whether to run it again at once."""
    pool: trio.CapacityLimiter
    on_outcome: Callable[[KafkaError | OSError | None], None] = lambda error: None
    """Called after each run with the error, or None."""
    woken: Callable[[], Awaitable[object]] | None = None
    """Returns when the task should run again before its interval is over."""


class TieredRole(enum.Enum):
    LEADS = "leads"
    LEADS_WITHOUT_COPIES = "leads, copies disabled"
    REMOVES = "leads, remote storage disabled"
    FOLLOWS = "follows"

    @property
    def is_leader(self) -> bool:
        return self is not TieredRole.FOLLOWS


def role_of(partition: Partition) -> TieredRole | None:
    """TieredRole of the replica, or None if it has no tasks."""
    partition_log = partition.log
    if partition_log.failure is not None:
        return None
    if not partition_log.is_tiered:
        is_removed = partition.is_leader and partition_log.config.remote_log_delete_on_disable
        return TieredRole.REMOVES if is_removed else None
    if not partition.is_leader:
        return TieredRole.FOLLOWS
    return (
        TieredRole.LEADS_WITHOUT_COPIES
        if partition_log.config.remote_log_copy_disable
        else TieredRole.LEADS
    )


class _TieredPartition:
    """Tiered partition in one role and tiered epoch, with its tasks."""

    def __init__(
        self, partition: Partition, id: TopicIdPartition, role: TieredRole, tiered_epoch: int
    ) -> None:
        self.partition = partition
        self.id = id
        self.role = role
        self.tiered_epoch = tiered_epoch
        self.leading_since = partition.leading_since
        self.scope = trio.CancelScope()
        self.expirer: ExpirationTask | None = None
        self.remover: RemoteDeletionTask | None = None
        self.lacks_leader_epochs = False
        """Whether the log lacks leader epochs of offsets in the remote tier."""
        self.knows_copies = False
        """Whether the highest copied offset is known."""
        self.lag: tuple[int, int] | None = None
        """Bytes and segments that wait to be copied, at the last measurement; None if this node
        does not copy or does not know the highest copied offset."""

    def is_as(self, partition: Partition, role: TieredRole | None, tiered_epoch: int) -> bool:
        """Whether the running tasks fit the partition, the role and the tiered epoch of the topic."""
        return (
            self.partition is partition
            and self.role is role
            and self.tiered_epoch == tiered_epoch
            and self.leading_since == partition.leading_since
        )


class RemoteLogManager:
    """Owner of the tasks of all tiered partitions. All but `run` is synchronous, on the event loop."""

    def __init__(
        self,
        node_id: int,
        storage: RemoteStorageManager,
        metadata: RemoteLogMetadataManager,
        logs: LogManager,
        seams: Seams,
        metrics: Metrics,
        settings: RemoteLogSettings,
        *,
        topic_exists: Callable[[UUID], bool] = lambda topic_id: True,
        tiering_of: Callable[[UUID], TopicTiering] = lambda topic_id: NEVER_DISABLED,
    ) -> None:
        """`topic_exists`: whether this node's metadata image has the topic; `tiering_of`: its tiering there."""
        self._tiering_of = tiering_of
        self._histories = LeaderEpochRecovery(metadata, storage, seams.offload)
        self._metadata = metadata
        self._logs = logs
        self._tasks: Containment[str] = Containment(
            "the remote log tasks", consequence=STARTED_AGAIN
        )
        self._seams = seams
        self._metrics = metrics
        self._settings = settings
        self.work = SegmentOperations(
            node_id,
            storage,
            metadata,
            seams,
            metrics,
            settings,
            topic_exists=topic_exists,
            tiering_of=tiering_of,
        )
        self._quota = CopyQuota(settings, seams.clock)
        self._copying = CopyTaskContext(node_id, seams, logs, metadata, self.work, self._quota)
        self._expiring = ExpirationTaskContext(
            seams.clock, metadata, self.work, trio.CapacityLimiter(DELETIONS_AT_ONCE)
        )
        self.copiers = trio.CapacityLimiter(settings.copiers)
        self._expirers = trio.CapacityLimiter(settings.expirers)
        self._followers = trio.CapacityLimiter(settings.followers)
        self._table: dict[Name, _TieredPartition] = {}
        self._nursery: trio.Nursery | None = None
        self._health = CopyFailureMonitor()
        self._storage_check = RemoteStorageCheck(
            storage, metadata, seams, settings, restart_partition=self._restart_partition
        )
        metadata.on_segment(self._segment_changed)
        metrics.gauge("RemoteLogManagerTasksAvgIdlePercent", self._idle_part)
        metrics.gauge("PartitionsWithoutLeaderEpochsCount", self._partitions_without_epochs)
        metrics.gauge(
            "RemoteStoreUnavailable",
            lambda: int(self._storage_check.is_missed or self._health.is_failing),
        )
        throttled_ms = self._quota.throttled_ms
        metrics.gauge("remote-copy-throttle-time-avg", lambda: throttled_ms.average)
        metrics.gauge("remote-copy-throttle-time-max", lambda: throttled_ms.maximum)
        metrics.before_collection(self._measure_lags)

    # Changes of the cluster

    def role_changed(self, partition: Partition) -> None:
        """The replica was opened, or its role or configuration changed."""
        name, role = (partition.topic, partition.index), role_of(partition)
        known = self._table.get(name)
        tiered_epoch = self._tiering_of(partition.topic_id).epoch
        if known is not None and known.is_as(partition, role, tiered_epoch):
            return
        if role is None:
            self.gone(*name)
            return
        if known is not None:
            self._end(name, known)
        id = TopicIdPartition(partition.topic_id, partition.topic, partition.index)
        leads, follows = ([id], []) if role.is_leader else ([], [id])
        self._metadata.partitions_changed(leads, follows)
        self._begin(name, _TieredPartition(partition, id, role, tiered_epoch))

    def gone(self, topic: str, index: int) -> None:
        """The replica was removed, its log directory is offline, or it is not tiered."""
        known = self._table.get((topic, index))
        if known is not None:
            self._end((topic, index), known)
            self._metadata.stop_partitions([known.id])
            self._metrics.forget(topic=topic, partition=index)

    def is_disabled(self, partition: Partition) -> bool:
        """Whether this node has finished its part of disabling tiered storage for the partition (KIP-950): it does not
        copy, and the leader has deleted the remote segments if the policy is to delete them."""
        id = TopicIdPartition(partition.topic_id, partition.topic, partition.index)
        known = self._table.get((partition.topic, partition.index))
        role = role_of(partition)
        if role is TieredRole.LEADS or self.work.is_busy(id):
            return False
        if (known is None) is not (role is None) or (known and known.role is not role):
            return False  # the change of the role is not applied yet
        if role is not TieredRole.REMOVES:
            return True
        return known is not None and known.remover is not None and known.remover.is_done

    def may_copy(self, id: TopicIdPartition, partition: Partition | None) -> bool:
        """Whether this node copies segments of the partition, or does until a change of its configs is applied.
        `partition` is its replica here, if there is one."""
        known = self._table.get((id.topic, id.partition))
        is_copier = known is not None and known.role is TieredRole.LEADS
        has_role = partition is not None and role_of(partition) is TieredRole.LEADS
        return is_copier or has_role or self.work.is_copying(id)

    def set_copying_brokers(
        self, topic_id: UUID, tiered_epoch: int, brokers: Iterable[int]
    ) -> None:
        """Set the brokers that may still copy segments of a topic that is being disabled (KIP-950). The incomplete
        copies of all others are deleted now."""
        if self.work.set_copying_brokers(topic_id, tiered_epoch, brokers):
            for each in self._table.values():
                if each.id.topic_id == topic_id and each.remover is not None:
                    each.remover.wake()

    def disablement_progress(self, partition: Partition) -> str:
        """Why `is_disabled` is false, for the operator."""
        known = self._table.get((partition.topic, partition.index))
        if known is None or known.role is not TieredRole.REMOVES:
            return "a segment is being copied, or the change of the configs is not applied yet"
        if known.remover is None:
            return "the remote log metadata is not read to its end yet"
        try:
            return known.remover.progress
        except KafkaError as error:
            return str(error)

    def segment_count(self, partition: Partition) -> int | None:
        """Remote segments of the partition in any state; None if this node does not know them."""
        try:
            return self._metadata.segment_count(
                TopicIdPartition(partition.topic_id, partition.topic, partition.index)
            )
        except KafkaError:
            return None

    def configs_changed(self) -> None:
        """Apply changed broker configs."""
        self.copiers.total_tokens = self._settings.copiers
        self._expirers.total_tokens = self._settings.expirers
        self._followers.total_tokens = self._settings.followers

    def _begin(self, name: Name, begun: _TieredPartition) -> None:
        self._table[name] = begun
        self._add_gauges(name, begun)
        if self._nursery is not None:
            self._nursery.start_soon(self._run_tasks, begun)

    def _restart_partition(self, id: TopicIdPartition) -> None:
        """Restart the tasks of a partition in its current role."""
        name = (id.topic, id.partition)
        known = self._table.get(name)
        if known is not None and known.id == id:
            self._end(name, known)
            self._begin(name, _TieredPartition(known.partition, id, known.role, known.tiered_epoch))

    def _end(self, name: Name, known: _TieredPartition) -> None:
        del self._table[name]
        known.scope.cancel()
        self._log(self._health.forget(known.id, self._seams.clock.monotonic()))

    def _segment_changed(self, segment: RemoteLogSegmentMetadata) -> None:
        """If the deletion of a copy starts whose records are still on the disk, look up the highest
        copied offset again before local retention deletes anything."""
        known = self._table.get((segment.partition.topic, segment.partition.partition))
        if known is None or known.id != segment.partition:
            return
        if segment.state is SegmentState.COPY_SEGMENT_STARTED and known.remover is not None:
            known.remover.wake()  # its start was published late
        if segment.state is not SegmentState.DELETE_SEGMENT_STARTED:
            return
        partition_log = known.partition.log
        is_here = partition_log.local_log_start_offset <= segment.end_offset
        if is_here and segment.start_offset <= partition_log.highest_copied_offset:
            partition_log.reset_highest_copied_offset()

    # Tasks

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Run the tasks until cancelled."""
        try:
            async with trio.open_nursery() as self._nursery:
                self.work.start(self._nursery)
                for each in self._table.values():
                    self._nursery.start_soon(self._run_tasks, each)
                for name, task in (
                    ("the reminder of copy failures", self._remind),
                    ("the check of the remote storage", self._storage_check.run),
                ):
                    self._nursery.start_soon(self._tasks.keep_running, name, task)
                task_status.started()
        finally:
            self._nursery = None

    async def _run_tasks(self, tiered: _TieredPartition) -> None:
        """Run the tasks of a partition until they end. An unexpected error restarts them: it must not end the
        node."""
        with tiered.scope:
            await self._tasks.keep_running(str(tiered.id), self._run_tasks_once, tiered)

    async def _run_tasks_once(self, tiered: _TieredPartition) -> None:
        tiered.partition.log.reset_highest_copied_offset()
        copied = await self._prepare(tiered)
        if copied is None:
            return
        tiered.knows_copies = True
        log.info("%s: this node %s; highest copied offset %d", tiered.id, tiered.role.value, copied)
        async with trio.open_nursery() as nursery:
            if tiered.lacks_leader_epochs:
                nursery.start_soon(self._restore_leader_epochs, tiered)
            for task in self._tasks_of(tiered):
                nursery.start_soon(self._run_task, tiered, task)

    async def _prepare(self, tiered: _TieredPartition) -> int | None:
        """Highest copied offset, once the metadata is read to its end, the store was checked and
        the log's leader epochs are complete; None if the partition was stopped."""
        back_off = BackOff(self._settings, self._seams.entropy)
        is_complete = False
        while True:
            try:
                await self._metadata.wait_ready(tiered.id)
                if tiered.role is not TieredRole.REMOVES:
                    await self._storage_check.check_partition(tiered.id)
                if tiered.role.is_leader:
                    await self._give_up_earlier_copies(tiered)
                if not is_complete:
                    await self._ensure_leader_epochs(tiered)
                    is_complete = True
                await self.work.wait_for_pending_deletions(tiered.id)
                return await self._find_highest_copied_offset(tiered)
            except RemoteResourceNotFound:
                return None
            except KafkaError as error:  # the metadata is read again
                log.info(
                    "Unable to start the remote log tasks of %s, retrying: %s", tiered.id, error
                )
                await self._seams.clock.sleep(back_off.next())

    async def _give_up_earlier_copies(self, tiered: _TieredPartition) -> None:
        """Start to delete the copies that were published after the topic's remote data was deleted (KIP-950, X-10).
        They must not count as copies when local segments are deleted."""
        first_epoch = self._tiering_of(tiered.id.topic_id).first_epoch
        if first_epoch == 0:
            return
        self._metadata.refuse_earlier_copies(tiered.id, first_epoch)
        for number, segment in enumerate(list(self._metadata.segments(tiered.id)), 1):
            is_finished = segment.state is SegmentState.COPY_SEGMENT_FINISHED
            if is_finished and segment.tiered_epoch < first_epoch:
                await self.work.begin_to_delete(segment)
            if number % PARTITIONS_PER_STEP == 0:
                await trio.lowlevel.checkpoint()

    async def _ensure_leader_epochs(self, tiered: _TieredPartition) -> None:
        """Restore missing leader epochs if the store responds; nothing uses them earlier."""
        tiered.lacks_leader_epochs = lacks_leader_epochs(tiered.partition.log)
        if tiered.lacks_leader_epochs:
            error = await self._restore_leader_epochs(tiered, until_responded=True)
            if error is not None:
                log.error(
                    "%s: cannot restore leader epochs of offsets that are only in the remote tier (%s):"
                    " copying continues, nothing expires, and consumers cannot read these offsets",
                    tiered.id,
                    error,
                )

    async def _restore_leader_epochs(
        self, tiered: _TieredPartition, *, until_responded: bool = False
    ) -> RemoteStorageError | None:
        """Return when the epochs are restored; with `until_responded` also with the error if no
        copy can be read."""
        back_off = BackOff(self._settings, self._seams.entropy)
        copies = tiered.role is TieredRole.LEADS
        while True:
            try:
                await self._histories.restore(tiered.partition.log, tiered.id)
            except (KafkaError, OSError) as error:
                if isinstance(error, RemoteStorageError) and not error.retryable:
                    if until_responded:
                        return error
                elif until_responded and copies and not isinstance(error, RemoteNotReady):
                    self._handle_outcome(tiered, error)
                log.info("%s: unable to restore leader epochs, retrying: %s", tiered.id, error)
            else:
                tiered.lacks_leader_epochs = False
                return None
            await self._seams.clock.sleep(back_off.next())

    def _tasks_of(self, tiered: _TieredPartition) -> list[_Task]:
        if tiered.role is TieredRole.FOLLOWS:
            return [_Task("follower task", partial(self._look_up, tiered), self._followers)]
        if tiered.role is TieredRole.REMOVES:
            remover = RemoteDeletionTask(tiered.partition, tiered.id, self._expiring)
            tiered.remover = remover
            outcome, woken = remover.finished_run, remover.woken
            return [_Task("deletion task", remover.run_once, self._expirers, outcome, woken)]
        expirer = tiered.expirer = ExpirationTask(
            tiered.partition,
            tiered.id,
            self._expiring,
            lacks_leader_epochs=lambda: tiered.lacks_leader_epochs,
            copies=tiered.role is TieredRole.LEADS,
        )
        tasks = [_Task("expiration task", expirer.run_once, self._expirers)]
        if tiered.role is TieredRole.LEADS:
            copier = CopyTask(
                tiered.partition,
                tiered.id,
                self._copying,
                tiered_epoch=tiered.tiered_epoch,
            )
            on_outcome = partial(self._handle_outcome, tiered)
            tasks.append(_Task("copy task", copier.run_once, self.copiers, on_outcome))
        return tasks

    async def _run_task(self, tiered: _TieredPartition, task: _Task) -> None:
        await run_periodically(
            f"{task.name} of {tiered.id}",
            task.run_once,
            pool=task.pool,
            settings=self._settings,
            clock=self._seams.clock,
            entropy=self._seams.entropy,
            on_outcome=task.on_outcome,
            woken=task.woken,
        )

    async def _look_up(self, tiered: _TieredPartition) -> bool:
        await self._find_highest_copied_offset(tiered)
        await self.work.delete_own(tiered.id)
        return False

    async def _find_highest_copied_offset(self, tiered: _TieredPartition) -> int:
        first_epoch = self._tiering_of(tiered.id.topic_id).first_epoch
        return await update_highest_copied_offset(
            self._metadata, tiered.id, tiered.partition.log, first_epoch
        )

    # Logging and metrics

    def _handle_outcome(self, tiered: _TieredPartition, error: KafkaError | OSError | None) -> None:
        now = self._seams.clock.monotonic()
        if error is None:
            self._log(self._health.worked(tiered.id, now))
        else:
            reason = error.message if isinstance(error, KafkaError) and error.message else error
            is_metadata = isinstance(error, RemoteMetadataUnavailable)
            culprit = FailingComponent.METADATA if is_metadata else FailingComponent.STORE
            self._log(self._health.failed(tiered.id, str(reason), now, culprit))

    async def _remind(self) -> None:
        while True:
            await self._seams.clock.sleep(REMIND_SECONDS)
            now = self._seams.clock.monotonic()
            if self._health.is_reminder_due(now):
                self._log(self._health.reminder(await self._backlog(), now))

    async def _measure_lags(self) -> None:
        """Measure the copy lag of all partitions. If files cannot be examined, the old value
        remains; the copy task reports the error."""
        for number, each in enumerate(list(self._table.values()), 1):
            with suppress(OSError, ValueError):
                each.lag = _lag(each)
            if number % PARTITIONS_PER_STEP == 0:
                await trio.lowlevel.checkpoint()

    async def _backlog(self) -> CopyBacklog:
        await self._measure_lags()
        waiting = [each.lag for each in self._table.values() if each.lag and each.lag[0]]
        free: list[int] = []
        for directory_logs in self._logs.online_directories():
            try:
                usage = await self._seams.offload.run(
                    self._seams.files.disk_usage,
                    directory_logs.directory.path,
                    lane=directory_logs.directory.lane,
                )
            except OSError:
                continue  # the log directory's failure handler reports it
            free.append(usage.free_bytes)
        return CopyBacklog(
            len(waiting), sum(size for size, _ in waiting), min(free) if free else None
        )

    @staticmethod
    def _log(line: str | None) -> None:
        if line is not None:
            log.warning("%s", line)

    def _add_gauges(self, name: Name, tiered: _TieredPartition) -> None:
        """Gauges of S-04 and the lags; None while this node does not lead."""
        topic, index = name

        def add(metric: str, value: Callable[[], int | None]) -> None:
            self._metrics.gauge(metric, value, topic=topic, partition=index)

        add("RemoteCopyLagBytes", lambda: tiered.lag[0] if tiered.lag else None)
        add("RemoteCopyLagSegments", lambda: tiered.lag[1] if tiered.lag else None)
        for metric, attribute in (
            ("RemoteDeleteLagBytes", "to_delete_bytes"),
            ("RemoteDeleteLagSegments", "to_delete_segments"),
            ("RemoteLogSizeBytes", "remote_bytes"),
            ("RemoteLogSizeComputationTime", "remote_size_ms"),
            ("RemoteLogMetadataCount", "metadata_count"),
            ("TieredRetentionSizeInPercent", "filled_percent"),
            ("LocalRetentionSizeInPercent", "filled_local_percent"),
        ):
            add(metric, partial(_of_expirer, tiered, attribute))

    def _partitions_without_epochs(self) -> int:
        return sum(each.lacks_leader_epochs for each in self._table.values())

    def _idle_part(self) -> float:
        pools = (self.copiers, self._expirers)
        return sum(each.available_tokens for each in pools) / sum(
            each.total_tokens for each in pools
        )


def _of_expirer(tiered: _TieredPartition, attribute: str) -> int | None:
    value: int | None = getattr(tiered.expirer, attribute, None)
    return value


def _lag(tiered: _TieredPartition) -> tuple[int, int] | None:
    """Bytes and segments that are inactive and not copied, or None."""
    partition_log = tiered.partition.log
    if (
        tiered.role is not TieredRole.LEADS
        or partition_log.failure is not None
        or not tiered.knows_copies
    ):
        return None
    segments = partition_log.segment_list.past(partition_log.highest_copied_offset)
    waiting = [
        each for each in segments[:-1] if each.base_offset > partition_log.highest_copied_offset
    ]
    return sum(each.size for each in waiting), len(waiting)
