"""Tests of client quotas: which quota applies, the measured rate, and the throttle time (KIP-13, KIP-546)."""

from __future__ import annotations

import pytest

from odradek.broker.quotas.client_quotas import (
    IDLE_MS,
    WAIT_MS_MAX,
    ClientQuotas,
    ExpiringSensors,
    Rate,
)
from odradek.replication.controller.client_quotas import (
    CONSUMER_BYTE_RATE,
    CONTROLLER_MUTATION_RATE,
    PRODUCER_BYTE_RATE,
    REQUEST_PERCENTAGE,
)

ALL: dict[tuple[tuple[str, str | None], ...], float] = {
    (("client-id", "c"), ("user", "u")): 1,
    (("client-id", None), ("user", "u")): 2,
    (("user", "u"),): 3,
    (("client-id", "c"), ("user", None)): 4,
    (("client-id", None), ("user", None)): 5,
    (("user", None),): 6,
    (("client-id", "c"),): 7,
    (("client-id", None),): 8,
}
"""Entities of client c of user u, in order of precedence."""


def quotas(limits: dict[tuple[tuple[str, str | None], ...], float]) -> ClientQuotas:
    made = ClientQuotas(samples=11, window_ms=1000)
    made.update({entity: {PRODUCER_BYTE_RATE: limit} for entity, limit in limits.items()})
    return made


def limit(made: ClientQuotas, user: str = "u", client_id: str = "c") -> float | None:
    burst = made.burst(PRODUCER_BYTE_RATE, user, client_id)
    return None if burst is None else burst / 10


def test_most_specific_quota_applies() -> None:
    left = dict(ALL)
    for entity, expected in ALL.items():
        assert limit(quotas(left)) == expected
        del left[entity]
    assert limit(quotas(left)) is None


def test_default_quotas_apply_to_other_clients() -> None:
    made = quotas(ALL)
    assert limit(made, "u", "other") == 2
    assert limit(made, "other", "c") == 4
    assert limit(made, "other", "other") == 5
    assert limit(made, "u", "") == 3, "without a client id there is only the user"
    assert limit(made, "other", "") == 6
    addresses = ClientQuotas(samples=11, window_ms=1000)
    addresses.update({(("ip", "10.0.0.1"),): {"connection_creation_rate": 1.0}})
    assert not addresses


def test_quota_is_shared_within_entity_and_default_is_not() -> None:
    made = quotas({(("user", None),): 100.0})
    assert made.record(PRODUCER_BYTE_RATE, "a", "one", 1000, 0) == 0
    assert made.record(PRODUCER_BYTE_RATE, "a", "two", 1000, 0) > 0
    assert made.record(PRODUCER_BYTE_RATE, "b", "one", 1000, 0) == 0
    assert made.record(CONSUMER_BYTE_RATE, "a", "one", 10**9, 0) == 0, "that has no quota"


def test_throttle_time_brings_the_average_to_the_quota() -> None:
    """With 1,000 bytes per second over 10 s, twice the quota is throttled for another 10 s. Samples older than
    all windows do not count."""
    made = quotas({(("user", "u"),): 1000.0})
    assert made.record(PRODUCER_BYTE_RATE, "u", "c", 10_000, 0) == 0
    assert made.record(PRODUCER_BYTE_RATE, "u", "c", 10_000, 0) == 10_000
    assert made.record(PRODUCER_BYTE_RATE, "u", "c", 100, 10_999) > 0
    assert made.record(PRODUCER_BYTE_RATE, "u", "c", 100, 11_000) == 0


def test_throttled_client_gets_its_quota_over_a_minute() -> None:
    made = quotas({(("user", "u"),): 1000.0})
    now_ms = sent = 0
    while now_ms < 60_000:
        sent += 700
        now_ms += 5 + made.record(PRODUCER_BYTE_RATE, "u", "c", 700, now_ms)
    assert 60_000 <= sent <= 72_000


def test_request_quota_throttles_at_most_one_window() -> None:
    made = ClientQuotas(samples=11, window_ms=1000)
    made.update({(("user", "u"),): {REQUEST_PERCENTAGE: 1.0}})
    assert made.limits(REQUEST_PERCENTAGE)
    assert not made.limits(PRODUCER_BYTE_RATE)
    assert made.record(REQUEST_PERCENTAGE, "u", "c", 500.0, 0) == 1000


def test_changed_quota_keeps_recorded_usage() -> None:
    made = quotas({(("user", "u"),): 1000.0})
    made.record(PRODUCER_BYTE_RATE, "u", "c", 10_000, 0)
    made.update({(("user", "u"),): {PRODUCER_BYTE_RATE: 500.0}})
    assert made.record(PRODUCER_BYTE_RATE, "u", "c", 0, 0) == 10_000
    made.update({})
    assert not made
    assert made.record(PRODUCER_BYTE_RATE, "u", "c", 10**9, 0) == 0


@pytest.mark.parametrize(
    ("events", "now_ms", "rate", "window_ms"),
    [
        ([], 0, 0, 10_000),
        ([(0, 100)], 0, 10, 10_000),
        ([(0, 100)], 500, 100 / 10.5, 10_500),
        ([(0, 100)], 1000, 10, 10_000),
        ([(0, 100), (500, 100), (1000, 100)], 1500, 300 / 10.5, 10_500),
        ([(0, 100), (10_900, 100)], 10_900, 200 / 10.9, 10_900),
        ([(0, 100), (10_900, 100)], 11_000, 100 / 10.1, 10_100),
        ([(0, 100), (900, 100), (10_900, 100)], 11_899, 300 / 11.899, 11_899),
        ([(0, 100), (900, 100), (10_900, 100)], 11_900, 10, 10_000),
        ([(0, 100)], 60_000, 0, 10_000),
    ],
)
def test_rate_covers_all_windows_but_the_current_one(
    events: list[tuple[int, float]], now_ms: int, rate: float, window_ms: float
) -> None:
    measured = Rate(11, 1000)
    for at_ms, value in events:
        measured.record(value, at_ms)
    assert measured.measure(now_ms) == (pytest.approx(rate), window_ms)


def test_idle_client_state_is_removed() -> None:
    counted: ExpiringSensors[str, Rate] = ExpiringSensors()
    for name, now_ms in (("idle", 1), ("busy", IDLE_MS), ("new", IDLE_MS + 1)):
        counted.begin(name, Rate(11, 1000), now_ms).record(1.0, now_ms)
    assert counted.keys() == {"idle", "busy", "new"}, "looked at a moment ago"
    counted.begin("newer", Rate(11, 1000), IDLE_MS + IDLE_MS // 10)
    assert counted.keys() == {"busy", "new", "newer"}


def test_throttle_time_is_limited_to_the_field() -> None:
    """The field is in ms. A quota of one byte per second, which blocks a client, would exceed it."""
    made = ClientQuotas(samples=11, window_ms=1000)
    tiny = {PRODUCER_BYTE_RATE: 1.0, CONTROLLER_MUTATION_RATE: 5e-324}
    made.update({(("user", "u"),): tiny})
    assert made.record(PRODUCER_BYTE_RATE, "u", "c", 1 << 30, 0) == WAIT_MS_MAX
    bucket = made.mutations("u", "c", 0)
    assert bucket is not None
    bucket.take(10_000, 0)
    assert bucket.missing_ms(1000) == WAIT_MS_MAX
