"""Starting offsets beyond the end of the log."""

from __future__ import annotations

from typing import Any

import pytest

from odradek.pipeline.errors import DataLoss
from tests.pipeline.tiered_queries import COMMITTED, ONLY, query, snapshot
from tests.pipeline.virtual_leader import VirtualLeader
from tests.pipeline.virtual_store import SegmentStore, segment

MESSAGE = (
    "t-0 now ends at offset 10, and the query starts at 12 .failOnDataLoss=false reads nothing"
)


def ending(at: int | None) -> dict[str, Any]:
    return {} if at is None else {"endingOffsets": f'{{"t":{{"0":{at}}}}}'}


@pytest.mark.parametrize("end", [None, -1, 10, 5])
@pytest.mark.parametrize("has_brokers", [True, False])
def test_start_beyond_the_log_end_is_data_loss(has_brokers: bool, end: int | None) -> None:
    remote, leader = SegmentStore(), VirtualLeader((0, 10))
    remote.has(segment(1, 0, 9))
    asked: Any = {"startingOffsets": '{"t":{"0":12}}', **ending(end)}
    given = leader if has_brokers else None
    with leader.reachable():
        with pytest.raises(DataLoss, match=MESSAGE):
            query(remote, given, **asked).ranges()
        ((low, high),) = query(remote, given, **asked, failOnDataLoss=False).ranges().values()
    assert low == high


@pytest.mark.parametrize("has_brokers", [True, False])
@pytest.mark.parametrize("start", [5, 7, 10])
def test_start_within_the_log_is_no_data_loss(has_brokers: bool, start: int) -> None:
    """Also beyond the last stable offset or the ending offsets; such a query reads nothing."""
    remote, leader = SegmentStore(), VirtualLeader((0, 10))
    remote.has(segment(1, 0, 9))
    snapshot(remote, segment(1, 0, 9), 5)
    leader.logs[ONLY].undecided = 5
    given = leader if has_brokers else None
    named = {"startingOffsets": f'{{"t":{{"0":{start}}}}}'}
    with leader.reachable():
        for more in (COMMITTED, ending(4)):
            ((low, high),) = query(remote, given, **named, **more).ranges().values()
            assert low == high == start
