"""Creation of a partition's log in the log directory that `directories/replica_placement.py` prefers.

Order: write checkpoints without entries of an earlier log of the same name, create the partition's
directory and files, sync the log directory, then publish the log. A crash before the end leaves a log
without records: the next start opens it, or renames it to `-stray` if the cluster does not assign the
partition. If a directory fails meanwhile, the next preferred one is used.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from uuid import UUID

import trio

from odradek.protocol.topics import TopicPartition
from odradek.seams.clock import Clock
from odradek.seams.files import OutOfDescriptors, Path
from odradek.seams.offload import Offload
from odradek.storage.directories import replica_placement
from odradek.storage.errors import (
    DiskFull,
    InconsistentTopicId,
    LogFailed,
    NoDescriptors,
    StorageError,
)
from odradek.storage.log.config import LogConfig
from odradek.storage.log.partition_log import PartitionLog
from odradek.storage.log.partition_metadata import CorruptMetadata
from odradek.storage.log_manager.loading import LogOpener
from odradek.storage.log_registry.directory_logs import DirectoryLogs
from odradek.storage.log_registry.registry import LogRegistry, offline_reason


class LogCreation:
    """Creates logs; concurrent calls for one partition wait for each other."""

    def __init__(
        self,
        registry: LogRegistry,
        opener: LogOpener,
        clock: Clock,
        offload: Offload,
        config_for: Callable[[str], LogConfig],
    ) -> None:
        self._registry = registry
        self._clock = clock
        self._estimate: replica_placement.PlacementEstimate[DirectoryLogs] = (
            replica_placement.PlacementEstimate()
        )
        self._measuring = trio.Lock()
        self._opener = opener
        self._offload = offload
        self._config_for = config_for

    async def create(
        self,
        name: TopicPartition,
        topic_id: UUID,
        config: LogConfig | None,
        *,
        is_new: bool,
        directory_id: UUID | None,
    ) -> PartitionLog:
        """Create the log, or return the existing one; see `LogManager.create`."""
        registry = self._registry
        await registry.wait_until_free(name)
        existing = registry.logs.get(name)
        if existing is not None:
            if existing.topic_id not in (None, topic_id):
                raise InconsistentTopicId(
                    f"topic ID in the log of {name} is {existing.topic_id}, but the provided topic ID is "
                    f"{topic_id}"
                )
            return existing
        lost = registry.offline.get(name)
        if lost is not None and (not is_new or lost.topic_id == topic_id):
            raise LogFailed(lost.reason)
        if not is_new and not registry.are_all_online:
            raise LogFailed(f"cannot create log for {name} because a log directory is offline")
        with registry.claim(name):
            return await self._create(name, topic_id, config, directory_id)

    async def _create(
        self,
        name: TopicPartition,
        topic_id: UUID,
        config: LogConfig | None,
        directory_id: UUID | None,
    ) -> PartitionLog:
        """Create the log in the first directory where that succeeds. Raises the error of the last
        one."""
        wanted = self._registry.preferred.get(name)
        uses_topic_config = config is None
        config = self._config_for(name.topic) if config is None else config
        failed: StorageError = LogFailed(
            f"cannot create log for {name}: no log directory is online"
        )
        for directory_logs in await self._places(wanted, directory_id):
            try:
                opened = await self._create_in(directory_logs, name, topic_id, config)
            except (LogFailed, DiskFull) as error:
                failed = error
                continue
            if uses_topic_config:  # the config may have changed meanwhile
                opened.update_config(self._config_for(name.topic))
            self._registry.offline.pop(name, None)
            self._registry.preferred.pop(name, None)
            self._registry.add(directory_logs, name, opened)
            return opened
        raise failed

    async def _places(
        self, wanted: Path | None, directory_id: UUID | None
    ) -> Sequence[DirectoryLogs]:
        """Candidate directories, best first; the caller reserves its choice before it awaits."""
        wanted_home = None if wanted is None else self._registry.logs_by_directory.get(wanted)
        if wanted_home is not None and not wanted_home.directory.failed:
            return [wanted_home]
        every = self._registry.logs_by_directory.values()
        if directory_id is not None and any(each.directory.id == directory_id for each in every):
            return [
                directory_logs
                for directory_logs in self._registry.online_directories()
                if directory_logs.directory.id == directory_id
            ]
        await self._measure()
        return replica_placement.order_candidates(
            replica_placement.PlacementCandidate(
                directory_logs,
                self._estimate.size_bytes(directory_logs),
                directory_logs.count,
                directory_logs.directory.path in self._registry.cordoned,
            )
            for directory_logs in self._registry.online_directories()
        )

    async def _measure(self) -> None:
        """Measure the directories at the first creation after a pause; see replica_placement.py."""
        async with self._measuring:
            if self._estimate.is_stale(self._clock.monotonic()):
                content = {
                    directory_logs: await directory_logs.measure()
                    for directory_logs in self._registry.online_directories()
                }
                self._estimate.measured(content, self._clock.monotonic())

    async def _create_in(
        self, directory_logs: DirectoryLogs, name: TopicPartition, topic_id: UUID, config: LogConfig
    ) -> PartitionLog:
        """Create the log in one directory. Raises LogFailed and DiskFull, after which the next
        directory is tried, and NoDescriptors."""
        directory = directory_logs.directory
        directory_logs.pending_creations += 1
        self._estimate.reserved(directory_logs, self._clock.monotonic())
        made = False
        try:
            opened = await self._offload.run(
                self._opener.create, directory_logs, name, topic_id, config, lane=directory.lane
            )
        except OutOfDescriptors as error:
            raise NoDescriptors(f"cannot create log for {name}: {error}") from error
        except OSError as error:
            kind = LogFailed if directory.report(error, files_unchanged=True) else DiskFull
            raise kind(f"cannot create log for {name}: {error}") from error
        except CorruptMetadata as error:
            raise LogFailed(f"{directory.path_of(*name)}: {error}") from error
        else:
            made = True
        finally:
            directory_logs.pending_creations -= 1
            if not made:
                self._estimate.released(directory_logs)
        if directory.failed:
            opened.fail(LogFailed(offline_reason(directory)))
            raise LogFailed(offline_reason(directory))
        return opened
