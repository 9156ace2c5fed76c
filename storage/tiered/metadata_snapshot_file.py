"""What a node keeps of the remote tier's metadata on its disk, so that a restart reads little (T-47, T-48).

One file for each user partition, in KIP-405's form; integers are big-endian:

    magic (uvarint, 0), topic (string: int16 length, UTF-8), topic id (16 bytes),
    metadata-topic-offset (varlong), entries {length (uvarint), type (uvarint), version (uvarint), data}

| type | version | data |
|---|---|---|
| 0 | 1 | a segment: the body of Kafka's RemoteLogSegmentMetadataSnapshotRecord (`segment_row.py`), which has the custom metadata and the mark of an empty transaction index that the KIP's version 0 lacks |
| 1 | 0 | the partition's deletion: broker id (int32), event timestamp (int64), state (int8) |
| 2 | 0 | ours: a leader epoch (int32) and the last offset of it that was ever copied (int64) |
| 3 | 0 | ours, the last: CRC-32C of all before it (uint32) |

The offset is that of the next record to be read: all before it are in the entries. Those may know of
later ones as well (a snapshot is taken while the topic is read), and take them in again unharmed. The
file is a cache: one that is damaged or not there costs reading the metadata from its beginning. It is
replaced whole (`Files.write_new`: `.tmp`, sync, rename), so a crash leaves the old one or the new one.

`_rlmm_committed_offsets` has a line for each metadata partition that is read: `<partition> <offset>`.
`_rlmm_topic_id` is ours: the id of the topic that all these offsets are of, in Kafka's text form, and a
line feed.
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
from odradek.storage.tiered.metadata import (
    PartitionDeleteState,
    RemotePartitionDeleteMetadata,
    TopicIdPartition,
)
from odradek.storage.tiered.remote_log_metadata_cache import RemoteLogMetadataCache

COMMITTED_OFFSETS = "_rlmm_committed_offsets"
TOPIC_ID = "_rlmm_topic_id"

_MAGIC = 0
_SEGMENT, _DELETION, _HIGHEST, _CRC = range(4)
_VERSIONS = {_SEGMENT: 1, _DELETION: 0, _HIGHEST: 0, _CRC: 0}
_DELETION_DATA, _HIGHEST_DATA, _UINT32 = Struct(">iqb"), Struct(">iq"), Struct(">I")
_TOPIC_LENGTH = Struct(">h")
_CRC_ENTRY_BYTES = 3 + _UINT32.size
_ENTRIES_A_PART, _ENTRIES_A_LOAD = 256, 64
"""Less than a millisecond each."""


def encode_snapshot(metadata: RemoteLogMetadataCache, next_offset: int) -> Iterator[bytes]:
    """The file, in parts of less than a millisecond each, which may be made while more is applied.

    `next_offset` is where to go on in the metadata topic: all before it must have been applied before
    the first part is asked for.
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
    """A file that was read: `metadata` grows with every `load`, then `next_offset` is where to go on.

    Made from the whole file; raises CorruptRemoteData if it is damaged or of another partition. That
    part may run in a thread, it is a checksum over all of it.
    """

    def __init__(self, data: bytes, partition: TopicIdPartition) -> None:
        self.metadata = RemoteLogMetadataCache(partition)
        self._data = data
        self._end = len(data) - _CRC_ENTRY_BYTES
        crc = crc32c(memoryview(data)[: max(self._end, 0)])
        if self._end < 0 or data[self._end :] != _entry(_CRC, _UINT32.pack(crc)):
            raise CorruptRemoteData(
                f"the snapshot of {partition} is cut short, or its CRC is wrong"
            )
        try:
            self.next_offset, self._at = self._read_header(partition)
        except (InvalidFrame, IndexError, ValueError, struct.error) as error:
            raise CorruptRemoteData(f"the snapshot of {partition}: {error}") from None

    def load(self, limit: int = _ENTRIES_A_LOAD) -> bool:
        """Take in some more entries; whether there may be more. Raises CorruptRemoteData."""
        try:
            for _ in range(limit):
                if self._at >= self._end:
                    return False
                self._read_entry()
        except (InvalidFrame, IndexError, ValueError, struct.error) as error:
            raise CorruptRemoteData(f"a snapshot of {self.metadata.partition}: {error}") from None
        return True

    @classmethod
    def of_any(cls, data: bytes, partition: int) -> MetadataSnapshotReader:
        """Of whichever topic the file says. Raises CorruptRemoteData."""
        try:
            topic, topic_id, _ = _identity(data)
        except (InvalidFrame, IndexError, ValueError, struct.error) as error:
            raise CorruptRemoteData(f"no snapshot of remote segments: {error}") from None
        return cls(data, TopicIdPartition(topic_id, topic, partition))

    def _read_header(self, partition: TopicIdPartition) -> tuple[int, int]:
        topic, topic_id, at = _identity(self._data)
        if (topic, topic_id) != (partition.topic, partition.topic_id):
            raise InvalidFrame("it is of another topic")
        return read_varlong(self._data, at)

    def _read_entry(self) -> None:
        length, at = read_uvarint(self._data, self._at)
        self._at = at + length
        kind, at = read_uvarint(self._data, at)
        version, at = read_uvarint(self._data, at)
        data = self._data[at : self._at]
        if _VERSIONS.get(kind, version) != version:
            raise InvalidFrame(f"an entry of type {kind} has version {version}")
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
    """Topic, topic id, and where the file goes on."""
    magic, at = read_uvarint(data, 0)
    if magic != _MAGIC:
        raise InvalidFrame(f"magic {magic} is not known")
    (length,) = _TOPIC_LENGTH.unpack_from(data, at)
    at += _TOPIC_LENGTH.size
    end = at + max(length, 0)
    return data[at:end].decode(), UUID(bytes=data[end : end + 16]), end + 16


def encode_offsets(offsets: Mapping[int, int]) -> bytes:
    """`_rlmm_committed_offsets` (T-47): a line for each metadata partition, with the next offset."""
    return "".join(f"{partition} {offset}\n" for partition, offset in offsets.items()).encode()


def decode_offsets(data: bytes) -> dict[int, int]:
    """Raises CorruptRemoteData for what is no such file."""
    text = data.decode("ascii", "replace")
    if not re.fullmatch(r"(?:\d{1,9} \d{1,18}\n)*", text, re.ASCII):
        raise CorruptRemoteData(f"{COMMITTED_OFFSETS} is damaged: {text[:80]!r}")
    return {int(partition): int(offset) for partition, offset in map(str.split, text.splitlines())}


def encode_topic_id(topic_id: UUID) -> bytes:
    """`_rlmm_topic_id`."""
    return f"{uuid_to_text(topic_id)}\n".encode()


def decode_topic_id(data: bytes) -> UUID:
    """Raises CorruptRemoteData for what is no such file."""
    try:
        topic_id = uuid_from_text(data.decode("ascii", "replace").removesuffix("\n"))
    except ValueError as error:
        raise CorruptRemoteData(f"{TOPIC_ID} is damaged: {error}") from None
    if encode_topic_id(topic_id) != data:
        raise CorruptRemoteData(f"{TOPIC_ID} is damaged: {data[:80]!r}")
    return topic_id


def _entry(kind: int, data: bytes) -> bytes:
    head = bytearray()
    append_uvarint(head, len(data) + 2)
    head.append(kind)
    head.append(_VERSIONS[kind])
    return bytes(head) + data


def _append_varlong(out: bytearray, value: int) -> None:
    append_uvarint(out, value << 1 ^ value >> 63)
