"""Segments of a lineage: each offset is read once, from the copy with the records of the partition's leader epochs."""

from __future__ import annotations

import pickle
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from random import Random
from uuid import UUID

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from odradek.pipeline.decoding.record_decoder import AbortedTransaction
from odradek.pipeline.leader_epoch_lineage import select_slices
from odradek.pipeline.planning import BrokerRange, PlannedRange, flatten_ranges, tasks_of
from odradek.pipeline.segment_columns import Segments, SegmentSlice, SegmentSlices
from odradek.pipeline.store import open_store
from odradek.storage.log.transaction_index import ENTRY, VERSION
from odradek.storage.tiered.custom_metadata import DENSE as DENSE_FLAG
from odradek.storage.tiered.custom_metadata import custom_metadata
from odradek.storage.tiered.remote_storage_manager import LogSegmentData
from odradek.storage.tiered.segment_metadata import (
    EpochStart,
    RemoteLogSegmentId,
    RemoteLogSegmentMetadata,
    SegmentState,
    TopicIdPartition,
)
from tests.pipeline import lineage_model

FINISHED = SegmentState.COPY_SEGMENT_FINISHED
WHERE = TopicIdPartition(UUID(int=1), "t", 0)


def segment(
    number: int, start: int, end: int, *epochs: tuple[int, int]
) -> RemoteLogSegmentMetadata:
    """Return a segment with offsets from `start` to `end`, both inclusive."""
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


def columns(*segments: RemoteLogSegmentMetadata) -> Segments:
    return Segments.of(WHERE, segments)


def segment_slice(segment: RemoteLogSegmentMetadata, low: int, high: int) -> SegmentSlices:
    return columns(segment).slices(np.array([0]), np.array([low]), np.array([high]))


def selected(slices: Iterable[SegmentSlice]) -> list[tuple[int, int, int]]:
    return [(each.segment.id.id.int, each.low, each.high) for each in slices]


ONE_EPOCH = (EpochStart(0, 0),)


def test_segment_with_the_highest_end_is_read_and_no_offset_twice() -> None:
    segments = [segment(1, 0, 9), segment(2, 5, 29), segment(3, 10, 19), segment(4, 30, 39)]
    assert selected(select_slices(columns(*segments), ONE_EPOCH, 3, 35)) == [
        (1, 3, 10),
        (2, 10, 30),
        (4, 30, 35),
    ]


def test_slices_have_the_copy_time_of_segments_without_timestamps() -> None:
    old = replace(segment(1, 0, 9), event_timestamp_ms=55)
    new = replace(segment(2, 10, 19), max_timestamp_ms=70, event_timestamp_ms=77)
    rows = select_slices(columns(old, new), ONE_EPOCH, 0, 20).packed().unpacked().rows
    assert [(row["newest"], row["copied"]) for row in rows] == [(-1, 55), (70, 0)]


def test_gap_is_skipped() -> None:
    segments = [segment(1, 0, 9), segment(2, 20, 29)]
    assert selected(select_slices(columns(*segments), ONE_EPOCH, 0, 40)) == [
        (1, 0, 10),
        (2, 20, 30),
    ]


def test_records_of_a_deposed_leader_are_excluded() -> None:
    """Unclean election in KIP-405: leaders of epochs 0 and 1 have both copied offsets 0-3."""
    lineage = (EpochStart(0, 0), EpochStart(2, 2))
    segments = [
        segment(1, 0, 3, (0, 0)),
        segment(2, 0, 3, (0, 0), (1, 2)),
        segment(3, 2, 5, (2, 2)),
    ]
    assert selected(select_slices(columns(*segments), lineage, 0, 10)) == [(1, 0, 2), (3, 2, 6)]


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


