"""The logs that live in one directory, and the checkpoints that are kept of them.

The checkpoints are written by housekeeping in a thread, and at once, on the loop, by a truncation
that lowers a recovery point. So each write takes its values under the lock under which it writes:
what is on the disk is never older than a write that has returned. A file whose content would not
change is not written: an idle broker does not wake the disk.
"""

from __future__ import annotations

import errno
import threading
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from typing import Protocol

import trio

from odradek.storage.directories.checkpoints import Checkpoint
from odradek.storage.directories.directory import LogDirectory
from odradek.storage.directories.names import TopicPartition
from odradek.storage.directories.placement import Content
from odradek.storage.log.partition_log import PartitionLog


class Checkpointed(Protocol):
    """What a checkpoint says of a log; the copy of one that is about to take its name says it too."""

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


# A log that starts at 0 needs no entry: that is what a missing one means. One whose recovery point is not past
# the gaps that it was found with has none: recovery is to find them again, and let them be.
VALUES: Mapping[Checkpoint, Callable[[Checkpointed], int | None]] = {
    Checkpoint.RECOVERY_POINT: lambda log: (
        log.recovery_point if log.recovery_point >= log.last_accepted_gap_end else None
    ),
    Checkpoint.LOG_START: lambda log: log.log_start_offset or None,
    Checkpoint.HIGH_WATERMARK: lambda log: log.high_watermark,
    Checkpoint.CLEANER: lambda log: log.cleaned_to,
}

MEASURED_AT_ONCE = 10
"""Logs whose sizes are asked for between two turns of the others on the loop: the first time, every
segment's file has to be opened."""


class DirectoryLogs:
    """One directory's part of the log manager's state; changed on the loop alone."""

    def __init__(self, directory: LogDirectory) -> None:
        self.directory = directory
        self.logs: dict[TopicPartition, PartitionLog] = {}
        self.incoming_logs: dict[TopicPartition, Checkpointed] = {}
        """Copies that are about to become logs of this directory."""
        self.moving_in: set[PartitionLog] = set()
        self.moving_out: set[PartitionLog] = set()
        """Logs of which a copy is being made here, or elsewhere: placement counts them there."""
        self.pending_creations = 0
        """Logs under way into this directory: placement counts them."""
        self.loaded = False
        """Whether every log in it was opened: without that there is no clean shutdown."""
        self.is_whole = True
        """False once a log in it could not be opened or closed: that costs the clean mark too."""
        self.unserved: dict[TopicPartition, set[str]] = {}
        """What is in here of partitions that are not in `logs`, by the names of its directories. As long as
        there is any the checkpoints keep what they said of the partition at start."""
        self.maintenance = trio.Lock()
        """Held by whoever flushes, deletes from or renames a log here: one at a time."""
        self._at_start: dict[Checkpoint, dict[TopicPartition, int]] = {}
        self._written: dict[Checkpoint, dict[TopicPartition, int]] = {}
        self._writing = threading.Lock()

    @property
    def count(self) -> int:
        return len(self.logs) + self.pending_creations + len(self.moving_in) - len(self.moving_out)

    async def measure(self) -> Content:
        """What is in here by what its logs know; the loop goes on meanwhile."""
        size_bytes = 0
        counted = [log for log in self.logs.values() if log not in self.moving_out]
        for number, log in enumerate((*counted, *self.moving_in)):
            if number % MEASURED_AT_ONCE == 0:
                await trio.lowlevel.checkpoint()
            with suppress(OSError, ValueError):  # its files went, or it was closed, meanwhile
                size_bytes += log.size_bytes
        return Content(size_bytes, self.count)

    def read_checkpoint(self, kind: Checkpoint) -> dict[TopicPartition, int]:
        """At start; also what later writes are compared with."""
        offsets = self._at_start[kind] = self.directory.read_checkpoint(kind)
        self._written[kind] = dict(offsets)
        return offsets

    def write_checkpoints(self, kinds: Iterable[Checkpoint] = tuple(VALUES)) -> None:
        """Durable when it returns. From any thread. Raises OSError: the old ones stay."""
        for kind in kinds:
            with self._writing:
                self._write(kind)

    def remove_checkpoints(self) -> None:
        """Durable when it returns: the next write makes them anew. Raises OSError."""
        with self._writing:
            self._written.clear()
            for kind in VALUES:
                self.directory.remove_checkpoint(kind)
            self.directory.files.sync_directory(self.directory.path)

    def keep_offline(self, name: TopicPartition, directory: str) -> None:
        """It is in here, and not served."""
        self.unserved.setdefault(name, set()).add(directory)

    def release(self, name: TopicPartition, directory: str) -> None:
        """It is served, or not in here any more. From any thread."""
        there = self.unserved.get(name, set())
        there.discard(directory)
        if not there:
            self.unserved.pop(name, None)

    def forget(self, name: TopicPartition) -> None:
        """Before a log of that name is made here: no checkpoint says anything of an earlier one, durably.
        A swap that was given up leaves such entries, or a full disk. From any thread. Raises OSError."""
        self.unserved.pop(name, None)
        for kind in VALUES:
            with self._writing:
                if name in self._written.get(kind, (name,)):
                    self._write(kind)

    def _write(self, kind: Checkpoint) -> None:
        value = VALUES[kind]
        at_start = self._at_start.get(kind, {})
        logs = self.logs.copy()  # by the loop
        there: dict[TopicPartition, Checkpointed] = {**self.incoming_logs.copy(), **logs}
        offsets = {
            name: at_start[name]
            for name in self.unserved.copy()
            if name in at_start and name not in there
        }
        offsets |= {
            name: offset for name, log in there.items() if (offset := value(log)) is not None
        }
        if (
            self.directory.failed
        ):  # asked once the logs are known: it is failed before they are dropped
            raise OSError(errno.EIO, "it is offline", str(self.directory.path / kind.value))
        if offsets != self._written.get(kind):
            self._written.pop(kind, None)
            self.directory.write_checkpoint(kind, offsets)
            self._written[kind] = offsets
        if kind is Checkpoint.RECOVERY_POINT:
            for name in offsets.keys() & logs.keys():
                logs[name].is_checkpointed = True
