"""Requests must succeed after recovery, and certain errors are never returned."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from odradek.protocol.errors import ErrorCode, KafkaError
from odradek.replication.partition.partition import Partition
from odradek.storage.errors import OutOfOrderSequence
from odradek.testing.simulation.plan import SimulationPlan
from odradek.testing.simulation.run import simulate
from odradek.testing.simulation.transactional_client import TransactionalClient
from odradek.testing.simulation.worker import load

FULL = 5
"""The log end offset from which the test refuses appends."""


def refuse(error: KafkaError, patch: pytest.MonkeyPatch) -> None:
    honest = Partition.append

    def append(self: Partition, *args: Any, **kwargs: Any) -> Any:
        if self.topic == "records" and self.log.end_offset >= FULL:
            raise error
        return honest(self, *args, **kwargs)

    patch.setattr(Partition, "append", append)


def test_error_without_a_fault_is_an_anomaly(monkeypatch: pytest.MonkeyPatch) -> None:
    refuse(OutOfOrderSequence("refused by the test", 0), monkeypatch)
    run = simulate(SimulationPlan(0, (), nodes=1, writers=1, transactional=0))
    assert {each.kind for each in run.anomalies} == {"fatal client error", "not acknowledged"}


def test_endless_retriable_error_after_recovery_is_an_anomaly(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    refuse(KafkaError(ErrorCode.not_enough_replicas, "refused by the test"), monkeypatch)
    run = simulate(SimulationPlan(0, (), nodes=1, writers=1, transactional=0))
    assert {each.kind for each in run.anomalies} == {"not acknowledged"}


def test_transaction_that_cannot_end_is_an_anomaly(monkeypatch: pytest.MonkeyPatch) -> None:
    async def end(client: TransactionalClient, *, commit: bool) -> None:
        raise KafkaError(ErrorCode.producer_fenced, "refused by the test")

    monkeypatch.setattr(TransactionalClient, "end", end)
    run = simulate(SimulationPlan(0, (), nodes=1, writers=0, transactional=1))
    assert {"fatal client error", "not acknowledged"} <= {each.kind for each in run.anomalies}


def test_partitioned_coordinator_may_return_transaction_abortable() -> None:
    """Seed 440: the former coordinator does not know the partition that its successor added."""
    run = simulate(load(Path(__file__).with_name("seed-440.json")))
    assert run.anomalies == []


def test_run_without_faults_acknowledges_everything() -> None:
    run = simulate(SimulationPlan(0, (), nodes=1, writers=1, transactional=1))
    assert run.is_sound
    assert 0 < run.responded_s < 1
    assert run.done["committed writes"] >= 12
    assert run.done["committed transactions"] >= 1
    assert run.done["reads along"] == run.done["reads in the end"] > 12
