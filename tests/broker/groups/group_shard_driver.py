"""A shard with a log in memory, and simulated clients that keep their member id and generation.

The stage does what the coordinator does, without trio: it appends, replays and responds. Appends can
fail or stay uncommitted, as if the high watermark did not advance.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import Any

from odradek.broker.groups.classic_group import ClassicGroup
from odradek.broker.groups.config import GroupConfig
from odradek.broker.groups.coordinator_shard import (
    GroupCoordinatorShard,
    OffsetCommit,
    OffsetToCommit,
)
from odradek.broker.groups.messages import (
    NO_GENERATION,
    NO_MEMBER_ID,
    AppendCompletion,
    ClassicGroupMetadata,
    CommittedOffset,
    CoordinatorResult,
    EventTime,
    GroupKey,
    Heartbeat,
    HeartbeatResponse,
    JoinGroup,
    JoinGroupResponse,
    LeaveGroup,
    LeaveGroupResponse,
    LeavingMember,
    OffsetKey,
    Record,
    RecordAppend,
    SyncGroup,
    SyncGroupResponse,
)
from odradek.protocol.errors import ErrorCode

GROUP = "g"
START_MS = 1_000_000
WALL_MS = 1_700_000_000_000


def metadata(*topics: str) -> bytes:
    """A consumer's subscription, version 0."""
    out = b"\x00\x00" + len(topics).to_bytes(4, "big")
    for topic in topics:
        out += len(topic).to_bytes(2, "big") + topic.encode()
    return out + b"\xff\xff\xff\xff"


@dataclass(eq=False)
class Request:
    """A request of a client, and its response."""

    who: str
    what: str
    responses: list[Any] = field(default_factory=list)

    @property
    def response(self) -> Any:
        assert len(self.responses) <= 1, f"{self.who}'s {self.what} got two responses"
        return self.responses[0] if self.responses else None

    @property
    def is_waiting(self) -> bool:
        return not self.responses


@dataclass
class Client:
    """A client: member id and generation of its last response."""

    name: str
    member_id: str = NO_MEMBER_ID
    instance_id: str | None = None
    generation: int = NO_GENERATION
    protocol: str | None = None
    protocols: tuple[str, ...] = ("range",)
    topics: tuple[str, ...] = ("t",)
    session_timeout_ms: int = 10_000
    rebalance_timeout_ms: int = 60_000
    version: int = 9
    protocol_type: str = "consumer"
    reason: str | None = None
    is_leader: bool = False
    members: tuple[str, ...] = ()

    def learn(self, response: Any) -> None:
        if isinstance(response, JoinGroupResponse):
            if response.error in (ErrorCode.none, ErrorCode.member_id_required):
                self.member_id = response.member_id
                self.generation = response.generation
                self.protocol = response.protocol_name
                self.is_leader = response.leader == response.member_id
                self.members = tuple(each.member_id for each in response.members)
            elif response.error is ErrorCode.unknown_member_id:
                self.member_id = NO_MEMBER_ID


