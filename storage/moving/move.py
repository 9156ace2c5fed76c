"""One replica's move: what it is between, how far it is, and in which state."""

from __future__ import annotations

from typing import NamedTuple

import trio

from odradek.seams.files import Path
from odradek.storage.directories.names import TopicPartition
from odradek.storage.errors import StorageError
from odradek.storage.log.partition_log import PartitionLog
from odradek.storage.log_manager.directory_logs import DirectoryLogs
from odradek.storage.moving.future_replica import FutureReplica
from odradek.storage.moving.move_states import MoveAction, MoveEvent, MoveState, next_move_action


class MoveStatus(NamedTuple):
    """A move as of now, for who shows it."""

    topic_partition: TopicPartition
    source: Path
    """Log directories."""
    destination: Path
    state: MoveState
    copied_bytes: int
    total_bytes: int
    """Of the replica as it is; it may grow meanwhile."""
    end_offset: int
    """Of the copy."""
    offset_lag: int
    """How many offsets the copy is behind the replica."""


class Move:
    """One replica's move, and the task that drives it."""

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
        """What the last event that mattered asks for."""
        self.scope = trio.CancelScope()
        self.last_event: MoveEvent | None = None
        """Of those that mattered: what it ended by, once it is over."""
        self.is_cancel_requested = False
        """It was cancelled while it could not be."""
        self.is_started = False
        self.done = trio.Event()
        self.began = 0.0

    def __str__(self) -> str:
        return f"{self.name} from {self.source.directory.path} to {self.destination.directory.path}"

    def apply(self, event: MoveEvent) -> MoveAction:
        """Take the table's step; what is to be done."""
        state, action = next_move_action(self.state, event)
        if event is MoveEvent.CANCEL and action is MoveAction.WAIT:
            self.is_cancel_requested = True
        if self.is_cancel_requested and action is MoveAction.COPY:
            state, action = next_move_action(state, MoveEvent.CANCEL)
        if action not in (MoveAction.IGNORE, MoveAction.WAIT):
            self.state, self.action, self.last_event = state, action, event
        return action

    def size_bytes(self) -> int:
        """Of the replica; what was copied, where its files cannot be asked just now."""
        try:
            return self.partition_log.size_bytes
        except (OSError, ValueError, StorageError):
            return self.future.copied_bytes

    def status(self) -> MoveStatus:
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
