"""RemoteLogManager: what this node does for each partition of a tiered topic, by its role (KIP-405).

| role | copies | expires | finds out how far the leader has copied |
|---|---|---|---|
| leads | yes | yes | |
| leads, remote.log.copy.disable | | yes | |
| leads, no more tiered, remote.log.delete.on.disable | | all of it | |
| follows, or has no leader now | | of copies that it gave up | yes (T-53) |
| no replica, not tiered | | | |

Each of these is a task of the partition that comes round by itself (rounds.py), a number of them at a
time. It begins when the metadata of the partition is read to the end and the store has what was copied
(store_presence.py), or is away; it is cancelled when the role is another: what it had under way is then of a
leadership that is over (T-38). Where a log has lost the leader epochs of what left its disk, and no copy of
them can be read, copies go on and nothing expires.
"""

from __future__ import annotations

import enum
import logging
from collections.abc import Awaitable, Callable
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
from odradek.replication.partition.partition import Partition
from odradek.replication.remote.leader_epoch_recovery import (
    LeaderEpochRecovery,
    lacks_leader_epochs,
)
from odradek.seams import Seams
from odradek.storage.log_manager.log_manager import LogManager
from odradek.storage.tiered.errors import (
    RemoteMetadataUnavailable,
    RemoteNotReady,
    RemoteResourceNotFound,
    RemoteStorageError,
)
from odradek.storage.tiered.metadata import (
    RemoteLogSegmentMetadata,
    SegmentState,
    TopicIdPartition,
)
from odradek.storage.tiered.remote_log_metadata_manager import RemoteLogMetadataManager
from odradek.storage.tiered.remote_storage_manager import RemoteStorageManager

log = logging.getLogger("odradek.tiered")

Name = tuple[str, int]
DELETIONS_AT_ONCE = 10
PARTITIONS_A_TURN = 50
"""How many are looked at, about 10 µs each, before others have the loop."""

_Rounds = tuple[str, Callable[[], Awaitable[bool]], trio.CapacityLimiter]


class Role(enum.Enum):
    LEADS = "leads"
    LEADS_WITHOUT_COPIES = "leads, copies disabled"
    REMOVES = "leads, tiered no more"
    FOLLOWS = "follows"

    @property
    def is_leader(self) -> bool:
        return self is not Role.FOLLOWS


def role_of(partition: Partition) -> Role | None:
    """None where nothing is to be done for it."""
    partition_log = partition.log
    if partition_log.failure is not None:
        return None
    if not partition_log.is_tiered:
        is_removed = partition.is_leader and partition_log.config.remote_log_delete_on_disable
        return Role.REMOVES if is_removed else None
    if not partition.is_leader:
        return Role.FOLLOWS
    return Role.LEADS_WITHOUT_COPIES if partition_log.config.remote_log_copy_disable else Role.LEADS


class _Tiered:
    """A partition of the table, in a role."""

    def __init__(self, partition: Partition, id: TopicIdPartition, role: Role) -> None:
        self.partition = partition
        self.id = id
        self.role = role
        self.leading_since = partition.leading_since
        self.scope = trio.CancelScope()
        self.expirer: ExpirationTask | None = None
        self.lacks_leader_epochs = False
        """It has epochs in the remote tier that are not known, for now."""
        self.knows_copies = False
        """It was found out what is copied already."""
        self.lag: tuple[int, int] | None = None
        """Bytes and segments that wait to be copied, as of the last look; None where none are copied, and
        where that is not known yet."""

    def is_as(self, partition: Partition, role: Role | None) -> bool:
        """Whether what runs for it is what should."""
        return (
            self.partition is partition
            and self.role is role
            and self.leading_since == partition.leading_since
        )


