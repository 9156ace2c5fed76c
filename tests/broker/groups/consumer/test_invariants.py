"""Random histories of a consumer group, with invariants.

After every event: no partition has two owners, in the group or among clients that reconcile; epochs
do not decrease; every request has one response; the group equals the replay of its log. When clients
only send heartbeats, the group becomes stable, and one member owns every subscribed partition.
"""

from __future__ import annotations

from hypothesis import assume, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from odradek.broker.groups.config import ConsumerGroupConfig
from odradek.broker.groups.consumer.consumer_group import ConsumerGroup
from odradek.broker.groups.consumer.group_state import ConsumerGroupState
from odradek.broker.groups.consumer.member import MemberState
from odradek.protocol.errors import ErrorCode
from tests.broker.groups.consumer.consumer_group_driver import Consumer, ConsumerStage
from tests.broker.groups.group_shard_driver import GROUP

NAMES = ("A", "B", "C", "D")
STATIC = {"D": "d"}
SUBSCRIPTIONS = (("t",), ("t", "u"), ("u",), ())
names = st.sampled_from(NAMES)


class ConsumerGroupHistory(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.epoch = 0

    @initialize(interval_ms=st.sampled_from([0, 1000]), assignor=st.sampled_from(["range", None]))
    def begin(self, interval_ms: int, assignor: str | None) -> None:
        self.stage = ConsumerStage(settings=ConsumerGroupConfig(assignment_interval_ms=interval_ms))
        self.stage.set_topic("t", 4)
        self.stage.set_topic("u", 3)
        for name in NAMES:
            client = self.stage.consumer(name)
            client.instance_id = STATIC.get(name)
            client.rebalance_timeout_ms = 20_000
            client.assignor = assignor

    def client(self, name: str) -> Consumer:
        return self.stage.consumer(name)

    def is_member(self, name: str) -> bool:
        """Whether the client is a member and knows it."""
        if self.client(name).epoch <= 0:
            return False
        group = self.stage.shard.groups.get(GROUP)
        if not isinstance(group, ConsumerGroup):
            return False
        member = group.state.members.get(self.client(name).member_id)
        return member is not None and not member.is_temporarily_away

    @rule(name=names, topics=st.sampled_from(SUBSCRIPTIONS))
    def join(self, name: str, topics: tuple[str, ...]) -> None:
        assume(not self.is_member(name))
        self.client(name).member_id = ""
        self.stage.join_new(name, topics=topics, regex=None)

    @rule(name=names, regex=st.sampled_from(["t", ".*", "[uv]"]))
    def join_by_expression(self, name: str, regex: str) -> None:
        assume(not self.is_member(name))
        self.client(name).member_id = ""
        self.stage.join_new(name, topics=(), regex=regex)

    @rule(name=names)
    def join_again_with_nothing(self, name: str) -> None:
        assume(self.is_member(name) and name not in STATIC)
        self.stage.join_new(name)

    @rule(name=names, reconciles=st.booleans())
    def heartbeat(self, name: str, reconciles: bool) -> None:
        assume(self.is_member(name))
        self.stage.beat(name, reconciles=reconciles)

    @rule(name=names, topics=st.sampled_from(SUBSCRIPTIONS))
    def subscribe(self, name: str, topics: tuple[str, ...]) -> None:
        assume(self.is_member(name))
        self.stage.subscribe(name, *topics)

    @rule(name=names, for_now=st.booleans())
    def leave(self, name: str, for_now: bool) -> None:
        assume(self.is_member(name))
        self.stage.leave_new(name, -2 if for_now and name in STATIC else -1)
        self.stop(name)

    def stop(self, name: str) -> None:
        self.client(name).owned, self.client(name).to_reconcile = {}, None

    @rule(topic=st.sampled_from("tuv"), partitions=st.integers(1, 6))
    def topic_grows(self, topic: str, partitions: int) -> None:
        count = max(partitions, self.stage.topics.get(topic, 0))
        self.stage.set_topic(topic, count)

    @rule(topic=st.sampled_from("tuv"))
    def topic_goes(self, topic: str) -> None:
        assume(topic in self.stage.topics)
        self.stage.set_topic(topic, 0)
        for name in NAMES:  # clients do not report deleted topics
            for owned in (self.client(name).owned, self.client(name).to_reconcile or {}):
                owned.pop(topic, None)
            (self.client(name).reported or {}).pop(topic, None)

    @rule(ms=st.sampled_from([1, 999, 10_001, 20_000, 45_000]))
    def time_passes(self, ms: int) -> None:
        self.stage.advance(ms)
        self.stage.check()
        for name in NAMES:
            if not self.is_member(name):  # a client that is fenced stops reading
                self.stop(name)

    @rule(code=st.sampled_from([ErrorCode.coordinator_not_available, ErrorCode.not_coordinator]))
    def next_append_fails(self, code: ErrorCode) -> None:
        self.stage.fail_with = code

    @rule()
    def replicas_fall_behind(self) -> None:
        self.stage.holding = True

    @rule()
    def replicas_catch_up(self) -> None:
        self.stage.holding = False
        self.stage.release()

    @rule()
    def broker_restarts(self) -> None:
        self.stage.requests = [each for each in self.stage.requests if not each.is_waiting]
        self.stage.resolves.clear()
        self.stage.restart()

    @invariant()
    def epochs_grow(self) -> None:
        group = getattr(self, "stage", None) and self.stage.shard.groups.get(GROUP)
        if isinstance(group, ConsumerGroup):
            assert group.state.epoch >= self.epoch or group.state.epoch == 1
            assert group.state.target_epoch <= group.state.epoch
            assert all(each.epoch <= group.state.epoch for each in group.state.members.values())
            self.epoch = group.state.epoch

    def compaction_changes_nothing(self) -> None:
        group = self.stage.shard.groups.get(GROUP)
        for tombstones in (True, False):
            kept = self.stage.compacted(tombstones=tombstones).groups.get(GROUP)
            if not isinstance(group, ConsumerGroup) or not isinstance(kept, ConsumerGroup):
                assert kept is group is None or self.stage.log_is_behind
                continue
            for name in ("epoch", "metadata_hash", "target_epoch", "static", "targets", "regexes"):
                assert getattr(kept.state, name) == getattr(group.state, name), name
            assert kept.state.members == group.state.members
            for member in group.state.members.values():
                for partition in member.holdings():
                    assert kept.state.owner(*partition) == member.member_id

    def teardown(self) -> None:
        if not hasattr(self, "stage"):
            return
        self.compaction_changes_nothing()
        stage = self.stage
        stage.fail_with, stage.holding = None, False
        stage.release()
        # Longer than a session, so that members whose JoinGroup response was lost expire
        for _ in range(20):
            for name in NAMES:
                if self.is_member(name):
                    stage.beat(name)
            stage.advance(3000)
        assert not [each for each in stage.requests if each.is_waiting]
        group = stage.shard.groups.get(GROUP)
        if not isinstance(group, ConsumerGroup) or any(
            each.is_temporarily_away for each in group.state.members.values()
        ):
            return
        if group.is_empty:
            return
        assert group.state.state is ConsumerGroupState.STABLE, stage.where_it_stands()
        wanted = {
            (stage.topic_ids[name], index)
            for name in group.state.subscribed_topics() & stage.topics.keys()
            for index in range(stage.topics[name])
        }
        held = [
            each
            for member in group.state.members.values()
            for each in member.holdings()
            if each[0] in {stage.topic_ids[name] for name in stage.topics}
        ]
        assert sorted(held) == sorted(wanted)


ConsumerGroupHistory.TestCase.settings = settings(
    max_examples=60, stateful_step_count=40, deadline=None
)
TestHistories = ConsumerGroupHistory.TestCase


def test_member_whose_leave_failed_expires_with_its_session() -> None:
    """A member stays, and keeps its session, if its removal could not be written."""
    stage = ConsumerStage(settings=ConsumerGroupConfig(assignment_interval_ms=0))
    stage.set_topic("t", 2)
    stage.join_new("A", topics=("t",))
    stage.join_new("B", topics=("t",))
    stage.fail_with = ErrorCode.coordinator_not_available
    left = stage.leave_new("A")
    assert [each.error for each in left.responses] == [ErrorCode.coordinator_not_available]
    stage.fail_with = None
    assert len(stage.consumer_group.state.members) == 2
    for _ in range(20):
        stage.beat("B")
        stage.advance(3000)
    assert len(stage.consumer_group.state.members) == 1
    assert stage.consumer_group.state.state is ConsumerGroupState.STABLE


def test_revocation_timeout_continues_after_failed_append() -> None:
    stage = ConsumerStage(settings=ConsumerGroupConfig(assignment_interval_ms=0))
    stage.set_topic("t", 2)
    stage.join_new("A", topics=("t",))
    stage.beat("A")
    stage.join_new("B", topics=("t",))
    stage.beat("A", reconciles=False)
    (before,) = [
        each
        for each in stage.consumer_group.state.members.values()
        if each.state is MemberState.UNREVOKED_PARTITIONS
    ]
    stage.fail_with = ErrorCode.coordinator_not_available
    stage.beat("A")  # it revoked them, and the report is lost
    stage.fail_with = None
    assert stage.consumer_group.state.members[before.member_id] == before
    for _ in range(before.rebalance_timeout_ms // 3000 + 2):
        for name in "AB":
            if stage.client(name).member_id in stage.consumer_group.state.members:
                stage.beat(name)
        stage.advance(3000)
    assert [each for each in stage.consumer_group.state.members if each != before.member_id]
    assert before.member_id not in stage.consumer_group.state.members
