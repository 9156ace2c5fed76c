"""Summary of a partition's finished segments in one object, so that readers need not open every
manifest.

    <partition directory>/0-<leader epoch, 10 digits, or nothing if no leader wrote it>.summary

The key sorts before all segments, so the first page of a listing has it, with the current first
segment. The summary is a hint. A leader writes it before its first copy, with all finished segments
up to the offset where its copies start, and again after several copies; if there are no such
segments it deletes the summaries of earlier leaders. A reader takes the summary of the latest epoch
and lists only what is behind its last segment. It then sees all segments, even if a deposed leader
copied some. Where the listing starts shows what retention has deleted. Summaries are not part of KIP-405.

    "ODSU", CRC-32C of all that follows (4), version (2), rows (4), spans (4), then in one zstd frame:
    rows, transposed by bytes (the first bytes of all rows, then the second ones, …):
        id 16, start offset 8, last offset - start offset 4, largest timestamp 8, time of the copy 8,
        size 4, broker 4, last leader epoch 4, custom metadata 2 (its number, 0 is none), flags 1
    spans likewise, for segments with more than their last epoch, all their epochs:
        row 4, epoch 4, start offset 8
    custom metadata: all distinct values, each with its length 2

Little-endian, rows by start offset. Transposed columns of increasing numbers compress well.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator
from struct import Struct
from uuid import UUID

import zstandard

from odradek.protocol.records.crc32c import crc32c
from odradek.seams.files import Buffer
from odradek.seams.values import value_class
from odradek.storage.tiered.errors import CorruptRemoteData
from odradek.storage.tiered.segment_metadata import (
    EpochStart,
    RemoteLogSegmentId,
    RemoteLogSegmentMetadata,
    SegmentState,
    TopicIdPartition,
)

VERSION = 1
ROW = Struct("<16sqIqqIiiHB")
SPAN = Struct("<Iiq")
TXN_INDEX_EMPTY, HAS_SPANS = 1, 2
"""Flags."""

_MAGIC = b"ODSU"
_HEAD, _COUNTS, _LENGTH = Struct("<4sI"), Struct("<HII"), Struct("<H")
_BODY_AT = _HEAD.size + _COUNTS.size
_CUSTOMS_MAX = 0xFFFF
_LAST_MAX = 0xFFFFFFFF


@value_class
class PartitionSummary:
    """Decoded summary: `rows` and `spans` have the formats ROW and SPAN."""

    rows: bytes
    spans: bytes
    customs: tuple[bytes, ...]

    def __len__(self) -> int:
        return len(self.rows) // ROW.size

    def segments(self, partition: TopicIdPartition) -> Iterator[RemoteLogSegmentMetadata]:
        """Metadata of the segments, as in their manifests."""
        epochs: dict[int, list[EpochStart]] = {}
        for row, epoch, start in SPAN.iter_unpack(self.spans):
            epochs.setdefault(row, []).append(EpochStart(epoch, start))
        for number, row in enumerate(ROW.iter_unpack(self.rows)):
            id_, start, last, newest, copied, size, broker, epoch, custom, flags = row
            yield RemoteLogSegmentMetadata(
                RemoteLogSegmentId(partition, UUID(bytes=id_)),
                start,
                start + last,
                broker,
                newest,
                copied,
                tuple(epochs.get(number, (EpochStart(epoch, start),))),
                size,
                SegmentState.COPY_SEGMENT_FINISHED,
                self.customs[custom - 1] if custom else None,
                bool(flags & TXN_INDEX_EMPTY),
            )


class PartitionSummaryBuilder:
    """Collects finished segments by start offset; `encode` may run in a thread."""

    def __init__(self, segments: Iterable[RemoteLogSegmentMetadata] = ()) -> None:
        self._rows = bytearray()
        self._spans = bytearray()
        self._customs: dict[bytes, int] = {}
        for each in segments:
            self.add(each)

    def __len__(self) -> int:
        return len(self._rows) // ROW.size

    def add(self, segment: RemoteLogSegmentMetadata) -> None:
        """Add a segment. Raises ValueError if the format cannot hold it, as with another
        RemoteStorageManager; the partition has no summary then."""
        custom = segment.custom_metadata
        number = 0 if custom is None else self._customs.setdefault(custom, len(self._customs) + 1)
        last = segment.end_offset - segment.start_offset
        if number > _CUSTOMS_MAX or not 0 <= last <= _LAST_MAX:
            raise ValueError(f"{segment.id} cannot be represented in a summary")
        flags = TXN_INDEX_EMPTY if segment.txn_index_empty else 0
        if segment.epochs != (EpochStart(segment.epochs[-1].epoch, segment.start_offset),):
            flags |= HAS_SPANS
            for each in segment.epochs:
                self._spans += SPAN.pack(len(self), each.epoch, each.start_offset)
        self._rows += ROW.pack(
            segment.id.id.bytes,
            segment.start_offset,
            last,
            segment.max_timestamp_ms,
            segment.event_timestamp_ms,
            segment.size_bytes,
            segment.broker_id,
            segment.epochs[-1].epoch,
            number,
            flags,
        )

    def taken(self) -> PartitionSummary:
        return PartitionSummary(bytes(self._rows), bytes(self._spans), tuple(self._customs))

    def encode(self) -> bytes:
        return encode(self.taken())


def encode(summary: PartitionSummary) -> bytes:
    counts = _COUNTS.pack(VERSION, len(summary), len(summary.spans) // SPAN.size)
    customs = b"".join(_LENGTH.pack(len(each)) + each for each in summary.customs)
    body = _transpose(summary.rows, ROW.size) + _transpose(summary.spans, SPAN.size) + customs
    rest = counts + zstandard.ZstdCompressor().compress(body)
    return _HEAD.pack(_MAGIC, crc32c(rest)) + rest


def decode(data: Buffer) -> PartitionSummary:
    """Decode a summary. Raises CorruptRemoteData for invalid content or a later version."""
    view = memoryview(data)
    try:
        magic, crc = _HEAD.unpack_from(view)
        if magic != _MAGIC or crc != crc32c(view[_HEAD.size :]):
            raise ValueError("invalid magic or CRC")
        version, rows, spans = _COUNTS.unpack_from(view, _HEAD.size)
        if version != VERSION:
            raise ValueError(f"unknown version {version}")
        body = zstandard.ZstdDecompressor().decompress(view[_BODY_AT:])
        spans_at, customs_at = rows * ROW.size, rows * ROW.size + spans * SPAN.size
        if len(body) < customs_at:
            raise ValueError(f"{len(body)} bytes are too few for {rows} rows")
        return PartitionSummary(
            _untranspose(body[:spans_at], ROW.size),
            _untranspose(body[spans_at:customs_at], SPAN.size),
            tuple(_customs(body, customs_at)),
        )
    except (ValueError, struct.error, zstandard.ZstdError) as error:
        raise CorruptRemoteData(f"invalid partition summary: {error}") from None


def _customs(body: bytes, at: int) -> Iterator[bytes]:
    while at < len(body):
        (length,) = _LENGTH.unpack_from(body, at)
        at += _LENGTH.size + length
        yield body[at - length : at]


def _transpose(rows: bytes, width: int) -> bytes:
    return b"".join(rows[column::width] for column in range(width))


def _untranspose(columns: bytes, width: int) -> bytes:
    count = len(columns) // width
    rows = bytearray(len(columns))
    for column in range(width):
        rows[column::width] = columns[column * count : (column + 1) * count]
    return bytes(rows)
