"""Remote segments within a log's leader epoch lineage (E15), with Kafka's test cases."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from odradek.storage.tiered.leader_epoch_lineage import is_within, shared_until, with_records
from tests.support.finished_segments import epochs, segment

LINEAGE = epochs((0, 0), (1, 10), (3, 40), (5, 100))


def test_lineage_omits_epochs_without_records() -> None:
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
        (0, 10, [(0, 0)], False),  # epoch 0 continues where the log has epoch 1
        (0, 20, [(0, 0), (1, 9)], False),
        (0, 50, [(0, 0), (3, 40)], False),  # the log has epoch 1 in between
        (30, 50, [(2, 30), (3, 40)], False),  # the log has no epoch 2
        (50, 60, [(6, 50)], False),  # the log has no epoch 6
        (9, 20, [(1, 9)], False),  # starts before epoch 1 of the log
        (8, 20, [(0, 8), (1, 10)], True),
        (35, 120, [(1, 35), (3, 40), (5, 100)], False),
        (35, 119, [(1, 35), (3, 40), (5, 100)], True),
        # (epochs without records in the segment are ignored)
        (10, 20, [(0, 10), (1, 10)], True),
    ],
)
def test_segment_is_within_lineage_of_its_log(
    start: int, end: int, of: list[tuple[int, int]], within: bool
) -> None:
    """E15."""
    assert is_within(segment(start, end, *of), LINEAGE, 120) is within


def test_overlapping_segments_after_log_start_advanced() -> None:
    """E15: the first of two overlapping segments was deleted, and the log starts within the
    second."""
    second = segment(14, 150, (5, 14), (7, 15), (9, 100))
    assert is_within(second, epochs((5, 10), (7, 15), (9, 100)), 200)
    assert is_within(second, epochs((7, 51), (9, 100)), 200)
    assert is_within(second, epochs((9, 120)), 200)
    assert not is_within(second, epochs((10, 160)), 200)


def test_empty_lineage_contains_no_segment() -> None:
    assert not is_within(segment(0, 5), (), 120)


def epoch_at(of: list[tuple[int, int]], offset: int) -> int:
    return max((epoch for epoch, start in of if start <= offset), default=-1)


@st.composite
def histories(draw: st.DrawFn) -> list[tuple[int, int]]:
    starts = sorted(draw(st.lists(st.integers(0, 20), min_size=1, max_size=4)))
    among = st.sets(st.integers(0, 5), min_size=len(starts), max_size=len(starts))
    return list(zip(sorted(draw(among)), starts, strict=True))


@given(of=histories(), ours=histories(), last=st.integers(20, 25), offset=st.integers(0, 25))
def test_first_offset_where_segment_diverges_from_log(
    of: list[tuple[int, int]], ours: list[tuple[int, int]], last: int, offset: int
) -> None:
    """T-60."""
    first = of[0][1]
    offset = max(offset, first)
    found = shared_until(segment(first, last, *of), epochs(*ours), offset)
    shared = [
        epoch_at(of, each) == epoch_at(ours, each) and each <= last
        for each in range(offset, last + 2)
    ]
    assert found == (offset + shared.index(False) if offset <= last else last + 1)
