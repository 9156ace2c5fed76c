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
from uuid import UUID

from odradek.broker.groups.assignors.spec import GroupSpec, MemberSpec
from odradek.broker.groups.consumer import record_helpers as records
from odradek.broker.groups.consumer.environment import ConsumerGroupEnvironment
from odradek.broker.groups.consumer.expressions import check_expression
from odradek.broker.groups.consumer.group_state import (
    ConsumerGroupState,
    ConsumerGroupUpdate,
    ReplayedConsumerGroup,
)
from odradek.broker.groups.consumer.member import ConsumerGroupMember, MemberState, Partitions
from odradek.broker.groups.consumer.member_timeouts import MemberDeadlines, MemberTimeout
from odradek.broker.groups.consumer.reconciliation import TargetAssignment, reconcile
from odradek.broker.groups.consumer.record_helpers import ResolvedRegularExpression
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

REGEX_REFRESH_INTERVAL_MS_MIN = 10_000
NEW_PROTOCOL_COMMIT_SINCE = 9
"""OffsetCommit: the first version that has room for a member's epoch."""


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
        """Whether its expressions are being matched right now."""
        self._metadata_epoch: int | None = None
        """The group's epoch when its topics were last looked at; None if they were not yet."""
        self._metadata_version = -1
        """The offset of the metadata log up to which they are known to be what they were then."""

    # What it is

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

    def expiry_rule(self) -> OffsetExpirationRule:
        return OffsetExpirationRule(since_ms=None)

    def check_offset_delete(self) -> ErrorCode:
        return NO_ERROR

    def check_delete(self) -> ErrorCode:
        return NO_ERROR if self.is_empty else ErrorCode.non_empty_group

    def gone(self) -> tuple[Record, ...]:
        """The records that end it."""
        update = ConsumerGroupUpdate(self.state)
        self.tombstones(update)
        return tuple(update.records)

    # Life

    def end(self, code: ErrorCode, now: EventTime) -> CoordinatorResult:
        """The group is no more, or not this node's any more. Nobody ever waits in it."""
        self.deadlines.clear()
        return CoordinatorResult()

    def on_group_loaded(self, now: EventTime) -> None:
        """Its state was loaded: every member gets a whole session to show itself."""
        session_ms = self.environment.settings(self.group_id).session_timeout_ms
        for member in self.state.members.values():
            self.deadlines.set(
                member.member_id, MemberTimeout.SESSION, now.monotonic_ms + session_ms
            )
            if member.state is MemberState.UNREVOKED_PARTITIONS:
                self._await_revocation(member, now)

    # Steps

    def check_group_size(self, update: ConsumerGroupUpdate, member_id: str) -> None:
        """Raises GROUP_MAX_SIZE_REACHED."""
        most = self.environment.config.consumer_max_size
        if len(update.members) >= most and member_id not in update.members:
            raise KafkaError(
                ErrorCode.group_max_size_reached,
                f"The consumer group has reached its maximum capacity of {most} members.",
            )

    def get_or_create_member(
        self, update: ConsumerGroupUpdate, member_id: str
    ) -> ConsumerGroupMember:
        """A new one inherits no deadline from who had its id before. Those were kept until now, for
        a member whose end could not be written goes on to have its session."""
        member = update.members.get(member_id)
        if member is None:
            self.deadlines.cancel(member_id)
            member = ConsumerGroupMember(member_id)
        return member

    def replace(
        self, update: ConsumerGroupUpdate, old: ConsumerGroupMember, new: ConsumerGroupMember
    ) -> None:
        """A static member is back under another id, and takes the place of its old self.

        Its deadlines stay until the records are there; then nobody has the old id any more.
        """
        target = update.state.target_of(old.member_id)
        self.remove(update, [old.member_id])
        update.write(
            records.subscription(self.group_id, new),
            records.target(self.group_id, new.member_id, target),
            records.current(self.group_id, new),
        )

    def remove(self, update: ConsumerGroupUpdate, member_ids: Iterable[str]) -> None:
        for member_id in member_ids:
            update.write(
                records.current_gone(self.group_id, member_id),
                records.target_gone(self.group_id, member_id),
                records.subscription_gone(self.group_id, member_id),
            )

    def subscribe(
        self, update: ConsumerGroupUpdate, before: ConsumerGroupMember, after: ConsumerGroupMember
    ) -> bool:
        """Write down what a member says of itself; whether its topics by name are others."""
        if after == before and after.member_id in update.members:
            return False
        update.write(records.subscription(self.group_id, after))
        return after.topics != before.topics

    def update_regular_expression(
        self, update: ConsumerGroupUpdate, before: ConsumerGroupMember, after: ConsumerGroupMember
    ) -> tuple[bool, bool]:
        """Whether a member's expression is another one, and if so, whether it is known already
        what that matches. Raises INVALID_REGULAR_EXPRESSION.

        To be called before `subscribe`, as long as the draft counts the old one.
        """
        if before.regex == after.regex:
            return False, False
        counts = update.state.regex_counts()
        if before.regex and counts[before.regex] == 1:
            update.write(records.regex_gone(self.group_id, before.regex))
        if not after.regex:
            return True, True
        if not counts[after.regex]:
            check_expression(after.regex)
        return True, after.regex in update.state.regexes

    def regular_expressions_to_resolve(
        self, update: ConsumerGroupUpdate, now: EventTime
    ) -> tuple[str, ...]:
        """The expressions to match with the topics now, if it is time for that: where one is not
        resolved yet, where there are new topics, and now and then; at once if the clock was set back."""
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
        """Go on to the next epoch if something says so, or if the topics are not what they were."""
        if not bump and self._is_topic_metadata_current():
            return
        state = update.state
        found = self.environment.topics.metadata_hash(state.subscribed_topics())
        if bump or found != state.metadata_hash:
            update.write(records.epoch(self.group_id, state.epoch + 1, found))
        self._metadata_epoch = update.state.epoch
        self._metadata_version = self.environment.topics.version
        if state.has_partition_metadata:
            update.write(records.partition_metadata_gone(self.group_id))

    def _is_topic_metadata_current(self) -> bool:
        """Whether its topics are what they were when they were last looked at."""
        if self._metadata_epoch is None or self._metadata_epoch > self.state.epoch:
            return False
        if self.environment.is_changed(self.state.subscribed_topics(), self._metadata_version):
            return False
        self._metadata_version = self.environment.topics.version
        return True

    def update_target_assignment(self, update: ConsumerGroupUpdate, now: EventTime) -> None:
        """Assign anew where that is due."""
        state = update.state
        if not self.is_assignment_due(state, now):
            return
        assigned = self.environment.assignor(state.preferred_assignor())(self._spec(state))
        for member_id in state.members:
            target = assigned.get(member_id, {})
            if target != state.targets.get(member_id):
                update.write(records.target(self.group_id, member_id, target))
        update.write(records.target_epoch(self.group_id, state.epoch, now.wall_ms))

    def is_assignment_due(self, state: ReplayedConsumerGroup, now: EventTime) -> bool:
        """Whether the group's epoch is ahead, unless everyone was assigned anew a moment ago."""
        if state.target_epoch >= state.epoch:
            return False
        interval_ms = self.environment.settings(self.group_id).assignment_interval_ms
        last_ms = state.target_timestamp_ms
        return not (last_ms and 0 <= now.wall_ms - last_ms < interval_ms)

    def _spec(self, state: ReplayedConsumerGroup) -> GroupSpec:
        topics = self.environment.topics
        counts: dict[UUID, int] = {}
        members = {}
        known: dict[frozenset[str], tuple[UUID, ...]] = {}  # most members want the same
        for member in state.members.values():
            names = state.topics_of(member)
            wanted = known.get(names)
            if wanted is None:
                wanted = known[names] = tuple(sorted(topics.ids_of(names)))
                counts.update((topic, topics.partition_count(topic)) for topic in wanted)
            members[member.member_id] = MemberSpec(
                wanted,
                {
                    topic: _below(topics.partition_count(topic), partitions)
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
        """Let a member take its next step towards its target."""
        state = update.state
        before = state.members[member_id]
        if not subscription_changed and before.is_reconciled_to(state.target_epoch):
            return before
        after = reconcile(
            before,
            TargetAssignment(state.target_epoch, state.target_of(member_id)),
            owned=owned,
            subscribed=self.environment.topics.ids_of(state.topics_of(before)),
            subscribes_to_less=subscription_changed,
            owned_partitions=state.owned_partitions,
        )
        if after == before:
            return before
        update.write(records.current(self.group_id, after))
        # Those of the classic protocol have a time to join and one to sync instead.
        if after.state is MemberState.UNREVOKED_PARTITIONS and not after.is_classic:
            self._await_revocation(after, now)
        return after

    def fence(self, update: ConsumerGroupUpdate, member_ids: Iterable[str]) -> None:
        """Remove members, and what only they subscribed with, and go on to the next epoch."""
        gone = list(member_ids)
        self.remove(update, gone)
        left = update.state.regex_counts()
        for expression in [each for each in update.state.regexes if not left[each]]:
            update.write(records.regex_gone(self.group_id, expression))
        found = self.environment.topics.metadata_hash(update.state.subscribed_topics())
        update.write(records.epoch(self.group_id, update.state.epoch + 1, found))

    def apply_resolved_regular_expressions(
        self, update: ConsumerGroupUpdate, resolved: dict[str, ResolvedRegularExpression]
    ) -> None:
        """What expressions match: those that nobody uses any more are passed over."""
        counts = update.state.regex_counts()
        bump = False
        for expression, found in resolved.items():
            if not counts[expression]:
                continue
            held = update.state.regexes.get(expression)
            bump = bump or found.topics != (held.topics if held is not None else frozenset())
            update.write(records.regex(self.group_id, expression, found))
        found_hash = self.environment.topics.metadata_hash(update.state.subscribed_topics())
        if bump or found_hash != update.state.metadata_hash:
            update.write(records.epoch(self.group_id, update.state.epoch + 1, found_hash))
            self._metadata_epoch = update.state.epoch

    def tombstones(self, update: ConsumerGroupUpdate) -> None:
        """End everything that the log has of the group, in the order in which Kafka does."""
        members = list(update.members)
        regexes = list(update.state.regexes)
        update.write_all(records.current_gone(self.group_id, each) for each in members)
        update.write_all(records.target_gone(self.group_id, each) for each in members)
        update.write(records.target_epoch_gone(self.group_id))
        update.write_all(records.subscription_gone(self.group_id, each) for each in members)
        update.write_all(records.regex_gone(self.group_id, each) for each in regexes)
        update.write(records.partition_metadata_gone(self.group_id))
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
        """Members whose time is over, and what they are late with."""
        late: dict[str, MemberTimeout] = {}
        for member_id, wait, epoch in self.deadlines.pop_expired(now.monotonic_ms):
            member = self.state.members.get(member_id)
            if member is None or (wait is MemberTimeout.REVOCATION and not _revokes(member, epoch)):
                continue
            late.setdefault(member_id, wait)
        return late

    def retry_expiration(self, late: Mapping[str, MemberTimeout], at_ms: int) -> None:
        """What `expire_members` gave could not be written: it is to be taken again at that time."""
        for member_id, wait in late.items():
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
        """Whether a member may commit offsets of partitions (topic id, index) (KIP-1251).

        It may in its present epoch; in an older one, what it has had since then.
        """
        state = self.state
        if epoch < 0 and not state.members:
            return NO_ERROR
        is_nameless = epoch == -1 and member_id == NO_MEMBER_ID and instance_id is None
        if transactional and is_nameless:
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
        """Whether a member may ask for offsets; anyone may who does not claim to be one."""
        if member_id is None and epoch < 0:
            return NO_ERROR
        member = self.state.members.get(member_id or NO_MEMBER_ID)
        if member is None:
            return ErrorCode.unknown_member_id
        return NO_ERROR if epoch == member.epoch else _stale(member)


def _revokes(member: ConsumerGroupMember, epoch: int) -> bool:
    return member.state is MemberState.UNREVOKED_PARTITIONS and member.epoch == epoch


def _below(count: int, partitions: frozenset[int]) -> frozenset[int]:
    """Those that there are; nearly always all."""
    if max(partitions, default=-1) < count:
        return partitions
    return frozenset(each for each in partitions if each < count)


def _assigned_in(member: ConsumerGroupMember, topic: UUID, partition: int) -> int | None:
    """The epoch in which a member got what it has, or has yet to give up."""
    found = member.assigned.get(topic, {}).get(partition)
    return member.revoking.get(topic, {}).get(partition) if found is None else found


def _stale(member: ConsumerGroupMember) -> ErrorCode:
    return ErrorCode.illegal_generation if member.is_classic else ErrorCode.stale_member_epoch


def unknown_member(group_id: str, member_id: str) -> KafkaError:
    return KafkaError(
        ErrorCode.unknown_member_id, f"Member {member_id} is not a member of group {group_id}."
    )


def check_instance(
    member: ConsumerGroupMember | None, instance_id: str, member_id: str
) -> ConsumerGroupMember:
    """Raises UNKNOWN_MEMBER_ID, or FENCED_INSTANCE_ID where another has the name."""
    if member is None:
        raise KafkaError(ErrorCode.unknown_member_id, f"Instance id {instance_id} is unknown.")
    if member.member_id != member_id:
        raise KafkaError(
            ErrorCode.fenced_instance_id,
            f"Static member {member_id} with instance id {instance_id} was fenced by member "
            f"{member.member_id}.",
        )
    return member
