"""Random histories of four brokers under a controller: only eligible leaders, no lost records.

A model of the brokers has the running ones, the log end offset of each replica, and the fetches that the leader has
received. A crash loses the log of a broker, and a clean shutdown loses nothing. Records are committed by the whole ISR
while it has at least min.insync.replicas members. The invariants hold after each record, not only after each operation,
because a controller may fail over in between: every replica that may lead without an unclean election has all
committed records (KIP-966).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from odradek.protocol.errors import ErrorCode, KafkaError
from odradek.replication.controller.alter_partition import ProposedIsr, alter_partitions
from odradek.replication.controller.broker_heartbeat_manager import BrokerHeartbeatManager
from odradek.replication.controller.broker_heartbeats import (
    BrokerHeartbeat,
    fence_stale_broker,
    process_broker_heartbeat,
    register_broker_session,
)
from odradek.replication.controller.broker_registration import unregister_broker
from odradek.replication.controller.controller_result import ControllerResult
from odradek.replication.controller.features import (
    DEFAULT_FEATURES,
    ELIGIBLE_LEADER_REPLICAS,
    METADATA_VERSION,
    elr_enabled,
)
from odradek.replication.controller.image import MetadataImage, PartitionImage
from odradek.replication.controller.image_builder import apply_records
from odradek.replication.controller.image_records import snapshot_records
from odradek.replication.controller.leader_and_isr_updates import MIN_ISR, effective_min_isr
from odradek.replication.controller.reassignments import Reassignment, alter_reassignments
from odradek.replication.controller.topics import NewTopic
from tests.replication.controller.history_checks import check_epochs, rebuilt
from tests.support.cluster_images import cluster, create, registration

BROKERS = st.integers(1, 4)
TIMEOUT_MS = 100
TOPICS = {
    "a": NewTopic("a", assignments={0: (1, 2, 3)}, configs={MIN_ISR: "2"}),
    "b": NewTopic("b", assignments={0: (4, 2)}, configs={MIN_ISR: "1"}),
}
NAMES = st.sampled_from(sorted(TOPICS))


@dataclass
class Process:
    """State of a broker process, which the controller may not know."""

    epoch: int | None  # None before the registration and after it was unregistered
    running: bool = True
    clean_epoch: int = -1  # broker epoch in the clean shutdown file


@dataclass
class Data:
    """Committed records of a partition, and the log end offset of each replica."""

    committed: int = 0
    has: dict[int, int] = field(default_factory=dict)
    # Broker epochs of fetches that the leader received
    caught_up: dict[int, int] = field(default_factory=dict)
    leader_epoch: int = 0  # of that leader


class BrokerHistory(RuleBasedStateMachine):
    features: ClassVar[Mapping[str, int]] = DEFAULT_FEATURES

    def __init__(self) -> None:
        super().__init__()
        self.image, _ = create(cluster(4, features=self.features), *TOPICS.values())
        self.log = list(snapshot_records(self.image))
        self.now_ms = 0
        self.incarnations = 0
        self.sessions = BrokerHeartbeatManager(self.image, 0, timeout_ms=TIMEOUT_MS)
        self.processes = {each.id: Process(each.epoch) for each in self.image.brokers.values()}
        self.data = {name: Data() for name in TOPICS}
        for name in TOPICS:
            self.all_follow(name)
            self.write(name, 1)

    def decide(self, operation: Callable[[], ControllerResult[Any]]) -> Any:
        """Run an operation and commit its records one by one. Returns its result or error code."""
        try:
            plan = operation()
        except KafkaError as error:
            return error.code
        at_once = apply_records(
            self.image, plan.records, offset=self.image.offset + len(plan.records)
        ).image
        for record in plan.records:
            before = self.image
            self.image = apply_records(before, [record], offset=before.offset + 1).image
            check_epochs(before, self.image)
            self.check_partitions()
            self.note_unclean_elections(before)
        self.log += plan.records
        assert self.image == at_once
        return plan.result

    def note_unclean_elections(self, before: MetadataImage) -> None:
        """Records that an unclean leader does not have are lost."""
        for name, now in self.partitions():
            was = before.partition(name, 0)
            assert was is not None
            if now.leader_epoch > was.leader_epoch and now.leader_recovery_state == 1:
                data = self.data[name]
                data.committed = min(data.committed, data.has.get(now.leader, 0))

    # Brokers

    def serving(self, broker: int) -> bool:
        """Whether the running incarnation is the registered one."""
        process, known = self.processes[broker], self.image.brokers.get(broker)
        return process.running and known is not None and process.epoch == known.epoch

    def leading(self, name: str) -> tuple[Data, PartitionImage] | None:
        """Return the partition if its leader is running. Fetches that an earlier leader received are forgotten."""
        now, data = self.partition(name), self.data[name]
        if now.leader < 0 or not self.serving(now.leader):
            return None
        if data.leader_epoch != now.leader_epoch:
            data.leader_epoch, data.caught_up = now.leader_epoch, {}
        return data, now

    @rule(broker=BROKERS)
    def crash(self, broker: int) -> None:
        self.processes[broker] = Process(None, running=False)
        for data in self.data.values():
            data.has.pop(broker, None)

    @rule(broker=BROKERS)
    def stop(self, broker: int) -> None:
        process = self.processes[broker]
        if process.running and process.epoch is not None:
            self.processes[broker] = Process(None, running=False, clean_epoch=process.epoch)

    @rule(broker=BROKERS)
    def start(self, broker: int) -> None:
        process = self.processes[broker]
        self.incarnations += not process.running
        who = registration(
            broker, incarnation=self.incarnations, previous_epoch=process.clean_epoch
        )
        if process.running and process.epoch is not None:
            return
        response = self.decide(
            lambda: register_broker_session(self.image, self.sessions, who, now_ms=self.now_ms)
        )
        if not isinstance(response, ErrorCode):
            self.processes[broker] = Process(response)

    @rule(
        broker=BROKERS,
        wants=st.sampled_from([(False, False)] * 3 + [(False, True), (True, False), (True, True)]),
        lag=st.sampled_from([0, 0, 0, 1, 3]),
    )
    def heartbeat(self, broker: int, wants: tuple[bool, bool], lag: int) -> None:
        process = self.processes[broker]
        if not process.running or process.epoch is None:
            return
        beat = BrokerHeartbeat(broker, process.epoch, self.image.offset - lag, *wants)
        response = self.decide(
            lambda: process_broker_heartbeat(self.image, self.sessions, beat, now_ms=self.now_ms)
        )
        if isinstance(response, ErrorCode):
            assert response is ErrorCode.stale_broker_epoch
            self.stop(broker)
            return
        known = self.image.brokers[broker]
        assert response.is_fenced == known.fenced
        if response.should_shut_down:
            assert all(partition.leader != broker for _, partition in self.partitions())
            self.stop(broker)

    @rule(broker=BROKERS, clean=st.booleans(), noticed=st.booleans())
    def restart(self, broker: int, clean: bool, noticed: bool) -> None:
        """Restart a broker after its session has expired, or sooner if the session need not expire.

        Leaders that did not notice the restart propose an ISR from earlier fetches (KIP-903).
        """
        if clean:
            self.heartbeat(broker, (False, True), 0)
            self.stop(broker)
        else:
            self.crash(broker)
        self.start(broker)
        self.pass_time(TIMEOUT_MS, silent=set())
        self.start(broker)
        self.heartbeat(broker, (False, False), 0)
        for name in () if noticed else TOPICS:
            self.alter_isr(name, set(self.processes), 0)

    @rule(name=NAMES)
    def all_follow(self, name: str) -> None:
        """All running replicas fetch, and the leader proposes them for the ISR."""
        for broker in self.processes:
            self.fetch(name, broker)
        self.alter_isr(name, set(self.processes), 0)

    @rule(name=NAMES, count=st.integers(1, 3))
    def write(self, name: str, count: int) -> None:
        """Write records, which are committed if all ISR members are running and are at least min.insync.replicas."""
        found = self.leading(name)
        if found is None:
            return
        data, now = found
        enough = effective_min_isr(self.image, self.image.topics_by_name[name])
        if len(now.isr) < enough or not all(map(self.serving, now.isr)):
            return
        data.committed = data.has.get(now.leader, 0) + count
        data.has.update(dict.fromkeys(now.isr, data.committed))
        data.caught_up = {each: at for each, at in data.caught_up.items() if each in now.isr}

    @rule(name=NAMES, broker=BROKERS)
    def fetch(self, name: str, broker: int) -> None:
        found = self.leading(name)
        if found is None or not self.serving(broker):
            return
        data, now = found
        epoch = self.processes[broker].epoch
        if broker in now.replicas and epoch is not None:
            data.has[broker] = data.has.get(now.leader, 0)
            data.caught_up[broker] = epoch

    @rule(name=NAMES, chosen=st.sets(BROKERS), behind=st.sampled_from([0, 0, 0, 1]))
    def alter_isr(self, name: str, chosen: set[int], behind: int) -> None:
        """Propose some of the replicas that are in the ISR or have caught up, maybe with stale epochs."""
        found = self.leading(name)
        if found is None:
            return
        data, now = found
        known = {each: self.epoch_of(each) for each in now.isr if each in self.image.brokers}
        known |= data.caught_up
        chosen = {now.leader, *(chosen & set(known) & set(now.replicas))}
        proposed = ProposedIsr(
            self.image.topics_by_name[name].id,
            0,
            now.leader_epoch,
            now.partition_epoch - behind,
            [(each, known[each]) for each in chosen],
        )
        epoch = self.epoch_of(now.leader)
        responses = self.decide(lambda: alter_partitions(self.image, now.leader, epoch, [proposed]))
        after = self.partition(name)
        if behind:
            assert responses[0].error_code is ErrorCode.invalid_update_version
            assert after == now
        elif responses[0].error_code is ErrorCode.none:
            assert responses[0].state == after
            assert set(after.isr) <= chosen
        else:
            refused = responses[0].error_code
            assert refused in (ErrorCode.new_leader_elected, ErrorCode.ineligible_replica)

    def epoch_of(self, broker: int) -> int:
        return self.image.brokers[broker].epoch

    # Time, controllers and reassignments

    @rule(passed_ms=st.sampled_from([10, 40, TIMEOUT_MS]), silent=st.sets(BROKERS))
    def pass_time(self, passed_ms: int, silent: set[int]) -> None:
        """Advance time. Running brokers send a heartbeat first, except the `silent` ones."""
        self.now_ms += passed_ms
        for broker in set(self.processes) - silent:
            self.heartbeat(broker, (False, False), 0)
        deadline = self.sessions.next_deadline_ms
        while deadline is not None and deadline <= self.now_ms:
            self.decide(lambda: fence_stale_broker(self.image, self.sessions, now_ms=self.now_ms))
            deadline = self.sessions.next_deadline_ms
        for broker in self.image.brokers.values():
            assert broker.fenced or self.sessions.is_alive(broker, self.now_ms)

    @rule()
    def another_controller(self) -> None:
        self.sessions = BrokerHeartbeatManager(self.image, self.now_ms, timeout_ms=TIMEOUT_MS)

    @rule(broker=BROKERS)
    def unregister(self, broker: int) -> None:
        self.decide(lambda: unregister_broker(self.image, broker))

    @rule(name=NAMES, replicas=st.none() | st.lists(BROKERS, min_size=1, max_size=3, unique=True))
    def reassign(self, name: str, replicas: list[int] | None) -> None:
        self.decide(lambda: alter_reassignments(self.image, [Reassignment(name, 0, replicas)]))

    # Invariants

    def partition(self, name: str) -> PartitionImage:
        found = self.image.partition(name, 0)
        assert found is not None
        return found

    def partitions(self) -> Iterator[tuple[str, PartitionImage]]:
        for name in TOPICS:
            yield name, self.partition(name)

    def check_partitions(self) -> None:
        """Check the invariants of every state that is written to the log."""
        image = self.image
        for _, now in self.partitions():
            assert set(now.isr) | set(now.elr) <= set(now.replicas)
            assert not set(now.isr) & set(now.elr)
            if now.leader >= 0:
                assert now.leader in now.isr
                assert not image.brokers[now.leader].fenced
            elif elr_enabled(image.features):
                assert now.isr == ()
                assert now.elr or len(now.last_known_elr) == 1
            else:
                assert now.isr, "some replica is known to have all committed records"

    @invariant()
    def only_active_brokers_lead_or_are_in_isr(self) -> None:
        self.check_partitions()
        for _, now in self.partitions():
            assert now.leader < 0 or self.image.is_active(now.leader)
            last_one = len(now.isr) == 1 and not elr_enabled(self.image.features)
            assert last_one or all(map(self.image.is_active, now.isr))

    @invariant()
    def eligible_replicas_have_committed_records(self) -> None:
        if not elr_enabled(self.image.features):
            return  # the last ISR member stays in the ISR even after it lost its log
        for name, now in self.partitions():
            data = self.data[name]
            for broker in filter(self.serving, {*now.isr, *now.elr}):
                assert data.has.get(broker, 0) >= data.committed

    def teardown(self) -> None:
        """After all brokers have restarted, every partition with an intact replica has a leader."""
        for broker in self.processes:
            self.crash(broker) if not self.processes[broker].running else self.stop(broker)
        self.pass_time(TIMEOUT_MS, set())
        for broker in self.processes:
            self.start(broker)
            self.heartbeat(broker, (False, False), 0)
        assert rebuilt(self.image) == self.image
        replayed = apply_records(MetadataImage(), self.log, offset=self.image.offset).image
        assert replace(replayed, epoch=self.image.epoch) == self.image
        for _, now in self.partitions():
            led_by = (
                [*now.elr, *now.last_known_elr] if elr_enabled(self.image.features) else now.isr
            )
            assert now.leader >= 0 or not set(led_by) & set(self.image.brokers)


class WithoutElr(BrokerHistory):
    features: ClassVar[Mapping[str, int]] = {**DEFAULT_FEATURES, ELIGIBLE_LEADER_REPLICAS: 0}


class Before36(BrokerHistory):
    features: ClassVar[Mapping[str, int]] = {METADATA_VERSION: 11}


SETTINGS = settings(max_examples=30, stateful_step_count=40, deadline=None)
TestBrokerHistory = BrokerHistory.TestCase
TestBrokerHistory.settings = settings(SETTINGS, max_examples=150)
TestWithoutElr = WithoutElr.TestCase
TestWithoutElr.settings = SETTINGS
TestBefore36 = Before36.TestCase
TestBefore36.settings = SETTINGS
