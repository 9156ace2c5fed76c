"""One replica's move: what it is between, how far it is, and in which state."""

from __future__ import annotations

from typing import NamedTuple

import trio

from odradek.seams.files import Path
from odradek.storage.directories.names import TopicPartition
from odradek.storage.errors import StorageError
from odradek.storage.log.partition_log import PartitionLog
from odradek.storage.log_manager.directory_logs import DirectoryLogs
from odradek.storage.moving.mirror import Mirror
from odradek.storage.moving.states import Action, Event, State, step


class MoveStatus(NamedTuple):
    """A move as of now, for who shows it."""

    topic_partition: TopicPartition
    source: Path
    """Log directories."""
    destination: Path
    state: State
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
        which: PartitionLog,
        source: DirectoryLogs,
        destination: DirectoryLogs,
        mirror: Mirror,
    ) -> None:
        self.name = name
        self.which = which
        self.source = source
        self.destination = destination
        self.mirror = mirror
        self.state = State.QUEUED
        self.action = Action.IGNORE
        """What the last event that mattered asks for."""
        self.scope = trio.CancelScope()
        self.last_event: Event | None = None
        """Of those that mattered: what it ended by, once it is over."""
        self.is_unwanted = False
        """It was cancelled while it could not be."""
        self.is_started = False
        self.done = trio.Event()
        self.began = 0.0

    def __str__(self) -> str:
        return f"{self.name} from {self.source.directory.path} to {self.destination.directory.path}"

    def apply(self, event: Event) -> Action:
        """Take the table's step; what is to be done."""
        state, action = step(self.state, event)
        if event is Event.CANCEL and action is Action.WAIT:
            self.is_unwanted = True
        if self.is_unwanted and action is Action.COPY:
            state, action = step(state, Event.CANCEL)
        if action not in (Action.IGNORE, Action.WAIT):
            self.state, self.action, self.last_event = state, action, event
        return action

    def size_bytes(self) -> int:
        """Of the replica; what was copied, where its files cannot be asked just now."""
        try:
            return self.which.size_bytes
        except (OSError, ValueError, StorageError):
            return self.mirror.copied_bytes

    def status(self) -> MoveStatus:
        end_offset = self.mirror.end_offset
        return MoveStatus(
            self.name,
            self.source.directory.path,
            self.destination.directory.path,
            self.state,
            self.mirror.copied_bytes,
            self.size_bytes(),
            end_offset,
            max(0, self.which.end_offset - end_offset),
        )
