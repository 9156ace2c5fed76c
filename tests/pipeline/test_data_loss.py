"""Data loss is reported once and excludes only the lost offsets, during planning and reading."""

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
from tests.pipeline.virtual_store import SegmentStore, segment

REPORTING = ReadSettings(
    ("partition", "offset"), "unused:9092", None, {}, False, 1000, 1000, False, "report"
)


def read(reading: ReadSettings, pieces: Any) -> tuple[list[int], list[tuple[int, int, str | None]]]:
    """Return the offsets that were read, and the gaps: first offset, end offset, object."""
    tables = read_pieces(reading, pieces, {})
    rows = [row for table in tables for row in with_gap_column(table).to_pylist()]
    gaps = [
        (row["offset"], row["gap"]["lastOffset"], row["gap"]["object"])
        for row in rows
        if row["gap"] is not None
    ]
    return [row["offset"] for row in rows if row["gap"] is None], gaps


class MovingLogStart(VirtualLeader):
    """Leader whose log start offset increases at the second fetch."""

    fetches = 0

    def fetch(self, where: Any, offset: int, **options: Any) -> Any:
        self.fetches += 1
        if self.fetches == 2:
            self.logs[where] = PartitionLog(12, 20)
        return super().fetch(where, offset, **options)


@pytest.mark.parametrize("kind", ["report", "skip", "fail"])
def test_reading_continues_at_the_new_log_start_offset(kind: str) -> None:
    leader, piece = MovingLogStart((0, 20)), BrokerRange("t", 0, 0, 20)
    with leader.reachable():
        found, gaps = read(replace(REPORTING, unreadable=kind), [piece])
    assert found == [*range(5), *range(12, 20)]
    assert gaps == ([(5, 11, None)] if kind == "report" else [])


def test_data_loss_fails_the_query_by_default() -> None:
    leader = MovingLogStart((0, 20))
    with leader.reachable(), pytest.raises(DataLoss, match="offsets 5 to 11 of t-0 were lost"):
        read(replace(REPORTING, fail_on_data_loss=True), [BrokerRange("t", 0, 0, 20)])


def after_planning(leader: VirtualLeader, piece: BrokerRange) -> None:
    """Planned offsets are reported as lost once, and other records at these offsets are not returned."""
    with leader.reachable():
        with pytest.raises(DataLoss, match=f"offsets {piece.low} to .* were lost: "):
            read(replace(REPORTING, fail_on_data_loss=True), [piece])
        assert read(REPORTING, [piece]) == ([], [(piece.low, piece.high - 1, None)])


def test_topic_recreated_after_planning_is_data_loss() -> None:
    leader = VirtualLeader((0, 20))
    with leader.reachable():
        asked = query(SegmentStore(), leader)
        (piece,) = asked.plan(asked.ranges()).pieces
    leader.topic_id = UUID(int=2)
    assert isinstance(piece, BrokerRange)
    after_planning(leader, piece)


def test_log_truncated_and_appended_after_planning_is_data_loss() -> None:
    """Another leader has written from offset 7 on. Offsets after the range do not matter."""
    leader = VirtualLeader((0, 20))
    with leader.reachable():
        asked = query(SegmentStore(), leader)
        (piece,) = asked.plan(asked.ranges()).pieces
        assert isinstance(piece, BrokerRange)
        leader.logs[ONLY] = PartitionLog(0, 20, epoch=1, written_from=7)
        assert read(REPORTING, [piece]) == ([*range(7)], [(7, 19, None)])
        assert read(REPORTING, [replace(piece, high=7)]) == ([*range(7)], [])
    after_planning(leader, replace(piece, low=7))


def test_log_truncated_at_the_next_offset_is_data_loss() -> None:
    leader = VirtualLeader((0, 5))
    piece = BrokerRange("t", 0, 0, 20)
    with leader.reachable():
        assert read(REPORTING, [piece]) == ([*range(5)], [(5, 19, None)])
        with pytest.raises(DataLoss, match="offsets 5 to 19 of t-0 were lost: the log now ends at"):
            read(replace(REPORTING, fail_on_data_loss=True), [piece])


