"""The checker of client histories finds each kind of anomaly, and none in a correct history."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from odradek.testing.simulation.history import (
    ClientHistory,
    ClientTransaction,
    ReadRecord,
    SentRecord,
    TransactionOutcome,
    find_anomalies,
)


def sound() -> ClientHistory:
    """Return a history of two committed transactions, one aborted, and one with unknown outcome."""
    return ClientHistory(
        transactions=[
            ClientTransaction(
                "a",
                0,
                [SentRecord(0, b"a0", 0), SentRecord(1, b"a1", 0)],
                10,
                TransactionOutcome.COMMITTED,
            ),
            ClientTransaction("a", 1, [SentRecord(0, b"a2", 2)], 11, TransactionOutcome.ABORTED),
            ClientTransaction("a", 2, [SentRecord(0, b"a3", 4)], 12, TransactionOutcome.COMMITTED),
            ClientTransaction(
                "b",
                0,
                [SentRecord(0, b"b0", -1), SentRecord(1, b"b1", -1)],
                None,
                TransactionOutcome.UNKNOWN,
            ),
        ],
        polled={"r": [ReadRecord(0, 0, b"a0"), ReadRecord(1, 0, b"a1"), ReadRecord(0, 4, b"a3")]},
        final=[ReadRecord(0, 0, b"a0"), ReadRecord(0, 4, b"a3"), ReadRecord(1, 0, b"a1")],
        group_offsets={"a": 12},
    )


def test_correct_history_has_no_anomalies() -> None:
    assert find_anomalies(sound()) == []


def lose(history: ClientHistory) -> None:
    history.final.remove(ReadRecord(1, 0, b"a1"))
    history.polled["r"].remove(ReadRecord(1, 0, b"a1"))


def keep_aborted(history: ClientHistory) -> None:
    history.final.append(ReadRecord(0, 2, b"a2"))
    history.polled["r"].insert(2, ReadRecord(0, 2, b"a2"))


def poll_aborted(history: ClientHistory) -> None:
    history.polled["r"].insert(2, ReadRecord(0, 2, b"a2"))


def tear(history: ClientHistory) -> None:
    history.final.append(ReadRecord(0, 6, b"b0"))
    history.polled["r"].append(ReadRecord(0, 6, b"b0"))


def double(history: ClientHistory) -> None:
    history.final.append(ReadRecord(0, 7, b"a3"))
    history.polled["r"].append(ReadRecord(0, 7, b"a3"))


def poll_another_value(history: ClientHistory) -> None:
    history.polled["r"][0] = ReadRecord(0, 0, b"a3")


def acknowledge_elsewhere(history: ClientHistory) -> None:
    history.transactions[2].sent[0].offset = 5


def send_backwards(history: ClientHistory) -> None:
    history.transactions[1].sent[0].offset = 0


def poll_twice(history: ClientHistory) -> None:
    history.polled["r"].append(ReadRecord(0, 4, b"a3"))


def skip(history: ClientHistory) -> None:
    history.polled["r"].remove(ReadRecord(0, 0, b"a0"))


def miss_the_end(history: ClientHistory) -> None:
    history.polled["r"].remove(ReadRecord(0, 4, b"a3"))


def hang(history: ClientHistory) -> None:
    history.open_partitions = [1]


def lose_the_groups_offset(history: ClientHistory) -> None:
    history.group_offsets["a"] = 10


def keep_the_aborted_offset(history: ClientHistory) -> None:
    history.group_offsets["a"] = 11


@pytest.mark.parametrize(
    ("spoil", "kind"),
    [
        (lose, "lost write"),
        (keep_aborted, "aborted read"),
        (poll_aborted, "aborted read"),
        (tear, "partial transaction"),
        (double, "duplicate"),
        (poll_another_value, "inconsistent offset"),
        (acknowledge_elsewhere, "inconsistent offset"),
        (send_backwards, "non-monotonic send"),
        (poll_twice, "non-monotonic poll"),
        (skip, "skipped by a poll"),
        (miss_the_end, "unread"),
        (hang, "hanging transaction"),
        (lose_the_groups_offset, "wrong committed offset"),
        (keep_the_aborted_offset, "wrong committed offset"),
    ],
)
def test_each_kind_of_anomaly_is_found(spoil: Callable[[ClientHistory], None], kind: str) -> None:
    history = sound()
    spoil(history)
    assert kind in {anomaly.kind for anomaly in find_anomalies(history)}


def test_transaction_with_unknown_outcome_may_be_committed() -> None:
    history = sound()
    for seen in (ReadRecord(0, 6, b"b0"), ReadRecord(1, 2, b"b1")):
        history.final.append(seen)
        history.polled["r"].append(seen)
    assert find_anomalies(history) == []
