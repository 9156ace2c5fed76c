"""The swap: a log goes on in its copy (KIP-113, J-08, J-09).

The partition's lock of the KIP is the loop's turn: within one, nobody appends. `file_lock` of both
directories is held throughout, so that nobody flushes, truncates, deletes or renames segments; reads
and appends go on. In which order things happen, and become durable:

1. In threads: the copy catches up until little is left, and is made durable with all that belongs to
   it (`Mirror.complete`); then the destination's checkpoints name the log's offsets.
2. One turn: the rest is copied; from here on each append goes to both (`Mirror.follow`); the source
   `tp` becomes `tp.delete`.
3. In a thread: the source's log directory is synced.
4. One turn: `.move` becomes `tp`, and the log is switched to it.
5. In threads: the destination's log directory is synced, then both write checkpoints; then `.delete`
   may be removed (J-10).

What a crash leaves, and what the next start makes of it (startup.py):

| before the end of | on the disk                        | the next start                          |
|-------------------|------------------------------------|-----------------------------------------|
| 2                 | `tp`, `.move`                      | goes on copying (J-13)                  |
| 3                 | `tp` or `tp.delete`, and `.move`   | goes on, or takes `.move` for it (J-14) |
| 5                 | `tp.delete`, and `.move` or `tp`   | takes it (J-14), removes `.delete`      |

Because of 2, `.move` has all that `tp.delete` has, whenever the process is killed; because of 1, it
has durably whatever was durable in the source. If the destination fails in 3 or 4, the source gets its
name back and goes on: at once, within the append that could not be written to both. An error of the
source is its directory's end, as anywhere else.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import field
from functools import partial

import trio

from odradek.seams.entropy import Entropy
from odradek.seams.files import OutOfDescriptors, Path
from odradek.seams.values import state_class
from odradek.storage.descriptors import run_retrying_descriptors
from odradek.storage.directories import names
from odradek.storage.directories.names import TopicPartition
from odradek.storage.errors import SourceFailed, StorageError
from odradek.storage.log import relocation
from odradek.storage.log.partition_log import PartitionLog
from odradek.storage.log_manager.directory_logs import DirectoryLogs
from odradek.storage.log_manager.services import LogServices
from odradek.storage.moving.future_replica import FutureReplica
from odradek.storage.moving.move_errors import classify_move_error
from odradek.storage.moving.move_states import MoveEvent

log = logging.getLogger(__name__)

TURN_BYTES = 256 << 10
"""How much is copied within a turn of the loop: half a millisecond or so."""
TURN_BYTES_MAX = 4 << 20
"""How much at most, where a producer writes more than that in each trip to a thread and back: a
move that keeps waiting for a quieter moment never ends. It doubles by the round."""
ROUNDS = 8
"""How often it is tried to come that close: a producer may be faster than the disk."""


@state_class
class ReplicaSwap:
    """One try. `run` never leaves a directory half renamed unless its disk failed."""

    services: LogServices
    entropy: Entropy
    name: TopicPartition
    partition_log: PartitionLog
    future: FutureReplica
    destination: DirectoryLogs
    longest_turn_seconds: float = 0.0
    """The pause that others saw."""
    _copy_failure: MoveEvent | None = field(default=None, init=False)
    """Why the copy lacks what was appended since the source stepped aside."""

    async def run(self) -> MoveEvent:
        """SWITCHED, BEHIND (try again later), or what failed."""
        source = self.services.registry.home_of(self.partition_log)
        event = MoveEvent.BEHIND
        with trio.CancelScope(shield=True):
            async with _lock_both(source, self.destination):
                event = await self._run_locked(source)
        return event

    async def _run_locked(self, source: DirectoryLogs) -> MoveEvent:
        registry = self.services.registry
        if registry.is_busy(self.name):
            return MoveEvent.BEHIND  # it is being deleted, or set aside
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
        except Exception:  # of our own
            await self._restore_source(source)
            raise
        if event is not MoveEvent.SWITCHED:
            await self._restore_source(source)
            return event
        await self._finish_swap(source, aside)
        return event

    async def _sync_and_switch(self, source: DirectoryLogs) -> MoveEvent:
        """3 and 4. SWITCHED, or what failed: then the copy is as before, but for its content."""
        await self._sync_directory(source)
        began = self._now()
        event = self._switch(source)
        self._record_turn(began)
        return event

    # 1

    async def _prepare(self, source: DirectoryLogs) -> MoveEvent | None:
        """None: it may go on."""
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
        """In a thread: its indexes may have to be made anew."""
        try:
            _ = self.partition_log.segment_list.active.offset_index
        except OSError as error:
            raise SourceFailed(self.partition_log.directory, error) from error

    def _failed_side(self, source: DirectoryLogs) -> MoveEvent | None:
        """None: neither."""
        if self.partition_log.failure is not None or source.directory.failed:
            return MoveEvent.SOURCE_FAILED
        return MoveEvent.DESTINATION_FAILED if self.destination.directory.failed else None

    def _classify(self, error: Exception, source: DirectoryLogs) -> MoveEvent:
        return classify_move_error(error, source.directory, self.destination.directory)

    # 2

    def _rename_source_to_deleted(self, source: DirectoryLogs) -> MoveEvent | None:
        """The source is `.delete`, and appends go to both; else why nothing was done."""
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
        partition_log.on_appended = partial(self._apply_to_producers, source)
        return None

    def _apply_to_producers(self, source: DirectoryLogs, data: memoryview) -> None:
        """In an append, which is acknowledged once this returns: no start may take a copy without it
        for the log. Where it cannot be written to the copy, the source has its name back first."""
        try:
            self.future.append(data)
        except Exception as error:
            self._copy_failure = self._classify(error, source)
            self._rename_source_back(source)

    # 4

    def _switch(self, source: DirectoryLogs) -> MoveEvent:
        """SWITCHED, or what failed."""
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

    # Instead of 4

    async def _restore_source(self, source: DirectoryLogs) -> None:
        """The source gets its name back, durably; an error is its directory's end."""
        self._rename_source_back(source)
        if not source.directory.failed:
            await self._sync_directory(source)

    def _rename_source_back(self, source: DirectoryLogs) -> None:
        """On the loop. Not in a directory that has failed: its next start judges (startup.py)."""
        self.partition_log.on_appended = None
        path = source.directory.path_of(*self.name)
        if source.directory.failed or self.partition_log.directory == path:
            return
        try:
            relocation.rename(self.partition_log, path)
        except OSError as error:
            source.directory.fail(error)

    # 5

    async def _finish_swap(self, source: DirectoryLogs, aside: Path) -> None:
        """An error here is its directory's, with the log in its new place."""
        services, destination = self.services, self.destination
        await self._sync_directory(destination)
        try:
            if not destination.directory.failed:
                await self._in_thread(destination, destination.write_checkpoints)
        except OSError as error:  # what `incoming_logs` said of it is there
            destination.directory.report(error, undone=True)
        if destination.directory.failed:
            return
        try:
            await self._in_thread(source, source.write_checkpoints)
        except OSError as error:
            source.directory.report(error, undone=True)
        delay_ms = self.partition_log.config.file_delete_delay_ms
        services.directory_deletion.schedule(source.directory, aside, delay_ms)
        if self.partition_log.on_flush_due is not None:
            self.partition_log.on_flush_due(self.partition_log.end_offset)

    # Helpers

    async def _sync_directory(self, home: DirectoryLogs) -> None:
        """Of a log directory; it fails if they cannot be."""
        services, directory = self.services, home.directory
        sync = partial(services.files.sync_directory, directory.path)
        try:
            await run_retrying_descriptors(
                services.clock, services.offload, sync, lane=directory.lane
            )
        except OSError as error:
            directory.fail(error)

    async def _in_thread(self, home: DirectoryLogs, act: object, *args: object) -> None:
        await self.services.offload.run(act, *args, lane=home.directory.lane)  # type: ignore[arg-type]

    def _now(self) -> float:
        return self.services.clock.monotonic()

    def _record_turn(self, began: float) -> None:
        self.longest_turn_seconds = max(self.longest_turn_seconds, self._now() - began)


@asynccontextmanager
async def _lock_both(one: DirectoryLogs, other: DirectoryLogs) -> AsyncIterator[None]:
    """Hold `file_lock` of both, taken in the order of their paths: who waits for the second holds
    none that the other's holder waits for."""
    first, second = sorted((one, other), key=lambda home: home.directory.path)
    async with first.file_lock, second.file_lock:
        yield
