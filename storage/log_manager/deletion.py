"""Taking logs away: renamed to `-delete` now, removed after `file.delete.delay.ms`; or `-stray`.

A reader that was in the middle of a deleted log has that long to finish; what it has pinned stays
readable even longer. What is left at shutdown, or after a crash in the middle of a removal, keeps
its `-delete` name and is scheduled anew by the next start. Order: the rename is durable before a
file is unlinked, so that no start ever finds a live directory with files missing.
"""

from __future__ import annotations

import heapq
import itertools
import logging
from collections.abc import Awaitable, Callable, Iterable, Sequence

import trio

from odradek.seams.clock import Clock
from odradek.seams.entropy import Entropy
from odradek.seams.files import Files, OutOfDescriptors, Path
from odradek.seams.offload import Offload
from odradek.seams.values import value_class
from odradek.storage.descriptors import RETRY_SECONDS, run_retrying_descriptors
from odradek.storage.directories import names
from odradek.storage.directories.directory import LogDirectory
from odradek.storage.directories.failure import NO_ROOM
from odradek.storage.directories.names import TopicPartition
from odradek.storage.errors import LogFailed, StorageError
from odradek.storage.log.partition_log import PartitionLog
from odradek.storage.log_manager.directory_logs import DirectoryLogs
from odradek.storage.log_manager.registry import LogRegistry, offline_reason

log = logging.getLogger(__name__)

IDLE_SECONDS = 3600.0
REST_RATIO = 3
REST_SECONDS_MAX = 0.02
"""After each directory there is a rest of so many times what it took, up to so long: the removal of a
thousand topics has all the time there is, and leaves it to whoever has not."""


@value_class
class LogRename:
    """A partition's directory on its way out, and its new name."""

    name: TopicPartition
    old: Path
    new: Path
    log: PartitionLog | None
    """What is open of it, no longer in `DirectoryLogs.logs`."""
    keep: bool
    """Whether it is closed whole (a stray), or only let go of."""


class LogRemoval:
    """Renames logs out of their names; what is not kept is scheduled for removal."""

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
        self._removals = directory_deletion
        self._files = files
        self._clock = clock
        self._entropy = entropy
        self._offload = offload

    async def delete(self, partitions: Iterable[TopicPartition]) -> None:
        """As `LogManager.delete`."""
        wanted = tuple(partitions)
        for home, each in await self._take_away(wanted, keep=False):
            assert each.log is not None
            delay_ms = each.log.config.file_delete_delay_ms
            self._removals.schedule(home.directory, each.new, delay_ms)
        lost = [name for name in wanted if name in self._registry.offline]
        if lost:
            raise LogFailed(self._registry.offline[lost[0]].reason)

    async def rename_to_stray(self, strays: Iterable[TopicPartition]) -> None:
        """Rename to `-stray`, and close, those that are served."""
        for _, each in await self._take_away(strays, keep=True):
            _log_stray(each)

    async def rename_found_to_stray(
        self,
        home: DirectoryLogs,
        name: TopicPartition,
        directories: Iterable[str],
        opened: PartitionLog | None = None,
    ) -> None:
        """As `rename_to_stray`, of what is in `home` and not served, nor anybody's to work on."""
        leaving = [self._leaving(home, name, each, opened, keep=True) for each in directories]
        try:
            await self._rename(home, leaving)
        except OSError as error:
            home.directory.fail(error)
        else:
            for each in leaving:
                _log_stray(each)

    async def rename_unserved_to_stray(self, name: TopicPartition) -> None:
        """As `rename_to_stray`, what is here of a partition and is not served."""
        await self._registry.wait_until_free(name)
        with self._registry.claim(name), trio.CancelScope(shield=True):
            for home in self._registry.homes():
                if name in home.unserved:
                    await self.rename_found_to_stray(home, name, sorted(home.unserved[name]))

    async def _take_away(
        self, partitions: Iterable[TopicPartition], *, keep: bool
    ) -> list[tuple[DirectoryLogs, LogRename]]:
        """Rename and forget; durable, and out of the checkpoints, when this returns.

        All names are claimed between two awaits, when none is busy: who waits holds none. From
        there on it is not cancelled.
        """
        registry = self._registry
        wanted = dict.fromkeys(partitions)
        await registry.wait_until_free(*wanted)
        taken = [name for name in wanted if name in registry.logs]
        gone: list[tuple[DirectoryLogs, LogRename]] = []
        with registry.claim(*taken):
            await self._cancel_moves(*taken)
            taken = [name for name in taken if name in registry.logs]  # a directory may have failed
            leaving = self._forget(taken, keep=keep)
            with trio.CancelScope(shield=True):
                async with trio.open_nursery() as nursery:
                    for home, group in leaving.items():
                        nursery.start_soon(self._rename_away, home, group, gone)
        return gone

    def _forget(
        self, partitions: Iterable[TopicPartition], *, keep: bool
    ) -> dict[DirectoryLogs, list[LogRename]]:
        leaving: dict[DirectoryLogs, list[LogRename]] = {}
        for name in partitions:
            home, which = self._registry.remove(name)
            if not keep:
                which.fail(LogFailed(f"{name} is deleted"))
            leaves = self._leaving(home, name, str(name), which, keep=keep)
            leaving.setdefault(home, []).append(leaves)
        return leaving

    def _leaving(
        self,
        home: DirectoryLogs,
        name: TopicPartition,
        directory: str,
        opened: PartitionLog | None,
        *,
        keep: bool,
    ) -> LogRename:
        new_name = names.stray_name if keep else names.deleted_name
        aside = home.directory.path / new_name(*name, self._entropy.uuid())
        return LogRename(name, home.directory.path / directory, aside, opened, keep)

    async def _rename_away(
        self,
        home: DirectoryLogs,
        group: list[LogRename],
        gone: list[tuple[DirectoryLogs, LogRename]],
    ) -> None:
        """Rename all; where that fails they are served no longer."""
        try:
            await self._rename(home, group)
        except OSError as error:
            home.directory.fail(error)
            for each in group:
                assert each.log is not None
                self._registry.fence(each.name, each.log, offline_reason(home.directory))
        else:
            gone += [(home, each) for each in group]

    async def _rename(self, home: DirectoryLogs, group: Sequence[LogRename]) -> None:
        """Rename all, make that durable, and write checkpoints without them, in this order. Raises OSError."""
        async with home.maintenance:
            await run_retrying_descriptors(
                self._clock,
                self._offload,
                _rename_away,
                self._files,
                home,
                group,
                lane=home.directory.lane,
            )


