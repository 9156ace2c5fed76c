"""A topic is deleted and made anew amid faults, and nothing of the old one is taken for the new one's."""

from __future__ import annotations

import pytest

from odradek.broker.replicas import Replicas
from odradek.testing.simulation.made_anew import MADE_ANEW, TopicMadeAnew
from odradek.testing.simulation.plan import Fault, Kind, Plan
from odradek.testing.simulation.run import Run, simulate
from tests.simulation import planted_bugs

make = TopicMadeAnew.make


def run_of(*faults: Fault) -> Run:
    return simulate(Plan(1, faults, writers=1, transactional=0))


@pytest.mark.parametrize("amount", [0.1, 0.9], ids=["back between", "back behind"])
@pytest.mark.parametrize("how", [0.1, 0.5, 0.9], ids=["killed", "left alone", "stopped"])
def test_a_topic_is_made_anew(how: float, amount: float) -> None:
    run = run_of(Fault(1.0, Kind.TOPIC_MADE_ANEW, 2, 1, seconds=0.3, amount=amount, how=how))
    assert [str(each) for each in run.anomalies] == []
    assert {kind for kind, _ in run.coverage} == {Kind.TOPIC_MADE_ANEW.value}
    told = [line.split(maxsplit=1)[1] for line in run.trace if MADE_ANEW in line]
    first, began, deleted, second = told
    assert (began, deleted) == (
        f"{MADE_ANEW}-client-0 has begun a transaction",
        f"{MADE_ANEW} is deleted",
    )
    assert first != second


def test_one_that_is_not_made_again_is_no_anomaly(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(TopicMadeAnew, "make", make_once)
    run = run_of(Fault(1.0, Kind.TOPIC_MADE_ANEW, 2, 1, seconds=0.3, amount=0.9, how=0.5))
    assert [str(each) for each in run.anomalies] == []
    assert any(f"{MADE_ANEW} is deleted" in line for line in run.trace)


async def make_once(self: TopicMadeAnew) -> bool:
    return not self.was_made and await make(self)


def test_what_another_topic_had_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """Who was down goes on with the log of the old topic, and leads the new one in the end."""
    planted_bugs.know_logs_by_their_names(monkeypatch)
    run = run_of(
        Fault(1.0, Kind.TOPIC_MADE_ANEW, 2, 1, seconds=0.1, amount=0.9, how=0.1),
        Fault(4.0, Kind.STOP, 1, 2, seconds=0.1, amount=0.5),
    )
    assert {"another topic's", "lost write"} <= {each.kind for each in run.anomalies}


def test_what_is_left_under_a_partitions_name_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """A replica was moved away while its node was down."""

    async def set_nothing_aside(self: Replicas) -> None:
        pass

    faults = (
        Fault(0.5, Kind.STOP, 2, 1, seconds=2.5, amount=0.5),
        Fault(1.0, Kind.REASSIGNMENT, 2, 1, seconds=0.1, amount=0.5),
    )
    assert run_of(*faults).is_sound
    monkeypatch.setattr(Replicas, "_set_aside_strays", set_nothing_aside)
    assert {each.kind for each in run_of(*faults).anomalies} == {"other directories"}