@settings(deadline=None)
@given(histories())
def test_every_offset_of_the_lineage_is_read_once(
    history: tuple[list[RemoteLogSegmentMetadata], tuple[EpochStart, ...], int, int],
) -> None:
    segments, lineage, low, high = history
    slices = list(select_slices(columns(*segments), lineage, low, high))
    by_id = {each.id: each for each in segments}
    read = [offset for each in slices for offset in range(each.low, each.high)]
    assert read == sorted(set(read))
    for each in slices:
        for offset in range(each.low, each.high):
            assert each.segment.start_offset <= offset <= each.segment.end_offset
            assert epoch_at(by_id[each.segment.id].epochs, offset) == epoch_at(lineage, offset)
    could = {
        offset
        for each in segments
        for offset in range(max(low, each.start_offset), min(high, each.end_offset + 1))
        if epoch_at(each.epochs, offset) == epoch_at(lineage, offset)
    }
    assert set(read) == could


@settings(deadline=None)
@given(histories())
def test_columnar_selection_equals_the_model(
    history: tuple[list[RemoteLogSegmentMetadata], tuple[EpochStart, ...], int, int],
) -> None:
    segments, lineage, low, high = history
    found = columns(*segments)
    expected = lineage_model.select_slices(list(found), lineage, low, high)
    slices = select_slices(found, lineage, low, high)
    assert selected(slices) == selected(expected)
    assert slices.sizes().tolist() == [each.size_bytes for each in expected]
    assert [each.size_bytes for each in slices] == [each.size_bytes for each in expected]


@settings(deadline=None)
@given(histories(), st.lists(st.booleans(), max_size=8), st.integers(0, 40))
def test_columns_equal_their_segments(
    history: tuple[list[RemoteLogSegmentMetadata], tuple[EpochStart, ...], int, int],
    split: list[bool],
    start: int,
) -> None:
    """Built from a summary and manifests, without segments that were deleted since."""
    customs = (None, b"one", b"other")
    segments = [
        replace(each, state=FINISHED, custom_metadata=customs[each.id.id.int * 7 % 5 % 3])
        for each in history[0]
    ]
    firsts = [each for each, first in zip(segments, split, strict=False) if first]
    ordered = sorted(segments, key=lambda each: (each.start_offset, each.id.id.bytes))
    found = columns(*firsts).extended_by(each for each in segments if each not in firsts)
    assert list(found) == ordered
    assert [found[at] for at in range(len(found))] == ordered
    assert found.epochs() == sorted({e.epoch for each in segments for e in each.epochs})
    left = [each for each in ordered if each.start_offset >= start]
    assert list(found.starting_from(start)) == left
    if segments:
        best = max((each.epochs[-1].epoch, each.end_offset) for each in segments)
        latest = found.latest()
        assert (latest.epochs[-1].epoch, latest.end_offset) == best


@settings(deadline=None)
@given(
    st.lists(
        st.lists(st.integers(1, 50), min_size=1, max_size=4) | st.integers(1, 50), max_size=10
    ),
    st.integers(1, 200_000),
    st.none() | st.integers(1, 40),
    st.none() | st.integers(1, 60),
)
def test_tasks_have_each_offset_once_in_order_within_their_limit(
    sizes: list[list[int] | int], task_bytes: int, min_tasks: int | None, max_records: int | None
) -> None:
    pieces: list[PlannedRange] = []
    offset = 0
    for size in sizes:
        if isinstance(size, int):
            pieces.append(BrokerRange("t", 0, offset, offset + size))
            offset += size
            continue
        segments = []
        begin = offset
        for each in size:
            segments.append(segment(offset, offset, offset + each - 1))
            offset += each
        pieces.append(select_slices(columns(*segments), ONE_EPOCH, begin, offset).packed())
    tasks = tasks_of(pieces, task_bytes=task_bytes, min_tasks=min_tasks, max_records=max_records)
    assert not pieces, "removed from the packer"
    read = [each for task in tasks for piece in flatten_ranges(task) for each in offsets_of(piece)]
    assert read == list(range(offset))
    assert all(tasks)
    for task in tasks:
        inside = list(flatten_ranges(task))
        if max_records is not None:
            assert sum(piece.high - piece.low for piece in inside) <= max_records
        assert len(inside) == 1 or sum(piece.size_bytes for piece in inside) <= task_bytes
        assert pickle.loads(pickle.dumps(task)) == task
    if min_tasks is not None and offset >= 4 * min_tasks:
        assert len(tasks) >= min_tasks


