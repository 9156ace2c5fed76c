"""`odradek dump --remote-log-metadata`: the events of `__remote_log_metadata`, one per line (T-50).

The format is that of RemoteLogMetadataFormatter in Kafka 4.x:

    partition: 0, offset: 17, value: RemoteLogSegmentMetadata{remoteLogSegmentId=…, startOffset=0, …}

or that of KIP-405, where properties select the fields at the beginning of a line:

    partition:0,message-offset:17,type:RemoteLogSegmentMetadata,version:0,event-value:{…}
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterator, Mapping
from contextlib import closing

from odradek.cli import dump_segments
from odradek.cli.dump_files import DumpFile
from odradek.cli.dump_output import FileProblem
from odradek.protocol.errors import CorruptBatch
from odradek.protocol.records.records import Record, decode
from odradek.protocol.uuids import uuid_to_text
from odradek.seams.files import Files
from odradek.seams.values import value_class
from odradek.storage.directories import names
from odradek.storage.directories.names import NotAPartition
from odradek.storage.tiered import metadata_records
from odradek.storage.tiered.errors import RemoteStorageError
from odradek.storage.tiered.segment_metadata import (
    RemoteEvent,
    RemoteLogSegmentId,
    RemoteLogSegmentMetadata,
    RemoteLogSegmentMetadataUpdate,
    RemotePartitionDeleteMetadata,
    TopicIdPartition,
)

PROPERTIES = (
    "print.partition",
    "print.message.offset",
    "print.version",
    "print.all.event.value.fields",
)
"""Properties of KIP-405's formatter; all default to false."""


@value_class
class RecordLocation:
    """Partition of a record (-1 if the directory is not a partition's), its offset and its version."""

    partition: int
    offset: int
    version: int


Format = Callable[[RecordLocation, RemoteEvent], str]


def lines(
    files: Files, found: DumpFile, show: Format, start: int = 0, end: int | None = None
) -> Iterator[str | FileProblem]:
    """Yield one line for each record of a segment from `start` to `end`, both inclusive."""
    partition = _partition_of(found)
    with closing(files.open(found.path)) as file:
        for batch in dump_segments.batches(file, file.size):
            if isinstance(batch, FileProblem):
                yield batch
                return
            try:
                batch.check()
                records = () if batch.is_control else decode(batch)
            except (CorruptBatch, ValueError) as error:
                yield FileProblem(f"records cannot be read: {error}", batch.position)
                continue
            for record in records:
                if start <= record.offset and (end is None or record.offset <= end):
                    yield _line(record, partition, show)


def _line(record: Record, partition: int, show: Format) -> str | FileProblem:
    try:
        if record.value is None:
            return FileProblem(f"offset {record.offset}: the record has no value")
        event = metadata_records.decode(record.value)
        return show(RecordLocation(partition, record.offset, metadata_records.VERSION), event)
    except RemoteStorageError as error:
        return FileProblem(f"offset {record.offset}: {error.message}")


def _partition_of(found: DumpFile) -> int:
    try:
        return names.parse(found.path.parent.name).topic_partition.partition
    except NotAPartition:
        return -1


def as_kafka(where: RecordLocation, event: RemoteEvent) -> str:
    """Format an event as Kafka 4.x does, with the `toString` of its classes."""
    return f"partition: {where.partition}, offset: {where.offset}, value: {_as_java(event)}"


