"""Decoder for `rows=batches`: one row for each record batch, for statistics on sizes, codecs and producers.

Rows include control batches and are made from batch headers alone. Only `uncompressedBytes` requires decompressing
the records, without decoding them. `offset` and `timestamp` of a row are the batch's last offset and max timestamp,
so that filters and input partitions work as for records, and each batch is in exactly one input partition.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from typing import Any

import numpy as np
import pyarrow as pa

from odradek.pipeline.decoding.record_decoder import (
    COMPRESSION,
    CONTROL,
    LOG_APPEND_TIME,
    TRANSACTIONAL,
    RecordDecoder,
)
from odradek.pipeline.decoding.record_selection import INT64_MAX, INT64_MIN, RecordSelection
from odradek.pipeline.decoding.schema import BATCHES
from odradek.protocol.errors import CorruptBatch
from odradek.protocol.records.batch import HEADER_SIZE
from odradek.protocol.records.compression import NAMES, NONE, decompress
from odradek.protocol.records.records import MAX_DECOMPRESSED_BYTES


@cache
def _codecs() -> pa.Array:
    """Return codec names by codec number, null for unassigned numbers."""
    return pa.array([*NAMES, *[None] * (COMPRESSION + 1 - len(NAMES))], pa.string())


class BatchDecoder(RecordDecoder):
    """Decodes batches to one row each."""

    def _decode_whole(self, data: Any, found: Any) -> Iterator[pa.RecordBatch]:
        wanted = self.wanted
        last = found["last_offset"]
        keep = (last >= wanted.low) & (last < wanted.high)
        if wanted.since_ms > INT64_MIN:
            keep &= found["max_timestamp"] >= wanted.since_ms
        if wanted.until_ms < INT64_MAX:
            keep &= found["max_timestamp"] < wanted.until_ms
        if keep.any():
            yield self._rows(data, found[keep])

    def _rows(self, data: Any, batches: Any) -> pa.RecordBatch:
        attributes = batches["attributes"]
        columns: dict[str, Any] = {
            "offset": batches["last_offset"],
            "timestamp": batches["max_timestamp"],
            "timestampType": (attributes & LOG_APPEND_TIME != 0).astype(np.int32),
            "baseOffset": batches["base_offset"],
            "records": batches["count"],
            "bytes": batches["size"],
            "leaderEpoch": batches["leader_epoch"],
            "producerId": batches["producer_id"],
            "isTransactional": attributes & TRANSACTIONAL != 0,
            "isControl": attributes & CONTROL != 0,
        }
        if "codec" in self.wanted.columns:
            columns["codec"] = _codecs().take(pa.array(attributes & COMPRESSION))
        if "uncompressedBytes" in self.wanted.columns:
            columns["uncompressedBytes"] = self._uncompressed(data, batches)
        return self._table(
            len(batches),
            {
                name: column if isinstance(column, pa.Array) else np.ascontiguousarray(column)
                for name, column in columns.items()
            },
        )

    def _uncompressed(self, data: Any, batches: Any) -> Any:
        """Return the batches' sizes in bytes with uncompressed records."""
        view = memoryview(data)
        sizes = batches["size"].copy()
        codecs = batches["attributes"] & COMPRESSION
        for number in np.flatnonzero((codecs != NONE) & (sizes > HEADER_SIZE)).tolist():
            at, size = int(batches["position"][number]), int(batches["size"][number])
            body = view[at + HEADER_SIZE : at + size]
            try:
                plain = decompress(int(codecs[number]), body, MAX_DECOMPRESSED_BYTES)
            except CorruptBatch as error:
                raise self._corrupt(str(error), at) from None
            sizes[number] = HEADER_SIZE + len(plain)
        return sizes


def decoder_of(wanted: RecordSelection, source: str) -> RecordDecoder:
    """Return the decoder for the kind of rows that is selected."""
    return (BatchDecoder if wanted.rows == BATCHES else RecordDecoder)(wanted, source)
