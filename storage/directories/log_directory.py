"""One log directory: its lock, id, checkpoints, clean shutdown file, free space and state.

A directory with an I/O error is offline until the process is restarted (`io_errors.py`). It keeps its lock, so that no
other broker uses files that this one may still be writing.

An operation that fails because the disk is full is undone and refused, so clients see the error but the operator does
not. Therefore `LowDiskSpace` logs an error at once, every minute while the directory is full, and a line when it has
free space again. `LogDirectory.disk_space` checks the free space by allocating a file, because the size that the file
system reports includes neither quotas nor a lack of inodes.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from uuid import UUID

from odradek.protocol.topics import TopicPartition
from odradek.seams.files import DiskUsage, Files, Lock, OutOfDescriptors, Path
from odradek.seams.units import human_bytes
from odradek.seams.values import value_class
from odradek.storage.directories import checkpoints, clean_shutdown
from odradek.storage.directories.checkpoints import Checkpoint, CorruptCheckpoint
from odradek.storage.directories.clean_shutdown import CleanShutdownFile
from odradek.storage.directories.io_errors import DISK_FULL_ERRNOS, takes_offline
from odradek.storage.directories.names import live_name
from odradek.storage.errors import DiskFull

REMIND_SECONDS = 60.0
FREE_BYTES_MIN = 16 << 20
"""A directory is full if a file of this size cannot be allocated; enough for some batches and a new segment."""


_logger = logging.getLogger("odradek.log_directories")

PROBE_NAME = ".room"
"""File that is created and removed at once to check whether a directory is still full."""


@value_class
class DiskSpace:
    """Free space of a directory: by the file system, and whether `FREE_BYTES_MIN` could be allocated."""

    usage: DiskUsage
    is_enough: bool


class LowDiskSpace:
    """State of one full log directory.

    `write_failed` may be called from any thread, the rest on the event loop. Times are monotonic seconds.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._error: OSError | None = None
        self._has_failed_since_check = False
        self._since: float | None = None
        self._logged_at: float | None = None
        self._is_logged = False

    @property
    def is_check_due(self) -> bool:
        """A write failed, so the free space must be checked periodically."""
        return self._error is not None

    def write_failed(self, error: OSError) -> None:
        """Record that an operation failed because the disk is full."""
        self._error = error
        self._has_failed_since_check = True

    def checked(self, disk_space: DiskSpace, now: float) -> None:
        """Record the free space at `now`, and log; called while `is_check_due`.

        The directory is no longer full if no operation has failed since the last check either, because a batch may be
        larger than the file that was allocated.
        """
        has_failed, self._has_failed_since_check = self._has_failed_since_check, False
        if self._since is None:
            self._since = now
        if disk_space.is_enough and not has_failed:
            self._end(disk_space, now)
        elif self._logged_at is None or now - self._logged_at >= REMIND_SECONDS:
            self._logged_at, self._is_logged = now, True
            _logger.error(
                "no space left in log directory %s%s (%s): %s of %s are available. Appends fail; fetches and"
                " deletions are served. Free disk space, for example with `odradek topics trim`. No restart is needed,"
                " unless this log directory goes offline: because other replicas can lead its partitions, or because"
                " data cannot be synced",
                self._path,
                f" for {now - self._since:.0f} s" if now > self._since else "",
                self._error,
                human_bytes(disk_space.usage.free_bytes),
                human_bytes(disk_space.usage.total_bytes),
            )

    def _end(self, disk_space: DiskSpace, now: float) -> None:
        assert self._since is not None
        if self._is_logged:
            _logger.warning(
                "log directory %s has free space again after %.0f s: %s are available",
                self._path,
                now - self._since,
                human_bytes(disk_space.usage.free_bytes),
            )
        self._error, self._since, self._is_logged = None, None, False


def _remedy(error: Exception) -> str:
    """End of the log line of an offline directory: what the operator does next."""
    if isinstance(error, DiskFull):
        return "; other replicas can lead its partitions. Free disk space and restart the broker"
    if isinstance(error, OSError) and error.errno in DISK_FULL_ERRNOS:
        return ". Free disk space and restart the broker"
    return ""


