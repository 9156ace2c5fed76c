"""Places replicas across racks and brokers (Kafka's `StripedReplicaPlacer`).

Each partition starts at the next rack, and at the next broker of a rack. Starting points are
random. Unfenced brokers precede fenced ones and become leaders. The orders are shuffled after as
many partitions as there are unfenced brokers.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TypeVar

from odradek.protocol.errors import ErrorCode, KafkaError
from odradek.replication.controller.image import MetadataImage
from odradek.seams.entropy import Entropy

T = TypeVar("T")


class InvalidReplicationFactor(KafkaError):
    """Not enough brokers for the replication factor."""

    code = ErrorCode.invalid_replication_factor


@dataclass(slots=True)
class _Ring:
    """Brokers of a rack in rotation; the start advances with each round."""

    brokers: list[int] = field(default_factory=list)
    offset: int = 0
    index: int = 0
    round: int = 0

    def next(self, now: int) -> int | None:
        if not self.brokers:
            return None
        if self.round != now:
            self.round, self.index = now, 0
            self.offset = (self.offset + 1) % len(self.brokers)
        if self.index >= len(self.brokers):
            return None
        broker = self.brokers[(self.index + self.offset) % len(self.brokers)]
        self.index += 1
        return broker


@dataclass(slots=True)
class _Rack:
    serving: _Ring = field(default_factory=_Ring)
    fenced: _Ring = field(default_factory=_Ring)

    @property
    def rings(self) -> tuple[_Ring, _Ring]:
        return self.fenced, self.serving

    def next(self, now: int) -> int | None:
        found = self.serving.next(now)
        return self.fenced.next(now) if found is None else found


class StripedReplicaPlacer:
    """Places the partitions of one request."""

    def __init__(self, image: MetadataImage, entropy: Entropy) -> None:
        self._entropy = entropy
        self._racks: dict[str | None, _Rack] = {}
        self._total = self._serving = 0
        self._round = 0
        for broker in image.brokers.values():
            if broker.in_controlled_shutdown or not broker.has_uncordoned_directory:
                continue
            rack = self._racks.setdefault(broker.rack, _Rack())
            (rack.fenced if broker.fenced else rack.serving).brokers.append(broker.id)
            self._total += 1
            self._serving += not broker.fenced
        self._names = sorted(self._racks, key=lambda name: (name is not None, name or ""))
        for name in self._names:
            for ring in self._racks[name].rings:
                ring.brokers.sort()
                ring.offset = entropy.below(len(ring.brokers)) if ring.brokers else 0
        self._offset = entropy.below(len(self._names)) if self._names else 0

    def check(self, replication_factor: int) -> None:
        """Raise InvalidReplicationFactor with Kafka's message."""
        if replication_factor <= 0:
            raise InvalidReplicationFactor(
                f"Invalid replication factor {replication_factor}: the replication factor must be "
                "positive."
            )
        if self._serving == 0:
            raise InvalidReplicationFactor(
                "All brokers are currently fenced, or have all their log directories cordoned."
            )
        if replication_factor > self._total:
            raise InvalidReplicationFactor(
                f"The target replication factor of {replication_factor} cannot be reached because "
                f"only {self._total} broker(s) are registered or some brokers have all their log "
                "directories cordoned."
            )

    def place(self, replication_factor: int) -> tuple[int, ...]:
        """Replicas of the next partition, leader first; call `check` before."""
        if self._round == self._serving and self._serving > 1:
            self._shuffle()
            self._round = 0
        names, now = self._names, self._round
        start = self._offset % len(names)
        replicas = []
        leader_at = start
        while (leader := self._racks[names[leader_at]].serving.next(now)) is None:
            leader_at = (leader_at + 1) % len(names)
        replicas.append(leader)
        at, passed = start, False
        while len(replicas) < replication_factor:
            if at == leader_at and not passed:
                passed = True  # the leader was this rack's turn
            elif (found := self._racks[names[at]].next(now)) is not None:
                replicas.append(found)
            at = (at + 1) % len(names)
        self._round += 1
        self._offset = (self._offset + 1) % len(names)
        return tuple(replicas)

    def _shuffle(self) -> None:
        shuffle(self._names, self._entropy)
        for name in self._names:
            for ring in self._racks[name].rings:
                shuffle(ring.brokers, self._entropy)


def shuffle(items: list[T], entropy: Entropy) -> None:
    """Shuffle in place with uniform distribution (Fisher-Yates)."""
    for last in range(len(items) - 1, 0, -1):
        other = entropy.below(last + 1)
        items[last], items[other] = items[other], items[last]
