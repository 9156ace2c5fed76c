"""Partitions that this node has replicas of: connects the metadata image with the logs.

The table opens the logs of the replicas in the image and updates the role of each partition. A new
partition is opened by the first request that needs it, or by the background task soon after:
CreateTopics with a thousand partitions returns before a thousand logs exist. Operations on one
partition (open, delete, open with another topic id) run in order.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from itertools import islice
from math import inf
from typing import TYPE_CHECKING
from uuid import UUID

import trio

from odradek.protocol.errors import KafkaError
from odradek.protocol.topics import TopicPartition
from odradek.replication.controller.image import (
    RESERVED_DIRECTORIES,
    MetadataDelta,
    MetadataImage,
    PartitionImage,
    TopicImage,
)
from odradek.replication.errors import NotLeader, UnknownPartition, UnknownTopicId
from odradek.replication.partition.partition import Partition, PartitionTraffic
from odradek.replication.partition.replica_creation import decide_replica_creation
from odradek.seams.containment import Containment
from odradek.seams.values import value_class
from odradek.storage.errors import DiskFull, LogFailed, NoDescriptors
from odradek.storage.log.partition_log import PartitionLog
from odradek.storage.log_manager.log_manager import LogManager

if TYPE_CHECKING:
    from odradek.replication.partition.leader_role import ClusterContext

log = logging.getLogger("odradek.partitions")

Key = tuple[str, int]

NO_TOPIC = ""
SETTLE_SECONDS = 0.1
"""Pause in the creation of partitions before logs are opened in the background.

Until then the clients that create topics have the processor.
"""
SETTLE_SECONDS_MAX = 1.0
"""Longest wait of those logs while creation does not pause."""
OPENED_AT_ONCE = 4
RETRY_SECONDS = 5.0
"""Seconds before opening is retried after a full disk or without file descriptors.

