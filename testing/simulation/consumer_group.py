"""A consumer group that reads all committed records while its members leave, die and are replaced.

Assignments, and responses to commits, are recorded (`group_history.py`).
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from contextlib import AbstractAsyncContextManager, suppress
from dataclasses import dataclass, field
from itertools import count
from typing import Protocol

import trio

from odradek.client.consumer import ConsumedRecord, IsolationLevel, ReaderOptions
from odradek.client.errors import RETRIABLE, ClientError, Unsupported
from odradek.client.group import GroupConsumer, GroupOptions
from odradek.client.group_admin import committed_offsets
from odradek.client.metadata import Cluster
from odradek.protocol.errors import ErrorCode, KafkaError
from odradek.protocol.topics import TopicPartition
from odradek.testing.simulation.consumer_member import ConsumerMember
from odradek.testing.simulation.group_history import GroupHistory, MemberAssignment, OffsetCommit
from odradek.testing.simulation.history import Anomaly, ReadRecord
from odradek.testing.simulation.plan import ADMIN_REQUEST_S
from odradek.testing.simulation.readers import to_read_records
from odradek.testing.simulation.trace import Trace

GROUP = "group"
SESSION_S = 1.5
HEARTBEAT_S = 0.3
REBALANCE_S = 1.5
MEMBER_LIFETIME_S = 2.0
"""The average lifetime of members until the cluster is in sync."""
POLL_S = 0.3
COMMIT_S = 0.2
"""The time between two commits of a member, until the cluster is in sync."""
BUSY = 0.1
BUSY_S = (0.2, 2.5)
"""The share of commits before which a member processes records slowly, and for how long.

It is often longer than its session timeout.
"""
PAUSE_S = 0.1
CAUGHT_UP_S = 8.0
"""The time for the group to read and commit everything, once the cluster is in sync.

It includes a session timeout for a killed member, and a rebalance timeout for one that does not join.
"""
EXPECTED_ERRORS = RETRIABLE | {
    ErrorCode.rebalance_in_progress,
    ErrorCode.illegal_generation,
    ErrorCode.unknown_member_id,
    ErrorCode.fenced_member_epoch,
    ErrorCode.stale_member_epoch,
    ErrorCode.fenced_instance_id,
    ErrorCode.unreleased_instance_id,
}
STORE_ERROR = ErrorCode.unknown_server_error
"""The error of reading from a store that is unavailable."""


class GroupMember(Protocol):
    generation: int

    @property
    def positions(self) -> dict[TopicPartition, int]: ...

    async def poll(self, max_wait_s: float) -> list[ConsumedRecord]: ...

    async def commit(self, offsets: Mapping[TopicPartition, int]) -> None: ...

    async def leave(self) -> None: ...


@dataclass
class _ActiveMember:
    """A member that is in the group, and its connection's cancel scope."""

    number: int
    name: str
    member: GroupMember
    chance: random.Random
    scope: trio.CancelScope = field(default_factory=trio.CancelScope)
    assignment: MemberAssignment | None = None
    """The partitions that the member owns."""


