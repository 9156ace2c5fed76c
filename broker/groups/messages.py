"""Requests, responses, records and results of the group coordinator's state machines.

A request is passed with a future that identifies the receiver of its response. Changes that must be
durable are returned as `RecordAppend`. The caller appends them and calls `appended` or
`append_failed`; responses that depend on them are sent after that.
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
"""Names and metadata, the member's favourite first, no name twice."""


@value_class
class JoinGroup:
    """JoinGroup. `fresh_id` is a UUID's text for the member id that may have to be made up."""

    group_id: str
    member_id: str
    instance_id: str | None
    client_id: str
    client_host: str
    session_timeout_ms: int
    rebalance_timeout_ms: int
    protocol_type: str
    protocols: SupportedProtocols
    fresh_id: str
    reason: str | None = None
    id_required: bool = True
    """From version 4 on a dynamic member has to join again with its id (KIP-394)."""
    can_skip_assignment: bool = True
    """From version 9 on a leader can be told not to assign (KIP-814)."""


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
    """One who leaves; without a member id, whoever has the instance id (KIP-345)."""

    member_id: str
    instance_id: str | None = None
    reason: str | None = None


@value_class
class LeaveGroup:
    group_id: str
    members: tuple[LeavingMember, ...]


@value_class
class ConsumerGroupHeartbeat:
    """ConsumerGroupHeartbeat (KIP-848): None says that nothing has changed since the last one.

    An epoch of 0 joins, -1 leaves, -2 is a static member's that will be back. `may_see` tells
    whether the client may see a topic that its expression matches.
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


# Answers. Each knows what it looks like when it fails for a reason outside the group.


class JoinGroupMember(NamedTuple):
    """What the leader is told of a member."""

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
    """`assigned` is None where it is not told because nothing has changed."""

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
    """The answer to a commit or a deletion of offsets: an error for each partition asked for.

    `error` is the request's own; each partition then has it too.
    """

    error: ErrorCode
    partitions: tuple[tuple[str, int, ErrorCode], ...]

    @property
    def succeeded(self) -> int:
        """For how many partitions."""
        return sum(error is NO_ERROR for _, _, error in self.partitions)

    def failed(self, code: ErrorCode) -> OffsetPartitionErrors:
        return OffsetPartitionErrors(code, tuple((t, p, code) for t, p, _ in self.partitions))


@value_class
class GroupErrors:
    """The answer to DeleteGroups: an error for each group asked for."""

    groups: tuple[tuple[str, ErrorCode], ...]

    def failed(self, code: ErrorCode) -> GroupErrors:
        """Those that were about to be deleted are not; what was wrong before stays so."""
        return GroupErrors(
            tuple((group, code if error is NO_ERROR else error) for group, error in self.groups)
        )


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
    """A committed offset. `expire_timestamp_ms` is set by old clients alone (OffsetCommit v2-4)."""

    offset: int
    leader_epoch: int = -1
    metadata: str = ""
    commit_timestamp_ms: int = -1
    expire_timestamp_ms: int | None = None
    topic_id: UUID | None = None
    record_offset: int = field(default=-1, compare=False)
    """Where in the log it stands; of two commits the later one holds."""


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
    """A generation of a classic group, as it is in the log."""

    protocol_type: str
    generation: int
    protocol: str | None
    leader: str | None
    state_timestamp_ms: int = -1
    members: tuple[ClassicMemberMetadata, ...] = ()


RecordKey: TypeAlias = OffsetKey | GroupKey | ConsumerGroupKey
RecordValue: TypeAlias = CommittedOffset | ClassicGroupMetadata | ConsumerGroupValue


class Record(NamedTuple):
    """A change of state; without a value, the end of what the key names."""

    key: RecordKey
    value: RecordValue | None


# Actions


class Reply(NamedTuple):
    future: Future
    respond: Response


@value_class
class SendReplies:
    """Answer when the records are there; when they can't be, answer that."""

    replies: tuple[Reply, ...] = ()


@value_class
class GroupCreated:
    """A group came into being; without its record it has not."""

    group_id: str
    replies: tuple[Reply, ...] = ()


@value_class
class AssignmentWritten:
    """The leader of a generation handed in everyone's assignment."""

    group_id: str
    generation: int
    assignments: Mapping[str, bytes]


@value_class
class StaticMemberReplaced:
    """A static member came back under a new id while the group was stable; what it was before."""

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
    """A group took the place of one of another kind, `before`; without the records it has not."""

    group_id: str
    before: Any
    replies: tuple[Reply, ...] = ()


@value_class
class MembersExpired:
    """Members of a consumer group were too late; if that can't be written it is tried again."""

    group_id: str
    late: Mapping[str, MemberTimeout]
    """Members, and what each was late with."""
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
    """Write `records`, in order, then report `completion`.

    `replay` says that the state changes by replaying the records, as soon as they are in the log;
    otherwise whoever made them changes it when told of `completion`. `atomic` records go into one batch.
    Those of a `producer` are pending until its transaction ends; they are atomic, too.
    """

    records: tuple[Record, ...]
    completion: AppendCompletion = field(default_factory=SendReplies)
    replay: bool = True
    atomic: bool = False
    producer: TransactionalProducer | None = None


@value_class
class ResolveRegularExpressions:
    """Match the topics with a consumer group's expressions, which takes its time; then report it
    (`Shard.on_regular_expressions_resolved`)."""

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

    def reply(self, future: Future, respond: Response) -> None:
        self.replies.append(Reply(future, respond))

    def reply_after_appends(self, future: Future, respond: Response) -> None:
        """Answer now, or, if records are to be written for it, when they are."""
        if not self.appends:
            self.reply(future, respond)
            return
        last = self.appends[-1]
        assert isinstance(last.completion, SendReplies), "an append that belongs to somebody else"
        completion = SendReplies((*last.completion.replies, Reply(future, respond)))
        self.appends[-1] = replace(last, completion=completion)
