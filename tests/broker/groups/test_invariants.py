"""Random histories of a classic group, with invariants.

After every event:
- a group with members has a leader, which is a member;
- the generation does not decrease;
- every waiting request completes by a deadline or by a pending append, and has one response;
- the replay of the log gives the last generation that was written, and all offsets.
When only time passes, all requests have a response and the group is empty.
"""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from odradek.broker.groups.classic_group import ClassicGroup
from odradek.broker.groups.classic_group_states import ClassicGroupState
from odradek.broker.groups.config import GroupConfig
from odradek.broker.groups.messages import ClassicGroupMetadata, GroupKey, LeavingMember
from odradek.protocol.errors import ErrorCode
from tests.broker.groups.group_shard_driver import GROUP, Stage

NAMES = ("A", "B", "C", "D", "E")
STATIC = {"D": "d", "E": "e"}
PROTOCOLS = (("range",), ("range", "sticky"), ("sticky", "range"), ("sticky",))
CODES = (ErrorCode.coordinator_not_available, ErrorCode.not_coordinator)
names = st.sampled_from(NAMES)


class ClassicGroupHistory(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.generation = -1
        self.group: ClassicGroup | None = None

    @initialize(
        delay_ms=st.sampled_from([0, 3, 3000]),
        delayed_heartbeat_ms=st.sampled_from([0, 100, 20_000]),
        max_size=st.sampled_from([2, 3, 100]),
    )
    def begin(self, delay_ms: int, delayed_heartbeat_ms: int, max_size: int) -> None:
        config = GroupConfig(
            initial_rebalance_delay_ms=delay_ms,
            delayed_heartbeat_ms=delayed_heartbeat_ms,
            max_size=max_size,
        )
        self.stage = Stage(config)
        for name in NAMES:
            self.stage.client(
                name,
                instance_id=STATIC.get(name),
                rebalance_timeout_ms=20_000,
                version=3 if name == "C" else 9,
            )

    @rule(name=names)
    def join(self, name: str) -> None:
        self.stage.join(name)

    @rule(name=names, protocols=st.sampled_from(PROTOCOLS))
    def join_with(self, name: str, protocols: tuple[str, ...]) -> None:
        self.stage.join(name, protocols=protocols)

    @rule(name=names)
    def restart_member(self, name: str) -> None:
        self.stage.client(name).member_id = ""
        self.stage.join(name)

    @rule(name=names)
    def sync(self, name: str) -> None:
        members = self.stage.client(name).members
        self.stage.sync(name, **{each: each.encode() for each in members})

    @rule()
    def everyone_who_should_syncs(self) -> None:
        if self.stage.group is not None and self.stage.group.state is ClassicGroupState.COMPLETING:
            for name in NAMES:
                if (
                    self.stage.client(name).member_id
                    in self.stage.group.members.pending_sync_members
                ):
                    self.sync(name)

    @rule(name=names)
    def heartbeat(self, name: str) -> None:
        self.stage.heartbeat(name)

    @rule(name=names)
    def leave(self, name: str) -> None:
        self.stage.leaves(name)

    @rule(instances=st.lists(st.sampled_from(["d", "e", "x"]), min_size=1, max_size=3))
    def remove_by_instance(self, instances: list[str]) -> None:
        self.stage.leave(*(LeavingMember("", each) for each in instances))

    @rule(name=names, offset=st.integers(0, 100), partition=st.integers(0, 2))
    def commit(self, name: str, offset: int, partition: int) -> None:
        self.stage.commit(name, {("t", partition): offset})

    @rule(offset=st.integers(0, 100))
    def commit_from_outside(self, offset: int) -> None:
        self.stage.commit("admin", {("u", 0): offset}, member_id="", generation=-1)

    @rule(ms=st.sampled_from([1, 2, 2999, 5000, 9999, 10_000, 20_000, 300_000]))
    def time_passes(self, ms: int) -> None:
        self.stage.advance(ms)

    @rule(code=st.sampled_from(CODES))
    def next_append_fails(self, code: ErrorCode) -> None:
        self.stage.fail_with = code

    @rule()
    def replicas_fall_behind(self) -> None:
        self.stage.holding = True

    @rule(count=st.integers(1, 3))
    def replicas_move_on(self, count: int) -> None:
        self.stage.release(count)

    @rule()
    def replicas_catch_up(self) -> None:
        self.stage.holding = False
        self.stage.release()

    @rule()
    def replicas_give_up(self) -> None:
        self.stage.release(code=ErrorCode.coordinator_not_available)

    @rule()
    def broker_restarts(self) -> None:
        self.stage.requests = [each for each in self.stage.requests if not each.is_waiting]
        self.stage.restart()

    @invariant()
    def one_leader(self) -> None:
        group = getattr(self, "stage", None) and self.stage.group
        if not group:
            return
        members = group.members
        assert (members.leader_id in members.by_id) == bool(members.by_id)
        assert bool(members.by_id) or members.leader_id is None
        assert set(members.pending_sync_members) <= set(members.by_id)
        assert not set(members.pending_join_members) & set(members.by_id)
        assert sorted(members.static_members.values()) == sorted(
            each.member_id for each in members.by_id.values() if each.is_static
        )
        assert members.waiting_join_count == sum(
            each.waiting_join is not None for each in members.by_id.values()
        )
        if members.by_id:
            common = set.intersection(
                *({name for name, _ in each.protocols} for each in members.by_id.values())
            )
            assert common, "no protocol is supported by all members"
            assert {
                n for n, count in members.supported_protocols.items() if count == len(members)
            } == common

    @invariant()
    def state_matches_members(self) -> None:
        group = getattr(self, "stage", None) and self.stage.group
        if not group:
            return
        if group.state is ClassicGroupState.EMPTY:
            assert not group.members.by_id
        if group.state in (ClassicGroupState.COMPLETING, ClassicGroupState.STABLE):
            assert group.members.by_id
            assert group.protocol is not None

    @invariant()
    def generations_grow(self) -> None:
        group = getattr(self, "stage", None) and self.stage.group
        if group is None or group is not self.group:
            self.group, self.generation = group, -1  # deleted or loaded again
        if group is not None:
            assert group.generation >= self.generation
            self.generation = group.generation

    @invariant()
    def who_waits_will_be_responded(self) -> None:
        if not hasattr(self, "stage"):
            return
        group = self.stage.group
        in_group = set() if group is None else {id(each) for each in group.waiting_futures()}
        held = set()
        for completion in self.stage.held:
            held |= {id(future) for future, _ in getattr(completion, "replies", ())}
        for request in self.stage.requests:
            if request.is_waiting:
                assert id(request) in in_group | held, f"{request.who}'s {request.what} was lost"
        if group is not None and in_group and not self.stage.held:
            assert (
                group.rebalance.join_deadline_ms is not None
                or group.rebalance.sync_deadline_ms is not None
                or self.stage.now_ms < group.rebalance.heartbeat_delay_until_ms
            )
        if group is not None:
            deadlines = list(group.deadlines())
            assert not deadlines or (
                group.next_deadline_ms is not None and group.next_deadline_ms <= min(deadlines)
            ), "the next deadline is too late"

    @invariant()
    def the_log_has_it_all(self) -> None:
        if not hasattr(self, "stage"):
            return
        replayed = self.stage.replayed()
        assert replayed.offsets._groups == self.stage.shard.offsets._groups
        last = next(
            (each.value for each in reversed(self.stage.log) if isinstance(each.key, GroupKey)),
            None,
        )
        if isinstance(last, ClassicGroupMetadata):
            again = replayed.groups[GROUP]
            written = {each.member_id: each.assignment for each in last.members}
            assert again.to_metadata(written) == last
        group = self.stage.group
        if group is None or self.stage.held:
            return
        if group.state is ClassicGroupState.EMPTY and self.stage.log_is_behind:
            return  # an empty generation may not be written: after a replay the sessions of its members expire
        if group.state in (ClassicGroupState.STABLE, ClassicGroupState.EMPTY):
            again = replayed.groups[GROUP]
            assert again.state is group.state
            assert again.generation == group.generation
            assert again.protocol == group.protocol
            assert again.current_assignments() == group.current_assignments()
            assert again.members.static_members == group.members.static_members
            assert again.members.leader_id == group.members.leader_id
            assert again.subscriptions == group.subscriptions

    def teardown(self) -> None:
        if not hasattr(self, "stage"):
            return
        self.replicas_catch_up()
        self.stage.fail_with = None
        for _ in range(20):
            self.stage.advance(300_000)
        for request in self.stage.requests:
            assert not request.is_waiting, f"{request.who}'s {request.what} got no response"
        group = self.stage.group
        assert group is None or group.state is ClassicGroupState.EMPTY
        assert group is None or group.next_deadline_ms is None


ClassicGroupHistory.TestCase.settings = settings(
    max_examples=60, stateful_step_count=40, deadline=None, derandomize=True
)
TestHistories = ClassicGroupHistory.TestCase


@given(st.lists(st.tuples(names, st.sampled_from(["join", "sync", "heartbeat", "leave"]))))
@settings(max_examples=50, deadline=None, derandomize=True)
def test_same_history_gives_same_group(steps: list[tuple[str, str]]) -> None:
    stages = [Stage(GroupConfig(initial_rebalance_delay_ms=0)) for _ in range(2)]
    for stage in stages:
        for name, verb in steps:
            {
                "join": stage.joins,
                "sync": stage.sync,
                "heartbeat": stage.heartbeat,
                "leave": stage.leaves,
            }[verb](name)
    assert stages[0].story == stages[1].story
    assert stages[0].log == stages[1].log
