"""Filter of the batches and records of a page that are kept (Kafka's Cleaner.cleanInto), as columns.

A record is kept if it is past the offsets of the map, or if it is the last of its key and either has a
value or its batch's delete horizon has not passed (KIP-534: the horizon is set when compaction first
sees a tombstone). Records of aborted transactions and records without a key are removed. A marker is
kept while batches of its transaction exist, and then until its own delete horizon.

An empty batch is kept if it contains the last sequence or epoch of an active producer, or if it is the
last batch of the pass, so that the log keeps its offsets.
"""

from __future__ import annotations

import numpy as np

from odradek.protocol.records.batch import Batch
from odradek.seams.values import value_class
from odradek.storage.compaction.cleaned_transactions import CleanedTransactions
from odradek.storage.compaction.compaction_plan import MARKER_ALONE, ProducerLastBatches
from odradek.storage.compaction.key_hash import KeyHash
from odradek.storage.compaction.offset_map import OffsetMap
from odradek.storage.compaction.record_columns import BatchPage, RecordColumns
from odradek.storage.compaction.varint_columns import Flags, Ints
from odradek.storage.log.producer_state import read_marker


@value_class
class KnownKeys:
    """The complete offset map; it covers all offsets up to `last_offset`."""

    offsets: OffsetMap
    hash: KeyHash
    last_offset: int


class ActiveProducers:
    """Last batch or marker of each active producer."""

    def __init__(self, last: ProducerLastBatches) -> None:
        producer_ids = np.array(last.producer_ids, np.int64)
        order = np.argsort(producer_ids)
        self._ids = producer_ids[order]
        self._last_offsets = np.array(last.last_offsets, np.int64)[order]
        self._epochs = np.array(last.epochs, np.int16)[order]

    def wrote_last(self, page: BatchPage) -> Flags:
        """Mask of the batches that contain the last sequence or epoch of an active producer."""
        if not len(self._ids):
            return np.zeros(len(page), np.bool_)
        at = np.searchsorted(self._ids, page.producer_id).clip(max=len(self._ids) - 1)
        is_active = (page.producer_id >= 0) & (self._ids[at] == page.producer_id)
        last_offset = self._last_offsets[at]
        is_last_marker = page.is_control & (page.headers["producer_epoch"] == self._epochs[at])
        found: Flags = is_active & np.where(
            last_offset == MARKER_ALONE, is_last_marker, page.last_offset == last_offset
        )
        return found


@value_class
class PassInputs:
    """Fixed inputs of a pass; `end` is the first offset that is not rewritten."""

    now_ms: int
    end: int
    producers: ActiveProducers


@value_class
class FilterResult:
    """Batches and records of one page that are kept: columns over its batches, except `kept_records`, a column over
    `records`."""

    records: RecordColumns
    kept_records: Flags
    kept_count: Ints
    sets_horizon: Flags
    """Batches whose delete horizon is set in this pass."""
    stays_empty: Flags
    without_key: int


def find_void_batches(page: BatchPage, transactions: CleanedTransactions) -> Flags:
    """Mask of the batches whose records are removed because of transactions: aborted batches, and
    markers that are no longer needed."""
    found = np.zeros(len(page), np.bool_)
    special = np.flatnonzero(page.is_transactional | page.is_control)
    for number in special.tolist():
        producer_id, last_offset = int(page.producer_id[number]), int(page.last_offset[number])
        if page.is_control[number]:
            commits = _commits(page, number)
            found[number] = transactions.marker(producer_id, last_offset, commits)
        else:
            found[number] = transactions.batch(producer_id, last_offset)
    return found


def _commits(page: BatchPage, number: int) -> bool | None:
    batch = Batch(memoryview(page.data), page.starts[number])
    marker = read_marker(batch)
    return None if marker is None else marker.is_commit


def filter_page(
    page: BatchPage, known: KnownKeys, given: PassInputs, transactions: CleanedTransactions
) -> FilterResult:
    """Decide which batches and records of a page are kept. Raises CorruptBatch."""
    is_void = find_void_batches(page, transactions)
    horizon_passed = page.has_horizon & (page.base_timestamp <= given.now_ms)
    loses_all = is_void & (~page.is_control | horizon_passed)
    records = page.records(~loses_all)
    kept, without_key = _kept_records(page, records, known, horizon_passed)
    kept_count = np.bincount(records.batch[kept], minlength=len(page)).astype(np.int64)
    with_tombstones = np.zeros(len(page), np.bool_)
    with_tombstones[records.batch[kept & ~records.has_value]] = True
    return FilterResult(
        records,
        kept,
        kept_count,
        sets_horizon=(with_tombstones | (is_void & page.is_control)) & ~page.has_horizon,
        stays_empty=given.producers.wrote_last(page) | (page.last_offset + 1 == given.end),
        without_key=without_key,
    )


def _kept_records(
    page: BatchPage, records: RecordColumns, known: KnownKeys, horizon_passed: Flags
) -> tuple[Flags, int]:
    """Mask of the records to keep, and the number of records without a key."""
    kept = (records.offset > known.last_offset) | page.is_control[records.batch]
    rows = np.flatnonzero(~kept)
    has_key = records.key_size[rows] >= 0
    keyed = rows[has_key]
    latest = known.offsets.get(*page.key_bits(records, keyed, known.hash))
    is_needed = records.has_value[keyed] | ~horizon_passed[records.batch[keyed]]
    kept[keyed] = (records.offset[keyed] >= latest) & is_needed
    return kept, int(len(rows) - len(keyed))