class Stage:
    """A shard, its log, and clients of one group."""

    def __init__(self, config: GroupConfig | None = None) -> None:
        self.config = config or GroupConfig()
        self.shard = GroupCoordinatorShard(self.config)
        self.now_ms = START_MS
        self.wall_ms_more = 0
        """Correction of the wall clock in ms."""
        self.log: list[Record] = []
        self.clients: dict[str, Client] = {}
        self.requests: list[Request] = []
        self.fresh_ids = 0
        self.fail_with: ErrorCode | None = None
        self.holding = False
        self.held: deque[AppendCompletion] = deque()
        self.story: list[str] = []
        self.log_is_behind = False
        """Whether the last append of the group failed."""

    @property
    def now(self) -> EventTime:
        return EventTime(self.now_ms, WALL_MS + self.now_ms - START_MS + self.wall_ms_more)

    @property
    def group(self) -> ClassicGroup | None:
        group = self.shard.groups.get(GROUP)
        assert group is None or isinstance(group, ClassicGroup)
        return group

    def client(self, name: str, **fields: Any) -> Client:
        client = self.clients.setdefault(name, Client(name))
        for attribute, value in fields.items():
            assert hasattr(client, attribute), attribute
            setattr(client, attribute, value)
        return client

    # Requests of clients

    def join(self, name: str, **fields: Any) -> Request:
        client = self.client(name, **fields)
        self.fresh_ids += 1
        request = JoinGroup(
            GROUP,
            client.member_id,
            client.instance_id,
            client.name,
            "/127.0.0.1",
            client.session_timeout_ms,
            client.rebalance_timeout_ms,
            client.protocol_type,
            tuple((each, metadata(*client.topics)) for each in client.protocols),
            str(self.fresh_ids),
            client.reason,
            id_required=client.version >= 4,
            can_skip_assignment=client.version >= 9,
        )
        future = self._ask(name, "join")
        self.do(self.shard.join(request, future, self.now))
        self.advance(0)  # an initial rebalance without a delay completes first
        return future

    def joins(self, name: str, **fields: Any) -> Request:
        """Send JoinGroup; after MEMBER_ID_REQUIRED send it again with the member id."""
        request = self.join(name, **fields)
        if request.response is not None and request.response.error is ErrorCode.member_id_required:
            request = self.join(name)
        return request

    def sync(self, name: str, **assignments: bytes) -> Request:
        client = self.client(name)
        request = SyncGroup(
            GROUP,
            client.member_id,
            client.instance_id,
            client.generation,
            client.protocol_type,
            client.protocol,
            {self._member_id(who): what for who, what in assignments.items()},
        )
        future = self._ask(name, "sync")
        self.do(self.shard.sync(request, future, self.now))
        return future

    def _member_id(self, who: str) -> str:
        return self.clients[who].member_id if who in self.clients else who

    def heartbeat(self, name: str) -> Request:
        client = self.client(name)
        future = self._ask(name, "heartbeat")
        request = Heartbeat(GROUP, client.member_id, client.instance_id, client.generation)
        self.do(self.shard.heartbeat(request, future, self.now))
        assert future.is_waiting or isinstance(future.response, HeartbeatResponse)
        return future

    def leave(self, *leavers: LeavingMember, who: str = "admin") -> Request:
        future = self._ask(who, "leave")
        self.do(self.shard.leave(LeaveGroup(GROUP, leavers), future, self.now))
        return future

    def leaves(self, name: str, reason: str | None = None) -> Request:
        client = self.client(name)
        leaver = LeavingMember(client.member_id, client.instance_id, reason)
        return self.leave(leaver, who=name)

    def commit(self, name: str, offsets: dict[tuple[str, int], int], **fields: Any) -> Request:
        client = self.client(name)
        values = {
            "member_id": client.member_id,
            "instance_id": client.instance_id,
            "generation": client.generation,
            **fields,
        }
        commits = tuple(
            OffsetToCommit(topic, None, partition, offset, -1, "")
            for (topic, partition), offset in offsets.items()
        )
        future = self._ask(name, "commit")
        self.do(self.shard.commit(OffsetCommit(GROUP, offsets=commits, **values), future, self.now))
        return future

    def _ask(self, who: str, what: str) -> Request:
        future = Request(who, what)
        self.requests.append(future)
        return future

    # Time

    def advance(self, ms: int) -> None:
        """Advance the time; call `tick` at every deadline of the group."""
        end_ms = self.now_ms + ms
        ticks_at_once = 0
        while True:
            wake_ms = self.shard.next_deadline_ms(GROUP)
            if wake_ms is None or wake_ms > end_ms:
                break
            ticks_at_once = ticks_at_once + 1 if wake_ms <= self.now_ms else 0
            assert ticks_at_once < 3, "the group always has a due deadline"
            self.now_ms = max(wake_ms, self.now_ms)
            self.do(self.shard.tick(GROUP, self.now))
        self.now_ms = end_ms

    # What the coordinator does

    def do(self, result: CoordinatorResult) -> None:
        todo = deque([result])
        while todo:
            result = todo.popleft()
            self.story += result.notes
            for future, response in result.replies:
                self._respond(future, response)
            todo.extend(self._append(each) for each in result.appends)

    def _respond(self, future: Request, response: Any) -> None:
        future.responses.append(response)
        assert len(future.responses) == 1, f"{future.who}'s {future.what} got two responses"
        if future.who in self.clients:
            self.clients[future.who].learn(response)
        self.story.append(f"{future.who} <- {describe(future.what, response)}")

    def describe_record(self, record: Record) -> str:
        return describe_record(record)

    def _append(self, append: RecordAppend) -> CoordinatorResult:
        if any(not isinstance(each.key, OffsetKey) for each in append.records):
            self.log_is_behind = self.fail_with is not None
        if self.fail_with is not None:
            code, self.fail_with = self.fail_with, None
            self.story.append(f"the append fails: {code.name.upper()}")
            return self.shard.append_failed(append.completion, code, self.now, written=False)
        for record in append.records:
            self.story.append(f"record {self.describe_record(record)}")
            self.log.append(record)
            if append.replay:
                self.shard.replay(record, len(self.log) - 1)
        if self.holding:
            self.held.append(append.completion)
            return CoordinatorResult()
        return self.shard.appended(append.completion, self.now)

    def release(self, count: int = 1 << 30, code: ErrorCode | None = None) -> None:
        """Commit the held appends, or fail them with a code."""
        while self.held and count:
            count -= 1
            completion = self.held.popleft()
            if code is None:
                self.do(self.shard.appended(completion, self.now))
            else:
                self.do(self.shard.append_failed(completion, code, self.now, written=True))

    def replayed(self) -> GroupCoordinatorShard:
        """Load the log into another shard."""
        shard = GroupCoordinatorShard(self.config)
        for offset, record in enumerate(self.log):
            shard.replay(record, offset)
        return shard

    def restart(self) -> None:
        """Crash and restart the broker: waiting requests get no response."""
        self.shard = self.replayed()
        self.held.clear()
        for group_id in list(self.shard.groups):
            self.do(self.shard.loaded(group_id, self.now))


