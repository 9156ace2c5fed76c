"""Tests of AlterPartition requests of leaders: batches, one request at a time, and retries."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import trio

from odradek.broker.metrics.registry import Metrics
from odradek.broker.replicas.alter_partition_manager import (
    PARTITIONS_AT_ONCE,
    AlterPartitionManager,
)
from odradek.broker.replicas.isr_maintenance import IsrMaintenance
from odradek.protocol.errors import ErrorCode
from odradek.replication.controller.topics import NewTopic
from odradek.replication.partition.isr_state import CommittedIsr, IsrProposal, IsrState
from odradek.replication.partition.leader_state import AlterPartition
from tests.support.cluster_images import cluster, create, partition
from tests.support.controller_node import Channel, ControllerNode, FakeMetadata

Responses = dict[int, list[CommittedIsr | ErrorCode]]


class Leader:
    """Broker 1, which leads all partitions of topic t."""

    def __init__(self, partitions: int = 3) -> None:
        image, _ = create(
            cluster(3), NewTopic("t", assignments=dict.fromkeys(range(partitions), (1, 2, 3)))
        )
        self.metadata = FakeMetadata(image)
        self.channel = Channel(ControllerNode(self.metadata))
        self.topic_id = image.topics_by_name["t"].id
        self.epoch = image.brokers[1].epoch
        self.metrics = Metrics()
        self.manager = AlterPartitionManager(1, lambda: self.epoch, self.channel, self.metrics)
        self.responses: Responses = {}

    def propose(
        self, index: int, *members: int, partition_epoch: int = 0, claimed: int | None = None
    ) -> None:
        """Propose an ISR; `claimed` replaces its broker epochs."""
        brokers = self.metadata.image.brokers
        action = AlterPartition(
            IsrProposal(frozenset(members), 0, partition_epoch),
            tuple((each, brokers[each].epoch if claimed is None else claimed) for each in members),
        )
        responses = self.responses.setdefault(index, [])
        self.manager.propose(self.topic_id, index, action, responses.append)

    def isr(self, index: int) -> tuple[int, ...]:
        return partition(self.metadata.image, "t", index).isr


@pytest.mark.parametrize("version", [2, 3])
async def test_concurrent_proposals_share_a_request(
    autojump_clock: trio.testing.MockClock, nursery: trio.Nursery, version: int
) -> None:
    leader = Leader()
    leader.channel.version = version
    await nursery.start(leader.manager.run)
    for index in range(3):
        leader.propose(index, 1, 2)
    await trio.sleep(1)
    assert leader.channel.requested_apis == ["AlterPartition"]
    assert [leader.isr(index) for index in range(3)] == [(1, 2)] * 3
    assert leader.responses == {n: [CommittedIsr(frozenset({1, 2}), 0, 1)] for n in range(3)}


async def test_many_proposals_are_split_into_requests(
    autojump_clock: trio.testing.MockClock, nursery: trio.Nursery
) -> None:
    many = 2 * PARTITIONS_AT_ONCE + 1
    leader = Leader(many)
    await nursery.start(leader.manager.run)
    for index in range(many):
        leader.propose(index, 1, 2)
    await trio.sleep(1)
    assert leader.channel.requested_apis == ["AlterPartition"] * 3
    assert leader.responses == {n: [CommittedIsr(frozenset({1, 2}), 0, 1)] for n in range(many)}


async def test_restarted_replica_is_ineligible(
    autojump_clock: trio.testing.MockClock, nursery: trio.Nursery
) -> None:
    leader = Leader(2)
    await nursery.start(leader.manager.run)
    leader.propose(0, 1, 2, claimed=7)
    leader.propose(1, 1, 3)
    await trio.sleep(1)
    assert leader.responses[0] == [ErrorCode.ineligible_replica]
    assert leader.responses[1] == [CommittedIsr(frozenset({1, 3}), 0, 1)]
    assert leader.isr(0) == (1, 2, 3)


def test_isr_changes_are_counted() -> None:
    """IsrExpandsPerSec, IsrShrinksPerSec and FailedIsrUpdatesPerSec count by the result of the proposal."""
    leader = Leader(1)
    for grown in (-1, -2, 1, None):
        leader.manager.isr_updated(grown)
    counted = ("IsrShrinksPerSec", "IsrExpandsPerSec", "FailedIsrUpdatesPerSec")
    assert [leader.metrics.meter(name).count for name in counted] == [2, 1, 1]


async def test_failed_request_is_retried_with_newest_proposals(
    autojump_clock: trio.testing.MockClock, nursery: trio.Nursery
) -> None:
    leader = Leader(2)
    leader.channel.is_cut = True
    await nursery.start(leader.manager.run)
    leader.propose(0, 1, 2)
    leader.propose(1, 1, 2)
    await trio.sleep(1)
    leader.propose(1, 1, 3)  # of the same partition, while the first request is pending
    leader.channel.is_cut = False
    await trio.sleep(31)
    assert leader.responses[0] == [CommittedIsr(frozenset({1, 2}), 0, 1)]
    assert leader.responses[1] == [CommittedIsr(frozenset({1, 3}), 0, 1)]
    assert leader.channel.requested_apis == ["AlterPartition"] * 2


async def test_stale_broker_epoch_is_retried(
    autojump_clock: trio.testing.MockClock,
    nursery: trio.Nursery,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """The broker registers again, and the proposals are sent with the new broker epoch."""
    leader = Leader(1)
    now, leader.epoch = leader.epoch, leader.epoch - 1
    await nursery.start(leader.manager.run)
    leader.propose(0, 1, 2)
    await trio.sleep(1)
    assert leader.responses[0] == []
    assert 10 < len(leader.channel.requested_apis) < 30, "with a pause after each"
    assert len(caplog.records) == 1, "logged once"
    leader.epoch = now
    await trio.sleep(1)
    assert leader.responses[0] == [CommittedIsr(frozenset({1, 2}), 0, 1)]


async def test_rejected_proposal_that_is_repeated_does_not_spin(
    autojump_clock: trio.testing.MockClock, nursery: trio.Nursery
) -> None:
    leader = Leader(1)
    await nursery.start(leader.manager.run)
    members = tuple((each, leader.metadata.image.brokers[each].epoch) for each in (1, 2))
    action = AlterPartition(IsrProposal(frozenset({1, 2}), 5, 0), members)

    def again(response: CommittedIsr | ErrorCode) -> None:
        assert response is ErrorCode.not_controller, "an epoch from the future"
        leader.manager.propose(leader.topic_id, 0, action, again)

    leader.manager.propose(leader.topic_id, 0, action, again)
    await trio.sleep(1)
    assert 10 < len(leader.channel.requested_apis) < 30


async def test_unexpected_error_of_a_partition_or_request_does_not_affect_other_partitions(
    autojump_clock: trio.testing.MockClock,
    nursery: trio.Nursery,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    leader = Leader()
    await nursery.start(leader.manager.run)

    def planted(*args: object) -> None:
        raise RuntimeError("planted")

    with monkeypatch.context() as patched:
        patched.setattr(leader.manager, "_request", planted)
        leader.propose(0, 1, 2)
        await trio.sleep(0.1)
    assert caplog.text.count("RuntimeError: planted") == 1
    action = AlterPartition(IsrProposal(frozenset({1, 2}), 0, 0), ((1, leader.epoch),))
    leader.manager.propose(leader.topic_id, 1, action, planted)
    leader.propose(2, 1, 2)
    await trio.sleep(2)
    assert leader.responses[0] == leader.responses[2] == [CommittedIsr(frozenset({1, 2}), 0, 1)]


@pytest.mark.parametrize("is_committed", [True, False])
async def test_proposal_whose_response_failed_unexpectedly_is_sent_again_until_it_is_resolved(
    autojump_clock: trio.testing.MockClock,
    nursery: trio.Nursery,
    caplog: pytest.LogCaptureFixture,
    is_committed: bool,
) -> None:
    """The leader keeps the proposal pending until a response or an image resolves it; then it can propose again."""
    leader = Leader(1)
    isr = IsrState(frozenset({1, 2, 3}), 0, 0)
    proposal = isr.propose(frozenset({1, 2}))
    responses: list[CommittedIsr | ErrorCode] = []

    def respond(response: CommittedIsr | ErrorCode) -> None:
        responses.append(response)
        if len(responses) == 1:
            raise RuntimeError("planted")
        isr.responded(proposal, response)

    epochs = [leader.metadata.image.brokers[each].epoch - (not is_committed) for each in (1, 2)]
    action = AlterPartition(proposal, ((1, epochs[0]), (2, epochs[1])))
    await nursery.start(leader.manager.run)
    leader.manager.propose(leader.topic_id, 0, action, respond)
    await trio.sleep(2)
    assert len(responses) == 2, "sent again once"
    assert caplog.text.count("RuntimeError: planted") == 1
    assert "the proposed ISR is sent again" in caplog.text
    image = partition(leader.metadata.image, "t", 0)
    assert image.isr == ((1, 2) if is_committed else (1, 2, 3))
    isr.adopt(frozenset(image.isr), image.leader_epoch, image.partition_epoch)
    assert isr.propose(frozenset({1})) is isr.proposal


async def test_unexpected_error_of_isr_maintenance_fails_only_its_partition(
    autojump_clock: trio.testing.MockClock,
    nursery: trio.Nursery,
    caplog: pytest.LogCaptureFixture,
) -> None:
    ticks: list[str] = []

    class Role:
        def __init__(self, topic: str) -> None:
            self.topic = topic

        def tick(self) -> None:
            ticks.append(self.topic)
            if self.topic == "bad":
                raise RuntimeError("planted")

    partitions: list[Any] = [
        SimpleNamespace(topic=name, index=0, leader_role=Role(name)) for name in ("bad", "good")
    ]
    leader = Leader()
    maintenance = IsrMaintenance(
        lambda: partitions,
        leader.metadata.image.brokers.get,
        lambda: leader.manager,
        lambda log, error: None,
        lag_max_ms=1000,
    )
    await nursery.start(maintenance.run)
    maintenance.cluster_context()
    await trio.sleep(2)
    assert ticks.count("good") == ticks.count("bad") >= 3
    assert caplog.text.count("Unexpected error in ISR maintenance (bad-0)") == 1
