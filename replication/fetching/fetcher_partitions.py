"""What the partitions that are followed from one broker want to know of it, without I/O.

Of each that is restless (an answer was about it, its role has changed, its delay is over) it is asked
what it wants, and that is put where it belongs: into the fetch session, among those who must look for
their place in the leader's log, to be made if it is a change of its own log, or to be looked at later.
All others cost nothing, however many they are.

A throttled partition (KIP-73) that is behind is held back while the quota is exceeded: its question
stands, and is not put to the leader. One that has all that is replicated is asked for all the same, for
the quota is not to cost anybody the in-sync set.
"""

from __future__ import annotations

import heapq
import itertools
import math
from collections.abc import Mapping, Sequence
from typing import Protocol

from odradek.protocol.errors import ErrorCode, error_code
from odradek.protocol.fetch_response import PartitionData
from odradek.replication.fetching.fetch_session_handler import FetchSessionHandler, TopicIdPartition
from odradek.replication.partition.follower_role import FollowerRole
from odradek.replication.partition.follower_state import (
    Fetch,
    FetchResult,
    FollowerAction,
    LogChange,
    OffsetResult,
    QueryEpochEnd,
    QueryOffset,
)
from odradek.replication.quota import ReplicationQuota, is_throttled
from odradek.seams.clock import Clock
from odradek.seams.values import value_class
from odradek.storage.log.epochs import EpochEnd

CHANGING_WAIT_MS = 20
"""How long a fetch is held while a log is being changed: that partition is to be asked for soon."""


class LogChanges(Protocol):
    def change(self, key: TopicIdPartition, role: FollowerRole, change: LogChange) -> None:
        """Have it made in a task, and have `FetcherPartitions.recheck` called then."""
        ...


@value_class
class LeaderOffsetQuery:
    """A partition that must know where the leader's log, or an epoch in it, begins or ends."""

    key: TopicIdPartition
    role: FollowerRole
    query: QueryOffset | QueryEpochEnd


