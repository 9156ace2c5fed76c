"""The mover moves replicas between the log directories of a node while they are in use (KIP-113).

A move is tracked from the moment its `.move` directory exists, and it survives a restart. Up to
`num.replica.alter.log.dirs.threads` moves copy at the same time, each in a task that copies slices in a thread. The
others wait in the order of their requests. `replica.alter.log.dirs.io.max.bytes.per.second` limits all moves together.
KIP-113 calls these configs `num.replica.move.threads` and `intra.broker.throttled.rate`; both names work. move_states.py
has the state machine, future_replica.py the copy, and replica_swap.py the swap.

A replica is not compacted while it moves (J-12; Kafka does the same). If the destination fails, the replica stays in
its directory. Modules that only moves need are loaded by the first move.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING

import trio

from odradek.protocol.topics import TopicPartition
from odradek.seams.containment import Containment
from odradek.seams.files import Files, OutOfDescriptors, Path
from odradek.seams.values import state_class, value_class
from odradek.storage.directories import names
from odradek.storage.directories.names import NAME_BYTES_MAX
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
from odradek.storage.file_descriptor_retry import RETRY_SECONDS, retry_without_descriptors
from odradek.storage.log.partition_log import PartitionLog
from odradek.storage.log_registry.directory_logs import DirectoryLogs
from odradek.storage.log_registry.registry import offline_reason
from odradek.storage.log_registry.services import LogServices
from odradek.storage.moving.move_states import MoveAction, MoveEvent, MoveState
from odradek.storage.throttle import Throttle

if TYPE_CHECKING:
    from odradek.storage.compaction.log_cleaner import LogCleaner
    from odradek.storage.moving.future_replica import FutureReplica
    from odradek.storage.moving.move import Move, MoveStatus

_logger = logging.getLogger("odradek.replica_moves")

UNLIMITED = (1 << 63) - 1
SLICE_BYTES = 32 << 20
SLICE_BYTES_MIN = 64 << 10
SLICES_PER_SECOND = 10
"""Slices per second if a rate is set: small slices keep the rate even."""
CLOSE_BYTES = 4 << 20
"""Remaining bytes at which the swap is attempted."""


@value_class
class MoverSettings:
    """Broker configs of moves between log directories."""

    threads: int | None = None
    """num.replica.alter.log.dirs.threads (J-06); None: the number of log directories."""
    bytes_per_second: int = UNLIMITED
    """replica.alter.log.dirs.io.max.bytes.per.second (J-07), shared by all moves."""


@state_class
class MoverStatistics:
    """Statistics of the moves since the start of the node."""

    moved: int = 0
    failed: int = 0
    cancelled: int = 0
    copied_bytes: int = 0
    last_move_seconds: float = 0.0
    last_pause_seconds: float = 0.0
    """Longest turn of the event loop in the last swap, in seconds."""


class Mover:
    """Starts, executes and cancels the moves of a node. All methods run on the event loop."""

    def __init__(
        self,
        services: LogServices,
        log_cleaner: LogCleaner | None,
        settings: Callable[[], MoverSettings],
    ) -> None:
        self.statistics = MoverStatistics()
        self.on_moved: Callable[[PartitionLog], None] = lambda partition_log: None
        """Called with a log after it was moved to another directory."""
        self._services = services
        self._log_cleaner = log_cleaner
        self._entropy = services.entropy
        self.settings = settings
        self._throttle = Throttle(services.clock, lambda: settings().bytes_per_second)
        self._moves: dict[TopicPartition, Move] = {}
        self._containment: Containment[Move] = Containment(
            "the move", self._mark_failed, consequence="the move failed"
        )
        self._ending: Containment[Move] = Containment(
            "the end of the move", consequence="it may be incomplete"
        )
        self._changed = trio.Event()

    @property
    def threads(self) -> int:
        wanted = self.settings().threads
        return len(self._services.directories.all) if wanted is None else wanted

    # Requests

    def moves(self) -> Sequence[MoveStatus]:
        """Return the moves in progress, in the order of their requests."""
        return [move.status() for move in self._moves.values()]

    def moving_to(self, name: TopicPartition) -> Path | None:
        """Return the destination log directory of a replica's move, or None."""
        move = self._moves.get(name)
        return None if move is None else move.destination.directory.path

    async def move(self, name: TopicPartition, destination: Path) -> None:
        """Start to move a replica to the log directory `destination`; the move is tracked on return (J-04).

        A move of the replica to another directory is cancelled first. If `destination` is the replica's current
        directory, this is all. If the node does not have the replica, its directory is remembered for its creation
        (J-03), and ReplicaNotAvailable is raised. Also raises UnknownDirectory, CordonedDirectory, NameTooLong,
        LogFailed (the destination, the replica or, as in Kafka, any directory is offline), DiskFull, and
        NoDescriptors.
        """
        directory_logs = self.check(name, destination)
        registry = self._services.registry
        await registry.wait_until_free(name)
        while self.moving_to(name) not in (None, destination):
            await self.cancel(name)
            await registry.wait_until_free(name)
        partition_log = registry.get(name)
        if partition_log is None:
            self.remember(name, destination)
            raise ReplicaNotAvailable(
                f"{name} does not exist on this node; it will be created in {destination}"
            )
        source = registry.directory_logs_of(partition_log)
        if source is directory_logs or name in self._moves:
            return
        if not registry.are_all_online:
            raise LogFailed(
                "no move starts while a log directory is offline: it may contain the replica"
            )
        with registry.claim(name), trio.CancelScope(shield=True):
            await self._track(name, partition_log, source, directory_logs)

    def remember(self, name: TopicPartition, destination: Path | None) -> None:
        """Set the directory in which a missing replica will be created (J-03); None: any directory."""
        if destination is None:
            self._services.registry.preferred.pop(name, None)
        else:
            self._services.registry.preferred[name] = destination

    def check(self, name: TopicPartition, destination: Path) -> DirectoryLogs:
        """Check name and destination of a move, and return the destination. Raises as `move` does."""
        longest = names.future_name(*name, self._entropy.uuid())
        if len(longest) > NAME_BYTES_MAX:
            raise NameTooLong(f"the directory name {longest} is too long: {name} cannot be moved")
        directory_logs = self._services.registry.logs_by_directory.get(destination)
        if directory_logs is None:
            raise UnknownDirectory(f"{destination} is not a log directory of this node")
        if directory_logs.directory.failed:
            raise LogFailed(offline_reason(directory_logs.directory))
        if destination in self._services.registry.cordoned:
            raise CordonedDirectory(f"{destination} is cordoned")
        return directory_logs

    async def _track(
        self,
        name: TopicPartition,
        partition_log: PartitionLog,
        source: DirectoryLogs,
        directory_logs: DirectoryLogs,
    ) -> None:
        """Create the future replica. After an error it is removed: the next start would continue the move."""
        from odradek.storage.moving.future_replica import FutureReplica
        from odradek.storage.moving.move import Move

        directory = directory_logs.directory
        future = FutureReplica(
            self._services.files, partition_log, directory.path / names.moving_name(*name)
        )
        refusal: StorageError | None = None
        try:
            await self._services.offload.run(future.begin, lane=directory.lane)
        except OutOfDescriptors as error:
            refusal = NoDescriptors(f"{name} cannot be moved: {error}")
        except OSError as error:
            kind = LogFailed if directory.report(error, files_unchanged=True) else DiskFull
            refusal = kind(f"{name} cannot be moved to {directory.path}: {error}")
        if refusal is None and (partition_log.failure is not None or directory.failed):
            refusal = LogFailed(f"{name} cannot be moved to {directory.path}: it went offline")
        if refusal is not None:
            await self.discard(name, directory_logs, future.current)
            raise refusal
        self._add(Move(name, partition_log, source, directory_logs, future))

    def resume(self, name: TopicPartition, destination: DirectoryLogs, found: Path) -> None:
        """Continue a move that a start found: the log is served from another directory (J-13)."""
        from odradek.storage.moving.future_replica import FutureReplica
        from odradek.storage.moving.move import Move

        registry = self._services.registry
        partition_log = registry.logs[name]
        path = destination.directory.path / names.moving_name(*name)
        future = FutureReplica(self._services.files, partition_log, path, found=found)
        self._add(
            Move(
                name, partition_log, registry.directory_logs_of(partition_log), destination, future
            )
        )

    def _add(self, move: Move) -> None:
        self._moves[move.name] = move
        move.partition_log.on_truncated = move.future.source_truncated
        move.source.moving_out.add(move.partition_log)
        move.destination.moving_in.add(move.partition_log)
        _logger.info("starting the move of %s", move)
        self._changed.set()

    async def cancel(self, *partitions: TopicPartition) -> None:
        """Cancel the moves of these replicas (path "any", J-02); on return their future replicas are removed.

        A move that is in its swap is completed instead.
        """
        wanted = [self._moves[name] for name in partitions if name in self._moves]
        for move in wanted:
            move.apply(MoveEvent.CANCEL)
            await self._stop(move)
        for move in wanted:
            await move.done.wait()

    async def _stop(self, move: Move) -> None:
        """Stop the task of a move that is over, or end the move here if it has no task yet."""
        if not move.state.is_over:
            return
        move.scope.cancel()
        if not move.is_started:
            move.is_started = True
            await self._end(move)

    # Execution

    async def run(self) -> None:
        """Execute queued moves, as many at the same time as there are threads, until cancelled."""
        async with trio.open_nursery() as nursery:
            while True:
                self._changed = trio.Event()
                running = sum(1 for move in self._moves.values() if move.is_started)
                for move in tuple(self._moves.values()):
                    if running < self.threads and not move.is_started:
                        move.is_started = True
                        running += 1
                        nursery.start_soon(self._ending.run, move, self._drive, move)
                await self._changed.wait()

    def settings_changed(self) -> None:
        self._changed.set()

    async def _drive(self, move: Move) -> None:
        move.began = self._services.clock.monotonic()
        with move.scope:
            await self._containment.run(move, self._advance, move)
        await self._end(move)

    @staticmethod
    def _mark_failed(move: Move, error: Exception) -> None:
        # After an error in the swap the source may be `.delete`: then `.move` is needed.
        in_swap = move.state is MoveState.SWAPPING
        move.action = MoveAction.LEAVE if in_swap else MoveAction.DISCARD
        move.state, move.last_event = MoveState.FAILED, None

    async def _advance(self, move: Move) -> None:
        """Apply events and execute actions until the move is over."""
        if self._log_cleaner is not None:
            await self._log_cleaner.pause(move.partition_log)
        event = MoveEvent.THREAD_FREE
        while (action := move.apply(event)) in (MoveAction.START, MoveAction.COPY, MoveAction.SWAP):
            event = await self._do(move, action)

    async def _do(self, move: Move, action: MoveAction) -> MoveEvent:
        from odradek.storage.moving.move_errors import classify_move_error

        try:
            if action is MoveAction.SWAP:
                return await self._swap(move)
            if not move.future.is_begun:
                lane = move.destination.directory.lane
                await self._services.offload.run(move.future.begin, lane=lane)
            return await self._copy(move)
        except (OSError, StorageError) as error:
            event = classify_move_error(error, move.source.directory, move.destination.directory)
        if event is MoveEvent.BEHIND:
            await self._services.clock.sleep(RETRY_SECONDS)
        return event

    async def _copy(self, move: Move) -> MoveEvent:
        """Copy one slice in a thread, then wait as the throttle requires."""
        future, lane = move.future, move.destination.directory.lane
        copied, remaining = await self._services.offload.run(
            _slice, future, self._slice_bytes(), lane=lane
        )
        self.statistics.copied_bytes += copied
        await self._throttle.pay(copied)
        if remaining <= min(CLOSE_BYTES, self.settings().bytes_per_second // SLICES_PER_SECOND):
            return MoveEvent.CAUGHT_UP
        return MoveEvent.BEHIND

    def _slice_bytes(self) -> int:
        rate = self.settings().bytes_per_second
        if rate >= UNLIMITED:
            return SLICE_BYTES
        return max(SLICE_BYTES_MIN, min(SLICE_BYTES, rate // SLICES_PER_SECOND))

    async def _swap(self, move: Move) -> MoveEvent:
        from odradek.storage.moving.replica_swap import ReplicaSwap

        swap = ReplicaSwap(
            self._services,
            self._entropy,
            move.name,
            move.partition_log,
            move.future,
            move.destination,
        )
        copied = move.future.copied_bytes
        event = await swap.run()
        # Nothing may be awaited between the switch and its transition, so the throttle delays later copies.
        self._throttle.owe(max(0, move.future.copied_bytes - copied))
        if event is MoveEvent.SWITCHED:
            self.statistics.last_pause_seconds = swap.longest_turn_seconds
        elif event is MoveEvent.BEHIND:
            await self._services.clock.sleep(RETRY_SECONDS)
        return event

    # End of a move

    async def _end(self, move: Move) -> None:
        """Execute the last action of a move that is over, and release its resources."""
        with trio.CancelScope(shield=True):
            try:
                if move.action is MoveAction.DISCARD:
                    await self.discard(move.name, move.destination, move.future.current)
                elif move.action is MoveAction.CONVERT:
                    await self._convert(move)
            finally:
                self._forget(move)
        self._count(move)
        if move.state is MoveState.MOVED:
            self.on_moved(move.partition_log)

    def _forget(self, move: Move) -> None:
        if move.state is not MoveState.MOVED:
            move.future.close()
        move.partition_log.on_truncated = None
        move.source.moving_out.discard(move.partition_log)
        move.destination.moving_in.discard(move.partition_log)
        if self._log_cleaner is not None:
            self._log_cleaner.resume(move.partition_log)
        del self._moves[move.name]
        move.done.set()
        self._changed.set()

    def _count(self, move: Move) -> None:
        seconds = self._services.clock.monotonic() - move.began
        match move.state:
            case MoveState.MOVED:
                self.statistics.moved += 1
                self.statistics.last_move_seconds = seconds
                size = move.size_bytes()
                _logger.info(
                    "moved %s: %.1f MB in %.1f s (%.0f MB/s); the swap paused the log for up to "
                    "%.1f ms",
                    move,
                    size / 1e6,
                    seconds,
                    size / 1e6 / max(seconds, 1e-3),
                    self.statistics.last_pause_seconds * 1e3,
                )
            case MoveState.CANCELLED:
                self.statistics.cancelled += 1
                _logger.info("the move of %s was cancelled", move)
            case MoveState.FAILED:
                self.statistics.failed += 1
                why = "unexpected error" if move.last_event is None else move.last_event.value
                _logger.error(
                    "the move of %s failed (%s): the replica stays in its log directory", move, why
                )

    async def discard(
        self, name: TopicPartition, directory_logs: DirectoryLogs, copy: Path
    ) -> None:
        """Rename a future replica to `-delete`, so that no start continues its move, then remove it."""
        services, directory = self._services, directory_logs.directory
        if directory.failed:
            return
        aside = directory.path / names.deleted_name(*name, self._entropy.uuid())
        rename = partial(_rename_copy, services.files, copy, aside)
        try:
            await retry_without_descriptors(
                services.clock, services.offload, rename, lane=directory.lane
            )
        except OSError as error:
            directory.report(error, files_unchanged=True)
        else:
            services.directory_deletion.schedule(directory, aside, 0)

    async def convert_all_for_kafka(self) -> None:
        """Convert all moves for Kafka at a clean shutdown, when no move is copying.

        Future replicas become Kafka's `-future`, cleanly closed. Old directories of completed moves become `-delete`.
        """
        for move in tuple(self._moves.values()):
            failed = move.source.directory.failed or move.destination.directory.failed
            if move.state is MoveState.SWAPPING:
                move.apply(MoveEvent.BEHIND)
            move.apply(MoveEvent.DESTINATION_FAILED if failed else MoveEvent.STOP)
            await self._end(move)
        await self._services.directory_deletion.rename_moved_for_kafka(self._entropy)

    async def _convert(self, move: Move) -> None:
        directory = move.destination.directory
        future_path = directory.path / names.future_name(*move.name, self._entropy.uuid())
        future = move.future

        def convert() -> None:
            if future.is_converted:
                return
            if future.is_begun:
                future.convert_for_kafka()
            else:
                future.convert_unchecked_copy()
            self._services.files.rename(future.current, future_path)
            self._services.files.sync_directory(directory.path)

        try:
            await self._services.offload.run(convert, lane=directory.lane)
        except (OSError, StorageError) as error:
            _logger.warning("failed to close the future replica of %s: %s", move, error)
            if isinstance(error, OSError):
                directory.report(error, files_unchanged=True)

    # Failures

    def directory_failed(self, path: Path) -> None:
        """Stop the moves from and to an offline log directory (J-11). A swap checks this itself."""
        for move in tuple(self._moves.values()):
            if move.state is MoveState.SWAPPING:
                continue
            if move.source.directory.path == path:
                move.apply(MoveEvent.SOURCE_FAILED)
            elif move.destination.directory.path == path:
                move.apply(MoveEvent.DESTINATION_FAILED)
            else:
                continue
            move.scope.cancel()
            if not move.is_started:
                move.is_started = True
                self._forget(move)
                self._count(move)


def _slice(future: FutureReplica, size: int) -> tuple[int, int]:
    """Copy about `size` bytes, in a thread. Return the copied and the remaining bytes."""
    return future.advance(size), future.remaining_bytes


def _rename_copy(files: Files, copy: Path, aside: Path) -> None:
    """Rename a future replica durably, in a thread. Safe to retry."""
    if files.exists(copy):  # it may not have been created
        files.rename(copy, aside)
    files.sync_directory(aside.parent)
