"""One log directory: its lock, its identity, its checkpoints, and whether it still works.

A directory that met an I/O error is offline until the process is started anew (`failure.py`). It
keeps its lock, so that no other broker takes over half-written files while this one still runs.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from uuid import UUID

from odradek.seams.files import DiskUsage, Files, Lock, OutOfDescriptors, Path
from odradek.storage.directories import checkpoints, clean_shutdown
from odradek.storage.directories.checkpoints import Checkpoint, CorruptCheckpoint
from odradek.storage.directories.clean_shutdown import CleanShutdownFile
from odradek.storage.directories.disk_space import FREE_BYTES_MIN, DiskSpace, LowDiskSpace
from odradek.storage.directories.failure import DISK_FULL_ERRNOS, takes_offline
from odradek.storage.directories.names import TopicPartition, live_name

log = logging.getLogger(__name__)

PROBE_NAME = ".room"
"""A file that is made, and removed at once, where a directory was full."""


class LogDirectory:
    """An opened directory; made by `opening.open_directories`.

    Synchronous: whoever must not block the loop calls through `Offload`, lane `directory.lane`.
    The methods that touch the disk raise OSError; the caller hands it to `report`.
    """

    def __init__(self, files: Files, path: Path, id: UUID | None, lock: Lock | None) -> None:
        self.files = files
        self.path = path
        self.id = id
        """directory.id; None only where it failed before it could be read."""
        self.failure: Exception | None = None
        self.on_failure: Callable[[LogDirectory], None] | None = None
        """Called once, by the call that takes the directory offline, in whichever thread."""
        self.low_disk_space = LowDiskSpace(path)
        self._lock = lock

    def __repr__(self) -> str:
        return f"<LogDirectory {self.path}{' offline' if self.failed else ''}>"

    # Health

    @property
    def lane(self) -> str:
        """The name of this directory's lane for `Offload.run`."""
        return str(self.path)

    @property
    def failed(self) -> bool:
        return self.failure is not None

    def report(self, error: OSError, *, undone: bool = False) -> bool:
        """Judge an error that an operation here met; True if the directory is offline now.

        `undone`: what the operation had begun was taken back (see `failure.takes_offline`).
        """
        if takes_offline(error, undone=undone):
            self.fail(error)
        elif error.errno in DISK_FULL_ERRNOS:
            self.low_disk_space.write_failed(error)
        else:
            log.warning("log directory %s: %s; it stays online", self.path, error)
        return self.failed

    def fail(self, error: Exception) -> None:
        """Take it offline, at the first error; later ones change nothing."""
        if self.failure is not None:
            return
        self.failure = error
        log.error("log directory %s is offline: %s", self.path, error)
        if self.on_failure is not None:
            self.on_failure(self)

    # Files

    def path_of(self, topic: str, partition: int) -> Path:
        return self.path / live_name(topic, partition)

    def read_checkpoint(self, kind: Checkpoint) -> dict[TopicPartition, int]:
        """What was checkpointed; nothing if there is no file, or none that makes sense."""
        path = self.path / kind.value
        try:
            return checkpoints.parse(self.files.read(path))
        except FileNotFoundError:
            return {}
        except CorruptCheckpoint as error:
            log.warning("%s is damaged (%s), going on without it", path, error)
            return {}

    def write_checkpoint(self, kind: Checkpoint, offsets: Mapping[TopicPartition, int]) -> None:
        """Durable when it returns; a crash before leaves the old one."""
        self.files.write_new(self.path / kind.value, checkpoints.format(offsets))

    def remove_checkpoint(self, kind: Checkpoint) -> None:
        """As if it had never been written; durable once the directory is synced."""
        self.files.remove(self.path / kind.value, missing_ok=True)

    def remove_clean_shutdown_file(self) -> CleanShutdownFile | None:
        """Read and remove the mark of a clean shutdown; None if there is none.

        The removal is durable when this returns: from here on a crash is an unclean shutdown, and
        only now may a log be written to.
        """
        path = self.path / clean_shutdown.FILE_NAME
        try:
            mark = clean_shutdown.parse(self.files.read(path))
        except FileNotFoundError:
            return None
        self.files.remove(path)
        self.files.sync_directory(self.path)
        return mark

    def write_clean_shutdown_file(self, broker_epoch: int = -1) -> None:
        """The last write to the directory: all logs in it are closed and checkpointed."""
        self.files.write_new(
            self.path / clean_shutdown.FILE_NAME, clean_shutdown.format(broker_epoch)
        )

    def probe(self) -> None:
        """Raises OSError where the directory is not what was locked, or cannot be written to: nobody
        may write to it for hours, and a write to a mount point whose disk is gone succeeds."""
        if self._lock is not None:
            self._lock.check()

    def usage(self) -> DiskUsage:
        return self.files.disk_usage(self.path)

    def disk_space(self) -> DiskSpace:
        """How much there is, and whether a file of `ROOM_BYTES` can be made, which is tried. Raises OSError
        for anything but a full disk."""
        usage = self.usage()
        return DiskSpace(
            usage, usage.free_bytes >= FREE_BYTES_MIN and self._can_allocate(FREE_BYTES_MIN)
        )

    def _can_allocate(self, size_bytes: int) -> bool:
        path = self.path / PROBE_NAME
        self.files.remove(path, missing_ok=True)  # a process was killed while it tried
        try:
            file = self.files.open(path, create=True)
            try:
                file.preallocate(size_bytes)
            finally:
                file.close()
                self.files.remove(path)
        except OSError as error:
            if isinstance(error, OutOfDescriptors) or error.errno in DISK_FULL_ERRNOS:
                return False
            raise
        return True

    def close(self) -> None:
        """Give the lock back. Idempotent."""
        lock, self._lock = self._lock, None
        if lock is not None:
            lock.release()
