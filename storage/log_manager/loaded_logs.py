"""What becomes of a log that was found at start: served, or known and withheld.

A log in a directory that failed meanwhile is offline with it, and does not count where the partition is in
another one: as if it had failed before the start. One that makes no sense is offline by itself. A partition
that is found in several directories is served from none until one alone is left: which of the copies is right
cannot be known here. But for a copy that holds nothing: a directory that fails while a log is made in it has
one, and the log is in another. It is removed. And but for one that the cluster does not have here, as of
another topic: a directory that was away while the topic was deleted and made anew has it. It is a stray, and
so may the other one be.
What is withheld keeps its entries in the checkpoints, and its directory gets no mark of a clean
shutdown where it could not be closed.
"""

from __future__ import annotations

import logging

from odradek.seams.offload import Offload
from odradek.storage.directories.names import TopicPartition
from odradek.storage.errors import LogFailed
from odradek.storage.log.partition_log import PartitionLog
from odradek.storage.log_manager import shutdown
from odradek.storage.log_manager.directory_logs import DirectoryLogs
from odradek.storage.log_manager.loading import LogLoadFailure
from odradek.storage.log_manager.registry import IsStray, LogRegistry, OfflineLog, offline_reason

log = logging.getLogger(__name__)


class LoadedLogs:
    """Of logs that a start has found. On the loop."""

    def __init__(self, registry: LogRegistry, offload: Offload, is_stray: IsStray) -> None:
        self.strays: list[tuple[DirectoryLogs, PartitionLog]] = []
        """Not served, for another log has their name: to be set aside."""
        self._registry = registry
        self._offload = offload
        self._is_stray = is_stray

    async def adopt(
        self, home: DirectoryLogs, name: TopicPartition, found: PartitionLog | LogLoadFailure
    ) -> None:
        """A log was found: it is served if it is whole, and in no other directory, but for one without a
        record or a stray."""
        registry = self._registry
        opened = found if isinstance(found, PartitionLog) else None
        if home.directory.failed:
            reason = offline_reason(home.directory)
            if opened is not None:
                opened.fail(LogFailed(reason))
            if name not in registry.logs:
                registry.offline[name] = OfflineLog(
                    reason, None if opened is None else opened.topic_id
                )
        elif isinstance(found, LogLoadFailure):
            home.is_whole = False
            await self._withhold(home, name, None, found.reason)
        elif (other := registry.logs.get(name)) is not None:
            await self._adopt_beside(other, home, name, found)
        elif self._is_withheld(name):
            await self._withhold(home, name, found, f"{name} is in {found.directory}")
        else:
            registry.offline.pop(name, None)  # it is in a directory that failed meanwhile, too
            registry.add(home, name, found)

    async def _adopt_beside(
        self, other: PartitionLog, home: DirectoryLogs, name: TopicPartition, found: PartitionLog
    ) -> None:
        registry = self._registry
        if _holds_nothing(found, beside=other):
            await self._remove(home, found)
        elif _holds_nothing(other, beside=found):
            its_home, _ = registry.remove(name)
            registry.add(home, name, found)
            await self._remove(its_home, other)
        elif self._is_stray(name, found.topic_id):
            self.strays.append((home, found))
        elif self._is_stray(name, other.topic_id):
            self.strays.append(registry.remove(name))
            registry.add(home, name, found)
        else:
            await self._withhold(home, name, found, f"{name} is in {found.directory}")

    def _is_withheld(self, name: TopicPartition) -> bool:
        """Whether there is a log of that name in a directory that is online."""
        return any(str(name) in home.unserved.get(name, ()) for home in self._registry.homes())

    async def _remove(self, home: DirectoryLogs, copy: PartitionLog) -> None:
        """Durably: should it come back beside a move's copy that has all the records, the copy would be made
        to follow it. A crash in the midst: it is found again, and as empty."""
        log.warning("%s is empty, and in another log directory, too: it is removed", copy.directory)
        directory = home.directory

        def remove() -> None:
            copy.delete()
            directory.files.sync_directory(directory.path)

        try:
            await self._offload.run(remove, lane=directory.lane)
        except OSError as error:
            directory.report(error)

    async def _withhold(
        self, home: DirectoryLogs, name: TopicPartition, found: PartitionLog | None, reason: str
    ) -> None:
        """It is not served; nor are its copies."""
        registry = self._registry
        copies = [] if found is None else [(home, found)]
        home.keep_offline(name, str(name))
        topic_id = None if found is None else found.topic_id
        if name in registry.logs:
            its_home, other = registry.remove(name)
            its_home.keep_offline(name, str(name))
            copies.append((its_home, other))
            topic_id = topic_id or other.topic_id
            reason += (
                f" and in {other.directory}: stop the broker and remove the older one "
                f"(a move between directories was cut short)"
            )
        lost = registry.offline.get(name)
        if lost is not None:
            topic_id = topic_id or lost.topic_id
            reason += f"; {lost.reason}"
        if copies:
            log.error("%s", reason)
        registry.offline[name] = OfflineLog(reason, topic_id)
        for its_home, copy in copies:
            lane = its_home.directory.lane
            if not await self._offload.run(shutdown.close_logs, (copy,), lane=lane):
                its_home.is_whole = False


def _holds_nothing(found: PartitionLog, *, beside: PartitionLog) -> bool:
    """Whether no record is in it, nor was before it, and it is of the topic whose log `beside` is, or does not say."""
    return found.end_offset == 0 and found.topic_id in (None, beside.topic_id)
