"""What an idempotent producer sent behind a batch that was refused for a while, before it knew.

It has up to five requests on their way. Where the first is refused because too few replicas are in sync, or
because this node does not lead yet, and that is over when the next one is looked at, then the next one is out of
order, by nobody's fault. Java's producer sends both again, whatever the second was told. librdkafka begins a new
epoch when it is told OUT_OF_ORDER_SEQUENCE_NUMBER, and writes anew in it what it has no answer for, in every
partition: what was written, and not acknowledged yet, is there twice (as with Kafka). So the second is
told what the first was.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

from odradek.protocol.errors import CorruptBatch, ErrorCode, KafkaError
from odradek.protocol.records.batch import NO_SEQUENCE, Batch
from odradek.storage.errors import OutOfOrderSequence

IN_FLIGHT_MAX = 5
"""Requests that an idempotent producer may have on their way."""
PRODUCERS_MAX = 1000
"""So many are remembered; the oldest is forgotten then."""
RETRIABLE_ERRORS = frozenset(
    {
        ErrorCode.not_enough_replicas,
        ErrorCode.not_leader_or_follower,
        ErrorCode.kafka_storage_error,
    }
)


@dataclass(slots=True)
class _Refused:
    epoch: int
    error: KafkaError
    sequences: deque[int] = field(default_factory=lambda: deque(maxlen=IN_FLIGHT_MAX))
    """With which the batches begin that were refused, the newest last."""
    remaining: int = 0
    """How many more the producer may have sent before it knew."""


class RefusedBatches:
    """Of one partition."""

    def __init__(self) -> None:
        self._by_producer: dict[int, _Refused] = {}

    def error_for_producer(self, records: memoryview, error: KafkaError) -> KafkaError:
        """What the producer of `records` is told where they are refused for `error`: that, or why a batch
        was refused that they come behind."""
        if error.code in RETRIABLE_ERRORS:
            self._remember(records, error)
        elif isinstance(error, OutOfOrderSequence):
            return self._reason(Batch(records), error)
        return error

    def _remember(self, records: memoryview, error: KafkaError) -> None:
        try:
            batch = Batch(records)
        except CorruptBatch:
            return
        if batch.base_sequence == NO_SEQUENCE:
            return
        refused = self._by_producer.pop(batch.producer_id, None)
        if refused is None or refused.epoch != batch.producer_epoch:
            refused = _Refused(batch.producer_epoch, error)
        self._by_producer[batch.producer_id] = refused
        if len(self._by_producer) > PRODUCERS_MAX:
            del self._by_producer[next(iter(self._by_producer))]
        refused.error = error
        refused.sequences.append(batch.base_sequence)
        refused.remaining = IN_FLIGHT_MAX - 1

    def _reason(self, batch: Batch, error: OutOfOrderSequence) -> KafkaError:
        refused = self._by_producer.get(batch.producer_id)
        if (
            refused is None
            or refused.epoch != batch.producer_epoch
            or error.expected not in refused.sequences  # the one that was refused came again since
            or not refused.remaining
        ):
            return error
        refused.remaining -= 1
        return refused.error
