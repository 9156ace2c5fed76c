"""LogDirectoryReporter: reports log directories and replica assignments to the controller
(KIP-858).

Three things are reported: failed directories and cordoned directories (OfflineLogDirs and
CordonedLogDirs of every heartbeat; a change triggers an early heartbeat), and replicas whose log
directory differs from the image (AssignReplicasToDirs). `PendingLogDirectoryReports` has what is
not reported yet and decides the next report:

- Failures come first, so that other replicas become leaders soon; then cordoned directories.
- Only the current directory of a replica is reported, and only if the image differs by then.
- One report has many replicas, up to a limit: it waits for more assignments for a short time, as
  Kafka's does.
- A report that failed as a whole is retried after a delay that doubles.

A replica in a failed directory is also reported to be there if the image has another directory:
that makes the controller elect another leader.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from math import inf
from typing import TYPE_CHECKING, Any
from uuid import UUID

import trio

from odradek.protocol import apis
from odradek.protocol.errors import ErrorCode, KafkaError
from odradek.replication.controller.image import LOST, MetadataImage
from odradek.seams.containment import STARTED_AGAIN, Containment
from odradek.seams.values import value_class

if TYPE_CHECKING:
    from odradek.broker.controller.controller_channel import ActiveController
    from odradek.replication.partition.partition import Partition

log = logging.getLogger("odradek.log_directories")

Replica = tuple[UUID, int]
"""Topic id and partition."""

ASSIGNMENTS_MAX = 30
"""Assignments of one report, which a controller handles in about a millisecond.

Kafka's brokers put up to 2,250 into one.
"""
PAUSE_SECONDS = 0.1
"""How long assignments wait for others; doubles with each failure, up to `PAUSE_SECONDS_MAX`."""
PAUSE_SECONDS_MAX = 10.0
TIMEOUT_SECONDS = 30.0
"""Timeout of AssignReplicasToDirs."""


@value_class
class LogDirectoryReport:
    """One report: failed directories, cordoned directories, or assignments."""

    failed: tuple[UUID, ...] = ()
    cordoned: frozenset[UUID] | None = None
    """All cordoned directories."""
    assignments: tuple[tuple[Replica, UUID], ...] = ()


class PendingLogDirectoryReports:
    """Changes that are not reported yet. Has no clock and never waits."""

    def __init__(self, node_id: int) -> None:
        self._node_id = node_id
        self._failed: dict[UUID, None] = {}
        self._cordoned: frozenset[UUID] | None = None
        self._places: dict[Replica, UUID] = {}
        self._refusals = 0

    def __bool__(self) -> bool:
        return bool(self._failed or self._places or self._cordoned is not None)

    def failed(self, directory: UUID) -> None:
        self._failed[directory] = None

    def cordoned(self, directories: Iterable[UUID]) -> None:
        """Report exactly these directories; replaces an unsent report."""
        self._cordoned = frozenset(directories)

    def placed(self, replica: Replica, directory: UUID) -> None:
        """Report the replica's directory; replaces an unsent report."""
        self._places[replica] = directory

    def is_pending(self, replica: Replica) -> bool:
        return replica in self._places

    def next(self, image: MetadataImage) -> LogDirectoryReport | None:
        """Return the next report; None if the image is up to date. Drops what the image has."""
        if self._failed:
            return LogDirectoryReport(failed=tuple(self._failed))
        if self._cordoned is not None:
            return LogDirectoryReport(cordoned=self._cordoned)
        chosen: list[tuple[Replica, UUID]] = []
        for replica, directory in tuple(self._places.items()):
            if len(chosen) == ASSIGNMENTS_MAX:
                break
            if self._is_news(replica, image):
                chosen.append((replica, directory))
            else:
                del self._places[replica]
        return LogDirectoryReport(assignments=tuple(chosen)) if chosen else None

    def _is_news(self, replica: Replica, image: MetadataImage) -> bool:
        topic_id, index = replica
        topic = image.topics_by_id.get(topic_id)
        partition = None if topic is None else topic.partitions.get(index)
        if partition is None or self._node_id not in partition.replicas:
            return False
        return partition.directory_of(self._node_id) != self._places[replica]

    def reported(self, report: LogDirectoryReport) -> None:
        """Remove what the controller has accepted, or has no replica for any more."""
        self._refusals = 0
        for directory in report.failed:
            self._failed.pop(directory, None)
        if report.cordoned is not None and self._cordoned == report.cordoned:
            self._cordoned = None
        for replica, directory in report.assignments:
            if self._places.get(replica) == directory:
                del self._places[replica]

    def refused(self) -> None:
        """Increase the delay: the controller was not reachable or returned an error."""
        self._refusals += 1

    @property
    def pause_seconds(self) -> float:
        """Seconds to wait before the next report."""
        if self._refusals:
            return float(min(PAUSE_SECONDS * 2**self._refusals, PAUSE_SECONDS_MAX))
        is_urgent = self._failed or self._cordoned is not None
        return 0.0 if is_urgent or len(self._places) >= ASSIGNMENTS_MAX else PAUSE_SECONDS


