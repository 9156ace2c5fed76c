"""Idempotence of producers at the commit of a file, as in Kafka's ProducerStateManager, except for unknown producers
(KIP-98, D-07)."""

from __future__ import annotations

from odradek.protocol.errors import ErrorCode, KafkaError
from odradek.protocol.records.batch import MAX_SEQUENCE
from odradek.protocol.schemas.diskless_apis import DisklessCommitBatch
from odradek.storage.diskless.state import (
    PRODUCER_BATCHES_MAX,
    ProducerBatch,
    ProducerEntry,
)


def find_duplicate(entry: ProducerEntry, batch: DisklessCommitBatch) -> ProducerBatch | None:
    """The earlier commit of the same batch, if it is among the last ones of the producer."""
    if batch.producer_epoch == entry.epoch:
        for earlier in entry.batches:
            if (earlier.base_sequence, earlier.last_sequence) == (
                batch.base_sequence,
                batch.last_sequence,
            ):
                return earlier
    return None


def check_sequence(entry: ProducerEntry | None, batch: DisklessCommitBatch, partition: str) -> None:
    """Check that a batch has the next sequence of its producer, or 0 in a new epoch.

    The first batch of an unknown producer has the sequence 0. Kafka accepts any (KIP-360), because one leader appends
    the batches of a partition. Here, a producer may send its first batch to one broker and the next one to another, and
    the next one may arrive first. Raises KafkaError with INVALID_PRODUCER_EPOCH, OUT_OF_ORDER_SEQUENCE_NUMBER, or
    UNKNOWN_PRODUCER_ID, after which producers begin again with a new epoch: librdkafka treats
    OUT_OF_ORDER_SEQUENCE_NUMBER as fatal if a topic was recreated, or if its producer was idle for
    producer.id.expiration.ms.
    """
    if entry is None:
        if batch.base_sequence:
            raise KafkaError(
                ErrorCode.unknown_producer_id,
                f"Producer {batch.producer_id} is unknown in partition {partition}, and its first batch has the sequence "
                f"{batch.base_sequence}",
            )
        return
    if batch.producer_epoch < entry.epoch:
        raise KafkaError(
            ErrorCode.invalid_producer_epoch,
            f"Epoch of producer {batch.producer_id} in {partition} is {batch.producer_epoch}, which is smaller than "
            f"the last seen epoch {entry.epoch}",
        )
    if batch.producer_epoch > entry.epoch:
        if batch.base_sequence:
            raise KafkaError(
                ErrorCode.out_of_order_sequence_number,
                f"Invalid sequence number for new epoch of producer {batch.producer_id} in partition {partition}: "
                f"{batch.producer_epoch} (request epoch), {batch.base_sequence} (seq. number), {entry.epoch} "
                "(current producer epoch)",
            )
        return
    last = entry.batches[-1].last_sequence if entry.batches else -1
    if batch.base_sequence != (last + 1) & MAX_SEQUENCE:
        raise KafkaError(
            ErrorCode.out_of_order_sequence_number,
            f"Out of order sequence number for producer {batch.producer_id} in partition {partition}: "
            f"{batch.base_sequence} (incoming seq. number), {last} (current end sequence number)",
        )


def with_batch(
    entry: ProducerEntry | None, epoch: int, batch: ProducerBatch, append_ms: int
) -> ProducerEntry:
    """The entry of the producer after a batch was accepted."""
    if entry is None or entry.epoch != epoch:
        return ProducerEntry(epoch, (batch,), append_ms)
    kept = entry.batches[1 - PRODUCER_BATCHES_MAX :]
    return ProducerEntry(epoch, (*kept, batch), append_ms)
