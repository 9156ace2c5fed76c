"""Deletion of logs: rename to `-delete`, then removal after `file.delete.delay.ms`; rename of stray logs
to `-stray`.

Readers have that delay to finish; pinned slices stay readable longer. Directories that remain at
shutdown or after a crash keep their `-delete` name, and the next start schedules them again. The rename
is durable before a file is unlinked, so a start never finds a live directory with missing files.
"""

from __future__ import annotations

import heapq
import itertools
import logging
from collections.abc import Awaitable, Callable, Iterable, Sequence

import trio

from odradek.protocol.topics import TopicPartition
from odradek.seams.clock import Clock
from odradek.seams.entropy import Entropy
from odradek.seams.files import Files, OutOfDescriptors, Path
from odradek.seams.offload import Offload
from odradek.seams.values import value_class
from odradek.storage.directories import names
from odradek.storage.directories.io_errors import DISK_FULL_ERRNOS
from odradek.storage.directories.log_directory import LogDirectory
from odradek.storage.errors import LogFailed, StorageError
from odradek.storage.file_descriptor_retry import RETRY_SECONDS, retry_without_descriptors
from odradek.storage.log.partition_log import PartitionLog
from odradek.storage.log_registry.directory_logs import DirectoryLogs
from odradek.storage.log_registry.registry import LogRegistry, offline_reason

_logger = logging.getLogger("odradek.log_manager")

IDLE_SECONDS = 3600.0
REST_RATIO = 3
REST_SECONDS_MAX = 0.02
"""After each removal the task sleeps REST_RATIO times the duration of the removal, at most
REST_SECONDS_MAX: deleting a thousand topics must not delay other disk operations."""


@value_class
class LogRename:
    """A partition's directory and the name that it is renamed to."""

    name: TopicPartition
    old: Path
    new: Path
    log: PartitionLog | None
    """The open log, which is no longer in `DirectoryLogs.logs`."""
    keep: bool
    """Whether to close the log cleanly before the rename, as for a stray log."""


