"""Each offset once, from the copy that the partition's leader epochs say is the log's."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from uuid import UUID

from hypothesis import given
from hypothesis import strategies as st

from odradek.pipeline.decoding.decoder import Aborted
from odradek.pipeline.history import Stretch, cover
from odradek.pipeline.planning import BrokerRange, Piece, tasks_of
from odradek.pipeline.store import open_store
from odradek.storage.log.transaction_index import ENTRY, VERSION
from odradek.storage.tiered.metadata import (
    EpochStart,
    RemoteLogSegmentId,
    RemoteLogSegmentMetadata,
    TopicIdPartition,
)
from odradek.storage.tiered.remote_storage import LogSegmentData

WHERE = TopicIdPartition(UUID(int=1), "t", 0)


def segment(
    number: int, start: int, end: int, *epochs: tuple[int, int]
) -> RemoteLogSegmentMetadata:
    """Of the offsets from `start` to `end`, both included."""
    return RemoteLogSegmentMetadata(
        RemoteLogSegmentId(WHERE, UUID(int=number)),
        start,
        end,
        1,
        -1,
        0,
        tuple(EpochStart(*each) for each in epochs or ((0, start),)),
        1000 * (end - start + 1),
    )


def told(stretches: Sequence[Stretch]) -> list[tuple[int, int, int]]:
    return [(each.segment.id.id.int, each.low, each.high) for each in stretches]


ONE_EPOCH = (EpochStart(0, 0),)


def test_the_segment_that_reaches_furthest_is_read_and_none_twice() -> None:
    segments = [segment(1, 0, 9), segment(2, 5, 29), segment(3, 10, 19), segment(4, 30, 39)]
    assert told(cover(segments, ONE_EPOCH, 3, 35)) == [(1, 3, 10), (2, 10, 30), (4, 30, 35)]


def test_a_gap_is_left_out() -> None:
    segments = [segment(1, 0, 9), segment(2, 20, 29)]
    assert told(cover(segments, ONE_EPOCH, 0, 40)) == [(1, 0, 10), (2, 20, 30)]


def test_records_of_a_deposed_leader_are_not_the_logs() -> None:
    """KIP-405's unclean election: 0-3 was copied by a leader of epoch 0 and by one of epoch 1."""
    lineage = (EpochStart(0, 0), EpochStart(2, 2))
    segments = [
        segment(1, 0, 3, (0, 0)),
        segment(2, 0, 3, (0, 0), (1, 2)),
        segment(3, 2, 5, (2, 2)),
    ]
    assert told(cover(segments, lineage, 0, 10)) == [(1, 0, 2), (3, 2, 6)]


@st.composite
def histories(
    draw: st.DrawFn,
) -> tuple[list[RemoteLogSegmentMetadata], tuple[EpochStart, ...], int, int]:
    lineage, start = [], 0
    for epoch in range(draw(st.integers(1, 4))):
        lineage.append(EpochStart(epoch, start))
        start += draw(st.integers(1, 10))
    segments = []
    for number in range(draw(st.integers(0, 8))):
        first = draw(st.integers(0, 30))
        last = first + draw(st.integers(0, 10))
        starts = sorted({first, *draw(st.lists(st.integers(first, last), max_size=2))})
        epoch = draw(st.integers(0, 3))
        epochs = []
        for each in starts:
            epochs.append((epoch, each))
            epoch += draw(st.integers(1, 2))
        segments.append(segment(number, first, last, *epochs))
    low = draw(st.integers(0, 30))
    return segments, tuple(lineage), low, low + draw(st.integers(0, 20))


def epoch_at(epochs: Sequence[EpochStart], offset: int) -> int:
    return max((each.epoch for each in epochs if each.start_offset <= offset), default=-1)


@given(histories())
def test_every_offset_that_some_segment_has_rightly_is_read_once(
    history: tuple[list[RemoteLogSegmentMetadata], tuple[EpochStart, ...], int, int],
) -> None:
    segments, lineage, low, high = history
    stretches = cover(segments, lineage, low, high)
    read = [offset for each in stretches for offset in range(each.low, each.high)]
    assert read == sorted(set(read))
    for each in stretches:
        for offset in range(each.low, each.high):
            assert each.segment.start_offset <= offset <= each.segment.end_offset
            assert epoch_at(each.segment.epochs, offset) == epoch_at(lineage, offset)
    could = {
        offset
        for each in segments
        for offset in range(max(low, each.start_offset), min(high, each.end_offset + 1))
        if epoch_at(each.epochs, offset) == epoch_at(lineage, offset)
    }
    assert set(read) == could


@given(
    st.lists(st.tuples(st.integers(1, 50), st.booleans()), max_size=10),
    st.integers(1, 200_000),
    st.none() | st.integers(1, 40),
    st.none() | st.integers(1, 60),
)
def test_tasks_have_all_offsets_once_in_order_and_none_too_many(
    sizes: list[tuple[int, bool]], task_bytes: int, min_tasks: int | None, max_records: int | None
) -> None:
    pieces: list[Piece] = []
    offset = 0
    for size, in_store in sizes:
        if in_store:
            pieces.append(
                Stretch(segment(offset, offset, offset + size - 1), offset, offset + size)
            )
        else:
            pieces.append(BrokerRange("t", 0, offset, offset + size))
        offset += size
    tasks = tasks_of(pieces, task_bytes=task_bytes, min_tasks=min_tasks, max_records=max_records)
    read = [each for task in tasks for piece in task for each in range(piece.low, piece.high)]
    assert read == list(range(offset))
    assert all(tasks)
    for task in tasks:
        if max_records is not None:
            assert sum(piece.high - piece.low for piece in task) <= max_records
        assert len(task) == 1 or sum(piece.size_bytes for piece in task) <= task_bytes
    if min_tasks is not None and offset >= 4 * min_tasks:
        assert len(tasks) >= min_tasks


def test_markers_of_a_deposed_leader_are_not_the_logs(tmp_path: Path) -> None:
    """T-60: its segment goes on where the log parted from it, and so does its index of transactions."""
    store = open_store(str(tmp_path), {})
    theirs = replace(segment(1, 0, 19), txn_index_empty=False)
    aborted = [(7, 2, 5, 6), (8, 6, 15, 16)]
    index = b"".join(ENTRY.pack(VERSION, *each) for each in aborted)
    data = LogSegmentData(b"records", b"", b"", index, b"", b"")
    store.storage.copy_segment(replace(theirs, size_bytes=7), data)
    assert store.aborted([Stretch(theirs, 0, 10)]) == [Aborted(7, 2, 5)]
    assert store.aborted([Stretch(theirs, 0, 20)]) == [Aborted(7, 2, 5), Aborted(8, 6, 15)]
