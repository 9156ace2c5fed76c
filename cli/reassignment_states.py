"""How far a reassignment is: decisions over what brokers said, and Kafka's words for them.

| a replica's directory now | its copy's | state | done | as asked |
|---|---|---|---|---|
| the one asked for | none | COMPLETED | yes | yes |
| any | the one asked for | ACTIVE | no | yes |
| any | another | ELSEWHERE | no | no |
| another | none | CANCELLED | yes | no |
| none, a directory of the broker is offline | - | OFFLINE | yes | no |
| none | - | MISSING | yes | no |
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from enum import Enum, auto

from odradek.client.consumer import TopicPartition
from odradek.client.log_dir_admin import LogDirectory, Replica
from odradek.seams.values import value_class


class Move(Enum):
    """A replica on its way to a directory; see the module."""

    COMPLETED = auto()
    ACTIVE = auto()
    ELSEWHERE = auto()
    CANCELLED = auto()
    OFFLINE = auto()
    MISSING = auto()

    @property
    def done(self) -> bool:
        """Nothing goes on any more."""
        return self not in (Move.ACTIVE, Move.ELSEWHERE)

    @property
    def as_asked(self) -> bool:
        return self in (Move.COMPLETED, Move.ACTIVE)


@value_class
class Place:
    """Where a replica is, and where its copy is being made; None for nowhere."""

    current: str | None = None
    future: str | None = None
    broker_has_offline: bool = False

    def towards(self, target: str) -> Move:
        """The state of the move to `target`."""
        if self.current is None:
            return Move.OFFLINE if self.broker_has_offline else Move.MISSING
        if self.future is None:
            return Move.COMPLETED if self.current == target else Move.CANCELLED
        return Move.ACTIVE if self.future == target else Move.ELSEWHERE


def places(replicas: Iterable[Replica], found: Iterable[LogDirectory]) -> dict[Replica, Place]:
    """Where each is by what its broker said."""
    found = list(found)
    offline = {directory.broker for directory in found if directory.error}
    current: dict[Replica, str] = {}
    future: dict[Replica, str] = {}
    for directory in found:
        for each in directory.replicas:
            paths = future if each.is_future else current
            paths[Replica(directory.broker, each.topic, each.partition)] = directory.path
    return {
        replica: Place(current.get(replica), future.get(replica), replica.broker in offline)
        for replica in replicas
    }


def move_line(replica: Replica, target: str, place: Place) -> str:
    """What kafka-reassign-partitions --verify says of it."""
    name = f"Partition {replica.topic}-{replica.partition}"
    broker = f"on broker {replica.broker}"
    return {
        Move.COMPLETED: f"Reassignment of replica {replica} completed successfully.",
        Move.ACTIVE: f"Reassignment of replica {replica} is still in progress.",
        Move.ELSEWHERE: f"{name} {broker} is being moved to log dir {place.future} "
        f"instead of {target}.",
        Move.CANCELLED: f"{name} {broker} is not being moved from log dir {place.current} "
        f"to {target}.",
        Move.OFFLINE: f"{name} is not found in any live log dir {broker}. There is likely an "
        "offline log directory on the broker.",
        Move.MISSING: f"{name} cannot be found in any live log directory {broker}.",
    }[place.towards(target)]


@value_class
class Reassigned:
    """A partition's replicas as they are and as they are to be; `active` while they change."""

    current: tuple[int, ...]
    target: tuple[int, ...]
    active: bool

    @property
    def as_asked(self) -> bool:
        return self.active or self.current == self.target

    def line(self, where: TopicPartition) -> str:
        """What kafka-reassign-partitions --verify says of it."""
        if self.active:
            return f"Reassignment of partition {where} is still in progress."
        if self.current == self.target:
            return f"Reassignment of partition {where} is completed."
        return (
            f"There is no active reassignment of partition {where}, but replica set is "
            f"{_list(self.current)} rather than {_list(self.target)}."
        )


def status_lines(states: Mapping[TopicPartition, Reassigned]) -> list[str]:
    return [
        "Status of partition reassignment:",
        *(states[where].line(where) for where in sorted(states)),
    ]


def _list(brokers: Iterable[int]) -> str:
    return ",".join(map(str, brokers))
