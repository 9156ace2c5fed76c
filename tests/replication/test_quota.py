"""Replication quotas (KIP-73): a rate over the last samples, and when it is kept again."""

from __future__ import annotations

import pytest

from odradek.replication.quota import ReplicationQuota, is_throttled


def quota(rate: float, **more: float) -> ReplicationQuota:
    return ReplicationQuota(lambda: rate, **more)  # type: ignore[arg-type]


def test_nothing_sent_exceeds_nothing() -> None:
    assert not quota(0).is_exceeded(100.0)
    assert quota(0).seconds_left(100.0) == 0.0


def test_a_burst_is_borrowed_and_then_waited_for() -> None:
    kept = quota(100)
    kept.record(500, 10.0)
    assert kept.is_exceeded(10.0)
    assert kept.seconds_left(10.0) == 5.0
    assert kept.is_exceeded(14.9)
    assert not kept.is_exceeded(15.0)


def test_less_than_a_second_counts_as_one() -> None:
    kept = quota(100)
    kept.record(100, 10.0)
    assert not kept.is_exceeded(10.0)
    kept.record(1, 10.5)
    assert kept.is_exceeded(10.5)


def test_samples_that_are_too_old_are_forgotten() -> None:
    kept = quota(10, samples=3)
    kept.record(1000, 0.0)
    kept.record(20, 1.5)
    assert kept.seconds_left(2.5) == pytest.approx(0.5)  # then the first expires
    assert not kept.is_exceeded(3.5)  # 20 bytes in 2 seconds
    kept.record(1, 3.5)
    assert kept.is_exceeded(3.5)


def test_a_rate_of_nothing_lets_go_of_what_is_forgotten() -> None:
    kept = quota(0, samples=2)
    kept.record(1, 0.0)
    assert kept.is_exceeded(1.9)
    assert kept.seconds_left(0.5) == 1.5
    assert not kept.is_exceeded(2.0)


def test_a_changed_rate_counts_at_once() -> None:
    rates = [1.0]
    kept = ReplicationQuota(lambda: rates[0])
    kept.record(50, 0.0)
    assert kept.is_exceeded(0.0)
    rates[0] = 50.0
    assert not kept.is_exceeded(0.0)


@pytest.mark.parametrize(
    ("listed", "expected"),
    [((), False), (("*",), True), (("3:1", "4:2"), True), (("4:1", "3:2", "13:1"), False)],
)
def test_who_is_throttled(listed: tuple[str, ...], expected: bool) -> None:
    assert is_throttled(listed, 3, 1) is expected
