"""Replica assignments: placement by the controller, validation of manual ones, and the first state of a partition.

`StripedReplicaPlacer` (as in Kafka) places replicas across racks and brokers. Each partition starts at the next rack,
and at the next broker of a rack. Starting points are random. Unfenced brokers precede fenced ones and become leaders.
The orders are shuffled after as many partitions as there are unfenced brokers.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TypeVar

from odradek.protocol.errors import ErrorCode, KafkaError
from odradek.replication.controller.controller_result import ItemRefused
from odradek.replication.controller.image import MetadataImage, PartitionImage
from odradek.replication.controller.leader_and_isr_updates import default_directory
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
                passed = True  # the leader is the replica of this rack
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


def check_manual_assignment(
    image: MetadataImage, replicas: Sequence[int], replication_factor: int | None
) -> None:
    """Raise ItemRefused unless the brokers are registered, distinct, and `replication_factor`
    many."""
    if not replicas:
        raise _invalid("The manual partition assignment includes an empty replica list.")
    previous = None
    for broker in sorted(replicas):
        if broker not in image.brokers:
            raise _invalid(
                f"The manual partition assignment includes broker {broker}, but no such broker is "
                "registered."
            )
        if broker == previous:
            raise _invalid(
                f"The manual partition assignment includes the broker {broker} more than once."
            )
        previous = broker
    if replication_factor is not None and len(replicas) != replication_factor:
        raise _invalid(
            f"The manual partition assignment includes a partition with {len(replicas)} "
            "replica(s), but this is not consistent with previous partitions, which have "
            f"{replication_factor} replica(s)."
        )


def _invalid(reason: str) -> ItemRefused:
    return ItemRefused(ErrorCode.invalid_replica_assignment, reason)


def initial_partition(image: MetadataImage, replicas: Sequence[int]) -> PartitionImage | None:
    """A new partition with all active replicas in its ISR; None if no replica is active."""
    isr = tuple(broker for broker in replicas if image.is_active(broker))
    if not isr:
        return None
    return PartitionImage(
        replicas=tuple(replicas),
        directories=tuple(default_directory(image, broker) for broker in replicas),
        isr=isr,
        leader=isr[0],
        leader_epoch=0,
        partition_epoch=0,
    )


def no_active_replica(partition: int) -> ItemRefused:
    return _invalid(
        f"All brokers specified in the manual partition assignment for partition {partition} are "
        "fenced or in controlled shutdown."
    )


def cannot_replicate(replication_factor: int, reason: str) -> ItemRefused:
    return ItemRefused(
        ErrorCode.invalid_replication_factor,
        f"Unable to replicate the partition {replication_factor} time(s): {reason}",
    )


ALL_FENCED = "All brokers are currently fenced or in controlled shutdown."
