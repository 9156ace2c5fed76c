"""A consumer group (KIP-848): replayed state, and member deadlines in memory.

Shared by `heartbeat` (consumer protocol), `classic_protocol` (members of the classic protocol) and
`migration`: subscription changes, the group epoch, the target assignment, reconciliation and
removal of members. Each step adds records to a `ConsumerGroupUpdate`, which are appended in one
batch.

The group epoch increases with every change that requires an assignment. The target assignment epoch
is the group epoch of the last assignment. A member epoch is that of the target assignment that the
member has reached.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TypeAlias
from uuid import UUID

from odradek.broker.groups.assignors.spec import GroupSpec, MemberSpec
from odradek.broker.groups.consumer import record_helpers as records
from odradek.broker.groups.consumer.group_state import (
    ConsumerGroupState,
    ConsumerGroupUpdate,
    ReplayedConsumerGroup,
)
from odradek.broker.groups.consumer.member import (
    AssignedPartitions,
    ConsumerGroupMember,
    MemberState,
    Partitions,
)
from odradek.broker.groups.consumer.member_timeouts import MemberDeadlines, MemberTimeout
from odradek.broker.groups.consumer.reconciliation import TargetAssignment, reconcile
from odradek.broker.groups.consumer.record_helpers import ResolvedRegularExpression
from odradek.broker.groups.consumer.topic_metadata import ConsumerGroupEnvironment, TopicMetadata
from odradek.broker.groups.consumer.topic_regex_resolver import check_expression
from odradek.broker.groups.messages import (
    NO_ERROR,
    NO_MEMBER_ID,
    CoordinatorResult,
    EventTime,
    Record,
)
from odradek.broker.groups.offset_store import OffsetExpirationRule
from odradek.broker.groups.subscription import CONSUMER_PROTOCOL
from odradek.protocol.errors import ErrorCode, KafkaError
from odradek.seams.values import value_class

REGEX_REFRESH_INTERVAL_MS_MIN = 10_000


NamedPartitions: TypeAlias = tuple[tuple[UUID, str, tuple[int, ...]], ...]
"""Topic id, name and partitions of existing topics."""


@value_class
class DescribedConsumerGroupMember:
    member: ConsumerGroupMember
    assigned: NamedPartitions
    """Owned partitions, including those to revoke."""
    target: NamedPartitions


@value_class
class DescribedConsumerGroup:
    group_id: str
    state: str
    epoch: int
    target_epoch: int
    assignor: str
    members: tuple[DescribedConsumerGroupMember, ...]


class ConsumerGroup:
    """A group of the consumer protocol."""

    kind = "consumer"
    protocol_type = CONSUMER_PROTOCOL
    is_simple = False

    def __init__(self, group_id: str, environment: ConsumerGroupEnvironment) -> None:
        self.group_id = group_id
        self.environment = environment
        self.state = ReplayedConsumerGroup(group_id)
        self.deadlines = MemberDeadlines()
        self.is_resolving_regular_expressions = False
        """Whether a task resolves the regular expressions of the group."""
        self._metadata_epoch: int | None = None
        """Group epoch when the topic metadata was last checked; None if never."""
        self._metadata_version = -1
        """Offset of the metadata log up to which the topics of the group are unchanged since then."""

    # State

    @property
    def state_name(self) -> str:
        return self.state.state.value

    @property
    def is_empty(self) -> bool:
        return self.state.state is ConsumerGroupState.EMPTY

    @property
    def next_deadline_ms(self) -> int | None:
        return self.deadlines.next_deadline_ms

    def is_subscribed_to(self, topic: str) -> bool:
        return topic in self.state.subscribed_topics()

    def offset_expiration_rule(self) -> OffsetExpirationRule:
        return OffsetExpirationRule(since_ms=None)

    def check_offset_delete(self) -> ErrorCode:
        return NO_ERROR

    def check_delete(self) -> ErrorCode:
        return NO_ERROR if self.is_empty else ErrorCode.non_empty_group

    def tombstones(self) -> tuple[Record, ...]:
        """The records that delete the group."""
        update = ConsumerGroupUpdate(self.state)
        self.write_tombstones(update)
        return tuple(update.records)

    def describe(self) -> DescribedConsumerGroup:
        """Result of ConsumerGroupDescribe for this group."""
        state, topics = self.state, self.environment.topics
        default = self.environment.config.consumer_assignors[0]
        return DescribedConsumerGroup(
            self.group_id,
            self.state_name,
            state.epoch,
            state.target_epoch,
            state.preferred_assignor() or default,
            tuple(
                DescribedConsumerGroupMember(
                    member,
                    _named(topics, member.assigned, member.revoking),
                    _named(topics, state.target_of(member.member_id)),
                )
                for member in state.members.values()
            ),
        )

    # Load and close

    def close(self, code: ErrorCode, now: EventTime) -> CoordinatorResult:
        """Cancel all deadlines after the group was deleted or its partition unloaded. No request waits in a
        consumer group."""
        self.deadlines.clear()
        return CoordinatorResult()

    def on_group_loaded(self, now: EventTime) -> None:
        """Start the sessions of the members after the group was loaded."""
        session_ms = self.environment.settings(self.group_id).session_timeout_ms
        for member in self.state.members.values():
            self.deadlines.set(
                member.member_id, MemberTimeout.SESSION, now.monotonic_ms + session_ms
            )
            if member.state is MemberState.UNREVOKED_PARTITIONS:
                self._await_revocation(member, now)

    # Members and subscriptions

    def check_group_size(self, update: ConsumerGroupUpdate, member_id: str) -> None:
        """Raises GROUP_MAX_SIZE_REACHED for a new member of a full group."""
        most = self.environment.config.consumer_max_size
        if len(update.members) >= most and member_id not in update.members:
            raise KafkaError(
                ErrorCode.group_max_size_reached,
                f"The consumer group has reached its maximum capacity of {most} members.",
            )

    def get_or_create_member(
        self, update: ConsumerGroupUpdate, member_id: str
    ) -> ConsumerGroupMember:
        """The member, or a new one without deadlines.

        Deadlines of a removed member with the same id are cancelled here, not at its removal: if
        the records of the removal can't be written, the member still has its session.
        """
        member = update.members.get(member_id)
        if member is None:
            self.deadlines.cancel(member_id)
            member = ConsumerGroupMember(member_id)
        return member

    def replace(
        self, update: ConsumerGroupUpdate, old: ConsumerGroupMember, new: ConsumerGroupMember
    ) -> None:
        """Replace a static member that rejoined with a new member id; it keeps its target assignment.

        The deadlines of the old id stay. They have no effect once the records are replayed.
        """
        target = update.state.target_of(old.member_id)
        self.remove(update, [old.member_id])
        update.write(
            records.member_subscription(self.group_id, new),
            records.target_assignment(self.group_id, new.member_id, target),
            records.current_assignment(self.group_id, new),
        )

    def remove(self, update: ConsumerGroupUpdate, member_ids: Iterable[str]) -> None:
        for member_id in member_ids:
            update.write(
                records.current_assignment_tombstone(self.group_id, member_id),
                records.target_assignment_tombstone(self.group_id, member_id),
                records.member_subscription_tombstone(self.group_id, member_id),
            )

    def subscribe(
        self, update: ConsumerGroupUpdate, before: ConsumerGroupMember, after: ConsumerGroupMember
    ) -> bool:
        """Add the member's subscription record if it changed; returns whether its topic names changed."""
        if after == before and after.member_id in update.members:
            return False
        update.write(records.member_subscription(self.group_id, after))
        return after.topics != before.topics

    def update_regular_expression(
        self, update: ConsumerGroupUpdate, before: ConsumerGroupMember, after: ConsumerGroupMember
    ) -> tuple[bool, bool]:
        """Returns whether the member's regular expression changed, and whether the new one is resolved.

        Must be called before `subscribe`, while `update` has the old expression. Raises
        INVALID_REGULAR_EXPRESSION.
        """
        if before.regex == after.regex:
            return False, False
        counts = update.state.regex_counts()
        if before.regex and counts[before.regex] == 1:
            update.write(records.regular_expression_tombstone(self.group_id, before.regex))
        if not after.regex:
            return True, True
        if not counts[after.regex]:
            check_expression(after.regex)
        return True, after.regex in update.state.regexes

    def regular_expressions_to_resolve(
        self, update: ConsumerGroupUpdate, now: EventTime
    ) -> tuple[str, ...]:
        """Regular expressions to resolve now; empty if none is due.

        They are due if one is not resolved yet, topics were created, the refresh interval has
        passed, or the clock was set back, but at most every 10 s.
        """
        state = update.state
        wanted = tuple(sorted(state.regex_counts()))
        if not wanted or self.is_resolving_regular_expressions:
            return ()
        held = [state.regexes[each] for each in wanted if each in state.regexes]
        last_ms = max((each.timestamp_ms for each in held), default=None)
        if last_ms is None:
            return wanted
        age_ms = now.wall_ms - last_ms
        if 0 <= age_ms <= REGEX_REFRESH_INTERVAL_MS_MIN:
            return ()
        is_due = (
            len(held) != len(wanted)
            or min(each.version for each in held) < self.environment.new_topics_version
            or not 0 <= age_ms <= self.environment.config.regex_refresh_interval_ms
        )
        return wanted if is_due else ()

    def update_group_epoch(self, update: ConsumerGroupUpdate, *, bump: bool) -> None:
        """Increase the group epoch with `bump`, or if the topic metadata changed."""
        if not bump and self._is_topic_metadata_current():
            return
        state = update.state
        metadata_hash = self.environment.topics.metadata_hash(state.subscribed_topics())
        if bump or metadata_hash != state.metadata_hash:
            update.write(records.group_epoch(self.group_id, state.epoch + 1, metadata_hash))
        self._metadata_epoch = update.state.epoch
        self._metadata_version = self.environment.topics.version
        if state.has_partition_metadata:
            update.write(records.partition_metadata_tombstone(self.group_id))

    def _is_topic_metadata_current(self) -> bool:
        """Whether the subscribed topics are unchanged since the last check."""
        if self._metadata_epoch is None or self._metadata_epoch > self.state.epoch:
            return False
        if self.environment.is_changed(self.state.subscribed_topics(), self._metadata_version):
            return False
        self._metadata_version = self.environment.topics.version
        return True

    def update_target_assignment(self, update: ConsumerGroupUpdate, now: EventTime) -> None:
        """Compute a new target assignment if it is due."""
        state = update.state
        if not self.is_assignment_due(state, now):
            return
        assigned = self.environment.assignor(state.preferred_assignor())(self._spec(state))
        for member_id in state.members:
            target = assigned.get(member_id, {})
            if target != state.targets.get(member_id):
                update.write(records.target_assignment(self.group_id, member_id, target))
        update.write(records.target_assignment_epoch(self.group_id, state.epoch, now.wall_ms))

    def is_assignment_due(self, state: ReplayedConsumerGroup, now: EventTime) -> bool:
        """Whether the group epoch is ahead of the target assignment epoch, and the assignment interval has
        passed."""
        if state.target_epoch >= state.epoch:
            return False
        interval_ms = self.environment.settings(self.group_id).assignment_interval_ms
        last_ms = state.target_timestamp_ms
        return not (last_ms and 0 <= now.wall_ms - last_ms < interval_ms)

    def _spec(self, state: ReplayedConsumerGroup) -> GroupSpec:
        topics = self.environment.topics
        counts: dict[UUID, int] = {}
        members = {}
        known: dict[frozenset[str], tuple[UUID, ...]] = {}  # most members have the same topics
        for member in state.members.values():
            names = state.topics_of(member)
            wanted = known.get(names)
            if wanted is None:
                wanted = known[names] = tuple(sorted(topics.ids_of(names)))
                counts.update((topic, topics.partition_count(topic)) for topic in wanted)
            members[member.member_id] = MemberSpec(
                wanted,
                {
                    topic: _existing(topics.partition_count(topic), partitions)
                    for topic, partitions in state.target_of(member.member_id).items()
                },
                member.instance_id,
                member.rack_id,
            )
        return GroupSpec(members, counts)

    def reconcile(
        self,
        update: ConsumerGroupUpdate,
        member_id: str,
        owned: Partitions | None,
        now: EventTime,
        *,
        subscription_changed: bool,
    ) -> ConsumerGroupMember:
        """Take the member's next reconciliation step; returns the member."""
        state = update.state
        before = state.members[member_id]
        if not subscription_changed and before.is_reconciled_to(state.target_epoch):
            return before
        after = reconcile(
            before,
            TargetAssignment(state.target_epoch, state.target_of(member_id)),
            owned=owned,
            subscribed=self.environment.topics.ids_of(state.topics_of(before)),
            subscription_changed=subscription_changed,
            owned_partitions=state.owned_partitions,
        )
        if after == before:
            return before
        update.write(records.current_assignment(self.group_id, after))
        # Members of the classic protocol have join and sync timeouts instead.
        if after.state is MemberState.UNREVOKED_PARTITIONS and not after.is_classic:
            self._await_revocation(after, now)
        return after

    def fence(self, update: ConsumerGroupUpdate, member_ids: Iterable[str]) -> None:
        """Remove members and the regular expressions that no other member uses; increase the group epoch."""
        gone = list(member_ids)
        self.remove(update, gone)
        left = update.state.regex_counts()
        for expression in [each for each in update.state.regexes if not left[each]]:
            update.write(records.regular_expression_tombstone(self.group_id, expression))
        metadata_hash = self.environment.topics.metadata_hash(update.state.subscribed_topics())
        update.write(records.group_epoch(self.group_id, update.state.epoch + 1, metadata_hash))

    def apply_resolved_regular_expressions(
        self, update: ConsumerGroupUpdate, resolved: dict[str, ResolvedRegularExpression]
    ) -> None:
        """Add the records of resolved expressions. Expressions that no member uses are ignored."""
        counts = update.state.regex_counts()
        bump = False
        for expression, resolved_expression in resolved.items():
            if not counts[expression]:
                continue
            held = update.state.regexes.get(expression)
            bump = bump or resolved_expression.topics != (
                held.topics if held is not None else frozenset()
            )
            update.write(records.regular_expression(self.group_id, expression, resolved_expression))
        found_hash = self.environment.topics.metadata_hash(update.state.subscribed_topics())
        if bump or found_hash != update.state.metadata_hash:
            update.write(records.group_epoch(self.group_id, update.state.epoch + 1, found_hash))
            self._metadata_epoch = update.state.epoch

    def write_tombstones(self, update: ConsumerGroupUpdate) -> None:
        """Add tombstones for all records of the group, in Kafka's order."""
        members = list(update.members)
        regexes = list(update.state.regexes)
        update.write_all(
            records.current_assignment_tombstone(self.group_id, each) for each in members
        )
        update.write_all(
            records.target_assignment_tombstone(self.group_id, each) for each in members
        )
        update.write(records.target_assignment_epoch_tombstone(self.group_id))
        update.write_all(
            records.member_subscription_tombstone(self.group_id, each) for each in members
        )
        update.write_all(
            records.regular_expression_tombstone(self.group_id, each) for each in regexes
        )
        update.write(records.partition_metadata_tombstone(self.group_id))
        update.write(records.group_epoch_tombstone(self.group_id))

    # Sessions

    def extend_session(self, member_id: str, now: EventTime, timeout_ms: int | None = None) -> None:
        if timeout_ms is None:
            timeout_ms = self.environment.settings(self.group_id).session_timeout_ms
        self.deadlines.set(member_id, MemberTimeout.SESSION, now.monotonic_ms + timeout_ms)

    def _await_revocation(self, member: ConsumerGroupMember, now: EventTime) -> None:
        at_ms = now.monotonic_ms + member.rebalance_timeout_ms
        self.deadlines.set(member.member_id, MemberTimeout.REVOCATION, at_ms, member.epoch)

    def expire_members(self, now: EventTime) -> dict[str, MemberTimeout]:
        """Members with a due deadline, and the first timeout of each."""
        timeouts: dict[str, MemberTimeout] = {}
        for member_id, wait, epoch in self.deadlines.pop_expired(now.monotonic_ms):
            member = self.state.members.get(member_id)
            if member is None or (
                wait is MemberTimeout.REVOCATION and not _is_revoking(member, epoch)
            ):
                continue
            timeouts.setdefault(member_id, wait)
        return timeouts

    def retry_expiration(self, timeouts: Mapping[str, MemberTimeout], at_ms: int) -> None:
        """Set the deadlines of expired members again after their removal could not be written."""
        for member_id, wait in timeouts.items():
            self.deadlines.set(member_id, wait, at_ms, self.state.members[member_id].epoch)

    # Offsets

    def check_commit(
        self,
        member_id: str,
        instance_id: str | None,
        epoch: int,
        *,
        partitions: Iterable[tuple[UUID | None, int]] = (),
        knows_epochs: bool = True,
        transactional: bool = False,
    ) -> ErrorCode:
        """Check an offset commit of partitions, given as (topic id, index) (KIP-1251).

        The current member epoch is valid. An older one is valid for partitions that were assigned
        to the member in that epoch or before.
        """
        state = self.state
        if epoch < 0 and not state.members:
            return NO_ERROR
        has_no_identity = epoch == -1 and member_id == NO_MEMBER_ID and instance_id is None
        if transactional and has_no_identity:
            return NO_ERROR
        member = state.members.get(member_id)
        if member is None:
            return ErrorCode.unknown_member_id
        if not transactional and not member.is_classic and not knows_epochs:
            return ErrorCode.unsupported_version
        if epoch == member.epoch:
            return NO_ERROR
        stale = _stale(member)
        if epoch > member.epoch:
            return stale
        for topic, partition in partitions:
            since = None if topic is None else _assigned_in(member, topic, partition)
            if since is None or epoch < since:
                return stale
        return NO_ERROR

    def check_fetch(self, member_id: str | None, epoch: int) -> ErrorCode:
        """Check the member of an OffsetFetch request; a request without a member is valid."""
        if member_id is None and epoch < 0:
            return NO_ERROR
        member = self.state.members.get(member_id or NO_MEMBER_ID)
        if member is None:
            return ErrorCode.unknown_member_id
        return NO_ERROR if epoch == member.epoch else _stale(member)