# Text for transcripts


def describe(what: str, response: Any) -> str:
    code = response.error.name.upper() if hasattr(response, "error") else ""
    if isinstance(response, JoinGroupResponse):
        if response.error is ErrorCode.member_id_required:
            return f"{what}: {code}, id {response.member_id}"
        if response.error is not ErrorCode.none:
            return f"{what}: {code}"
        parts = [
            f"generation {response.generation}",
            f"id {response.member_id}",
            f"protocol {response.protocol_name}",
            f"leader {response.leader}",
        ]
        if response.members:
            parts.append("of " + " ".join(each.member_id for each in response.members))
        if response.skip_assignment:
            parts.append("skip the assignment")
        return f"{what}: " + ", ".join(parts)
    if isinstance(response, SyncGroupResponse):
        if response.error is not ErrorCode.none:
            return f"{what}: {code}"
        return f"{what}: assigned {response.assignment.decode() or 'nothing'}"
    if isinstance(response, LeaveGroupResponse):
        members = (
            f"{each.member_id or each.instance_id} {each.error.name.upper()}"
            for each in response.members
        )
        return f"{what}: " + (code if response.error else ", ".join(members))
    if hasattr(response, "partitions"):
        errors = (
            f"{topic}-{index} {each.name.upper()}" for topic, index, each in response.partitions
        )
        return f"{what}: " + ", ".join(errors)
    return f"{what}: {code}"


def describe_record(record: Record) -> str:
    key, value = record
    if isinstance(key, OffsetKey):
        what = "gone" if value is None else str(value.offset)  # type: ignore[union-attr]
        return f"offset of {key.topic}-{key.partition}: {what}"
    assert isinstance(key, GroupKey)
    if value is None:
        return "group: gone"
    assert isinstance(value, ClassicGroupMetadata)
    members = " ".join(
        f"{each.member_id}={each.assignment.decode() or 'nothing'}" for each in value.members
    )
    return f"group: generation {value.generation}, {members or 'no members'}"


def offset(value: int) -> CommittedOffset:
    return CommittedOffset(value)
