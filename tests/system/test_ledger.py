"""The ledger detects lost, duplicated, moved, unknown and reordered records, and partial transactions."""

from __future__ import annotations

import pytest

from tests.system.ledger import Ledger, Outcome


def ledger(*outcomes: Outcome, size: int = 1) -> Ledger:
    made = Ledger("p")
    for outcome in outcomes:
        transaction = made.begin()
        transaction.values = [made.next_value() for _ in range(size)]
        transaction.outcome = outcome
    return made


OK = Outcome.COMMITTED


@pytest.mark.parametrize(
    ("rows", "complaint"),
    [
        ([(0, b"p:1"), (1, b"p:2")], None),
        ([(0, b"p:1")], "p:2 was acknowledged, and is lost"),
        ([(0, b"p:1"), (1, b"p:2"), (2, b"p:2")], "p:2 is there 2 times: [(0, 1), (0, 2)]"),
        ([(0, b"p:2"), (1, b"p:1")], "p:1 at 1 of 0 comes after 2"),
        ([(0, b"p:1"), (1, b"p:2"), (2, b"p:3")], "p:3 was never sent"),
    ],
)
def test_ledger_finds_lost_duplicated_and_reordered_records(
    rows: list[tuple[int, bytes]], complaint: str | None
) -> None:
    assert ledger(OK, OK).anomalies({0: rows}) == ([complaint] if complaint else [])


def test_ledger_finds_records_at_wrong_offset() -> None:
    kept = ledger(OK)
    kept.places[b"p:1"] = (0, 7)
    assert kept.anomalies({0: [(7, b"p:1")]}) == []
    assert kept.anomalies({0: [(8, b"p:1")]}) == [
        "p:1 was acknowledged at (0, 7), and is at (0, 8)"
    ]


def test_ledger_finds_partial_and_aborted_transactions() -> None:
    aborted, unknown = ledger(Outcome.ABORTED, size=2), ledger(Outcome.UNKNOWN, size=2)
    assert aborted.anomalies({0: []}) == []
    assert aborted.anomalies({0: [(0, b"p:1")]}) == ["p:1 was aborted, and is read"]
    assert unknown.anomalies({0: []}) == []
    assert unknown.anomalies({0: [(0, b"p:1")], 1: [(0, b"p:2")]}) == []
    assert unknown.anomalies({0: [(0, b"p:1")]}) == ["of [b'p:1', b'p:2'] only [b'p:1'] is there"]


def test_ledger_accepts_losses_of_unclean_election() -> None:
    assert ledger(OK).anomalies({0: []}, lost_by_choice=frozenset([b"p:1"])) == []
