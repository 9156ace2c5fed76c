"""The high watermark is that of the slowest in-sync replica, and does not decrease."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from odradek.replication.partition.high_watermark import (
    PARTS_MAX,
    UNCOUNTED_BYTES,
    UncommittedBytes,
    decide_high_watermark,
)


def test_sole_in_sync_leader_advances_to_log_end() -> None:
    assert decide_high_watermark(5, 1, {1: 9, 2: 3}, {1}) == 9


def test_slowest_replica_limits_high_watermark() -> None:
    assert decide_high_watermark(5, 1, {1: 9, 2: 7, 3: 2}, {1, 2}) == 7


def test_replica_without_fetch_keeps_high_watermark() -> None:
    assert decide_high_watermark(5, 1, {1: 9}, {1, 2}) == 5


@given(
    current=st.integers(0, 50),
    ends=st.dictionaries(st.integers(1, 5), st.integers(0, 100), min_size=1),
    in_sync=st.frozensets(st.integers(1, 5), min_size=1),
)
def test_high_watermark_is_monotonic_and_limited_by_isr(
    current: int, ends: dict[int, int], in_sync: frozenset[int]
) -> None:
    leader = min(ends)
    decided = decide_high_watermark(current, leader, ends, in_sync | {leader})
    assert decided >= current
    if decided > current:
        assert all(ends[member] >= decided for member in in_sync | {leader})


def test_advance_returns_each_append_once() -> None:
    unseen = UncommittedBytes(0, 0)
    unseen.appended(3, 100)
    unseen.appended(5, 10)
    assert unseen.advance_to(2) == 0
    assert unseen.advance_to(4) == 100
    assert unseen.advance_to(4) == 0
    assert unseen.advance_to(9) == 10


def test_uncommitted_appends_are_merged_beyond_the_limit() -> None:
    unseen = UncommittedBytes(0, 0)
    for number in range(3 * PARTS_MAX):
        unseen.appended(number + 1, 1)
    assert unseen.advance_to(PARTS_MAX) == PARTS_MAX - 1
    assert unseen.advance_to(3 * PARTS_MAX) == 2 * PARTS_MAX + 1


def test_truncated_appends_are_not_counted() -> None:
    unseen = UncommittedBytes(0, 0)
    unseen.appended(3, 100)
    unseen.appended(8, 10)
    unseen.appended(5, 1)
    assert unseen.advance_to(8) == 101


def test_earlier_uncommitted_records_have_unknown_size() -> None:
    unseen = UncommittedBytes(2, 5)
    unseen.appended(8, 10)
    assert unseen.advance_to(3) == UNCOUNTED_BYTES
    assert unseen.advance_to(6) == UNCOUNTED_BYTES
    assert unseen.advance_to(8) == 10
