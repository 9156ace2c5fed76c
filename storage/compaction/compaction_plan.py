"""Plan, steps and result of a compaction pass: values exchanged between the broker and its worker
process."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from dataclasses import dataclass, field

from odradek.seams.files import Path
from odradek.seams.values import value_class
from odradek.storage.log.config import INT64_MAX
from odradek.storage.log.transaction_index import AbortedTransaction

MARKER_ALONE = -1
"""Last offset of a producer whose last append was a transaction marker."""


@value_class
class ProducerLastBatches:
    """Last batch of each active producer, as columns: the last offset of a batch of records, or
    MARKER_ALONE for a marker of an epoch."""

    producer_ids: array[int] = field(default_factory=lambda: array("q"))
    last_offsets: array[int] = field(default_factory=lambda: array("q"))
    epochs: array[int] = field(default_factory=lambda: array("h"))

    def add(self, producer_id: int, last_offset: int, epoch: int) -> None:
        self.producer_ids.append(producer_id)
        self.last_offsets.append(last_offset)
        self.epochs.append(epoch)


@value_class
class CompactionPlan:
    """One pass over one log; see `cleaner.clean`. Offsets are those of the log, sizes are in bytes."""

    directory: Path
    segments: Sequence[tuple[int, int]]
    """Base offset and size of every segment below `end_offset`, from the oldest on."""
    first_dirty_offset: int
    end_offset: int
    """End of the pass, which is the base offset of a segment; records at or past it are not cleaned."""
    now_ms: int
    delete_retention_ms: int
    aborted: Sequence[AbortedTransaction]
    """Aborted transactions that start below `end_offset`."""
    producers: ProducerLastBatches
    seed: bytes
    """Random and secret seed of the key hash."""
    map_bytes: int
    map_load: float
    page_bytes: int
    segment_bytes: int
    index_bytes: int
    index_interval_bytes: int

    @property
    def horizon_ms(self) -> int:
        """Delete horizon for batches that get one now; an unlimited retention counts as
        delete.retention.ms."""
        return min(self.now_ms + self.delete_retention_ms, INT64_MAX)


@value_class
class CompactionProgress:
    """Bytes read and written since the previous step. The pass may be cancelled after any step."""

    bytes_read: int
    bytes_written: int = 0
    is_mapping: bool = False
    """Whether the pass still builds the offset map."""


@value_class
class SegmentReplacement:
    """New segment that replaces these segments; its `.cleaned` files are durable, and are swapped in
    before the next step."""

    replaced: Sequence[int]
    """The base offsets, in order; the first is the new segment's."""
    has_transaction_index: bool


@dataclass(slots=True)
class CompactionStatistics:
    """Statistics of a pass; `mapped_bytes` and `mapped_records` count the reading for the offset map, the others the rewriting."""

    mapped_bytes: int = 0
    mapped_records: int = 0
    keys: int = 0
    map_filled: float = 0.0
    """Part of the map that was used, 0 to 1."""
    bytes_read: int = 0
    bytes_written: int = 0
    records_read: int = 0
    records_written: int = 0
    records_without_key: int = 0


@value_class
class CompactionFinished:
    """Last step: the log is clean below `end_offset`."""

    end_offset: int
    statistics: CompactionStatistics = field(default_factory=CompactionStatistics)


CompactionStep = CompactionProgress | SegmentReplacement | CompactionFinished
