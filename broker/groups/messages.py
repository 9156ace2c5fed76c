"""Requests, responses, records and results of the group coordinator's state machines.

A request is passed with a future that identifies the receiver of its response. Changes that must be
durable are returned as `RecordAppend`. The caller appends them and calls
`GroupCoordinatorShard.appended` or `append_failed`; responses that depend on them are sent after that.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple, TypeAlias
from uuid import UUID

from odradek.broker.groups.consumer.member_timeouts import MemberTimeout
from odradek.protocol.errors import ErrorCode
from odradek.protocol.schemas.consumer_group_records import ConsumerGroupKey, ConsumerGroupValue
from odradek.seams.values import value_class
from odradek.storage.log.transaction_verification import VerificationGuard

Future: TypeAlias = Any
"""Identifies the receiver of a response."""

NO_MEMBER_ID = ""
NO_GENERATION = -1
NO_ERROR = ErrorCode.none


class TransactionalProducer(NamedTuple):
    """Producer of a transactional offset commit; `guard` is set for the first append of its
    transaction (KIP-890)."""

    producer_id: int
    epoch: int
    guard: VerificationGuard | None


class EventTime(NamedTuple):
    """Time of an event: monotonic for sessions and rebalances, wall clock for record timestamps."""

    monotonic_ms: int
    wall_ms: int


# Requests


SupportedProtocols: TypeAlias = tuple[tuple[str, bytes], ...]
"""Protocol names and metadata in the member's order of preference, without duplicates."""


@value_class
class JoinGroup:
    """JoinGroup request. `member_uuid` is a UUID as text, used if the coordinator generates a member id."""

    group_id: str
    member_id: str
    instance_id: str | None
    client_id: str
    client_host: str
    session_timeout_ms: int
    rebalance_timeout_ms: int
    protocol_type: str
    protocols: SupportedProtocols
    member_uuid: str
    reason: str | None = None
    id_required: bool = True
    """From version 4 on, a dynamic member has to rejoin with the returned member id (KIP-394)."""
    can_skip_assignment: bool = True
    """From version 9 on, the response has SkipAssignment (KIP-814)."""


@value_class
class SyncGroup:
    group_id: str
    member_id: str
    instance_id: str | None
    generation: int
    protocol_type: str | None
    protocol_name: str | None
    assignments: Mapping[str, bytes]


@value_class
class Heartbeat:
    group_id: str
    member_id: str
    instance_id: str | None
    generation: int


@value_class
class LeavingMember:
    """Member of a LeaveGroup request. Without a member id, the instance id identifies it (KIP-345)."""

    member_id: str
    instance_id: str | None = None
    reason: str | None = None


@value_class
class LeaveGroup:
    group_id: str
    members: tuple[LeavingMember, ...]


@value_class
class ConsumerGroupHeartbeat:
    """ConsumerGroupHeartbeat request (KIP-848). None: unchanged since the last heartbeat.

    Epoch 0 joins, -1 leaves, and -2 is a static member that leaves temporarily. `may_see` checks
    whether the client is authorized to describe a topic that its regular expression matches.
    """

    group_id: str
    member_id: str
    epoch: int
    client_id: str
    client_host: str
    instance_id: str | None = None
    rack_id: str | None = None
    rebalance_timeout_ms: int = -1
    topics: tuple[str, ...] | None = None
    regex: str | None = None
    assignor: str | None = None
    owned: Mapping[UUID, frozenset[int]] | None = None
    may_see: Callable[[str], bool] | None = None


# Responses; `failed` is the response if the operation fails outside the group.


class JoinGroupMember(NamedTuple):
    """Member in the JoinGroup response to the leader."""

    member_id: str
    instance_id: str | None
    metadata: bytes


