"""Logs of one log directory, its checkpoint files, and its clean shutdown.

Background tasks write the checkpoints in a worker thread; a truncation that lowers a recovery point
writes them immediately on the loop. Each write takes its values under the lock under which it writes, so
a file is never older than the last completed write. A file whose content would not change is not
written, so that an idle broker causes no disk writes.

A clean shutdown (`close_cleanly`) makes the next start fast, in this order:

1. Every log is flushed and closed: segments synced, indexes trimmed and synced, a producer snapshot
   written at the log end.
2. The checkpoints are written: recovery points (now the log ends), log start offsets, high watermarks.
3. The clean shutdown file is written.

A crash before step 3 leaves no such file, so the next start scans past the checkpointed recovery points.
The file is not written either if a log could not be opened or closed, or if the directory was not completely
loaded.
"""

from __future__ import annotations

import errno
import logging
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Protocol

import trio

from odradek.protocol.topics import TopicPartition
from odradek.seams.offload import Offload
from odradek.storage.directories.checkpoints import Checkpoint
from odradek.storage.directories.log_directory import LogDirectory
from odradek.storage.directories.replica_placement import DirectoryUsage
from odradek.storage.errors import StorageError
from odradek.storage.log.partition_log import PartitionLog

_logger = logging.getLogger("odradek.log_manager")


class CheckpointedOffsets(Protocol):
    """Values of a log that the checkpoints contain; implemented by logs and by future replicas during
    a swap."""

    @property
    def recovery_point(self) -> int: ...
    @property
    def last_accepted_gap_end(self) -> int: ...
    @property
    def log_start_offset(self) -> int: ...
    @property
    def high_watermark(self) -> int: ...
    @property
    def cleaned_to(self) -> int | None: ...


# A log start offset of 0 needs no entry. A recovery point below gaps that log recovery accepted is omitted, so that
# the next recovery accepts the gaps again.
VALUES: Mapping[Checkpoint, Callable[[CheckpointedOffsets], int | None]] = {
    Checkpoint.RECOVERY_POINT: lambda log: (
        log.recovery_point if log.recovery_point >= log.last_accepted_gap_end else None
    ),
    Checkpoint.LOG_START: lambda log: log.log_start_offset or None,
    Checkpoint.HIGH_WATERMARK: lambda log: log.high_watermark,
    Checkpoint.CLEANER: lambda log: log.cleaned_to,
}

NOT_CLEAN = "log directory %s was not shut down cleanly, so the next start recovers its logs"
CLOSED_AT_ONCE = 32
"""Logs that a worker thread closes in one call."""
MEASURED_AT_ONCE = 10
"""Logs that are measured between two yields to other tasks: the first measurement opens every segment's
file."""


