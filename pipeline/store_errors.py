"""What goes wrong with objects of the store, by its name, with the object's, and what to do about it."""

from __future__ import annotations

from odradek.pipeline.errors import (
    CorruptSegment,
    DeniedSegment,
    MissingSegment,
    PipelineError,
    StoreUnavailable,
    UnreadableSegment,
    in_words,
)
from odradek.seams.objects import ObjectDenied, ObjectMissing, ObjectsUnavailable
from odradek.storage.log.epochs import CorruptEpochs
from odradek.storage.log.producer_snapshots import CorruptSnapshot
from odradek.storage.tiered.errors import (
    CorruptRemoteData,
    RemoteAccessDenied,
    RemoteResourceNotFound,
    RemoteStorageError,
    RemoteStorageUnavailable,
)

BROKEN = (CorruptRemoteData, CorruptEpochs, CorruptSnapshot, ValueError)
"""Of bytes that make no sense."""
STORE_ERRORS = (ObjectMissing, ObjectsUnavailable, RemoteStorageError, *BROKEN)
LET_US = "give Spark's driver and workers credentials that may list and read the store"
LATER = "run it again once the store answers (tiered.retries and tiered.request.timeout.ms have patience)"


def of_object(key: str, error: Exception, done: str = "read") -> PipelineError:
    """For one of STORE_ERRORS: `done` was to be with that object, or with those whose keys begin so."""
    said = in_words(error).removeprefix(f"{key}: ")
    found: UnreadableSegment
    if isinstance(error, (ObjectMissing, RemoteResourceNotFound)):
        found = MissingSegment(f"{key} is not in the store, and should be")
    elif isinstance(error, (ObjectDenied, RemoteAccessDenied)):
        found = DeniedSegment(f"{key} may not be {done} by us: {LET_US}; it said: {said}")
    elif isinstance(error, BROKEN):
        found = CorruptSegment(f"{key} is broken: {said}")
    elif isinstance(error, (ObjectsUnavailable, RemoteStorageUnavailable)):
        return StoreUnavailable(f"{key} could not be {done}: {LATER}; it said: {said}")
    else:
        return StoreUnavailable(f"{key} could not be {done}: {said}")
    found.key = key
    return found
