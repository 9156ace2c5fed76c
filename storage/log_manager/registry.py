"""Which logs a node has, in which directory each is, and which cannot be served.

Plain state without I/O, changed on the loop alone; `log_creation`, `log_removal`, `log_adoption` and
the manager change it together with the disk. Invariants:

- A name is in `logs` or in `offline`, or in neither (it is not here); a log in `logs` is in the
  `DirectoryLogs.logs` of exactly the directory that its path is in.
- Whoever changes what is on the disk for a name claims it in `busy` first; who finds it claimed waits.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from typing import NamedTuple
from uuid import UUID

import trio

from odradek.seams.files import Path
from odradek.storage.directories.directory import LogDirectory
from odradek.storage.directories.names import TopicPartition
from odradek.storage.errors import LogFailed
from odradek.storage.log.partition_log import PartitionLog
from odradek.storage.log_manager.directory_logs import DirectoryLogs


class OfflineLog(NamedTuple):
    """A log that is here and cannot be served; whose it is, as far as is known."""

    reason: str
    topic_id: UUID | None


IsStray = Callable[[TopicPartition, UUID | None], bool]
"""Whether the cluster does not have that partition here, of the topic of that id; None: it does not say whose
it is."""


def no_stray_logs(name: TopicPartition, topic_id: UUID | None) -> bool:
    return False


class LogRegistry:
    """See the module."""

    def __init__(self, directories: Iterable[LogDirectory]) -> None:
        self.every_home = {each.path: DirectoryLogs(each) for each in directories}
        """By the directory's path; those that are offline among them."""
        self.cordoned: frozenset[Path] = frozenset()
        """cordoned.log.dirs: they get no new partitions (KIP-1066)."""
        self.preferred: dict[TopicPartition, Path] = {}
        """Where replicas that are not here yet are to be created (J-03)."""
        self.logs: dict[TopicPartition, PartitionLog] = {}
        self.offline: dict[TopicPartition, OfflineLog] = {}
        self._busy: dict[TopicPartition, trio.Event] = {}

    # What there is

    def get(self, name: TopicPartition) -> PartitionLog | None:
        """None: not here. Raises LogFailed if it is here and cannot be served."""
        found = self.logs.get(name)
        if found is None and name in self.offline:
            raise LogFailed(self.offline[name].reason)
        return found

    def homes(self) -> Sequence[DirectoryLogs]:
        """The directories that are online, with their logs."""
        return [home for home in self.every_home.values() if not home.directory.failed]

    @property
    def are_all_online(self) -> bool:
        return not any(home.directory.failed for home in self.every_home.values())

    def home_of(self, log: PartitionLog) -> DirectoryLogs:
        """The directory a log is in. KeyError for a log of nobody's here."""
        return self.every_home[log.directory.parent]

    @asynccontextmanager
    async def maintenance_lock_held(self, log: PartitionLog) -> AsyncIterator[DirectoryLogs]:
        """Hold `maintenance` of the directory that the log is in: it may move while that is awaited."""
        while True:
            home = self.home_of(log)
            async with home.maintenance:
                if self.home_of(log) is home:
                    yield home
                    return

    # What changes

    def add(self, home: DirectoryLogs, name: TopicPartition, log: PartitionLog) -> None:
        """From here on it is served."""
        home.logs[name] = self.logs[name] = log

    def remove(self, name: TopicPartition) -> tuple[DirectoryLogs, PartitionLog]:
        """It is served no longer; KeyError if it was not."""
        log = self.logs.pop(name)
        home = self.home_of(log)
        del home.logs[name]
        return home, log

    def relocated(
        self, name: TopicPartition, log: PartitionLog, old: DirectoryLogs, new: DirectoryLogs
    ) -> None:
        """The log, which is served on, has its files in another directory now."""
        del old.logs[name]
        new.logs[name] = log

    def fence(self, name: TopicPartition, log: PartitionLog, reason: str) -> None:
        """It can be served no longer: every later call of it raises LogFailed."""
        log.fail(LogFailed(reason))
        self.logs.pop(name, None)
        self.offline[name] = OfflineLog(reason, log.topic_id)

    def drop(self, directory: LogDirectory) -> list[PartitionLog]:
        """Fence all logs of a directory that failed; which those were."""
        home = self.every_home.get(directory.path)
        if home is None:  # one of its own for the metadata log
            return []
        lost = list(home.logs.items())
        for name, log in lost:
            self.fence(name, log, offline_reason(directory))
        home.logs.clear()
        return [log for _, log in lost]

    # Who works on a name

    async def wait_until_free(self, *names: TopicPartition) -> None:
        """When this returns nobody works on any of them, until the caller awaits again."""
        while busy := [self._busy[name] for name in names if name in self._busy]:
            await busy[0].wait()

    def is_busy(self, name: TopicPartition) -> bool:
        return name in self._busy

    @contextmanager
    def claim(self, *names: TopicPartition) -> Iterator[None]:
        """Work on these names, which are free: others wait until the end."""
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
