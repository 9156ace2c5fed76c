"""Batches as rows, for who asks what a log is made of: sizes, codecs, who wrote it.

A row is a batch, control batches included, by its header alone; only `uncompressedBytes` makes it decompress
the records, which it does not look at. A batch is where its last offset is, and as late as its latest
record: `offset` and `timestamp` are those, so that filters and splits mean what they mean for records, and
each batch is in one piece.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from typing import Any

import numpy as np
import pyarrow as pa

from odradek.pipeline.decoding.decoder import (
    COMPRESSION,
    CONTROL,
    LOG_APPEND_TIME,
    TRANSACTIONAL,
    Decoder,
)
from odradek.pipeline.decoding.schema import BATCHES
from odradek.pipeline.decoding.selection import INT64_MAX, INT64_MIN, RecordSelection
from odradek.protocol.errors import CorruptBatch
from odradek.protocol.records.batch import HEADER_SIZE
from odradek.protocol.records.compression import NAMES, NONE, decompress
from odradek.protocol.records.records import MAX_DECOMPRESSED_BYTES


@cache
def _codecs() -> pa.Array:
    """Their names by their numbers; there are more of these than codecs."""
    return pa.array([*NAMES, *[None] * (COMPRESSION + 1 - len(NAMES))], pa.string())


class BatchDecoder(Decoder):
    """See the module."""

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
        """The batches' sizes, if their records were not compressed."""
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


def decoder_of(wanted: RecordSelection, source: str) -> Decoder:
    """For the rows that are wanted."""
    return (BatchDecoder if wanted.rows == BATCHES else Decoder)(wanted, source)