DENSE = custom_metadata(DENSE_FLAG)


@pytest.mark.parametrize(("skips_dense", "count"), [(False, 40), (True, 13)])
def test_dense_segments_count_less_if_they_are_not_read(skips_dense: bool, count: int) -> None:
    """A task has as many segments as take a given time. Segments that are read count with their size."""
    every = [segment(at, 100 * at, 100 * at + 99) for at in range(40)]
    segments = [replace(each, custom_metadata=DENSE) for each in every[:30]] + every[30:]
    pieces: list[PlannedRange] = [select_slices(columns(*segments), ONE_EPOCH, 0, 4000).packed()]
    size = 100 * 1000
    tasks = tasks_of(pieces, task_bytes=size, skips_dense=skips_dense)
    assert len(tasks) == count
    found = [
        sum(each.size_bytes if each.low >= 3000 else 0 for each in flatten_ranges(task))
        for task in tasks
    ]
    assert max(found) <= size


def offsets_of(piece: SegmentSlice | BrokerRange) -> range:
    if isinstance(piece, SegmentSlice):  # within its segment, which differs each time
        start = piece.segment.start_offset
        assert piece.segment.id.id.int == start
        assert start <= piece.low < piece.high <= piece.segment.end_offset + 1
    return range(piece.low, piece.high)


def test_segment_takes_few_bytes_in_a_task() -> None:
    """The driver may have to send ten million of them."""
    ids = [UUID(bytes=Random(number).randbytes(16)) for number in range(500)]
    segments = [
        replace(
            segment(0, 977 * number, 977 * number + 976),
            id=RemoteLogSegmentId(WHERE, each),
            max_timestamp_ms=1_700_000_000_000 + 60_017 * number,
            size_bytes=104_857_600 - 31 * number,
        )
        for number, each in enumerate(ids)
    ]
    whole = select_slices(columns(*segments), ONE_EPOCH, 0, 1 << 40)
    (task,) = tasks_of([whole.packed()], task_bytes=1 << 50)
    assert len(pickle.dumps(task)) < 25 * 500
    (packed,) = task
    assert not isinstance(packed, BrokerRange)
    assert list(packed) == list(whole)


def test_markers_of_a_deposed_leader_are_excluded(tmp_path: Path) -> None:
    """T-60: its segment continues after the logs diverged, and so does its transaction index."""
    (tmp_path / "kafka-tiered-storage").mkdir()
    store = open_store(f"file://{tmp_path}", {})
    theirs = replace(segment(1, 0, 19), txn_index_empty=False)
    aborted = [(7, 2, 5, 6), (8, 6, 15, 16)]
    index = b"".join(ENTRY.pack(VERSION, *each) for each in aborted)
    data = LogSegmentData(b"records", b"", b"", index, b"", b"")
    store.storage.copy_segment(replace(theirs, size_bytes=7), data)
    assert store.aborted(segment_slice(theirs, 0, 10), 10) == ([AbortedTransaction(7, 2, 5)], None)
    both = [AbortedTransaction(7, 2, 5), AbortedTransaction(8, 6, 15)]
    assert store.aborted(segment_slice(theirs, 0, 20), 20) == (both, None)


def test_transaction_indexes_are_read_until_no_later_one_matters(tmp_path: Path) -> None:
    (tmp_path / "kafka-tiered-storage").mkdir()
    store = open_store(f"file://{tmp_path}", {})
    segments = []
    for number in range(100):
        start = 10 * number
        made = replace(segment(number, start, start + 9), txn_index_empty=False, size_bytes=7)
        index = ENTRY.pack(VERSION, 7, start, start + 5, start + 6)
        data = LogSegmentData(b"records", b"", b"", index, b"", b"")
        store.storage.copy_segment(made, data)
        segments.append(made)
    slices = select_slices(columns(*segments), ONE_EPOCH, 0, 1000)
    found, all_before = store.aborted(slices, 20)
    assert (found, all_before) == ([AbortedTransaction(7, at, at + 5) for at in (0, 10)], 30)
    found, all_before = store.aborted(slices, 10_000)
    assert (len(found), all_before) == (100, None)
