"""A producer: records in, batches out, in order and, by default, each exactly once per partition.

Records queue up per partition, and those stand in line for their leaders. A task for each leader takes
what is in its line, at most one batch a partition, and sends one request; while that is under way the
next batches fill up, which is all the lingering there is, and a leader that is silent holds up nobody
else's. What has no leader that is known waits for another task, which finds out. A partition never has
two batches under way, so that repeating a batch keeps the order, and with a producer id (KIP-98) the
broker drops the repeated one. A batch is built once, with its sequence number in it, and sent unchanged
until it is acknowledged, refused, or too old.

After a batch is given up, nobody knows whether the broker has it: the producer takes a new id, so that
the gap in the numbers does not make later batches fail.
"""

from __future__ import annotations

from collections import deque
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any, NamedTuple, NoReturn

import trio

from odradek.client.errors import ClientError, TimedOut, check, retriable
from odradek.client.metadata import BACKOFF_MAX_S, BACKOFF_S, Cluster, Topic
from odradek.client.partitioner import StickyPartitions, partition_for_key
from odradek.protocol.apis import INIT_PRODUCER_ID, PRODUCE
from odradek.protocol.errors import ErrorCode, KafkaError
from odradek.protocol.records.records import Record, build_batch
from odradek.seams.clock import Clock
from odradek.seams.entropy import Entropy
from odradek.seams.values import value_class

Header = tuple[str, bytes | None]

NAMED_TOPICS = 12
"""The last version of Produce that names topics; later ones have ids."""
CREATION_WAIT_S = 5.0
"""How long a topic may take to come into being where brokers create topics by themselves."""
MISSING = frozenset({ErrorCode.unknown_topic_or_partition, ErrorCode.leader_not_available})
"""What is said of a topic that is not there, or about to be."""
PRODUCE_ANSWER_S = 5.0
"""How much longer than a broker waits for replicas we wait for it to say so."""
RECORD_OVERHEAD = 32
"""Bytes counted for a record beside its key, value and headers; an estimate, not a bound."""


@value_class
class ProducerOptions:
    """How a producer works; the defaults are those of Java's, but for the batch size."""

    acks: int = -1
    """-1 all in-sync replicas, 1 the leader, 0 nobody (offsets are -1 then)."""
    compression: int = 0
    """A codec's number (protocol.records.compression)."""
    idempotent: bool = True
    """No duplicates from repeated requests; needs acks -1."""
    batch_bytes: int = 512 << 10
    """Where a batch ends; a single larger record is a batch of its own."""
    buffer_bytes: int = 32 << 20
    """How much may wait to be sent before `enqueue` waits."""
    request_timeout_s: float = 30.0
    delivery_timeout_s: float = 120.0
    """How long a batch is repeated before it is given up."""

    def __post_init__(self) -> None:
        if self.idempotent and self.acks != -1:
            raise ValueError("an idempotent producer needs acks=-1 (all)")


class Delivery:
    """What became of one record."""

    __slots__ = ("_arrived", "done", "failure", "offset", "partition", "record", "topic")

    def __init__(self, topic: str, partition: int, record: Record) -> None:
        self.topic = topic
        self.partition = partition
        self.record: Record | None = record
        self.offset = -1
        self.failure: Exception | None = None
        self.done = False
        self._arrived: trio.Event | None = None

    async def wait(self) -> int:
        """Wait for the acknowledgement; the record's offset, -1 where the broker does not tell.

        Raises KafkaError or ClientError if it was refused or given up.
        """
        if not self.done:
            if self._arrived is None:
                self._arrived = trio.Event()
            await self._arrived.wait()
        if self.failure is not None:
            raise self.failure
        return self.offset

    def finish(self, offset: int, failure: Exception | None) -> None:
        self.done, self.offset, self.failure, self.record = True, offset, failure, None
        if self._arrived is not None:
            self._arrived.set()


class _Identity(NamedTuple):
    producer_id: int
    epoch: int