class LogRemoval:
    """Renames logs to `-delete` or `-stray`, and schedules the removal of the former."""

    def __init__(
        self,
        registry: LogRegistry,
        directory_deletion: DirectoryDeletion,
        files: Files,
        clock: Clock,
        entropy: Entropy,
        offload: Offload,
        cancel_moves: Callable[..., Awaitable[None]],
    ) -> None:
        self._cancel_moves = cancel_moves
        self._registry = registry
        self._directory_deletion = directory_deletion
        self._files = files
        self._clock = clock
        self._entropy = entropy
        self._offload = offload

    async def delete(self, partitions: Iterable[TopicPartition]) -> None:
        """Delete logs; see `LogManager.delete` for the errors."""
        wanted = tuple(partitions)
        for directory_logs, each in await self._rename_and_unregister(wanted, keep=False):
            assert each.log is not None
            delay_ms = each.log.config.file_delete_delay_ms
            self._directory_deletion.schedule(directory_logs.directory, each.new, delay_ms)
        lost = [name for name in wanted if name in self._registry.offline]
        if lost:
            raise LogFailed(self._registry.offline[lost[0]].reason)

    async def rename_to_stray(self, strays: Iterable[TopicPartition]) -> None:
        """Rename logs that are served to `-stray`, and close them."""
        for _, each in await self._rename_and_unregister(strays, keep=True):
            _log_stray(each)

    async def rename_found_to_stray(
        self,
        directory_logs: DirectoryLogs,
        name: TopicPartition,
        directories: Iterable[str],
        opened: PartitionLog | None = None,
    ) -> None:
        """Rename the directories of a partition in `directory_logs` to `-stray`; its log is not served, and no
        other task uses its name."""
        leaving = [
            self._leaving(directory_logs, name, each, opened, keep=True) for each in directories
        ]
        try:
            await self._rename(directory_logs, leaving)
        except OSError as error:
            directory_logs.directory.fail(error)
        else:
            for each in leaving:
                _log_stray(each)

    async def rename_offline_to_stray(self, name: TopicPartition) -> None:
        """Rename everything of a partition that is not served to `-stray`."""
        await self._registry.wait_until_free(name)
        with self._registry.claim(name), trio.CancelScope(shield=True):
            for directory_logs in self._registry.online_directories():
                if name in directory_logs.offline_directories:
                    await self.rename_found_to_stray(
                        directory_logs, name, sorted(directory_logs.offline_directories[name])
                    )

    async def _rename_and_unregister(
        self, partitions: Iterable[TopicPartition], *, keep: bool
    ) -> list[tuple[DirectoryLogs, LogRename]]:
        """Rename the logs and remove their checkpoint entries, durably.

        All names are claimed together once none is busy, so that two callers cannot wait for each other.
        After that the operation is not cancelled.
        """
        registry = self._registry
        wanted = dict.fromkeys(partitions)
        await registry.wait_until_free(*wanted)
        taken = [name for name in wanted if name in registry.logs]
        gone: list[tuple[DirectoryLogs, LogRename]] = []
        with registry.claim(*taken):
            await self._cancel_moves(*taken)
            # The directory of a log may have failed meanwhile
            taken = [name for name in taken if name in registry.logs]
            leaving = self._forget(taken, keep=keep)
            with trio.CancelScope(shield=True):
                async with trio.open_nursery() as nursery:
                    for directory_logs, group in leaving.items():
                        nursery.start_soon(self._rename_or_fence, directory_logs, group, gone)
        return gone

    def _forget(
        self, partitions: Iterable[TopicPartition], *, keep: bool
    ) -> dict[DirectoryLogs, list[LogRename]]:
        leaving: dict[DirectoryLogs, list[LogRename]] = {}
        for name in partitions:
            directory_logs, partition_log = self._registry.remove(name)
            if not keep:
                partition_log.fail(LogFailed(f"{name} is deleted"))
            leaves = self._leaving(directory_logs, name, str(name), partition_log, keep=keep)
            leaving.setdefault(directory_logs, []).append(leaves)
        return leaving

    def _leaving(
        self,
        directory_logs: DirectoryLogs,
        name: TopicPartition,
        directory: str,
        opened: PartitionLog | None,
        *,
        keep: bool,
    ) -> LogRename:
        new_name = names.stray_name if keep else names.deleted_name
        aside = directory_logs.directory.path / new_name(*name, self._entropy.uuid())
        return LogRename(name, directory_logs.directory.path / directory, aside, opened, keep)

    async def _rename_or_fence(
        self,
        directory_logs: DirectoryLogs,
        group: list[LogRename],
        gone: list[tuple[DirectoryLogs, LogRename]],
    ) -> None:
        """Rename the directories, and add them to `gone`; on an error, take the log directory offline and
        fence the logs."""
        try:
            await self._rename(directory_logs, group)
        except OSError as error:
            directory_logs.directory.fail(error)
            for each in group:
                assert each.log is not None
                self._registry.fence(each.name, each.log, offline_reason(directory_logs.directory))
        else:
            gone += [(directory_logs, each) for each in group]

    async def _rename(self, directory_logs: DirectoryLogs, group: Sequence[LogRename]) -> None:
        """Rename the directories, sync, then write checkpoints without them. Raises OSError."""
        async with directory_logs.file_lock:
            await retry_without_descriptors(
                self._clock,
                self._offload,
                _rename_away,
                self._files,
                directory_logs,
                group,
                lane=directory_logs.directory.lane,
            )


def _log_stray(stray: LogRename) -> None:
    _logger.warning(
        "log %s is not assigned to this broker. It is marked as stray and renamed to %s",
        stray.old,
        stray.new,
    )


def _rename_away(files: Files, directory_logs: DirectoryLogs, leaving: Sequence[LogRename]) -> None:
    """Close the logs and rename their directories, in a worker thread; may be repeated."""
    for each in leaving:
        if each.keep and each.log is not None:
            _close(each.log, clean=True)
        if files.exists(each.old):
            files.rename(each.old, each.new)
        if not each.keep and each.log is not None:
            _close(each.log, clean=False)
    files.sync_directory(directory_logs.directory.path)
    for each in leaving:
        directory_logs.release(each.name, each.old.name)
    _write_remaining_checkpoints(directory_logs)


