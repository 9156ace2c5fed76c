"""Classification of errors during a move: which directory they belong to, and the resulting event.

| error                                        | its directory     | event of the move  |
|----------------------------------------------|-------------------|--------------------|
| no file descriptors, on either side          | stays online      | BEHIND: retry      |
| in a file of the source                      | goes offline      | SOURCE_FAILED      |
| the destination is full                      | stays online      | DESTINATION_FULL   |
| any other error of the destination's disk    | goes offline      | DESTINATION_FAILED |
| of the log: it is offline, or invalid        | does not change   | SOURCE_FAILED      |

A full destination stays online because the future replica is removed afterwards (`io_errors.takes_offline`).
"""

from __future__ import annotations

import logging

from odradek.seams.files import OutOfDescriptors
from odradek.storage.directories.log_directory import LogDirectory
from odradek.storage.errors import NoDescriptors, SourceFailed
from odradek.storage.moving.move_states import MoveEvent

_logger = logging.getLogger("odradek.replica_moves")


def classify_move_error(
    error: Exception, source: LogDirectory, destination: LogDirectory
) -> MoveEvent:
    """Return the event for `error`, and report the error to its directory; see the table."""
    is_of_source = isinstance(error, SourceFailed)
    if isinstance(error, SourceFailed):
        error = error.error
    if isinstance(error, (OutOfDescriptors, NoDescriptors)):
        return MoveEvent.BEHIND
    if not isinstance(error, OSError):
        _logger.warning("the move of a replica from %s failed: %s", source.path, error)
        return MoveEvent.SOURCE_FAILED
    if is_of_source or str(error.filename or "").startswith(f"{source.path}/"):
        source.report(error)
        return MoveEvent.SOURCE_FAILED
    if destination.report(error, files_unchanged=True):
        return MoveEvent.DESTINATION_FAILED
    return MoveEvent.DESTINATION_FULL
