"""Queries of logs that grow during planning."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from odradek.protocol.topics import TopicPartition
from tests.pipeline.tiered_queries import ONLY, query
from tests.pipeline.virtual_leader import VirtualLeader
from tests.pipeline.virtual_store import SegmentStore


@pytest.mark.parametrize(
    "start",
    [
        {"startingTimestamp": 9000, "startingOffsetsByTimestampStrategy": "latest"},
        {"startingOffsets": '{"t":{"0":-1}}'},
    ],
    ids=["a time behind the end", "the end"],
)
def test_records_appended_during_planning_are_not_read(start: dict[str, Any]) -> None:
    """The log grows between any two requests."""

    class GrowingLeader(VirtualLeader):
        def offsets(
            self, wanted: Mapping[TopicPartition, int], *, read_committed: bool = False
        ) -> dict[TopicPartition, int]:
            self.logs[ONLY].end += 1
            return super().offsets(wanted, read_committed=read_committed)

    leader = GrowingLeader((0, 10))
    with leader.reachable():
        ((low, high),) = query(SegmentStore(), leader, **start).ranges().values()
    assert low == high
