"""Batches and records of segments and metadata snapshots.

A file is read one batch at a time. A batch that cannot be read ends the dump of the file with a problem and
its position, because the position of the next batch depends on its length.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from odradek.cli import dump_decoders
from odradek.cli.dump_output import DumpRow, FileProblem
from odradek.protocol.errors import CorruptBatch
from odradek.protocol.records.batch import HEADER_SIZE, LOG_APPEND_TIME, Batch
from odradek.protocol.records.compression import NAMES as CODECS
from odradek.protocol.records.records import Record, decode
from odradek.seams.files import File
from odradek.seams.values import value_class


@value_class
class SegmentDumpOptions:
    """Options for the dump of a segment. `start` and `end` are inclusive; None is the end of the segment."""

    deep: bool = False
    records: bool = False
    decoder: str = "none"
    start: int = 0
    end: int | None = None


def batches(file: File, size: int) -> Iterator[Batch | FileProblem]:
    """Yield complete batches with their positions; a FileProblem is last if the rest is not a batch."""
    position = 0
    while position < size:
        try:
            header = Batch(memoryview(file.read_at(position, HEADER_SIZE)))
        except CorruptBatch as error:
            yield FileProblem(f"not a batch: {_reason(error)}", position)
            return
        if position + header.size > size:
            left = size - position
            yield FileProblem(
                f"the last batch is truncated: {left} of {header.size} bytes", position
            )
            return
        batch = Batch(memoryview(file.read_at(position, header.size)))
        batch.position = position
        yield batch
        position += batch.size


def _reason(error: CorruptBatch) -> str:
    return error.message or str(error)


def rows(file: File, size: int, wanted: SegmentDumpOptions) -> Iterator[DumpRow | FileProblem]:
    """Yield the batches of a file, and their records if requested."""
    for batch in batches(file, size):
        if isinstance(batch, FileProblem):
            yield batch
            return
        if batch.last_offset < wanted.start:
            continue
        if wanted.end is not None and batch.base_offset > wanted.end:
            return
        damage = _damage(batch)
        yield DumpRow("batch", _batch_fields(batch, is_valid=damage is None))
        if damage is not None:
            yield FileProblem(damage, batch.position)
        elif wanted.deep or wanted.records:
            yield from _records(batch, wanted)


def _damage(batch: Batch) -> str | None:
    try:
        batch.check()
    except CorruptBatch as error:
        return _reason(error)
    return None


def _batch_fields(batch: Batch, *, is_valid: bool) -> dict[str, Any]:
    codec = batch.compression
    return {
        "baseOffset": batch.base_offset,
        "lastOffset": batch.last_offset,
        "count": batch.record_count,
        "position": batch.position,
        "sizeInBytes": batch.size,
        "partitionLeaderEpoch": batch.leader_epoch,
        "magic": batch.magic,
        "crc": batch.crc,
        "isValid": is_valid,
        "compressCodec": CODECS[codec] if codec < len(CODECS) else f"unknown({codec})",
        "timestampType": "LogAppendTime"
        if batch.timestamp_type == LOG_APPEND_TIME
        else "CreateTime",
        "baseTimestamp": batch.base_timestamp,
        "maxTimestamp": batch.max_timestamp,
        "producerId": batch.producer_id,
        "producerEpoch": batch.producer_epoch,
        "baseSequence": batch.base_sequence,
        "lastSequence": batch.last_sequence,
        "isTransactional": batch.is_transactional,
        "isControl": batch.is_control,
        "deleteHorizonMs": batch.delete_horizon_ms,
    }


def _records(batch: Batch, wanted: SegmentDumpOptions) -> Iterator[DumpRow | FileProblem]:
    try:
        found = decode(batch)
    except (CorruptBatch, ValueError) as error:
        yield FileProblem(f"records cannot be read: {error}", batch.position)
        return
    for record in found:
        if record.offset < wanted.start or (wanted.end is not None and record.offset > wanted.end):
            continue
        yield DumpRow("record", _record_fields(batch, record, wanted))


def _record_fields(batch: Batch, record: Record, wanted: SegmentDumpOptions) -> dict[str, Any]:
    fields: dict[str, Any] = {
        "offset": record.offset,
        "timestamp": record.timestamp,
        "keySize": -1 if record.key is None else len(record.key),
        "valueSize": -1 if record.value is None else len(record.value),
    }
    if batch.base_sequence >= 0:
        first = batch.base_sequence + record.offset - batch.base_offset
        fields["sequence"] = first & (2**31 - 1)
    if wanted.records:
        fields.update(dump_decoders.decode(wanted.decoder, record, is_control=batch.is_control))
        fields["headers"] = [_header(key, value) for key, value in record.headers]
    return fields


def _header(key: str, value: bytes | None) -> dict[str, Any]:
    shown: dict[str, Any] = {}
    # Bytes of a key that are not UTF-8 were decoded to surrogates.
    dump_decoders.plain(shown, "key", key.encode("utf-8", "surrogateescape"))
    dump_decoders.plain(shown, "value", value)
    return shown
