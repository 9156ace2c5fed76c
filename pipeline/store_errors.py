"""Translates errors of the store to pipeline errors that name the object."""

from __future__ import annotations

from odradek.pipeline.errors import (
    CorruptSegment,
    DeniedSegment,
    MissingSegment,
    PipelineError,
    StoreUnavailable,
    UnreadableSegment,
    error_text,
)
from odradek.seams.objects import ObjectDenied, ObjectMissing, ObjectsUnavailable
from odradek.storage.log.leader_epoch_cache import CorruptEpochs
from odradek.storage.log.producer_snapshots import CorruptSnapshot
from odradek.storage.tiered.errors import (
    CorruptRemoteData,
    RemoteAccessDenied,
    RemoteResourceNotFound,
    RemoteStorageError,
    RemoteStorageUnavailable,
)

BROKEN = (CorruptRemoteData, CorruptEpochs, CorruptSnapshot, ValueError)
"""Errors of corrupt content."""
STORE_ERRORS = (ObjectMissing, ObjectsUnavailable, RemoteStorageError, *BROKEN)
CREDENTIALS_HINT = "give Spark's driver and workers credentials that can list and read the store"
RETRY_HINT = "run it again when the store responds (tiered.retries and tiered.request.timeout.ms can be increased)"


def object_error(key: str, error: Exception, done: str = "read") -> PipelineError:
    """Translate one of STORE_ERRORS; `key` is an object, or a prefix, on which the operation `done` failed."""
    text = error_text(error).removeprefix(f"{key}: ")
    found: UnreadableSegment
    if isinstance(error, (ObjectMissing, RemoteResourceNotFound)):
        found = MissingSegment(f"{key} is missing in the store")
    elif isinstance(error, (ObjectDenied, RemoteAccessDenied)):
        found = DeniedSegment(
            f"access to {key} was denied, so it could not be {done}: {CREDENTIALS_HINT}; the"
            f" store responded: {text}"
        )
    elif isinstance(error, BROKEN):
        found = CorruptSegment(f"{key} is corrupt: {text}")
    elif isinstance(error, (ObjectsUnavailable, RemoteStorageUnavailable)):
        return StoreUnavailable(
            f"{key} could not be {done}: {RETRY_HINT}; the store responded: {text}"
        )
    else:
        return StoreUnavailable(f"{key} could not be {done}: {text}")
    found.key = key
    return found
