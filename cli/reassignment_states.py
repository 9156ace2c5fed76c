"""Status of a reassignment, from the brokers' responses, with the texts of kafka-reassign-partitions.

| current directory | directory of the future replica | state | done | on target |
|---|---|---|---|---|
| the target | none | COMPLETED | yes | yes |
| any | the target | ACTIVE | no | yes |
| any | another | ELSEWHERE | no | no |
| another | none | CANCELLED | yes | no |
| none, a directory of the broker is offline | - | OFFLINE | yes | no |
| none | - | MISSING | yes | no |
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from enum import Enum, auto

from odradek.client.log_dir_admin import LogDirectory, Replica
from odradek.protocol.topics import TopicPartition
from odradek.seams.values import value_class


class DirectoryMoveState(Enum):
    """State of the move of a replica to a log directory; the table above defines the values."""

    COMPLETED = auto()
    ACTIVE = auto()
    ELSEWHERE = auto()
    CANCELLED = auto()
    OFFLINE = auto()
    MISSING = auto()

    @property
    def done(self) -> bool:
        """Whether no move of the replica is in progress."""
        return self not in (DirectoryMoveState.ACTIVE, DirectoryMoveState.ELSEWHERE)

    @property
    def is_on_target(self) -> bool:
        return self in (DirectoryMoveState.COMPLETED, DirectoryMoveState.ACTIVE)


@value_class
class ReplicaDirectories:
    """Log directories of a replica and of its future replica; None if it does not exist."""

    current: str | None = None
    future: str | None = None
    broker_has_offline: bool = False

    def state_of_move_to(self, target: str) -> DirectoryMoveState:
        """Classify the move to the directory `target`."""
        if self.current is None:
            return (
                DirectoryMoveState.OFFLINE
                if self.broker_has_offline
                else DirectoryMoveState.MISSING
            )
        if self.future is None:
            return (
                DirectoryMoveState.COMPLETED
                if self.current == target
                else DirectoryMoveState.CANCELLED
            )
        return DirectoryMoveState.ACTIVE if self.future == target else DirectoryMoveState.ELSEWHERE


def replica_directories(
    replicas: Iterable[Replica], found: Iterable[LogDirectory]
) -> dict[Replica, ReplicaDirectories]:
    """Log directories of each replica, from DescribeLogDirs responses."""
    found = list(found)
    offline = {directory.broker for directory in found if directory.error}
    current: dict[Replica, str] = {}
    future: dict[Replica, str] = {}
    for directory in found:
        for each in directory.replicas:
            paths = future if each.is_future else current
            paths[Replica(directory.broker, each.topic, each.partition)] = directory.path
    return {
        replica: ReplicaDirectories(
            current.get(replica), future.get(replica), replica.broker in offline
        )
        for replica in replicas
    }


def move_line(replica: Replica, target: str, place: ReplicaDirectories) -> str:
    """Status line of a replica, as kafka-reassign-partitions --verify prints it."""
    name = f"Partition {replica.topic}-{replica.partition}"
    broker = f"on broker {replica.broker}"
    return {
        DirectoryMoveState.COMPLETED: f"Reassignment of replica {replica} completed successfully.",
        DirectoryMoveState.ACTIVE: f"Reassignment of replica {replica} is still in progress.",
        DirectoryMoveState.ELSEWHERE: f"{name} {broker} is being moved to log dir {place.future} "
        f"instead of {target}.",
        DirectoryMoveState.CANCELLED: f"{name} {broker} is not being moved from log dir {place.current} "
        f"to {target}.",
        DirectoryMoveState.OFFLINE: f"{name} is not found in any live log dir {broker}. There is likely an "
        "offline log directory on the broker.",
        DirectoryMoveState.MISSING: f"{name} cannot be found in any live log directory {broker}.",
    }[place.state_of_move_to(target)]


@value_class
class PartitionReassignment:
    """Current and target replicas of a partition, and whether its reassignment is active."""

    current: tuple[int, ...]
    target: tuple[int, ...]
    active: bool

    @property
    def is_on_target(self) -> bool:
        return self.active or self.current == self.target

    @property
    def state(self) -> str:
        """State in JSON: active, completed, or inactive with other replicas than the target."""
        if self.active:
            return "active"
        return "completed" if self.current == self.target else "inactive"

    def line(self, where: TopicPartition) -> str:
        """Status line of the partition, as kafka-reassign-partitions --verify prints it."""
        if self.active:
            return f"Reassignment of partition {where} is still in progress."
        if self.current == self.target:
            return f"Reassignment of partition {where} is completed."
        return (
            f"There is no active reassignment of partition {where}, but replica set is "
            f"{_list(self.current)} rather than {_list(self.target)}."
        )


def status_lines(states: Mapping[TopicPartition, PartitionReassignment]) -> list[str]:
    return [
        "Status of partition reassignment:",
        *(states[where].line(where) for where in sorted(states)),
    ]


def _list(brokers: Iterable[int]) -> str:
    return ",".join(map(str, brokers))