@dataclass(slots=True)
class _Batch:
    """A batch under way: its bytes stay what they are, however often it is sent."""

    topic: str
    partition: int
    deliveries: list[Delivery]
    data: bytes
    size: int
    identity: _Identity | None
    base_sequence: int
    given_up_at: float


class _Queue:
    """What waits for one partition, and what is to be sent again before it."""

    __slots__ = (
        "again",
        "blocked_since",
        "is_in_line",
        "next_sequence",
        "partition",
        "sequence_owner",
        "topic",
        "waiting",
    )

    def __init__(self, topic: str, partition: int) -> None:
        self.topic = topic
        self.partition = partition
        self.waiting: deque[Delivery] = deque()
        self.again: _Batch | None = None
        self.blocked_since: float | None = None
        self.next_sequence = 0
        self.sequence_owner = -1
        self.is_in_line = False
        """Some task has it, or is about to."""

    def __bool__(self) -> bool:
        return self.again is not None or bool(self.waiting)


class _Line:
    """The queues that wait for one leader; a task serves it while there are any."""

    __slots__ = ("is_served", "pause_s", "queues")

    def __init__(self) -> None:
        self.queues: list[_Queue] = []
        self.is_served = False
        self.pause_s = BACKOFF_S
        """After the next request that comes to nothing."""


