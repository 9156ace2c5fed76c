"""Partitions of one fetcher, and their next actions, without I/O.

A partition is rechecked after a response, a change of role, or the end of a delay. Its next action
goes to the fetch session, to the offset queries, to the tasks that change logs, or to the delayed
partitions. All other partitions cost nothing.

A throttled partition (KIP-73) that is behind is held back while the quota is exceeded: its fetch
stays pending and is not sent. A partition that has caught up is fetched all the same, because the
quota must not remove a replica from the ISR.
"""

from __future__ import annotations

import heapq
import itertools
import math
from collections.abc import Mapping, Sequence
from typing import Protocol

from odradek.protocol.errors import ErrorCode, error_code
from odradek.protocol.fetch_response_reader import PartitionData
from odradek.replication.fetching.fetch_session_handler import (
    FetchSessionHandler,
    TopicIdAndPartition,
)
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
from odradek.replication.replication_quota import ReplicationQuota, is_throttled
from odradek.seams.clock import Clock
from odradek.seams.containment import Containment
from odradek.seams.values import value_class
from odradek.storage.log.leader_epoch_cache import EpochEnd

CHANGING_WAIT_MS = 20
"""Maximum wait of a Fetch while a log of this fetcher is being changed: its next fetch follows
soon."""


class LogChanges(Protocol):
    def change(self, key: TopicIdAndPartition, role: FollowerRole, change: LogChange) -> None:
        """Start a task that applies the change, then calls `FetcherPartitions.recheck`."""
        ...


@value_class
class LeaderOffsetQuery:
    """Query for an offset or an epoch's end offset of the leader's log."""

    key: TopicIdAndPartition
    role: FollowerRole
    query: QueryOffset | QueryEpochEnd


