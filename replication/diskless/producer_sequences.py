"""Idempotence of producers at the commit of a file, as in Kafka's ProducerStateManager (KIP-98, KIP-360, D-07)."""

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


def check_sequence(entry: ProducerEntry, batch: DisklessCommitBatch, partition: str) -> None:
    """Check that a batch of a known producer has the next sequence, or 0 in a new epoch.

    The first batch of an unknown producer may have any sequence, because its earlier batches may have been deleted
    (KIP-360). Raises KafkaError with INVALID_PRODUCER_EPOCH or OUT_OF_ORDER_SEQUENCE_NUMBER.
    """
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
