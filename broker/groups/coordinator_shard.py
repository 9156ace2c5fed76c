"""State of one `__consumer_offsets` partition: its groups and committed offsets. No I/O.

Operations return `CoordinatorResult`. The state is the replay of the partition's records plus
rebalances, sessions and waiting members in memory. A group is a classic or a consumer group and can
be converted to the other kind; `consumer.group_manager` handles consumer groups.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from uuid import UUID

from odradek.broker.groups.classic_group import (
    ClassicGroup,
    ClassicGroupNotFound,
    DescribedGroup,
)
from odradek.broker.groups.config import GroupConfig
from odradek.broker.groups.consumer.consumer_group import ConsumerGroup, DescribedConsumerGroup
from odradek.broker.groups.consumer.group_manager import ConsumerGroupManager, Group
from odradek.broker.groups.consumer.record_helpers import ResolvedRegularExpression
from odradek.broker.groups.consumer.topic_metadata import ConsumerGroupEnvironment
from odradek.broker.groups.messages import (
    NO_ERROR,
    NO_MEMBER_ID,
    AppendCompletion,
    AssignmentWritten,
    ClassicGroupMetadata,
    CommittedOffset,
    ConsumerGroupHeartbeat,
    CoordinatorResult,
    EventTime,
    Future,
    GroupConverted,
    GroupCreated,
    GroupErrors,
    GroupKey,
    Heartbeat,
    HeartbeatResponse,
    JoinGroup,
    JoinGroupResponse,
    LeaveGroup,
    LeaveGroupResponse,
    LeaveMemberResponse,
    ListedGroup,
    MembersExpired,
    OffsetKey,
    OffsetPartitionErrors,
    Record,
    RecordAppend,
    Reply,
    SendReplies,
    StaticMemberReplaced,
    SyncGroup,
    SyncGroupResponse,
    TransactionalProducer,
)
from odradek.broker.groups.offset_store import NO_PRODUCER, FetchedTopic, OffsetStore
from odradek.protocol.errors import ErrorCode, KafkaError
from odradek.protocol.schemas.consumer_group_records import ConsumerGroupMetadataKey
from odradek.seams.values import value_class

NO_MEMBER = (None, -1)
"""Member id and epoch of an OffsetFetch request without a member."""


@value_class
class OffsetToCommit:
    topic: str
    topic_id: UUID | None
    partition: int
    offset: int
    leader_epoch: int
    metadata: str | None


@value_class
class OffsetCommit:
    """OffsetCommit or TxnOffsetCommit request. The generation is negative if no member commits."""

    group_id: str
    member_id: str
    instance_id: str | None
    generation: int
    offsets: tuple[OffsetToCommit, ...]
    retention_ms: int = -1
    """Retention time that OffsetCommit v2-4 sets (ms); -1 is the broker's."""
    knows_consumer_groups: bool = True
    """From OffsetCommit v9 on, an unknown group is GROUP_ID_NOT_FOUND, not ILLEGAL_GENERATION, and
    the request has the epoch of consumer group members."""
    producer: TransactionalProducer | None = None
    """Producer of the transaction (TxnOffsetCommit)."""


