"""RemoteLogMetadataManager based on the topic `__remote_log_metadata` (T-03, T-44 to T-49).

A record is published with acks=all. The publication is complete when this node has read the record. If the record is not a valid
successor, because another broker's record came first, all brokers ignore it and the publisher gets an error. The cache has the
partitions that this node leads, follows or removes. For metadata partitions that this node leads, there is also an inventory of
all their partitions, with the time of the first record of each, until its deletion is finished (T-51). It finds deleted topics
that every remover missed, and segments that were published after a deletion.

    partitions_changed → announced → opened (from a snapshot, if there is one) → read → ready

A task opens partitions, because snapshots are files. All other changes are synchronous. An invalid record is logged and skipped.
"""

from __future__ import annotations

import logging
import math
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractAsyncContextManager, contextmanager
from enum import Enum
from typing import Final
from uuid import UUID

import trio

from odradek.client.errors import ClientError
from odradek.client.metadata import Cluster, open_cluster
from odradek.client.producer import Producer, open_producer
from odradek.protocol.errors import KafkaError
from odradek.replication.tiered.metadata_manager_settings import MetadataManagerSettings
from odradek.replication.tiered.metadata_snapshots import (
    MetadataSnapshots,
    SubscribedPartition,
    SubscribedPartitions,
)
from odradek.replication.tiered.metadata_subscriptions import (
    InventoryOf,
    Lane,
    MetadataSubscriptions,
)
from odradek.replication.tiered.metadata_topic import (
    UnusableMetadataTopic,
    ensure_metadata_topic,
)
from odradek.replication.tiered.metadata_topic_consumer import MetadataTopicConsumer
from odradek.seams import Seams
from odradek.seams.containment import STARTED_AGAIN, Containment
from odradek.storage.tiered import metadata_records
from odradek.storage.tiered.errors import (
    CorruptRemoteData,
    InvalidRemoteState,
    RemoteMetadataUnavailable,
    RemoteResourceNotFound,
    RemoteStorageError,
)
from odradek.storage.tiered.metadata_records import METADATA_TOPIC, metadata_partition
from odradek.storage.tiered.remote_partition_metadata_store import RemotePartitionMetadataStore
from odradek.storage.tiered.segment_metadata import (
    PartitionDeleteState,
    RemoteEvent,
    RemoteLogSegmentMetadata,
    RemoteLogSegmentMetadataUpdate,
    RemotePartitionDeleteMetadata,
    SegmentState,
    TopicIdPartition,
)

log = logging.getLogger("odradek.tiered")

PARTITIONS_A_STEP: Final = 50
LOG_AFTER_S: Final = 10.0
"""How long the topic may be missing before that is logged, in seconds."""

PUBLISHING_S: Final = 10.0
"""If a publication takes longer, further ones to the same metadata partition fail at once, in seconds."""

REOPEN_S: Final = 5.0
"""Pause before a partition whose opening failed unexpectedly is opened again, in seconds."""

_STARTED: Final = SegmentState.COPY_SEGMENT_STARTED


class PartitionInventory:
    """Partitions in a metadata partition. `apply` gets all its records in order."""

    def __init__(self) -> None:
        self._first_ms: dict[TopicIdPartition, int] = {}
        self._of_topic: dict[UUID, dict[TopicIdPartition, None]] = {}

    def __contains__(self, partition: TopicIdPartition) -> bool:
        return partition in self._first_ms

    def __iter__(self) -> Iterator[tuple[TopicIdPartition, int]]:
        """Yield each partition with the time (ms) of its first record."""
        return iter(tuple(self._first_ms.items()))

    def __len__(self) -> int:
        return len(self._first_ms)

    def of_topics(self, topic_ids: Mapping[UUID, object]) -> list[TopicIdPartition]:
        """Return the partitions of topics that are in the inventory."""
        known = self._of_topic
        few = known if len(known) < len(topic_ids) else topic_ids
        return [
            partition
            for topic_id in few
            if topic_id in topic_ids
            for partition in known.get(topic_id, ())
        ]

    def apply(self, event: RemoteEvent) -> bool:
        """Apply a record; return whether its partition is new."""
        partition = event.partition
        if isinstance(event, RemotePartitionDeleteMetadata):
            if event.state is PartitionDeleteState.DELETE_PARTITION_FINISHED:
                self._remove(partition)
                return False
        elif event.state is SegmentState.DELETE_SEGMENT_FINISHED:
            return False  # earlier records of the partition were deleted: nothing remains of it
        if partition in self._first_ms:
            return False
        self._first_ms[partition] = event.event_timestamp_ms
        self._of_topic.setdefault(partition.topic_id, {})[partition] = None
        return True

    def _remove(self, partition: TopicIdPartition) -> None:
        if self._first_ms.pop(partition, None) is not None:
            of_topic = self._of_topic[partition.topic_id]
            del of_topic[partition]
            if not of_topic:
                del self._of_topic[partition.topic_id]


