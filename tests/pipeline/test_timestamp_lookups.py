"""Timestamp lookups never return an offset after the first matching record, whatever the records' timestamps are."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from itertools import accumulate
from uuid import UUID

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from pyspark.sql.datasource import Filter, GreaterThanOrEqual

from odradek.pipeline.data_source import FilteringReader
from odradek.pipeline.filters import PushedFilters
from odradek.pipeline.options import parse_options
from odradek.pipeline.planning import LOOKED_INTO_MAX
from odradek.pipeline.query import Query
from odradek.pipeline.range_reader import ReadSettings, read_pieces
from odradek.pipeline.segment_columns import SegmentSlice
from odradek.pipeline.segment_reader import narrowed_to_time
from odradek.pipeline.store import Store
from odradek.pipeline.table_reader import ReadTask
from odradek.protocol.records.records import Record, build_batch
from odradek.seams.entropy import SeededEntropy
from odradek.storage.log import offset_index
from odradek.storage.log.time_index import ENTRY
from odradek.storage.tiered.manifest import Manifest
from odradek.storage.tiered.object_names import LOG_SUFFIX, MANIFEST_SUFFIX, segment_key
from odradek.storage.tiered.object_store import ObjectStoreStorage
from odradek.storage.tiered.remote_storage_manager import IndexType
from odradek.storage.tiered.segment_metadata import (
    EpochStart,
    RemoteLogSegmentId,
    RemoteLogSegmentMetadata,
    SegmentState,
    TopicIdPartition,
)
from odradek.testing.virtual_object_store import VirtualObjectStore
from tests.support.virtual_reading import FULL

START = 100
SEALED_MS = 40
"""Maximum timestamp by brokers of a segment whose records have none: the time of its roll."""


@settings(deadline=None)
@given(
    st.lists(st.tuples(st.integers(0, 30), st.booleans()), min_size=1, max_size=30),
    st.integers(0, 31),
    st.data(),
)
def test_first_record_at_or_after_a_timestamp_is_in_the_range(
    records: list[tuple[int, bool]], at_ms: int, data: st.DataObject
) -> None:
    """An entry has the maximum timestamp so far, after some batches, whenever it has increased."""
    index, log, indexed, newest, of_newest = b"", b"", -1, -1, 0
    for number, (timestamp, ends_entry) in enumerate(records):
        if timestamp > newest:
            newest, of_newest = timestamp, number
        if ends_entry and newest > indexed:
            index += ENTRY.pack(newest, of_newest)
            indexed = newest
        log += build_batch([Record(-1, timestamp, None, b"v")], base_offset=START + number)
    low = data.draw(st.integers(START, START + len(records) - 1))
    high = data.draw(st.integers(low + 1, START + len(records)))
    segment = RemoteLogSegmentMetadata(
        RemoteLogSegmentId(TopicIdPartition(UUID(int=1), "t", 0), UUID(int=2)),
        START,
        START + len(records) - 1,
        1,
        newest,
        0,
        (EpochStart(0, START),),
        len(log),
    )
    objects = VirtualObjectStore()
    objects.put(segment_key(segment, LOG_SUFFIX), [log])
    objects.put(segment_key(segment, IndexType.OFFSET.value), [b""])
    objects.put(segment_key(segment, IndexType.TIMESTAMP.value), [index])
    storage = ObjectStoreStorage(objects, SeededEntropy(1))
    found = narrowed_to_time(storage, SegmentSlice(segment, low, high), at_ms)
    assert low <= found.low < found.high <= high
    late = [START + n for n, (timestamp, _) in enumerate(records) if timestamp >= at_ms]
    wanted = next((offset for offset in late if low <= offset < high), None)
    if wanted is not None:
        assert found.low <= wanted
        assert wanted < found.high or late[0] < low, "the index has no earlier entry"


def test_range_without_an_index_is_the_whole_segment() -> None:
    segment = RemoteLogSegmentMetadata(
        RemoteLogSegmentId(TopicIdPartition(UUID(int=1), "t", 0), UUID(int=2)),
        0,
        9,
        1,
        5,
        0,
        (EpochStart(0, 0),),
        1000,
    )
    segment_slice = SegmentSlice(segment, 0, 10)
    storage = ObjectStoreStorage(VirtualObjectStore(), SeededEntropy(1))
    assert narrowed_to_time(storage, segment_slice, 3) is segment_slice


Times = list[int]


def _stored(segments: list[list[Times]], partitions: int = 1) -> tuple[Store, Times]:
    """Store segments with batches of these timestamps, with an index entry per batch, the same in each partition;
    return all timestamps of one partition in order.
    """
    objects, every = VirtualObjectStore(), Times()
    for partition in range(partitions):
        every = _put(objects, partition, segments)
    return Store(objects, ObjectStoreStorage(objects, SeededEntropy(1))), every


def _put(objects: VirtualObjectStore, partition: int, segments: list[list[Times]]) -> Times:
    every = Times()
    for number, batches in enumerate(segments):
        start, log, places, index = len(every), b"", b"", b""
        newest = indexed = -1
        for times in batches:
            records = [Record(offset=-1, timestamp=at, key=None, value=b"v") for at in times]
            end = len(every) + len(times) - 1
            if log:
                places += offset_index.ENTRY.pack(end - start, len(log))
            newest = max(newest, *times)
            if newest > indexed:
                index += ENTRY.pack(newest, end - start)
                indexed = newest
            log += build_batch(records, base_offset=len(every))
            every += times
        segment = RemoteLogSegmentMetadata(
            RemoteLogSegmentId(
                TopicIdPartition(UUID(int=1), "t", partition), UUID(int=number + 1)
            ),
            start, len(every) - 1, 1, newest if newest >= 0 else SEALED_MS, 0,
            (EpochStart(0, start),), len(log),
            SegmentState.COPY_SEGMENT_FINISHED, txn_index_empty=True,
        )  # fmt: skip
        for suffix, data in (
            (LOG_SUFFIX, log),
            (IndexType.OFFSET.value, places),
            (IndexType.TIMESTAMP.value, index),
            (IndexType.LEADER_EPOCH.value, b"0\n1\n0 0\n"),
            (MANIFEST_SUFFIX, Manifest(segment, {}).render()),
        ):
            objects.put(segment_key(segment, suffix), [data])
    return every


@settings(deadline=None)
@given(
    st.lists(
        st.lists(st.lists(st.integers(-1, 30), min_size=1, max_size=3), min_size=1, max_size=5),
        min_size=1,
        max_size=5,
    ),
    st.integers(0, 30),
    st.integers(1, 31),
    st.integers(0, 3),
    st.booleans(),
)
@example([[[-1]], [[0]]], 0, 1, 0, True)
def test_no_record_between_two_timestamps_is_excluded(
    segments: list[list[Times]],
    since_ms: int,
    length_ms: int,
    spare_ms: int,
    has_max_lateness: bool,
) -> None:
    store, every = _stored(segments)
    lateness = max(most - at for at, most in zip(every, accumulate(every, max), strict=True))
    until_ms = since_ms + length_ms
    options = {"subscribe": "t", "tiered.url": "unused"}
    if has_max_lateness:
        options["maxlateness"] = str(lateness + spare_ms)
    parsed = parse_options(options, streaming=False)
    filtered = PushedFilters(since_ms=since_ms, until_ms=until_ms)
    query = Query(parsed, filtered, store=store)
    reading = ReadSettings(
        columns=["offset"], bootstrap=None, tiered_url="unused", store_options={},
        read_committed=False, request_timeout_ms=1, fetch_max_bytes=1, fail_on_data_loss=True,
        unreadable="fail", since_ms=since_ms, until_ms=until_ms,
        too_late_ms=filtered.too_late_ms(parsed.max_lateness_ms),
    )  # fmt: skip
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("odradek.pipeline.store.store_at", lambda *options: store)
        tables = list(read_pieces(reading, query.plan(query.ranges()).pieces, {}))
    found = [offset for table in tables for offset in table.column(0).to_pylist()]
    assert found == [n for n, at in enumerate(every) if since_ms <= at < until_ms]


def test_first_and_last_segment_are_narrowed_by_their_indexes() -> None:
    """One segment per day, in order, with a batch per hour. Segments after the maximum lateness are not planned."""
    days = [[[day * 24 + hour] for hour in range(24)] for day in range(30)]
    store, _ = _stored(days)
    options = {"subscribe": "t", "tiered.url": "unused", "maxlateness": "2"}
    parsed = parse_options(options, streaming=False)

    def planned(since: int, until: int) -> list[tuple[int, int]]:
        query = Query(parsed, PushedFilters(since_ms=since, until_ms=until), store=store)
        return [(piece.low, piece.high) for piece in query.plan(query.ranges()).pieces]

    assert planned(10 * 24 + 3, 10 * 24 + 4) == [(10 * 24 + 2, 10 * 24 + 7)]
    assert planned(10 * 24 + 3, 13 * 24 + 4) == [
        (10 * 24 + 2, 11 * 24), (11 * 24, 13 * 24), (13 * 24, 13 * 24 + 7)
    ]  # fmt: skip
    assert planned(10 * 24 - 1, 10 * 24) == [(10 * 24 - 2, 10 * 24), (10 * 24, 10 * 24 + 3)]


def test_narrowed_segments_are_distributed_among_tasks(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    store, _ = _stored([[[hour] for hour in range(24)]], partitions=40)
    monkeypatch.setattr("odradek.pipeline.query.store_at", lambda *options: store)
    options = {"subscribe": "t", "tiered.url": "unused", "maxlateness": "0"}

    def pieces_a_task(*filters: Filter) -> list[int]:
        reader = FilteringReader(parse_options(options, streaming=False), FULL)
        assert list(reader.pushFilters([*filters])) == []
        return [len(task.pieces) for task in reader.partitions() if isinstance(task, ReadTask)]

    at = datetime(1970, 1, 1, tzinfo=UTC) + timedelta(milliseconds=5)
    assert pieces_a_task() == [40]
    few = pieces_a_task(GreaterThanOrEqual(("timestamp",), at))
    assert (sum(few), max(few) <= LOOKED_INTO_MAX) == (40, True)
