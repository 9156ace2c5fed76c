"""Dump of indexes, producer snapshots, checkpoints and marker files.

These files are read as a whole. Invalid content is reported as a FileProblem.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping

from odradek.cli.dump_files import DumpFile, FileKind
from odradek.cli.dump_output import DumpRow, FileProblem
from odradek.protocol.errors import KafkaError
from odradek.protocol.uuids import uuid_to_text
from odradek.storage.directories import checkpoints, clean_shutdown, meta_properties
from odradek.storage.directories.checkpoints import CorruptCheckpoint
from odradek.storage.directories.meta_properties import BadMetaProperties
from odradek.storage.log import offset_index, time_index, transaction_index
from odradek.storage.log.leader_epoch_cache import CorruptEpochs
from odradek.storage.log.leader_epoch_cache import parse_checkpoint as parse_epochs
from odradek.storage.log.partition_metadata import CorruptMetadata, parse_metadata
from odradek.storage.log.producer_snapshots import CorruptSnapshot, decode_snapshot

Rows = Iterator[DumpRow | FileProblem]


def rows(found: DumpFile, data: bytes) -> Rows:
    """Yield the entries of a file; a FileProblem where it is invalid."""
    try:
        yield from READERS[found.kind](found, data)
    except (
        CorruptCheckpoint,
        CorruptEpochs,
        CorruptSnapshot,
        BadMetaProperties,
        ValueError,
    ) as error:
        yield FileProblem(str(error))
    except KafkaError as error:
        yield FileProblem(error.message or str(error))


def offset_entries(base_offset: int, data: bytes) -> Iterator[tuple[int, int]]:
    """Yield (offset, position) of an offset index, up to its preallocated zeros."""
    whole = memoryview(data)[: len(data) // 8 * 8]
    for number, (relative, position) in enumerate(offset_index.ENTRY.iter_unpack(whole)):
        if (number and not relative) or (not relative and not position):
            return
        yield base_offset + relative, position


def time_entries(base_offset: int, data: bytes) -> Iterator[tuple[int, int]]:
    """Yield (timestamp, offset) of a time index, up to its preallocated zeros."""
    whole = memoryview(data)[: len(data) // 12 * 12]
    for timestamp, relative in time_index.ENTRY.iter_unpack(whole):
        if not timestamp and not relative:
            return
        yield timestamp, base_offset + relative


def aborted_entries(data: bytes) -> Iterator[tuple[int, int, int, int, int]]:
    """Yield (version, producer id, first, last, last stable offset) of a transaction index."""
    size = transaction_index.ENTRY.size
    yield from transaction_index.ENTRY.iter_unpack(memoryview(data)[: len(data) // size * size])


def _offset_index(found: DumpFile, data: bytes) -> Rows:
    for offset, position in offset_entries(found.offset, data):
        yield DumpRow("offsetIndexEntry", {"offset": offset, "position": position})
    yield from _trailing_bytes(data, offset_index.ENTRY.size)


def _time_index(found: DumpFile, data: bytes) -> Rows:
    for timestamp, offset in time_entries(found.offset, data):
        yield DumpRow("timeIndexEntry", {"timestamp": timestamp, "offset": offset})
    yield from _trailing_bytes(data, time_index.ENTRY.size)


def _transaction_index(found: DumpFile, data: bytes) -> Rows:
    for version, producer_id, first, last, stable in aborted_entries(data):
        yield DumpRow(
            "abortedTransaction",
            {
                "version": version,
                "producerId": producer_id,
                "firstOffset": first,
                "lastOffset": last,
                "lastStableOffset": stable,
            },
        )
    yield from _trailing_bytes(data, transaction_index.ENTRY.size)


def _trailing_bytes(data: bytes, entry_size: int) -> Rows:
    """Report bytes after the last complete entry, unless they are preallocated zeros."""
    rest = len(data) % entry_size
    if rest and (len(data) < entry_size or any(data[-rest - entry_size :])):
        yield FileProblem(f"{rest} bytes after the last complete entry", len(data) - rest)


def _producer_snapshot(found: DumpFile, data: bytes) -> Rows:
    for entry in decode_snapshot(data):
        batch = entry.batches[-1] if entry.batches else None
        first = -1
        if batch is not None and batch.last_sequence >= 0:
            first = (batch.last_sequence - batch.offset_delta) & (2**31 - 1)
        yield DumpRow(
            "producer",
            {
                "producerId": entry.producer_id,
                "producerEpoch": entry.epoch,
                "coordinatorEpoch": entry.coordinator_epoch,
                "currentTxnFirstOffset": entry.transaction_start,
                "lastTimestamp": entry.last_timestamp,
                "firstSequence": first,
                "lastSequence": -1 if batch is None else batch.last_sequence,
                "lastOffset": -1 if batch is None else batch.last_offset,
                "offsetDelta": 0 if batch is None else batch.offset_delta,
            },
        )


def _epochs(found: DumpFile, data: bytes) -> Rows:
    for entry in parse_epochs(data):
        yield DumpRow("epoch", {"epoch": entry.epoch, "startOffset": entry.start_offset})


def _offset_checkpoint(found: DumpFile, data: bytes) -> Rows:
    for (topic, partition), offset in checkpoints.parse(data).items():
        yield DumpRow("checkpoint", {"topic": topic, "partition": partition, "offset": offset})


def _meta_properties(found: DumpFile, data: bytes) -> Rows:
    parsed = meta_properties.parse(data)
    fields = {
        "version": parsed.version,
        "cluster.id": parsed.cluster_id,
        "node.id": parsed.node_id,
        "directory.id": None if parsed.directory_id is None else uuid_to_text(parsed.directory_id),
    }
    yield DumpRow(
        "metaProperties", {name: each for name, each in fields.items() if each is not None}
    )


def _quorum_state(found: DumpFile, data: bytes) -> Rows:
    from odradek.protocol.schemas.quorum_state import decode_quorum_state

    decode_quorum_state(data)  # raises InvalidRecord; the fields depend on the version
    yield DumpRow("quorumState", json.loads(data))


def _clean_mark(found: DumpFile, data: bytes) -> Rows:
    yield DumpRow("cleanShutdown", {"brokerEpoch": clean_shutdown.parse(data).broker_epoch})


def _partition_metadata(found: DumpFile, data: bytes) -> Rows:
    try:
        topic_id = parse_metadata(data)
    except CorruptMetadata as error:
        yield FileProblem(str(error))
    else:
        yield DumpRow("partitionMetadata", {"version": 0, "topicId": uuid_to_text(topic_id)})


def _remote_segments(found: DumpFile, data: bytes) -> Rows:
    """Yield the remote log segments of a partition's snapshot (T-48)."""
    from odradek.storage.tiered.metadata_snapshot_file import MetadataSnapshotReader

    snapshot = MetadataSnapshotReader.of_any(
        data, int(found.path.name.removesuffix(".tmp").rpartition("-")[2])
    )
    while snapshot.load():
        pass
    known, partition = snapshot.metadata, snapshot.metadata.partition
    yield DumpRow(
        "remoteSegments",
        {
            "topic": partition.topic,
            "topicId": uuid_to_text(partition.topic_id),
            "partition": partition.partition,
            "metadataTopicOffset": snapshot.next_offset,
            "deletion": None if known.deletion is None else known.deletion.state.name,
            "highestOffsets": {str(epoch): each for epoch, each in known.highest_offsets.items()},
        },
    )
    for segment in known.segments():
        yield DumpRow(
            "remoteSegment",
            {
                "segmentId": uuid_to_text(segment.id.id),
                "startOffset": segment.start_offset,
                "endOffset": segment.end_offset,
                "state": segment.state.name,
                "leaderEpochs": {str(each.epoch): each.start_offset for each in segment.epochs},
                "sizeInBytes": segment.size_bytes,
                "maxTimestamp": segment.max_timestamp_ms,
                "eventTimestamp": segment.event_timestamp_ms,
                "brokerId": segment.broker_id,
                "txnIndexEmpty": segment.txn_index_empty,
                "customMetadataSize": -1
                if segment.custom_metadata is None
                else len(segment.custom_metadata),
            },
        )