class DirectoryLogs:
    """One directory's logs and checkpoints; changed only on the loop."""

    def __init__(self, directory: LogDirectory) -> None:
        self.directory = directory
        self.logs: dict[TopicPartition, PartitionLog] = {}
        self.incoming_logs: dict[TopicPartition, CheckpointedOffsets] = {}
        """Future replicas that are about to become logs of this directory."""
        self.moving_in: set[PartitionLog] = set()
        self.moving_out: set[PartitionLog] = set()
        """Logs that move into or out of this directory; placement counts them."""
        self.pending_creations = 0
        """Number of logs being created here; placement counts them."""
        self.loaded = False
        """Whether all logs were loaded. Otherwise no clean shutdown file is written."""
        self.is_whole = True
        """False after a log could not be opened or closed; then there is no clean shutdown file."""
        self.offline_directories: dict[TopicPartition, set[str]] = {}
        """Partitions that are not in `logs` with the names of their directories here. While there are
        any, the checkpoints keep their entries of the start."""
        self.file_lock = trio.Lock()
        """Held by one flush, deletion, truncation, swap or rename of a log here at a time."""
        self._at_start: dict[Checkpoint, dict[TopicPartition, int]] = {}
        self._written: dict[Checkpoint, dict[TopicPartition, int]] = {}
        self._writing = threading.Lock()

    @property
    def count(self) -> int:
        return len(self.logs) + self.pending_creations + len(self.moving_in) - len(self.moving_out)

    async def measure(self) -> DirectoryUsage:
        """Bytes of all logs in the directory; yields to the loop in between."""
        size_bytes = 0
        counted = [log for log in self.logs.values() if log not in self.moving_out]
        for number, log in enumerate((*counted, *self.moving_in)):
            if number % MEASURED_AT_ONCE == 0:
                await trio.lowlevel.checkpoint()
            with suppress(OSError, ValueError):  # the log was deleted or closed meanwhile
                size_bytes += log.size_bytes
        return DirectoryUsage(size_bytes, self.count)

    def read_checkpoint(self, kind: Checkpoint) -> dict[TopicPartition, int]:
        """Read a checkpoint file at start; later writes are compared with it."""
        offsets = self._at_start[kind] = self.directory.read_checkpoint(kind)
        self._written[kind] = dict(offsets)
        return offsets

    def write_checkpoints(self, kinds: Iterable[Checkpoint] = tuple(VALUES)) -> None:
        """Write checkpoint files durably. From any thread. Raises OSError: then the old files remain."""
        for kind in kinds:
            with self._writing:
                self._write(kind)

    def remove_checkpoints(self) -> None:
        """Remove the checkpoint files durably; the next write creates them again. Raises OSError."""
        with self._writing:
            self._written.clear()
            for kind in VALUES:
                self.directory.remove_checkpoint(kind)
            self.directory.files.sync_directory(self.directory.path)

    def keep_offline(self, name: TopicPartition, directory: str) -> None:
        """Record that a directory of a partition is here and its log is not served."""
        self.offline_directories.setdefault(name, set()).add(directory)

    def release(self, name: TopicPartition, directory: str) -> None:
        """Remove the record of `keep_offline`: the log is served, or is no longer here. From any
        thread."""
        there = self.offline_directories.get(name, set())
        there.discard(directory)
        if not there:
            self.offline_directories.pop(name, None)

    def forget(self, name: TopicPartition) -> None:
        """Remove the checkpoint entries of an earlier log of that name, durably, before a new log is
        created. Cancelled swaps and full disks leave such entries. From any thread. Raises
        OSError."""
        self.offline_directories.pop(name, None)
        for kind in VALUES:
            with self._writing:
                if name in self._written.get(kind, (name,)):
                    self._write(kind)

    def _write(self, kind: Checkpoint) -> None:
        value = VALUES[kind]
        at_start = self._at_start.get(kind, {})
        logs = self.logs.copy()  # the loop may change it
        there: dict[TopicPartition, CheckpointedOffsets] = {**self.incoming_logs.copy(), **logs}
        offsets = {
            name: at_start[name]
            for name in self.offline_directories.copy()
            if name in at_start and name not in there
        }
        offsets |= {
            name: offset for name, log in there.items() if (offset := value(log)) is not None
        }
        # Checked after the logs were listed: a directory is marked as failed before its logs are removed
        if self.directory.failed:
            raise OSError(
                errno.EIO, "the log directory is offline", str(self.directory.path / kind.value)
            )
        if offsets != self._written.get(kind):
            self._written.pop(kind, None)
            self.directory.write_checkpoint(kind, offsets)
            self._written[kind] = offsets
        if kind is Checkpoint.RECOVERY_POINT:
            for name in offsets.keys() & logs.keys():
                logs[name].is_checkpointed = True


async def close_cleanly(
    directory_logs: DirectoryLogs, offload: Offload, workers: int, *, broker_epoch: int
) -> None:
    """Close the logs, write the checkpoints and the clean shutdown file. A failure takes the directory offline and
    ends the shutdown of the directory. A full disk only leaves the old checkpoints."""
    directory = directory_logs.directory
    if not await _close_all(directory_logs, offload, workers) or directory.failed:
        _logger.warning(NOT_CLEAN, directory.path)
        return

    def finish() -> None:
        directory_logs.write_checkpoints()
        if directory_logs.loaded and directory_logs.is_whole:
            directory.write_clean_shutdown_file(broker_epoch)

    try:
        await offload.run(finish, lane=directory.lane)
    except OSError as error:
        if not directory.report(error, files_unchanged=True):
            _logger.warning(NOT_CLEAN + ": %s", directory.path, error)
    directory_logs.logs.clear()


async def _close_all(directory_logs: DirectoryLogs, offload: Offload, workers: int) -> bool:
    logs = list(directory_logs.logs.values())
    chunks = iter(
        [logs[start : start + CLOSED_AT_ONCE] for start in range(0, len(logs), CLOSED_AT_ONCE)]
    )
    good = True

    async def work() -> None:
        nonlocal good
        for chunk in chunks:
            if not await offload.run(close_logs, chunk, lane=directory_logs.directory.lane):
                good = False

    async with trio.open_nursery() as nursery:
        for _ in range(workers):
            nursery.start_soon(work)
    return good


def close_logs(logs: Sequence[PartitionLog]) -> bool:
    """Close logs cleanly, in a worker thread; True if all succeeded. Failures are logged, those of the
    directory at DEBUG."""
    good = True
    for each in logs:
        if each.failure is not None:  # it is offline: its last write may be incomplete
            good = False
            _logger.error("log %s was not closed cleanly: %s", each.directory, each.failure)
        try:
            each.close(clean=True)
        except StorageError as error:
            good = False  # logged with the directory, which is full or offline
            _logger.debug("log %s was not closed cleanly: %s", each.directory, error)
        except Exception as error:
            good = False
            _logger.error("failed to close log %s", each.directory, exc_info=error)
    return good
