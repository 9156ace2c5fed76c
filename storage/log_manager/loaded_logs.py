"""Registration of the logs that a start has loaded: which are served, and which are offline.

A log whose directory failed meanwhile is offline with it, and does not conflict with a log of the
partition in another directory. A log that cannot be opened is offline alone. A partition found in
several directories is served from none, because it is not known which copy is current, with two
exceptions:

- An empty copy is removed. A directory that failed during the creation of a log leaves one.
- A copy with a topic id that the cluster does not assign here is a stray log. A directory that was
  offline while the topic was deleted and recreated has one.

Offline logs keep their checkpoint entries. Their directory gets no clean shutdown file if they could not
be closed.
"""

from __future__ import annotations

import logging

from odradek.protocol.topics import TopicPartition
from odradek.seams.offload import Offload
from odradek.storage.errors import LogFailed
from odradek.storage.log.partition_log import PartitionLog
from odradek.storage.log_manager.loading import LogLoadFailure
from odradek.storage.log_registry.directory_logs import DirectoryLogs, close_logs
from odradek.storage.log_registry.registry import IsStray, LogRegistry, OfflineLog, offline_reason

_logger = logging.getLogger("odradek.log_manager")


class LoadedLogs:
    """Registers the logs of one start, on the loop."""

    def __init__(self, registry: LogRegistry, offload: Offload, is_stray: IsStray) -> None:
        self.strays: list[tuple[DirectoryLogs, PartitionLog]] = []
        """Logs that are not served because another log has their name; they become stray logs."""
        self._registry = registry
        self._offload = offload
        self._is_stray = is_stray

    async def adopt(
        self,
        directory_logs: DirectoryLogs,
        name: TopicPartition,
        found: PartitionLog | LogLoadFailure,
    ) -> None:
        """Register a loaded log: it is served unless another directory has a log of the partition
        that is neither empty nor stray."""
        registry = self._registry
        opened = found if isinstance(found, PartitionLog) else None
        if directory_logs.directory.failed:
            reason = offline_reason(directory_logs.directory)
            if opened is not None:
                opened.fail(LogFailed(reason))
            if name not in registry.logs:
                registry.offline[name] = OfflineLog(
                    reason, None if opened is None else opened.topic_id
                )
        elif isinstance(found, LogLoadFailure):
            directory_logs.is_whole = False
            await self._register_offline(directory_logs, name, None, found.reason)
        elif (other := registry.logs.get(name)) is not None:
            await self._resolve_duplicate(other, directory_logs, name, found)
        elif self._is_offline(name):
            await self._register_offline(
                directory_logs, name, found, f"{name} is in {found.directory}"
            )
        else:
            registry.offline.pop(name, None)  # the directory failed meanwhile
            registry.add(directory_logs, name, found)

    async def _resolve_duplicate(
        self,
        other: PartitionLog,
        directory_logs: DirectoryLogs,
        name: TopicPartition,
        found: PartitionLog,
    ) -> None:
        registry = self._registry
        if _holds_nothing(found, other_log=other):
            await self._remove(directory_logs, found)
        elif _holds_nothing(other, other_log=found):
            other_directory_logs, _ = registry.remove(name)
            registry.add(directory_logs, name, found)
            await self._remove(other_directory_logs, other)
        elif self._is_stray(name, found.topic_id):
            self.strays.append((directory_logs, found))
        elif self._is_stray(name, other.topic_id):
            self.strays.append(registry.remove(name))
            registry.add(directory_logs, name, found)
        else:
            await self._register_offline(
                directory_logs, name, found, f"{name} is in {found.directory}"
            )

    def _is_offline(self, name: TopicPartition) -> bool:
        """Whether an online directory has a log of that name that is not served."""
        return any(
            str(name) in directory_logs.offline_directories.get(name, ())
            for directory_logs in self._registry.online_directories()
        )

    async def _remove(self, directory_logs: DirectoryLogs, copy: PartitionLog) -> None:
        """Remove an empty copy durably: otherwise the future replica of a move could be truncated to
        match it. After a crash the copy is found again."""
        _logger.warning(
            "duplicate log directories found: deleting %s, because it is empty", copy.directory
        )
        directory = directory_logs.directory

        def remove() -> None:
            copy.delete()
            directory.files.sync_directory(directory.path)

        try:
            await self._offload.run(remove, lane=directory.lane)
        except OSError as error:
            directory.report(error)

    async def _register_offline(
        self,
        directory_logs: DirectoryLogs,
        name: TopicPartition,
        found: PartitionLog | None,
        reason: str,
    ) -> None:
        """Register a log as offline; its other copies are closed."""
        registry = self._registry
        copies = [] if found is None else [(directory_logs, found)]
        directory_logs.keep_offline(name, str(name))
        topic_id = None if found is None else found.topic_id
        if name in registry.logs:
            other_directory_logs, other = registry.remove(name)
            other_directory_logs.keep_offline(name, str(name))
            copies.append((other_directory_logs, other))
            topic_id = topic_id or other.topic_id
            reason += (
                f" and in {other.directory} (an interrupted move between directories): stop the broker "
                f"and delete the older copy"
            )
        lost = registry.offline.get(name)
        if lost is not None:
            topic_id = topic_id or lost.topic_id
            reason += f"; {lost.reason}"
        if copies:
            _logger.error("cannot load log %s: %s", name, reason)
        registry.offline[name] = OfflineLog(reason, topic_id)
        for other_directory_logs, copy in copies:
            lane = other_directory_logs.directory.lane
            if not await self._offload.run(close_logs, (copy,), lane=lane):
                other_directory_logs.is_whole = False


def _holds_nothing(found: PartitionLog, *, other_log: PartitionLog) -> bool:
    """Whether a log never had a record, and its topic id is unknown or equal to that of `other_log`."""
    return found.end_offset == 0 and found.topic_id in (None, other_log.topic_id)
