"""Custom metadata of a copied segment (KIP-405): a version and flags, and the check for the DENSE
flag.

    CHUNKED    the log's object is a sequence of chunks, described by the manifest
    ENCRYPTED  all objects are encrypted
    DENSE      every offset of the segment has one record, and no batch was corrupt when it was copied

None means that the log is stored unchanged and has no flags; Kafka's LocalTieredStorage may have
written it. Unknown flags of a later version are ignored.

With DENSE, a client that wants only offsets or a record count need not read the segment. Compaction
and transaction markers leave offsets without records, so such segments are not dense.
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
from odradek.storage.tiered.segment_metadata import RemoteLogSegmentMetadata

CHUNKED, ENCRYPTED, DENSE = 1, 2, 4

_VERSION = 1
_SIZE = 2


def custom_metadata(flags: int) -> bytes | None:
    return bytes([_VERSION, flags]) if flags else None


def flags_of(metadata: RemoteLogSegmentMetadata) -> int:
    """Flags of the segment. Raises RemoteStorageError for custom metadata of another
    RemoteStorageManager."""
    custom = metadata.custom_metadata
    if not custom:
        return 0
    if not _is_odradeks(custom):
        raise RemoteStorageError(
            f"{metadata.id} was copied by a later version or another RemoteStorageManager"
        )
    return custom[1]


def needs_manifest(custom: bytes | None) -> bool:
    """Whether the log's object cannot be read without the manifest."""
    return custom is not None and not (_is_odradeks(custom) and not custom[1] & CHUNKED)


def is_dense(custom: bytes | None) -> bool:
    """Whether the segment is known to be dense."""
    return custom is not None and _is_odradeks(custom) and bool(custom[1] & DENSE)


def _is_odradeks(custom: bytes) -> bool:
    return len(custom) == _SIZE and custom[0] == _VERSION


LEAST_BATCH_BYTES = 512
"""Smallest average batch size of a log that is checked; smaller batches would take seconds per GB.
"""
ALWAYS_BYTES = 1 << 20
"""Bytes that are checked of any log."""
_HEADER = Struct(">qi4xbIhi30xi")
"""Base offset, length, magic, CRC, attributes, last offset delta, count."""


class DensityCheck:
    """Checks a log for the DENSE flag; `feed` gets its bytes in order. The end offset is inclusive."""

    def __init__(self, start_offset: int, end_offset: int) -> None:
        self._next_offset = start_offset
        self._end_offset = end_offset
        self._may_be = True
        self._header = b""
        """Incomplete header at the end of the last bytes."""
        self._left = 0
        """Remaining bytes of the current batch."""
        self._crc = self._wanted_crc = 0
        self._fed_bytes = self._batches = 0

    @property
    def is_dense(self) -> bool:
        """Result after all bytes of the log were fed."""
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
        """Parse a header; whether the batch is the next one and dense."""
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
