"""Manifest of a segment: the last object of a copy, which describes the others.

A copy is complete if its manifest exists; objects without one are dangling. The manifests alone are
enough to read the store: they have offsets, leader epochs and objects. A manifest is one line of
JSON. Unknown fields of a later version are ignored; a later `version` cannot be read.
"""

from __future__ import annotations

import json
from base64 import b64decode, b64encode
from collections.abc import Mapping
from typing import Any

from odradek.protocol.uuids import uuid_from_text, uuid_to_text
from odradek.seams.files import Buffer
from odradek.seams.values import value_class
from odradek.storage.tiered.chunks import ChunkTable, Compression
from odradek.storage.tiered.segment_metadata import (
    EpochStart,
    RemoteLogSegmentId,
    RemoteLogSegmentMetadata,
    SegmentState,
    TopicIdPartition,
)

VERSION = 1


@value_class
class StoredObject:
    """Size and checksum of one object of a segment."""

    size: int
    crc32c: int


@value_class
class ChunkedLog:
    """Chunks of the log's object, if the log is not stored unchanged."""

    compression: Compression
    chunk_bytes: int
    stored_sizes: tuple[int, ...]


@value_class
class WrappedKey:
    """Data key of the segment, wrapped with the key `key_id`."""

    key_id: str
    wrapped: bytes


@value_class
class Manifest:
    """Content of a manifest. `objects` are by suffix (`.log`, …); `tiered_epoch` is that of
    KIP-950."""

    metadata: RemoteLogSegmentMetadata
    """Metadata of the finished copy."""
    objects: Mapping[str, StoredObject]
    chunks: ChunkedLog | None = None
    key: WrappedKey | None = None
    cluster_id: str = ""
    tiered_epoch: int = 0

    def chunk_table(self) -> ChunkTable | None:
        """Chunk table of the log, or None if the log is stored unchanged. Raises ValueError if it
        does not match the log."""
        if self.chunks is None:
            return None
        chunks = self.chunks
        return ChunkTable(self.metadata.size_bytes, chunks.chunk_bytes, chunks.stored_sizes)

    def render(self) -> bytes:
        segment, partition = self.metadata, self.metadata.partition
        fields: dict[str, Any] = {
            "version": VERSION,
            "cluster_id": self.cluster_id,
            "topic": partition.topic,
            "partition": partition.partition,
            "topic_id": uuid_to_text(partition.topic_id),
            "segment_id": uuid_to_text(segment.id.id),
            "start_offset": segment.start_offset,
            "end_offset": segment.end_offset,
            "size_bytes": segment.size_bytes,
            "max_timestamp_ms": segment.max_timestamp_ms,
            "copied_ms": segment.event_timestamp_ms,
            "broker_id": segment.broker_id,
            "leader_epochs": [[each.epoch, each.start_offset] for each in segment.epochs],
            "tiered_epoch": self.tiered_epoch,
            "txn_index_empty": segment.txn_index_empty,
            "objects": {
                suffix: {"size": each.size, "crc32c": f"{each.crc32c:08x}"}
                for suffix, each in self.objects.items()
            },
        }
        if segment.custom_metadata is not None:
            fields["custom_metadata"] = b64encode(segment.custom_metadata).decode()
        if self.chunks is not None:
            fields["chunks"] = {
                "compression": self.chunks.compression.value,
                "bytes": self.chunks.chunk_bytes,
                "stored_sizes": list(self.chunks.stored_sizes),
            }
        if self.key is not None:
            fields["encryption"] = {
                "key_id": self.key.key_id,
                "data_key": b64encode(self.key.wrapped).decode(),
            }
        return json.dumps(fields, separators=(",", ":")).encode() + b"\n"

    @classmethod
    def parse(cls, data: Buffer) -> Manifest:
        """Parse a manifest. Raises ValueError for invalid content or a later version."""
        try:
            fields = json.loads(bytes(data))
            if fields["version"] != VERSION:
                raise ValueError(f"unknown manifest version {fields['version']}")
            return cls(
                metadata=_segment(fields),
                objects={
                    suffix: StoredObject(each["size"], int(each["crc32c"], 16))
                    for suffix, each in fields["objects"].items()
                },
                chunks=_chunks(fields.get("chunks")),
                key=_key(fields.get("encryption")),
                cluster_id=fields["cluster_id"],
                tiered_epoch=fields["tiered_epoch"],
            )
        except (KeyError, TypeError, AttributeError, RecursionError) as error:
            raise ValueError(f"invalid manifest: {error!r}") from error


def _segment(fields: dict[str, Any]) -> RemoteLogSegmentMetadata:
    partition = TopicIdPartition(
        uuid_from_text(fields["topic_id"]), fields["topic"], fields["partition"]
    )
    custom = fields.get("custom_metadata")
    return RemoteLogSegmentMetadata(
        id=RemoteLogSegmentId(partition, uuid_from_text(fields["segment_id"])),
        start_offset=fields["start_offset"],
        end_offset=fields["end_offset"],
        broker_id=fields["broker_id"],
        max_timestamp_ms=fields["max_timestamp_ms"],
        event_timestamp_ms=fields["copied_ms"],
        epochs=tuple(EpochStart(epoch, start) for epoch, start in fields["leader_epochs"]),
        size_bytes=fields["size_bytes"],
        state=SegmentState.COPY_SEGMENT_FINISHED,
        custom_metadata=None if custom is None else b64decode(custom),
        txn_index_empty=fields["txn_index_empty"],
    )


def _chunks(fields: dict[str, Any] | None) -> ChunkedLog | None:
    if fields is None:
        return None
    return ChunkedLog(
        Compression(fields["compression"]), fields["bytes"], tuple(fields["stored_sizes"])
    )


def _key(fields: dict[str, Any] | None) -> WrappedKey | None:
    if fields is None:
        return None
    return WrappedKey(fields["key_id"], b64decode(fields["data_key"]))
