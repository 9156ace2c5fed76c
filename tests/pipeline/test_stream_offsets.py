"""Offsets of a stream's micro-batches, with brokers whose log start and end offsets are set by the test."""

from __future__ import annotations

import json
import re
from typing import Any
from uuid import UUID

import pytest

from odradek.pipeline.errors import BadOption, DataLoss
from odradek.pipeline.planning import LostOffsets
from odradek.pipeline.stream_offsets import OffsetsJson
from odradek.pipeline.stream_reader import StreamReader
from odradek.protocol.topics import TopicPartition
from odradek.protocol.uuids import uuid_to_text
from odradek.seams.clock import RealClock
from tests.pipeline.streams import at, first_end, offsets, spark_offsets, stream
from tests.pipeline.virtual_leader import TOPIC_ID, PartitionLog, VirtualLeader

ANOTHER = UUID(int=2)


def following(reader: StreamReader, start: OffsetsJson) -> OffsetsJson:
    return reader.latestOffset(start, reader.getDefaultReadLimit())


def test_recreated_topic_with_fewer_records_is_data_loss() -> None:
    leader = VirtualLeader((0, 500), (0, 40))
    with leader.reachable():
        with pytest.raises(DataLoss, match=r"t-0 ends at offset 500, and the stream was at 1000"):
            following(stream(), at(1000, 7))
        with pytest.raises(DataLoss, match=r"t-0"):
            stream().partitions(at(1000, 7), at(500, 40))


MADE_AGAIN = (
    f"t was deleted and recreated: .* id {uuid_to_text(TOPIC_ID)} .* id {uuid_to_text(ANOTHER)}"
)


@pytest.mark.parametrize("is_restarted", [False, True])
@pytest.mark.parametrize("available_now", [False, True])
def test_recreated_topic_with_more_records_is_data_loss(
    is_restarted: bool, available_now: bool
) -> None:
    """Offsets alone do not show it, neither during a run nor after a restart."""
    leader, reader = VirtualLeader((0, 500)), stream()
    with leader.reachable():
        if available_now:
            reader.prepareForTriggerAvailableNow()
        end = following(reader, at(100))
        assert end == at(500)
        leader.topic_id, leader.logs["t", 0].end = ANOTHER, 900  # type: ignore[index]
        reader = stream() if is_restarted else reader
        for act in (
            lambda: following(reader, end),
            lambda: reader.partitions(at(100), end),
            lambda: reader.partitions(at(100), at(500, id=ANOTHER)),
        ):
            with pytest.raises(DataLoss, match=MADE_AGAIN):
                act()


@pytest.mark.parametrize("limit", [{}, {"maxOffsetsPerTrigger": 4}], ids=str)
def test_recreated_topic_is_read_from_its_start_without_fail_on_data_loss(
    limit: dict[str, int],
) -> None:
    """The batch in progress has none of its records, because its offsets are of the deleted topic."""
    leader, lenient = VirtualLeader((0, 500), (0, 9)), stream(failOnDataLoss=False, **limit)
    with leader.reachable():
        lenient.prepareForTriggerAvailableNow()
        leader.topic_id = ANOTHER
        leader.logs = {TopicPartition("t", 0): PartitionLog(3, 12)}
        assert offsets(lenient, at(100, 7), at(500, 9)) == []
        start, found = at(500, 9), []
        for _ in range(5):
            end = following(lenient, start)
            found += offsets(lenient, start, end)
            start = end
    assert start == at(12, id=ANOTHER)
    assert found == [(0, each) for each in range(3, 12)]


def test_offsets_of_a_recreated_topic_are_a_gap_row() -> None:
    leader = VirtualLeader((0, 12))
    leader.topic_id = ANOTHER
    with leader.reachable():
        tasks = stream(failOnDataLoss=False).partitions(at(100), at(500))
    (lost,) = [piece for task in tasks for piece in task.pieces]  # type: ignore[attr-defined]
    assert (lost.low, lost.high) == (100, 500)
    assert re.match(MADE_AGAIN, lost.reason)


def test_checkpoints_without_topic_ids_get_them_with_the_next_batch() -> None:
    leader, reader = VirtualLeader((0, 500), (0, 40)), stream()
    with leader.reachable():
        assert following(reader, spark_offsets(100, 7)) == at(500, 40)
        assert offsets(reader, spark_offsets(497, 38), spark_offsets(499, 40)) == offsets(
            reader, at(497, 38), at(499, 40)
        )
        leader.topic_id = ANOTHER
        assert following(reader, spark_offsets(100, 7)) == at(500, 40, id=ANOTHER)
        with pytest.raises(DataLoss, match=MADE_AGAIN):
            following(reader, at(500, 40))


def test_brokers_without_topic_ids_are_supported() -> None:
    leader, reader = VirtualLeader((0, 500)), stream(startingOffsets="earliest")
    leader.topic_id = None
    with leader.reachable():
        assert reader.initialOffset() == spark_offsets(0)
        assert (
            following(reader, spark_offsets(100))
            == reader.reportLatestOffset()
            == spark_offsets(500)
        )


