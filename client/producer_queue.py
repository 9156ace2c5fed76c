"""Queue of a partition in the producer: the batch to send, and the records after it.

The module has no I/O. A batch is built once with its sequence number, and every retry sends the same bytes (KIP-98).
A batch that is too large for the broker is split in half; the first half keeps the sequence number.
"""

from __future__ import annotations

from collections import deque
from typing import NamedTuple

import trio

from odradek.protocol.records.records import Record, build_batch
from odradek.seams.values import state_class

RECORD_OVERHEAD = 32
"""Estimated overhead in bytes of a record, in addition to key, value and headers."""


class Delivery:
    """Pending or completed delivery of a record."""

    __slots__ = ("_arrived", "done", "failure", "offset", "partition", "record", "topic")

    def __init__(self, topic: str, partition: int, record: Record) -> None:
        self.topic = topic
        self.partition = partition
        self.record: Record | None = record
        self.offset = -1
        self.failure: Exception | None = None
        self.done = False
        self._arrived: trio.Event | None = None

    @property
    def size(self) -> int:
        """Estimated bytes of the record, until its delivery completes."""
        record = self.record
        assert record is not None
        size = RECORD_OVERHEAD + len(record.key or b"") + len(record.value or b"")
        for name, value in record.headers:
            size += len(name) + len(value or b"") + 2
        return size

    async def wait(self) -> int:
        """Wait for the acknowledgement, and return the record's offset (-1 if the broker reports none).

        Raises KafkaError or ClientError if the delivery failed.
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


class ProducerIdAndEpoch(NamedTuple):
    """Producer id and epoch, whose batches the broker keeps in order and deduplicates."""

    producer_id: int
    epoch: int


@state_class
class Batch:
    queue: Queue
    deliveries: list[Delivery]
    data: bytes
    size: int
    """Estimated bytes of its records."""
    id_and_epoch: ProducerIdAndEpoch | None
    base_sequence: int
    deadline: float

    @property
    def is_settled(self) -> bool:
        """Whether the batch is completed or was split, and is not sent again."""
        return self.queue.front is not self


class Queue:
    """Records of a partition; the batch `front` is sent and retried before those in `waiting`."""

    __slots__ = (
        "_batch_bytes",
        "_compression",
        "_next_sequence",
        "_sequence_owner",
        "blocked_since",
        "front",
        "is_scheduled",
        "partition",
        "topic",
        "waiting",
    )

    def __init__(self, topic: str, partition: int, *, batch_bytes: int, compression: int) -> None:
        self.topic = topic
        self.partition = partition
        self.waiting: deque[Delivery] = deque()
        self.front: Batch | None = None
        self.blocked_since: float | None = None
        """Time since when the leader is unknown."""
        self.is_scheduled = False
        """Whether a task sends the queue, or will send it."""
        self._batch_bytes = batch_bytes
        self._compression = compression
        self._next_sequence = 0
        self._sequence_owner = -1

    def __bool__(self) -> bool:
        return self.front is not None or bool(self.waiting)

    def __str__(self) -> str:
        return f"{self.topic}-{self.partition}"

    def take(self, id_and_epoch: ProducerIdAndEpoch | None, deadline: float) -> Batch:
        """Build the next batch from at least one waiting record; it becomes the front."""
        taken = [self.waiting.popleft()]
        size = taken[0].size
        while self.waiting and size + self.waiting[0].size <= self._batch_bytes:
            size += self.waiting[0].size
            taken.append(self.waiting.popleft())
        return self._build(taken, id_and_epoch, deadline)

    def halve(self) -> None:
        """Split the front batch: the first half keeps its sequence, the second half waits before all others."""
        assert self.front is not None
        whole = self.front
        middle = len(whole.deliveries) // 2
        self.waiting.extendleft(reversed(whole.deliveries[middle:]))
        if whole.base_sequence >= 0:
            self._next_sequence = whole.base_sequence
        # Keep the batch's producer id: the producer may have a new one since another batch failed.
        self._build(whole.deliveries[:middle], whole.id_and_epoch, whole.deadline)

    def _build(
        self, taken: list[Delivery], id_and_epoch: ProducerIdAndEpoch | None, deadline: float
    ) -> Batch:
        producer_id, epoch = id_and_epoch or (-1, -1)
        sequence = -1
        if producer_id >= 0:
            if self._sequence_owner != producer_id:
                self._sequence_owner, self._next_sequence = producer_id, 0
            sequence = self._next_sequence
            self._next_sequence = (sequence + len(taken)) & 0x7FFFFFFF
        records = [
            delivery.record._replace(offset=number)
            for number, delivery in enumerate(taken)
            if delivery.record is not None
        ]
        data = build_batch(
            records,
            compression=self._compression,
            producer_id=producer_id,
            producer_epoch=epoch,
            base_sequence=sequence,
        )
        size = sum(delivery.size for delivery in taken)
        self.front = Batch(self, taken, bytes(data), size, id_and_epoch, sequence, deadline)
        return self.front
