"""A start that is named and lies behind the end of the log."""

from __future__ import annotations

from typing import Any

import pytest

from odradek.pipeline.errors import DataLoss
from tests.pipeline.tiered_queries import COMMITTED, ONLY, query, snapshot
from tests.pipeline.virtual_leader import VirtualLeader
from tests.pipeline.virtual_store import World, segment

SAID = "t-0 now ends at offset 10, and the query starts at 12 .failOnDataLoss=false reads nothing"


def ending(at: int | None) -> dict[str, Any]:
    return {} if at is None else {"endingOffsets": f'{{"t":{{"0":{at}}}}}'}


@pytest.mark.parametrize("end", [None, -1, 10, 5])
@pytest.mark.parametrize("has_brokers", [True, False])
def test_a_start_behind_the_log_is_data_loss(has_brokers: bool, end: int | None) -> None:
    cluster_view, leader = World(), VirtualLeader((0, 10))
    cluster_view.has(segment(1, 0, 9))
    asked: Any = {"startingOffsets": '{"t":{"0":12}}', **ending(end)}
    given = leader if has_brokers else None
    with leader.reachable():
        with pytest.raises(DataLoss, match=SAID):
            query(cluster_view, given, **asked).ranges()
        ((low, high),) = query(cluster_view, given, **asked, failOnDataLoss=False).ranges().values()
    assert low == high


@pytest.mark.parametrize("has_brokers", [True, False])
@pytest.mark.parametrize("start", [5, 7, 10])
def test_a_start_that_the_log_has_is_none(has_brokers: bool, start: int) -> None:
    """Behind what is decided, or behind an end that was named: nothing is read yet, or meant."""
    cluster_view, leader = World(), VirtualLeader((0, 10))
    cluster_view.has(segment(1, 0, 9))
    snapshot(cluster_view, segment(1, 0, 9), 5)
    leader.logs[ONLY].undecided = 5
    given = leader if has_brokers else None
    named = {"startingOffsets": f'{{"t":{{"0":{start}}}}}'}
    with leader.reachable():
        for more in (COMMITTED, ending(4)):
            ((low, high),) = query(cluster_view, given, **named, **more).ranges().values()
            assert low == high == start
