"""What the custom metadata of our copies says (KIP-405): a version, and flags.

    CHUNKED    the log's object is a row of chunks, which the manifest knows: it is not the log itself
    ENCRYPTED  so are all its objects
    DENSE      each of the segment's offsets has one record, and no batch was broken, as it was copied

None is that of a log which is stored as it is, and of which nothing is said: Kafka's LocalTieredStorage may have
put it there. Flags that a later version adds are passed over.

Whether a log that is copied has one record for each of its offsets: then who asks for nothing but offsets,
or how many there are, need not read it.

It has not where compaction or a transaction's marker took an offset; and a log with a batch that is broken, as far
as its CRC tells, is nothing that anything is said of. Without I/O: pieces come in, in their order.
"""

from __future__ import annotations

from struct import Struct

from odradek.protocol.records.batch import (
    CONTROL_MASK,
    CRC_START,
    HEADER_SIZE,
    LOG_OVERHEAD,
    MAGIC,
)
from odradek.protocol.records.crc32c import crc32c
from odradek.seams.files import Buffer
from odradek.storage.tiered.errors import RemoteStorageError
from odradek.storage.tiered.metadata import RemoteLogSegmentMetadata

CHUNKED, ENCRYPTED, DENSE = 1, 2, 4

_VERSION = 1
_SIZE = 2


def custom_metadata(flags: int) -> bytes | None:
    return bytes([_VERSION, flags]) if flags else None


def flags_of(metadata: RemoteLogSegmentMetadata) -> int:
    """Raises RemoteStorageError for what is not ours: the log's object may be anything."""
    custom = metadata.custom_metadata
    if not custom:
        return 0
    if not _is_ours(custom):
        raise RemoteStorageError(
            f"{metadata.id} was copied by a later version or another RemoteStorageManager"
        )
    return custom[1]


def needs_manifest(custom: bytes | None) -> bool:
    """Whether the log's object says nothing without."""
    return custom is not None and not (_is_ours(custom) and not custom[1] & CHUNKED)


def is_dense(custom: bytes | None) -> bool:
    """Whether that is known: False for what is not ours."""
    return custom is not None and _is_ours(custom) and bool(custom[1] & DENSE)


def _is_ours(custom: bytes) -> bool:
    return len(custom) == _SIZE and custom[0] == _VERSION


LEAST_BATCH_BYTES = 512
"""On average: of a log with smaller batches nothing is said, since to go through it would take seconds a GB."""
ALWAYS_BYTES = 1 << 20
"""So much of any log is gone through."""
_HEADER = Struct(">qi4xbIhi30xi")
"""Base offset, length, magic, CRC, attributes, last offset delta, count."""


class DensityCheck:
    """See the module. Offsets of the log, the last one inclusive."""

    def __init__(self, start_offset: int, end_offset: int) -> None:
        self._next_offset = start_offset
        self._end_offset = end_offset
        self._may_be = True
        self._header = b""
        """As much as there is of one that a piece cuts in two."""
        self._left = 0
        """So many bytes of the batch are to come."""
        self._crc = self._wanted_crc = 0
        self._fed_bytes = self._batches = 0

    @property
    def is_dense(self) -> bool:
        """Once all of the log was fed."""
        is_whole = not self._header and not self._left
        return self._may_be and is_whole and self._next_offset == self._end_offset + 1

    def feed(self, piece: Buffer) -> None:
        view, at = memoryview(piece), 0
        while self._may_be and at < len(view):
            if self._left:
                part = view[at : at + self._left]
                self._crc = crc32c(part, self._crc)
                self._left -= len(part)
                self._may_be = bool(self._left) or self._crc == self._wanted_crc
            else:
                part = view[at : at + HEADER_SIZE - len(self._header)]
                self._header += part
                if len(self._header) == HEADER_SIZE:
                    header, self._header = self._header, b""
                    self._may_be = self._begins(header)
            at += len(part)
        self._fed_bytes += len(view)
        is_small = self._fed_bytes < self._batches * LEAST_BATCH_BYTES
        if is_small and self._fed_bytes > ALWAYS_BYTES:
            self._may_be = False

    def _begins(self, header: bytes) -> bool:
        """A batch; whether that is the next one, and dense."""
        base, length, magic, self._wanted_crc, attributes, delta, count = _HEADER.unpack(header)
        self._batches += 1
        self._left = length + LOG_OVERHEAD - HEADER_SIZE
        self._crc = crc32c(header[CRC_START:])
        is_next = base == self._next_offset
        self._next_offset = base + count
        return (
            is_next
            and magic == MAGIC
            and self._left > 0
            and count == delta + 1 > 0
            and not attributes & CONTROL_MASK
        )