class Producer:
    """Make one with `open_producer`."""

    def __init__(
        self,
        cluster: Cluster,
        clock: Clock,
        entropy: Entropy,
        options: ProducerOptions,
        nursery: trio.Nursery,
    ) -> None:
        self._cluster = cluster
        self._clock = clock
        self._options = options
        self._nursery = nursery
        self._sticky = StickyPartitions(entropy)
        self._queues: dict[tuple[str, int], _Queue] = {}
        self._lines: dict[int, _Line] = {}
        self._leaderless: list[_Queue] = []
        self._is_looking = False
        self._has_ended = False
        self._identity: _Identity | None = None
        self._buffered_bytes = 0
        self._unfinished = 0
        self._first_failure: Exception | None = None
        self._progress = trio.Event()

    async def enqueue(
        self,
        topic: str,
        value: bytes | None,
        *,
        key: bytes | None = None,
        headers: Sequence[Header] = (),
        partition: int | None = None,
        timestamp_ms: int | None = None,
    ) -> Delivery:
        """Queue a record; waits only for metadata, or for room. `flush` tells of failures.

        Raises KafkaError if there is no such topic or partition, ClientError once the producer was left.
        """
        while self._buffered_bytes >= self._options.buffer_bytes:
            await self._progress.wait()
        chosen = await self._choose_partition(topic, key, partition)
        if self._has_ended:
            raise ClientError(f"{topic}-{chosen}: the producer has ended")
        stamp = self._clock.wall_ms() if timestamp_ms is None else timestamp_ms
        delivery = Delivery(topic, chosen, Record(0, stamp, key, value, tuple(headers)))
        queue = self._queues.get((topic, chosen))
        if queue is None:
            queue = self._queues[topic, chosen] = _Queue(topic, chosen)
        queue.waiting.append(delivery)
        self._buffered_bytes += _size(delivery)
        self._unfinished += 1
        if not queue.is_in_line:
            self._line_up(queue)
        return delivery

    async def send(
        self,
        topic: str,
        value: bytes | None,
        *,
        key: bytes | None = None,
        headers: Sequence[Header] = (),
        partition: int | None = None,
        timestamp_ms: int | None = None,
    ) -> int:
        """Queue a record and wait for its offset (see `enqueue` and `Delivery.wait`)."""
        delivery = await self.enqueue(
            topic, value, key=key, headers=headers, partition=partition, timestamp_ms=timestamp_ms
        )
        return await delivery.wait()

    async def flush(self) -> None:
        """Wait until nothing is under way; raises the first failure since the last flush."""
        while self._unfinished:
            await self._progress.wait()
        failure, self._first_failure = self._first_failure, None
        if failure is not None:
            raise failure

    async def raise_failure(self) -> NoReturn:
        """Wait for the first failure since the last `flush`: for who has more to queue, or to wait for."""
        while self._first_failure is None:
            await self._progress.wait()
        raise self._first_failure

    def end(self) -> None:
        """Whatever is not acknowledged yet fails: the producer is left."""
        self._has_ended = True
        for queue in self._queues.values():
            where = f"{queue.topic}-{queue.partition}"
            self._give_up(
                queue, ClientError(f"{where}: not acknowledged before the producer ended")
            )

    async def _choose_partition(self, topic: str, key: bytes | None, wanted: int | None) -> int:
        known = self._cluster.topics.get(topic)
        if known is None or not known.partitions:
            known = await self._find_topic(topic)
        count = len(known.partitions)
        if wanted is not None:
            if wanted not in known.partitions:
                raise KafkaError(
                    ErrorCode.unknown_topic_or_partition,
                    f"topic {topic} has no partition {wanted} (it has {count}, from 0)",
                )
            return wanted
        if key is not None:
            return partition_for_key(key, count)
        return self._sticky.current(topic, count)

    async def _find_topic(self, topic: str) -> Topic:
        """Its metadata, waited for as a batch would be; what is not there, not for so long."""
        missing_since: float | None = None

        def is_missing_for_long(error: Exception) -> bool:
            nonlocal missing_since
            if not isinstance(error, KafkaError) or error.code not in MISSING:
                return False
            now = self._clock.monotonic()
            missing_since = now if missing_since is None else missing_since
            return now > missing_since + CREATION_WAIT_S

        return await self._cluster.retrying(
            lambda: self._cluster.topic(topic, create=True),
            timeout_s=max(self._options.delivery_timeout_s, CREATION_WAIT_S),
            unless=is_missing_for_long,
        )

    async def _identify(self) -> None:
        if not self._options.idempotent or self._identity is not None:
            return
        node = await self._cluster.any_node()
        answer = await node.request(
            INIT_PRODUCER_ID,
            {
                "transactional_id": None,
                "transaction_timeout": 60_000,
                "producer_id": -1,
                "producer_epoch": -1,
            },
            timeout_s=self._options.request_timeout_s,
            at_most=5,
        )
        check(answer.error_code, about="a producer id")
        self._identity = _Identity(answer.producer_id, answer.producer_epoch)

    # Lines

    def _leader_of(self, queue: _Queue) -> int | None:
        """As far as is known, once there is a producer id to send with."""
        if self._options.idempotent and self._identity is None:
            return None
        topic = self._cluster.topics.get(queue.topic)
        found = None if topic is None else topic.partitions.get(queue.partition)
        return None if found is None or found.leader < 0 else found.leader

    def _line_up(self, queue: _Queue) -> None:
        """See that a task has this queue, unless it is empty."""
        queue.is_in_line = bool(queue)
        if not queue:
            return
        leader = self._leader_of(queue)
        if leader is None:
            self._leaderless.append(queue)
            if not self._is_looking:
                self._is_looking = True
                self._nursery.start_soon(self._find_leaders)
            return
        line = self._lines.get(leader)
        if line is None:
            line = self._lines[leader] = _Line()
        line.queues.append(queue)
        if not line.is_served:
            line.is_served = True
            self._nursery.start_soon(self._serve, leader, line)

    async def _find_leaders(self) -> None:
        """Of what is in line for none, until nothing is."""
        pause = BACKOFF_S
        while self._leaderless:
            queues, self._leaderless = self._leaderless, []
            await self._look_for_leaders(queues)
            came_meanwhile = len(self._leaderless)
            for queue in queues:
                self._line_up(queue)
            if len(self._leaderless) > came_meanwhile:
                await trio.sleep(pause)
                pause = min(pause * 2, BACKOFF_MAX_S)
            else:
                pause = BACKOFF_S
        self._is_looking = False

    async def _look_for_leaders(self, queues: Sequence[_Queue]) -> None:
        try:
            await self._identify()
        except (KafkaError, ClientError) as error:
            for queue in queues:
                self._blocked(queue, error)
            return
        for queue in queues:
            try:
                await self._cluster.leader(queue.topic, queue.partition)
            except (KafkaError, ClientError) as error:
                self._blocked(queue, error)
            else:
                queue.blocked_since = None

    def _blocked(self, queue: _Queue, error: Exception) -> None:
        """A queue's front can't be sent now; give up everything in it if that lasts too long."""
        now = self._clock.monotonic()
        if queue.blocked_since is None:
            queue.blocked_since = now
        if retriable(error) and now < queue.blocked_since + self._options.delivery_timeout_s:
            self._cluster.forget(queue.topic)
            return
        queue.blocked_since = None  # whoever comes next has all of that time
        self._give_up(queue, error)

    def _give_up(self, queue: _Queue, error: Exception) -> None:
        if queue.again is not None:
            self._finish(queue.again, -1, error)
        if queue.waiting:
            self._settle(list(queue.waiting), sum(map(_size, queue.waiting)), -1, error)
            queue.waiting.clear()

    async def _serve(self, node_id: int, line: _Line) -> None:
        """Send what is in line for this leader, until nothing is."""
        while line.queues:
            queues, line.queues = line.queues, []
            batches: list[_Batch] = []
            for queue in queues:
                if self._leader_of(queue) == node_id:
                    queue.again = queue.again or self._take(queue, self._identity)
                    batches.append(queue.again)
            if batches:
                await self._send(node_id, batches)
                if all(self._queue_of(batch).again is batch for batch in batches):
                    await trio.sleep(line.pause_s)
                    line.pause_s = min(line.pause_s * 2, BACKOFF_MAX_S)
                else:
                    line.pause_s = BACKOFF_S
            for queue in queues:
                self._line_up(queue)
        line.is_served = False

    # Batches

    def _queue_of(self, batch: _Batch) -> _Queue:
        return self._queues[batch.topic, batch.partition]

    def _take(self, queue: _Queue, identity: _Identity | None) -> _Batch:
        """Make a batch of what waits at the front of a queue."""
        taken = [queue.waiting.popleft()]
        size = _size(taken[0])
        while queue.waiting and size + _size(queue.waiting[0]) <= self._options.batch_bytes:
            size += _size(queue.waiting[0])
            taken.append(queue.waiting.popleft())
        self._sticky.move_on(queue.topic, queue.partition)
        return self._build(queue, taken, identity)

    def _build(self, queue: _Queue, taken: list[Delivery], identity: _Identity | None) -> _Batch:
        producer_id, epoch = identity or (-1, -1)
        sequence = -1
        if producer_id >= 0:
            if queue.sequence_owner != producer_id:
                queue.sequence_owner, queue.next_sequence = producer_id, 0
            sequence = queue.next_sequence
            queue.next_sequence = (sequence + len(taken)) & 0x7FFFFFFF
        records = [
            delivery.record._replace(offset=number)
            for number, delivery in enumerate(taken)
            if delivery.record is not None
        ]
        data = build_batch(
            records,
            compression=self._options.compression,
            producer_id=producer_id,
            producer_epoch=epoch,
            base_sequence=sequence,
        )
        given_up_at = self._clock.monotonic() + self._options.delivery_timeout_s
        size = sum(map(_size, taken))
        return _Batch(
            queue.topic,
            queue.partition,
            taken,
            bytes(data),
            size,
            identity,
            sequence,
            given_up_at,
        )

    async def _send(self, node_id: int, batches: list[_Batch]) -> None:
        options = self._options
        # None is repeated after its time, nor waited for; 0 is no time for a broker to answer in.
        left_s = max(batch.given_up_at for batch in batches) - self._clock.monotonic()
        wait_s = min(options.request_timeout_s, max(left_s, BACKOFF_MAX_S))
        values = {
            "transactional_id": None,
            "acks": options.acks,
            "timeout": int(wait_s * 1000),
            "topic_data": _by_topic(batches),
        }
        try:
            node = await self._cluster.node(node_id)
            if options.acks == 0:
                await node.send_only(PRODUCE, values, timeout_s=wait_s, at_most=NAMED_TOPICS)
                for batch in batches:
                    self._finish(batch, -1)
                return
            answer = await node.request(
                PRODUCE,
                values,
                timeout_s=wait_s + PRODUCE_ANSWER_S,
                at_most=NAMED_TOPICS,
            )
        except (KafkaError, ClientError) as error:
            for batch in batches:
                self._failed(batch, error)
            return
        self._read_answer(batches, answer)

    def _read_answer(self, batches: list[_Batch], answer: Any) -> None:
        rows = {
            (topic.name, row.index): row
            for topic in answer.responses
            for row in topic.partition_responses
        }
        for batch in batches:
            row = rows.get((batch.topic, batch.partition))
            if row is None:
                self._failed(batch, TimedOut(f"no answer for {batch.topic}-{batch.partition}"))
            elif row.error_code in (0, ErrorCode.duplicate_sequence_number):
                self._finish(batch, row.base_offset)
            else:
                code = ErrorCode(row.error_code)
                text = getattr(row, "error_message", None) or code.name.replace("_", " ")
                self._failed(batch, KafkaError(code, f"{batch.topic}-{batch.partition}: {text}"))

    def _failed(self, batch: _Batch, error: Exception) -> None:
        """Split it, send it again, or give it up."""
        too_large = isinstance(error, KafkaError) and error.code == ErrorCode.message_too_large
        if too_large and len(batch.deliveries) > 1:
            self._split(batch)
            return
        if retriable(error) and self._clock.monotonic() < batch.given_up_at:
            self._cluster.forget(batch.topic)
            return
        self._finish(batch, -1, error)

    def _split(self, batch: _Batch) -> None:
        """Half the batch, with its number; the other half waits again, before all others."""
        queue = self._queue_of(batch)
        middle = len(batch.deliveries) // 2
        queue.waiting.extendleft(reversed(batch.deliveries[middle:]))
        if batch.base_sequence >= 0:
            queue.next_sequence = batch.base_sequence
        first = batch.deliveries[:middle]
        # Its own identity: ours may have been given up since, with another batch.
        queue.again = self._build(queue, first, batch.identity)

    def _finish(self, batch: _Batch, base_offset: int, failure: Exception | None = None) -> None:
        self._queue_of(batch).again = None
        if failure is not None:
            self._identity = None
        self._settle(batch.deliveries, batch.size, base_offset, failure)

    def _settle(
        self, deliveries: list[Delivery], size: int, base_offset: int, failure: Exception | None
    ) -> None:
        """These records are done with."""
        self._buffered_bytes -= size
        self._unfinished -= len(deliveries)
        self._first_failure = self._first_failure or failure
        for number, delivery in enumerate(deliveries):
            delivery.finish(base_offset + number if base_offset >= 0 else -1, failure)
        self._progress.set()
        self._progress = trio.Event()