class GroupCoordinatorShard:
    """Groups and offsets of one partition, and the operations on them."""

    def __init__(
        self, config: GroupConfig, environment: ConsumerGroupEnvironment | None = None
    ) -> None:
        """`environment` has the topics and configs for consumer groups; without it there are no topics."""
        self._config = config
        self._environment = environment or ConsumerGroupEnvironment(config)
        self.groups: dict[str, Group] = {}
        self.failed_groups: set[str] = set()
        """Groups that an unexpected error has made unavailable."""
        self.offsets = OffsetStore()
        self.consumers = ConsumerGroupManager(self.groups, self._environment)

    # Replaying

    def replay(self, record: Record, offset: int, producer_id: int = NO_PRODUCER) -> None:
        """Replay the record at `offset`."""
        key, value = record
        if isinstance(key, OffsetKey):
            if value is None:
                self.offsets.remove(key)
                return
            assert isinstance(value, CommittedOffset)
            value.record_offset = offset
            if key.group_id not in self.groups:  # a group with offsets only
                when = EventTime(0, value.commit_timestamp_ms)
                self.groups[key.group_id] = ClassicGroup(key.group_id, self._config, when)
            self.offsets.put(key, value, producer_id)
        elif not isinstance(key, GroupKey):
            self._replay_consumer(record)
        elif value is None:
            if not isinstance(self.groups.get(key.group_id), ConsumerGroup):
                self.groups.pop(key.group_id, None)
        else:
            assert isinstance(value, ClassicGroupMetadata)
            group = ClassicGroup.from_metadata(key.group_id, value, self._config)
            self.groups[key.group_id] = group

    def _replay_consumer(self, record: Record) -> None:
        """Replay a record of a consumer group. It replaces a group that had offsets only. Tombstones
        of a group that was deleted or downgraded to a classic group are ignored."""
        key, value = record
        assert not isinstance(key, OffsetKey | GroupKey)
        group = self.groups.get(key.group_id)
        if not isinstance(group, ConsumerGroup):
            if value is None:
                return
            group = self.groups[key.group_id] = ConsumerGroup(key.group_id, self._environment)
        group.state.replay(key, value)
        if value is None and isinstance(key, ConsumerGroupMetadataKey):
            del self.groups[key.group_id]

    def complete_transaction(self, producer_id: int, *, committed: bool) -> None:
        self.offsets.complete_transaction(producer_id, committed=committed)

    def loaded(self, group_id: str, now: EventTime) -> CoordinatorResult:
        """Start the timers of a group after the partition was replayed."""
        group = self.groups[group_id]
        if isinstance(group, ConsumerGroup):
            group.on_group_loaded(now)
            return CoordinatorResult()
        return group.on_group_loaded(now)

    def fail_group(self, group_id: str, now: EventTime) -> CoordinatorResult:
        """Remove a group whose state in memory may be wrong: waiting requests fail with NOT_COORDINATOR."""
        group = self.groups.pop(group_id, None)
        self.failed_groups.add(group_id)
        if group is None:
            return CoordinatorResult()
        return group.close(ErrorCode.not_coordinator, now)

    def unloaded(self, code: ErrorCode, now: EventTime) -> CoordinatorResult:
        """Close all groups because the partition was unloaded: waiting requests fail with `code`."""
        result = CoordinatorResult()
        for group in self.groups.values():
            result.replies += group.close(code, now).replies
        return result

    # Membership

    def join(self, request: JoinGroup, future: Future, now: EventTime) -> CoordinatorResult:
        group = self.groups.get(request.group_id)
        if isinstance(group, ClassicGroup):
            return group.join(request, future, now)
        if group is not None and not group.is_empty:
            return self.consumers.join(group, request, future, now)
        if request.member_id != NO_MEMBER_ID:
            return _respond_now(
                future, JoinGroupResponse(ErrorCode.unknown_member_id, request.member_id)
            )
        return self._create(request, group, future, now)

    def _create(
        self, request: JoinGroup, before: ConsumerGroup | None, future: Future, now: EventTime
    ) -> CoordinatorResult:
        """Create a classic group for its first member; it replaces an empty consumer group."""
        group = ClassicGroup(request.group_id, self._config, now)
        self.groups[request.group_id] = group
        record = Record(GroupKey(request.group_id), group.to_metadata({}))  # without members
        result = group.join(request, future, now)
        assert not result.appends, "the first JoinGroup of a group appends records"
        replies, result.replies = tuple(result.replies), []
        if before is None:
            completion: AppendCompletion = GroupCreated(request.group_id, replies)
            records: tuple[Record, ...] = (record,)
        else:
            completion, records = (
                GroupConverted(request.group_id, before, replies),
                (*before.tombstones(), record),
            )
        result.appends.append(RecordAppend(records, completion, replay=False, atomic=True))
        return result

    def consumer_heartbeat(
        self, request: ConsumerGroupHeartbeat, future: Future, now: EventTime
    ) -> CoordinatorResult:
        return self.consumers.heartbeat(request, future, now)

    def sync(self, request: SyncGroup, future: Future, now: EventTime) -> CoordinatorResult:
        group = self.groups.get(request.group_id)
        if group is None or group.is_empty:
            return _respond_now(future, SyncGroupResponse(ErrorCode.unknown_member_id))
        if isinstance(group, ConsumerGroup):
            return self.consumers.sync(group, request, future, now)
        return group.sync(request, future, now)

    def heartbeat(self, request: Heartbeat, future: Future, now: EventTime) -> CoordinatorResult:
        group = self.groups.get(request.group_id)
        if group is None:
            return _respond_now(future, HeartbeatResponse(ErrorCode.unknown_member_id))
        if isinstance(group, ConsumerGroup):
            return self.consumers.classic_heartbeat(group, request, future, now)
        return group.heartbeat(request, future, now)

    def leave(self, request: LeaveGroup, future: Future, now: EventTime) -> CoordinatorResult:
        group = self.groups.get(request.group_id)
        if group is None:
            unknown = ErrorCode.unknown_member_id
            members = (
                LeaveMemberResponse(each.member_id, each.instance_id, unknown)
                for each in request.members
            )
            return _respond_now(future, LeaveGroupResponse(NO_ERROR, tuple(members)))
        if isinstance(group, ConsumerGroup):
            return self.consumers.leave(group, request, future, now)
        return group.leave(request, future, now)

    def tick(self, group_id: str, now: EventTime) -> CoordinatorResult:
        group = self.groups.get(group_id)
        if isinstance(group, ConsumerGroup):
            return self.consumers.tick(group, now)
        return CoordinatorResult() if group is None else group.tick(now)

    def next_deadline_ms(self, group_id: str) -> int | None:
        """Time of the next `tick` of a group; None if it has no deadline."""
        group = self.groups.get(group_id)
        return None if group is None else group.next_deadline_ms

    # Append results

    def appended(self, completion: AppendCompletion, now: EventTime) -> CoordinatorResult:
        if isinstance(completion, SendReplies | GroupCreated | MembersExpired):
            return CoordinatorResult(replies=list(completion.replies))
        if isinstance(completion, GroupConverted):
            return self.consumers.on_converted(completion, now)
        group = self.groups.get(completion.group_id)
        return (
            group.appended(completion, now)
            if isinstance(group, ClassicGroup)
            else CoordinatorResult()
        )

    def append_failed(
        self, completion: AppendCompletion, code: ErrorCode, now: EventTime, *, written: bool
    ) -> CoordinatorResult:
        """Handle an append that failed. If `written`, the records are in the log but not committed."""
        if isinstance(completion, AssignmentWritten | StaticMemberReplaced):
            group = self.groups.get(completion.group_id)
            if not isinstance(group, ClassicGroup):
                return CoordinatorResult()
            return group.append_failed(completion, code, now, written=written)
        if isinstance(completion, GroupConverted):
            return self.consumers.group_conversion_failed(completion, code, written, now)
        if isinstance(completion, MembersExpired):
            return self.consumers.member_expiration_failed(completion, code, written, now)
        result = CoordinatorResult()
        if isinstance(completion, GroupCreated) and not written:
            group = self.groups.pop(completion.group_id, None)
            if group is not None:
                result = group.close(code, now)
        result.replies += [
            Reply(future, response.failed(code)) for future, response in completion.replies
        ]
        return result

    # Offsets

    def commit(self, request: OffsetCommit, future: Future, now: EventTime) -> CoordinatorResult:
        requested = request.offsets
        error = self._check_commit(request, now)
        if error is not NO_ERROR:
            refused = tuple((each.topic, each.partition, error) for each in requested)
            return _respond_now(future, OffsetPartitionErrors(error, refused))
        errors, records = [], []
        for offset in requested:
            if _java_length(offset.metadata or "") > self._config.offset_metadata_max_bytes:
                code = ErrorCode.offset_metadata_too_large
            else:
                code = NO_ERROR
                key = OffsetKey(request.group_id, offset.topic, offset.partition)
                records.append(Record(key, _committed_offset(offset, request, now)))
            errors.append((offset.topic, offset.partition, code))
        response = OffsetPartitionErrors(NO_ERROR, tuple(errors))
        return _append(records, future, response, request.producer)

    def _check_commit(self, request: OffsetCommit, now: EventTime) -> ErrorCode:
        group = self.groups.get(request.group_id)
        if isinstance(group, ConsumerGroup):
            return group.check_commit(
                request.member_id,
                request.instance_id,
                request.generation,
                partitions=[
                    (each.topic_id or self._environment.topics.id_of(each.topic), each.partition)
                    for each in request.offsets
                ],
                knows_epochs=request.knows_consumer_groups,
                transactional=request.producer is not None,
            )
        if group is not None:
            return group.check_commit(
                request.member_id,
                request.instance_id,
                request.generation,
                now,
                transactional=request.producer is not None,
            )
        if request.generation < 0:
            return NO_ERROR  # creates a group with offsets only
        if request.knows_consumer_groups and request.producer is None:
            return ErrorCode.group_id_not_found
        return ErrorCode.illegal_generation

    def fetch(
        self,
        group_id: str,
        topics: Iterable[tuple[str, UUID | None, Iterable[int]]] | None,
        *,
        require_stable: bool,
        member: tuple[str | None, int] = NO_MEMBER,
    ) -> list[FetchedTopic]:
        """Offsets of these partitions, or of all if `topics` is None. An unknown group has none.

        `member` is the member id and epoch of the request. Raises UNKNOWN_MEMBER_ID or
        STALE_MEMBER_EPOCH if they are not those of a member of the consumer group.
        """
        group = self.groups.get(group_id)
        if isinstance(group, ConsumerGroup):
            error = group.check_fetch(*member)
            if error is not NO_ERROR:
                raise KafkaError(error)
        if topics is None:
            return self.offsets.fetch_all(group_id, require_stable=require_stable)
        return [
            self.offsets.fetch(group_id, name, topic_id, partitions, require_stable=require_stable)
            for name, topic_id, partitions in topics
        ]

    def delete_offsets(
        self, group_id: str, partitions: Iterable[tuple[str, int]], future: Future
    ) -> CoordinatorResult:
        group = self.groups.get(group_id)
        error = ErrorCode.group_id_not_found if group is None else group.check_offset_delete()
        if group is None or error is not NO_ERROR:
            return _respond_now(future, OffsetPartitionErrors(error, ()))
        errors, records = [], []
        for topic, partition in partitions:
            key = OffsetKey(group_id, topic, partition)
            if group.is_subscribed_to(topic):
                errors.append((topic, partition, ErrorCode.group_subscribed_to_topic))
                continue
            errors.append((topic, partition, NO_ERROR))
            if self.offsets.has(key):
                records.append(Record(key, None))
        return _append(records, future, OffsetPartitionErrors(NO_ERROR, tuple(errors)))

    def topic_deleted(self, topic: str, topic_id: UUID) -> CoordinatorResult:
        records = [Record(key, None) for key in self.offsets.keys_of_topic(topic, topic_id)]
        result = CoordinatorResult()
        if records:
            result.appends.append(RecordAppend(tuple(records)))
        return result

    def expire(self, group_id: str, now: EventTime) -> tuple[CoordinatorResult, int]:
        """Remove expired offsets, and the group if it is then empty; returns how many offsets."""
        group = self.groups.get(group_id)
        result = CoordinatorResult()
        if group is None:
            return result, 0
        expired = self.offsets.expired(
            group_id,
            group.offset_expiration_rule(),
            now_ms=now.wall_ms,
            retention_ms=self._config.offsets_retention_ms,
        )
        expired = [key for key in expired if not group.is_subscribed_to(key.topic)]
        records = [Record(key, None) for key in expired]
        has_no_offsets = len(expired) == len(self.offsets.keys(group_id))
        if (
            has_no_offsets
            and group.is_empty
            and not self.offsets.has_pending_transactional_offsets(group_id)
        ):
            records += group.tombstones()
        if records:
            result.appends.append(RecordAppend(tuple(records)))
        return result, len(expired)

    # Groups

    def delete_group(self, group_id: str, future: Future) -> CoordinatorResult:
        group = self.groups.get(group_id)
        error = ErrorCode.group_id_not_found if group is None else group.check_delete()
        response = GroupErrors(((group_id, error),))
        if group is None or error is not NO_ERROR:
            return _respond_now(future, response)
        records = [Record(key, None) for key in self.offsets.keys(group_id)]
        records += group.tombstones()
        return _append(records, future, response)

    def delete_all(self, now: EventTime) -> CoordinatorResult:
        """Remove all groups and offsets. Waiting requests fail with UNKNOWN_MEMBER_ID."""
        result = CoordinatorResult()
        for group in self.groups.values():
            result.replies += group.close(ErrorCode.unknown_member_id, now).replies
        group_ids = dict.fromkeys((*self.groups, *self.offsets.groups()))
        records = [Record(key, None) for each in group_ids for key in self.offsets.keys(each)]
        for each in group_ids:
            ended = self.groups.get(each)
            records += [Record(GroupKey(each), None)] if ended is None else ended.tombstones()
        self.groups.clear()
        if records:
            result.appends.append(RecordAppend(tuple(records)))
        return result

    def list_groups(self, states: Collection[str], kinds: Collection[str]) -> list[ListedGroup]:
        """Groups with one of these states and kinds, given in lower case; an empty filter matches all."""
        return [
            ListedGroup(group.group_id, group.protocol_type or "", group.state_name, group.kind)
            for group in self.groups.values()
            if (not states or group.state_name.lower() in states)
            and (not kinds or group.kind in kinds)
        ]

    def describe(self, group_id: str) -> DescribedGroup:
        """Describe a classic group. Raises ClassicGroupNotFound."""
        group = self.groups.get(group_id)
        if not isinstance(group, ClassicGroup):
            reason = "not found" if group is None else "is not a classic group"
            raise ClassicGroupNotFound(f"Group {group_id} {reason}.")
        return group.describe()

    def describe_consumer(self, group_id: str) -> DescribedConsumerGroup:
        """Describe a consumer group. Raises ConsumerGroupNotFound."""
        return self.consumers.group(group_id).describe()

    def on_regular_expressions_resolved(
        self, group_id: str, resolved: Mapping[str, ResolvedRegularExpression], now: EventTime
    ) -> CoordinatorResult:
        """Apply resolved regular expressions; `resolved` is empty if resolving failed."""
        return self.consumers.on_regular_expressions_resolved(group_id, resolved)


