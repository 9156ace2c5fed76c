"""A consumer group: its state as the log has it, and in memory who has to be heard of until when.

What requests lead to is in `heartbeats` (members of the new protocol), `classic_members` (those of the
old one that are in the group) and `migration`; here is what they share: subscriptions that change, the
group's epoch, the target assignment, reconciling one member, removing some. Each step works on a
`Draft`, whose records then go into the log together.

Three epochs tell how far everyone is: the group's grows with everything that calls for another
assignment, the target's is the group's when it was made, a member's is that of the target it has
reached.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from uuid import UUID

from odradek.broker.groups.actions import NO_ERROR, NO_MEMBER_ID, Actions, Now, Record
from odradek.broker.groups.assignors.spec import GroupSpec, MemberSpec
from odradek.broker.groups.consumer import records
from odradek.broker.groups.consumer.deadlines import Deadlines, Wait
from odradek.broker.groups.consumer.environment import Environment
from odradek.broker.groups.consumer.expressions import check_expression
from odradek.broker.groups.consumer.members import Member, MemberState, Partitions
from odradek.broker.groups.consumer.reconciliation import Target, reconcile
from odradek.broker.groups.consumer.records import ResolvedRegex
from odradek.broker.groups.consumer.state import Draft, GroupState, State
from odradek.broker.groups.expiry import ExpiryRule
from odradek.broker.groups.subscription import CONSUMER_PROTOCOL
from odradek.protocol.errors import ErrorCode, KafkaError

REGEX_REFRESH_INTERVAL_MS_MIN = 10_000
NEW_PROTOCOL_COMMIT_SINCE = 9
"""OffsetCommit: the first version that has room for a member's epoch."""