class LogDirectory:
    """An open log directory, created by `opening.open_directories`.

    The methods block; code on the event loop calls them with `Offload` and the lane `directory.lane`. Methods that
    access the disk raise OSError, which the caller passes to `report`.
    """

    def __init__(self, files: Files, path: Path, id: UUID | None, lock: Lock | None) -> None:
        self.files = files
        self.path = path
        self.id = id
        """directory.id; None only if the directory failed before it could be read."""
        self.failure: Exception | None = None
        self.on_failure: Callable[[LogDirectory], None] | None = None
        """Called once, in the thread that takes the directory offline."""
        self.low_disk_space = LowDiskSpace(path)
        self._lock = lock

    def __repr__(self) -> str:
        return f"<LogDirectory {self.path}{' offline' if self.failed else ''}>"

    # State

    @property
    def lane(self) -> str:
        """Lane of this directory for `Offload.run`."""
        return str(self.path)

    @property
    def failed(self) -> bool:
        return self.failure is not None

    def report(self, error: OSError, *, files_unchanged: bool = False) -> bool:
        """Handle an error of an operation in this directory; return whether the directory is offline now.

        `files_unchanged`: the operation was undone (`io_errors.takes_offline`).
        """
        if takes_offline(error, files_unchanged=files_unchanged):
            self.fail(error)
        elif error.errno in DISK_FULL_ERRNOS:
            self.low_disk_space.write_failed(error)
        else:
            _logger.warning("error in log directory %s, which stays online: %s", self.path, error)
        return self.failed

    def fail(self, error: Exception) -> None:
        """Take the directory offline; calls after the first one have no effect. This is the only line that is logged
        for the failure of a directory with a level above INFO."""
        if self.failure is not None:
            return
        self.failure = error
        _logger.error("log directory %s is offline: %s%s", self.path, error, _remedy(error))
        if self.on_failure is not None:
            self.on_failure(self)

    # Files

    def path_of(self, topic: str, partition: int) -> Path:
        return self.path / live_name(topic, partition)

    def read_checkpoint(self, kind: Checkpoint) -> dict[TopicPartition, int]:
        """Read a checkpoint; empty if the file is missing or corrupt. Raises OSError."""
        path = self.path / kind.value
        try:
            return checkpoints.parse(self.files.read(path))
        except FileNotFoundError:
            return {}
        except CorruptCheckpoint as error:
            _logger.warning("ignoring corrupt checkpoint file %s: %s", path, error)
            return {}

    def write_checkpoint(self, kind: Checkpoint, offsets: Mapping[TopicPartition, int]) -> None:
        """Replace a checkpoint durably; a crash before the end leaves the old one. Raises OSError."""
        self.files.write_new(self.path / kind.value, checkpoints.format(offsets))

    def remove_checkpoint(self, kind: Checkpoint) -> None:
        """Remove a checkpoint; durable after the directory is synced. Raises OSError."""
        self.files.remove(self.path / kind.value, missing_ok=True)

    def remove_clean_shutdown_file(self) -> CleanShutdownFile | None:
        """Read and remove the clean shutdown file; None if it does not exist.

        The removal is durable on return: a later crash is an unclean shutdown. Logs must not be written before.
        Raises OSError.
        """
        path = self.path / clean_shutdown.FILE_NAME
        try:
            clean_shutdown_file = clean_shutdown.parse(self.files.read(path))
        except FileNotFoundError:
            return None
        self.files.remove(path)
        self.files.sync_directory(self.path)
        return clean_shutdown_file

    def write_clean_shutdown_file(self, broker_epoch: int = -1) -> None:
        """Write the clean shutdown file, after all logs of the directory are closed and checkpointed."""
        self.files.write_new(
            self.path / clean_shutdown.FILE_NAME, clean_shutdown.format(broker_epoch)
        )

    def probe(self) -> None:
        """Raise OSError if the directory is no longer the locked one, or is not writable.

        There may be no writes for hours, and a write to the mount point of an unmounted disk succeeds.
        """
        if self._lock is not None:
            self._lock.check()

    def usage(self) -> DiskUsage:
        """Return total and free bytes of the file system. Raises OSError."""
        return self.files.disk_usage(self.path)

    def disk_space(self) -> DiskSpace:
        """Return the free space, after trying to allocate a file of `FREE_BYTES_MIN` bytes.

        Raises OSError for every error except a full disk and missing file descriptors.
        """
        usage = self.usage()
        return DiskSpace(
            usage, usage.free_bytes >= FREE_BYTES_MIN and self._can_allocate(FREE_BYTES_MIN)
        )

    def _can_allocate(self, size_bytes: int) -> bool:
        path = self.path / PROBE_NAME
        self.files.remove(path, missing_ok=True)  # from a process that was killed during the check
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
        """Release the lock. Idempotent."""
        lock, self._lock = self._lock, None
        if lock is not None:
            lock.release()