def _respond_now(
    future: Future,
    response: JoinGroupResponse
    | SyncGroupResponse
    | HeartbeatResponse
    | LeaveGroupResponse
    | OffsetPartitionErrors
    | GroupErrors,
) -> CoordinatorResult:
    result = CoordinatorResult()
    result.reply(future, response)
    return result


def _append(
    records: list[Record],
    future: Future,
    response: OffsetPartitionErrors | GroupErrors,
    producer: TransactionalProducer | None = None,
) -> CoordinatorResult:
    """Append records and respond when they are committed; without records respond now."""
    result = CoordinatorResult()
    if records:
        completion = SendReplies((Reply(future, response),))
        is_atomic = producer is not None
        result.appends.append(
            RecordAppend(tuple(records), completion, atomic=is_atomic, producer=producer)
        )
    else:
        result.reply(future, response)
    return result


def _committed_offset(
    offset: OffsetToCommit, request: OffsetCommit, now: EventTime
) -> CommittedOffset:
    """The committed offset. Transactional ones have no topic id, as in Kafka."""
    retention_ms = request.retention_ms
    return CommittedOffset(
        offset.offset,
        offset.leader_epoch,
        offset.metadata or "",
        now.wall_ms,
        None if retention_ms == -1 else now.wall_ms + retention_ms,
        offset.topic_id if request.producer is None else None,
    )


def _java_length(text: str) -> int:
    """Length in UTF-16 code units, in which Kafka measures metadata."""
    return len(text) + sum(ord(each) > 0xFFFF for each in text)
