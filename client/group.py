"""Consumer group member with the classic protocol, eager rebalancing and the range assignor.

All requests are sent inside `poll`, in the caller's task: heartbeats when they are due, and JoinGroup when the
coordinator requires it or the group leader finds a changed number of partitions. Positions are committed before the
member rejoins. A member whose caller does not poll for `session_timeout_s` is removed from the group.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from typing import Any, TypeVar

import trio

from odradek.client.assignors import (
    RANGE,
    assign_range,
    read_assignment,
    read_subscription,
    write_assignment,
    write_subscription,
)
from odradek.client.connection import BrokerConnection
from odradek.client.consumer import (
    EARLIEST,
    LATEST,
    ConsumedRecord,
    OutOfRange,
    Reader,
    ReaderOptions,
    list_offsets,
)
from odradek.client.errors import ClientError, check, retriable
from odradek.client.group_admin import NAMED_TOPICS, committed_offsets, offset_topics
from odradek.client.metadata import BACKOFF_MAX_S, Cluster
from odradek.protocol.apis import HEARTBEAT, JOIN_GROUP, LEAVE_GROUP, OFFSET_COMMIT, SYNC_GROUP
from odradek.protocol.errors import ErrorCode, InvalidFrame, KafkaError
from odradek.protocol.topics import TopicPartition
from odradek.seams.values import value_class

T = TypeVar("T")

CONSUMER = "consumer"
"""Protocol type of consumer groups."""

REJOIN = frozenset({ErrorCode.rebalance_in_progress, ErrorCode.illegal_generation})
FORGOTTEN = frozenset({ErrorCode.unknown_member_id, ErrorCode.illegal_generation})
"""Error codes after which the member id is dropped, and the member joins as a new one."""


@value_class
class GroupOptions:
    """Options of a group member, with the defaults of Kafka's Java consumer."""

    session_timeout_s: float = 45.0
    heartbeat_s: float = 3.0
    rebalance_timeout_s: float = 60.0
    instance_id: str | None = None
    """`group.instance.id` of a static member (KIP-345)."""
    reset: int = EARLIEST
    """Position without a valid committed offset: EARLIEST, LATEST or a timestamp (ms)."""
    metadata_max_age_s: float = 300.0
    """Interval at which the group leader compares the numbers of partitions with the assignment."""


