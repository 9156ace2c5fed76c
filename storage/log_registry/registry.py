"""Registry of a node's logs: their directories, and which are offline.

State without I/O, changed only on the loop; creation, deletion, loading and moves change it together
with the disk. Invariants:

- A partition is in `logs` or in `offline`, or in neither (it is not on this node). A log in `logs` is in
  the `DirectoryLogs.logs` of exactly the directory of its path.
- A task claims a partition in `_busy` before it changes its files; other tasks wait.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from typing import NamedTuple
from uuid import UUID

import trio

from odradek.protocol.topics import TopicPartition
from odradek.seams.files import Path
from odradek.storage.directories.log_directory import LogDirectory
from odradek.storage.errors import LogFailed
from odradek.storage.log.partition_log import PartitionLog
from odradek.storage.log_registry.directory_logs import DirectoryLogs


class OfflineLog(NamedTuple):
    """A log on this node that cannot be served, with its topic id if known."""

    reason: str
    topic_id: UUID | None


IsStray = Callable[[TopicPartition, UUID | None], bool]
"""Whether the cluster does not assign the partition with that topic id to this node. None: the log
has no topic id."""


def no_stray_logs(name: TopicPartition, topic_id: UUID | None) -> bool:
    return False


class LogRegistry:
    """Logs and log directories of a node."""

    def __init__(self, directories: Iterable[LogDirectory]) -> None:
        self.logs_by_directory = {each.path: DirectoryLogs(each) for each in directories}
        """All log directories by path, offline ones included."""
        self.cordoned: frozenset[Path] = frozenset()
        """Directories of cordoned.log.dirs: they get no new partitions (KIP-1066)."""
        self.preferred: dict[TopicPartition, Path] = {}
        """Log directories requested for replicas that do not exist yet (J-03)."""
        self.logs: dict[TopicPartition, PartitionLog] = {}
        self.offline: dict[TopicPartition, OfflineLog] = {}
        self._busy: dict[TopicPartition, trio.Event] = {}

    def get(self, name: TopicPartition) -> PartitionLog | None:
        """The log of a partition; None if it is not on this node. Raises LogFailed if it is offline."""
        found = self.logs.get(name)
        if found is None and name in self.offline:
            raise LogFailed(self.offline[name].reason)
        return found

    def online_directories(self) -> Sequence[DirectoryLogs]:
        """The online log directories with their logs."""
        return [
            directory_logs
            for directory_logs in self.logs_by_directory.values()
            if not directory_logs.directory.failed
        ]

    @property
    def are_all_online(self) -> bool:
        return not any(
            directory_logs.directory.failed for directory_logs in self.logs_by_directory.values()
        )

    def directory_logs_of(self, log: PartitionLog) -> DirectoryLogs:
        """Directory of a log. Raises KeyError for an unknown directory."""
        return self.logs_by_directory[log.directory.parent]

    @asynccontextmanager
    async def holding_file_lock(self, log: PartitionLog) -> AsyncIterator[DirectoryLogs]:
        """Hold the file lock of the log's directory; if the log moves while waiting, that of its new
        directory."""
        while True:
            directory_logs = self.directory_logs_of(log)
            async with directory_logs.file_lock:
                if self.directory_logs_of(log) is directory_logs:
                    yield directory_logs
                    return

    def add(self, directory_logs: DirectoryLogs, name: TopicPartition, log: PartitionLog) -> None:
        """Register a log: from now on it is served."""
        directory_logs.logs[name] = self.logs[name] = log

    def remove(self, name: TopicPartition) -> tuple[DirectoryLogs, PartitionLog]:
        """Unregister a log. Raises KeyError if it is not served."""
        log = self.logs.pop(name)
        directory_logs = self.directory_logs_of(log)
        del directory_logs.logs[name]
        return directory_logs, log

    def relocated(
        self, name: TopicPartition, log: PartitionLog, old: DirectoryLogs, new: DirectoryLogs
    ) -> None:
        """Register that the files of a served log are in another directory."""
        del old.logs[name]
        new.logs[name] = log

    def fence(self, name: TopicPartition, log: PartitionLog, reason: str) -> None:
        """Take a log offline: every later call of it raises LogFailed."""
        log.fail(LogFailed(reason))
        self.logs.pop(name, None)
        self.offline[name] = OfflineLog(reason, log.topic_id)

    def drop(self, directory: LogDirectory) -> list[PartitionLog]:
        """Fence all logs of a failed directory, and return them."""
        directory_logs = self.logs_by_directory.get(directory.path)
        if directory_logs is None:  # a separate directory of the metadata log
            return []
        lost = list(directory_logs.logs.items())
        for name, log in lost:
            self.fence(name, log, offline_reason(directory))
        directory_logs.logs.clear()
        return [log for _, log in lost]

    async def wait_until_free(self, *names: TopicPartition) -> None:
        """Wait until no task has claimed any of the partitions; valid until the caller awaits again."""
        while busy := [self._busy[name] for name in names if name in self._busy]:
            await busy[0].wait()

    def is_busy(self, name: TopicPartition) -> bool:
        return name in self._busy

    @contextmanager
    def claim(self, *names: TopicPartition) -> Iterator[None]:
        """Claim partitions that are free; other tasks wait until the end of the block."""
        done = trio.Event()
        self._busy |= dict.fromkeys(names, done)
        try:
            yield
        finally:
            for name in names:
                del self._busy[name]
            done.set()


def offline_reason(directory: LogDirectory) -> str:
    return f"log directory {directory.path} is offline: {directory.failure}"
