"""Producer that sends records in batches, in order per partition and idempotently by default.

Each partition has a queue of records. A task per leader sends one request with at most one batch per partition; more
records collect in the queues while a request is pending, in place of a linger time. A leader that does not respond
delays no other leader. Another task looks up missing leaders. A partition has at most one batch in flight, so that
retries keep the order, and with a producer id (KIP-98) the broker drops duplicates. A batch is built once with its
sequence number, and sent unchanged until it is acknowledged, rejected, or expired.

After a failed batch it is unknown whether the broker has it. The producer then requests a new producer id, so that the
gap in the sequence numbers does not fail later batches.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import field
from functools import partial
from typing import Any, NoReturn

import trio

from odradek.client.errors import ClientError, TimedOut, check, retriable
from odradek.client.metadata import BACKOFF_MAX_S, BACKOFF_S, Cluster, Topic, no_leader
from odradek.client.partitioner import StickyPartitions, partition_for_key
from odradek.client.producer_queue import Batch, Delivery, ProducerIdAndEpoch, Queue
from odradek.protocol.apis import INIT_PRODUCER_ID, PRODUCE
from odradek.protocol.errors import ErrorCode, KafkaError
from odradek.protocol.records.records import Record
from odradek.seams.clock import Clock
from odradek.seams.entropy import Entropy
from odradek.seams.values import state_class, value_class

Header = tuple[str, bytes | None]

NAMED_TOPICS = 12
"""Last version of Produce with topic names; later versions have topic ids."""
CREATION_WAIT_S = 5.0
"""Timeout for the automatic creation of a topic."""
MISSING = frozenset({ErrorCode.unknown_topic_or_partition, ErrorCode.leader_not_available})
"""Error codes of a topic that does not exist or is being created."""
PRODUCE_RESPONSE_S = 5.0
"""Additional time to wait for a response, after the timeout in the Produce request."""


@value_class
class ProducerOptions:
    """Options of a producer, with the defaults of Kafka's Java producer except for the batch size."""

    acks: int = -1
    """-1: all in-sync replicas, 1: the leader, 0: no acknowledgement (offsets are -1)."""
    compression: int = 0
    """Number of the compression codec (protocol.records.compression)."""
    idempotent: bool = True
    """Whether retries cannot duplicate records; needs acks -1."""
    batch_bytes: int = 512 << 10
    """Maximum batch size; a larger record gets its own batch."""
    buffer_bytes: int = 32 << 20
    """Bytes of queued records at which `enqueue` waits."""
    request_timeout_s: float = 30.0
    delivery_timeout_s: float = 120.0
    """Time for the retries of a batch."""

    def __post_init__(self) -> None:
        if self.idempotent and self.acks != -1:
            raise ValueError("an idempotent producer needs acks=-1 (all)")


@state_class
class _LeaderQueue:
    """Queues with records for one leader, which a task sends."""

    queues: list[Queue] = field(default_factory=list)
    is_served: bool = False
    pause_s: float = BACKOFF_S
    """Backoff after the next failed request."""