@value_class
class JoinGroupResponse:
    error: ErrorCode
    member_id: str
    generation: int = NO_GENERATION
    protocol_type: str | None = None
    protocol_name: str | None = None
    leader: str = NO_MEMBER_ID
    skip_assignment: bool = False
    members: tuple[JoinGroupMember, ...] = ()

    def failed(self, code: ErrorCode) -> JoinGroupResponse:
        return JoinGroupResponse(code, NO_MEMBER_ID)


@value_class
class SyncGroupResponse:
    error: ErrorCode
    protocol_type: str | None = None
    protocol_name: str | None = None
    assignment: bytes = b""

    def failed(self, code: ErrorCode) -> SyncGroupResponse:
        return SyncGroupResponse(code)


@value_class
class ConsumerGroupHeartbeatResponse:
    """ConsumerGroupHeartbeat response. `assigned` is None if the assignment is unchanged."""

    error: ErrorCode
    message: str | None = None
    member_id: str | None = None
    epoch: int = 0
    heartbeat_interval_ms: int = 0
    assigned: Mapping[UUID, tuple[int, ...]] | None = None

    def failed(self, code: ErrorCode) -> ConsumerGroupHeartbeatResponse:
        return ConsumerGroupHeartbeatResponse(code)


@value_class
class HeartbeatResponse:
    error: ErrorCode

    def failed(self, code: ErrorCode) -> HeartbeatResponse:
        return HeartbeatResponse(code)


class LeaveMemberResponse(NamedTuple):
    member_id: str
    instance_id: str | None
    error: ErrorCode


@value_class
class LeaveGroupResponse:
    error: ErrorCode
    members: tuple[LeaveMemberResponse, ...] = ()

    def failed(self, code: ErrorCode) -> LeaveGroupResponse:
        return LeaveGroupResponse(code)


@value_class
class OffsetPartitionErrors:
    """Result of an offset commit or deletion: an error code for each requested partition.

    `error` is that of the whole request; each partition then has it too.
    """

    error: ErrorCode
    partitions: tuple[tuple[str, int, ErrorCode], ...]

    @property
    def succeeded(self) -> int:
        """Number of partitions without an error."""
        return sum(error is NO_ERROR for _, _, error in self.partitions)

    def failed(self, code: ErrorCode) -> OffsetPartitionErrors:
        return OffsetPartitionErrors(code, tuple((t, p, code) for t, p, _ in self.partitions))


@value_class
class GroupErrors:
    """Result of DeleteGroups: an error code for each requested group."""

    groups: tuple[tuple[str, ErrorCode], ...]

    def failed(self, code: ErrorCode) -> GroupErrors:
        """Set `code` for groups without an error; others keep theirs."""
        return GroupErrors(
            tuple((group, code if error is NO_ERROR else error) for group, error in self.groups)
        )


@value_class
class ListedGroup:
    """Result of ListGroups for one group; `kind` is "classic" or "consumer"."""

    group_id: str
    protocol_type: str
    state: str
    kind: str


Response: TypeAlias = (
    JoinGroupResponse
    | SyncGroupResponse
    | HeartbeatResponse
    | LeaveGroupResponse
    | OffsetPartitionErrors
    | GroupErrors
    | ConsumerGroupHeartbeatResponse
)


# Records


class OffsetKey(NamedTuple):
    group_id: str
    topic: str
    partition: int


class GroupKey(NamedTuple):
    group_id: str


@dataclass(slots=True)
class CommittedOffset:
    """A committed offset. Only OffsetCommit v2-4 sets `expire_timestamp_ms`."""

    offset: int
    leader_epoch: int = -1
    metadata: str = ""
    commit_timestamp_ms: int = -1
    expire_timestamp_ms: int | None = None
    topic_id: UUID | None = None
    record_offset: int = field(default=-1, compare=False)
    """Offset of the record in `__consumer_offsets`; of two commits the later one is valid."""


@value_class
class ClassicMemberMetadata:
    member_id: str
    instance_id: str | None
    client_id: str
    client_host: str
    rebalance_timeout_ms: int
    session_timeout_ms: int
    subscription: bytes
    assignment: bytes


