"""Model of compaction: a log as lists in memory, and Kafka's rules record by record. It shares no
code with the product: keys are compared instead of hashed. A `Kept` batch is what a reader
receives of one on the disk."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

from odradek.protocol.records.batch import Batch
from odradek.protocol.records.control import read_end_marker
from odradek.protocol.records.records import Record, decode

Producers = Mapping[int, tuple[int | None, int]]
"""Of each active producer the end of its last batch (None: it has none), and its epoch."""


@dataclass(frozen=True)
class Kept:
    base_offset: int
    last_offset: int
    leader_epoch: int
    codec: int
    timestamp_type: int
    max_timestamp: int
    producer: tuple[int, int, int]
    """Id, epoch, base sequence."""
    is_transactional: bool
    is_control: bool
    commits: bool | None
    """Of a marker that has its record."""
    horizon_ms: int | None
    records: tuple[Record, ...]


def kept(batch: Batch) -> Kept:
    is_marker = batch.is_control and batch.record_count > 0
    return Kept(
        batch.base_offset,
        batch.last_offset,
        batch.leader_epoch,
        batch.compression,
        batch.timestamp_type,
        batch.max_timestamp,
        (batch.producer_id, batch.producer_epoch, batch.base_sequence),
        batch.is_transactional,
        batch.is_control,
        read_end_marker(batch)[0] if is_marker else None,
        batch.delete_horizon_ms,
        tuple(decode(batch)),
    )


@dataclass
class Transactions:
    """Whether a transaction was aborted is known from later batches; removed batches do not
    count."""

    all: list[Kept]
    has_batches: set[int] = field(default_factory=set)

    def is_aborted(self, batch: Kept) -> bool:
        if not batch.is_transactional or batch.is_control:
            return False
        for later in self.all:
            if (
                later.is_control
                and later.base_offset > batch.base_offset
                and later.producer[0] == batch.producer[0]
                and later.commits is not None
            ):
                return not later.commits
        return False

    def is_void(self, batch: Kept) -> bool:
        """Whether a batch was aborted, or a marker has no batch of its transaction left."""
        producer = batch.producer[0]
        if not batch.is_control:
            if batch.is_transactional:
                self.has_batches.add(producer)
            return self.is_aborted(batch)
        had = producer in self.has_batches
        self.has_batches.discard(producer)
        return not had


def compacted(
    log: Iterable[Kept],
    *,
    first_dirty_offset: int,
    cleaned_to: int,
    end: int,
    rewritten_to: int,
    now_ms: int,
    delete_retention_ms: int,
    producers: Producers,
) -> list[Kept]:
    """The whole log after a pass with the end `end` and an offset map up to `cleaned_to`, which
    rewrote the segments below `rewritten_to`."""
    batches = list(log)
    fate = Transactions(batches)
    latest: dict[bytes, int] = {}
    for batch in batches:
        if not batch.is_control and not fate.is_aborted(batch):
            for record in batch.records:
                if record.key is not None and first_dirty_offset <= record.offset < cleaned_to:
                    latest[record.key] = record.offset
    result: list[Kept] = []
    for batch in batches:
        if batch.base_offset >= rewritten_to:
            result.append(batch)
            continue
        is_void = fate.is_void(batch)
        horizon = batch.horizon_ms
        has_passed = horizon is not None and horizon <= now_ms
        records = tuple(
            record
            for record in batch.records
            if _stays(batch, record, is_void, has_passed, latest, cleaned_to)
        )
        if records:
            has_tombstone = any(record.value is None for record in records)
            if horizon is None and (has_tombstone or (batch.is_control and is_void)):
                horizon = min(now_ms + delete_retention_ms, 2**63 - 1)
            newest = max(record.timestamp for record in records)
            is_same = len(records) == len(batch.records) and horizon == batch.horizon_ms
            result.append(
                replace(
                    batch,
                    records=records,
                    horizon_ms=horizon,
                    max_timestamp=batch.max_timestamp if is_same else newest,
                )
            )
        elif batch.last_offset + 1 == end or _is_last_of_producer(batch, producers):
            result.append(replace(batch, records=(), horizon_ms=None, codec=0, commits=None))
    return result


def _stays(
    batch: Kept,
    record: Record,
    is_void: bool,
    has_passed: bool,
    latest: Mapping[bytes, int],
    cleaned_to: int,
) -> bool:
    if batch.is_control:
        return not (is_void and has_passed)
    if is_void:
        return False
    if record.offset >= cleaned_to:
        return True
    if record.key is None:
        return False
    if record.offset < latest.get(record.key, -1):
        return False
    return record.value is not None or not has_passed


def _is_last_of_producer(batch: Kept, producers: Producers) -> bool:
    producer, epoch, _ = batch.producer
    if producer not in producers:
        return False
    last_offset, last_epoch = producers[producer]
    if last_offset is None:
        return batch.is_control and epoch == last_epoch
    return batch.last_offset == last_offset
