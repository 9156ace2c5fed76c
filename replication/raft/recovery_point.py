"""Up to where the metadata log is known to have been on the disk: `recovery-point-offset-checkpoint` beside it.

Recovery reads all of the log, for votes rest on it, and cuts it where it finds damage: a crash may tear what was
not synced, and leave holes in it with whole batches behind them. Only what was written down before can tell that
from damage below what was synced. Unlike that of a log directory, this point saves no reading.
"""

from __future__ import annotations

import logging
from typing import Final

from odradek.seams.files import Files, Path
from odradek.storage.directories.checkpoints import Checkpoint, CorruptCheckpoint, format, parse
from odradek.storage.directories.names import TopicPartition

NAME: Final = Checkpoint.RECOVERY_POINT.value

log = logging.getLogger("odradek.metadata")


class RecoveryPointFile:
    """The file in the metadata log's directory, `of` which partition's log it tells."""

    def __init__(self, files: Files, directory: Path, of: TopicPartition) -> None:
        self._files = files
        self._of = of
        self.path = directory / NAME
        self.offset = 0
        """What the file says."""

    def load(self) -> None:
        """One that is not there, or makes no sense, says nothing. Raises OSError."""
        if not self._files.exists(self.path):
            return
        try:
            self.offset = parse(self._files.read(self.path)).get(self._of, 0)
        except CorruptCheckpoint as error:
            log.warning("%s: %s; it is written anew", self.path, error)

    def write(self, offset: int) -> None:
        """All below `offset` is durable; that is known durably when this returns. Raises OSError."""
        if offset != self.offset:
            self._files.write_new(self.path, format({self._of: offset}))
            self.offset = offset