def _by_topic(batches: list[_Batch]) -> list[dict[str, Any]]:
    topics: dict[str, list[dict[str, Any]]] = {}
    for batch in batches:
        rows = topics.setdefault(batch.topic, [])
        rows.append({"index": batch.partition, "records": batch.data})
    return [{"name": name, "partition_data": rows} for name, rows in topics.items()]


def _size(delivery: Delivery) -> int:
    """Bytes that a record takes, about."""
    record = delivery.record
    assert record is not None
    size = RECORD_OVERHEAD + len(record.key or b"") + len(record.value or b"")
    for name, value in record.headers:
        size += len(name) + len(value or b"") + 2
    return size


@asynccontextmanager
async def open_producer(
    cluster: Cluster, clock: Clock, entropy: Entropy, options: ProducerOptions | None = None
) -> AsyncIterator[Producer]:
    """A producer over `cluster`. Flush before leaving: what is still queued then is dropped, and fails."""
    options = options or ProducerOptions()
    failure: Exception | None = None
    async with trio.open_nursery() as nursery:
        producer = Producer(cluster, clock, entropy, options, nursery)
        try:
            yield producer
        except Exception as error:  # out of the nursery as it is, not as a group of one
            failure = error
        finally:
            producer.end()
        nursery.cancel_scope.cancel()
    if failure is not None:
        raise failure
