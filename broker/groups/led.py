"""What the coordinator keeps of a partition that it leads, and of the clients that wait in it."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field

import trio

from odradek.broker.groups.actions import Answer, Then
from odradek.broker.groups.shard import Shard
from odradek.protocol.errors import ErrorCode, KafkaError

AS_COORDINATOR: Mapping[ErrorCode, ErrorCode] = {
    ErrorCode.unknown_topic_or_partition: ErrorCode.coordinator_not_available,
    ErrorCode.not_enough_replicas: ErrorCode.coordinator_not_available,
    ErrorCode.request_timed_out: ErrorCode.coordinator_not_available,
    ErrorCode.not_leader_or_follower: ErrorCode.not_coordinator,
    ErrorCode.kafka_storage_error: ErrorCode.not_coordinator,
    ErrorCode.message_too_large: ErrorCode.unknown_server_error,
    ErrorCode.record_list_too_large: ErrorCode.unknown_server_error,
}
"""What clients of a group are told of an error of its log."""


class NotCoordinator(KafkaError):
    code = ErrorCode.not_coordinator


class LoadInProgress(KafkaError):
    code = ErrorCode.coordinator_load_in_progress


class ClientWaiter:
    """A client's request that will be answered."""

    __slots__ = ("_answer", "_answered")

    def __init__(self) -> None:
        self._answer: Answer | None = None
        self._answered: trio.Event | None = None

    def set(self, answer: Answer) -> None:
        self._answer = answer
        if self._answered is not None:
            self._answered.set()

    async def wait(self) -> Answer:
        if self._answer is None:
            self._answered = trio.Event()
            await self._answered.wait()
            assert self._answer is not None
        return self._answer


@dataclass(slots=True)
class Uncommitted:
    """Records that are in the log, but not yet on all in-sync replicas."""

    offset: int
    then: Then
    deadline_ms: int


@dataclass(slots=True)
class LedPartition:
    """A partition that this node leads."""

    partition: int
    leader_epoch: int
    shard: Shard
    loading: bool = True
    failed: bool = False
    """Its records can't be read; its groups have no coordinator until it changes hands."""
    uncommitted: deque[Uncommitted] = field(default_factory=deque)
    last_offset: int = -1
    """Of the last record written here."""
    running: trio.CancelScope | None = None
    """Around the task that runs for it: its load, later on the wait for replicas."""

    @property
    def serves(self) -> bool:
        return not self.loading and not self.failed


@dataclass(slots=True)
class GroupStatistics:
    """Counters since start, under the names of Kafka's sensors."""

    offset_commits: int = 0
    offset_deletions: int = 0
    offset_expirations: int = 0
    completed_rebalances: int = 0
    loads: int = 0
    failed_loads: int = 0
    """Partitions whose records could not be read."""