def _write_remaining_checkpoints(directory_logs: DirectoryLogs) -> None:
    """Write checkpoints without the removed logs, in a worker thread. Raises OSError."""
    try:
        directory_logs.write_checkpoints()
    except OSError as error:
        if error.errno not in DISK_FULL_ERRNOS:
            raise
        # The disk is full and the deletion frees space. Without the checkpoint files the next
        # start reads more, but no new log gets the entries of a deleted one.
        directory_logs.remove_checkpoints()


def _close(partition_log: PartitionLog, *, clean: bool) -> None:
    try:
        partition_log.close(clean=clean)
    except StorageError as error:
        _logger.warning("failed to close log %s: %s", partition_log.directory, error)
    except Exception as error:  # an unexpected error: the log is removed all the same
        _logger.error("failed to close log %s", partition_log.directory, exc_info=error)


class DirectoryDeletion:
    """Queue of directories to remove, and the task that removes them."""

    def __init__(self, files: Files, clock: Clock, offload: Offload) -> None:
        self._files = files
        self._clock = clock
        self._offload = offload
        self._queue: list[tuple[float, int, LogDirectory, Path]] = []
        self._serial = itertools.count()
        self._changed = trio.Event()

    def __len__(self) -> int:
        return len(self._queue)

    def schedule(self, directory: LogDirectory, path: Path, delay_ms: int) -> None:
        """Remove `path` with its content after `delay_ms`."""
        due = self._clock.monotonic() + delay_ms / 1000
        heapq.heappush(self._queue, (due, next(self._serial), directory, path))
        self._changed.set()

    async def rename_moved_for_kafka(self, entropy: Entropy) -> None:
        """Rename the `.delete` directories of moves to Kafka's `-delete` at a clean shutdown: Kafka
        does not start with the other name. Errors are logged."""
        for _, _, directory, path in self._queue:
            parsed = names.parse(path.name)
            if directory.failed or parsed.state is not names.PartitionDirectoryState.MOVED_AWAY:
                continue
            new = directory.path / names.deleted_name(*parsed.topic_partition, entropy.uuid())
            try:
                await self._offload.run(self._rename, path, new, lane=directory.lane)
            except FileNotFoundError:
                pass
            except OutOfDescriptors as error:
                _logger.warning("failed to rename %s: %s", path, error)
            except OSError as error:
                directory.report(error, files_unchanged=True)
        self._queue.clear()

    def _rename(self, old: Path, new: Path) -> None:
        self._files.rename(old, new)
        self._files.sync_directory(new.parent)

    async def run(self) -> None:
        """Remove directories until cancelled; a removal in progress is completed first."""
        while True:
            wait = self._queue[0][0] - self._clock.monotonic() if self._queue else IDLE_SECONDS
            if wait <= 0:
                await self._remove_first()
                continue
            self._changed = trio.Event()
            with trio.move_on_after(wait):
                await self._changed.wait()

    async def _remove_first(self) -> None:
        _, _, directory, path = heapq.heappop(self._queue)
        if directory.failed:
            return
        began = self._clock.monotonic()
        try:
            await self._offload.run(self._files.remove_tree, path, lane=directory.lane)
        except OutOfDescriptors:
            self.schedule(directory, path, int(RETRY_SECONDS * 1000))
        except FileNotFoundError:  # an operator may have removed it already
            await self._look_again(directory, path)
        except OSError as error:
            directory.report(error)
        else:
            _logger.info("deleted %s", path)
        rest = REST_RATIO * (self._clock.monotonic() - began)
        await self._clock.sleep(min(rest, REST_SECONDS_MAX))

    async def _look_again(self, directory: LogDirectory, path: Path) -> None:
        try:
            is_there = await self._offload.run(self._files.exists, path, lane=directory.lane)
        except OSError as error:
            directory.report(error)
        else:
            if is_there:
                self.schedule(directory, path, int(RETRY_SECONDS * 1000))
