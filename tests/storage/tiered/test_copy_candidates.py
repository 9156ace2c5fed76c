"""Selection of the next segments to copy, and the highest copied offset of a new leader (T-28,
T-31, T-62, E15)."""

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
        (-1, 0, 29, [0, 10]),  # the last record is past the last stable offset: T-28
        (-1, 0, 20, [0, 10]),
        (-1, 0, 19, [0]),
        (9, 0, 30, [10, 20]),
        (29, 0, 30, []),
        (12, 0, 30, [10, 20]),  # a copy of another leader ended within this segment
        (-1, 15, 30, [10, 20]),  # DeleteRecords advanced the log start offset
        (-1, 20, 30, [20]),
        (40, 0, 30, []),
        (-1, 0, 0, []),
    ],
)
def test_inactive_segments_below_last_stable_offset_are_selected(
    copied: int, log_start: int, stable: int, wanted: list[int]
) -> None:
    """T-28, E15: the active segment, undecided, copied and deleted segments are excluded."""
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
        # Unclean leader election: the previous leader copied records that this log does not have
        ([(0, 0), (2, 5)], 20, {0: 8}, 4),
        ([(0, 0), (2, 5)], 20, {0: 8, 1: 12}, 4),
        ([(0, 0), (2, 5)], 8, {2: 12}, 7),
    ],
)
def test_new_leader_finds_highest_copied_offset_by_its_epochs(
    lineage: list[tuple[int, int]], end: int, highest: dict[int, int], wanted: int
) -> None:
    """T-31, E15: the newest epoch first, limited to each epoch's end."""
    assert find_highest_copied_offset(epochs(*lineage), end, highest.get) == wanted


def test_copies_resume_after_failover() -> None:
    """T-62: the remote tier has 0-2 and 3-4, leader epoch 2 starts at 6: copying continues at 5."""
    lineage = epochs((0, 0), (1, 3), (2, 6))
    assert find_highest_copied_offset(lineage, 9, {0: 2, 1: 4}.get) + 1 == 5


@pytest.mark.parametrize(
    ("first", "local_start", "wanted"),
    [({}, 30, 30), ({0: 3}, 30, 3), ({2: 12}, 30, 12), ({0: 3, 2: 12}, 30, 3), ({2: 50}, 30, 30)],
)
def test_log_start_offset_of_new_leader(
    first: dict[int, int], local_start: int, wanted: int
) -> None:
    """T-36: the previous leader may have deleted more; at most the local log start offset."""
    assert find_log_start_offset(epochs((0, 0), (2, 10)), first.get, local_start) == wanted
