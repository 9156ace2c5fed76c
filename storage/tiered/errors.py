"""Errors of the remote tier (KIP-405).

Clients receive UNKNOWN_SERVER_ERROR (-1) for all of them, as from Kafka 4.x (T-34). Inside the
broker, `retryable` is whether a retry of the same call may succeed (T-12).
"""

from __future__ import annotations

from uuid import UUID

from odradek.protocol.errors import ErrorCode, KafkaError


class RemoteStorageError(KafkaError):
    """A call to the remote tier failed; a retry may succeed."""

    code = ErrorCode.unknown_server_error
    retryable = True
    segment_id: UUID | None = None
    """Segment that could not be read, if the error is about one."""


class RemoteStorageUnavailable(RemoteStorageError):
    """The object store or the metadata topic does not respond, or it throttles."""


class RemoteMetadataUnavailable(RemoteStorageUnavailable):
    """The metadata topic does not accept records now, or it is not known whether it accepted one."""


class RemoteAccessDenied(RemoteStorageUnavailable):
    """The object store denies access. A retry succeeds after its credentials or permissions are
    corrected."""


class RemoteNotReady(RemoteStorageError):
    """The node has not read the metadata of this partition to its end yet; retry later (T-49)."""


class RemoteResourceNotFound(RemoteStorageError):
    """There is no such segment, object, index or partition (T-18, T-19, T-24)."""

    retryable = False


class RemoteSegmentNotFound(RemoteResourceNotFound):
    """The segment itself is missing or is being deleted, so it is not known which indexes it had."""


class CorruptRemoteData(RemoteStorageError):
    """The data differs from what was written: truncated, wrong checksum or wrong format. The
    message names the object."""

    retryable = False


class CorruptRemoteIndex(CorruptRemoteData):
    """An index is wrong: its entries contradict each other or the segment's batches."""


class UnusableRemoteIndex(CorruptRemoteIndex):
    """An index was wrong when it was fetched, and is not fetched again yet. It was logged before."""


class InvalidRemoteState(RemoteStorageError):
    """The event is not a valid transition from the segment's or partition's state (T-23, T-24,
    T-27)."""

    retryable = False


class CorruptChunk(ValueError):
    """The chunk cannot be decrypted or decompressed, or has another size than the original."""