class FetcherPartitions:
    """See the module."""

    def __init__(
        self, node_id: int, quota: ReplicationQuota, changes: LogChanges, clock: Clock
    ) -> None:
        self.session = FetchSessionHandler()
        self._node_id = node_id
        self._quota = quota
        self._changes = changes
        self._clock = clock
        self._roles: dict[TopicIdPartition, FollowerRole] = {}
        self._to_check: dict[TopicIdPartition, None] = {}
        self._offset_queries: list[LeaderOffsetQuery] = []
        self._changing: dict[TopicIdPartition, None] = {}
        self._delayed: list[tuple[int, int, TopicIdPartition]] = []
        """(when it is due, ms; a number; which): a heap."""
        self._numbers = itertools.count()
        self._throttled: dict[TopicIdPartition, None] = {}
        """Of those in the session, the ones the quota is for."""
        self._held_back: dict[TopicIdPartition, Fetch] = {}

    def __len__(self) -> int:
        return len(self._roles)

    def add(self, key: TopicIdPartition, role: FollowerRole) -> None:
        """Follow it; or it is followed already, and its leader is of another epoch now."""
        self._roles[key] = role
        self.recheck(key)

    def remove(self, key: TopicIdPartition) -> None:
        self._roles.pop(key, None)
        self.recheck(key)

    def recheck(self, key: TopicIdPartition) -> None:
        """Ask it what it wants now."""
        self._to_check[key] = None

    # What is wanted

    def begin_round(self) -> None:
        """Rouse those whose time has come."""
        now_ms = self._now_ms()
        while self._delayed and self._delayed[0][0] <= now_ms:
            self.recheck(heapq.heappop(self._delayed)[2])
        if self._throttled or self._held_back:
            self._apply_quota()

    def check_next(self) -> int | None:
        """Ask the next one that is restless; None if none is. How many bytes of what was fetched
        before it has taken (it goes on being restless then)."""
        key = next(iter(self._to_check), None)
        if key is None:
            return None
        del self._to_check[key]
        self._changing.pop(key, None)
        role = self._roles.get(key)
        if role is None:
            self._forget(key)
            return 0
        want = role.next_action()
        if isinstance(want, Fetch):
            if role.has_remaining(want):
                self.recheck(key)
                return self._count(role, role.append_remaining(want))
            self._enqueue_fetch(key, role, want)
        elif not self._is_awaiting_response(key, role):
            self._forget(key)
            self._schedule(key, role, want)
        return 0

    def take_offset_queries(self) -> Sequence[LeaderOffsetQuery]:
        """Those who are to be asked for by ListOffsets; `offset_received` then."""
        lost, self._offset_queries = self._offset_queries, []
        return lost

    def _is_awaiting_response(self, key: TopicIdPartition, role: FollowerRole) -> bool:
        """Whether it waits for the answer to what was asked before."""
        query = self.session.fetch_of(key) or self._held_back.get(key)
        return query is not None and role.state.is_awaiting(query)

    def _schedule(
        self, key: TopicIdPartition, role: FollowerRole, want: FollowerAction | None
    ) -> None:
        """It does not fetch now."""
        if isinstance(want, QueryOffset | QueryEpochEnd):
            self._offset_queries.append(LeaderOffsetQuery(key, role, want))
        elif isinstance(want, LogChange):
            self._changing[key] = None
            self._changes.change(key, role, want)
        elif role.due_ms > self._now_ms():
            heapq.heappush(self._delayed, (role.due_ms, next(self._numbers), key))

    def _enqueue_fetch(self, key: TopicIdPartition, role: FollowerRole, query: Fetch) -> None:
        self._throttled.pop(key, None)
        self._held_back.pop(key, None)
        if role.is_behind and self._is_throttled(role):
            if self._quota.is_exceeded(self._clock.monotonic()):
                self._hold_back(key, query)
                return
            self._throttled[key] = None
        self.session.want(key, query)

    def _forget(self, key: TopicIdPartition) -> None:
        self._throttled.pop(key, None)
        self._held_back.pop(key, None)
        self.session.forget(key)

    # Time

    def ms_to_next(self) -> int | None:
        """Until something is due, 1 at the least; None if nothing is."""
        times = [self._delayed[0][0] - self._now_ms()] if self._delayed else []
        if self._held_back:
            seconds = self._quota.seconds_left(self._clock.monotonic())
            times.append(math.ceil(seconds * 1000))
        return max(1, min(times)) if times else None

    def max_wait_ms(self, at_most_ms: int) -> int:
        """How long the leader may hold a fetch for lack of news."""
        if self._changing:
            at_most_ms = min(at_most_ms, CHANGING_WAIT_MS)
        next_ms = self.ms_to_next()
        return at_most_ms if next_ms is None else min(at_most_ms, next_ms)

    def _now_ms(self) -> int:
        return int(self._clock.monotonic() * 1000)

    # The quota

    def _is_throttled(self, role: FollowerRole) -> bool:
        partition = role.partition
        listed = partition.log.config.follower_replication_throttled_replicas
        return is_throttled(listed, partition.index, self._node_id)

    def _apply_quota(self) -> None:
        if self._quota.is_exceeded(self._clock.monotonic()):
            for key in tuple(self._throttled):
                role, query = self._roles.get(key), self.session.fetch_of(key)
                if role is not None and query is not None and role.is_behind:
                    self._hold_back(key, query)
            return
        held_back, self._held_back = self._held_back, {}
        for key, query in held_back.items():
            role = self._roles.get(key)
            if role is not None and role.state.is_awaiting(query):
                self._throttled[key] = None
                self.session.want(key, query)

    def _hold_back(self, key: TopicIdPartition, query: Fetch) -> None:
        self._forget(key)
        self._held_back[key] = query

    def _count(self, role: FollowerRole, size_bytes: int) -> int:
        if size_bytes and self._is_throttled(role):
            self._quota.record(size_bytes, self._clock.monotonic())
        return size_bytes

    # Answers

    def handle_partition_response(self, data: PartitionData) -> int:
        """A Fetch answer is about this; how many bytes were taken."""
        key = (data.topic_id, data.partition_index)
        query, role = self.session.fetch_of(key), self._roles.get(key)
        if query is None or role is None:
            return 0
        self.recheck(key)
        if data.error_code:
            role.failed_on_leader(query, error_code(data.error_code))
            return 0
        diverging = None if data.diverging_epoch is None else EpochEnd(*data.diverging_epoch)
        response = FetchResult(data.high_watermark, data.log_start_offset, diverging)
        return self._count(role, role.fetched(query, response, data.records))

    def offset_received(
        self,
        place: LeaderOffsetQuery,
        found: Mapping[tuple[str, int], OffsetResult | EpochEnd | ErrorCode],
    ) -> None:
        """What ListOffsets or OffsetForLeaderEpoch answered; about those it does not name, nothing is
        known."""
        partition, query = place.role.partition, place.query
        told = found.get((partition.topic, partition.index), ErrorCode.network_exception)
        if isinstance(told, ErrorCode):
            place.role.failed_on_leader(query, told)
        elif isinstance(told, OffsetResult):
            assert isinstance(query, QueryOffset)
            place.role.offset_received(query, told)
        else:
            assert isinstance(query, QueryEpochEnd)
            place.role.epoch_end_received(query, told)
        self.recheck(place.key)
