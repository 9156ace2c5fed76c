"""Whose an error was that a move met, and what follows from it.

| the error                                  | its directory     | the move           |
|--------------------------------------------|-------------------|--------------------|
| no descriptors left, on whichever side     | stays online      | BEHIND: tries again |
| in a file of the source                    | fails             | SOURCE_FAILED      |
| the destination is full                    | stays online      | NO_ROOM            |
| any other of the destination's disk        | fails             | DESTINATION_FAILED |
| of the log (it is offline, or makes no sense) | stays as it is | SOURCE_FAILED      |

That the copy is taken back where the destination is full is what keeps that directory online
(`failure.takes_offline`).
"""

from __future__ import annotations

import logging

from odradek.seams.files import OutOfDescriptors
from odradek.storage.directories.directory import LogDirectory
from odradek.storage.errors import NoDescriptors, SourceFailed
from odradek.storage.moving.move_states import MoveEvent

log = logging.getLogger(__name__)


def classify_move_error(
    error: Exception, source: LogDirectory, destination: LogDirectory
) -> MoveEvent:
    """See the table; the directory is told."""
    is_of_source = isinstance(error, SourceFailed)
    if isinstance(error, SourceFailed):
        error = error.error
    if isinstance(error, (OutOfDescriptors, NoDescriptors)):
        return MoveEvent.BEHIND
    if not isinstance(error, OSError):
        log.warning("a replica cannot be moved on from %s: %s", source.path, error)
        return MoveEvent.SOURCE_FAILED
    if is_of_source or str(error.filename or "").startswith(f"{source.path}/"):
        source.report(error)
        return MoveEvent.SOURCE_FAILED
    if destination.report(error, undone=True):
        return MoveEvent.DESTINATION_FAILED
    return MoveEvent.DESTINATION_FULL
