"""What the controller is told of this node's log directories (KIP-858).

Three things: that directories failed, and which are cordoned (what every heartbeat carries as
OfflineLogDirs and CordonedLogDirs; news of it are not kept until the next one is due), and in which
directory a replica is, where that is not what the image says (AssignReplicasToDirs). `PendingLogDirectoryReports` keeps
what is yet to be told and decides what is told next:

- failures first: the sooner the controller knows, the sooner others lead; then what is cordoned;
- of one replica only where it is now; what the image says by then is not told again;
- many replicas in one report, but not too many: it waits a moment for more, as Kafka's does;
- a report that was refused as a whole is told again, after a pause that doubles.

`LogDirectoryReporter` is the task that does it. A replica in a directory that has failed is reported there
too if the controller thinks that it is elsewhere: it loses its leader by that.
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
from odradek.seams.values import value_class

if TYPE_CHECKING:
    from odradek.broker.controller.controller_channel import ActiveController
    from odradek.replication.partition.partition import Partition

log = logging.getLogger("odradek.directories")

Replica = tuple[UUID, int]
"""(topic id, partition)"""

ASSIGNMENTS_MAX = 30
"""In one report, which a controller decides in one step: in a millisecond or so. (Kafka's brokers put up
to 2,250 into one.)"""
PAUSE_SECONDS = 0.1
"""How long assignments wait for others; doubled with each refusal, up to `PAUSE_SECONDS_MAX`."""
PAUSE_SECONDS_MAX = 10.0
TIMEOUT_SECONDS = 30.0
"""For the answer to where replicas are."""


@value_class
class LogDirectoryReport:
    """Told at once: one of the three."""

    failed: tuple[UUID, ...] = ()
    cordoned: frozenset[UUID] | None = None
    """All that are, by now."""
    assignments: tuple[tuple[Replica, UUID], ...] = ()


class PendingLogDirectoryReports:
    """What is yet to be told; see the module. Asks no clock, waits for nothing."""

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
        """These are, and no others; what was said before does not count."""
        self._cordoned = frozenset(directories)

    def placed(self, replica: Replica, directory: UUID) -> None:
        """The replica is there; what was said before does not count."""
        self._places[replica] = directory

    def is_pending(self, replica: Replica) -> bool:
        return replica in self._places

    def next(self, image: MetadataImage) -> LogDirectoryReport | None:
        """What to tell now; None if the image knows it all. What it knows is forgotten."""
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

    def told(self, report: LogDirectoryReport) -> None:
        """The controller has taken it over, or knows of no such replica any more."""
        self._refusals = 0
        for directory in report.failed:
            self._failed.pop(directory, None)
        if report.cordoned is not None and self._cordoned == report.cordoned:
            self._cordoned = None
        for replica, directory in report.assignments:
            if self._places.get(replica) == directory:
                del self._places[replica]

    def refused(self) -> None:
        """The controller could not be reached, or not now."""
        self._refusals += 1

    @property
    def pause_seconds(self) -> float:
        """How long to wait before the next report."""
        if self._refusals:
            return float(min(PAUSE_SECONDS * 2**self._refusals, PAUSE_SECONDS_MAX))
        is_urgent = self._failed or self._cordoned is not None
        return 0.0 if is_urgent or len(self._places) >= ASSIGNMENTS_MAX else PAUSE_SECONDS


class LogDirectoryReporter:
    """See the module. All but `run` and `assigned` is synchronous, called on the loop."""

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
        """`heartbeat` sends one at once, or raises KafkaError; what it carries of directories is asked
        of `offline`. `timeout_ms` is log.dir.failure.timeout.ms."""
        self.not_reported_in_time = trio.Event()
        """Set when the controller could not be told in time of a directory with leaders in it."""
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
        """The directories that failed in this run."""
        return tuple(self._offline)

    # What happens here

    def directory_failed(self, directory: UUID | None, replicas: Iterable[Partition]) -> None:
        """It went offline, with these in it. One without an id was never registered."""
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
        """These get no new replicas from now on, and no others."""
        self._reports.cordoned(directories)
        self._wanted.set()

    def seen(self, partition: Partition, directory: UUID | None) -> None:
        """A replica was opened, or its image changed: its log is in that directory."""
        if directory is not None and partition.assigned_directory != directory:
            self.placed(partition.topic_id, partition.index, directory)

    def placed(self, topic_id: UUID, index: int, directory: UUID) -> None:
        """The replica's log is in that directory from now on."""
        self._reports.placed((topic_id, index), directory)
        self._wanted.set()

    def lost(self, topic_id: UUID, index: int) -> None:
        """The replica cannot be served, and nobody knows where it is (KIP-858: LOST)."""
        self.placed(topic_id, index, LOST)

    async def assigned(self, topic_id: UUID, index: int, directory: UUID) -> None:
        """As `placed`; returns when the controller knows it (or knows better)."""
        self.placed(topic_id, index, directory)
        while self._reports.is_pending((topic_id, index)):
            await self._changed.wait()

    # Telling

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Tell, until cancelled; starts once the broker is registered."""
        task_status.started()
        while True:
            await self._wanted.wait()
            self._wanted = trio.Event()
            while self._reports:
                await self._pause()
                report = self._reports.next(self._image())
                if report is not None:
                    await self._tell(report)
                self._changed.set()
                self._changed = trio.Event()

    async def _pause(self) -> None:
        """Until the next report is due. A failure ends the wait for more assignments."""
        self._urgent = trio.Event()
        with trio.move_on_after(self._reports.pause_seconds):
            await self._urgent.wait()

    async def _tell(self, report: LogDirectoryReport) -> None:
        deadline = min((self._deadlines.get(each, inf) for each in report.failed), default=inf)
        try:
            if report.assignments:
                await self._tell_places(dict(report.assignments))
            else:
                await self._heartbeat()
        except KafkaError as error:
            self._reports.refused()
            log.warning("the controller refuses to hear of log directories: %s", error)
            if trio.current_time() >= deadline:
                self._give_up(report.failed)
        except Exception:  # ours; the next report may fare better
            self._reports.refused()
            log.exception("log directories could not be reported")
        else:
            self._reports.told(report)
            for directory in report.failed:
                self._deadlines.pop(directory, None)

    async def _tell_places(self, assignments: Mapping[Replica, UUID]) -> None:
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
            raise KafkaError(response.error_code, "as an answer to where replicas are")
        for directory in response.directories:
            for topic in directory.topics:
                for each in topic.partitions:
                    if each.error_code is not ErrorCode.none:  # deleted or moved away meanwhile
                        log.info(
                            "the directory of %s-%d was not taken over: %s",
                            topic.topic_id,
                            each.partition_index,
                            each.error_code,
                        )

    def _give_up(self, failed: Sequence[UUID]) -> None:
        self.failure = (
            f"the controller could not be told in log.dir.failure.timeout.ms that "
            f"{len(failed)} log directories failed"
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