def _is_revoking(member: ConsumerGroupMember, epoch: int) -> bool:
    return member.state is MemberState.UNREVOKED_PARTITIONS and member.epoch == epoch


def _existing(count: int, partitions: frozenset[int]) -> frozenset[int]:
    """The partitions that exist; usually all."""
    if max(partitions, default=-1) < count:
        return partitions
    return frozenset(each for each in partitions if each < count)


def _assigned_in(member: ConsumerGroupMember, topic: UUID, partition: int) -> int | None:
    """Epoch in which the partition was assigned to the member; None if the member does not own it."""
    epoch = member.assigned.get(topic, {}).get(partition)
    return member.revoking.get(topic, {}).get(partition) if epoch is None else epoch


def _stale(member: ConsumerGroupMember) -> ErrorCode:
    return ErrorCode.illegal_generation if member.is_classic else ErrorCode.stale_member_epoch


def unknown_member(group_id: str, member_id: str) -> KafkaError:
    return KafkaError(
        ErrorCode.unknown_member_id, f"Member {member_id} is not a member of group {group_id}."
    )


def check_instance(
    member: ConsumerGroupMember | None, instance_id: str, member_id: str
) -> ConsumerGroupMember:
    """The member, if its member id matches. Raises UNKNOWN_MEMBER_ID or FENCED_INSTANCE_ID."""
    if member is None:
        raise KafkaError(ErrorCode.unknown_member_id, f"Instance id {instance_id} is unknown.")
    if member.member_id != member_id:
        raise KafkaError(
            ErrorCode.fenced_instance_id,
            f"Static member {member_id} with instance id {instance_id} was fenced by member "
            f"{member.member_id}.",
        )
    return member


def _named(topics: TopicMetadata, *parts: AssignedPartitions | Partitions) -> NamedPartitions:
    partitions_by_topic: dict[UUID, list[int]] = {}
    for part in parts:
        for topic, partitions in part.items():
            partitions_by_topic.setdefault(topic, []).extend(partitions)
    return tuple(
        (topic, name, tuple(sorted(partitions)))
        for topic, partitions in partitions_by_topic.items()
        if (name := topics.name_of(topic)) is not None
    )