def _remote_offsets(found: DumpFile, data: bytes) -> Rows:
    """Yield the read offset of each partition of the metadata topic (T-47)."""
    from odradek.storage.tiered.metadata_snapshot_file import decode_offsets

    for partition, offset in decode_offsets(data).items():
        yield DumpRow("remoteMetadataOffset", {"partition": partition, "offset": offset})


def _remote_topic(found: DumpFile, data: bytes) -> Rows:
    """Yield the topic id of the metadata topic."""
    from odradek.storage.tiered.metadata_snapshot_file import decode_topic_id

    yield DumpRow("remoteMetadataTopic", {"topicId": uuid_to_text(decode_topic_id(data))})


READERS: Mapping[FileKind, Callable[[DumpFile, bytes], Rows]] = {
    FileKind.OFFSET_INDEX: _offset_index,
    FileKind.TIME_INDEX: _time_index,
    FileKind.TRANSACTION_INDEX: _transaction_index,
    FileKind.PRODUCER_SNAPSHOT: _producer_snapshot,
    FileKind.EPOCHS: _epochs,
    FileKind.OFFSET_CHECKPOINT: _offset_checkpoint,
    FileKind.META_PROPERTIES: _meta_properties,
    FileKind.PARTITION_METADATA: _partition_metadata,
    FileKind.QUORUM_STATE: _quorum_state,
    FileKind.CLEAN_MARK: _clean_mark,
    FileKind.REMOTE_SEGMENTS: _remote_segments,
    FileKind.REMOTE_OFFSETS: _remote_offsets,
    FileKind.REMOTE_TOPIC: _remote_topic,
}
