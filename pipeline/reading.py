"""What a task does: its pieces one after the other, from the store or from a broker."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from odradek.pipeline.brokers import TopicPartition, brokers_at
from odradek.pipeline.decoding.batches import decoder_of
from odradek.pipeline.decoding.decoder import INT64_MAX, INT64_MIN, Aborted, Wanted
from odradek.pipeline.decoding.schema import RECORDS
from odradek.pipeline.errors import BrokersUnavailable, CorruptSegment, DataLoss, MissingSegment
from odradek.pipeline.history import Stretch
from odradek.pipeline.planning import BrokerRange, Piece
from odradek.protocol.errors import KafkaError

if TYPE_CHECKING:
    import pyarrow as pa

log = logging.getLogger("odradek.pipeline")

IDLE_FETCHES_MAX = 20
"""So many fetches in a row may bring nothing, where offsets are still to come."""


@dataclass(frozen=True)
class Reading:
    """How all tasks of a query read."""

    columns: Sequence[str]
    bootstrap: str | None
    tiered_url: str | None
    store_options: Mapping[str, str]
    read_committed: bool
    request_timeout_ms: int
    fetch_max_bytes: int
    fail_on_data_loss: bool
    skip_corrupt: bool
    since_ms: int = INT64_MIN
    until_ms: int = INT64_MAX
    rows: str = RECORDS


def read_pieces(
    reading: Reading, pieces: Sequence[Piece], aborted: Mapping[tuple[str, int], Sequence[Aborted]]
) -> Iterator[pa.RecordBatch]:
    """The records of all pieces. Raises PipelineError."""
    for piece in pieces:
        try:
            yield from _read(reading, piece, aborted)
        except (CorruptSegment, MissingSegment) as error:
            if not reading.skip_corrupt:
                raise
            log.error("offsets %d to %d are left out: %s", piece.low, piece.high - 1, error)


def _read(
    reading: Reading, piece: Piece, aborted: Mapping[tuple[str, int], Sequence[Aborted]]
) -> Iterator[pa.RecordBatch]:
    if isinstance(piece, BrokerRange):
        where = (piece.topic, piece.partition)
    else:
        where = (piece.segment.partition.topic, piece.segment.partition.partition)
    wanted = Wanted(
        *where,
        reading.columns,
        piece.low,
        piece.high,
        reading.since_ms,
        reading.until_ms,
        aborted.get(where, ()),
        reading.rows,
    )
    if isinstance(piece, BrokerRange):
        return _read_broker(reading, piece, wanted)
    return _read_store(reading, piece, wanted)


def _read_store(reading: Reading, piece: Stretch, wanted: Wanted) -> Iterator[pa.RecordBatch]:
    from odradek.pipeline.segments import read_stretch
    from odradek.pipeline.store import store_at

    assert reading.tiered_url is not None
    store = store_at(reading.tiered_url, tuple(sorted(reading.store_options.items())))
    return read_stretch(store.storage, piece, wanted)


def _read_broker(reading: Reading, piece: BrokerRange, wanted: Wanted) -> Iterator[pa.RecordBatch]:
    assert reading.bootstrap is not None
    brokers = brokers_at(reading.bootstrap, reading.request_timeout_ms)
    where = TopicPartition(piece.topic, piece.partition)
    offset, idle = piece.low, 0
    while offset < piece.high:
        try:
            fetched = brokers.fetch(
                where,
                offset,
                read_committed=reading.read_committed,
                max_bytes=reading.fetch_max_bytes,
            )
        except KafkaError:
            text = f"offsets {offset} to {piece.high - 1} of {where} are not there any more"
            if reading.fail_on_data_loss:
                raise DataLoss(f"{text} (failOnDataLoss=false reads what is left)") from None
            log.error("%s: they are left out", text)
            return
        gone = [Aborted(producer, first, INT64_MAX) for producer, first in fetched.aborted]
        decoder = decoder_of(
            replace(wanted, low=offset, aborted=gone), f"{where}, fetched at {offset}"
        )
        yield from decoder.feed(fetched.records)
        idle = idle + 1 if decoder.next_offset == offset else 0
        if idle > IDLE_FETCHES_MAX:
            raise BrokersUnavailable(f"nothing comes of {where} from offset {offset} on")
        offset = decoder.next_offset