class ConsumerGroup:
    """See the module."""

    kind = "consumer"
    protocol_type = CONSUMER_PROTOCOL
    is_simple = False

    def __init__(self, group_id: str, environment: Environment) -> None:
        self.group_id = group_id
        self.environment = environment
        self.state = GroupState(group_id)
        self.deadlines = Deadlines()
        self.is_resolving = False
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
        return self.state.state is State.EMPTY

    @property
    def wake_ms(self) -> int | None:
        return self.deadlines.wake_ms

    def is_subscribed_to(self, topic: str) -> bool:
        return topic in self.state.subscribed_topics()

    def expiry_rule(self) -> ExpiryRule:
        return ExpiryRule(since_ms=None)

    def check_offset_delete(self) -> ErrorCode:
        return NO_ERROR

    def check_delete(self) -> ErrorCode:
        return NO_ERROR if self.is_empty else ErrorCode.non_empty_group

    def gone(self) -> tuple[Record, ...]:
        """The records that end it."""
        draft = Draft(self.state)
        self.tombstones(draft)
        return tuple(draft.records)

    # Life

    def end(self, code: ErrorCode, now: Now) -> Actions:
        """The group is no more, or not this node's any more. Nobody ever waits in it."""
        self.deadlines.clear()
        return Actions()

    def began(self, now: Now) -> None:
        """Its state was loaded: every member gets a whole session to show itself."""
        session_ms = self.environment.settings(self.group_id).session_timeout_ms
        for member in self.state.members.values():
            self.deadlines.set(member.member_id, Wait.SESSION, now.monotonic_ms + session_ms)
            if member.state is MemberState.UNREVOKED_PARTITIONS:
                self._await_revocation(member, now)

    # Steps

    def check_room(self, draft: Draft, member_id: str) -> None:
        """Raises GROUP_MAX_SIZE_REACHED."""
        most = self.environment.config.consumer_max_size
        if len(draft.members) >= most and member_id not in draft.members:
            raise KafkaError(
                ErrorCode.group_max_size_reached,
                f"The consumer group has reached its maximum capacity of {most} members.",
            )

    def member_or_new(self, draft: Draft, member_id: str) -> Member:
        """A new one inherits no deadline from who had its id before. Those were kept until now, for
        a member whose end could not be written goes on to have its session."""
        member = draft.members.get(member_id)
        if member is None:
            self.deadlines.cancel(member_id)
            member = Member(member_id)
        return member

    def replace(self, draft: Draft, old: Member, new: Member) -> None:
        """A static member is back under another id, and takes the place of its old self.

        Its deadlines stay until the records are there; then nobody has the old id any more.
        """
        target = draft.state.target_of(old.member_id)
        self.remove(draft, [old.member_id])
        draft.write(
            records.subscription(self.group_id, new),
            records.target(self.group_id, new.member_id, target),
            records.current(self.group_id, new),
        )

    def remove(self, draft: Draft, member_ids: Iterable[str]) -> None:
        for member_id in member_ids:
            draft.write(
                records.current_gone(self.group_id, member_id),
                records.target_gone(self.group_id, member_id),
                records.subscription_gone(self.group_id, member_id),
            )

    def subscribe(self, draft: Draft, before: Member, after: Member) -> bool:
        """Write down what a member says of itself; whether its topics by name are others."""
        if after == before and after.member_id in draft.members:
            return False
        draft.write(records.subscription(self.group_id, after))
        return after.topics != before.topics

    def change_expression(self, draft: Draft, before: Member, after: Member) -> tuple[bool, bool]:
        """Whether a member's expression is another one, and if so, whether it is known already
        what that matches. Raises INVALID_REGULAR_EXPRESSION.

        To be called before `subscribe`, as long as the draft counts the old one.
        """
        if before.regex == after.regex:
            return False, False
        counts = draft.state.regex_counts()
        if before.regex and counts[before.regex] == 1:
            draft.write(records.regex_gone(self.group_id, before.regex))
        if not after.regex:
            return True, True
        if not counts[after.regex]:
            check_expression(after.regex)
        return True, after.regex in draft.state.regexes

    def expressions_to_resolve(self, draft: Draft, now: Now) -> tuple[str, ...]:
        """The expressions to match with the topics now, if it is time for that: where one is not
        resolved yet, where there are new topics, and now and then; at once if the clock was set back."""
        state = draft.state
        wanted = tuple(sorted(state.regex_counts()))
        if not wanted or self.is_resolving:
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

    def update_epoch(self, draft: Draft, *, bump: bool) -> None:
        """Go on to the next epoch if something says so, or if the topics are not what they were."""
        if not bump and self._knows_topics():
            return
        state = draft.state
        found = self.environment.topics.hash_of(state.subscribed_topics())
        if bump or found != state.metadata_hash:
            draft.write(records.epoch(self.group_id, state.epoch + 1, found))
        self._metadata_epoch = draft.state.epoch
        self._metadata_version = self.environment.topics.version
        if state.has_partition_metadata:
            draft.write(records.partition_metadata_gone(self.group_id))

    def _knows_topics(self) -> bool:
        """Whether its topics are what they were when they were last looked at."""
        if self._metadata_epoch is None or self._metadata_epoch > self.state.epoch:
            return False
        if self.environment.is_changed(self.state.subscribed_topics(), self._metadata_version):
            return False
        self._metadata_version = self.environment.topics.version
        return True

    def update_target(self, draft: Draft, now: Now) -> None:
        """Assign anew where that is due."""
        state = draft.state
        if not self.is_target_due(state, now):
            return
        assigned = self.environment.assignor(state.preferred_assignor())(self._spec(state))
        for member_id in state.members:
            target = assigned.get(member_id, {})
            if target != state.targets.get(member_id):
                draft.write(records.target(self.group_id, member_id, target))
        draft.write(records.target_epoch(self.group_id, state.epoch, now.wall_ms))

    def is_target_due(self, state: GroupState, now: Now) -> bool:
        """Whether the group's epoch is ahead, unless everyone was assigned anew a moment ago."""
        if state.target_epoch >= state.epoch:
            return False
        interval_ms = self.environment.settings(self.group_id).assignment_interval_ms
        last_ms = state.target_timestamp_ms
        return not (last_ms and 0 <= now.wall_ms - last_ms < interval_ms)

    def _spec(self, state: GroupState) -> GroupSpec:
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
        draft: Draft,
        member_id: str,
        owned: Partitions | None,
        now: Now,
        *,
        subscription_changed: bool,
    ) -> Member:
        """Let a member take its next step towards its target."""
        state = draft.state
        before = state.members[member_id]
        if not subscription_changed and before.is_reconciled_to(state.target_epoch):
            return before
        after = reconcile(
            before,
            Target(state.target_epoch, state.target_of(member_id)),
            owned=owned,
            subscribed=self.environment.topics.ids_of(state.topics_of(before)),
            subscribes_to_less=subscription_changed,
            owned_of=state.owned_of,
        )
        if after == before:
            return before
        draft.write(records.current(self.group_id, after))
        # Those of the classic protocol have a time to join and one to sync instead.
        if after.state is MemberState.UNREVOKED_PARTITIONS and not after.is_classic:
            self._await_revocation(after, now)
        return after

    def fence(self, draft: Draft, member_ids: Iterable[str]) -> None:
        """Remove members, and what only they subscribed with, and go on to the next epoch."""
        gone = list(member_ids)
        self.remove(draft, gone)
        left = draft.state.regex_counts()
        for expression in [each for each in draft.state.regexes if not left[each]]:
            draft.write(records.regex_gone(self.group_id, expression))
        found = self.environment.topics.hash_of(draft.state.subscribed_topics())
        draft.write(records.epoch(self.group_id, draft.state.epoch + 1, found))

    def take_resolved(self, draft: Draft, resolved: dict[str, ResolvedRegex]) -> None:
        """What expressions match: those that nobody uses any more are passed over."""
        counts = draft.state.regex_counts()
        bump = False
        for expression, found in resolved.items():
            if not counts[expression]:
                continue
            held = draft.state.regexes.get(expression)
            bump = bump or found.topics != (held.topics if held is not None else frozenset())
            draft.write(records.regex(self.group_id, expression, found))
        found_hash = self.environment.topics.hash_of(draft.state.subscribed_topics())
        if bump or found_hash != draft.state.metadata_hash:
            draft.write(records.epoch(self.group_id, draft.state.epoch + 1, found_hash))
            self._metadata_epoch = draft.state.epoch

    def tombstones(self, draft: Draft) -> None:
        """End everything that the log has of the group, in the order in which Kafka does."""
        members = list(draft.members)
        regexes = list(draft.state.regexes)
        draft.write_all(records.current_gone(self.group_id, each) for each in members)
        draft.write_all(records.target_gone(self.group_id, each) for each in members)
        draft.write(records.target_epoch_gone(self.group_id))
        draft.write_all(records.subscription_gone(self.group_id, each) for each in members)
        draft.write_all(records.regex_gone(self.group_id, each) for each in regexes)
        draft.write(records.partition_metadata_gone(self.group_id))
        draft.write(records.epoch_gone(self.group_id))

    # Sessions

    def extend_session(self, member_id: str, now: Now, timeout_ms: int | None = None) -> None:
        if timeout_ms is None:
            timeout_ms = self.environment.settings(self.group_id).session_timeout_ms
        self.deadlines.set(member_id, Wait.SESSION, now.monotonic_ms + timeout_ms)

    def _await_revocation(self, member: Member, now: Now) -> None:
        at_ms = now.monotonic_ms + member.rebalance_timeout_ms
        self.deadlines.set(member.member_id, Wait.REVOCATION, at_ms, member.epoch)

    def take_late(self, now: Now) -> dict[str, Wait]:
        """Members whose time is over, and what they are late with."""
        late: dict[str, Wait] = {}
        for member_id, wait, epoch in self.deadlines.take_due(now.monotonic_ms):
            member = self.state.members.get(member_id)
            if member is None or (wait is Wait.REVOCATION and not _revokes(member, epoch)):
                continue
            late.setdefault(member_id, wait)
        return late

    def still_late(self, late: Mapping[str, Wait], at_ms: int) -> None:
        """What `take_late` gave could not be written: it is to be taken again at that time."""
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


def _revokes(member: Member, epoch: int) -> bool:
    return member.state is MemberState.UNREVOKED_PARTITIONS and member.epoch == epoch


def _below(count: int, partitions: frozenset[int]) -> frozenset[int]:
    """Those that there are; nearly always all."""
    if max(partitions, default=-1) < count:
        return partitions
    return frozenset(each for each in partitions if each < count)


def _assigned_in(member: Member, topic: UUID, partition: int) -> int | None:
    """The epoch in which a member got what it has, or has yet to give up."""
    found = member.assigned.get(topic, {}).get(partition)
    return member.revoking.get(topic, {}).get(partition) if found is None else found


def _stale(member: Member) -> ErrorCode:
    return ErrorCode.illegal_generation if member.is_classic else ErrorCode.stale_member_epoch


def unknown_member(group_id: str, member_id: str) -> KafkaError:
    return KafkaError(
        ErrorCode.unknown_member_id, f"Member {member_id} is not a member of group {group_id}."
    )


def check_instance(member: Member | None, instance_id: str, member_id: str) -> Member:
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
