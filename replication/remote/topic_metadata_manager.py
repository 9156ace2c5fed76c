"""The RemoteLogMetadataManager over `__remote_log_metadata` (T-03, T-44 to T-49).

What is published goes to the topic, acknowledged by all in sync, and is done once this node's own view
has read it; if the view passes it over (somebody else's state came first), whoever published it is told
so, as everybody else's view passes it over too. The view has the partitions that this node leads or
follows, and those it removes; of the metadata partitions that it leads itself, there is a census.

    partitions_changed → announced → opened (snapshot, or nothing) → read → ready

A partition is opened by a task, since its snapshot is a file; all else happens where it is called. One
bad record never ends the reading: it is passed over with a word in the log.

Which partitions have anything in the remote tier, by one partition of the metadata topic.

Whoever leads the metadata partition reads all of it for that (T-51), and keeps of each partition that
occurs only when it was first heard of, until its deletion is finished. So what was missed is found
whoever missed it: a topic deleted while nobody led, or by a broker that knows no remover, and segments
that were announced after the deletion was over.
"""

from __future__ import annotations

import logging
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
from odradek.replication.remote.metadata_manager_settings import MetadataManagerSettings
from odradek.replication.remote.metadata_snapshots import (
    MetadataSnapshots,
    SubscribedPartition,
    SubscribedPartitions,
)
from odradek.replication.remote.metadata_subscriptions import (
    InventoryOf,
    Lane,
    MetadataSubscriptions,
)
from odradek.replication.remote.metadata_topic import (
    UnusableMetadataTopic,
    ensure_metadata_topic,
    metadata_partition,
)
from odradek.replication.remote.metadata_topic_consumer import MetadataTopicConsumer
from odradek.seams import Seams
from odradek.storage.tiered import metadata_records
from odradek.storage.tiered.errors import (
    CorruptRemoteData,
    InvalidRemoteState,
    RemoteMetadataUnavailable,
    RemoteResourceNotFound,
    RemoteStorageError,
)
from odradek.storage.tiered.metadata import (
    PartitionDeleteState,
    RemoteEvent,
    RemoteLogSegmentMetadata,
    RemoteLogSegmentMetadataUpdate,
    RemotePartitionDeleteMetadata,
    SegmentState,
    TopicIdPartition,
)
from odradek.storage.tiered.metadata_records import METADATA_TOPIC
from odradek.storage.tiered.remote_partition_metadata_store import RemotePartitionMetadataStore


class PartitionInventory:
    """See the module. `apply` is told every record of the metadata partition, in order."""

    def __init__(self) -> None:
        self._first_ms: dict[TopicIdPartition, int] = {}
        self._of_topic: dict[UUID, dict[TopicIdPartition, None]] = {}

    def __contains__(self, partition: TopicIdPartition) -> bool:
        return partition in self._first_ms

    def __iter__(self) -> Iterator[tuple[TopicIdPartition, int]]:
        """Each partition, with the time (ms) of the first record about it that was read."""
        return iter(tuple(self._first_ms.items()))

    def __len__(self) -> int:
        return len(self._first_ms)

    def of_topics(self, topic_ids: Mapping[UUID, object]) -> list[TopicIdPartition]:
        """Their partitions that are in here; soon found where there are few of either."""
        known = self._of_topic
        few = known if len(known) < len(topic_ids) else topic_ids
        return [
            partition
            for topic_id in few
            if topic_id in topic_ids
            for partition in known.get(topic_id, ())
        ]

    def apply(self, event: RemoteEvent) -> bool:
        """Whether a partition was heard of for the first time."""
        partition = event.partition
        if isinstance(event, RemotePartitionDeleteMetadata):
            if event.state is PartitionDeleteState.DELETE_PARTITION_FINISHED:
                self._remove(partition)
                return False
        elif event.state is SegmentState.DELETE_SEGMENT_FINISHED:
            return False  # of a partition whose earlier records are cut away: nothing is left of it
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


