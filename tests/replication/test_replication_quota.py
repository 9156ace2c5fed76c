"""Replication quotas (KIP-73): the rate over recent samples, and the end of throttling."""

from __future__ import annotations

import pytest

from odradek.replication.replication_quota import ReplicationQuota, is_throttled


def quota(rate: float, **more: float) -> ReplicationQuota:
    return ReplicationQuota(lambda: rate, **more)  # type: ignore[arg-type]


def test_quota_without_traffic_is_not_exceeded() -> None:
    assert not quota(0).is_exceeded(100.0)
    assert quota(0).seconds_left(100.0) == 0.0


def test_burst_exceeds_quota_until_average_recovers() -> None:
    kept = quota(100)
    kept.record(500, 10.0)
    assert kept.is_exceeded(10.0)
    assert kept.seconds_left(10.0) == 5.0
    assert kept.is_exceeded(14.9)
    assert not kept.is_exceeded(15.0)


def test_short_window_counts_as_one_sample() -> None:
    kept = quota(100)
    kept.record(100, 10.0)
    assert not kept.is_exceeded(10.0)
    kept.record(1, 10.5)
    assert kept.is_exceeded(10.5)


def test_old_samples_are_dropped() -> None:
    kept = quota(10, samples=3)
    kept.record(1000, 0.0)
    kept.record(20, 1.5)
    assert kept.seconds_left(2.5) == pytest.approx(0.5)  # then the first sample expires
    assert not kept.is_exceeded(3.5)  # 20 bytes in 2 seconds
    kept.record(1, 3.5)
    assert kept.is_exceeded(3.5)


def test_zero_rate_waits_for_samples_to_expire() -> None:
    kept = quota(0, samples=2)
    kept.record(1, 0.0)
    assert kept.is_exceeded(1.9)
    assert kept.seconds_left(0.5) == 1.5
    assert not kept.is_exceeded(2.0)


def test_changed_rate_applies_immediately() -> None:
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
def test_is_throttled_matches_replica_list(listed: tuple[str, ...], expected: bool) -> None:
    assert is_throttled(listed, 3, 1) is expected
