"""Files with a node's remote log segment metadata, so that a restart reads little of the topic
(T-47, T-48).

There is one file per user partition, in KIP-405's format; integers are big-endian:

    magic (uvarint, 0), topic (string: int16 length, UTF-8), topic id (16 bytes),
    metadata-topic-offset (varlong), entries {length (uvarint), type (uvarint), version (uvarint), data}

| type | version | data |
|---|---|---|
| 0 | 1 | a segment: the body of Kafka's RemoteLogSegmentMetadataSnapshotRecord (`segment_row.py`), with custom metadata and the flag of an empty transaction index, which version 0 of the KIP lacks |
| 1 | 0 | the partition's deletion: broker id (int32), event timestamp (int64), state (int8) |
| 2 | 0 | Odradek's: a leader epoch (int32) and its highest copied offset (int64) |
| 3 | 0 | Odradek's, always last: CRC-32C of all preceding bytes (uint32) |

The offset is the next one to read: the entries include all records before it. They may include
later ones, which are applied again without harm, because the snapshot is taken while the topic is
read. The file is a cache: if it is damaged or missing, the metadata is read from the start of the
topic. It is replaced as a whole (`Files.write_new`: `.tmp`, sync, rename), so a crash leaves the
old or the new file.

`_rlmm_committed_offsets` has a line per metadata partition: `<partition> <offset>`.
`_rlmm_topic_id` is Odradek's: the id of the topic that these offsets belong to, in Kafka's text
form, and a line feed.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Iterator, Mapping
from struct import Struct
from uuid import UUID

from odradek.protocol.codec.primitives import append_uvarint
from odradek.protocol.errors import InvalidFrame
from odradek.protocol.framing import read_uvarint
from odradek.protocol.records.crc32c import crc32c
from odradek.protocol.records.records import read_varlong
from odradek.protocol.uuids import uuid_from_text, uuid_to_text
from odradek.storage.tiered.errors import CorruptRemoteData
from odradek.storage.tiered.remote_log_metadata_cache import RemoteLogMetadataCache
from odradek.storage.tiered.segment_metadata import (
    PartitionDeleteState,
    RemotePartitionDeleteMetadata,
    TopicIdPartition,
)

COMMITTED_OFFSETS = "_rlmm_committed_offsets"
TOPIC_ID = "_rlmm_topic_id"

_MAGIC = 0
_SEGMENT, _DELETION, _HIGHEST, _CRC = range(4)
_VERSIONS = {_SEGMENT: 1, _DELETION: 0, _HIGHEST: 0, _CRC: 0}
_DELETION_DATA, _HIGHEST_DATA, _UINT32 = Struct(">iqb"), Struct(">iq"), Struct(">I")
_TOPIC_LENGTH = Struct(">h")
_CRC_ENTRY_BYTES = 3 + _UINT32.size
_ENTRIES_A_PART, _ENTRIES_A_LOAD = 256, 64
"""Numbers of entries that take less than a millisecond."""


def encode_snapshot(metadata: RemoteLogMetadataCache, next_offset: int) -> Iterator[bytes]:
    """Encode the file in chunks of less than a millisecond each; events may be applied between two
    chunks.

    `next_offset` is the next offset of the metadata topic to read. All records before it must be
    applied before the first chunk is requested.
    """
    crc = 0
    for part in _parts(metadata, next_offset):
        crc = crc32c(part, crc)
        yield bytes(part)
    yield _entry(_CRC, _UINT32.pack(crc))


def _parts(metadata: RemoteLogMetadataCache, next_offset: int) -> Iterator[bytearray]:
    part = bytearray([_MAGIC])
    topic = metadata.partition.topic.encode()
    part += _TOPIC_LENGTH.pack(len(topic)) + topic + metadata.partition.topic_id.bytes
    _append_varlong(part, next_offset)
    if metadata.deletion is not None:
        event = metadata.deletion
        data = _DELETION_DATA.pack(event.broker_id, event.event_timestamp_ms, event.state)
        part += _entry(_DELETION, data)
    for epoch, offset in list(metadata.highest_offsets.items()):
        part += _entry(_HIGHEST, _HIGHEST_DATA.pack(epoch, offset))
    for number, row in enumerate(metadata.rows()):
        part += _entry(_SEGMENT, row)
        if number % _ENTRIES_A_PART == _ENTRIES_A_PART - 1:
            yield part
            part = bytearray()
    yield part


class MetadataSnapshotReader:
    """Reads a snapshot file in steps: `metadata` grows with every `load`; `next_offset` is where
    reading the topic continues.

    The constructor checks the CRC of the whole file and may run in a thread. Raises
    CorruptRemoteData if the file is damaged or belongs to another partition.
    """

    def __init__(self, data: bytes, partition: TopicIdPartition) -> None:
        self.metadata = RemoteLogMetadataCache(partition)
        self._data = data
        self._end = len(data) - _CRC_ENTRY_BYTES
        crc = crc32c(memoryview(data)[: max(self._end, 0)])
        if self._end < 0 or data[self._end :] != _entry(_CRC, _UINT32.pack(crc)):
            raise CorruptRemoteData(
                f"the snapshot of {partition} is truncated, or its CRC is wrong"
            )
        try:
            self.next_offset, self._at = self._read_header(partition)
        except (InvalidFrame, IndexError, ValueError, struct.error) as error:
            raise CorruptRemoteData(f"invalid snapshot of {partition}: {error}") from None

    def load(self, limit: int = _ENTRIES_A_LOAD) -> bool:
        """Read up to `limit` entries; whether there may be more. Raises CorruptRemoteData."""
        try:
            for _ in range(limit):
                if self._at >= self._end:
                    return False
                self._read_entry()
        except (InvalidFrame, IndexError, ValueError, struct.error) as error:
            raise CorruptRemoteData(
                f"invalid snapshot of {self.metadata.partition}: {error}"
            ) from None
        return True

    @classmethod
    def of_any(cls, data: bytes, partition: int) -> MetadataSnapshotReader:
        """Read a file of any topic. Raises CorruptRemoteData."""
        try:
            topic, topic_id, _ = _identity(data)
        except (InvalidFrame, IndexError, ValueError, struct.error) as error:
            raise CorruptRemoteData(f"invalid snapshot of remote log metadata: {error}") from None
        return cls(data, TopicIdPartition(topic_id, topic, partition))

    def _read_header(self, partition: TopicIdPartition) -> tuple[int, int]:
        topic, topic_id, at = _identity(self._data)
        if (topic, topic_id) != (partition.topic, partition.topic_id):
            raise InvalidFrame("the snapshot belongs to another topic")
        return read_varlong(self._data, at)

    def _read_entry(self) -> None:
        length, at = read_uvarint(self._data, self._at)
        self._at = at + length
        kind, at = read_uvarint(self._data, at)
        version, at = read_uvarint(self._data, at)
        data = self._data[at : self._at]
        if _VERSIONS.get(kind, version) != version:
            raise InvalidFrame(f"unsupported version {version} of entry type {kind}")
        if kind == _SEGMENT:
            self.metadata.restore(data)
        elif kind == _DELETION:
            broker_id, timestamp_ms, state = _DELETION_DATA.unpack(data)
            self.metadata.deletion = RemotePartitionDeleteMetadata(
                self.metadata.partition, broker_id, timestamp_ms, PartitionDeleteState(state)
            )
        elif kind == _HIGHEST:
            self.metadata.restore_highest(*_HIGHEST_DATA.unpack(data))


def _identity(data: bytes) -> tuple[str, UUID, int]:
    """Topic, topic id, and the position behind them."""
    magic, at = read_uvarint(data, 0)
    if magic != _MAGIC:
        raise InvalidFrame(f"unknown magic {magic}")
    (length,) = _TOPIC_LENGTH.unpack_from(data, at)
    at += _TOPIC_LENGTH.size
    end = at + max(length, 0)
    return data[at:end].decode(), UUID(bytes=data[end : end + 16]), end + 16


def encode_offsets(offsets: Mapping[int, int]) -> bytes:
    """Content of `_rlmm_committed_offsets` (T-47): a line per metadata partition, with the next
    offset."""
    return "".join(f"{partition} {offset}\n" for partition, offset in offsets.items()).encode()


def decode_offsets(data: bytes) -> dict[int, int]:
    """Next offset by metadata partition. Raises CorruptRemoteData for an invalid file."""
    text = data.decode("ascii", "replace")
    if not re.fullmatch(r"(?:\d{1,9} \d{1,18}\n)*", text, re.ASCII):
        raise CorruptRemoteData(f"{COMMITTED_OFFSETS} is corrupt: {text[:80]!r}")
    return {int(partition): int(offset) for partition, offset in map(str.split, text.splitlines())}


def encode_topic_id(topic_id: UUID) -> bytes:
    """Encode the file `_rlmm_topic_id`."""
    return f"{uuid_to_text(topic_id)}\n".encode()


def decode_topic_id(data: bytes) -> UUID:
    """Topic id in the file. Raises CorruptRemoteData for an invalid file."""
    try:
        topic_id = uuid_from_text(data.decode("ascii", "replace").removesuffix("\n"))
    except ValueError as error:
        raise CorruptRemoteData(f"{TOPIC_ID} is corrupt: {error}") from None
    if encode_topic_id(topic_id) != data:
        raise CorruptRemoteData(f"{TOPIC_ID} is corrupt: {data[:80]!r}")
    return topic_id


def _entry(kind: int, data: bytes) -> bytes:
    head = bytearray()
    append_uvarint(head, len(data) + 2)
    head.append(kind)
    head.append(_VERSIONS[kind])
    return bytes(head) + data


def _append_varlong(out: bytearray, value: int) -> None:
    append_uvarint(out, value << 1 ^ value >> 63)