log = logging.getLogger("odradek.tiered")

PARTITIONS_A_STEP: Final = 50
PATIENCE_S: Final = 10.0
"""How long the topic may be missing before the log says so."""

PUBLISHING_S: Final = 10.0
"""Whoever waits longer until something is published keeps others from waiting, too."""

_STARTED: Final = SegmentState.COPY_SEGMENT_STARTED


class Interest(Enum):
    """Why a partition's metadata is read."""

    REPLICA = "this node leads or follows it"
    REMOVAL = "this node removes it"


class TopicBasedRemoteLogMetadataManager(RemotePartitionMetadataStore):
    """See the module, and RemoteLogMetadataManager for what is asked of it. `run` must be running for
    anything to become ready, and to be published."""

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
        self._opening = trio.Event()
        self._inventories: dict[int, PartitionInventory] = {}
        self._on_inventory_changed: Callable[[], None] = lambda: None
        self._publishing: dict[int, dict[object, float]] = {}
        """By metadata partition, who publishes there, the first to come first, and since when."""
        self._refusing: set[int] = set()
        """The metadata partitions where that failed last."""
        self._passed_over: dict[tuple[int, int], RemoteStorageError] = {}
        self._moved: dict[int, trio.Event] = {}
        self._reading: MetadataTopicConsumer | None = None
        self._producer: Producer | None = None
        self.records_read = 0
        """Of partitions that are read for, since the start; censuses do not count."""

    @property
    def damaged_partitions(self) -> int:
        """How many partitions of the topic are read no further, since their leaders have damaged batches."""
        return 0 if self._reading is None else self._reading.damaged_partitions

    # What this node is a replica of, and what it removes

    def partitions_changed(
        self, leads: Iterable[TopicIdPartition], follows: Iterable[TopicIdPartition]
    ) -> None:
        for partition in (*leads, *follows):
            self._interested(partition, Interest.REPLICA)

    def stop_partitions(self, partitions: Iterable[TopicIdPartition]) -> None:
        for partition in partitions:
            self._not_interested(partition, Interest.REPLICA)

    def hold(self, partition: TopicIdPartition) -> None:
        """Read its metadata whoever its replicas are, for this node removes it; until `release`."""
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
        self._wake(self.place_of(partition))
        self._reading_changed()

    # What this node leads of the topic itself

    def lead_metadata(self, index: int) -> None:
        """This node leads a partition of the metadata topic now: take its census."""
        if index not in self._inventories:
            self._inventories[index] = PartitionInventory()
            self._subscriptions.follow(InventoryOf(index), index)
            self._reading_changed()

    def resign_metadata(self, index: int) -> None:
        """It does not any more."""
        if self._inventories.pop(index, None) is not None:
            self._subscriptions.forget(InventoryOf(index))
            self._reading_changed()
            self._on_inventory_changed()

    def inventories(self) -> Iterator[tuple[int, PartitionInventory]]:
        """Those that are complete, by metadata partition."""
        for index, census in sorted(self._inventories.items()):
            if self._subscriptions.is_ready(InventoryOf(index)):
                yield index, census

    def is_in_inventory(self, partition: TopicIdPartition) -> bool:
        """Whether the remote tier may have something of it. False too where that is not this node's
        to know (any more, or yet)."""
        place = self.place_of(partition)
        return (
            self._subscriptions.is_ready(InventoryOf(place))
            and partition in self._inventories[place]
        )

    def on_inventory_changed(self, callback: Callable[[], None]) -> None:
        """Call back when a census is complete or ends, or somebody new is in it."""
        self._on_inventory_changed = callback

    def place_of(self, partition: TopicIdPartition) -> int:
        """Which metadata partition has it."""
        return metadata_partition(partition, self._settings.topic.partitions)

    # Publishing

    async def add_segment(self, metadata: RemoteLogSegmentMetadata) -> None:
        if metadata.state is not _STARTED:
            raise InvalidRemoteState(f"{metadata.id} cannot begin as {metadata.state.name}")
        await self._publish(metadata)

    async def update_segment(self, update: RemoteLogSegmentMetadataUpdate) -> None:
        await self._publish(update)

    async def put_partition_delete(self, metadata: RemotePartitionDeleteMetadata) -> None:
        await self._publish(metadata)

    async def _publish(self, event: RemoteEvent) -> None:
        """Done once the view has it. Raises what the view has against it, before or after, and
        RemoteMetadataUnavailable if nobody can tell."""
        self.check(event)
        place = self.place_of(event.partition)
        producer = self._producer
        if producer is None:
            raise RemoteMetadataUnavailable(f"topic {METADATA_TOPIC} cannot be reached yet")
        with self._publishes_at(place):
            value = metadata_records.encode(event)
            try:
                offset = await producer.send(METADATA_TOPIC, value, partition=place)
            except (KafkaError, ClientError) as error:
                raise RemoteMetadataUnavailable(
                    f"{event.partition}: not published in {METADATA_TOPIC}-{place}: {error}"
                ) from error
            await self._until_read(event.partition, place, offset)
            refused = self._passed_over.get((place, offset))
        if refused is not None:
            raise refused

    @contextmanager
    def _publishes_at(self, place: int) -> Iterator[None]:
        """While somebody does, what the view passes over there is kept for him. Where that is in vain one
        tries at a time, for each keeps others from copying or deleting: RemoteMetadataUnavailable."""
        publishing, now = self._publishing.setdefault(place, {}), trio.current_time()
        first = next(iter(publishing.values()), now)
        if publishing and (place in self._refusing or now - first > PUBLISHING_S):
            raise RemoteMetadataUnavailable(
                f"{METADATA_TOPIC}-{place} takes nothing, for {now - first:.0f} s now"
            )
        me = object()
        publishing[me] = now
        try:
            yield
            self._refusing.discard(place)
        except RemoteMetadataUnavailable:
            self._refusing.add(place)
            raise
        finally:
            del publishing[me]
            if not publishing:
                del self._publishing[place]
                for key in [key for key in self._passed_over if key[0] == place]:
                    del self._passed_over[key]

    async def _until_read(self, partition: TopicIdPartition, place: int, offset: int) -> None:
        limit_s = self._settings.consume_wait_s
        with trio.move_on_after(limit_s):
            while partition in self._subscriptions:
                if self._subscriptions.position(partition) > offset:
                    return
                await self._moved.setdefault(place, trio.Event()).wait()
            raise RemoteResourceNotFound(f"{partition} is not announced here any more")
        raise RemoteMetadataUnavailable(
            f"{partition}: what was published at {offset} of {METADATA_TOPIC}-{place} was not read "
            f"back in {limit_s:g} s"
        )

    # What is read

    def _tell(self, lane: Lane, where: int, offset: int, value: bytes | None) -> None:
        try:
            event = metadata_records.decode(value or b"")
        except RemoteStorageError as error:
            level = logging.ERROR if isinstance(error, CorruptRemoteData) else logging.WARNING
            log.log(level, "%s-%d at %d is passed over: %s", METADATA_TOPIC, where, offset, error)
            return
        if self._subscriptions.is_for(event.partition, lane, where, offset):
            self._apply(event, where, offset)
        here = InventoryOf(where)
        if self._subscriptions.is_for(here, lane, where, offset):
            is_new = self._inventories[where].apply(event)
            if is_new and self._subscriptions.is_ready(here):
                self._on_inventory_changed()

    def _apply(self, event: RemoteEvent, where: int, offset: int) -> None:
        self.records_read += 1
        self._snapshots.changed(event.partition)
        try:
            self.apply(event)
        except RemoteStorageError as error:
            log.info("%s-%d at %d is passed over: %s", METADATA_TOPIC, where, offset, error)
            if where in self._publishing:
                self._passed_over[where, offset] = error

    def _progressed(self, where: int) -> None:
        for subject in self._subscriptions.take_newly_ready():
            if isinstance(subject, InventoryOf):
                self._on_inventory_changed()
            else:
                self.ready(subject)
        self._wake(where)

    def _wake(self, where: int) -> None:
        moved = self._moved.pop(where, None)
        if moved is not None:
            moved.set()

    def _reading_changed(self) -> None:
        if self._reading is not None:
            self._reading.changed()

    # The tasks

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Make the topic if it is missing, read and publish; until cancelled.

        Raises UnusableMetadataTopic if the topic is not to be had in the time that is configured for
        it, or is not what the configs say.
        """
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._open_announced)
            nursery.start_soon(self._snapshots.run, self._read_for)
            task_status.started()
            async with (
                self._cluster("admin") as admin,
                self._cluster("producer") as publishing,
                self._cluster("consumer") as live,
                self._cluster("consumer") as catching_up,
                self._cluster("consumer") as census,
            ):
                await self._find_topic(admin)
                lanes = {Lane.LIVE: live, Lane.CATCHING_UP: catching_up, Lane.INVENTORY: census}
                await self._serve(admin, publishing, lanes)

    async def _serve(
        self, admin: Cluster, publishing: Cluster, lanes: Mapping[Lane, Cluster]
    ) -> None:
        async with trio.open_nursery() as nursery:
            self._reading = MetadataTopicConsumer(
                lanes,
                self._subscriptions,
                self._settings.consumer,
                tell=self._tell,
                progressed=self._progressed,
                ensure_topic=lambda: self._find_again(admin),
            )
            nursery.start_soon(self._reading.run)
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
        """Wait for the topic, or make it. Raises UnusableMetadataTopic."""
        settings, error, said = self._settings, "", ""
        begun = trio.current_time()
        with trio.move_on_after(settings.retry_max_s):
            while True:
                try:
                    await ensure_metadata_topic(admin, settings.topic)
                    return
                except (KafkaError, ClientError) as failure:
                    error = str(failure)
                # While a cluster starts, that there are too few brokers is nothing to speak of.
                if error != said and trio.current_time() - begun > PATIENCE_S:
                    said = error
                    log.warning("no topic %s yet: %s", METADATA_TOPIC, error)
                await trio.sleep(settings.retry_interval_s)
        raise UnusableMetadataTopic(
            f"topic {METADATA_TOPIC} is not to be had in {settings.retry_max_s:g} s: {error}"
        )

    async def _find_again(self, admin: Cluster) -> None:
        """It was there, and is no more: make it anew. Raises KafkaError, ClientError."""
        try:
            await ensure_metadata_topic(admin, self._settings.topic)
        except UnusableMetadataTopic as error:
            log.error("%s", error)

    async def _open_announced(self) -> None:
        """Open what is announced, each from its snapshot if there is one."""
        while True:
            while self._to_open:
                await self._open(self._to_open[0])
                self._to_open.popleft()
                if not self._to_open:
                    self._reading_changed()
            self._opening = trio.Event()
            await self._opening.wait()

    async def _open(self, partition: TopicIdPartition) -> None:
        place = self.place_of(partition)
        if partition in self._subscriptions:
            return
        found = await self._snapshots.load(partition, place)
        if partition not in self._interests or partition in self._subscriptions:
            return
        start = 0
        if found is not None:
            self.restart(found.metadata)
            start = self._subscriptions.start_in(found.topic_id, found.offset)
        self._subscriptions.follow(partition, place, start)

    async def _read_for(self) -> SubscribedPartitions | None:
        """What may be written to disk; None while some are not open, or of which topic offsets are may change."""
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
                    SubscribedPartition(known, self.place_of(partition), position, is_ready)
                )
            if number % PARTITIONS_A_STEP == 0:
                await trio.lowlevel.checkpoint()
        if topic_id is None or topic_id != self._subscriptions.topic_id:
            return None
        return SubscribedPartitions(topic_id, found)