class Producer:
    """Producer of a cluster; create it with `open_producer`."""

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
        self._queues: dict[tuple[str, int], Queue] = {}
        self._leader_queues: dict[int, _LeaderQueue] = {}
        self._leaderless: list[Queue] = []
        self._is_finding_leaders = False
        self._id_and_epoch: ProducerIdAndEpoch | None = None
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
        """Queue a record; waits only for metadata and for buffer space. `flush` raises delivery errors.

        Raises KafkaError if the topic or partition does not exist, ClientError if the producer is closed.
        """
        while self._buffered_bytes >= self._options.buffer_bytes:
            await self._progress.wait()
        chosen = await self._choose_partition(topic, key, partition)
        if self._nursery.cancel_scope.cancel_called:
            raise ClientError(f"{topic}-{chosen}: the producer is closed")
        stamp = self._clock.wall_ms() if timestamp_ms is None else timestamp_ms
        delivery = Delivery(topic, chosen, Record(0, stamp, key, value, tuple(headers)))
        queue = self._queues.get((topic, chosen))
        if queue is None:
            options = self._options
            queue = self._queues[topic, chosen] = Queue(
                topic, chosen, batch_bytes=options.batch_bytes, compression=options.compression
            )
        queue.waiting.append(delivery)
        self._buffered_bytes += delivery.size
        self._unfinished += 1
        if not queue.is_scheduled:
            self._enqueue_for_leader(queue)
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
        """Wait until all records are delivered; raise the first error since the last flush."""
        while self._unfinished:
            await self._progress.wait()
        failure, self._first_failure = self._first_failure, None
        if failure is not None:
            raise failure

    async def raise_failure(self) -> NoReturn:
        """Wait for the first delivery error since the last `flush`, and raise it."""
        while self._first_failure is None:
            await self._progress.wait()
        raise self._first_failure

    def end(self) -> None:
        """Fail all records that are not acknowledged, after the tasks of the producer were cancelled."""
        for queue in self._queues.values():
            self._fail_records(
                queue, ClientError(f"{queue}: not acknowledged before the producer was closed")
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
        """Request the metadata of a topic with the retries of a batch, but fewer if it does not exist."""
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

    async def _init_producer_id(self) -> None:
        if not self._options.idempotent or self._id_and_epoch is not None:
            return
        node = await self._cluster.any_node()
        response = await node.request(
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
        check(response.error_code, about="a producer id")
        self._id_and_epoch = ProducerIdAndEpoch(response.producer_id, response.producer_epoch)

    # Queues by leader

    def _leader_of(self, queue: Queue) -> int | None:
        """Return the cached leader; None also while there is no producer id."""
        if self._options.idempotent and self._id_and_epoch is None:
            return None
        return self._cluster.known_leader(queue.topic, queue.partition)

    def _enqueue_for_leader(self, queue: Queue) -> None:
        """Add a queue to those of its leader, unless it is empty."""
        queue.is_scheduled = bool(queue)
        if not queue:
            return
        leader = self._leader_of(queue)
        if leader is None:
            self._leaderless.append(queue)
            if not self._is_finding_leaders:
                self._is_finding_leaders = True
                self._nursery.start_soon(self._find_leaders)
            return
        leader_queue = self._leader_queues.get(leader)
        if leader_queue is None:
            leader_queue = self._leader_queues[leader] = _LeaderQueue()
        leader_queue.queues.append(queue)
        if not leader_queue.is_served:
            leader_queue.is_served = True
            self._nursery.start_soon(self._serve, leader, leader_queue)

    async def _find_leaders(self) -> None:
        """Look up leaders until no queue is without one."""
        pause = BACKOFF_S
        while self._leaderless:
            queues, self._leaderless = self._leaderless, []
            await self._request_leaders(queues)
            came_meanwhile = len(self._leaderless)
            for queue in queues:
                self._enqueue_for_leader(queue)
            if len(self._leaderless) > came_meanwhile:
                await trio.sleep(pause)
                pause = min(pause * 2, BACKOFF_MAX_S)
            else:
                pause = BACKOFF_S
        self._is_finding_leaders = False

    async def _request_leaders(self, queues: Sequence[Queue]) -> None:
        """Request the metadata of each topic once, unless all leaders are cached.

        Queues with a leader continue while the leaders of other partitions are looked up.
        """
        try:
            await self._init_producer_id()
        except (KafkaError, ClientError) as error:
            for queue in queues:
                self._blocked(queue, error)
            return
        by_topic: dict[str, list[Queue]] = {}
        for queue in queues:
            by_topic.setdefault(queue.topic, []).append(queue)
        for topic, of_topic in by_topic.items():
            failure: Exception | None = None
            known_leader = partial(self._cluster.known_leader, topic)
            if any(known_leader(queue.partition) is None for queue in of_topic):
                try:
                    await self._cluster.topic(topic)
                except (KafkaError, ClientError) as error:
                    failure = error
            for queue in of_topic:
                if known_leader(queue.partition) is None:
                    self._blocked(queue, failure or no_leader(topic, queue.partition))
                else:
                    queue.blocked_since = None

    def _blocked(self, queue: Queue, error: Exception) -> None:
        """Fail the records of a queue that has had no leader for the delivery timeout."""
        now = self._clock.monotonic()
        if queue.blocked_since is None:
            queue.blocked_since = now
        if not retriable(error) or now >= queue.blocked_since + self._options.delivery_timeout_s:
            queue.blocked_since = None  # later records have the full timeout
            self._fail_records(queue, error)

    def _fail_records(self, queue: Queue, error: Exception) -> None:
        if queue.front is not None:
            self._finish(queue.front, -1, error)
        if queue.waiting:
            size = sum(delivery.size for delivery in queue.waiting)
            self._settle(list(queue.waiting), size, -1, error)
            queue.waiting.clear()

    async def _serve(self, node_id: int, leader_queue: _LeaderQueue) -> None:
        """Send the batches of this leader until none of its queues has records."""
        while leader_queue.queues:
            queues, leader_queue.queues = leader_queue.queues, []
            batches: list[Batch] = []
            for queue in queues:
                if self._leader_of(queue) == node_id:
                    batches.append(queue.front or self._build_batch(queue))
                else:
                    self._enqueue_for_leader(queue)
            if not batches:
                continue
            await self._send(node_id, batches)
            settled = [batch.queue for batch in batches if batch.is_settled]
            again = [batch.queue for batch in batches if not batch.is_settled]
            if settled:
                leader_queue.pause_s = BACKOFF_S
                for queue in settled:
                    self._enqueue_for_leader(queue)
                if again:
                    self._nursery.start_soon(self._enqueue_for_leader_later, again)
            else:
                await trio.sleep(leader_queue.pause_s)
                leader_queue.pause_s = min(leader_queue.pause_s * 2, BACKOFF_MAX_S)
                for queue in again:
                    self._enqueue_for_leader(queue)
        leader_queue.is_served = False

    async def _enqueue_for_leader_later(self, queues: Sequence[Queue]) -> None:
        """Retry rejected batches after a backoff, while the leader accepts those of other partitions."""
        await trio.sleep(BACKOFF_S)
        for queue in queues:
            self._enqueue_for_leader(queue)

    # Batches

    def _build_batch(self, queue: Queue) -> Batch:
        self._sticky.move_on(queue.topic, queue.partition)
        deadline = self._clock.monotonic() + self._options.delivery_timeout_s
        return queue.take(self._id_and_epoch, deadline)

    async def _send(self, node_id: int, batches: list[Batch]) -> None:
        options = self._options
        # The timeout ends with the last batch's; it is positive, because 0 is no timeout for a broker.
        left_s = max(batch.deadline for batch in batches) - self._clock.monotonic()
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
            response = await node.request(
                PRODUCE,
                values,
                timeout_s=wait_s + PRODUCE_RESPONSE_S,
                at_most=NAMED_TOPICS,
            )
        except (KafkaError, ClientError) as error:
            for batch in batches:
                self._failed(batch, error)
            return
        self._read_response(batches, response)

    def _read_response(self, batches: list[Batch], response: Any) -> None:
        rows = {
            (topic.name, row.index): row
            for topic in response.responses
            for row in topic.partition_responses
        }
        for batch in batches:
            queue = batch.queue
            row = rows.get((queue.topic, queue.partition))
            if row is None:
                self._failed(batch, TimedOut(f"no response for {queue}"))
            elif row.error_code in (0, ErrorCode.duplicate_sequence_number):
                self._finish(batch, row.base_offset)
            else:
                code = ErrorCode(row.error_code)
                text = getattr(row, "error_message", None) or code.name.replace("_", " ")
                self._failed(batch, KafkaError(code, f"{queue}: {text}"))

    def _failed(self, batch: Batch, error: Exception) -> None:
        """Split a batch, retry it, or fail its records."""
        too_large = isinstance(error, KafkaError) and error.code == ErrorCode.message_too_large
        if too_large and len(batch.deliveries) > 1:
            batch.queue.halve()
            return
        if retriable(error) and self._clock.monotonic() < batch.deadline:
            self._cluster.forget(batch.queue.topic)
            return
        self._finish(batch, -1, error)

    def _finish(self, batch: Batch, base_offset: int, failure: Exception | None = None) -> None:
        batch.queue.front = None
        if failure is not None:
            self._id_and_epoch = None
        self._settle(batch.deliveries, batch.size, base_offset, failure)

    def _settle(
        self, deliveries: list[Delivery], size: int, base_offset: int, failure: Exception | None
    ) -> None:
        """Complete the delivery of records."""
        self._buffered_bytes -= size
        self._unfinished -= len(deliveries)
        self._first_failure = self._first_failure or failure
        for number, delivery in enumerate(deliveries):
            delivery.finish(base_offset + number if base_offset >= 0 else -1, failure)
        self._progress.set()
        self._progress = trio.Event()


def _by_topic(batches: list[Batch]) -> list[dict[str, Any]]:
    topics: dict[str, list[dict[str, Any]]] = {}
    for batch in batches:
        rows = topics.setdefault(batch.queue.topic, [])
        rows.append({"index": batch.queue.partition, "records": batch.data})
    return [{"name": name, "partition_data": rows} for name, rows in topics.items()]


@asynccontextmanager
async def open_producer(
    cluster: Cluster, clock: Clock, entropy: Entropy, options: ProducerOptions | None = None
) -> AsyncIterator[Producer]:
    """Open a producer. Flush before the end: records that are still queued then fail."""
    options = options or ProducerOptions()
    failure: Exception | None = None
    try:
        async with trio.open_nursery() as nursery:
            producer = Producer(cluster, clock, entropy, options, nursery)
            try:
                yield producer
            except Exception as error:  # raise it without the exception group of the nursery
                failure = error
            finally:
                nursery.cancel_scope.cancel()
    finally:
        producer.end()
    if failure is not None:
        raise failure
