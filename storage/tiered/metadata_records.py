"""Record values of `__remote_log_metadata` in Kafka 4.x's format (T-45, T-46).

Kafka can read these records, and its records can be read here. Unknown tagged fields are ignored,
so that a later Kafka may add some. Values that Kafka's classes reject are rejected here too.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Any

from odradek.client.partitioner import murmur2
from odradek.protocol.errors import KafkaError
from odradek.protocol.schemas import remote_log_records as wire
from odradek.protocol.schemas import serde
from odradek.protocol.topics import name_error
from odradek.seams.files import Buffer
from odradek.storage.tiered.errors import CorruptRemoteData, RemoteStorageError
from odradek.storage.tiered.segment_metadata import (
    EpochStart,
    PartitionDeleteState,
    RemoteEvent,
    RemoteLogSegmentId,
    RemoteLogSegmentMetadata,
    RemoteLogSegmentMetadataUpdate,
    RemotePartitionDeleteMetadata,
    SegmentState,
    TopicIdPartition,
)

METADATA_TOPIC = "__remote_log_metadata"
_INT = 0xFFFFFFFF
_LONG = 0xFFFFFFFFFFFFFFFF

VERSION = 0
"""Version of all record types."""
_UNLESS_FINISHED = b""
"""Custom metadata that marks a DELETE_SEGMENT_STARTED event as `unless_finished`; Kafka ignores it
there."""


class UnknownRemoteRecord(RemoteStorageError):
    """The record has an unknown type or version of a later Kafka; readers skip it."""

    retryable = False


def metadata_partition(partition: TopicIdPartition, count: int) -> int:
    """Return the metadata partition, of `count`, with the metadata of a partition, as in Kafka.

    It is murmur2 of Java's `Objects.hash` of the lower and the upper half of the topic id, and the partition.
    """
    hashed = 1
    for part in (partition.topic_id.int & _LONG, partition.topic_id.int >> 64):
        hashed = (31 * hashed + ((part ^ part >> 32) & _INT)) & _INT
    hashed = (31 * hashed + partition.partition) & _INT
    return (murmur2(hashed.to_bytes(4, "big")) & 0x7FFFFFFF) % count


def encode(event: RemoteEvent) -> bytes:
    """Record value of the event."""
    return serde.encode_remote_log_record(to_record(event))


def decode(value: Buffer) -> RemoteEvent:
    """Event in a record value. Raises UnknownRemoteRecord and CorruptRemoteData."""
    try:
        return from_record(serde.decode_remote_log_record(value))
    except serde.UnknownRecord as error:
        raise UnknownRemoteRecord(error.message) from None
    except (KafkaError, ValueError) as error:
        reason = error.message if isinstance(error, KafkaError) else error
        raise CorruptRemoteData(f"invalid record in {METADATA_TOPIC}: {reason}") from None


def to_record(event: RemoteEvent) -> Any:
    """Convert an event to the record class of its schema."""
    if isinstance(event, RemoteLogSegmentMetadata):
        return wire.RemoteLogSegmentMetadataRecord(
            remote_log_segment_id=_segment_id(event.id),
            start_offset=event.start_offset,
            end_offset=event.end_offset,
            broker_id=event.broker_id,
            max_timestamp_ms=event.max_timestamp_ms,
            event_timestamp_ms=event.event_timestamp_ms,
            segment_leader_epochs=tuple(
                wire.SegmentLeaderEpoch(leader_epoch=each.epoch, offset=each.start_offset)
                for each in event.epochs
            ),
            segment_size_in_bytes=event.size_bytes,
            custom_metadata=event.custom_metadata,
            remote_log_segment_state=int(event.state),
            txn_index_empty=event.txn_index_empty,
            tiered_epoch=event.tiered_epoch,
        )
    if isinstance(event, RemoteLogSegmentMetadataUpdate):
        return wire.RemoteLogSegmentMetadataUpdateRecord(
            remote_log_segment_id=_segment_id(event.id),
            broker_id=event.broker_id,
            event_timestamp_ms=event.event_timestamp_ms,
            custom_metadata=_UNLESS_FINISHED if event.unless_finished else event.custom_metadata,
            remote_log_segment_state=int(event.state),
        )
    return wire.RemotePartitionDeleteMetadataRecord(
        topic_id_partition=_partition(event.partition),
        broker_id=event.broker_id,
        event_timestamp_ms=event.event_timestamp_ms,
        remote_partition_delete_state=int(event.state),
    )


def from_record(record: Any) -> RemoteEvent:
    """Convert a schema record to an event. Raises ValueError for invalid fields."""
    if isinstance(record, wire.RemoteLogSegmentMetadataRecord):
        return _metadata(record)
    if isinstance(record, wire.RemoteLogSegmentMetadataUpdateRecord):
        state, custom = SegmentState(record.remote_log_segment_state), _kept(record.custom_metadata)
        gives_up = state is SegmentState.DELETE_SEGMENT_STARTED and custom == _UNLESS_FINISHED
        return RemoteLogSegmentMetadataUpdate(
            _known_segment(record.remote_log_segment_id),
            record.broker_id,
            record.event_timestamp_ms,
            state,
            None if gives_up else custom,
            unless_finished=gives_up,
        )
    if isinstance(record, wire.RemotePartitionDeleteMetadataRecord):
        return RemotePartitionDeleteMetadata(
            _known_partition(record.topic_id_partition),
            record.broker_id,
            record.event_timestamp_ms,
            PartitionDeleteState(record.remote_partition_delete_state),
        )
    raise ValueError(f"{type(record).__name__} has no partition")


def _metadata(record: wire.RemoteLogSegmentMetadataRecord) -> RemoteLogSegmentMetadata:
    epochs = tuple(
        EpochStart(each.leader_epoch, each.offset) for each in record.segment_leader_epochs
    )
    if not 0 <= record.start_offset <= record.end_offset:
        raise ValueError(f"invalid offsets {record.start_offset} to {record.end_offset}")
    if record.segment_size_in_bytes < 0:
        raise ValueError(f"a segment of {record.segment_size_in_bytes} bytes")
    if not epochs or any(a.epoch >= b.epoch for a, b in pairwise(epochs)):
        raise ValueError(f"invalid leader epochs {[each.epoch for each in epochs]}")
    return RemoteLogSegmentMetadata(
        _known_segment(record.remote_log_segment_id),
        record.start_offset,
        record.end_offset,
        record.broker_id,
        record.max_timestamp_ms,
        record.event_timestamp_ms,
        epochs,
        record.segment_size_in_bytes,
        SegmentState(record.remote_log_segment_state),
        _kept(record.custom_metadata),
        record.txn_index_empty,
        record.tiered_epoch,
    )


def _kept(data: Buffer | None) -> bytes | None:
    """Copy of the bytes, independent of the batch buffer."""
    return None if data is None else bytes(data)


def _segment_id(id_: RemoteLogSegmentId) -> wire.RemoteLogSegmentId:
    return wire.RemoteLogSegmentId(topic_id_partition=_partition(id_.partition), id=id_.id)


def _partition(partition: TopicIdPartition) -> wire.TopicIdPartition:
    return wire.TopicIdPartition(
        name=partition.topic, id=partition.topic_id, partition=partition.partition
    )


def _known_segment(id_: wire.RemoteLogSegmentId) -> RemoteLogSegmentId:
    return RemoteLogSegmentId(_known_partition(id_.topic_id_partition), id_.id)


def _known_partition(partition: wire.TopicIdPartition) -> TopicIdPartition:
    """The partition, whose names become names of files and objects. Raises ValueError if they are invalid."""
    if (error := name_error(partition.name)) is not None:
        raise ValueError(error)
    if partition.partition < 0 or not partition.id.int:
        raise ValueError(f"partition {partition.partition} of a topic with the id {partition.id}")
    return TopicIdPartition(partition.id, partition.name, partition.partition)
