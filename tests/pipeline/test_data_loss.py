"""What is gone is told of once, and no more is left out than that: at planning and while it is read."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest

from odradek.pipeline.errors import BrokersUnavailable, DataLoss, MissingSegment
from odradek.pipeline.options import parse_options
from odradek.pipeline.planning import BrokerRange, LostOffsets, PlannedRange, tasks_of
from odradek.pipeline.query import Query
from odradek.pipeline.range_reader import ReadSettings, read_pieces, with_gap_column
from odradek.pipeline.segment_columns import SegmentSlice
from tests.pipeline.streams import at, stream
from tests.pipeline.tiered_queries import ONLY, query
from tests.pipeline.virtual_leader import PartitionLog, VirtualLeader
from tests.pipeline.virtual_store import World, segment

REPORTING = ReadSettings(
    ("partition", "offset"), "unused:9092", None, {}, False, 1000, 1000, False, "report"
)


def read(reading: ReadSettings, pieces: Any) -> tuple[list[int], list[tuple[int, int, str | None]]]:
    """The offsets that came, and those that did not: from, to, and whose fault it is."""
    tables = read_pieces(reading, pieces, {})
    rows = [row for table in tables for row in with_gap_column(table).to_pylist()]
    gaps = [
        (row["offset"], row["gap"]["lastOffset"], row["gap"]["object"])
        for row in rows
        if row["gap"] is not None
    ]
    return [row["offset"] for row in rows if row["gap"] is None], gaps


class Moving(VirtualLeader):
    """Its log's start moves at the second fetch."""

    fetches = 0

    def fetch(self, where: Any, offset: int, **options: Any) -> Any:
        self.fetches += 1
        if self.fetches == 2:
            self.logs[where] = PartitionLog(12, 20)
        return super().fetch(where, offset, **options)


@pytest.mark.parametrize("kind", ["report", "skip", "fail"])
def test_reading_goes_on_where_the_log_begins_now(kind: str) -> None:
    leader, piece = Moving((0, 20)), BrokerRange("t", 0, 0, 20)
    with leader.reachable():
        found, gaps = read(replace(REPORTING, unreadable=kind), [piece])
    assert found == [*range(5), *range(12, 20)]
    assert gaps == ([(5, 11, None)] if kind == "report" else [])


def test_data_loss_ends_a_query_that_does_not_allow_it() -> None:
    leader = Moving((0, 20))
    with leader.reachable(), pytest.raises(DataLoss, match="offsets 5 to 11 of t-0 were lost"):
        read(replace(REPORTING, fail_on_data_loss=True), [BrokerRange("t", 0, 0, 20)])


def after_planning(leader: VirtualLeader, piece: BrokerRange) -> None:
    """Planned offsets are told as lost once, and what other records have them now is not read."""
    with leader.reachable():
        with pytest.raises(DataLoss, match=f"offsets {piece.low} to .* were lost: "):
            read(replace(REPORTING, fail_on_data_loss=True), [piece])
        assert read(REPORTING, [piece]) == ([], [(piece.low, piece.high - 1, None)])


def test_a_topic_that_was_made_again_before_it_is_read_is_data_loss() -> None:
    leader = VirtualLeader((0, 20))
    with leader.reachable():
        asked = query(World(), leader)
        (piece,) = asked.plan(asked.ranges()).pieces
    leader.topic_id = UUID(int=2)
    assert isinstance(piece, BrokerRange)
    after_planning(leader, piece)


def test_a_log_that_was_cut_off_and_grew_again_before_it_is_read_is_data_loss() -> None:
    """Another leader has written from offset 7 on: what is behind the piece is no matter."""
    leader = VirtualLeader((0, 20))
    with leader.reachable():
        asked = query(World(), leader)
        (piece,) = asked.plan(asked.ranges()).pieces
        assert isinstance(piece, BrokerRange)
        leader.logs[ONLY] = PartitionLog(0, 20, epoch=1, written_from=7)
        assert read(REPORTING, [piece]) == ([*range(7)], [(7, 19, None)])
        assert read(REPORTING, [replace(piece, high=7)]) == ([*range(7)], [])
    after_planning(leader, replace(piece, low=7))


