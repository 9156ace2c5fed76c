"""Classic consumer groups: the time until the members have their assignment.

The members (`group_members.py`) have none of the delays of a client library; one workload uses librdkafka. Times are from
opening the connection, or from the first JoinGroup of a rebalance, to the last member's SyncGroup response.
"""

from __future__ import annotations

import itertools
import statistics
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import confluent_kafka

from odradek.bench.group_members import Member, drive, find_coordinator, quiet, settled
from odradek.bench.model import (
    Feature,
    Metric,
    Parameter,
    Stage,
    Target,
    Workload,
    WorkloadFailed,
    WorkloadOutcome,
)
from odradek.bench.raw_connection import RawConnection

ASSIGNMENT = Metric("assignment_ms", "ms", "lower")
SLOWEST = Metric("slowest_ms", "ms", "lower")
JOIN = Metric("join_ms", "ms", "lower")
REBALANCE = Metric("rebalance_ms", "ms", "lower")

GROUPS_A_RUN = 20
REBALANCES_A_RUN = 10
LIBRDKAFKA_S = 60.0

_numbers = itertools.count(1)


@dataclass(frozen=True)
class FirstAssignment:
    """Measures the first assignment of a group with one member: the median of twenty groups."""

    name: str = "group-assignment"
    title: str = "first assignment of a one-member group, __consumer_offsets exists"
    metrics: Sequence[Metric] = (ASSIGNMENT, SLOWEST)
    needs: frozenset[Feature] = frozenset({Feature.GROUPS})
    stage: Stage = Stage.SHARED
    default: bool = True

    @property
    def parameters(self) -> Mapping[str, Parameter]:
        return {"groups": GROUPS_A_RUN}

    def run(self, target: Target) -> WorkloadOutcome:
        with target.topic(f"{self.name}-{next(_numbers)}") as topic:
            _first_assignment_ms(target, topic)  # creates __consumer_offsets
            taken = [_first_assignment_ms(target, topic) for _ in range(GROUPS_A_RUN)]
        return WorkloadOutcome(
            {ASSIGNMENT.name: statistics.median(taken), SLOWEST.name: max(taken)}
        )


@dataclass(frozen=True)
class AssignmentWithoutOffsetsTopic:
    """Measures the same on a broker without __consumer_offsets, which is created first."""

    name: str = "group-assignment-ever"
    title: str = "first assignment of a one-member group, __consumer_offsets does not exist"
    metrics: Sequence[Metric] = (ASSIGNMENT,)
    needs: frozenset[Feature] = frozenset({Feature.GROUPS, Feature.PROCESS})
    stage: Stage = Stage.FRESH
    default: bool = True

    @property
    def parameters(self) -> Mapping[str, Parameter]:
        return {}

    def run(self, target: Target) -> WorkloadOutcome:
        with target.topic(f"{self.name}-{next(_numbers)}") as topic:
            return WorkloadOutcome({ASSIGNMENT.name: _first_assignment_ms(target, topic)})


def _first_assignment_ms(target: Target, topic: str) -> float:
    group = f"group-{next(_numbers)}"
    began = time.perf_counter()
    with RawConnection(target.address) as wire:
        find_coordinator(wire, group)
        member = Member(target.address, group, topic)
        member.join()
        drive([member], settled)
        taken = time.perf_counter() - began
        quiet([member])
        member.leave()
    return taken * 1e3


@dataclass(frozen=True)
class Rebalance:
    """`members` members join an empty group at once; then all of them rejoin, ten times.

    Each member rejoins with a new subscription, without waiting for a heartbeat response.
    """

    members: int
    metrics: Sequence[Metric] = (JOIN, REBALANCE)
    needs: frozenset[Feature] = frozenset({Feature.GROUPS})
    stage: Stage = Stage.SHARED
    default: bool = True

    @property
    def name(self) -> str:
        return f"group-rebalance-{self.members}"

    @property
    def title(self) -> str:
        plural = "s" * (self.members > 1)
        return f"a group of {self.members} member{plural}: joining at once, rebalancing"

    @property
    def parameters(self) -> Mapping[str, Parameter]:
        return {"members": self.members, "rebalances": REBALANCES_A_RUN}

    def run(self, target: Target) -> WorkloadOutcome:
        with target.topic(f"{self.name}-{next(_numbers)}", self.members) as topic:
            _first_assignment_ms(target, topic)
            with _members(target, topic, self.members) as members:
                join_ms = _settle_ms(members)
                rebalances_ms = [_settle_ms(members) for _ in range(REBALANCES_A_RUN)]
        return WorkloadOutcome(
            {JOIN.name: join_ms, REBALANCE.name: statistics.median(rebalances_ms)}
        )


@contextmanager
def _members(target: Target, topic: str, count: int) -> Iterator[list[Member]]:
    group = f"group-{next(_numbers)}"
    with RawConnection(target.address) as wire:
        find_coordinator(wire, group)
    members = [Member(target.address, group, topic) for _ in range(count)]
    try:
        yield members
        for member in members:
            member.leave()
    finally:
        for member in members:
            member.wire.close()


def _settle_ms(members: Sequence[Member]) -> float:
    """Let all members join. Returns the time in ms until all have their new assignment."""
    began = time.perf_counter()
    for member in members:
        member.join()
    drive(members, settled)
    taken = time.perf_counter() - began
    quiet(members)
    return taken * 1e3


@dataclass(frozen=True)
class LibrdkafkaAssignment:
    """Measures the first assignment of a librdkafka consumer, including librdkafka's delays."""

    name: str = "group-assignment-librdkafka"
    title: str = "first assignment of a one-member group, with a librdkafka consumer"
    metrics: Sequence[Metric] = (ASSIGNMENT, SLOWEST)
    needs: frozenset[Feature] = frozenset({Feature.GROUPS})
    stage: Stage = Stage.SHARED
    default: bool = True

    @property
    def parameters(self) -> Mapping[str, Parameter]:
        return {"groups": GROUPS_A_RUN // 2, "librdkafka": confluent_kafka.libversion()[0]}

    def run(self, target: Target) -> WorkloadOutcome:
        with target.topic(f"{self.name}-{next(_numbers)}") as topic:
            _first_assignment_ms(target, topic)  # creates __consumer_offsets
            taken = [_librdkafka_ms(target, topic) for _ in range(GROUPS_A_RUN // 2)]
        return WorkloadOutcome(
            {ASSIGNMENT.name: statistics.median(taken), SLOWEST.name: max(taken)}
        )


def _librdkafka_ms(target: Target, topic: str) -> float:
    assigned: list[float] = []

    def on_assign(consumer: confluent_kafka.Consumer, partitions: object) -> None:
        assigned.append(time.perf_counter())

    began = time.perf_counter()
    consumer = confluent_kafka.Consumer(
        {
            "bootstrap.servers": target.bootstrap,
            "group.id": f"group-{next(_numbers)}",
            "enable.metrics.push": False,  # KIP-714: telemetry requests to brokers that support it
        }
    )
    try:
        consumer.subscribe([topic], on_assign=on_assign)
        while not assigned:
            consumer.poll(0.1)
            if time.perf_counter() - began > LIBRDKAFKA_S:
                raise WorkloadFailed(f"no assignment in {LIBRDKAFKA_S:g} s")
    finally:
        consumer.close()
    return (assigned[0] - began) * 1e3


WORKLOADS: tuple[Workload, ...] = (
    AssignmentWithoutOffsetsTopic(),
    FirstAssignment(),
    LibrdkafkaAssignment(),
    Rebalance(1),
    Rebalance(5),
    Rebalance(50),
)
