"""The swap: the future replica becomes the current replica (KIP-113, J-08, J-09).

KIP-113 holds the partition's lock. Here, one turn of the event loop has the same effect: no append runs during a
turn. `file_lock` of both directories is held during the whole swap, so that no flush, truncation, deletion or
rename of segments runs. Reads and appends continue between the turns. Order of the steps:

1. In threads: the future replica catches up until little is left, and is made durable
   (`FutureReplica.complete`). Then the destination's checkpoints contain the log's offsets.
2. In one turn: the rest is copied, the source `T-p` is renamed to `T-p.delete`, and from then on every append goes
   to both replicas (`FutureReplica.append`).
3. In a thread: the source's log directory is synced.
4. In one turn: `.move` is renamed to `T-p`, and the log is switched to it.
5. In threads: the destination's log directory is synced, then both directories write checkpoints. After that,
   `.delete` may be removed (J-10).

State after a crash, and the action of the next start (log_manager/interrupted_moves.py):

| crash before the end of | on the disk                        | next start                                     |
|-------------------------|------------------------------------|------------------------------------------------|
| 2                       | `T-p`, `.move`                     | continues the move (J-13)                      |
| 3                       | `T-p` or `T-p.delete`, and `.move` | continues the move, or promotes `.move` (J-14) |
| 5                       | `T-p.delete`, and `.move` or `T-p` | promotes `.move` (J-14), removes `.delete`     |

Because of step 2, `.move` contains everything that `T-p.delete` contains when the process is killed. Because of
step 1, everything that was durable in the source is durable in `.move`. If the destination fails in step 3 or 4,
the source is renamed back and remains the current replica; if the failure is that of an append, this happens
before the append returns. An error of the source takes its directory offline, as usual.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import field
from functools import partial

import trio

from odradek.protocol.topics import TopicPartition
from odradek.seams.entropy import Entropy
from odradek.seams.files import OutOfDescriptors, Path
from odradek.seams.values import state_class
from odradek.storage.directories import names
from odradek.storage.errors import SourceFailed, StorageError
from odradek.storage.file_descriptor_retry import retry_without_descriptors
from odradek.storage.log import relocation
from odradek.storage.log.partition_log import PartitionLog
from odradek.storage.log_registry.directory_logs import DirectoryLogs
from odradek.storage.log_registry.services import LogServices
from odradek.storage.moving.future_replica import FutureReplica
from odradek.storage.moving.move_errors import classify_move_error
from odradek.storage.moving.move_states import MoveEvent

_logger = logging.getLogger("odradek.replica_moves")

TURN_BYTES = 256 << 10
"""Bytes that one turn of the event loop may copy: about half a millisecond."""
TURN_BYTES_MAX = 4 << 20
"""Maximum of that limit, which doubles with each round. Without it, a move would never end if producers write more
than TURN_BYTES per round."""
ROUNDS = 8
"""Maximum number of rounds to catch up, because a producer may be faster than the disk."""


@state_class
class ReplicaSwap:
    """One attempt to swap. After `run`, both directories have valid names unless a disk failed."""

    services: LogServices
    entropy: Entropy
    name: TopicPartition
    partition_log: PartitionLog
    future: FutureReplica
    destination: DirectoryLogs
    longest_turn_seconds: float = 0.0
    """Longest turn of the event loop, in seconds."""
    _copy_failure: MoveEvent | None = field(default=None, init=False)
    """Error because of which the future replica lacks an append since the source was renamed."""

    async def run(self) -> MoveEvent:
        """Swap; return SWITCHED, BEHIND (retry later), or the failure."""
        source = self.services.registry.directory_logs_of(self.partition_log)
        event = MoveEvent.BEHIND
        with trio.CancelScope(shield=True):
            async with _lock_both(source, self.destination):
                event = await self._run_locked(source)
        return event

    async def _run_locked(self, source: DirectoryLogs) -> MoveEvent:
        registry = self.services.registry
        if registry.is_busy(self.name):
            return MoveEvent.BEHIND  # it is being deleted, or renamed to `-stray`
        with registry.claim(self.name):
            try:
                return await self._swap(source)
            finally:
                self.partition_log.on_appended = None
                self.destination.incoming_logs.pop(self.name, None)

    async def _swap(self, source: DirectoryLogs) -> MoveEvent:
        event = await self._prepare(source)
        if event is not None:
            return event
        began = self._now()
        event = self._rename_source_to_deleted(source)
        self._record_turn(began)
        if event is not None:
            return event
        aside = self.partition_log.directory
        try:
            event = await self._sync_and_switch(source)
        except Exception:  # unexpected: restore the source, then report it
            await self._restore_source(source)
            raise
        if event is not MoveEvent.SWITCHED:
            await self._restore_source(source)
            return event
        await self._finish_swap(source, aside)
        return event

    async def _sync_and_switch(self, source: DirectoryLogs) -> MoveEvent:
        """Execute steps 3 and 4. Return SWITCHED, or the failure; after a failure `.move` still has its name."""
        await self._sync_directory(source)
        began = self._now()
        event = self._switch(source)
        self._record_turn(began)
        return event

    # Step 1

    async def _prepare(self, source: DirectoryLogs) -> MoveEvent | None:
        """Catch up and make the future replica durable. Return None, or why the swap cannot continue."""
        future, destination = self.future, self.destination
        try:
            await self._in_thread(source, self._load_active)
            self.partition_log.segment_list.active.prepare()
            await self._in_thread(destination, future.catch_up)
            await self._in_thread(destination, future.complete)
            destination.incoming_logs[self.name] = future
            await self._in_thread(destination, destination.write_checkpoints)
            for tries in range(ROUNDS):
                if future.is_nearly_caught_up(min(TURN_BYTES << tries, TURN_BYTES_MAX)):
                    break
                await self._in_thread(destination, future.catch_up)
            else:
                return MoveEvent.BEHIND
        except (OSError, StorageError, ValueError) as error:
            return self._classify(error, source)
        return self._failed_side(source)

    def _load_active(self) -> None:
        """Load the indexes of the active segment, in a thread because they may have to be rebuilt."""
        try:
            _ = self.partition_log.segment_list.active.offset_index
        except OSError as error:
            raise SourceFailed(self.partition_log.directory, error) from error

    def _failed_side(self, source: DirectoryLogs) -> MoveEvent | None:
        """Return the failure of the source or the destination, or None."""
        if self.partition_log.failure is not None or source.directory.failed:
            return MoveEvent.SOURCE_FAILED
        return MoveEvent.DESTINATION_FAILED if self.destination.directory.failed else None

    def _classify(self, error: Exception, source: DirectoryLogs) -> MoveEvent:
        return classify_move_error(error, source.directory, self.destination.directory)

    # Step 2

    def _rename_source_to_deleted(self, source: DirectoryLogs) -> MoveEvent | None:
        """Rename the source to `.delete` and send appends to both replicas. Return why this failed, or None."""
        partition_log = self.partition_log
        try:
            self.future.catch_up()
        except (OSError, StorageError, ValueError) as error:
            return self._classify(error, source)
        directory = source.directory.path
        aside = directory / names.moved_away_name(*self.name)
        try:
            if self.services.files.exists(aside):
                aside = directory / names.moved_away_name(*self.name, self.entropy.uuid())
            relocation.rename(partition_log, aside)
        except OSError as error:
            source.directory.report(error)
            return (
                MoveEvent.BEHIND if isinstance(error, OutOfDescriptors) else MoveEvent.SOURCE_FAILED
            )
        partition_log.on_appended = partial(self._append_to_future_replica, source)
        return None

    def _append_to_future_replica(self, source: DirectoryLogs, data: memoryview) -> None:
        """Append `data` to the future replica; called within an append, which is acknowledged afterwards.

        If this fails, the source is renamed back before the append is acknowledged: no start may promote a future
        replica that lacks acknowledged records.
        """
        try:
            self.future.append(data)
        except Exception as error:
            self._copy_failure = self._classify(error, source)
            self._rename_source_back(source)

    # Step 4

    def _switch(self, source: DirectoryLogs) -> MoveEvent:
        """Rename `.move` to `T-p` and switch the log to it. Return SWITCHED, or the failure."""
        partition_log, future, destination = (
            self.partition_log,
            self.future,
            self.destination.directory,
        )
        event = self._copy_failure or self._failed_side(source)
        if event is not None:
            return event
        path = destination.path_of(*self.name)
        try:
            future.complete_indexes()
            self.services.files.rename(future.directory, path)
        except (OSError, StorageError, ValueError) as error:
            return self._classify(error, source)
        partition_log.on_appended = partition_log.on_truncated = None
        relocation.switch(partition_log, path, *future.log_parts(path))
        self.services.registry.relocated(self.name, partition_log, source, self.destination)
        return MoveEvent.SWITCHED

    # After a failure in step 3 or 4

    async def _restore_source(self, source: DirectoryLogs) -> None:
        """Rename the source back, durably; an error takes its directory offline."""
        self._rename_source_back(source)
        if not source.directory.failed:
            await self._sync_directory(source)

    def _rename_source_back(self, source: DirectoryLogs) -> None:
        """Rename the source back, on the event loop. In an offline directory, the next start decides instead."""
        self.partition_log.on_appended = None
        path = source.directory.path_of(*self.name)
        if source.directory.failed or self.partition_log.directory == path:
            return
        try:
            relocation.rename(self.partition_log, path)
        except OSError as error:
            source.directory.fail(error)

    # Step 5

    async def _finish_swap(self, source: DirectoryLogs, aside: Path) -> None:
        """Make the switch durable. An error takes a directory offline but does not undo the switch."""
        services, destination = self.services, self.destination
        await self._sync_directory(destination)
        try:
            if not destination.directory.failed:
                await self._in_thread(destination, destination.write_checkpoints)
        except OSError as error:  # the checkpoint already has the entry of `incoming_logs`
            destination.directory.report(error, files_unchanged=True)
        if destination.directory.failed:
            return
        try:
            await self._in_thread(source, source.write_checkpoints)
        except OSError as error:
            source.directory.report(error, files_unchanged=True)
        delay_ms = self.partition_log.config.file_delete_delay_ms
        services.directory_deletion.schedule(source.directory, aside, delay_ms)
        if self.partition_log.on_flush_due is not None:
            self.partition_log.on_flush_due(self.partition_log.end_offset)

    # Helpers

    async def _sync_directory(self, directory_logs: DirectoryLogs) -> None:
        """Sync a log directory; an error takes it offline."""
        services, directory = self.services, directory_logs.directory
        sync = partial(services.files.sync_directory, directory.path)
        try:
            await retry_without_descriptors(
                services.clock, services.offload, sync, lane=directory.lane
            )
        except OSError as error:
            directory.fail(error)

    async def _in_thread(self, directory_logs: DirectoryLogs, act: object, *args: object) -> None:
        await self.services.offload.run(act, *args, lane=directory_logs.directory.lane)  # type: ignore[arg-type]

    def _now(self) -> float:
        return self.services.clock.monotonic()

    def _record_turn(self, began: float) -> None:
        self.longest_turn_seconds = max(self.longest_turn_seconds, self._now() - began)


@asynccontextmanager
async def _lock_both(one: DirectoryLogs, other: DirectoryLogs) -> AsyncIterator[None]:
    """Hold `file_lock` of both directories, acquired in the order of their paths to avoid a deadlock."""
    first, second = sorted((one, other), key=lambda directory_logs: directory_logs.directory.path)
    async with first.file_lock, second.file_lock:
        yield
