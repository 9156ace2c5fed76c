"""Errors for batches that an idempotent producer sent after a rejected batch, before it got the
response.

The producer has up to five requests in flight. The first may be rejected because too few replicas
are in sync, or because this node does not lead yet. If that has changed when the next request
arrives, that one fails with OUT_OF_ORDER_SEQUENCE_NUMBER, although the producer made no mistake.
Java's producer retries both, whatever the second error is. But librdkafka starts a new epoch after
OUT_OF_ORDER_SEQUENCE_NUMBER, and writes all records without a response again, in every partition:
records that were written but not acknowledged are duplicated (with Kafka too). So the second batch
gets the error of the first.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

from odradek.protocol.errors import CorruptBatch, ErrorCode, KafkaError
from odradek.protocol.records.batch import NO_SEQUENCE, Batch
from odradek.storage.errors import OutOfOrderSequence

IN_FLIGHT_MAX = 5
"""Requests that an idempotent producer may have in flight."""
PRODUCERS_MAX = 1000
"""Producers with a rejected batch to remember; the oldest is forgotten beyond that."""
RETRIABLE_ERRORS = frozenset(
    {
        ErrorCode.not_enough_replicas,
        ErrorCode.not_leader_or_follower,
        ErrorCode.kafka_storage_error,
    }
)


@dataclass(slots=True)
class _RejectedProducer:
    epoch: int
    error: KafkaError
    sequences: deque[int] = field(default_factory=lambda: deque(maxlen=IN_FLIGHT_MAX))
    """Base sequences of the rejected batches, the newest last."""
    remaining: int = 0
    """Further batches that the producer may have sent before it got the response."""


class RejectedBatches:
    """Rejected batches of one partition, by producer id."""

    def __init__(self) -> None:
        self._by_producer: dict[int, _RejectedProducer] = {}

    def error_for_producer(self, records: memoryview, error: KafkaError) -> KafkaError:
        """Return the error for the response to the producer of `records`.

        That is `error`, or the error of an earlier rejected batch if these records follow that one.
        """
        if error.code in RETRIABLE_ERRORS:
            self._add(records, error)
        elif isinstance(error, OutOfOrderSequence):
            return self._earlier_error(Batch(records), error)
        return error

    def _add(self, records: memoryview, error: KafkaError) -> None:
        try:
            batch = Batch(records)
        except CorruptBatch:
            return
        if batch.base_sequence == NO_SEQUENCE:
            return
        rejected = self._by_producer.pop(batch.producer_id, None)
        if rejected is None or rejected.epoch != batch.producer_epoch:
            rejected = _RejectedProducer(batch.producer_epoch, error)
        self._by_producer[batch.producer_id] = rejected
        if len(self._by_producer) > PRODUCERS_MAX:
            del self._by_producer[next(iter(self._by_producer))]
        rejected.error = error
        rejected.sequences.append(batch.base_sequence)
        rejected.remaining = IN_FLIGHT_MAX - 1

    def _earlier_error(self, batch: Batch, error: OutOfOrderSequence) -> KafkaError:
        rejected = self._by_producer.get(batch.producer_id)
        if (
            rejected is None
            or rejected.epoch != batch.producer_epoch
            or error.expected not in rejected.sequences  # the rejected batch was retried
            or not rejected.remaining
        ):
            return error
        rejected.remaining -= 1
        return rejected.error
