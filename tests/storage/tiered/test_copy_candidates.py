"""What is copied next, and from where on (T-28, T-31, T-62, E15)."""

from __future__ import annotations

from typing import NamedTuple

import pytest

from odradek.storage.tiered.copy_candidates import (
    NOTHING_COPIED,
    find_highest_copied_offset,
    find_log_start_offset,
    select_segments_to_copy,
)
from tests.support.finished_segments import epochs


class SegmentOffsets(NamedTuple):
    base_offset: int
    end_offset: int


SEALED = [SegmentOffsets(0, 9), SegmentOffsets(10, 19), SegmentOffsets(20, 29)]


@pytest.mark.parametrize(
    ("copied", "log_start", "stable", "wanted"),
    [
        (-1, 0, 30, [0, 10, 20]),
        (-1, 0, 29, [0, 10]),  # the last record is not decided: T-28
        (-1, 0, 20, [0, 10]),
        (-1, 0, 19, [0]),
        (9, 0, 30, [10, 20]),
        (29, 0, 30, []),
        (12, 0, 30, [10, 20]),  # another leader's segment ended within this one
        (-1, 15, 30, [10, 20]),  # DeleteRecords moved the log's start
        (-1, 20, 30, [20]),
        (40, 0, 30, []),
        (-1, 0, 0, []),
    ],
)
def test_sealed_segments_below_the_last_stable_offset(
    copied: int, log_start: int, stable: int, wanted: list[int]
) -> None:
    """T-28, E15: the active one is not among them; none that is undecided, or copied, or deleted."""
    found = select_segments_to_copy(
        SEALED, copied_offset=copied, log_start_offset=log_start, last_stable_offset=stable
    )
    assert [each.base_offset for each in found] == wanted


@pytest.mark.parametrize(
    ("lineage", "end", "highest", "wanted"),
    [
        ([(0, 0)], 10, {}, NOTHING_COPIED),
        ([], 0, {}, NOTHING_COPIED),
        ([(0, 0), (2, 10)], 20, {0: 4}, 4),
        ([(0, 0), (2, 10)], 20, {0: 9, 2: 14}, 14),
        ([(0, 0), (2, 10)], 20, {0: 9}, 9),
        # An unclean election: the leader before had copied what is not in this log
        ([(0, 0), (2, 5)], 20, {0: 8}, 4),
        ([(0, 0), (2, 5)], 20, {0: 8, 1: 12}, 4),
        ([(0, 0), (2, 5)], 8, {2: 12}, 7),
    ],
)
def test_where_a_new_leader_goes_on(
    lineage: list[tuple[int, int]], end: int, highest: dict[int, int], wanted: int
) -> None:
    """T-31, E15: by its own epochs, the newest first, clipped to where each ends."""
    assert find_highest_copied_offset(epochs(*lineage), end, highest.get) == wanted


def test_copies_resume_after_a_failover() -> None:
    """T-62: remote has 0-2 and 3-4, leader epoch 2 begins at 6: copying goes on at 5."""
    lineage = epochs((0, 0), (1, 3), (2, 6))
    assert find_highest_copied_offset(lineage, 9, {0: 2, 1: 4}.get) + 1 == 5


@pytest.mark.parametrize(
    ("first", "local_start", "wanted"),
    [({}, 30, 30), ({0: 3}, 30, 3), ({2: 12}, 30, 12), ({0: 3, 2: 12}, 30, 3), ({2: 50}, 30, 30)],
)
def test_where_a_new_leaders_log_starts(
    first: dict[int, int], local_start: int, wanted: int
) -> None:
    """T-36: where its predecessor had come with deleting; never past what is on its own disks."""
    assert find_log_start_offset(epochs((0, 0), (2, 10)), first.get, local_start) == wanted
