"""Reads the ranges of a task, one after the other, from the store or from brokers.

A task in a new process waits for its imports, so the modules for brokers and for the store are imported only where
they are used.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from odradek.pipeline.decoding.arrow_columns import GAPS, arrow_schema
from odradek.pipeline.decoding.batch_decoder import decoder_of
from odradek.pipeline.decoding.batch_headers import find_batches
from odradek.pipeline.decoding.record_selection import (
    INT64_MAX,
    INT64_MIN,
    AbortedTransaction,
    RecordSelection,
)
from odradek.pipeline.decoding.schema import GAP, RECORDS
from odradek.pipeline.errors import (
    BrokersUnavailable,
    DataLoss,
    MissingSegment,
    OffsetsUnreadable,
    UnreadableSegment,
    with_skip_hint,
)
from odradek.pipeline.options import REPORT
from odradek.pipeline.planning import BrokerRange, LostOffsets, flatten_ranges
from odradek.pipeline.segment_columns import PackedSlices, SegmentSlice, SegmentSlices
from odradek.protocol.errors import ErrorCode, KafkaError
from odradek.storage.tiered.custom_metadata import is_dense

if TYPE_CHECKING:
    import pyarrow as pa

log = logging.getLogger("odradek.pipeline")

IDLE_FETCHES_MAX = 20
"""Maximum number of consecutive fetches without records before the end of a range."""


@dataclass(frozen=True)
class ReadSettings:
    """Settings for reading that all tasks of a query share."""

    columns: Sequence[str]
    bootstrap: str | None
    tiered_url: str | None
    store_options: Mapping[str, str]
    read_committed: bool
    request_timeout_ms: int
    fetch_max_bytes: int
    fail_on_data_loss: bool
    unreadable: str
    """How unreadable offsets are handled: "fail", "skip" or "report"."""
    since_ms: int = INT64_MIN
    until_ms: int = INT64_MAX
    too_late_ms: int = INT64_MAX
    """No record after one with a timestamp this late (ms) is wanted."""
    rows: str = RECORDS
    skips_dense: bool = False
    """Whether segments are not read if their metadata states that each offset has a record."""


def read_pieces(
    reading: ReadSettings,
    pieces: Iterable[SegmentSlice | SegmentSlices | PackedSlices | BrokerRange | LostOffsets],
    aborted: Mapping[tuple[str, int], Sequence[AbortedTransaction]],
) -> Iterator[pa.RecordBatch]:
    """Return the records of all ranges. If gaps are reported, each is a table with the column `gap`, whose offsets
    are in no other table. Raises PipelineError.
    """
    for whole in flatten_ranges(pieces):
        piece = whole
        while True:
            try:
                yield from _read(reading, piece, aborted)
                break
            except OffsetsUnreadable as error:
                low = max(piece.low, error.unread_from or 0)
                high = piece.high if error.resumes_at is None else error.resumes_at
                yield from _left_out(reading, piece, low, high, error)
            if high >= piece.high:
                break
            piece = replace(piece, low=high)


def _left_out(
    reading: ReadSettings,
    piece: SegmentSlice | BrokerRange | LostOffsets,
    low: int,
    high: int,
    error: OffsetsUnreadable,
) -> Iterator[pa.RecordBatch]:
    """Return what replaces unreadable offsets if the query continues without them; the range is empty if the error
    affects no requested offset. Raises `error` otherwise.
    """
    if isinstance(error, DataLoss) and reading.fail_on_data_loss:
        raise DataLoss(f"{error} (failOnDataLoss=false reads what is left)") from None
    topic, partition = _where(piece)
    offsets = f"offsets {low} to {high - 1} of {topic}-{partition}"
    if isinstance(error, UnreadableSegment) and reading.unreadable == "fail":
        if low < high:
            error.args = (f"{offsets} cannot be read: {error}",)
        raise with_skip_hint(error)
    if low >= high:
        return
    log.error("%s are skipped: %s", offsets, error)
    if reading.unreadable == REPORT:
        yield _gap(reading, piece, low, high, error)


def with_gap_column(table: pa.RecordBatch) -> pa.RecordBatch:
    """Add a null `gap` column, unless the table is a gap."""
    import pyarrow as pa

    if GAP in table.schema.names:
        return table
    return table.append_column(GAP, pa.nulls(table.num_rows, GAPS))


def _gap(
    reading: ReadSettings,
    piece: SegmentSlice | BrokerRange | LostOffsets,
    low: int,
    high: int,
    error: OffsetsUnreadable,
) -> pa.RecordBatch:
    """Return one row for the unreadable offsets low <= offset < high."""
    import pyarrow as pa

    topic, partition = _where(piece)
    row = {"topic": topic, "partition": partition, "offset": low}
    gap = {"lastOffset": high - 1, "object": error.key, "reason": str(error)}
    schema = arrow_schema(reading.columns, reading.rows)
    columns = [pa.array([row.get(field.name)], field.type) for field in schema]
    return pa.RecordBatch.from_arrays(
        [*columns, pa.array([gap], GAPS)], schema=schema.append(pa.field(GAP, GAPS))
    )


def _where(piece: SegmentSlice | BrokerRange | LostOffsets) -> tuple[str, int]:
    if isinstance(piece, SegmentSlice):
        return piece.segment.partition.topic, piece.segment.partition.partition
    return piece.topic, piece.partition


def _read(
    reading: ReadSettings,
    piece: SegmentSlice | BrokerRange | LostOffsets,
    aborted: Mapping[tuple[str, int], Sequence[AbortedTransaction]],
) -> Iterator[pa.RecordBatch]:
    if isinstance(piece, LostOffsets):
        raise _lost(piece)
    tp = _where(piece)
    wanted = RecordSelection(
        *tp,
        reading.columns,
        piece.low,
        piece.high,
        reading.since_ms,
        reading.until_ms,
        reading.too_late_ms,
        aborted.get(tp, ()),
        reading.rows,
    )
    if isinstance(piece, BrokerRange):
        return _read_broker(reading, piece, wanted)
    is_known = reading.skips_dense and is_dense(piece.segment.custom_metadata)
    if is_known and wanted.none_aborted(piece.low, piece.high):
        return decoder_of(wanted, str(piece.segment.id)).rows_without_reading(piece.low, piece.high)
    return _read_store(reading, piece, wanted)


def _read_store(
    reading: ReadSettings, piece: SegmentSlice, wanted: RecordSelection
) -> Iterator[pa.RecordBatch]:
    from odradek.pipeline.segment_reader import read_slice
    from odradek.pipeline.store import store_at

    assert reading.tiered_url is not None
    store = store_at(reading.tiered_url, tuple(sorted(reading.store_options.items())))
    try:
        yield from read_slice(store.storage, piece, wanted)
    except MissingSegment as error:
        low = max(piece.low, error.unread_from or 0)
        left = BrokerRange(*_where(piece), low, piece.high, piece.segment.partition.topic_id)
        if not _is_in_local_log(reading, left, error):
            raise
        log.warning("offsets from %d on are read from the leader: %s", low, error)
        yield from _read_broker(reading, left, wanted)


def _is_in_local_log(reading: ReadSettings, left: BrokerRange, missing: MissingSegment) -> bool:
    """Whether the leader has the offsets of a missing segment on its disk, as far as they are not below the log start
    offset. This is so after tiered storage of the topic was disabled with the policy delete. False if it is not known.

    Raises DataLoss if all of them are below the log start offset, or the topic was deleted.
    """
    if reading.bootstrap is None:
        return False
    from odradek.pipeline.brokers import EARLIEST, brokers_at
    from odradek.protocol.topics import TopicPartition

    tp = TopicPartition(left.topic, left.partition)
    try:
        brokers = brokers_at(reading.bootstrap, reading.request_timeout_ms)
        topic = brokers.topics().get(tp.topic)
        is_lost = topic is None or topic.topic_id not in (None, left.topic_id)
        if not is_lost:
            local = brokers.local_log_start_offsets([tp]).get(tp)
            start = brokers.offsets({tp: EARLIEST})[tp]
            is_lost = start >= left.high
    except BrokersUnavailable:
        return False
    if is_lost:
        why = (
            "retention, DeleteRecords or the disablement of tiered storage deleted them, or the topic was"
            f" deleted, after the query was planned: {missing}"
        )
        loss = _gone(left, left.low, why)
        loss.key, loss.unread_from = missing.key, missing.unread_from
        raise loss from None
    return local is not None and local <= max(start, left.low)


def _lost(piece: LostOffsets) -> OffsetsUnreadable:
    error = DataLoss(piece.reason) if piece.key is None else UnreadableSegment(piece.reason)
    error.key = piece.key
    return error


def _gone(piece: BrokerRange, offset: int, why: str | None = None) -> DataLoss:
    """Return the error for lost offsets from `offset` to the end of the range."""
    text = f"offsets {offset} to {piece.high - 1} of {piece.topic}-{piece.partition} were lost"
    loss = DataLoss(text if why is None else f"{text}: {why}")
    loss.unread_from = offset
    return loss


def _lost_before(piece: BrokerRange, offset: int, first: int) -> DataLoss:
    """Return the error for offsets below the log start offset `first`, where reading resumes if it is in the range."""
    resumes_at = first if offset < first < piece.high else None
    loss = _gone(replace(piece, high=resumes_at or piece.high), offset)
    loss.resumes_at = resumes_at
    return loss


def _of_its_epochs(
    piece: BrokerRange, offset: int, records: memoryview
) -> tuple[memoryview, int | None]:
    """Return the batches before the first one in the range with a later leader epoch than planned, and that epoch.
    A log is truncated only when its leader changes, and later records have the new leader's epoch.
    """
    if piece.leader_epoch is None:
        return records, None
    batches, _, _ = find_batches(records, 0, len(records))
    is_of_it = (batches["last_offset"] >= offset) & (batches["base_offset"] < piece.high)
    later = np.flatnonzero(is_of_it & (batches["leader_epoch"] > piece.leader_epoch))
    if not len(later):
        return records, None
    first = batches[later[0]]
    return records[: first["position"]], int(first["leader_epoch"])


def _read_broker(
    reading: ReadSettings, piece: BrokerRange, wanted: RecordSelection
) -> Iterator[pa.RecordBatch]:
    from odradek.pipeline.brokers import EARLIEST, LATEST, RETRY_HINT, brokers_at
    from odradek.protocol.topics import TopicPartition

    assert reading.bootstrap is not None
    brokers = brokers_at(reading.bootstrap, reading.request_timeout_ms)
    tp = TopicPartition(piece.topic, piece.partition)
    offset, idle = piece.low, 0
    while offset < piece.high:
        try:
            fetched = brokers.fetch(
                tp,
                offset,
                topic_id=piece.topic_id,
                read_committed=reading.read_committed,
                max_bytes=reading.fetch_max_bytes,
            )
        except KafkaError as error:
            if error.code is ErrorCode.inconsistent_topic_id:
                raise _gone(piece, offset, error.message) from None
            first = brokers.offsets({tp: EARLIEST})[tp]
            raise _lost_before(piece, offset, first) from None
        gone = [
            AbortedTransaction(producer, first, INT64_MAX) for producer, first in fetched.aborted
        ]
        decoder = decoder_of(
            replace(wanted, low=offset, aborted=gone), f"{tp}, fetched at {offset}"
        )
        records, epoch = _of_its_epochs(piece, offset, memoryview(fetched.records))
        try:
            yield from decoder.feed(records)
        except UnreadableSegment as error:
            error.unread_from = decoder.next_offset
            raise
        if epoch is not None:
            text = (
                "the log was truncated and now has other records there, of leader epoch"
                f" {epoch} (the query was planned in epoch {piece.leader_epoch})"
            )
            raise _gone(piece, decoder.next_offset, text)
        idle = idle + 1 if decoder.next_offset == offset else 0
        if idle > IDLE_FETCHES_MAX:
            end = brokers.offsets({tp: LATEST})[tp]
            if end <= offset:
                raise _gone(piece, offset, f"the log now ends at offset {end}")
            raise BrokersUnavailable(
                f"{reading.bootstrap} returned no records of {tp} from offset {offset} on"
                f" in {idle} fetches: {RETRY_HINT}"
            )
        offset = decoder.next_offset
