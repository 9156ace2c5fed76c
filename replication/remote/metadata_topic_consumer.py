"""Reading the metadata topic: fetches as `subscriptions.py` says, one task for each lane and leader.

A lane's partitions that one broker leads are read together, and wait for news together; those of another
broker are not held up by that. What comes is told in steps of a few records, with turns of others in
between. A broker that is away, a leader that moves, a topic that is deleted under it: each of them is
waited out, for ever. So is a batch that is damaged on its leader's disk, and that partition alone, which is
asked for less often meanwhile: another replica may have it whole, and what it says may be all that is known of
a segment.

Each lane has a client of its own, and so its own connections: brokers answer a connection's requests
one after the other, and a fetch that waits for news would hold up what others ask.
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
    DamagedBatch,
    Reader,
    ReaderOptions,
    TopicPartition,
    list_offsets,
)
from odradek.client.errors import ClientError
from odradek.client.metadata import Cluster, Topic
from odradek.protocol.errors import ErrorCode, KafkaError
from odradek.replication.remote.metadata_subscriptions import Lane, MetadataSubscriptions, Subject
from odradek.storage.tiered.metadata_records import METADATA_TOPIC

log = logging.getLogger("odradek.tiered")

WAIT_S: Final = 0.5
"""How long a fetch waits for news; newcomers wait that long at most for what is under way."""
RECORDS_A_STEP: Final = 32
PAUSE_S: Final = 0.1
PAUSE_MAX_S: Final = 2.0
PATIENCE_S: Final = 15.0
"""How long nothing may be read before the log says why, and says so again."""
REMIND_S: Final = 60.0
"""How often the log says that a batch is damaged."""
ENDS_TIMEOUT_S: Final = 5.0
CENSUS_REST: Final = 2.0
"""For each second that a census takes of the loop, so many for others: nobody waits for it."""

Tell = Callable[[Lane, int, int, bytes | None], None]
"""Told of a record: the lane, the metadata partition, the offset, the value. It must not raise."""


@dataclass(slots=True)
class _Damage:
    """A batch that a leader's disk has damaged. Times are the loop's, in seconds."""

    node_id: int
    offset: int
    said_at: float
    pause_s: float = PAUSE_S
    again_at: float = 0.0

    def put_off(self, now: float) -> None:
        """It was met once more: it is asked for after a while, which doubles."""
        self.again_at = now + self.pause_s
        self.pause_s = min(2 * self.pause_s, PAUSE_MAX_S)


class MetadataTopicConsumer:
    """See the module. `progressed` is called with a metadata partition whenever one of its cursors
    moved or its end became known; `ensure_topic` is awaited when the topic is found missing."""

    def __init__(
        self,
        clusters: Mapping[Lane, Cluster],
        subscriptions: MetadataSubscriptions,
        options: ReaderOptions,
        *,
        tell: Tell,
        progressed: Callable[[int], None],
        ensure_topic: Callable[[], Awaitable[None]],
    ) -> None:
        self._clusters = clusters
        self._subscriptions = subscriptions
        self._options = options
        self._tell = tell
        self._progressed = progressed
        self._ensure_topic = ensure_topic
        self._changed = {lane: trio.Event() for lane in Lane}
        self._ends_wanted = trio.Event()
        self._readers: dict[Lane, set[int]] = {lane: set() for lane in Lane}
        self._failing_since: float | None = None
        self._complained_at = 0.0
        self._damaged: dict[tuple[Lane, int], _Damage] = {}

    @property
    def damaged_partitions(self) -> int:
        """How many are not read on, since a batch is damaged."""
        cursors = self._subscriptions.cursors
        return len(
            {
                where
                for (lane, where), damage in self._damaged.items()
                if cursors(lane).get(where) == damage.offset
            }
        )

    def changed(self) -> None:
        """Somebody is read for now, or no more."""
        self._ends_wanted.set()
        for lane in Lane:
            self._changed[lane].set()

    async def run(self) -> None:
        """Until cancelled."""
        async with trio.open_nursery() as nursery:
            for lane in Lane:
                nursery.start_soon(self._keep_readers, lane, nursery)
            nursery.start_soon(self._find_ends)

    # Who is read

    async def _keep_readers(self, lane: Lane, nursery: trio.Nursery) -> None:
        """See that each leader of what the lane reads has its task."""
        pause = PAUSE_S
        while True:
            self._changed[lane] = trio.Event()
            leaders = await self._leaders(lane)
            for node_id in sorted(set(leaders.values()) - self._readers[lane]):
                self._readers[lane].add(node_id)
                nursery.start_soon(self._read_from, lane, node_id)
            if leaders.keys() == self._subscriptions.cursors(lane).keys():
                pause = PAUSE_S
                await self._changed[lane].wait()
                continue
            with trio.move_on_after(pause):  # some have no leader now
                await self._changed[lane].wait()
            pause = min(2 * pause, PAUSE_MAX_S)
            self._clusters[lane].forget(METADATA_TOPIC)

    async def _leaders(self, lane: Lane) -> dict[int, int]:
        """Who leads what the lane reads, as far as there is somebody."""
        cursors = self._subscriptions.cursors(lane)
        if not cursors:
            return {}
        try:
            topic = await self._topic(lane)
        except (KafkaError, ClientError) as error:
            await self._no_topic(error)
            return {}
        found = {where: topic.partitions.get(where) for where in cursors}
        return {where: each.leader for where, each in found.items() if each and each.leader >= 0}

    async def _topic(self, lane: Lane) -> Topic:
        """As a lane's cluster knows it, or is told now. Raises KafkaError, ClientError."""
        cluster = self._clusters[lane]
        topic = cluster.topics.get(METADATA_TOPIC) or await cluster.topic(METADATA_TOPIC)
        if topic.topic_id is not None and self._subscriptions.topic_is(topic.topic_id):
            log.warning("topic %s was made anew: all of it is read again", METADATA_TOPIC)
            self._ends_wanted.set()
            for other in self._clusters.values():
                other.forget(METADATA_TOPIC)
        return topic

    async def _no_topic(self, error: Exception) -> None:
        self._complain(error)
        if isinstance(error, KafkaError) and error.code == ErrorCode.unknown_topic_or_partition:
            try:
                await self._ensure_topic()
            except (KafkaError, ClientError) as failure:
                self._complain(failure)

    async def _read_from(self, lane: Lane, node_id: int) -> None:
        """Read what this broker leads, until that is nothing."""
        reader = Reader(self._clusters[lane], self._options)
        try:
            while True:
                leaders = await self._leaders(lane)
                cursors = self._subscriptions.cursors(lane)
                led = [each for each in leaders if leaders[each] == node_id and each in cursors]
                if not led:
                    return
                if set(leaders.values()) - self._readers[lane]:
                    self._changed[lane].set()
                wanted = {
                    TopicPartition(METADATA_TOPIC, where): cursors[where]
                    for where in led
                    if not self._rests(lane, where, node_id, cursors[where])
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
        except DamagedBatch:
            records = []
        except (KafkaError, ClientError) as error:
            self._complain(error)
            self._changed[lane].set()
            if isinstance(error, KafkaError) and error.code == ErrorCode.offset_out_of_range:
                await self._reset(lane, wanted)
            else:
                await trio.sleep(PAUSE_S)
            return
        self._failing_since = None
        for damaged in reader.damaged:
            self._tell_damaged(lane, node_id, damaged)
        read_at = trio.current_time()
        ends = reader.positions
        by_partition: dict[int, list[ConsumedRecord]] = {}
        for record in records:
            by_partition.setdefault(record.partition, []).append(record)
        for each, begun_at in wanted.items():
            of_it = by_partition.get(each.partition, [])
            await self._take(lane, each.partition, begun_at, of_it, ends[each])
        if lane is Lane.INVENTORY and records:
            await trio.sleep(min(CENSUS_REST * (trio.current_time() - read_at), PAUSE_MAX_S))

    # What was read

    async def _take(
        self, lane: Lane, where: int, begun_at: int, records: Sequence[ConsumedRecord], end: int
    ) -> None:
        """Tell of what was read from `begun_at` to `end`, some at a time, unless the cursor was set
        back meanwhile: then the rest is read again."""
        at = begun_at
        for first in range(0, len(records), RECORDS_A_STEP):
            if self._subscriptions.cursors(lane).get(where) != at:
                return
            step = records[first : first + RECORDS_A_STEP]
            for record in step:
                self._tell(lane, where, record.offset, record.value)
            at = self._advance(lane, where, at, step[-1].offset + 1)
            await trio.lowlevel.checkpoint()
        if self._subscriptions.cursors(lane).get(where) == at < end:  # what has no records ends it
            self._advance(lane, where, at, end)

    def _advance(self, lane: Lane, where: int, at: int, to: int) -> int:
        if to > at and self._damaged.pop((lane, where), None) is not None:
            log.warning("%s-%d is read on from offset %d", METADATA_TOPIC, where, at)
        self._settled(where, self._subscriptions.advanced(lane, where, at, to))
        return to

    def _settled(self, where: int, is_new_in_live: bool) -> None:
        if is_new_in_live:
            self._changed[Lane.LIVE].set()
        self._progressed(where)

    async def _reset(self, lane: Lane, wanted: Mapping[TopicPartition, int]) -> None:
        """One of these is not where the partition has records any more; see which."""
        cluster = self._clusters[lane]
        try:
            starts = await list_offsets(cluster, dict.fromkeys(wanted, EARLIEST))
            ends = await list_offsets(cluster, dict.fromkeys(wanted, LATEST))
        except (KafkaError, ClientError) as error:
            self._complain(error)
            await trio.sleep(PAUSE_S)
            return
        for each, begun_at in wanted.items():
            where, start, end = each.partition, starts[each].offset, ends[each].offset
            is_new_in_live = self._subscriptions.reset(lane, where, begun_at, start, end)
            self._settled(where, is_new_in_live)

    # Where it ends

    async def _find_ends(self) -> None:
        """Ask where metadata partitions end, on behalf of newcomers (KIP-207: a new leader does not
        say so before it knows)."""
        while True:
            self._ends_wanted = trio.Event()
            wanted = self._subscriptions.ends_wanted()
            if not wanted:
                await self._ends_wanted.wait()
                continue
            found = await self._ends_of(wanted)
            for where, end in found.items():
                is_new = self._subscriptions.ends_found(where, wanted[where], end)
                self._settled(where, is_new)
            if found.keys() != wanted.keys():
                with trio.move_on_after(PAUSE_S):
                    await self._ends_wanted.wait()

    async def _ends_of(self, wanted: Mapping[int, Sequence[Subject]]) -> dict[int, int]:
        """As far as they answer. They are asked by the topic's name: it has to be the same one, by its id,
        before and after that."""
        lane = Lane.CATCHING_UP
        try:
            before = await self._topic(lane)
            found = await self._responded_ends(self._clusters[lane], sorted(wanted))
            self._clusters[lane].forget(METADATA_TOPIC)
            after = await self._topic(lane)
        except (KafkaError, ClientError) as error:
            self._complain(error)
            return {}
        return found if after.topic_id == before.topic_id else {}

    async def _responded_ends(self, cluster: Cluster, wanted: Sequence[int]) -> dict[int, int]:
        """All at once, or where some do not answer, each by itself."""
        found: dict[int, int] = {}
        everywhere = [TopicPartition(METADATA_TOPIC, where) for where in wanted]
        for some in (everywhere, *([each] for each in everywhere)):
            try:
                ends = await list_offsets(
                    cluster, dict.fromkeys(some, LATEST), timeout_s=ENDS_TIMEOUT_S
                )
            except (KafkaError, ClientError) as error:
                self._complain(error)
                if self._is_gone(error):
                    break
                continue
            found.update({where.partition: each.offset for where, each in ends.items()})
            if len(found) == len(wanted):
                break
        return found

    def _is_gone(self, error: Exception) -> bool:
        code = error.code if isinstance(error, KafkaError) else None
        return code == ErrorCode.unknown_topic_or_partition

    def _rests(self, lane: Lane, where: int, node_id: int, offset: int) -> bool:
        """Whether this broker's batch there was damaged just now."""
        damage = self._damaged.get((lane, where))
        return (
            damage is not None
            and (damage.node_id, damage.offset) == (node_id, offset)
            and trio.current_time() < damage.again_at
        )

    def _tell_damaged(self, lane: Lane, node_id: int, error: DamagedBatch) -> None:
        """At once, and once a minute while it lasts."""
        key, now = (lane, error.where.partition), trio.current_time()
        known = self._damaged.get(key)
        is_new = known is None or (known.node_id, known.offset) != (node_id, error.offset)
        if known is None or is_new:
            known = self._damaged[key] = _Damage(node_id, error.offset, said_at=now)
        known.put_off(now)
        if is_new or now - known.said_at > REMIND_S:
            known.said_at = now
            log.error(
                "damaged on broker %d: %s: nothing behind it is known here until another replica leads, and"
                " has it whole",
                node_id,
                error.message,
            )

    def _complain(self, error: Exception) -> None:
        """Of what does not pass soon, and not at every attempt: leaders move, brokers start and stop."""
        now = trio.current_time()
        if self._failing_since is None:
            self._failing_since = self._complained_at = now
        if now - self._complained_at > PATIENCE_S:
            self._complained_at = now
            lasting_s = now - self._failing_since
            log.warning("reading %s: for %.0f s now: %s", METADATA_TOPIC, lasting_s, error)
