"""Everything but segments: indexes, producer snapshots, checkpoints and marker files.

They are small enough to be read whole. What makes no sense is a Problem, not a crash.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping

from odradek.cli.dump_files import Found, Kind
from odradek.cli.dump_output import Problem, Row
from odradek.protocol.errors import KafkaError
from odradek.protocol.uuids import uuid_to_text
from odradek.storage.directories import checkpoints, clean_shutdown, meta_properties
from odradek.storage.directories.checkpoints import CorruptCheckpoint
from odradek.storage.directories.meta_properties import BadMetaProperties
from odradek.storage.log import offset_index, time_index, transaction_index
from odradek.storage.log.epochs import CorruptEpochs
from odradek.storage.log.epochs import parse_checkpoint as parse_epochs
from odradek.storage.log.partition_metadata import CorruptMetadata, parse_metadata
from odradek.storage.log.producer_snapshots import CorruptSnapshot, decode_snapshot

Rows = Iterator[Row | Problem]


def rows(found: Found, data: bytes) -> Rows:
    """What the file says; a Problem where it cannot be read."""
    try:
        yield from READERS[found.kind](found, data)
    except (
        CorruptCheckpoint,
        CorruptEpochs,
        CorruptSnapshot,
        BadMetaProperties,
        ValueError,
    ) as error:
        yield Problem(str(error))
    except KafkaError as error:
        yield Problem(error.message or str(error))


def offset_entries(base_offset: int, data: bytes) -> Iterator[tuple[int, int]]:
    """(offset, position) of an offset index, up to the zeros it was preallocated with."""
    whole = memoryview(data)[: len(data) // 8 * 8]
    for number, (relative, position) in enumerate(offset_index.ENTRY.iter_unpack(whole)):
        if (number and not relative) or (not relative and not position):
            return
        yield base_offset + relative, position


def time_entries(base_offset: int, data: bytes) -> Iterator[tuple[int, int]]:
    """(timestamp, offset) of a time index, up to the zeros it was preallocated with."""
    whole = memoryview(data)[: len(data) // 12 * 12]
    for timestamp, relative in time_index.ENTRY.iter_unpack(whole):
        if not timestamp and not relative:
            return
        yield timestamp, base_offset + relative


def aborted_entries(data: bytes) -> Iterator[tuple[int, int, int, int, int]]:
    """(version, producer id, first, last, last stable offset) of a transaction index."""
    size = transaction_index.ENTRY.size
    yield from transaction_index.ENTRY.iter_unpack(memoryview(data)[: len(data) // size * size])


def _offset_index(found: Found, data: bytes) -> Rows:
    for offset, position in offset_entries(found.offset, data):
        yield Row("offsetIndexEntry", {"offset": offset, "position": position})
    yield from _left_over(data, offset_index.ENTRY.size)


def _time_index(found: Found, data: bytes) -> Rows:
    for timestamp, offset in time_entries(found.offset, data):
        yield Row("timeIndexEntry", {"timestamp": timestamp, "offset": offset})
    yield from _left_over(data, time_index.ENTRY.size)


def _transaction_index(found: Found, data: bytes) -> Rows:
    for version, producer_id, first, last, stable in aborted_entries(data):
        yield Row(
            "abortedTransaction",
            {
                "version": version,
                "producerId": producer_id,
                "firstOffset": first,
                "lastOffset": last,
                "lastStableOffset": stable,
            },
        )
    yield from _left_over(data, transaction_index.ENTRY.size)


def _left_over(data: bytes, entry_size: int) -> Rows:
    """What is no whole entry; but zeros behind an entry of zeros are room that was not all of use."""
    rest = len(data) % entry_size
    if rest and (len(data) < entry_size or any(data[-rest - entry_size :])):
        yield Problem(f"{rest} bytes after the last whole entry", len(data) - rest)


def _producer_snapshot(found: Found, data: bytes) -> Rows:
    for entry in decode_snapshot(data):
        batch = entry.batches[-1] if entry.batches else None
        first = -1
        if batch is not None and batch.last_sequence >= 0:
            first = (batch.last_sequence - batch.offset_delta) & (2**31 - 1)
        yield Row(
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


def _epochs(found: Found, data: bytes) -> Rows:
    for entry in parse_epochs(data):
        yield Row("epoch", {"epoch": entry.epoch, "startOffset": entry.start_offset})


def _offset_checkpoint(found: Found, data: bytes) -> Rows:
    for (topic, partition), offset in checkpoints.parse(data).items():
        yield Row("checkpoint", {"topic": topic, "partition": partition, "offset": offset})


def _meta_properties(found: Found, data: bytes) -> Rows:
    parsed = meta_properties.parse(data)
    fields = {
        "version": parsed.version,
        "cluster.id": parsed.cluster_id,
        "node.id": parsed.node_id,
        "directory.id": None if parsed.directory_id is None else uuid_to_text(parsed.directory_id),
    }
    yield Row("metaProperties", {name: each for name, each in fields.items() if each is not None})


def _quorum_state(found: Found, data: bytes) -> Rows:
    from odradek.protocol.schemas.quorum_state import decode_quorum_state

    decode_quorum_state(data)  # raises InvalidRecord; the file itself has only what its version has
    yield Row("quorumState", json.loads(data))


def _clean_mark(found: Found, data: bytes) -> Rows:
    yield Row("cleanShutdown", {"brokerEpoch": clean_shutdown.parse(data).broker_epoch})


def _partition_metadata(found: Found, data: bytes) -> Rows:
    try:
        topic_id = parse_metadata(data)
    except CorruptMetadata as error:
        yield Problem(str(error))
    else:
        yield Row("partitionMetadata", {"version": 0, "topicId": uuid_to_text(topic_id)})


def _remote_segments(found: Found, data: bytes) -> Rows:
    """A snapshot of what is in the remote tier of a partition (T-48)."""
    from odradek.storage.tiered.metadata_snapshot_file import MetadataSnapshotReader

    snapshot = MetadataSnapshotReader.of_any(
        data, int(found.path.name.removesuffix(".tmp").rpartition("-")[2])
    )
    while snapshot.load():
        pass
    known, partition = snapshot.metadata, snapshot.metadata.partition
    yield Row(
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
        yield Row(
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


def _remote_offsets(found: Found, data: bytes) -> Rows:
    """Up to where each partition of the metadata topic was read (T-47)."""
    from odradek.storage.tiered.metadata_snapshot_file import decode_offsets

    for partition, offset in decode_offsets(data).items():
        yield Row("remoteMetadataOffset", {"partition": partition, "offset": offset})


def _remote_topic(found: Found, data: bytes) -> Rows:
    """Of which metadata topic these offsets are."""
    from odradek.storage.tiered.metadata_snapshot_file import decode_topic_id

    yield Row("remoteMetadataTopic", {"topicId": uuid_to_text(decode_topic_id(data))})


READERS: Mapping[Kind, Callable[[Found, bytes], Rows]] = {
    Kind.OFFSET_INDEX: _offset_index,
    Kind.TIME_INDEX: _time_index,
    Kind.TRANSACTION_INDEX: _transaction_index,
    Kind.PRODUCER_SNAPSHOT: _producer_snapshot,
    Kind.EPOCHS: _epochs,
    Kind.OFFSET_CHECKPOINT: _offset_checkpoint,
    Kind.META_PROPERTIES: _meta_properties,
    Kind.PARTITION_METADATA: _partition_metadata,
    Kind.QUORUM_STATE: _quorum_state,
    Kind.CLEAN_MARK: _clean_mark,
    Kind.REMOTE_SEGMENTS: _remote_segments,
    Kind.REMOTE_OFFSETS: _remote_offsets,
    Kind.REMOTE_TOPIC: _remote_topic,
}