def _log_stray(stray: LogRename) -> None:
    log.warning("%s is a stray by the cluster's state: kept as %s", stray.old, stray.new)


def _rename_away(files: Files, home: DirectoryLogs, leaving: Sequence[LogRename]) -> None:
    """In a thread; it can be called again."""
    for each in leaving:
        if each.keep and each.log is not None:
            _close(each.log, clean=True)
        if files.exists(each.old):
            files.rename(each.old, each.new)
        if not each.keep and each.log is not None:
            _close(each.log, clean=False)
    files.sync_directory(home.directory.path)
    for each in leaving:
        home.release(each.name, each.old.name)
    _write_remaining_checkpoints(home)


def _write_remaining_checkpoints(home: DirectoryLogs) -> None:
    """In a thread: checkpoints without what was taken away. Raises OSError."""
    try:
        home.write_checkpoints()
    except OSError as error:
        if error.errno not in NO_ROOM:
            raise
        # A full disk, and what is deleted is to make room: without the files more is read at the
        # next start, but none of their entries can meet a new log of an old name.
        home.remove_checkpoints()


def _close(which: PartitionLog, *, clean: bool) -> None:
    try:
        which.close(clean=clean)
    except StorageError as error:
        log.warning("%s could not be closed: %s", which.directory, error)
    except Exception as error:  # of its own making: it goes away like the others
        log.error("%s could not be closed", which.directory, exc_info=error)


class DirectoryDeletion:
    """The queue of directories to remove, and the task that does it."""

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
        """Remove `path` and all in it, in `delay_ms`."""
        due = self._clock.monotonic() + delay_ms / 1000
        heapq.heappush(self._queue, (due, next(self._serial), directory, path))
        self._changed.set()

    async def rename_moved_for_kafka(self, entropy: Entropy) -> None:
        """At a clean shutdown: what moves left as `.delete` gets Kafka's `-delete`, for Kafka does
        not start on the other name. An error leaves it as it is."""
        for _, _, directory, path in self._queue:
            parsed = names.parse(path.name)
            if directory.failed or parsed.state is not names.State.MOVED_AWAY:
                continue
            new = directory.path / names.deleted_name(*parsed.topic_partition, entropy.uuid())
            try:
                await self._offload.run(self._rename, path, new, lane=directory.lane)
            except FileNotFoundError:
                pass
            except OutOfDescriptors as error:
                log.warning("%s stays: %s", path, error)
            except OSError as error:
                directory.report(error, undone=True)
        self._queue.clear()

    def _rename(self, old: Path, new: Path) -> None:
        self._files.rename(old, new)
        self._files.sync_directory(new.parent)

    async def run(self) -> None:
        """Until cancelled; a removal under way is finished first."""
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
        except FileNotFoundError:  # an operator who needs the room removes it, too
            await self._look_again(directory, path)
        except OSError as error:
            directory.report(error)
        else:
            log.info("removed %s", path)
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
