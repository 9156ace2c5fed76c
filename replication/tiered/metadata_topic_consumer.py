"""Reader of the metadata topic: one task per lane and leader fetches what `metadata_subscriptions.py` requires.

The metadata partitions of a lane that one broker leads are read by one task, so that brokers do not delay each other. Records are
passed on in steps of a few records, with checkpoints in between. The reader retries forever if a broker is unavailable, a leader
moves, or the topic is deleted. A corrupt batch on a leader stops its metadata partition only, and is retried with backoff:
another replica may have the batch intact, and it may be the only record of a segment.

Each lane has its own client with its own connections, because brokers process the requests of a connection in order and a waiting
fetch would delay other requests.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import trio

from odradek.client.consumer import (
    EARLIEST,
    LATEST,
    ConsumedRecord,
    CorruptBatchAt,
    Reader,
    ReaderOptions,
    list_offsets,
)
from odradek.client.errors import ClientError
from odradek.client.metadata import Cluster, Topic
from odradek.protocol.errors import ErrorCode, KafkaError
from odradek.protocol.topics import TopicPartition
from odradek.replication.tiered.metadata_subscriptions import Lane, MetadataSubscriptions, Subject
from odradek.seams.containment import STARTED_AGAIN, Containment
from odradek.storage.tiered.metadata_records import METADATA_TOPIC

log = logging.getLogger("odradek.tiered")

WAIT_S: Final = 0.5
"""Maximum wait of a fetch in seconds. A new subject waits at most this long for the fetch in progress."""
RECORDS_A_STEP: Final = 32
PAUSE_S: Final = 0.1
PAUSE_MAX_S: Final = 2.0
LOG_AFTER_S: Final = 15.0
"""Interval of log messages while nothing can be read, in seconds."""
REMIND_S: Final = 60.0
"""Interval of log messages about a corrupt batch, in seconds."""
ENDS_TIMEOUT_S: Final = 5.0
INVENTORY_REST: Final = 2.0
"""Pause in seconds after each second of reading for inventories, which have the lowest priority."""

RecordHandler = Callable[[Lane, int, int, bytes | None], None]
"""Called with a record: the lane, the metadata partition, the offset, the value. It must not raise."""


@dataclass(slots=True)
class _CorruptBatch:
    """A corrupt batch on a leader. Times are monotonic seconds."""

    node_id: int
    offset: int
    logged_at: float
    pause_s: float = PAUSE_S
    retry_at: float = 0.0

    def delay_retry(self, now: float) -> None:
        """Delay the next read of the batch; the delay doubles each time."""
        self.retry_at = now + self.pause_s
        self.pause_s = min(2 * self.pause_s, PAUSE_MAX_S)


class MetadataTopicConsumer:
    """Reads the metadata topic.

    `progressed` is called with a metadata partition when one of its cursors has moved or its end offset is known.
    `ensure_topic` is awaited when the topic is missing.
    """

    def __init__(
        self,
        clusters: Mapping[Lane, Cluster],
        subscriptions: MetadataSubscriptions,
        options: ReaderOptions,
        *,
        on_record: RecordHandler,
        progressed: Callable[[int], None],
        ensure_topic: Callable[[], Awaitable[None]],
    ) -> None:
        self._clusters = clusters
        self._subscriptions = subscriptions
        self._options = options
        self._on_record = on_record
        self._progressed = progressed
        self._ensure_topic = ensure_topic
        self._changed = {lane: trio.Event() for lane in Lane}
        self._ends_wanted = trio.Event()
        self._readers: dict[Lane, set[int]] = {lane: set() for lane in Lane}
        self._failing_since: float | None = None
        self._failure_logged_at = 0.0
        self._damaged: dict[tuple[Lane, int], _CorruptBatch] = {}
        self._containment: Containment[str] = Containment(
            "reading the metadata topic", consequence=STARTED_AGAIN
        )

    @property
    def damaged_partitions(self) -> int:
        """Number of metadata partitions that are stopped by a corrupt batch."""
        cursors = self._subscriptions.cursors
        return len(
            {
                index
                for (lane, index), damage in self._damaged.items()
                if cursors(lane).get(index) == damage.offset
            }
        )

    def changed(self) -> None:
        """Handle a change of the subjects."""
        self._ends_wanted.set()
        for lane in Lane:
            self._changed[lane].set()

    async def run(self) -> None:
        """Read the metadata topic until cancelled."""
        async with trio.open_nursery() as nursery:
            for lane in Lane:
                nursery.start_soon(
                    self._containment.keep_running, lane.name, self._keep_readers, lane, nursery
                )
            nursery.start_soon(self._containment.keep_running, "end offsets", self._find_ends)

    # Leaders

    async def _keep_readers(self, lane: Lane, nursery: trio.Nursery) -> None:
        """Start a task for each leader of the lane's metadata partitions."""
        pause = PAUSE_S
        while True:
            self._changed[lane] = trio.Event()
            leaders = await self._leaders(lane)
            for node_id in sorted(set(leaders.values()) - self._readers[lane]):
                self._readers[lane].add(node_id)
                nursery.start_soon(
                    self._containment.keep_running,
                    f"broker {node_id}",
                    self._read_from,
                    lane,
                    node_id,
                )
            if leaders.keys() == self._subscriptions.cursors(lane).keys():
                pause = PAUSE_S
                await self._changed[lane].wait()
                continue
            with trio.move_on_after(pause):  # some metadata partitions have no leader
                await self._changed[lane].wait()
            pause = min(2 * pause, PAUSE_MAX_S)
            self._clusters[lane].forget(METADATA_TOPIC)

    async def _leaders(self, lane: Lane) -> dict[int, int]:
        """Return the leaders of the lane's metadata partitions."""
        cursors = self._subscriptions.cursors(lane)
        if not cursors:
            return {}
        try:
            topic = await self._topic(lane)
        except (KafkaError, ClientError) as error:
            await self._no_topic(error)
            return {}
        found = {index: topic.partitions.get(index) for index in cursors}
        return {index: each.leader for index, each in found.items() if each and each.leader >= 0}

    async def _topic(self, lane: Lane) -> Topic:
        """Return the topic from a lane's metadata, refreshed if necessary. Raises KafkaError and ClientError."""
        cluster = self._clusters[lane]
        topic = cluster.topics.get(METADATA_TOPIC) or await cluster.topic(METADATA_TOPIC)
        if topic.topic_id is not None and self._subscriptions.topic_is(topic.topic_id):
            log.warning("topic %s was recreated, reading it from the start", METADATA_TOPIC)
            self._ends_wanted.set()
            for other in self._clusters.values():
                other.forget(METADATA_TOPIC)
        return topic

    async def _no_topic(self, error: Exception) -> None:
        self._log_failure(error)
        if isinstance(error, KafkaError) and error.code == ErrorCode.unknown_topic_or_partition:
            try:
                await self._ensure_topic()
            except (KafkaError, ClientError) as failure:
                self._log_failure(failure)

    async def _read_from(self, lane: Lane, node_id: int) -> None:
        """Read the metadata partitions that a broker leads, until it leads none."""
        reader = Reader(self._clusters[lane], self._options)
        without_leader: set[int] = set()
        try:
            while True:
                leaders = await self._leaders(lane)
                cursors = self._subscriptions.cursors(lane)
                before, without_leader = without_leader, cursors.keys() - leaders.keys()
                if without_leader - before:
                    self._changed[lane].set()  # `_keep_readers` looks their leaders up
                led = [each for each in leaders if leaders[each] == node_id and each in cursors]
                if not led:
                    return
                if set(leaders.values()) - self._readers[lane]:
                    self._changed[lane].set()
                wanted = {
                    TopicPartition(METADATA_TOPIC, index): cursors[index]
                    for index in led
                    if not self._is_backing_off(lane, index, node_id, cursors[index])
                }
                if not wanted:
                    await trio.sleep(PAUSE_S)
                    continue
                if reader.positions != wanted:
                    reader.assign(wanted)
                await self._read(lane, node_id, reader, wanted)
        finally:
            self._readers[lane].discard(node_id)
            self._changed[lane].set()

    async def _read(
        self, lane: Lane, node_id: int, reader: Reader, wanted: Mapping[TopicPartition, int]
    ) -> None:
        try:
            records = await reader.poll(WAIT_S)
        except CorruptBatchAt:
            records = []
        except (KafkaError, ClientError) as error:
            self._log_failure(error)
            self._changed[lane].set()
            if isinstance(error, KafkaError) and error.code == ErrorCode.offset_out_of_range:
                await self._reset(lane, wanted)
            else:
                await trio.sleep(PAUSE_S)
            return
        self._failing_since = None
        for damaged in reader.corrupt_batches:
            self._log_corrupt(lane, node_id, damaged)
        read_at = trio.current_time()
        ends = reader.positions
        by_partition: dict[int, list[ConsumedRecord]] = {}
        for record in records:
            by_partition.setdefault(record.partition, []).append(record)
        for each, begun_at in wanted.items():
            of_it = by_partition.get(each.partition, [])
            await self._deliver(lane, each.partition, begun_at, of_it, ends[each])
        if lane is Lane.INVENTORY and records:
            await trio.sleep(min(INVENTORY_REST * (trio.current_time() - read_at), PAUSE_MAX_S))

    # Records

    async def _deliver(
        self, lane: Lane, index: int, begun_at: int, records: Sequence[ConsumedRecord], end: int
    ) -> None:
        """Pass on the records from `begun_at` to `end` in steps, unless the cursor was moved back."""
        at = begun_at
        for first in range(0, len(records), RECORDS_A_STEP):
            if self._subscriptions.cursors(lane).get(index) != at:
                return
            step = records[first : first + RECORDS_A_STEP]
            for record in step:
                self._on_record(lane, index, record.offset, record.value)
            at = self._advance(lane, index, at, step[-1].offset + 1)
            await trio.lowlevel.checkpoint()
        if self._subscriptions.cursors(lane).get(index) == at < end:  # a range without records
            self._advance(lane, index, at, end)

    def _advance(self, lane: Lane, index: int, at: int, to: int) -> int:
        if to > at and self._damaged.pop((lane, index), None) is not None:
            log.warning(
                "resuming %s-%d at offset %d, after a corrupt batch", METADATA_TOPIC, index, at
            )
        self._settled(index, self._subscriptions.advanced(lane, index, at, to))
        return to

    def _settled(self, index: int, is_new_in_live: bool) -> None:
        if is_new_in_live:
            self._changed[Lane.LIVE].set()
        self._progressed(index)

    async def _reset(self, lane: Lane, wanted: Mapping[TopicPartition, int]) -> None:
        """Find the metadata partitions whose cursor is out of range, and reset it."""
        cluster = self._clusters[lane]
        try:
            starts = await list_offsets(cluster, dict.fromkeys(wanted, EARLIEST))
            ends = await list_offsets(cluster, dict.fromkeys(wanted, LATEST))
        except (KafkaError, ClientError) as error:
            self._log_failure(error)
            await trio.sleep(PAUSE_S)
            return
        for each, begun_at in wanted.items():
            index, start, end = each.partition, starts[each].offset, ends[each].offset
            is_new_in_live = self._subscriptions.reset(lane, index, begun_at, start, end)
            self._settled(index, is_new_in_live)

    # End offsets

    async def _find_ends(self) -> None:
        """Request the end offsets for new subjects. A new leader returns an error until it knows its end offset (KIP-207)."""
        while True:
            self._ends_wanted = trio.Event()
            wanted = self._subscriptions.ends_wanted()
            if not wanted:
                await self._ends_wanted.wait()
                continue
            found = await self._ends_of(wanted)
            for index, end in found.items():
                is_new = self._subscriptions.ends_found(index, wanted[index], end)
                self._settled(index, is_new)
            if found.keys() != wanted.keys():
                with trio.move_on_after(PAUSE_S):
                    await self._ends_wanted.wait()

    async def _ends_of(self, wanted: Mapping[int, Sequence[Subject]]) -> dict[int, int]:
        """Return the end offsets that brokers return. The topic's id must be the same before and after the requests."""
        lane = Lane.CATCHING_UP
        try:
            before = await self._topic(lane)
            found = await self._responded_ends(self._clusters[lane], sorted(wanted))
            self._clusters[lane].forget(METADATA_TOPIC)
            after = await self._topic(lane)
        except (KafkaError, ClientError) as error:
            self._log_failure(error)
            return {}
        return found if after.topic_id == before.topic_id else {}

    async def _responded_ends(self, cluster: Cluster, wanted: Sequence[int]) -> dict[int, int]:
        """Request all end offsets at once, or one by one if some brokers do not respond."""
        found: dict[int, int] = {}
        everywhere = [TopicPartition(METADATA_TOPIC, index) for index in wanted]
        for some in (everywhere, *([each] for each in everywhere)):
            try:
                ends = await list_offsets(
                    cluster, dict.fromkeys(some, LATEST), timeout_s=ENDS_TIMEOUT_S
                )
            except (KafkaError, ClientError) as error:
                self._log_failure(error)
                if self._is_gone(error):
                    break
                continue
            found.update({index.partition: each.offset for index, each in ends.items()})
            if len(found) == len(wanted):
                break
        return found

    def _is_gone(self, error: Exception) -> bool:
        code = error.code if isinstance(error, KafkaError) else None
        return code == ErrorCode.unknown_topic_or_partition

    def _is_backing_off(self, lane: Lane, index: int, node_id: int, offset: int) -> bool:
        """Whether the batch of this broker was corrupt a short time ago."""
        damage = self._damaged.get((lane, index))
        return (
            damage is not None
            and (damage.node_id, damage.offset) == (node_id, offset)
            and trio.current_time() < damage.retry_at
        )

    def _log_corrupt(self, lane: Lane, node_id: int, error: CorruptBatchAt) -> None:
        """Log a corrupt batch at once, and every minute while it exists."""
        key, now = (lane, error.where.partition), trio.current_time()
        known = self._damaged.get(key)
        is_new = known is None or (known.node_id, known.offset) != (node_id, error.offset)
        if known is None or is_new:
            known = self._damaged[key] = _CorruptBatch(node_id, error.offset, logged_at=now)
        known.delay_retry(now)
        if is_new or now - known.logged_at > REMIND_S:
            known.logged_at = now
            log.error(
                "corrupt batch on broker %d: %s: reading of this metadata partition stops until another replica"
                " leads and has the batch intact",
                node_id,
                error.message,
            )

    def _log_failure(self, error: Exception) -> None:
        """Log an error that lasts longer than a leader change, not every attempt."""
        now = trio.current_time()
        if self._failing_since is None:
            self._failing_since = self._failure_logged_at = now
        if now - self._failure_logged_at > LOG_AFTER_S:
            self._failure_logged_at = now
            lasting_s = now - self._failing_since
            log.warning("unable to read %s for %.0f s: %s", METADATA_TOPIC, lasting_s, error)