class FetcherPartitions:
    """Partitions that one fetcher fetches from one broker."""

    def __init__(
        self, node_id: int, quota: ReplicationQuota, changes: LogChanges, clock: Clock
    ) -> None:
        self.session = FetchSessionHandler()
        self._node_id = node_id
        self._quota = quota
        self._changes = changes
        self._clock = clock
        self._roles: dict[TopicIdAndPartition, FollowerRole] = {}
        self._to_check: dict[TopicIdAndPartition, None] = {}
        self._offset_queries: list[LeaderOffsetQuery] = []
        self._changing: dict[TopicIdAndPartition, None] = {}
        self._delayed: list[tuple[int, int, TopicIdAndPartition]] = []
        """Heap of (due time in ms, sequence number, partition)."""
        self._numbers = itertools.count()
        self._throttled: dict[TopicIdAndPartition, None] = {}
        """Partitions of the session that the quota applies to."""
        self._held_back: dict[TopicIdAndPartition, Fetch] = {}
        self._containment: Containment[FollowerRole] = Containment(
            "replica fetching",
            lambda role, error: role.stop(),
            name=lambda role: f"{role.partition.topic}-{role.partition.index}",
            consequence="partition marked as failed",
        )

    def __len__(self) -> int:
        return len(self._roles)

    def add(self, key: TopicIdAndPartition, role: FollowerRole) -> None:
        """Add a partition, or handle a new leader epoch of a known one."""
        self._roles[key] = role
        self.recheck(key)

    def remove(self, key: TopicIdAndPartition) -> None:
        self._roles.pop(key, None)
        self.recheck(key)

    def recheck(self, key: TopicIdAndPartition) -> None:
        """Determine the next action of this partition again."""
        self._to_check[key] = None

    # Next actions

    def begin_round(self) -> None:
        """Recheck delayed partitions that are due, and apply the quota."""
        now_ms = self._now_ms()
        while self._delayed and self._delayed[0][0] <= now_ms:
            self.recheck(heapq.heappop(self._delayed)[2])
        if self._throttled or self._held_back:
            self._apply_quota()

    def check_next(self) -> int | None:
        """Determine the next action of the next partition; None if no partition is left to check.

        Returns how many bytes of an earlier response were appended; the partition is then checked
        again.
        """
        key = next(iter(self._to_check), None)
        if key is None:
            return None
        del self._to_check[key]
        self._changing.pop(key, None)
        role = self._roles.get(key)
        if role is None:
            self._forget(key)
            return 0
        try:
            return self._check(key, role)
        except Exception as error:
            self._containment.failed(role, error)
            self._forget(key)
            return 0

    def _check(self, key: TopicIdAndPartition, role: FollowerRole) -> int:
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
        """Return the queries to send; report the results to `offsets_received`."""
        queries, self._offset_queries = self._offset_queries, []
        return queries

    def _is_awaiting_response(self, key: TopicIdAndPartition, role: FollowerRole) -> bool:
        """Whether its pending fetch has no response yet."""
        query = self.session.fetch_of(key) or self._held_back.get(key)
        return query is not None and role.state.is_awaiting(query)

    def _schedule(
        self, key: TopicIdAndPartition, role: FollowerRole, want: FollowerAction | None
    ) -> None:
        """Handle a next action other than Fetch."""
        if isinstance(want, QueryOffset | QueryEpochEnd):
            self._offset_queries.append(LeaderOffsetQuery(key, role, want))
        elif isinstance(want, LogChange):
            self._changing[key] = None
            self._changes.change(key, role, want)
        elif role.due_ms > self._now_ms():
            heapq.heappush(self._delayed, (role.due_ms, next(self._numbers), key))

    def _enqueue_fetch(self, key: TopicIdAndPartition, role: FollowerRole, query: Fetch) -> None:
        self._throttled.pop(key, None)
        self._held_back.pop(key, None)
        if role.is_behind and self._is_throttled(role):
            if self._quota.is_exceeded(self._clock.monotonic()):
                self._hold_back(key, query)
                return
            self._throttled[key] = None
        self.session.want(key, query)

    def _forget(self, key: TopicIdAndPartition) -> None:
        self._throttled.pop(key, None)
        self._held_back.pop(key, None)
        self.session.forget(key)

    # Time

    def ms_to_next(self) -> int | None:
        """Return the ms to the next due partition, at least 1; None if none is delayed."""
        times = [self._delayed[0][0] - self._now_ms()] if self._delayed else []
        if self._held_back:
            seconds = self._quota.seconds_left(self._clock.monotonic())
            times.append(math.ceil(seconds * 1000))
        return max(1, min(times)) if times else None

    def max_wait_ms(self, at_most_ms: int) -> int:
        """Return how long the leader may hold a Fetch without news."""
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

    def _hold_back(self, key: TopicIdAndPartition, query: Fetch) -> None:
        self._forget(key)
        self._held_back[key] = query

    def _count(self, role: FollowerRole, size_bytes: int) -> int:
        if size_bytes and self._is_throttled(role):
            self._quota.record(size_bytes, self._clock.monotonic())
        return size_bytes

    # Responses

    def handle_partition_response(self, data: PartitionData) -> int:
        """Handle a partition's part of a Fetch response; return how many bytes were appended."""
        key = (data.topic_id, data.partition_index)
        query, role = self.session.fetch_of(key), self._roles.get(key)
        if query is None or role is None:
            return 0
        self.recheck(key)
        try:
            if data.error_code:
                role.failed_on_leader(query, error_code(data.error_code))
                return 0
            diverging = None if data.diverging_epoch is None else EpochEnd(*data.diverging_epoch)
            response = FetchResult(data.high_watermark, data.log_start_offset, diverging)
            return self._count(role, role.fetched(query, response, data.records))
        except Exception as error:
            self._containment.failed(role, error)
            return 0

    def offsets_received(
        self,
        offset_query: LeaderOffsetQuery,
        found: Mapping[tuple[str, int], OffsetResult | EpochEnd | ErrorCode],
    ) -> None:
        """Handle the results of ListOffsets or OffsetForLeaderEpoch.

        A partition that is missing in `found` fails with NETWORK_EXCEPTION.
        """
        self._containment.call(offset_query.role, self._handle_offset, offset_query, found)
        self.recheck(offset_query.key)

    def _handle_offset(
        self,
        offset_query: LeaderOffsetQuery,
        found: Mapping[tuple[str, int], OffsetResult | EpochEnd | ErrorCode],
    ) -> None:
        partition, query = offset_query.role.partition, offset_query.query
        result = found.get((partition.topic, partition.index), ErrorCode.network_exception)
        if isinstance(result, ErrorCode):
            offset_query.role.failed_on_leader(query, result)
        elif isinstance(result, OffsetResult):
            assert isinstance(query, QueryOffset)
            offset_query.role.offset_received(query, result)
        else:
            assert isinstance(query, QueryEpochEnd)
            offset_query.role.epoch_end_received(query, result)