class Interest(Enum):
    """Reasons to read the metadata of a partition."""

    REPLICA = "this node leads or follows it"
    REMOVAL = "this node removes it"


class TopicBasedRemoteLogMetadataManager(RemotePartitionMetadataStore):
    """RemoteLogMetadataManager over the metadata topic. `run` reads and publishes; without it nothing is ready."""

    def __init__(
        self, seams: Seams, settings: MetadataManagerSettings, snapshots: MetadataSnapshots
    ) -> None:
        super().__init__()
        self._seams = seams
        self._settings = settings
        self._snapshots = snapshots
        self._subscriptions = MetadataSubscriptions()
        self._interests: dict[TopicIdPartition, set[Interest]] = {}
        self._to_open: deque[TopicIdPartition] = deque()
        self._to_reopen: deque[tuple[float, TopicIdPartition]] = deque()
        """Partitions whose opening failed, with the time of the next attempt, by that time."""
        self._opening = trio.Event()
        self._inventories: dict[int, PartitionInventory] = {}
        self._on_inventory_changed: Callable[[], None] = lambda: None
        self._containment: Containment[str] = Containment(
            "the remote log metadata manager", consequence=STARTED_AGAIN
        )
        self._opening_containment: Containment[TopicIdPartition] = Containment(
            "opening the remote log metadata",
            lambda partition, error: self._to_reopen.append(
                (trio.current_time() + REOPEN_S, partition)
            ),
            consequence="it is opened again after a pause",
        )
        self._records: Containment[tuple[int, int]] = Containment(
            "handling a record",
            name=lambda record: f"{METADATA_TOPIC}-{record[0]}, offset {record[1]}",
            consequence="the record is skipped",
        )
        self._publishing: dict[int, dict[object, float]] = {}
        """Running publications per metadata partition in order, with their start times."""
        self._refusing: set[int] = set()
        """Metadata partitions whose last publication failed."""
        self._rejected_records: dict[tuple[int, int], RemoteStorageError] = {}
        self._logged_to: dict[int, int] = {}
        """Offsets, by metadata partition, below which invalid records are logged already."""
        self._position_changed: dict[int, trio.Event] = {}
        self._consumer: MetadataTopicConsumer | None = None
        self._producer: Producer | None = None
        self.records_read = 0
        """Records applied to partitions since the start, without inventories."""

    @property
    def damaged_partitions(self) -> int:
        """Number of metadata partitions whose reading is stopped by a corrupt batch on the leader."""
        return 0 if self._consumer is None else self._consumer.damaged_partitions

    # Replicas of this node, and partitions that it removes

    def partitions_changed(
        self, leads: Iterable[TopicIdPartition], follows: Iterable[TopicIdPartition]
    ) -> None:
        for partition in (*leads, *follows):
            self._interested(partition, Interest.REPLICA)

    def stop_partitions(self, partitions: Iterable[TopicIdPartition]) -> None:
        for partition in partitions:
            self._not_interested(partition, Interest.REPLICA)

    def hold(self, partition: TopicIdPartition) -> None:
        """Read the metadata of a partition that this node removes, until `release`."""
        self._interested(partition, Interest.REMOVAL)

    def release(self, partition: TopicIdPartition) -> None:
        self._not_interested(partition, Interest.REMOVAL)

    def _interested(self, partition: TopicIdPartition, why: Interest) -> None:
        interests = self._interests.setdefault(partition, set())
        if not interests:
            self.announce(partition)
            self._to_open.append(partition)
            self._opening.set()
        interests.add(why)

    def _not_interested(self, partition: TopicIdPartition, why: Interest) -> None:
        interests = self._interests.get(partition, set())
        interests.discard(why)
        if interests or self._interests.pop(partition, None) is None:
            return
        self.forget(partition)
        self._subscriptions.forget(partition)
        self._wake(self.metadata_partition_of(partition))
        self._reading_changed()

    # Metadata partitions that this node leads

    def lead_metadata(self, index: int) -> None:
        """Start the inventory of a metadata partition that this node leads now."""
        if index not in self._inventories:
            self._inventories[index] = PartitionInventory()
            self._subscriptions.follow(InventoryOf(index), index)
            self._reading_changed()

    def resign_metadata(self, index: int) -> None:
        """End the inventory of a metadata partition that this node no longer leads."""
        if self._inventories.pop(index, None) is not None:
            self._subscriptions.forget(InventoryOf(index))
            self._reading_changed()
            self._on_inventory_changed()

    def inventories(self) -> Iterator[tuple[int, PartitionInventory]]:
        """Return the complete inventories by metadata partition."""
        for index, inventory in sorted(self._inventories.items()):
            if self._subscriptions.is_ready(InventoryOf(index)):
                yield index, inventory

    def is_in_inventory(self, partition: TopicIdPartition) -> bool:
        """Whether the remote tier may have segments of a partition. False if this node has no inventory of it."""
        index = self.metadata_partition_of(partition)
        return (
            self._subscriptions.is_ready(InventoryOf(index))
            and partition in self._inventories[index]
        )

    def on_inventory_changed(self, callback: Callable[[], None]) -> None:
        """Register a callback for complete, ended and extended inventories."""
        self._on_inventory_changed = callback

    def metadata_partition_of(self, partition: TopicIdPartition) -> int:
        """Return the metadata partition of a partition."""
        return metadata_partition(partition, self._settings.topic.partitions)

    # Publishing

    async def add_segment(self, metadata: RemoteLogSegmentMetadata) -> None:
        if metadata.state is not _STARTED:
            raise InvalidRemoteState(f"{metadata.id} cannot start in state {metadata.state.name}")
        await self._publish(metadata)

    async def update_segment(self, update: RemoteLogSegmentMetadataUpdate) -> None:
        await self._publish(update)

    async def put_partition_delete(self, metadata: RemotePartitionDeleteMetadata) -> None:
        await self._publish(metadata)

    async def _publish(self, event: RemoteEvent) -> None:
        """Publish an event, and wait until this node has applied it.

        Raises the error of an invalid event, and RemoteMetadataUnavailable if the result is unknown.
        """
        self.check(event)
        index = self.metadata_partition_of(event.partition)
        producer = self._producer
        if producer is None:
            raise RemoteMetadataUnavailable(f"topic {METADATA_TOPIC} is not available yet")
        with self._publishes_at(index):
            value = metadata_records.encode(event)
            try:
                offset = await producer.send(METADATA_TOPIC, value, partition=index)
            except (KafkaError, ClientError) as error:
                raise RemoteMetadataUnavailable(
                    f"{event.partition}: not published in {METADATA_TOPIC}-{index}: {error}"
                ) from error
            await self._until_read(event.partition, index, offset)
            refused = self._rejected_records.get((index, offset))
        if refused is not None:
            raise refused

    @contextmanager
    def _publishes_at(self, index: int) -> Iterator[None]:
        """Keep rejected records of a metadata partition while publications run.

        After a failure, only one publication at a time is tried; others raise RemoteMetadataUnavailable.
        """
        publishing, now = self._publishing.setdefault(index, {}), trio.current_time()
        first = next(iter(publishing.values()), now)
        if publishing and (index in self._refusing or now - first > PUBLISHING_S):
            raise RemoteMetadataUnavailable(
                f"{METADATA_TOPIC}-{index} has accepted no record for {now - first:.0f} s"
            )
        me = object()
        publishing[me] = now
        try:
            yield
            self._refusing.discard(index)
        except RemoteMetadataUnavailable:
            self._refusing.add(index)
            raise
        finally:
            del publishing[me]
            if not publishing:
                del self._publishing[index]
                for key in [key for key in self._rejected_records if key[0] == index]:
                    del self._rejected_records[key]

    async def _until_read(self, partition: TopicIdPartition, index: int, offset: int) -> None:
        limit_s = self._settings.consume_wait_s
        with trio.move_on_after(limit_s):
            while partition in self._subscriptions:
                if self._subscriptions.position(partition) > offset:
                    return
                await self._position_changed.setdefault(index, trio.Event()).wait()
            raise RemoteResourceNotFound(f"{partition} is no longer on this broker")
        raise RemoteMetadataUnavailable(
            f"{partition}: the record at offset {offset} of {METADATA_TOPIC}-{index} was not read "
            f"within {limit_s:g} s"
        )

    # Records

    def _handle_record_contained(
        self, lane: Lane, index: int, offset: int, value: bytes | None
    ) -> None:
        """Handle a record; any client may have written it, so that an unexpected error skips the record only."""
        self._records.call((index, offset), self._handle_record, lane, index, offset, value)

    def _handle_record(self, lane: Lane, index: int, offset: int, value: bytes | None) -> None:
        try:
            event = metadata_records.decode(value or b"")
        except RemoteStorageError as error:
            if offset < self._logged_to.get(index, 0):  # another lane has read and logged it
                return
            self._logged_to[index] = offset + 1
            level = logging.ERROR if isinstance(error, CorruptRemoteData) else logging.WARNING
            log.log(
                level,
                "skipping the record of %s-%d at offset %d: %s",
                METADATA_TOPIC,
                index,
                offset,
                error.message,
            )
            return
        if self._subscriptions.is_for(event.partition, lane, index, offset):
            self._apply(event, index, offset)
        here = InventoryOf(index)
        if self._subscriptions.is_for(here, lane, index, offset):
            is_new = self._inventories[index].apply(event)
            if is_new and self._subscriptions.is_ready(here):
                self._on_inventory_changed()

    def _apply(self, event: RemoteEvent, index: int, offset: int) -> None:
        self.records_read += 1
        self._snapshots.changed(event.partition)
        try:
            self.apply(event)
        except RemoteStorageError as error:
            log.info(
                "skipping the record of %s-%d at offset %d: %s",
                METADATA_TOPIC,
                index,
                offset,
                error.message,
            )
            if index in self._publishing:
                self._rejected_records[index, offset] = error

    def _progressed(self, index: int) -> None:
        for subject in self._subscriptions.pop_newly_ready():
            if isinstance(subject, InventoryOf):
                self._on_inventory_changed()
            else:
                self.ready(subject)
        self._wake(index)

    def _wake(self, index: int) -> None:
        moved = self._position_changed.pop(index, None)
        if moved is not None:
            moved.set()

    def _reading_changed(self) -> None:
        if self._consumer is not None:
            self._consumer.changed()

    # Tasks

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Create the topic if it is missing, then read and publish until cancelled.

        Raises UnusableMetadataTopic if the topic is not available within the configured time, or has a different
        number of partitions.
        """
        async with trio.open_nursery() as nursery:
            run = self._containment.keep_running
            nursery.start_soon(run, "opening partitions", self._open_announced)
            nursery.start_soon(run, "snapshots", self._snapshots.run, self._subscribed_partitions)
            task_status.started()
            async with (
                self._cluster("admin") as admin,
                self._cluster("producer") as publishing,
                self._cluster("consumer") as live,
                self._cluster("consumer") as catching_up,
                self._cluster("consumer") as inventory,
            ):
                await self._find_topic(admin)
                lanes = {Lane.LIVE: live, Lane.CATCHING_UP: catching_up, Lane.INVENTORY: inventory}
                await self._serve(admin, publishing, lanes)

    async def _serve(
        self, admin: Cluster, publishing: Cluster, lanes: Mapping[Lane, Cluster]
    ) -> None:
        async with trio.open_nursery() as nursery:
            self._consumer = MetadataTopicConsumer(
                lanes,
                self._subscriptions,
                self._settings.consumer,
                on_record=self._handle_record_contained,
                progressed=self._progressed,
                ensure_topic=lambda: self._recreate_topic(admin),
            )
            nursery.start_soon(self._consumer.run)
            seams, options = self._seams, self._settings.producer
            async with open_producer(publishing, seams.clock, seams.entropy, options) as producer:
                self._producer = producer
                await trio.sleep_forever()

    def _cluster(self, of: str) -> AbstractAsyncContextManager[Cluster]:
        settings = self._settings
        return open_cluster(
            self._seams.network,
            settings.bootstrap,
            client_id=settings.client_id(of),
            timeout_s=settings.request_timeout_s,
        )

    async def _find_topic(self, admin: Cluster) -> None:
        """Find or create the topic. Raises UnusableMetadataTopic."""
        settings, error, logged = self._settings, "", ""
        begun = trio.current_time()
        with trio.move_on_after(settings.retry_max_s):
            while True:
                try:
                    await ensure_metadata_topic(admin, settings.topic)
                    return
                except (KafkaError, ClientError) as failure:
                    error = str(failure)
                # During the start of a cluster, too few brokers are expected, so do not log it yet.
                if error != logged and trio.current_time() - begun > LOG_AFTER_S:
                    logged = error
                    log.warning("topic %s is not available yet: %s", METADATA_TOPIC, error)
                await trio.sleep(settings.retry_interval_s)
        raise UnusableMetadataTopic(
            f"topic {METADATA_TOPIC} is not available after {settings.retry_max_s:g} s: {error}"
        )

    async def _recreate_topic(self, admin: Cluster) -> None:
        """Create the topic again after it was deleted. Raises KafkaError and ClientError."""
        try:
            await ensure_metadata_topic(admin, self._settings.topic)
        except UnusableMetadataTopic as error:
            log.error("%s", error)

    async def _open_announced(self) -> None:
        """Open announced partitions, from their snapshots if there are any.

        A partition that fails unexpectedly is opened again after a pause, without a delay of the others. It does not
        hold back the snapshots of the others either.
        """
        while True:
            self._enqueue_due()
            while self._to_open:
                partition = self._to_open[0]
                await self._opening_containment.run(partition, self._open, partition)
                self._to_open.popleft()
                if not self._to_open:
                    self._reading_changed()
            self._opening = trio.Event()
            due_s = self._to_reopen[0][0] if self._to_reopen else math.inf
            with trio.move_on_at(due_s):
                await self._opening.wait()

    def _enqueue_due(self) -> None:
        """Enqueue the partitions that are due to be opened again, without those of no more interest."""
        while self._to_reopen and self._to_reopen[0][0] <= trio.current_time():
            _, partition = self._to_reopen.popleft()
            if partition in self._interests:
                self._to_open.append(partition)

    async def _open(self, partition: TopicIdPartition) -> None:
        index = self.metadata_partition_of(partition)
        if partition in self._subscriptions:
            return
        found = await self._snapshots.load(partition, index)
        if partition not in self._interests or partition in self._subscriptions:
            return
        start = 0
        if found is not None:
            self.restart(found.metadata)
            start = self._subscriptions.start_in(found.topic_id, found.offset)
        self._subscriptions.follow(partition, index, start)

    async def _subscribed_partitions(self) -> SubscribedPartitions | None:
        """Return the partitions whose snapshots may be written; None while some are not open or the topic id may change."""
        topic_id = self._subscriptions.topic_id
        found: list[SubscribedPartition] = []
        for number, (partition, interests) in enumerate(list(self._interests.items()), 1):
            if self._to_open:
                return None
            known = self.metadata_of(partition)
            if (
                known is not None
                and partition in self._subscriptions
                and Interest.REPLICA in interests
            ):
                position = self._subscriptions.position(partition)
                is_ready = self.is_ready(partition)
                found.append(
                    SubscribedPartition(
                        known, self.metadata_partition_of(partition), position, is_ready
                    )
                )
            if number % PARTITIONS_A_STEP == 0:
                await trio.lowlevel.checkpoint()
        if topic_id is None or topic_id != self._subscriptions.topic_id:
            return None
        return SubscribedPartitions(topic_id, found)