def test_query_starts_at_the_offsets_of_a_stream() -> None:
    """In the format of Spark's own source, or from a stream's progress."""
    leader = VirtualLeader((0, 500))
    with leader.reachable():
        for where in (spark_offsets(42), at(42), first_end([7], 42)):
            assert stream(startingOffsets=json.dumps(where)).initialOffset() == at(42)
        reader = stream(startingOffsets=json.dumps(at(42, id=ANOTHER)))
        with pytest.raises(
            BadOption, match=r"t was deleted and recreated: .* give offsets of the new"
        ):
            reader.initialOffset()


@pytest.mark.parametrize("limit", [{}, {"maxOffsetsPerTrigger": 10}], ids=str)
def test_offsets_decrease_without_fail_on_data_loss(limit: dict[str, int]) -> None:
    leader = VirtualLeader((0, 500), (0, 40))
    reader = stream(failOnDataLoss=False, **limit)
    with leader.reachable():
        end = following(reader, at(1000, 7))
        assert end == at(500, 17 if limit else 40)
        assert offsets(reader, at(1000, 7), end) == [(1, each) for each in range(7, end["t"]["1"])]
        leader.logs["t", 0].end = 520  # type: ignore[index]
        again = following(reader, end)
        assert again["t"]["0"] > 500


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"startingOffsets": '{"t":{"0":-1}}'},
        {"startingTimestamp": 5000, "startingOffsetsByTimestampStrategy": "latest"},
    ],
    ids=str,
)
@pytest.mark.parametrize("is_killed", [False, True])
def test_stream_from_latest_keeps_its_first_initial_offsets(
    options: dict[str, Any], is_killed: bool
) -> None:
    """Spark requests the initial offsets until the first batch is committed, and so does another driver."""
    leader, reader = VirtualLeader((0, 10)), stream(**options)
    log = leader.logs["t", 0]  # type: ignore[index]
    with leader.reachable():
        start = reader.initialOffset()
        log.end = 12
        first = following(reader, start)
        assert first == first_end([10], 12)
        log.end = 15
        reader = stream(**options) if is_killed else reader
        start = reader.initialOffset()
        assert start == at(15 if is_killed else 10)
        assert offsets(reader, start, first) == [(0, 10), (0, 11)]
        second = following(reader, first)
        assert second == at(15)
        assert offsets(reader, first, second) == [(0, each) for each in range(12, 15)]


def test_checkpoint_of_an_earlier_version_from_latest_is_read() -> None:
    """Its first batch is empty and has no start: it starts at its end."""
    leader, reader = VirtualLeader((0, 15)), stream()
    with leader.reachable():
        assert offsets(reader, reader.initialOffset(), at(10)) == []
        assert offsets(reader, at(10), following(reader, at(10)))[0] == (0, 10)


EARLY = {"startingOffsets": "earliest"}


def test_repeated_first_batch_reports_offsets_deleted_by_retention() -> None:
    """Its driver died before the commit, and the next driver gets other initial offsets."""
    leader = VirtualLeader((0, 12), (0, 9))
    with leader.reachable():
        reader = stream(**EARLY)
        end = following(reader, reader.initialOffset())
        assert end == first_end([0, 0], 12, 9)
        leader.logs["t", 0].start = 5  # type: ignore[index]
        reader = stream(**EARLY)
        start = reader.initialOffset()
        assert start == at(5, 0)
        with pytest.raises(
            DataLoss, match=r"t-0 now starts at offset 5, and the query starts at 0"
        ):
            reader.partitions(start, end)
        lenient = stream(failOnDataLoss=False, **EARLY)
        tasks = lenient.partitions(lenient.initialOffset(), end)
        lost = [each for task in tasks for each in task.pieces if isinstance(each, LostOffsets)]  # type: ignore[attr-defined]
        assert [(each.partition, each.low, each.high) for each in lost] == [(0, 0, 5)]


def test_repeated_first_batch_is_of_the_same_topic_id() -> None:
    leader = VirtualLeader((0, 12))
    with leader.reachable():
        reader = stream(**EARLY)
        end = following(reader, reader.initialOffset())
        leader.topic_id = ANOTHER
        reader = stream(**EARLY)
        start = reader.initialOffset()
        with pytest.raises(DataLoss, match=MADE_AGAIN):
            reader.partitions(start, end)
        with pytest.raises(DataLoss, match=MADE_AGAIN):
            following(reader, end)


def test_only_the_first_batch_has_its_start() -> None:
    """A changed start alone must not cause a batch: Spark plans one whenever the JSON differs."""
    leader = VirtualLeader((0, 12))
    with leader.reachable():
        reader = stream(maxOffsetsPerTrigger=6, **EARLY)
        first = following(reader, reader.initialOffset())
        assert first == first_end([0], 6)
        second = following(reader, first)
        assert second == at(12)
        whole = following(stream(**EARLY), first)
        assert whole == at(12)
        done = first_end([0], 12)
        assert json.dumps(following(reader, done)) == json.dumps(done)
        assert offsets(reader, done, done) == []


