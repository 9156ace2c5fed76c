"""What the remote tier refuses or cannot do now (KIP-405).

Clients are told UNKNOWN_SERVER_ERROR (-1) of all of it, as Kafka 4.x does (T-34): no code of the
protocol says more. Inside, `retryable` says whether the same call may succeed later (T-12).
"""

from __future__ import annotations

from uuid import UUID

from odradek.protocol.errors import ErrorCode, KafkaError


class RemoteStorageError(KafkaError):
    """The remote tier failed; it may work the next time."""

    code = ErrorCode.unknown_server_error
    retryable = True
    segment_id: UUID | None = None
    """Of the segment that it is about, where a read knows."""


class RemoteStorageUnavailable(RemoteStorageError):
    """The store, or the topic of the metadata, does not answer, or throttles."""


class RemoteMetadataUnavailable(RemoteStorageUnavailable):
    """The topic of the metadata takes nothing now, or it is not known whether it did."""


class RemoteAccessDenied(RemoteStorageUnavailable):
    """The store does not let us; it may once somebody has seen to that."""


class RemoteNotReady(RemoteStorageError):
    """The metadata of this partition is not read to the end yet: ask again (T-49)."""


class RemoteResourceNotFound(RemoteStorageError):
    """There is no such segment, object, index or partition (T-18, T-19, T-24)."""

    retryable = False


class RemoteSegmentNotFound(RemoteResourceNotFound):
    """It is the segment itself that is not there, or is being deleted: what it had nobody can tell."""


class CorruptRemoteData(RemoteStorageError):
    """What was read is not what was written: cut short, a checksum, a frame. The text names it."""

    retryable = False


class InvalidRemoteState(RemoteStorageError):
    """This does not follow from the state that the segment or partition is in (T-23, T-24, T-27)."""

    retryable = False
