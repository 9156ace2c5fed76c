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
from odradek.storage.moving.blame import judge
from odradek.storage.moving.mirror import Mirror
from odradek.storage.moving.states import Event

log = logging.getLogger(__name__)

TURN_BYTES = 256 << 10
"""How much is copied within a turn of the loop: half a millisecond or so."""
TURN_BYTES_MAX = 4 << 20
"""How much at most, where a producer writes more than that in each trip to a thread and back: a
move that keeps waiting for a quieter moment never ends. It doubles by the round."""
ROUNDS = 8
"""How often it is tried to come that close: a producer may be faster than the disk."""


@state_class
class Crossing:
    """One try. `run` never leaves a directory half renamed unless its disk failed."""

    services: LogServices
    entropy: Entropy
    name: TopicPartition
    which: PartitionLog
    mirror: Mirror
    destination: DirectoryLogs
    longest_turn_seconds: float = 0.0
    """The pause that others saw."""
    _missed: Event | None = field(default=None, init=False)
    """Why the copy lacks what was appended since the source stepped aside."""

    async def run(self) -> Event:
        """SWITCHED, BEHIND (try again later), or what failed."""
        source = self.services.registry.home_of(self.which)
        event = Event.BEHIND
        with trio.CancelScope(shield=True):
            async with _both(source, self.destination):
                event = await self._alone(source)
        return event

    async def _alone(self, source: DirectoryLogs) -> Event:
        registry = self.services.registry
        if registry.is_busy(self.name):
            return Event.BEHIND  # it is being deleted, or set aside
        with registry.claim(self.name):
            try:
                return await self._cross(source)
            finally:
                self.which.on_appended = None
                self.destination.incoming_logs.pop(self.name, None)

    async def _cross(self, source: DirectoryLogs) -> Event:
        event = await self._prepare(source)
        if event is not None:
            return event
        began = self._now()
        event = self._step_aside(source)
        self._turn_ended(began)
        if event is not None:
            return event
        aside = self.which.directory
        try:
            event = await self._go_over(source)
        except Exception:  # of our own
            await self._step_back(source)
            raise
        if event is not Event.SWITCHED:
            await self._step_back(source)
            return event
        await self._settle(source, aside)
        return event

    async def _go_over(self, source: DirectoryLogs) -> Event:
        """3 and 4. SWITCHED, or what failed: then the copy is as before, but for its content."""
        await self._sync_names(source)
        began = self._now()
        event = self._take_over(source)
        self._turn_ended(began)
        return event

    # 1

    async def _prepare(self, source: DirectoryLogs) -> Event | None:
        """None: it may go on."""
        mirror, destination = self.mirror, self.destination
        try:
            await self._in_thread(source, self._load_active)
            self.which.segment_list.active.prepare()
            await self._in_thread(destination, mirror.catch_up)
            await self._in_thread(destination, mirror.complete)
            destination.incoming_logs[self.name] = mirror
            await self._in_thread(destination, destination.write_checkpoints)
            for tries in range(ROUNDS):
                if mirror.is_close(min(TURN_BYTES << tries, TURN_BYTES_MAX)):
                    break
                await self._in_thread(destination, mirror.catch_up)
            else:
                return Event.BEHIND
        except (OSError, StorageError, ValueError) as error:
            return self._judge(error, source)
        return self._failed_side(source)

    def _load_active(self) -> None:
        """In a thread: its indexes may have to be made anew."""
        try:
            _ = self.which.segment_list.active.offset_index
        except OSError as error:
            raise SourceFailed(self.which.directory, error) from error

    def _failed_side(self, source: DirectoryLogs) -> Event | None:
        """None: neither."""
        if self.which.failure is not None or source.directory.failed:
            return Event.SOURCE_FAILED
        return Event.DESTINATION_FAILED if self.destination.directory.failed else None

    def _judge(self, error: Exception, source: DirectoryLogs) -> Event:
        return judge(error, source.directory, self.destination.directory)

    # 2

    def _step_aside(self, source: DirectoryLogs) -> Event | None:
        """The source is `.delete`, and appends go to both; else why nothing was done."""
        which = self.which
        try:
            self.mirror.catch_up()
        except (OSError, StorageError, ValueError) as error:
            return self._judge(error, source)
        directory = source.directory.path
        aside = directory / names.moved_away_name(*self.name)
        try:
            if self.services.files.exists(aside):
                aside = directory / names.moved_away_name(*self.name, self.entropy.uuid())
            relocation.rename(which, aside)
        except OSError as error:
            source.directory.report(error)
            return Event.BEHIND if isinstance(error, OutOfDescriptors) else Event.SOURCE_FAILED
        which.on_appended = partial(self._apply_to_producers, source)
        return None

    def _apply_to_producers(self, source: DirectoryLogs, data: memoryview) -> None:
        """In an append, which is acknowledged once this returns: no start may take a copy without it
        for the log. Where it cannot be written to the copy, the source has its name back first."""
        try:
            self.mirror.follow(data)
        except Exception as error:
            self._missed = self._judge(error, source)
            self._rename_back(source)

    # 4

    def _take_over(self, source: DirectoryLogs) -> Event:
        """SWITCHED, or what failed."""
        which, mirror, destination = self.which, self.mirror, self.destination.directory
        event = self._missed or self._failed_side(source)
        if event is not None:
            return event
        path = destination.path_of(*self.name)
        try:
            mirror.settle()
            self.services.files.rename(mirror.directory, path)
        except (OSError, StorageError, ValueError) as error:
            return self._judge(error, source)
        which.on_appended = which.on_truncated = None
        relocation.switch(which, path, *mirror.handed_over(path))
        self.services.registry.relocated(self.name, which, source, self.destination)
        return Event.SWITCHED

    # Instead of 4

    async def _step_back(self, source: DirectoryLogs) -> None:
        """The source gets its name back, durably; an error is its directory's end."""
        self._rename_back(source)
        if not source.directory.failed:
            await self._sync_names(source)

    def _rename_back(self, source: DirectoryLogs) -> None:
        """On the loop. Not in a directory that has failed: its next start judges (startup.py)."""
        self.which.on_appended = None
        path = source.directory.path_of(*self.name)
        if source.directory.failed or self.which.directory == path:
            return
        try:
            relocation.rename(self.which, path)
        except OSError as error:
            source.directory.fail(error)

    # 5

    async def _settle(self, source: DirectoryLogs, aside: Path) -> None:
        """An error here is its directory's, with the log in its new place."""
        services, destination = self.services, self.destination
        await self._sync_names(destination)
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
        delay_ms = self.which.config.file_delete_delay_ms
        services.directory_deletion.schedule(source.directory, aside, delay_ms)
        if self.which.on_flush_due is not None:
            self.which.on_flush_due(self.which.end_offset)

    # Helpers

    async def _sync_names(self, home: DirectoryLogs) -> None:
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

    def _turn_ended(self, began: float) -> None:
        self.longest_turn_seconds = max(self.longest_turn_seconds, self._now() - began)


@asynccontextmanager
async def _both(one: DirectoryLogs, other: DirectoryLogs) -> AsyncIterator[None]:
    """Hold `file_lock` of both, taken in the order of their paths: who waits for the second holds
    none that the other's holder waits for."""
    first, second = sorted((one, other), key=lambda home: home.directory.path)
    async with first.file_lock, second.file_lock:
        yield