class GroupConsumer:
    """Group member, which consumes its assigned partitions. Call `leave` at the end."""

    def __init__(
        self,
        cluster: Cluster,
        group: str,
        topics: Iterable[str],
        *,
        options: GroupOptions | None = None,
        reader: ReaderOptions | None = None,
    ) -> None:
        self.group = group
        self.topics = sorted(set(topics))
        self.member_id = ""
        self.generation = -1
        self.assigned: list[TopicPartition] = []
        self._cluster = cluster
        self._options = options or GroupOptions()
        self._isolation = (reader or ReaderOptions()).isolation
        self._reader = Reader(cluster, reader)
        self._coordinator: BrokerConnection | None = None
        self._joined = False
        self._heartbeat_due = 0.0
        self._assigned_counts: dict[str, int] | None = None
        """On the group leader: number of partitions by topic at the last assignment."""
        self._count_due = 0.0

    async def poll(self, max_wait_s: float = 0.5) -> list[ConsumedRecord]:
        """Return the next records of the assigned partitions; join or rejoin the group first if needed.

        Raises KafkaError for errors that are not retriable, such as FENCED_INSTANCE_ID.
        """
        if self._joined and trio.current_time() >= self._heartbeat_due:
            await self._heartbeat()
        if self._joined and trio.current_time() >= self._count_due:
            await self._check_partition_counts()
        while not self._joined:
            join_timeout_s = self._options.rebalance_timeout_s + self._cluster.timeout_s
            await self._cluster.retrying(self._join, timeout_s=join_timeout_s)
        # Partitions out of range in the last poll, whose records were already returned.
        gone = [error.where for error in self._reader.out_of_range]
        for where, offset in (await self._resets(gone)).items():
            self._reader.seek(where, offset)
        try:
            return await self._reader.poll(min(max_wait_s, self._options.heartbeat_s))
        except OutOfRange:
            return []

    @property
    def positions(self) -> dict[TopicPartition, int]:
        """Offset after the last record that `poll` returned, by assigned partition."""
        return self._reader.positions

    async def at_end(self) -> bool:
        """Whether the positions of all assigned partitions are at the end."""
        return self._joined and await self._reader.at_end()

    async def commit(self, offsets: Mapping[TopicPartition, int] | None = None) -> None:
        """Commit these offsets, or the positions. Raises KafkaError, for example REBALANCE_IN_PROGRESS."""
        wanted = self._reader.positions if offsets is None else offsets
        if not wanted or self.generation < 0:
            return

        async def attempt() -> None:
            response = await self._request(
                OFFSET_COMMIT,
                {
                    "group_id": self.group,
                    "generation_id_or_member_epoch": self.generation,
                    "member_id": self.member_id,
                    "group_instance_id": self._options.instance_id,
                    "topics": offset_topics(wanted),
                },
                at_most=NAMED_TOPICS,
            )
            for topic in response.topics:
                for row in topic.partitions:
                    where = f"{topic.name}-{row.partition_index}"
                    self._check(row.error_code, f"the commit of {where} in group {self.group}")

        await self._cluster.retrying(attempt)

    async def leave(self) -> None:
        """Leave the group, so that it rebalances before the session timeout, and close the connection.

        A static member sends no LeaveGroup (KIP-345).
        """
        try:
            if self.member_id and self._options.instance_id is None:
                await self._leave()
        finally:
            self._joined, self._coordinator = False, None
            await self._cluster.disconnect(self)

    async def _leave(self) -> None:
        member_id, self.member_id, self.generation = self.member_id, "", -1
        member = {"member_id": member_id, "group_instance_id": None, "reason": "done"}
        values = {"group_id": self.group, "member_id": member_id, "members": [member]}
        response = await self._request(LEAVE_GROUP, values)
        self._check(response.error_code, f"leaving group {self.group}")

    async def _heartbeat(self) -> None:
        values = {
            "group_id": self.group,
            "generation_id": self.generation,
            "member_id": self.member_id,
            "group_instance_id": self._options.instance_id,
        }
        pause_s = self._options.heartbeat_s
        try:
            response = await self._request(HEARTBEAT, values)
            self._check(response.error_code, f"heartbeat of group {self.group}")
        except (KafkaError, ClientError) as error:
            if retriable(error):  # the coordinator moves; the membership continues
                pause_s = min(pause_s, BACKOFF_MAX_S)
            else:
                await self._prepare_rejoin(error)
        self._heartbeat_due = trio.current_time() + pause_s

    async def _prepare_rejoin(self, error: Exception) -> None:
        """Prepare to rejoin: commit the positions while the generation is still valid."""
        code = error.code if isinstance(error, KafkaError) else None
        if code not in REJOIN | FORGOTTEN:
            raise error
        if code is ErrorCode.rebalance_in_progress:
            await self._commit_before_joining()
        self._joined = False

    async def _commit_before_joining(self) -> None:
        with suppress(KafkaError, ClientError):  # records may be consumed twice, but none is lost
            await self.commit()

    async def _check_partition_counts(self) -> None:
        """Rejoin if this member is the group leader and the number of partitions of a topic changed."""
        self._count_due = trio.current_time() + self._options.metadata_max_age_s
        if self._assigned_counts is None:
            return
        try:
            counts = await self._partition_counts(self._assigned_counts)
        except (KafkaError, ClientError):
            return  # retried at the next interval
        if counts != self._assigned_counts:
            await self._commit_before_joining()
            self._joined = False

    async def _join(self) -> None:
        """Send JoinGroup and SyncGroup, and start at the committed offsets."""
        self.assigned = []  # the old assignment must not be committed in the new generation
        self._reader.assign({})
        self._assigned_counts = None
        response = await self._join_request()
        try:
            assignment = await self._sync(response)
        except KafkaError as error:
            if error.code not in REJOIN | FORGOTTEN:
                raise
            return  # another rebalance started: join again
        self._reader.assign(await self._starts(sorted(assignment)))
        self.assigned = sorted(assignment)
        self._joined = True
        self._heartbeat_due = trio.current_time() + self._options.heartbeat_s
        self._count_due = trio.current_time() + self._options.metadata_max_age_s

    async def _join_request(self) -> Any:
        options = self._options
        while True:
            response = await self._request(
                JOIN_GROUP,
                {
                    "group_id": self.group,
                    "session_timeout": int(options.session_timeout_s * 1000),
                    "rebalance_timeout": int(options.rebalance_timeout_s * 1000),
                    "member_id": self.member_id,
                    "group_instance_id": options.instance_id,
                    "protocol_type": CONSUMER,
                    "protocols": [{"name": RANGE, "metadata": write_subscription(self.topics)}],
                    "reason": "",
                },
                timeout_s=options.rebalance_timeout_s + 5,
            )
            # KIP-394: join with this member id
            if response.error_code == ErrorCode.member_id_required:
                self.member_id = response.member_id
            elif response.error_code in FORGOTTEN and self.member_id:
                self.member_id = ""
            else:
                self._check(response.error_code, f"joining group {self.group}")
                self.member_id, self.generation = response.member_id, response.generation_id
                return response

    async def _sync(self, joined: Any) -> list[TopicPartition]:
        assignments: list[dict[str, Any]] = []
        if joined.leader == joined.member_id:
            assigned = await self._assign(joined.members)
            if not getattr(joined, "skip_assignment", False):
                assignments = assigned
        response = await self._request(
            SYNC_GROUP,
            {
                "group_id": self.group,
                "generation_id": self.generation,
                "member_id": self.member_id,
                "group_instance_id": self._options.instance_id,
                "protocol_type": CONSUMER,
                "protocol_name": joined.protocol_name,
                "assignments": assignments,
            },
            timeout_s=self._options.rebalance_timeout_s + 5,
        )
        self._check(response.error_code, f"the assignment in group {self.group}")
        return self._read(read_assignment, response.assignment, self.member_id)

    async def _assign(self, members: Iterable[Any]) -> list[dict[str, Any]]:
        """Compute the assignments, on the group leader. A missing topic has no partitions."""
        subscriptions = {
            row.member_id: self._read(read_subscription, row.metadata, row.member_id)
            for row in members
        }
        names = sorted({topic for topics in subscriptions.values() for topic in topics})
        self._assigned_counts = await self._partition_counts(names)
        assigned = assign_range(subscriptions, self._assigned_counts)
        return [
            {"member_id": member, "assignment": write_assignment(partitions)}
            for member, partitions in assigned.items()
        ]

    def _read(self, read: Callable[[bytes], T], data: bytes, member_id: str) -> T:
        """Decode data of another member. Raises ClientError."""
        try:
            return read(bytes(data))
        except InvalidFrame as error:
            raise ClientError(f"group {self.group}, member {member_id}: {error}") from error

    async def _partition_counts(self, names: Iterable[str]) -> dict[str, int]:
        """Number of partitions by topic; 0 if it does not exist. Raises the other errors of topics."""
        await self._cluster.refresh_existing(names)
        known = self._cluster.topics
        return {name: len(known[name].partitions) if name in known else 0 for name in names}

    async def _starts(self, assigned: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        wanted = list(assigned)
        if not wanted:
            return {}
        committed = await committed_offsets(self._cluster, self.group, wanted)
        starts = {where: found.offset for where, found in committed.items() if found.offset >= 0}
        fresh = [where for where in wanted if where not in starts]
        return starts | await self._resets(fresh)

    async def _resets(self, wanted: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        """Look up the reset offsets; the log end offset if no record is at or after the timestamp."""
        begins: dict[TopicPartition, int] = {}
        left = list(wanted)
        for timestamp in (self._options.reset, LATEST):
            if left:
                queries = dict.fromkeys(left, timestamp)
                found = await list_offsets(self._cluster, queries, isolation=self._isolation)
                begins |= {where: response.offset for where, response in found.items()}
                left = [where for where in left if begins[where] < 0]
        return begins

    async def _request(
        self,
        api: Any,
        values: Mapping[str, Any],
        *,
        timeout_s: float | None = None,
        at_most: int | None = None,
    ) -> Any:
        """Send a request to the coordinator, and look it up first if needed."""
        if self._coordinator is None or self._coordinator.broken:
            self._coordinator = await self._cluster.coordinator(self.group, owner=self)
        limit = self._cluster.timeout_s if timeout_s is None else timeout_s
        return await self._coordinator.request(api, values, timeout_s=limit, at_most=at_most)

    def _check(self, code: int, about: str) -> None:
        """Raise the error of a response, after updating coordinator, generation and member id."""
        if code in (ErrorCode.not_coordinator, ErrorCode.coordinator_not_available):
            self._coordinator = None
        if code in FORGOTTEN:  # the partitions may be assigned to another member
            self.generation, self._joined = -1, False
            if code == ErrorCode.unknown_member_id:
                self.member_id = ""
        check(code, about=about)