class LogDirectoryReporter:
    """Task that sends the reports. All methods except `run` and `assigned` are synchronous."""

    def __init__(
        self,
        image: Callable[[], MetadataImage],
        node_id: int,
        broker_epoch: Callable[[], int],
        controller: ActiveController,
        heartbeat: Callable[[], Awaitable[None]],
        *,
        timeout_ms: int,
    ) -> None:
        """`heartbeat` sends a heartbeat with `offline` immediately, or raises KafkaError.

        `timeout_ms` is log.dir.failure.timeout.ms.
        """
        self.not_reported_in_time = trio.Event()
        """Set when the failure of a directory with leaders was not reported within the timeout."""
        self.failure: str | None = None
        self._image = image
        self._node_id = node_id
        self._broker_epoch = broker_epoch
        self._controller = controller
        self._heartbeat = heartbeat
        self._timeout_seconds = timeout_ms / 1000
        self._reports = PendingLogDirectoryReports(node_id)
        self._offline: dict[UUID, None] = {}
        self._wanted = trio.Event()
        self._urgent = trio.Event()
        self._changed = trio.Event()
        self._deadlines: dict[UUID, float] = {}

    @property
    def offline(self) -> Sequence[UUID]:
        """Directories that failed in this run."""
        return tuple(self._offline)

    # Changes

    def directory_failed(self, directory: UUID | None, replicas: Iterable[Partition]) -> None:
        """Report a failed directory with these replicas. A directory without an id is not
        registered."""
        if directory is None:
            return
        lost = list(replicas)
        self._offline[directory] = None
        self._reports.failed(directory)
        for partition in lost:
            if partition.assigned_directory != directory:
                self._reports.placed((partition.topic_id, partition.index), directory)
        if any(partition.is_leader for partition in lost):
            self._deadlines[directory] = trio.current_time() + self._timeout_seconds
        self._wanted.set()
        self._urgent.set()

    def cordoned(self, directories: Iterable[UUID]) -> None:
        """Report exactly these directories as cordoned."""
        self._reports.cordoned(directories)
        self._wanted.set()

    def seen(self, partition: Partition, directory: UUID | None) -> None:
        """Report the directory of a replica's log if it differs from the image."""
        if directory is not None and partition.assigned_directory != directory:
            self.placed(partition.topic_id, partition.index, directory)

    def placed(self, topic_id: UUID, index: int, directory: UUID) -> None:
        """Report that the replica's log is in that directory."""
        self._reports.placed((topic_id, index), directory)
        self._wanted.set()

    def lost(self, topic_id: UUID, index: int) -> None:
        """Report that the replica is offline in an unknown directory (KIP-858: LOST)."""
        self.placed(topic_id, index, LOST)

    async def assigned(self, topic_id: UUID, index: int, directory: UUID) -> None:
        """Report as `placed`, and return when the controller has accepted it or has newer metadata."""
        self.placed(topic_id, index, directory)
        while self._reports.is_pending((topic_id, index)):
            await self._changed.wait()

    # Sending

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Send reports until cancelled; start it after the registration of the broker."""
        task_status.started()
        containment: Containment[str] = Containment("a task", consequence=STARTED_AGAIN)
        await containment.keep_running("log directory reports", self._run)

    async def _run(self) -> None:
        while True:
            while self._reports:
                await self._pause()
                report = self._reports.next(self._image())
                if report is not None:
                    await self._send(report)
                self._changed.set()
                self._changed = trio.Event()
            await self._wanted.wait()
            self._wanted = trio.Event()

    async def _pause(self) -> None:
        """Wait until the next report is due. A failure ends the wait."""
        self._urgent = trio.Event()
        with trio.move_on_after(self._reports.pause_seconds):
            await self._urgent.wait()

    async def _send(self, report: LogDirectoryReport) -> None:
        deadline = min((self._deadlines.get(each, inf) for each in report.failed), default=inf)
        try:
            if report.assignments:
                await self._send_assignments(dict(report.assignments))
            else:
                await self._heartbeat()
        except KafkaError as error:
            self._reports.refused()
            log.warning("Unable to report log directories to the controller, retrying: %s", error)
            if trio.current_time() >= deadline:
                self._give_up(report.failed)
        except Exception:  # a bug; the report is retried
            self._reports.refused()
            log.exception("Unexpected error while reporting log directories")
        else:
            self._reports.reported(report)
            for directory in report.failed:
                self._deadlines.pop(directory, None)

    async def _send_assignments(self, assignments: Mapping[Replica, UUID]) -> None:
        response = await self._controller.request(
            apis.ASSIGN_REPLICAS_TO_DIRS,
            {
                "broker_id": self._node_id,
                "broker_epoch": self._broker_epoch(),
                "directories": _by_directory(assignments),
            },
            timeout_s=TIMEOUT_SECONDS,
        )
        if response.error_code is not ErrorCode.none:
            raise KafkaError(response.error_code, "in the AssignReplicasToDirs response")
        topics = self._image().topics_by_id
        for directory in response.directories:
            for topic in directory.topics:
                for each in topic.partitions:
                    if each.error_code is not ErrorCode.none:  # deleted or reassigned
                        known = topics.get(topic.topic_id)
                        log.info(
                            "Error in the assignment of %s-%d to its log directory: %s",
                            topic.topic_id if known is None else known.name,
                            each.partition_index,
                            each.error_code,
                        )

    def _give_up(self, failed: Sequence[UUID]) -> None:
        self.failure = (
            f"the failure of {len(failed)} log directories was not reported to the controller "
            "within log.dir.failure.timeout.ms"
        )
        self.not_reported_in_time.set()


def _by_directory(assignments: Mapping[Replica, UUID]) -> list[dict[str, Any]]:
    directories: dict[UUID, dict[UUID, list[dict[str, int]]]] = {}
    for (topic_id, index), directory in assignments.items():
        topics = directories.setdefault(directory, {})
        topics.setdefault(topic_id, []).append({"partition_index": index})
    return [
        {
            "id_": directory,
            "topics": [
                {"topic_id": topic_id, "partitions": partitions}
                for topic_id, partitions in topics.items()
            ],
        }
        for directory, topics in directories.items()
    ]