No request opens the log of a follower.
"""


@value_class
class _RemovedReplica:
    """A replica that is to be deleted here, with its partition if that was open."""

    key: Key
    topic_id: UUID | None
    partition: Partition | None = None


class PartitionTable:
    """Open partitions of this node, by name and by topic id."""

    def __init__(
        self,
        logs: LogManager,
        image: Callable[[], MetadataImage],
        node_id: int,
        *,
        cluster_context: Callable[[], ClusterContext] | None = None,
        on_role: Callable[[Partition], None] = lambda partition: None,
        on_gone: Callable[[str, int], None] = lambda topic, index: None,
        on_log_offline: Callable[[TopicImage, int], None] = lambda topic, index: None,
    ) -> None:
        """The callbacks are called on the loop.

        `cluster_context` is called when this node leads other replicas. `on_role` is called for
        every partition that was opened or changed its role, `on_gone` for removed replicas, and
        `on_log_offline` for replicas whose log cannot be opened.
        """
        self._logs = logs
        self._image = image
        self._node_id = node_id
        self._cluster_context = cluster_context
        self._on_role = on_role
        self._on_gone = on_gone
        self._on_log_offline = on_log_offline
        self._by_name: dict[Key, Partition] = {}
        self._by_id: dict[tuple[UUID, int], Partition] = {}
        self.counts_traffic = False
        """Whether partitions that are opened from now on count their traffic."""
        self.past_traffic: dict[str, PartitionTraffic] = {}
        """Traffic of closed partitions and of diskless ones, by topic; of deleted topics under NO_TOPIC."""
        self._at_start = {
            (topic.id, index)
            for topic in image().topics_by_id.values()
            for index, partition in topic.partitions.items()
            if node_id in partition.replicas
        }
        """Replicas that existed before this run: their logs should be here, until they are deleted.
        """
        self._applying: Containment[TopicPartition] = Containment(
            "applying the metadata", consequence="the next change of the partition is applied again"
        )
        self._opening_logs: Containment[TopicPartition] = Containment(
            "opening the log", consequence="the next request of the partition opens it again"
        )
        self._busy: dict[Key, trio.Event] = {}
        self._to_open: dict[Key, None] = {}
        self._opening: list[trio.Event] = []
        """Batches of background opens that are running; their partitions may not be busy yet."""
        self._retry_at: dict[Key, float] = {}
        """When to retry partitions that could not be opened."""
        self._to_delete: list[_RemovedReplica] = []
        self._deletion_wanted = trio.Event()
        """Set while replicas are to be deleted or are being deleted."""
        self._deletions_done = trio.Event()
        self._deletions_done.set()
        self._wanted = trio.Event()
        self._created_at = -inf
        self._to_open_since = -inf

    # Lookup

    async def get(self, topic: str | None, topic_id: UUID | None, index: int) -> Partition:
        """Return the partition by topic name or id; opens it if necessary.

        Raises UnknownPartition, UnknownTopicId, NotLeader (no replica here) or LogFailed.
        """
        partition = self.find(topic, topic_id, index)
        if partition is not None:
            return partition
        found = self._find_topic(topic, topic_id)
        return await self._open(found.name, index, topic_id)

    def find(self, topic: str | None, topic_id: UUID | None, index: int) -> Partition | None:
        """Return the partition as `get` does; None if it is not open."""
        if topic_id is not None:
            return self._by_id.get((topic_id, index))
        return self._by_name.get((topic or "", index))

    def opened(self, topic: str, index: int) -> Partition | None:
        """Return the partition if it is open."""
        return self._by_name.get((topic, index))

    def __iter__(self) -> Iterator[Partition]:
        return iter(tuple(self._by_name.values()))

    def _find_topic(self, topic: str | None, topic_id: UUID | None) -> TopicImage:
        image = self._image()
        if topic_id is not None:
            by_id = image.topics_by_id.get(topic_id)
            if by_id is None:
                raise UnknownTopicId(f"no topic with id {topic_id}")
            return by_id
        by_name = image.topics_by_name.get(topic or "")
        if by_name is None:
            raise UnknownPartition(f"topic {topic!r} does not exist")
        return by_name

    # Metadata

    def metadata_changed(self, delta: MetadataDelta) -> None:
        """Apply a metadata delta. Synchronous; logs are opened and deleted in the background."""
        for topic_id, topic in delta.deleted_topics.items():
            for index in topic.partitions:
                self._to_open.pop((topic.name, index), None)
                self._retry_at.pop((topic.name, index), None)
                partition = self._by_id.get((topic_id, index))
                name = TopicPartition(topic.name, index)
                if partition is not None:
                    reason = UnknownPartition(f"{topic.name} is deleted")
                    self._applying.call(name, self._forget, partition, reason)
                else:
                    self._applying.call(name, self._forget_unopened, topic, index)
            if topic.name in self.past_traffic:
                self._count_as_past(NO_TOPIC, self.past_traffic.pop(topic.name))
        for (topic_id, index), image in delta.changed_partitions.items():
            topic = delta.image.topics_by_id[topic_id]
            self._applying.call(
                TopicPartition(topic.name, index), self._partition_changed, topic, index, image
            )

    def _partition_changed(self, topic: TopicImage, index: int, image: PartitionImage) -> None:
        partition = self._by_id.get((topic.id, index))
        here = self._node_id in image.replicas
        if partition is None and here:
            self._created_at = trio.current_time()
            if not self._to_open:
                self._to_open_since = self._created_at
            self._to_open[topic.name, index] = None
            self._wanted.set()
        elif partition is not None and here:
            partition.update(image)
            self._on_role(partition)
        elif partition is not None:
            self._forget(partition, _no_replica(topic.name, index))
        else:
            self._forget_unopened(topic, index)

    def _forget(self, partition: Partition, reason: KafkaError) -> None:
        key = (partition.topic, partition.index)
        del self._by_name[key]
        del self._by_id[partition.topic_id, partition.index]
        if partition.traffic is not None:
            self._count_as_past(partition.topic, partition.traffic)
        partition.retire(reason)
        self._on_gone(*key)
        self._enqueue_deletion(_RemovedReplica(key, partition.topic_id, partition))

    def traffic_without_replica(self, topic: str) -> PartitionTraffic | None:
        """Traffic of a topic that has no replicas here, because it is diskless; None if traffic is not counted."""
        if not self.counts_traffic:
            return None
        return self.past_traffic.setdefault(topic, PartitionTraffic())

    def _count_as_past(self, topic: str, traffic: PartitionTraffic) -> None:
        self.past_traffic.setdefault(topic, PartitionTraffic()).add(traffic)

    def _forget_unopened(self, topic: TopicImage, index: int) -> None:
        """Delete the log of a partition that is not open; a running open checks the image itself."""
        key = (topic.name, index)
        left = self._logs.registry.logs.get(TopicPartition(*key))
        if left is not None and left.topic_id == topic.id and key not in self._busy:
            self._enqueue_deletion(_RemovedReplica(key, topic.id))

    def _enqueue_deletion(self, removed: _RemovedReplica) -> None:
        self._busy.setdefault(removed.key, trio.Event())
        self._to_delete.append(removed)
        self._deletion_wanted.set()
        if self._deletions_done.is_set():
            self._deletions_done = trio.Event()

    def logs_failed(self, logs: Iterable[PartitionLog]) -> list[Partition]:
        """Retire the partitions of logs that went offline, alone or with their directory.

        Returns these partitions.
        """
        retired = []
        for failed in logs:
            partition = self._by_name.get((failed.topic, failed.partition))
            if partition is not None and partition.log is failed:
                partition.retire(failed.offline())
                retired.append(partition)
        return retired

    # Opening and deleting

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Open new partitions and delete removed ones, until cancelled.

        Deletions come first, all due ones together. Opening waits until creation pauses (with a
        limit), because both use the same disk and processor. Deletions never wait for opens: an
        open may wait for a deletion.
        """
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._run_deletions)
            task_status.started()
            while True:
                with trio.move_on_at(min(self._retry_at.values(), default=inf)):
                    await self._wanted.wait()
                self._wanted = trio.Event()
                self._enqueue_retries()
                while self._to_open:
                    await self._deletions_done.wait()
                    if (pause := self._settled_at() - trio.current_time()) > 0:
                        with trio.move_on_after(pause):
                            await self._wanted.wait()
                        self._wanted = trio.Event()
                    else:
                        await self._open_some()

    async def _run_deletions(self) -> None:
        while True:
            await self._deletion_wanted.wait()
            while self._to_delete:
                gone, self._to_delete = self._to_delete, []
                await self._delete(gone)
            self._deletion_wanted = trio.Event()
            self._deletions_done.set()

    def _enqueue_retries(self) -> None:
        for key in [key for key, at in self._retry_at.items() if at <= trio.current_time()]:
            del self._retry_at[key]
            self._to_open[key] = None

    def _settled_at(self) -> float:
        return min(self._created_at + SETTLE_SECONDS, self._to_open_since + SETTLE_SECONDS_MAX)

    async def _open_some(self) -> None:
        """Open the next few partitions concurrently."""
        done = trio.Event()
        self._opening.append(done)
        try:
            async with trio.open_nursery() as nursery:
                for key in list(islice(self._to_open, OPENED_AT_ONCE)):
                    del self._to_open[key]
                    nursery.start_soon(self._try_to_open, key)
        finally:
            self._opening.remove(done)
            done.set()

    async def settle(self) -> None:
        """Open all waiting partitions now, and wait for all running operations: for counts of
        replicas."""
        while self._to_open:
            await self._open_some()
        for each in [*self._opening, *self._busy.values()]:
            await each.wait()

    async def open_all(self) -> None:
        """Open every replica of the image, at start. Failed ones are retried later."""
        async with trio.open_nursery() as nursery:
            for topic in self._image().topics_by_name.values():
                for index, partition in topic.partitions.items():
                    if self._node_id in partition.replicas:
                        nursery.start_soon(self._try_to_open, (topic.name, index))

    async def _try_to_open(self, key: Key) -> None:
        await self._opening_logs.run(TopicPartition(*key), self._open_or_log, key)

    async def _open_or_log(self, key: Key) -> None:
        try:
            await self._open(*key)
        except UnknownPartition:
            pass  # deleted meanwhile
        except (DiskFull, NoDescriptors) as error:
            log.warning("Unable to open %s-%d, retrying: %s", *key, error)
            self._retry_at[key] = trio.current_time() + RETRY_SECONDS
            self._wanted.set()
        except KafkaError as error:
            log.warning("Unable to open %s-%d: %s", *key, error)

    async def _open(self, topic: str, index: int, topic_id: UUID | None = None) -> Partition:
        """Open the partition, of that topic id if it is given: the name may belong to a newer topic
        by then."""
        key = (topic, index)
        while (busy := self._busy.get(key)) is not None:
            await busy.wait()
        opened = self._by_name.get(key)
        if opened is not None and topic_id in (None, opened.topic_id):
            return opened
        found = self._find_topic(topic, topic_id)
        image = found.partitions.get(index)
        if image is None:
            raise UnknownPartition(f"{topic} has no partition {index}")
        if self._node_id not in image.replicas:
            raise _no_replica(topic, index)
        with self._working_on(key):
            partition = await self._open_log(found, index)
        self._on_role(partition)
        return partition

    async def _open_log(self, topic: TopicImage, index: int) -> Partition:
        """Open the log and add the partition, with the image of that time."""
        try:
            opened = await self._log_of(topic, index) or await self._create_log(topic, index)
            if opened.topic_id is None:
                await self._logs.assign_topic_id(opened, topic.id)
        except LogFailed:
            self._on_log_offline(topic, index)
            raise
        now = self._image().topics_by_id.get(topic.id)
        image = None if now is None else now.partitions[index]
        if image is None or self._node_id not in image.replicas:
            # Deleted or reassigned during the disk operation
            await self._logs.delete(TopicPartition(topic.name, index))
            if image is None:
                raise UnknownPartition(f"{topic.name} is deleted")
            raise _no_replica(topic.name, index)
        partition = Partition(
            opened,
            topic_id=topic.id,
            node_id=self._node_id,
            image=image,
            cluster_context=self._cluster_context,
        )
        if self.counts_traffic:
            partition.traffic = PartitionTraffic()
        self._by_name[topic.name, index] = partition
        self._by_id[topic.id, index] = partition
        return partition

    async def _log_of(self, topic: TopicImage, index: int) -> PartitionLog | None:
        """Return the existing log of the partition if it belongs to this topic; None if there is
        none.

        A deleted topic of the same name may have left its log, or have it in an offline directory.
        Raises LogFailed if the log of this topic may be there.
        """
        name = TopicPartition(topic.name, index)
        found = self._logs.registry.logs.get(name)
        if found is None and (lost := self._logs.registry.offline.get(name)) is not None:
            was_here = (topic.id, index) in self._at_start
            if lost.topic_id not in (None, topic.id) and not was_here:
                await self._logs.rename_to_stray(name)
            is_here = any(
                name in directory_logs.offline_directories
                for directory_logs in self._logs.online_directories()
            )
            if is_here or lost.topic_id == topic.id or (lost.topic_id is None and was_here):
                raise LogFailed(lost.reason)
        if found is None or found.topic_id in (None, topic.id):
            if found is not None:
                found.check_online()
                self._refuse_leftover(found, topic, index)
            return found
        await self._logs.rename_to_stray(name)
        return None

    def _refuse_leftover(self, found: PartitionLog, topic: TopicImage, index: int) -> None:
        """Check an empty log of a replica that is assigned to an offline directory.

        Such a log is left if a directory failed during its creation; the replica is in another
        directory. Raises LogFailed.
        """
        assigned = topic.partitions[index].directory_of(self._node_id)
        if (
            found.end_offset == 0
            and (topic.id, index) in self._at_start
            and not self._logs.registry.are_all_online
            and assigned.int >= RESERVED_DIRECTORIES
            and all(
                directory_logs.directory.id != assigned
                for directory_logs in self._logs.online_directories()
            )
        ):
            raise LogFailed(
                f"{topic.name}-{index} may be in the offline log directory with id {assigned},"
                f" because its log {found.directory} has never had records"
            )

    async def _create_log(self, topic: TopicImage, index: int) -> PartitionLog:
        """Create an empty log. Raises LogFailed if the replica's records may be elsewhere."""
        image = topic.partitions[index]
        is_new = (topic.id, index) not in self._at_start
        online = [directory_logs.directory.id for directory_logs in self._logs.online_directories()]
        decided = decide_replica_creation(
            image.directory_of(self._node_id),
            is_new=is_new,
            live=[each for each in online if each is not None],
            any_offline=len(online) < len(self._logs.directories.all),
            others_in_sync=any(each != self._node_id for each in image.isr),
        )
        if decided.refusal is not None:
            raise LogFailed(f"{topic.name}-{index} has no log on this broker: {decided.refusal}")
        return await self._logs.create(
            topic.name, index, topic.id, is_new=is_new, directory_id=decided.directory
        )

    async def _delete(self, removed: Sequence[_RemovedReplica]) -> None:
        keys = [each.key for each in removed]
        try:
            for each in removed:
                if each.partition is not None:
                    await each.partition.wait_unchanged()
            try:
                await self._logs.delete(*(TopicPartition(*key) for key in keys))
            except LogFailed as error:  # the other logs were deleted
                log.warning("Unable to delete partitions in an offline log directory: %s", error)
            offline = self._logs.registry.offline
            self._at_start -= {
                (each.topic_id, each.key[1])
                for each in removed
                if TopicPartition(*each.key) not in offline
            }
        except Exception:  # a bug: their logs are strays at the next start
            log.exception("%s could not be deleted", ", ".join(f"{name}-{n}" for name, n in keys))
        finally:
            for key in keys:
                self._busy.pop(key).set()

    @contextmanager
    def _working_on(self, key: Key) -> Iterator[None]:
        self._busy[key] = trio.Event()
        try:
            yield
        finally:
            self._busy.pop(key).set()


def _no_replica(topic: str, index: int) -> NotLeader:
    """Error for a partition whose replicas are on other brokers."""
    return NotLeader(f"{topic}-{index} has no replica on this broker")
