"""A topic is deleted and recreated during faults; records of the deleted topic never appear in the new one."""

from __future__ import annotations

from pathlib import Path

import pytest

from odradek.broker.replicas.replica_manager import ReplicaManager
from odradek.broker.transactions.marker_channel_manager import (
    NO_LEADER,
    TransactionMarkerChannelManager,
)
from odradek.client.admin import delete_topics
from odradek.client.metadata import Cluster
from odradek.protocol.topics import TopicPartition
from odradek.testing.simulation.plan import Fault, FaultKind, SimulationPlan
from odradek.testing.simulation.run import SimulationRun, simulate
from odradek.testing.simulation.topic_recreation import RECREATED_TOPIC, TopicRecreation
from odradek.testing.simulation.worker import load
from tests.simulation import planted_bugs


def run_of(*faults: Fault) -> SimulationRun:
    return simulate(SimulationPlan(1, faults, writers=1, transactional=0))


@pytest.mark.parametrize("amount", [0.1, 0.5], ids=["back between", "back behind"])
@pytest.mark.parametrize(
    "how", [0.1, 0.4, 0.6, 0.9], ids=["killed", "running", "partitioned", "stopped"]
)
def test_recreated_topic_has_only_its_own_records(how: float, amount: float) -> None:
    run = run_of(
        Fault(1.0, FaultKind.TOPIC_RECREATED, 2, 1, seconds=0.3, amount=amount, variant=how)
    )
    assert [str(each) for each in run.anomalies] == []
    assert {kind for kind, _ in run.coverage} == {FaultKind.TOPIC_RECREATED.value}
    traced = [line.split(maxsplit=1)[1] for line in run.trace if RECREATED_TOPIC in line]
    first, began, deleted, second = traced
    assert (began, deleted) == (
        f"{RECREATED_TOPIC}-client-0 has begun a transaction",
        f"{RECREATED_TOPIC} is deleted",
    )
    assert first != second


def test_two_deleted_topics_of_one_name_leave_logs_in_two_directories() -> None:
    """Seed 51059: the node restarts after the second deletion; no third topic is created."""
    run = simulate(load(Path(__file__).with_name("seed-51059.json")))
    assert run.anomalies == []


def test_deleted_topic_that_is_not_recreated_is_no_anomaly() -> None:
    run = run_of(Fault(1.0, FaultKind.TOPIC_RECREATED, 2, 1, seconds=0.3, amount=0.9, variant=0.4))
    assert [str(each) for each in run.anomalies] == []
    assert run.coverage.total() == 1
    traced = [line.split(maxsplit=1)[1] for line in run.trace if RECREATED_TOPIC in line]
    assert traced[-1] == f"{RECREATED_TOPIC} is deleted"


@pytest.mark.parametrize("amount", [0.5, 0.9], ids=["recreated", "not recreated"])
def test_transaction_waiting_for_a_deleted_topic_is_found(
    monkeypatch: pytest.MonkeyPatch, amount: float
) -> None:
    """If the topic is recreated, the new topic receives the marker."""
    honest = TransactionMarkerChannelManager._leader

    def leader(self: TransactionMarkerChannelManager, partition: TopicPartition) -> int | None:
        found = honest(self, partition)
        return NO_LEADER if found is None else found

    monkeypatch.setattr(TransactionMarkerChannelManager, "_leader", leader)
    run = run_of(
        Fault(1.0, FaultKind.TOPIC_RECREATED, 2, 1, seconds=0.3, amount=amount, variant=0.4)
    )
    expected = {"hanging transaction"} if amount > 0.75 else set()
    assert {each.kind for each in run.anomalies} == expected


def test_deletion_without_effect_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    async def delete(self: TopicRecreation, cluster: Cluster) -> None:
        assert self._id is not None
        self._deleted.add(self._id)

    monkeypatch.setattr(TopicRecreation, "_delete", delete)
    run = run_of(Fault(1.0, FaultKind.TOPIC_RECREATED, 2, 1, seconds=0.3, amount=0.9, variant=0.4))
    assert {each.kind for each in run.anomalies} == {"not deleted"}


def test_lost_topic_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    async def delete(self: TopicRecreation, cluster: Cluster) -> None:
        await delete_topics(cluster, [RECREATED_TOPIC])

    monkeypatch.setattr(TopicRecreation, "_delete", delete)
    run = run_of(Fault(1.0, FaultKind.TOPIC_RECREATED, 2, 1, seconds=0.3, amount=0.9, variant=0.4))
    assert {each.kind for each in run.anomalies} == {"topic lost"}


def test_records_of_the_deleted_topic_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """The restarted node uses the log of the deleted topic, and finally leads the new topic."""
    planted_bugs.ignore_topic_ids_of_logs(monkeypatch)
    run = run_of(
        Fault(1.0, FaultKind.TOPIC_RECREATED, 2, 1, seconds=0.1, amount=0.5, variant=0.1),
        Fault(4.0, FaultKind.STOP, 1, 2, seconds=0.1, amount=0.5),
    )
    assert {"records of another topic", "lost write"} <= {each.kind for each in run.anomalies}


def test_stray_log_that_was_not_renamed_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """A replica was reassigned while its node was down."""

    async def rename_nothing(self: ReplicaManager) -> None:
        pass

    faults = (
        Fault(0.5, FaultKind.STOP, 2, 1, seconds=2.5, amount=0.5),
        Fault(1.0, FaultKind.REASSIGNMENT, 2, 1, seconds=0.1, amount=0.5),
    )
    assert run_of(*faults).is_sound
    monkeypatch.setattr(ReplicaManager, "_rename_stray_logs", rename_nothing)
    assert {each.kind for each in run_of(*faults).anomalies} == {"unexpected log directories"}