def _as_java(event: RemoteEvent) -> str:
    if isinstance(event, RemoteLogSegmentMetadata):
        epochs = ", ".join(f"{each.epoch}={each.start_offset}" for each in event.epochs)
        fields: Mapping[str, object] = {
            "remoteLogSegmentId": _java_id(event.id),
            "startOffset": event.start_offset,
            "endOffset": event.end_offset,
            "brokerId": event.broker_id,
            "maxTimestampMs": event.max_timestamp_ms,
            "eventTimestampMs": event.event_timestamp_ms,
            "segmentLeaderEpochs": f"{{{epochs}}}",
            "segmentSizeInBytes": event.size_bytes,
            "customMetadata": _java_custom(event.custom_metadata),
            "state": event.state.name,
            "txnIdxEmpty": str(event.txn_index_empty).lower(),
        }
    elif isinstance(event, RemoteLogSegmentMetadataUpdate):
        fields = {
            "remoteLogSegmentId": _java_id(event.id),
            "customMetadata": _java_custom(event.custom_metadata),
            "state": event.state.name,
            "eventTimestampMs": event.event_timestamp_ms,
            "brokerId": event.broker_id,
        }
    else:
        fields = {
            "topicPartition": event.partition,
            "state": event.state.name,
            "eventTimestampMs": event.event_timestamp_ms,
            "brokerId": event.broker_id,
        }
    shown = ", ".join(f"{name}={value}" for name, value in fields.items())
    return f"{type(event).__name__}{{{shown}}}"


def _java_id(id_: RemoteLogSegmentId) -> str:
    return f"RemoteLogSegmentId{{topicIdPartition={id_.partition}, id={uuid_to_text(id_.id)}}}"


def _java_custom(data: bytes | None) -> str:
    return "Optional.empty" if data is None else f"Optional[CustomMetadata{{{len(data)} bytes}}]"


def as_kip_405(chosen: Container[str]) -> Format:
    """Create a formatter for KIP-405's format, with the chosen `PROPERTIES`.

    The leader epoch of the KIP is the broker id in the records of Kafka 4.x and Odradek.
    """
    is_whole = "print.all.event.value.fields" in chosen

    def show(where: RecordLocation, event: RemoteEvent) -> str:
        parts = []
        if "print.partition" in chosen:
            parts.append(f"partition:{where.partition}")
        if "print.message.offset" in chosen:
            parts.append(f"message-offset:{where.offset}")
        parts.append(f"type:{_KIP_NAMES[type(event)]}")
        if "print.version" in chosen:
            parts.append(f"version:{where.version}")
        fields = _kip_fields(event, is_whole=is_whole)
        shown = ",".join(f"{name}:{value}" for name, value in fields.items())
        return ",".join([*parts, f"event-value:{{{shown}}}"])

    return show


_KIP_NAMES: Mapping[type, str] = {
    RemoteLogSegmentMetadata: "RemoteLogSegmentMetadata",
    RemoteLogSegmentMetadataUpdate: "RemoteLogSegmentMetadataUpdate",
    RemotePartitionDeleteMetadata: "DeletePartitionState",
}


def _kip_fields(event: RemoteEvent, *, is_whole: bool) -> dict[str, object]:
    fields: dict[str, object] = {}
    more: dict[str, object] = {"event-timestamp": event.event_timestamp_ms}
    if isinstance(event, RemotePartitionDeleteMetadata):
        fields["topic-id-partition"] = f"{{{_kip_partition(event.partition)}}}"
        fields["epoch"] = event.broker_id
        fields["remote-partition-delete-state"] = event.state.name
        return {**fields, **(more if is_whole else {})}
    id_ = f"id:{uuid_to_text(event.id.id)},{_kip_partition(event.partition)}"
    fields["remote-log-segment-id"] = f"{{{id_}}}"
    if isinstance(event, RemoteLogSegmentMetadata):
        fields["start-offset"] = event.start_offset
        fields["end-offset"] = event.end_offset
        epochs = ",".join(f"{each.epoch}:{each.start_offset}" for each in event.epochs)
        more["max-timestamp"] = event.max_timestamp_ms
        more["segment-leader-epochs"] = f"{{{epochs}}}"
        more["segment-size-in-bytes"] = event.size_bytes
        more["txn-index-empty"] = str(event.txn_index_empty).lower()
    custom = event.custom_metadata
    more["custom-metadata"] = "null" if custom is None else f"{len(custom)} bytes"
    fields["leader-epoch"] = event.broker_id
    fields["remote-log-segment-state"] = event.state.name
    return {**fields, **(more if is_whole else {})}


def _kip_partition(partition: TopicIdPartition) -> str:
    topic_id = uuid_to_text(partition.topic_id)
    return f"topicId:{topic_id},topicName:{partition.topic},partition:{partition.partition}"