def test_empty_first_batch_has_its_start() -> None:
    leader = VirtualLeader((3, 3))
    with leader.reachable():
        reader = stream(**EARLY)
        end = following(reader, reader.initialOffset())
        assert end == first_end([3], 3)
        leader.logs["t", 0].end = 12  # type: ignore[index]
        leader.logs["t", 0].start = 5  # type: ignore[index]
        reader = stream(**EARLY)
        assert offsets(reader, reader.initialOffset(), end) == []
        with pytest.raises(DataLoss, match=r"now starts at offset 5, and the query starts at 3"):
            reader.partitions(end, following(reader, end))


def test_partition_added_in_the_first_batch_starts_at_0() -> None:
    leader = VirtualLeader((0, 12))
    with leader.reachable():
        reader = stream(**EARLY)
        start = reader.initialOffset()
        leader.logs[TopicPartition("t", 1)] = PartitionLog(0, 3)
        end = following(reader, start)
        assert end == first_end([0], 12, 3)
        assert offsets(stream(**EARLY), at(0, 0), end)[-3:] == [(1, 0), (1, 1), (1, 2)]


def test_stream_from_fixed_offsets_starts_immediately() -> None:
    leader = VirtualLeader((0, 10))
    with leader.reachable():
        for options in ({"startingOffsets": "earliest"}, {"startingOffsets": '{"t":{"0":0}}'}):
            reader = stream(**options)
            end = following(reader, reader.initialOffset())
            assert end == first_end([0], 10)
            assert len(offsets(reader, reader.initialOffset(), end)) == 10


def test_stream_whose_end_was_resolved_before_its_start_loses_nothing() -> None:
    """With Trigger.AvailableNow the end is determined before the start."""
    leader = VirtualLeader((0, 10))
    reader = stream()
    with leader.reachable():
        reader.prepareForTriggerAvailableNow()
        leader.logs["t", 0].end = 12  # type: ignore[index]
        start = reader.initialOffset()
        assert start == at(12)
        assert following(reader, start) == first_end([12], 12)


class FixedClock(RealClock):
    at_s = 0.0

    def monotonic(self) -> float:
        return self.at_s


def test_batch_waits_for_min_offsets_after_the_last_batch() -> None:
    """As in Spark's own source: not the first batch, and not longer than maxTriggerDelay."""
    leader, reader = VirtualLeader((0, 5)), stream(minOffsetsPerTrigger=10, maxTriggerDelay="1m")
    reader._clock = clock = FixedClock()
    log = leader.logs["t", 0]  # type: ignore[index]
    with leader.reachable():
        start = following(reader, at(0))
        assert start == at(5)
        for at_s, log_end, end in (
            (1, 14, 5),
            (59.9, 14, 5),
            (60, 14, 14),
            (61, 24, 24),
            (62, 25, 24),
        ):
            clock.at_s, log.end = at_s, log_end
            start = following(reader, start)
            assert start == at(end)
        clock.at_s = 121
        assert following(reader, start) == at(25)


def test_batch_does_not_wait_without_max_trigger_delay() -> None:
    leader, reader = VirtualLeader((0, 5)), stream(minOffsetsPerTrigger=10, maxTriggerDelay=0)
    reader._clock = FixedClock()
    with leader.reachable():
        for end in (5, 6):
            leader.logs["t", 0].end = end  # type: ignore[index]
            assert following(reader, at(0)) == at(end)


def test_waiting_batch_has_unchanged_offsets() -> None:
    """Also after the first batch, whose end has more fields."""
    leader, reader = VirtualLeader((0, 5)), stream(minOffsetsPerTrigger=10, **EARLY)
    with leader.reachable():
        first = following(reader, reader.initialOffset())
        leader.logs["t", 0].end = 9  # type: ignore[index]
        assert json.dumps(following(reader, first)) == json.dumps(first)


def test_deleted_offsets_of_a_new_partition_are_data_loss() -> None:
    leader = VirtualLeader((0, 10), (5, 20))
    with leader.reachable():
        end = following(stream(), at(10))
        assert end == at(10, 20)
        with pytest.raises(
            DataLoss, match=r"t-1 now starts at offset 5, and the query starts at 0"
        ):
            stream().partitions(at(10), end)
        leader.logs["t", 1] = PartitionLog(0, 20)  # type: ignore[index]
        assert offsets(stream(), at(10), end) == [(1, each) for each in range(20)]


def test_new_partition_is_read_from_its_log_start_without_fail_on_data_loss() -> None:
    leader = VirtualLeader((0, 10), (5, 20))
    reader = stream(failOnDataLoss=False, maxOffsetsPerTrigger=10)
    with leader.reachable():
        end = following(reader, at(10))
        assert end == at(10, 15)
        assert offsets(reader, at(10), end) == [(1, each) for each in range(5, 15)]
