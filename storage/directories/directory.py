"""One log directory: its lock, its identity, its checkpoints, and whether it still works."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from uuid import UUID

from odradek.seams.files import DiskUsage, Files, Lock, Path
from odradek.storage.directories.checkpoints import Checkpoint
from odradek.storage.directories.clean_shutdown import CleanMark
from odradek.storage.directories.names import TopicPartition


class LogDirectory:
    """An opened directory; made by `opening.open_directories`.

    Synchronous: whoever must not block the loop calls through `Offload`, lane `directory.lane`.
    """

    def __init__(self, files: Files, path: Path, id: UUID | None, lock: Lock | None) -> None:
        self.files = files
        self.path = path
        self.id = id
        """directory.id; None only where it failed before it could be read."""
        self.failure: OSError | None = None
        self.on_failure: Callable[[LogDirectory], None] | None = None

    @property
    def lane(self) -> str:
        """The name of this directory's lane for `Offload.run`."""
        return str(self.path)

    @property
    def failed(self) -> bool:
        return self.failure is not None

    def fail(self, error: OSError) -> None:
        """Take it offline, at the first error (see `failure.py`); later ones change nothing."""
        raise NotImplementedError

    def report(self, error: OSError, *, undone: bool = False) -> bool:
        """Judge an error that an operation here met; True if the directory is offline now."""
        raise NotImplementedError

    def path_of(self, topic: str, partition: int) -> Path:
        raise NotImplementedError

    def read_checkpoint(self, kind: Checkpoint) -> dict[TopicPartition, int]:
        raise NotImplementedError

    def write_checkpoint(self, kind: Checkpoint, offsets: Mapping[TopicPartition, int]) -> None:
        raise NotImplementedError

    def take_clean_mark(self) -> CleanMark | None:
        """Read and remove the mark of a clean shutdown, durably: from here on a crash is unclean."""
        raise NotImplementedError

    def write_clean_mark(self, broker_epoch: int = -1) -> None:
        raise NotImplementedError

    def usage(self) -> DiskUsage:
        raise NotImplementedError

    def close(self) -> None:
        """Give the lock back. Idempotent."""
        raise NotImplementedError
