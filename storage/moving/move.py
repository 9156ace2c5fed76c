"""One move of a replica: source, destination, progress and state."""

from __future__ import annotations

from typing import NamedTuple

import trio

from odradek.protocol.topics import TopicPartition
from odradek.seams.files import Path
from odradek.storage.errors import StorageError
from odradek.storage.log.partition_log import PartitionLog
from odradek.storage.log_registry.directory_logs import DirectoryLogs
from odradek.storage.moving.future_replica import FutureReplica
from odradek.storage.moving.move_states import MoveAction, MoveEvent, MoveState, next_move_action


class MoveStatus(NamedTuple):
    """Snapshot of a move for DescribeLogDirs and commands."""

    topic_partition: TopicPartition
    source: Path
    """Current log directory."""
    destination: Path
    """Log directory of the future replica."""
    state: MoveState
    copied_bytes: int
    total_bytes: int
    """Current size of the replica, which may grow."""
    end_offset: int
    """End offset of the future replica."""
    offset_lag: int
    """Number of offsets that the future replica is behind the current replica."""


class Move:
    """One move of a replica, with the state of the task that executes it."""

    def __init__(
        self,
        name: TopicPartition,
        partition_log: PartitionLog,
        source: DirectoryLogs,
        destination: DirectoryLogs,
        future: FutureReplica,
    ) -> None:
        self.name = name
        self.partition_log = partition_log
        self.source = source
        self.destination = destination
        self.future = future
        self.state = MoveState.QUEUED
        self.action = MoveAction.IGNORE
        """Action of the last event that was not ignored."""
        self.scope = trio.CancelScope()
        self.last_event: MoveEvent | None = None
        """Last event that was not ignored; after the end of the move, the event that ended it."""
        self.is_cancel_requested = False
        """Whether the move was cancelled during the swap."""
        self.is_started = False
        self.done = trio.Event()
        self.began = 0.0

    def __str__(self) -> str:
        return f"{self.name} from {self.source.directory.path} to {self.destination.directory.path}"

    def apply(self, event: MoveEvent) -> MoveAction:
        """Apply a transition of the table and return the action."""
        state, action = next_move_action(self.state, event)
        if event is MoveEvent.CANCEL and action is MoveAction.WAIT:
            self.is_cancel_requested = True
        if self.is_cancel_requested and action is MoveAction.COPY:
            state, action = next_move_action(state, MoveEvent.CANCEL)
        if action not in (MoveAction.IGNORE, MoveAction.WAIT):
            self.state, self.action, self.last_event = state, action, event
        return action

    def size_bytes(self) -> int:
        """Return the size of the replica, or the copied bytes if its files are not available now."""
        try:
            return self.partition_log.size_bytes
        except (OSError, ValueError, StorageError):
            return self.future.copied_bytes

    def status(self) -> MoveStatus:
        """Return a snapshot of the progress."""
        end_offset = self.future.end_offset
        return MoveStatus(
            self.name,
            self.source.directory.path,
            self.destination.directory.path,
            self.state,
            self.future.copied_bytes,
            self.size_bytes(),
            end_offset,
            max(0, self.partition_log.end_offset - end_offset),
        )
