"""What a query reads of a log that grows while its ends are asked for."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from odradek.pipeline.brokers import TopicPartition
from tests.pipeline.tiered_queries import ONLY, query
from tests.pipeline.virtual_leader import VirtualLeader
from tests.pipeline.virtual_store import World


@pytest.mark.parametrize(
    "start",
    [
        {"startingTimestamp": 9000, "startingOffsetsByTimestampStrategy": "latest"},
        {"startingOffsets": '{"t":{"0":-1}}'},
    ],
    ids=["a time behind the end", "the end"],
)
def test_what_comes_while_start_and_end_are_asked_for_is_not_read(start: dict[str, Any]) -> None:
    """The log grows between any two questions."""

    class Growing(VirtualLeader):
        def offsets(
            self, wanted: Mapping[TopicPartition, int], *, read_committed: bool = False
        ) -> dict[TopicPartition, int]:
            self.logs[ONLY].end += 1
            return super().offsets(wanted, read_committed=read_committed)

    leader = Growing((0, 10))
    with leader.reachable():
        ((low, high),) = query(World(), leader, **start).ranges().values()
    assert low == high