def test_leader_that_returns_no_records_is_named() -> None:
    """The planned offsets are above its high watermark."""
    leader = VirtualLeader((0, 20))
    leader.logs[ONLY].undecided = 5
    message = "unused:9092 returned no records of t-0 from offset 5 on in 21 fetches: run it again when all"
    with leader.reachable(), pytest.raises(BrokersUnavailable, match=message):
        read(replace(REPORTING, read_committed=True), [BrokerRange("t", 0, 0, 20)])


def test_offsets_lost_before_planning_are_a_gap_row() -> None:
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


def test_offsets_missing_in_the_store_are_a_gap_row() -> None:
    remote = SegmentStore()
    remote.has(segment(1, 0, 9), segment(2, 20, 29))
    with pytest.raises(DataLoss, match=r"offsets 10 to 19 of t-0 \(failOnDataLoss=false reads"):
        query(remote).plan({ONLY: (0, 30)})
    pieces = query(remote, failOnDataLoss=False).plan({ONLY: (0, 30)}).pieces
    (lost,) = [each for each in pieces if isinstance(each, LostOffsets)]
    assert (lost.low, lost.high) == (10, 20)
    assert [piece.low for piece in pieces] == [0, 10, 20]


def test_offsets_of_a_deleted_partition_are_a_gap_row() -> None:
    leader = VirtualLeader((0, 3))
    with leader.reachable():
        with pytest.raises(DataLoss, match="t-1 was deleted"):
            stream().partitions(at(0, 2), at(3, 7))
        tasks = stream(failOnDataLoss=False).partitions(at(0, 2), at(3, 7))
        pieces = [piece for task in tasks for piece in task.pieces]  # type: ignore[attr-defined]
        assert read(REPORTING, pieces) == ([0, 1, 2], [(2, 6, None)])


def test_lost_offsets_do_not_count_for_the_size_of_tasks() -> None:
    lost = LostOffsets("t", 0, 0, 10**9, "gone")
    pieces: list[PlannedRange] = [lost, BrokerRange("t", 0, 10**9, 10**9 + 5)]
    (task,) = tasks_of(list(pieces), task_bytes=1 << 30, max_records=10)
    assert task == tuple(pieces)


def test_segment_deleted_by_retention_before_reading_is_data_loss(tmp_path: Path) -> None:
    leader = VirtualLeader((30, 40))
    gone = SegmentSlice(segment(1, 20, 29), 20, 30)
    (tmp_path / "kafka-tiered-storage").mkdir()
    reading = replace(REPORTING, tiered_url=f"file://{tmp_path}", unreadable="fail")
    with leader.reachable():
        assert read(reading, [gone]) == ([], [])
        with pytest.raises(DataLoss, match="offsets 20 to 29 of t-0 were lost: retention"):
            read(replace(reading, fail_on_data_loss=True), [gone])
        leader.logs[ONLY] = PartitionLog(29, 40, local_start=30)
        with pytest.raises(MissingSegment, match="offsets 20 to 29 of t-0"):
            read(reading, [gone])
        leader.topic_id = UUID(int=2)
        assert read(reading, [gone]) == ([], []), "segments of another topic do not count"


def test_missing_segment_is_read_from_the_local_log_of_the_leader(tmp_path: Path) -> None:
    """Tiered storage was disabled with `delete` after planning: the log starts at its local data, from offset 26 on."""
    leader = VirtualLeader((26, 40))
    planned = [
        SegmentSlice(segment(number, first, first + 9), first, first + 10)
        for number, first in ((1, 10), (2, 20), (3, 30))
    ]
    (tmp_path / "kafka-tiered-storage").mkdir()
    reading = replace(REPORTING, tiered_url=f"file://{tmp_path}")
    with leader.reachable():
        found, gaps = read(reading, planned)
        assert found == [*range(26, 40)]
        assert [gap[:2] for gap in gaps] == [(10, 19), (20, 25)]
        with pytest.raises(DataLoss, match="offsets 20 to 25 of t-0 were lost"):
            read(replace(reading, fail_on_data_loss=True), planned[1:])
        assert read(replace(reading, fail_on_data_loss=True), planned[2:]) == ([*range(30, 40)], [])