class RemoteLogManager:
    """See the module. All but `run` is synchronous, on the loop."""

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
    ) -> None:
        """`topic_exists`: as far as this node knows by now."""
        self._histories = LeaderEpochRecovery(metadata, storage, seams.offload)
        self._metadata = metadata
        self._logs = logs
        self._seams = seams
        self._metrics = metrics
        self._settings = settings
        self.work = SegmentOperations(
            node_id, storage, metadata, seams, metrics, settings, topic_exists=topic_exists
        )
        self._quota = CopyQuota(settings, seams.clock)
        self._copying = CopyTaskContext(node_id, seams, logs, metadata, self.work, self._quota)
        self._expiring = ExpirationTaskContext(
            seams.clock, metadata, self.work, trio.CapacityLimiter(DELETIONS_AT_ONCE)
        )
        self.copiers = trio.CapacityLimiter(settings.copiers)
        self._expirers = trio.CapacityLimiter(settings.expirers)
        self._followers = trio.CapacityLimiter(settings.followers)
        self._table: dict[Name, _Tiered] = {}
        self._nursery: trio.Nursery | None = None
        self._health = CopyFailureMonitor()
        self._presence = RemoteStorageCheck(
            storage, metadata, seams, settings, restart_partition=self._restart_partition
        )
        metadata.on_segment(self._segment_changed)
        metrics.gauge("RemoteLogManagerTasksAvgIdlePercent", self._idle_part)
        metrics.gauge("PartitionsWithoutHistoryCount", self._partitions_without_epochs)
        metrics.gauge(
            "RemoteStoreAway", lambda: int(self._presence.is_missed or self._health.is_failing)
        )
        throttled_ms = self._quota.throttled_ms
        metrics.gauge("remote-copy-throttle-time-avg", lambda: throttled_ms.average)
        metrics.gauge("remote-copy-throttle-time-max", lambda: throttled_ms.largest)
        metrics.before_looks(self._measure_lags)

    # What the cluster decides

    def role_changed(self, partition: Partition) -> None:
        """It was opened, changed hands, or has other configs."""
        name, role = (partition.topic, partition.index), role_of(partition)
        known = self._table.get(name)
        if known is not None and known.is_as(partition, role):
            return
        if role is None:
            self.gone(*name)
            return
        if known is not None:
            self._end(name, known)
        id = TopicIdPartition(partition.topic_id, partition.topic, partition.index)
        leads, follows = ([id], []) if role.is_leader else ([], [id])
        self._metadata.partitions_changed(leads, follows)
        self._begin(name, _Tiered(partition, id, role))

    def gone(self, topic: str, index: int) -> None:
        """The replica is not here any more, or its directory is offline, or it is not tiered."""
        known = self._table.get((topic, index))
        if known is not None:
            self._end((topic, index), known)
            self._metadata.stop_partitions([known.id])
            self._metrics.forget(topic=topic, partition=index)

    def configs_changed(self) -> None:
        """Of the broker."""
        self.copiers.total_tokens = self._settings.copiers
        self._expirers.total_tokens = self._settings.expirers
        self._followers.total_tokens = self._settings.followers

    def _begin(self, name: Name, begun: _Tiered) -> None:
        self._table[name] = begun
        self._add_gauges(name, begun)
        if self._nursery is not None:
            self._nursery.start_soon(self._see_to, begun)

    def _restart_partition(self, id: TopicIdPartition) -> None:
        """In the role that it has."""
        name = (id.topic, id.partition)
        known = self._table.get(name)
        if known is not None and known.id == id:
            self._end(name, known)
            self._begin(name, _Tiered(known.partition, id, known.role))

    def _end(self, name: Name, known: _Tiered) -> None:
        del self._table[name]
        known.scope.cancel()
        self._say(self._health.forget(known.id, self._seams.clock.monotonic()))

    def _segment_changed(self, segment: RemoteLogSegmentMetadata) -> None:
        """A copy of what is still on the disk is given up, by whoever removes what is tiered no more: how far
        the log is copied is looked up anew, before anything leaves the disk for that."""
        known = self._table.get((segment.partition.topic, segment.partition.partition))
        is_given_up = segment.state is SegmentState.DELETE_SEGMENT_STARTED
        if known is None or known.id != segment.partition or not is_given_up:
            return
        partition_log = known.partition.log
        is_here = partition_log.local_log_start_offset <= segment.end_offset
        if is_here and segment.start_offset <= partition_log.highest_copied_offset:
            partition_log.copies_unknown()

    # What is done

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Until cancelled."""
        try:
            async with trio.open_nursery() as self._nursery:
                self.work.start(self._nursery)
                for each in self._table.values():
                    self._nursery.start_soon(self._see_to, each)
                self._nursery.start_soon(self._remind)
                self._nursery.start_soon(self._presence.run)
                task_status.started()
        finally:
            self._nursery = None

    async def _see_to(self, tiered: _Tiered) -> None:
        with tiered.scope:
            tiered.partition.log.copies_unknown()
            copied = await self._look_first(tiered)
            if copied is None:
                return
            tiered.knows_copies = True
            log.info("%s: this node %s, copied to offset %d", tiered.id, tiered.role.value, copied)
            async with trio.open_nursery() as nursery:
                if tiered.lacks_leader_epochs:
                    nursery.start_soon(self._seek_history, tiered)
                for what, one_round, pool in self._rounds_of(tiered):
                    nursery.start_soon(self._come_round, tiered, what, one_round, pool)

    async def _look_first(self, tiered: _Tiered) -> int | None:
        """Up to where it is copied, once the metadata is read to the end, the store is there, or away, and
        the log's history is complete; None if it was stopped meanwhile."""
        back_off = BackOff(self._settings, self._seams.entropy)
        is_complete = False
        while True:
            try:
                await self._metadata.wait_ready(tiered.id)
                if tiered.role is not Role.REMOVES:
                    await self._presence.look_for(tiered.id)
                if not is_complete:
                    await self._complete_history(tiered)
                    is_complete = True
                await self.work.wait_for_pending_deletions(tiered.id)
                return await update_highest_copied_offset(
                    self._metadata, tiered.id, tiered.partition.log
                )
            except RemoteResourceNotFound:
                return None
            except KafkaError as error:  # it is read anew
                log.info("%s: %s", tiered.id, error)
                await self._seams.clock.sleep(back_off.next())

    async def _complete_history(self, tiered: _Tiered) -> None:
        """Before anything is looked up by it, if the store answers at all."""
        tiered.lacks_leader_epochs = lacks_leader_epochs(tiered.partition.log)
        if tiered.lacks_leader_epochs:
            error = await self._seek_history(tiered, until_responded=True)
            if error is not None:
                log.error(
                    "%s: of what left the disk no copy's leader epochs can be read (%s): it is copied on,"
                    " nothing of it expires, and consumers of that are told to ask again",
                    tiered.id,
                    error,
                )

    async def _seek_history(
        self, tiered: _Tiered, *, until_responded: bool = False
    ) -> RemoteStorageError | None:
        """Return when it is there; with `until_responded` also when none can be read: why."""
        back_off = BackOff(self._settings, self._seams.entropy)
        copies = tiered.role is Role.LEADS
        while True:
            try:
                await self._histories.restore(tiered.partition.log, tiered.id)
            except (KafkaError, OSError) as error:
                if isinstance(error, RemoteStorageError) and not error.retryable:
                    if until_responded:
                        return error
                elif until_responded and copies and not isinstance(error, RemoteNotReady):
                    self._came(tiered, error)
                log.info("%s: its leader epochs cannot be restored yet: %s", tiered.id, error)
            else:
                tiered.lacks_leader_epochs = False
                return None
            await self._seams.clock.sleep(back_off.next())

    def _rounds_of(self, tiered: _Tiered) -> list[_Rounds]:
        if tiered.role is Role.FOLLOWS:
            return [("looking up copies", partial(self._look_up, tiered), self._followers)]
        if tiered.role is Role.REMOVES:
            remover = RemoteDeletionTask(tiered.partition, tiered.id, self._expiring)
            return [("removal", remover.round, self._expirers)]
        expirer = tiered.expirer = ExpirationTask(
            tiered.partition,
            tiered.id,
            self._expiring,
            lacks_leader_epochs=lambda: tiered.lacks_leader_epochs,
        )
        found: list[_Rounds] = [("expiry", expirer.round, self._expirers)]
        if tiered.role is Role.LEADS:
            copier = CopyTask(tiered.partition, tiered.id, self._copying)
            found.append(("copying", copier.round, self.copiers))
        return found

    async def _come_round(
        self,
        tiered: _Tiered,
        what: str,
        one_round: Callable[[], Awaitable[bool]],
        pool: trio.CapacityLimiter,
    ) -> None:
        await run_periodically(
            f"{what} of {tiered.id}",
            one_round,
            pool=pool,
            settings=self._settings,
            clock=self._seams.clock,
            entropy=self._seams.entropy,
            on_outcome=partial(self._came, tiered) if what == "copying" else lambda error: None,
        )

    async def _look_up(self, tiered: _Tiered) -> bool:
        await update_highest_copied_offset(self._metadata, tiered.id, tiered.partition.log)
        await self.work.delete_own(tiered.id)
        return False

    # What the operator is told

    def _came(self, tiered: _Tiered, error: KafkaError | OSError | None) -> None:
        now = self._seams.clock.monotonic()
        if error is None:
            self._say(self._health.worked(tiered.id, now))
        else:
            reason = error.message if isinstance(error, KafkaError) and error.message else error
            is_metadata = isinstance(error, RemoteMetadataUnavailable)
            culprit = FailingComponent.METADATA if is_metadata else FailingComponent.STORE
            self._say(self._health.failed(tiered.id, str(reason), now, culprit))

    async def _remind(self) -> None:
        while True:
            await self._seams.clock.sleep(REMIND_SECONDS)
            now = self._seams.clock.monotonic()
            if self._health.is_reminder_due(now):
                self._say(self._health.reminder(await self._backlog(), now))

    async def _measure_lags(self) -> None:
        """After a long time without the store very much may wait. Where files cannot be looked at just now,
        it is what it was: who copies them, or reads, finds out why."""
        for number, each in enumerate(list(self._table.values()), 1):
            with suppress(OSError, ValueError):
                each.lag = _lag(each)
            if number % PARTITIONS_A_TURN == 0:
                await trio.lowlevel.checkpoint()

    async def _backlog(self) -> CopyBacklog:
        await self._measure_lags()
        waiting = [each.lag for each in self._table.values() if each.lag and each.lag[0]]
        free: list[int] = []
        for home in self._logs.homes():
            try:
                usage = await self._seams.offload.run(
                    self._seams.files.disk_usage, home.directory.path, lane=home.directory.lane
                )
            except OSError:
                continue  # its own watchers find out
            free.append(usage.free_bytes)
        return CopyBacklog(
            len(waiting), sum(size for size, _ in waiting), min(free) if free else None
        )

    @staticmethod
    def _say(line: str | None) -> None:
        if line is not None:
            log.warning("%s", line)

    def _add_gauges(self, name: Name, tiered: _Tiered) -> None:
        """S-04 and the lags; nothing where this node does not lead."""
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


def _of_expirer(tiered: _Tiered, attribute: str) -> int | None:
    value: int | None = getattr(tiered.expirer, attribute, None)
    return value


def _lag(tiered: _Tiered) -> tuple[int, int] | None:
    """Bytes and segments that are closed and not copied; None where this node does not copy, or does not know
    yet what is copied: all would seem to wait."""
    partition_log = tiered.partition.log
    if (
        tiered.role is not Role.LEADS
        or partition_log.failure is not None
        or not tiered.knows_copies
    ):
        return None
    segments = partition_log.segment_list.past(partition_log.highest_copied_offset)
    waiting = [
        each for each in segments[:-1] if each.base_offset > partition_log.highest_copied_offset
    ]
    return sum(each.size for each in waiting), len(waiting)