def test_a_log_that_was_cut_off_where_reading_goes_on_is_data_loss() -> None:
    leader = VirtualLeader((0, 5))
    piece = BrokerRange("t", 0, 0, 20)
    with leader.reachable():
        assert read(REPORTING, [piece]) == ([*range(5)], [(5, 19, None)])
        with pytest.raises(DataLoss, match="offsets 5 to 19 of t-0 were lost: the log now ends at"):
            read(replace(REPORTING, fail_on_data_loss=True), [piece])


def test_a_leader_that_gives_nothing_is_named() -> None:
    """Offsets were promised that are not decided."""
    leader = VirtualLeader((0, 20))
    leader.logs[ONLY].undecided = 5
    said = "unused:9092 returned no records of t-0 from offset 5 on in 21 fetches: run it again when all"
    with leader.reachable(), pytest.raises(BrokersUnavailable, match=said):
        read(replace(REPORTING, read_committed=True), [BrokerRange("t", 0, 0, 20)])


def test_what_is_gone_when_a_query_is_planned_is_a_row() -> None:
    leader = VirtualLeader((10, 20), (0, 3))
    options = {
        "kafka.bootstrap.servers": "unused:9092",
        "subscribe": "t",
        "startingoffsets": '{"t":{"0":4,"1":0}}',
    }
    with leader.reachable():
        asked = Query(parse_options({**options, "failondataloss": "false"}, streaming=False))
        ranges = asked.ranges()
        assert ranges == {ONLY: (10, 20), ("t", 1): (0, 3)}
        pieces = asked.plan(ranges).pieces
        found, gaps = read(REPORTING, pieces)
        assert (found, gaps) == ([*range(10, 20), *range(3)], [(4, 9, None)])
        with pytest.raises(DataLoss, match="t-0 now starts at offset 10"):
            Query(parse_options(options, streaming=False)).ranges()


def test_what_the_store_alone_lacks_is_a_row() -> None:
    cluster_view = World()
    cluster_view.has(segment(1, 0, 9), segment(2, 20, 29))
    with pytest.raises(DataLoss, match=r"offsets 10 to 19 of t-0 \(failOnDataLoss=false reads"):
        query(cluster_view).plan({ONLY: (0, 30)})
    pieces = query(cluster_view, failOnDataLoss=False).plan({ONLY: (0, 30)}).pieces
    (lost,) = [each for each in pieces if isinstance(each, LostOffsets)]
    assert (lost.low, lost.high) == (10, 20)
    assert [piece.low for piece in pieces] == [0, 10, 20]


def test_what_a_deleted_partition_had_is_a_row() -> None:
    leader = VirtualLeader((0, 3))
    with leader.reachable():
        with pytest.raises(DataLoss, match="t-1 was deleted"):
            stream().partitions(at(0, 2), at(3, 7))
        tasks = stream(failOnDataLoss=False).partitions(at(0, 2), at(3, 7))
        pieces = [piece for task in tasks for piece in task.pieces]  # type: ignore[attr-defined]
        assert read(REPORTING, pieces) == ([0, 1, 2], [(2, 6, None)])


def test_what_is_lost_costs_no_task_anything() -> None:
    lost = LostOffsets("t", 0, 0, 10**9, "gone")
    pieces: list[PlannedRange] = [lost, BrokerRange("t", 0, 10**9, 10**9 + 5)]
    (task,) = tasks_of(list(pieces), task_bytes=1 << 30, max_records=10)
    assert task == tuple(pieces)


def test_a_segment_that_retention_takes_before_it_is_read_is_data_loss(tmp_path: Path) -> None:
    leader = VirtualLeader((30, 40))
    gone = SegmentSlice(segment(1, 20, 29), 20, 30)
    reading = replace(REPORTING, tiered_url=f"file://{tmp_path}", unreadable="fail")
    with leader.reachable():
        assert read(reading, [gone]) == ([], [])
        with pytest.raises(DataLoss, match="retention"):
            read(replace(reading, fail_on_data_loss=True), [gone])
        leader.logs[ONLY].start = 29
        with pytest.raises(MissingSegment):
            read(reading, [gone])
        leader.topic_id = UUID(int=2)
        assert read(reading, [gone]) == ([], []), "what another topic has does not count"