class ConsumerGroupWorkload:
    """A group of `members` members at a time; each replacement has a new member id.

    Static members have the instance id of their predecessors.
    """

    def __init__(
        self,
        connect: Callable[[], AbstractAsyncContextManager[Cluster]],
        topic: str,
        members: int,
        seed: int,
        trace: Trace,
        *,
        tiered: bool,
    ) -> None:
        self.history = GroupHistory()
        self.anomalies: list[Anomaly] = []
        """Errors that no member may get."""
        self._connect = connect
        self._topic = topic
        self._members = members
        self._trace = trace
        self._expected_errors = EXPECTED_ERRORS | {STORE_ERROR} if tiered else EXPECTED_ERRORS
        chance = random.Random(f"group {seed}")
        self._is_classic = chance.random() < 0.5
        self._is_static = chance.random() < 0.3
        self._chances = [random.Random(chance.random()) for _ in range(members)]
        self._active_members: list[_ActiveMember] = []
        self._in_sync = trio.Event()
        self._served: set[int] = set()
        """Members whose commit was acknowledged since the cluster is in sync."""
        self._ends: Mapping[TopicPartition, int] | None = None
        self._over = trio.Event()

    async def run(self) -> None:
        """Run until `final` has finished."""
        if not self._members:
            return
        async with trio.open_nursery() as nursery:
            for number in range(self._members):
                nursery.start_soon(self._run_members, number)
            await self._over.wait()
            nursery.cancel_scope.cancel()

    def set_in_sync(self) -> None:
        """Stop ending members; called when the cluster is in sync."""
        self._in_sync.set()
        for active in self._active_members:
            active.scope.deadline = float("inf")

    async def final(
        self,
        committed: list[ReadRecord],
        ends: Mapping[TopicPartition, int],
        log_starts: Mapping[int, int],
    ) -> None:
        """Wait until the group has read and committed `committed`, from `log_starts` up to `ends`."""
        if not self._members:
            return
        self._ends = ends
        with trio.move_on_after(CAUGHT_UP_S):
            await self._over.wait()
        if not self._over.is_set():
            why = (
                f"its members have committed {self.history.acknowledged()} of {dict(ends)} in "
                f"{CAUGHT_UP_S:g} s after recovery; {len(self._served)} of {self._members} members committed"
            )
            self.anomalies.append(Anomaly("group stuck", why))
            self._over.set()
        async with self._connect() as cluster:
            found = await committed_offsets(cluster, GROUP, list(ends))
        has = {where.partition: each.offset for where, each in found.items()}
        self.anomalies += self.history.anomalies(committed, has, log_starts)

    def _has_all(self) -> bool:
        if self._ends is None or len(self._served) < self._members:
            return False
        have = self.history.acknowledged()
        return all(have.get(where.partition, 0) >= end for where, end in self._ends.items())

    async def _run_members(self, number: int) -> None:
        chance = self._chances[number]
        for which in count():
            name = f"{GROUP}-{number}.{which}"
            seconds, leaves = chance.expovariate(1 / MEMBER_LIFETIME_S), chance.random() < 0.5
            async with self._connect() as cluster:
                active = _ActiveMember(number, name, self._member(cluster, number, name), chance)
                if not self._in_sync.is_set():
                    active.scope.deadline = trio.current_time() + seconds
                self._active_members.append(active)
                with active.scope:
                    await self._live(active)
                self._active_members.remove(active)
                self._trace.add(f"{name} {'leaves' if leaves else 'is killed'}")
                if leaves:
                    with suppress(KafkaError, ClientError), trio.move_on_after(ADMIN_REQUEST_S):
                        await active.member.leave()

    def _member(self, cluster: Cluster, number: int, name: str) -> GroupMember:
        instance_id = f"{GROUP}-{number}" if self._is_static else None
        reader = ReaderOptions(IsolationLevel.READ_COMMITTED)
        if self._is_classic:
            options = GroupOptions(SESSION_S, HEARTBEAT_S, REBALANCE_S, instance_id)
            return GroupConsumer(cluster, GROUP, [self._topic], options=options, reader=reader)
        return ConsumerMember(
            cluster,
            GROUP,
            self._topic,
            name,
            instance_id=instance_id,
            rebalance_timeout_s=REBALANCE_S,
            reader=reader,
        )

    async def _live(self, active: _ActiveMember) -> None:
        due_s = 0.0
        while True:
            asked_s = trio.current_time()
            try:
                has_more = await self._poll(active, asked_s)
                if self._in_sync.is_set() or (has_more and asked_s >= due_s):
                    await self._process_slowly(active)
                    await self._commit(active)
                    due_s = asked_s + COMMIT_S
            except (KafkaError, ClientError) as error:
                self._refused(active.name, error)
                await trio.sleep(PAUSE_S)

    async def _poll(self, active: _ActiveMember, asked_s: float) -> bool:
        """Poll once, and record the assignment; return whether there were records."""
        member, assignment = active.member, active.assignment
        records = to_read_records(await member.poll(POLL_S))
        owned = {where.partition for where in member.positions}
        if assignment is None or not assignment.continues(member.generation, owned, records):
            now_s = trio.current_time()
            assignment = active.assignment = MemberAssignment(
                active.name, member.generation, owned, asked_s, now_s
            )
            self.history.assignments.append(assignment)
            self._trace.add(f"{active.name} has {sorted(owned)} in {member.generation}")
        assignment.seen += records
        return bool(records)

    async def _process_slowly(self, active: _ActiveMember) -> None:
        if active.chance.random() < BUSY:
            seconds = active.chance.uniform(*BUSY_S)
            active.scope.deadline += seconds
            self._trace.add(f"{active.name} is busy for {seconds:.1f} s")
            with trio.move_on_after(seconds):
                await self._in_sync.wait()

    async def _commit(self, active: _ActiveMember) -> None:
        member, is_in_sync = active.member, self._in_sync.is_set()
        offsets = member.positions
        if not offsets or member.generation < 0:
            return
        requested = {where.partition: offset for where, offset in offsets.items()}
        commit = OffsetCommit(active.name, member.generation, requested, trio.current_time())
        self.history.commits.append(commit)
        await member.commit(offsets)
        commit.acknowledged_s = trio.current_time()
        self._trace.add(f"{active.name} has committed {requested}")
        if is_in_sync:
            self._served.add(active.number)
        if self._has_all():
            self._over.set()

    def _refused(self, name: str, error: Exception) -> None:
        self._trace.add(f"{name} is refused: {error}")
        if isinstance(error, Unsupported) or (
            isinstance(error, KafkaError) and error.code not in self._expected_errors
        ):
            self.anomalies.append(Anomaly("fatal client error", f"{name} received {error}"))
