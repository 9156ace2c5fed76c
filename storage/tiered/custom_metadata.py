"""What the custom metadata of our copies says (KIP-405): a version, and flags.

    CHUNKED    the log's object is a row of chunks, which the manifest knows: it is not the log itself
    ENCRYPTED  so are all its objects
    DENSE      each of the segment's offsets has one record, and no batch was broken, as it was copied

None is that of a log which is stored as it is, and of which nothing is said: Kafka's LocalTieredStorage may have
put it there. Flags that a later version adds are passed over.
"""

from __future__ import annotations

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
