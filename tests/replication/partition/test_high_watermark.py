"""The high watermark follows the slowest in-sync replica, and never goes back."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from odradek.replication.partition.high_watermark import decide_high_watermark


def test_a_leader_alone_in_sync_has_replicated_what_it_wrote() -> None:
    assert decide_high_watermark(5, 1, {1: 9, 2: 3}, {1}) == 9


def test_the_slowest_member_decides() -> None:
    assert decide_high_watermark(5, 1, {1: 9, 2: 7, 3: 2}, {1, 2}) == 7


def test_a_member_that_was_not_heard_of_holds_it() -> None:
    assert decide_high_watermark(5, 1, {1: 9}, {1, 2}) == 5


@given(
    current=st.integers(0, 50),
    ends=st.dictionaries(st.integers(1, 5), st.integers(0, 100), min_size=1),
    in_sync=st.frozensets(st.integers(1, 5), min_size=1),
)
def test_it_never_goes_back_nor_past_a_member_it_waited_for(
    current: int, ends: dict[int, int], in_sync: frozenset[int]
) -> None:
    leader = min(ends)
    decided = decide_high_watermark(current, leader, ends, in_sync | {leader})
    assert decided >= current
    if decided > current:
        assert all(ends[member] >= decided for member in in_sync | {leader})