@value_class
class ClassicGroupMetadata:
    """Group metadata record: one generation of a classic group."""

    protocol_type: str
    generation: int
    protocol: str | None
    leader: str | None
    state_timestamp_ms: int = -1
    members: tuple[ClassicMemberMetadata, ...] = ()


RecordKey: TypeAlias = OffsetKey | GroupKey | ConsumerGroupKey
RecordValue: TypeAlias = CommittedOffset | ClassicGroupMetadata | ConsumerGroupValue


class Record(NamedTuple):
    """Key and value of a record; a value of None is a tombstone."""

    key: RecordKey
    value: RecordValue | None


# Actions


class Reply(NamedTuple):
    future: Future
    response: Response


@value_class
class SendReplies:
    """Send the responses when the records are committed; fail them if the append fails."""

    replies: tuple[Reply, ...] = ()


@value_class
class GroupCreated:
    """A group was created; it is removed if its record can't be written."""

    group_id: str
    replies: tuple[Reply, ...] = ()


@value_class
class AssignmentWritten:
    """The leader of a generation sent the assignments of all members."""

    group_id: str
    generation: int
    assignments: Mapping[str, bytes]


@value_class
class StaticMemberReplaced:
    """A static member got a new member id in a stable group; the fields restore its previous state."""

    group_id: str
    instance_id: str
    member_id: str
    future: Future
    generation: int
    can_skip_assignment: bool
    leader_before: str | None
    member_id_before: str
    protocols_before: SupportedProtocols
    rebalance_timeout_ms_before: int
    session_timeout_ms_before: int


@value_class
class GroupConverted:
    """A group replaced `before`, of the other kind; `before` is restored if the records can't be written."""

    group_id: str
    before: Any
    replies: tuple[Reply, ...] = ()


@value_class
class MembersExpired:
    """Members of a consumer group expired; retried if the records can't be written."""

    group_id: str
    timeouts: Mapping[str, MemberTimeout]
    """The timeout of each expired member."""
    replies: tuple[Reply, ...] = ()


AppendCompletion: TypeAlias = (
    SendReplies
    | GroupCreated
    | AssignmentWritten
    | StaticMemberReplaced
    | GroupConverted
    | MembersExpired
)


@value_class
class RecordAppend:
    """Append `records` in order, then deliver `completion`.

    With `replay`, the shard replays the records right after the append; without it, the state
    changes when `completion` is delivered. `atomic` records must fit into one batch. Those of a
    `producer` are pending until its transaction ends, and atomic.
    """

    records: tuple[Record, ...]
    completion: AppendCompletion = field(default_factory=SendReplies)
    replay: bool = True
    atomic: bool = False
    producer: TransactionalProducer | None = None


@value_class
class ResolveRegularExpressions:
    """Resolve a group's regular expressions in a task of their own, which then calls
    `GroupCoordinatorShard.on_regular_expressions_resolved`."""

    group_id: str
    expressions: tuple[str, ...]
    may_see: Callable[[str], bool] | None = None


@dataclass(slots=True)
class CoordinatorResult:
    """Result of an operation. `notes` are lines for the broker's log."""

    replies: list[Reply] = field(default_factory=list)
    appends: list[RecordAppend] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    resolves: list[ResolveRegularExpressions] = field(default_factory=list)
    completed_rebalances: int = 0

    def reply(self, future: Future, response: Response) -> None:
        self.replies.append(Reply(future, response))

    def reply_after_appends(self, future: Future, response: Response) -> None:
        """Respond now, or when the records that the result appends are committed."""
        if not self.appends:
            self.reply(future, response)
            return
        last = self.appends[-1]
        assert isinstance(last.completion, SendReplies), "the append has another completion"
        completion = SendReplies((*last.completion.replies, Reply(future, response)))
        self.appends[-1] = replace(last, completion=completion)
