"""The mover: replicas between the log directories of a node, while they are in use (KIP-113).

A move is tracked from the moment its `.move` directory exists, and survives a restart. Up to
`num.replica.move.threads` are copied at a time (tasks, each with a slice in a thread), the others wait
in the order in which they were asked for; all of them together keep `intra.broker.throttled.rate`.
What a move does next is states.py's table; what the copy is, mirror.py's; the swap, crossing.py's.

While a replica moves it is not compacted (J-12; Kafka does the same). A move that fails for its
destination leaves the replica where it is. What only moves need is loaded by the first one.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING

import trio

from odradek.seams.files import Files, OutOfDescriptors, Path
from odradek.seams.values import state_class
from odradek.storage.descriptors import RETRY_SECONDS, run_retrying_descriptors
from odradek.storage.directories import names
from odradek.storage.directories.names import NAME_BYTES_MAX, TopicPartition
from odradek.storage.errors import (
    CordonedDirectory,
    DiskFull,
    LogFailed,
    NameTooLong,
    NoDescriptors,
    ReplicaNotAvailable,
    StorageError,
    UnknownDirectory,
)
from odradek.storage.log.partition_log import PartitionLog
from odradek.storage.log_manager.directory_logs import DirectoryLogs
from odradek.storage.log_manager.registry import offline_reason
from odradek.storage.log_manager.services import LogServices
from odradek.storage.moving.settings import UNLIMITED, MoverSettings
from odradek.storage.moving.states import Action, Event, State
from odradek.storage.throttle import Throttle

if TYPE_CHECKING:
    from odradek.storage.compaction.cleaners import Cleaners
    from odradek.storage.moving.mirror import Mirror
    from odradek.storage.moving.move import Move, MoveStatus

log = logging.getLogger(__name__)

SLICE_BYTES = 32 << 20
SLICE_BYTES_MIN = 64 << 10
SLICES_PER_SECOND = 10
"""Where a rate is set: small slices keep it even."""
CLOSE_BYTES = 4 << 20
"""With less than this to be copied, the swap is tried."""


@state_class
class MoverStatistics:
    """Since the start, for whoever shows them."""

    moved: int = 0
    failed: int = 0
    cancelled: int = 0
    copied_bytes: int = 0
    last_move_seconds: float = 0.0
    last_pause_seconds: float = 0.0
    """The longest turn of the loop that the last swap took."""


class Mover:
    """See the module. All on the loop."""

    def __init__(
        self,
        services: LogServices,
        cleaners: Cleaners | None,
        settings: Callable[[], MoverSettings],
    ) -> None:
        self.statistics = MoverStatistics()
        self.on_moved: Callable[[PartitionLog], None] = lambda which: None
        """Told of a log that is in another directory now."""
        self._services = services
        self._cleaners = cleaners
        self._entropy = services.entropy
        self._settings = settings
        self._throttle = Throttle(services.clock, lambda: settings().bytes_per_second)
        self._moves: dict[TopicPartition, Move] = {}
        self._changed = trio.Event()
        self.threads_max: int | None = None
        """Fewer threads than the settings say: for tests, which look at what waits."""

    @property
    def threads(self) -> int:
        wanted = self._settings().threads if self.threads_max is None else self.threads_max
        return len(self._services.directories.all) if wanted is None else wanted

    # Asking

    def moves(self) -> Sequence[MoveStatus]:
        """Those that are not over, in the order in which they were asked for."""
        return [move.status() for move in self._moves.values()]

    def moving_to(self, name: TopicPartition) -> Path | None:
        """The log directory that a replica is being moved to."""
        move = self._moves.get(name)
        return None if move is None else move.destination.directory.path

    async def move(self, name: TopicPartition, destination: Path) -> None:
        """Begin to move a replica to the log directory `destination`; it is tracked on return (J-04).

        A move to elsewhere is cancelled first; one to where the replica is only cancels. Where the
        replica is not here it is remembered where it is to be created (J-03): ReplicaNotAvailable.
        Raises UnknownDirectory, CordonedDirectory, NameTooLong, LogFailed (the destination, the
        replica or, as in Kafka, any directory is offline), DiskFull, NoDescriptors.
        """
        home = self.check(name, destination)
        registry = self._services.registry
        await registry.wait_until_free(name)
        while self.moving_to(name) not in (None, destination):
            await self.cancel(name)
            await registry.wait_until_free(name)
        which = registry.get(name)
        if which is None:
            self.remember(name, destination)
            raise ReplicaNotAvailable(f"{name} is not here; it would be created in {destination}")
        source = registry.home_of(which)
        if source is home or name in self._moves:
            return
        if not registry.are_all_online:
            raise LogFailed("no move begins while a log directory is offline: it may have the copy")
        with registry.claim(name), trio.CancelScope(shield=True):
            await self._track(name, which, source, home)

    def remember(self, name: TopicPartition, destination: Path | None) -> None:
        """Where a replica that is not here is to be created (J-03); None: anywhere."""
        if destination is None:
            self._services.registry.preferred.pop(name, None)
        else:
            self._services.registry.preferred[name] = destination

    def check(self, name: TopicPartition, destination: Path) -> DirectoryLogs:
        """What can be told of a move from the name and the destination alone; see `move`."""
        longest = names.future_name(*name, self._entropy.uuid())
        if len(longest) > NAME_BYTES_MAX:
            raise NameTooLong(f"{name} is too long to be moved: {longest}")
        home = self._services.registry.logs_by_directory.get(destination)
        if home is None:
            raise UnknownDirectory(f"{destination} is no log directory of this node")
        if home.directory.failed:
            raise LogFailed(offline_reason(home.directory))
        if destination in self._services.registry.cordoned:
            raise CordonedDirectory(f"{destination} is cordoned")
        return home

    async def _track(
        self, name: TopicPartition, which: PartitionLog, source: DirectoryLogs, home: DirectoryLogs
    ) -> None:
        """What fails is taken back: a `.move` that is left would be a move to the next start."""
        from odradek.storage.moving.mirror import Mirror
        from odradek.storage.moving.move import Move

        directory = home.directory
        mirror = Mirror(self._services.files, which, directory.path / names.moving_name(*name))
        refusal: StorageError | None = None
        try:
            await self._services.offload.run(mirror.begin, lane=directory.lane)
        except OutOfDescriptors as error:
            refusal = NoDescriptors(f"{name} cannot be moved: {error}")
        except OSError as error:
            kind = LogFailed if directory.report(error, undone=True) else DiskFull
            refusal = kind(f"{name} cannot be moved to {directory.path}: {error}")
        if refusal is None and (which.failure is not None or directory.failed):
            refusal = LogFailed(f"{name} cannot be moved to {directory.path}: it went offline")
        if refusal is not None:
            await self.discard(name, home, mirror.current)
            raise refusal
        self._add(Move(name, which, source, home, mirror))

    def resume(self, name: TopicPartition, destination: DirectoryLogs, found: Path) -> None:
        """A start has found an unfinished copy of a log that is served from elsewhere (J-13)."""
        from odradek.storage.moving.mirror import Mirror
        from odradek.storage.moving.move import Move

        registry = self._services.registry
        which = registry.logs[name]
        path = destination.directory.path / names.moving_name(*name)
        mirror = Mirror(self._services.files, which, path, found=found)
        self._add(Move(name, which, registry.home_of(which), destination, mirror))

    def _add(self, move: Move) -> None:
        self._moves[move.name] = move
        move.which.on_truncated = move.mirror.cut
        move.source.moving_out.add(move.which)
        move.destination.moving_in.add(move.which)
        log.info("moving %s", move)
        self._changed.set()

    async def cancel(self, *partitions: TopicPartition) -> None:
        """Give up these replicas' moves ("any", J-02); on return their copies are gone.

        A move that is in its swap is finished instead: too late.
        """
        wanted = [self._moves[name] for name in partitions if name in self._moves]
        for move in wanted:
            move.apply(Event.CANCEL)
            await self._stop(move)
        for move in wanted:
            await move.done.wait()

    async def _stop(self, move: Move) -> None:
        """It is over, by the table: whoever drives it sees that, or nobody does yet."""
        if not move.state.is_over:
            return
        move.scope.cancel()
        if not move.is_started:
            move.is_started = True
            await self._end(move)

    # Driving

    async def run(self) -> None:
        """Until cancelled: copy what is queued, as many at a time as there are threads."""
        async with trio.open_nursery() as nursery:
            while True:
                self._changed = trio.Event()
                running = sum(1 for move in self._moves.values() if move.is_started)
                for move in tuple(self._moves.values()):
                    if running < self.threads and not move.is_started:
                        move.is_started = True
                        running += 1
                        nursery.start_soon(self._drive, move)
                await self._changed.wait()

    def settings_changed(self) -> None:
        self._changed.set()

    async def _drive(self, move: Move) -> None:
        move.began = self._services.clock.monotonic()
        with move.scope:
            try:
                await self._advance(move)
            except Exception:
                log.exception("the move of %s failed, by an error of its own", move)
                # Out of the swap the source may have come as `.delete`: then `.move` is needed.
                in_swap = move.state is State.CROSSING
                move.action = Action.LEAVE if in_swap else Action.DISCARD
                move.state, move.last_event = State.FAILED, None
        await self._end(move)

    async def _advance(self, move: Move) -> None:
        """From one state to the next, until it is over."""
        if self._cleaners is not None:
            await self._cleaners.pause(move.which)
        event = Event.THREAD_FREE
        while (action := move.apply(event)) in (Action.START, Action.COPY, Action.CROSS):
            event = await self._do(move, action)

    async def _do(self, move: Move, action: Action) -> Event:
        from odradek.storage.moving.blame import judge

        try:
            if action is Action.CROSS:
                return await self._cross(move)
            if not move.mirror.is_begun:
                lane = move.destination.directory.lane
                await self._services.offload.run(move.mirror.begin, lane=lane)
            return await self._copy(move)
        except (OSError, StorageError) as error:
            event = judge(error, move.source.directory, move.destination.directory)
        if event is Event.BEHIND:
            await self._services.clock.sleep(RETRY_SECONDS)
        return event

    async def _copy(self, move: Move) -> Event:
        """One slice, in a thread, and its time."""
        mirror, lane = move.mirror, move.destination.directory.lane
        copied, remaining = await self._services.offload.run(
            _slice, mirror, self._slice_bytes(), lane=lane
        )
        self.statistics.copied_bytes += copied
        await self._throttle.pay(copied)
        if remaining <= min(CLOSE_BYTES, self._settings().bytes_per_second // SLICES_PER_SECOND):
            return Event.CAUGHT_UP
        return Event.BEHIND

    def _slice_bytes(self) -> int:
        rate = self._settings().bytes_per_second
        if rate >= UNLIMITED:
            return SLICE_BYTES
        return max(SLICE_BYTES_MIN, min(SLICE_BYTES, rate // SLICES_PER_SECOND))

    async def _cross(self, move: Move) -> Event:
        from odradek.storage.moving.crossing import Crossing

        crossing = Crossing(
            self._services, self._entropy, move.name, move.which, move.mirror, move.destination
        )
        copied = move.mirror.copied_bytes
        event = await crossing.run()
        # Not paid for here: nothing is awaited between the switch and the table's step.
        self._throttle.owe(max(0, move.mirror.copied_bytes - copied))
        if event is Event.SWITCHED:
            self.statistics.last_pause_seconds = crossing.longest_turn_seconds
        elif event is Event.BEHIND:
            await self._services.clock.sleep(RETRY_SECONDS)
        return event

    # Its end

    async def _end(self, move: Move) -> None:
        """Do what the table says of a move that is over."""
        with trio.CancelScope(shield=True):
            try:
                if move.action is Action.DISCARD:
                    await self.discard(move.name, move.destination, move.mirror.current)
                elif move.action is Action.PARK:
                    await self._park(move)
            finally:
                self._forget(move)
        self._count(move)
        if move.state is State.MOVED:
            self.on_moved(move.which)

    def _forget(self, move: Move) -> None:
        if move.state is not State.MOVED:
            move.mirror.close()
        move.which.on_truncated = None
        move.source.moving_out.discard(move.which)
        move.destination.moving_in.discard(move.which)
        if self._cleaners is not None:
            self._cleaners.resume(move.which)
        del self._moves[move.name]
        move.done.set()
        self._changed.set()

    def _count(self, move: Move) -> None:
        seconds = self._services.clock.monotonic() - move.began
        match move.state:
            case State.MOVED:
                self.statistics.moved += 1
                self.statistics.last_move_seconds = seconds
                size = move.size_bytes()
                log.info(
                    "moved %s: %.1f MB in %.1f s (%.0f MB/s); the longest turn of the swap took "
                    "%.1f ms",
                    move,
                    size / 1e6,
                    seconds,
                    size / 1e6 / max(seconds, 1e-3),
                    self.statistics.last_pause_seconds * 1e3,
                )
            case State.CANCELLED:
                self.statistics.cancelled += 1
                log.info("the move of %s was cancelled", move)
            case State.FAILED:
                self.statistics.failed += 1
                why = "an error of its own" if move.last_event is None else move.last_event.value
                log.error("the move of %s failed (%s): the replica stays where it is", move, why)

    async def discard(self, name: TopicPartition, home: DirectoryLogs, copy: Path) -> None:
        """The copy is renamed, so that no start takes it for one, then removed."""
        services, directory = self._services, home.directory
        if directory.failed:
            return
        aside = directory.path / names.deleted_name(*name, self._entropy.uuid())
        rename = partial(_rename_copy, services.files, copy, aside)
        try:
            await run_retrying_descriptors(
                services.clock, services.offload, rename, lane=directory.lane
            )
        except OSError as error:
            directory.report(error, undone=True)
        else:
            services.directory_deletion.schedule(directory, aside, 0)

    async def park_all(self) -> None:
        """At a clean shutdown: copies become Kafka's `-future`, cleanly closed, and sources
        that were moved away Kafka's `-delete`; none is copied now."""
        for move in tuple(self._moves.values()):
            failed = move.source.directory.failed or move.destination.directory.failed
            if move.state is State.CROSSING:
                move.apply(Event.BEHIND)
            move.apply(Event.DESTINATION_FAILED if failed else Event.STOP)
            await self._end(move)
        await self._services.directory_deletion.rename_moved_for_kafka(self._entropy)

    async def _park(self, move: Move) -> None:
        directory = move.destination.directory
        future = directory.path / names.future_name(*move.name, self._entropy.uuid())
        mirror = move.mirror

        def rename_moved_for_kafka() -> None:
            if mirror.is_parked:
                return
            if mirror.is_begun:
                mirror.rename_moved_for_kafka()
            else:
                mirror.park_unseen()
            self._services.files.rename(mirror.current, future)
            self._services.files.sync_directory(directory.path)

        try:
            await self._services.offload.run(rename_moved_for_kafka, lane=directory.lane)
        except (OSError, StorageError) as error:
            log.warning("the copy of %s could not be closed cleanly: %s", move, error)
            if isinstance(error, OSError):
                directory.report(error, undone=True)

    # What happens meanwhile

    def directory_failed(self, path: Path) -> None:
        """A log directory is offline: moves from and to it stop (J-11). A swap sees for itself."""
        for move in tuple(self._moves.values()):
            if move.state is State.CROSSING:
                continue
            if move.source.directory.path == path:
                move.apply(Event.SOURCE_FAILED)
            elif move.destination.directory.path == path:
                move.apply(Event.DESTINATION_FAILED)
            else:
                continue
            move.scope.cancel()
            if not move.is_started:
                move.is_started = True
                self._forget(move)
                self._count(move)


def _slice(mirror: Mirror, size: int) -> tuple[int, int]:
    """In a thread: bytes copied, and bytes left."""
    return mirror.advance(size), mirror.remaining_bytes


def _rename_copy(files: Files, copy: Path, aside: Path) -> None:
    """In a thread; it can be called again."""
    if files.exists(copy):  # else it was not even made
        files.rename(copy, aside)
    files.sync_directory(aside.parent)
