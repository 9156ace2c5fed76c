"""Filter of the batches and records that are kept (Kafka's Cleaner.cleanInto).

A record is kept if it is past the offsets of the map, or if it is the last of its key and either has a
value or its batch's delete horizon has not passed (KIP-534: the horizon is set when compaction first
sees a tombstone). Records of aborted transactions and records without a key are removed. A marker is
kept while batches of its transaction exist, and then until its own delete horizon.

An empty batch is kept if it contains the last sequence or epoch of an active producer, or if it is the
last batch of the pass, so that the log keeps its offsets.
"""

from __future__ import annotations

from odradek.protocol.records.batch import Batch
from odradek.seams.files import Buffer
from odradek.seams.values import value_class
from odradek.storage.compaction.batch_pages import records_of
from odradek.storage.compaction.cleaned_transactions import CleanedTransactions
from odradek.storage.compaction.compaction_plan import MARKER_ALONE, ProducerLastBatches
from odradek.storage.compaction.offset_map import OffsetMap
from odradek.storage.errors import CorruptRecords
from odradek.storage.log.producer_state import read_marker

_BEFORE_ALL_OFFSETS = -1


@value_class
class KnownKeys:
    """The complete offset map; it covers all offsets up to `last_offset`."""

    offsets: OffsetMap
    last_offset: int


class ActiveProducers:
    """Last batch or marker of each active producer."""

    def __init__(self, last: ProducerLastBatches) -> None:
        self._last = {
            producer_id: (last_offset, epoch)
            for producer_id, last_offset, epoch in zip(
                last.producer_ids, last.last_offsets, last.epochs, strict=True
            )
        }

    def wrote_last(self, batch: Batch) -> bool:
        """Whether the batch contains the last sequence or epoch of an active producer."""
        last = self._last.get(batch.producer_id)
        if last is None or batch.producer_id < 0:
            return False
        last_offset, epoch = last
        if last_offset == MARKER_ALONE:
            return batch.is_control and batch.producer_epoch == epoch
        return batch.last_offset == last_offset


@value_class
class PassInputs:
    """Fixed inputs of a pass; `end` is the first offset that is not rewritten."""

    now_ms: int
    end: int
    producers: ActiveProducers


@value_class
class FilteredBatch:
    """The records of a batch that are kept."""

    kept_count: int
    body: Buffer = b""
    """The kept records, decompressed."""
    latest_delta: int = 0
    """Largest timestamp of the kept records in ms, relative to the base timestamp of the batch."""
    sets_horizon: bool = False
    """Whether the delete horizon of the batch is set in this pass."""
    is_unchanged: bool = False
    stays_empty: bool = False
    """Whether the batch is kept if no record is."""
    without_key: int = 0


def loses_records(batch: Batch, transactions: CleanedTransactions) -> bool:
    """Whether the records of a batch are removed because of transactions: the batch was aborted, or is a marker that
    is no longer needed. Call it for every batch, in order."""
    if batch.is_control:
        marker = read_marker(batch)
        commits = None if marker is None else marker.is_commit
        return transactions.marker(batch.producer_id, batch.last_offset, commits)
    return batch.is_transactional and transactions.batch(batch.producer_id, batch.last_offset)


def filter_batch(
    batch: Batch, known: KnownKeys, inputs: PassInputs, transactions: CleanedTransactions
) -> FilteredBatch:
    """Decide which records of a batch are kept. Raises CorruptBatch, CorruptRecords."""
    is_void = loses_records(batch, transactions)
    horizon = batch.delete_horizon_ms
    horizon_passed = horizon is not None and horizon <= inputs.now_ms
    if batch.record_count == 0 or (is_void and (horizon_passed or not batch.is_control)):
        kept, without_key = 0, 0
    else:
        covered_to = _BEFORE_ALL_OFFSETS if batch.is_control else known.last_offset
        body = records_of(batch)
        try:
            kept, has_tombstone, latest_delta, without_key, rest = known.offsets.filter(
                body,
                batch.record_count,
                batch.base_offset,
                batch.last_offset,
                covered_to,
                horizon_passed,
            )
        except ValueError as error:
            raise invalid_records(batch, error) from None
        if kept:
            sets_horizon = horizon is None and (has_tombstone or (is_void and batch.is_control))
            return FilteredBatch(
                kept,
                body if rest is None else rest,
                latest_delta,
                sets_horizon,
                is_unchanged=rest is None and not sets_horizon,
                without_key=without_key,
            )
    stays_empty = batch.next_offset == inputs.end or inputs.producers.wrote_last(batch)
    return FilteredBatch(0, stays_empty=stays_empty, without_key=without_key)


def invalid_records(batch: Batch, error: ValueError) -> CorruptRecords:
    """The error for a batch whose records are invalid."""
    return CorruptRecords(
        f"invalid record batch with offsets {batch.base_offset} to {batch.last_offset}: {error}"
    )
