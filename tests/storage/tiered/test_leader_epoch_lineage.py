"""Which remote segments are those of a log (E15): Kafka's cases, one a line."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from odradek.storage.tiered.leader_epoch_lineage import is_within, shared_until, with_records
from tests.support.finished_segments import epochs, segment

LINEAGE = epochs((0, 0), (1, 10), (3, 40), (5, 100))


def test_epochs_without_records_are_left_out() -> None:
    found = with_records(epochs((0, 0), (1, 10), (2, 10), (3, 10), (4, 20)))
    assert found == epochs((0, 0), (3, 10), (4, 20))
    assert with_records(()) == ()


@pytest.mark.parametrize(
    ("start", "end", "of", "within"),
    [
        (0, 5, [(0, 0)], True),
        (0, 20, [(0, 0), (1, 10)], True),
        (5, 60, [(0, 5), (1, 10), (3, 40)], True),
        (110, 119, [(5, 110)], True),
        (110, 120, [(5, 110)], False),  # the log ends there
        (0, 10, [(0, 0)], False),  # epoch 0 goes on where the log has 1
        (0, 20, [(0, 0), (1, 9)], False),
        (0, 50, [(0, 0), (3, 40)], False),  # the log had 1 in between
        (30, 50, [(2, 30), (3, 40)], False),  # the log knows no 2
        (50, 60, [(6, 50)], False),  # nor a 6
        (9, 20, [(1, 9)], False),  # begins before the log's 1 does
        (8, 20, [(0, 8), (1, 10)], True),
        (35, 120, [(1, 35), (3, 40), (5, 100)], False),
        (35, 119, [(1, 35), (3, 40), (5, 100)], True),
        # (an epoch without records in the segment says nothing)
        (10, 20, [(0, 10), (1, 10)], True),
    ],
)
def test_segment_within_the_lineage(
    start: int, end: int, of: list[tuple[int, int]], within: bool
) -> None:
    """E15: only those whose epochs are the log's."""
    assert is_within(segment(start, end, *of), LINEAGE, 120) is within


def test_overlapping_segments_after_the_start_has_moved() -> None:
    """E15: of two that overlap the first was deleted, and the log begins in the middle of the second."""
    second = segment(14, 150, (5, 14), (7, 15), (9, 100))
    assert is_within(second, epochs((5, 10), (7, 15), (9, 100)), 200)
    assert is_within(second, epochs((7, 51), (9, 100)), 200)
    assert is_within(second, epochs((9, 120)), 200)
    assert not is_within(second, epochs((10, 160)), 200)


def test_nothing_is_within_no_lineage() -> None:
    assert not is_within(segment(0, 5), (), 120)


def epoch_at(of: list[tuple[int, int]], offset: int) -> int:
    return max((epoch for epoch, start in of if start <= offset), default=-1)


@st.composite
def histories(draw: st.DrawFn) -> list[tuple[int, int]]:
    starts = sorted(draw(st.lists(st.integers(0, 20), min_size=1, max_size=4)))
    among = st.sets(st.integers(0, 5), min_size=len(starts), max_size=len(starts))
    return list(zip(sorted(draw(among)), starts, strict=True))


@given(of=histories(), ours=histories(), last=st.integers(20, 25), offset=st.integers(0, 25))
def test_t60_where_a_segment_parts_from_the_log(
    of: list[tuple[int, int]], ours: list[tuple[int, int]], last: int, offset: int
) -> None:
    first = of[0][1]
    offset = max(offset, first)
    found = shared_until(segment(first, last, *of), epochs(*ours), offset)
    shared = [
        epoch_at(of, each) == epoch_at(ours, each) and each <= last
        for each in range(offset, last + 2)
    ]
    assert found == (offset + shared.index(False) if offset <= last else last + 1)
