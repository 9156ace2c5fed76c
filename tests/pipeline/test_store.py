"""Segments of a store by summaries and manifests are the same for any combination of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from uuid import UUID

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from odradek.pipeline.filters import PushedFilters
from odradek.pipeline.options import parse_options
from odradek.pipeline.planning import flatten_ranges
from odradek.pipeline.query import Query
from odradek.storage.tiered.object_names import (
    LOG_SUFFIX,
    segment_key,
    summary_key,
)
from odradek.storage.tiered.partition_summary import PartitionSummaryBuilder
from odradek.storage.tiered.segment_metadata import (
    RemoteLogSegmentId,
    RemoteLogSegmentMetadata,
)
from tests.pipeline.virtual_store import WHERE, SegmentStore, segment


def in_order(segments: Sequence[RemoteLogSegmentMetadata]) -> list[RemoteLogSegmentMetadata]:
    return sorted(segments, key=lambda each: (each.start_offset, each.id.id.bytes))


@settings(deadline=None)
@given(
    st.lists(st.integers(0, 30), max_size=30),
    st.integers(0, 30),
    st.integers(0, 30),
    st.integers(1, 40),
)
def test_summary_and_manifests_equal_manifests_only(
    starts: list[int], summarised_to: int, begins_at: int, page_objects: int
) -> None:
    """With a first offset within the summary, and segments that retention has deleted since."""
    segments = [segment(number, start, start) for number, start in enumerate(starts)]
    remote = SegmentStore(page_objects)
    remote.has(*(each for each in segments if each.start_offset >= begins_at))
    remote.summarise(*in_order([each for each in segments if each.start_offset <= summarised_to]))
    left = [each for each in segments if each.start_offset >= begins_at]
    assert list(remote.store.segments(WHERE)) == in_order(left)


def many(count: int) -> list[RemoteLogSegmentMetadata]:
    return [segment(number, 10 * number, 10 * number + 9) for number in range(count)]


def test_number_of_requests_per_partition_is_constant() -> None:
    remote = SegmentStore(page_objects=1000)
    segments = many(500)
    remote.has(*segments)
    remote.summarise(*segments[:497])
    remote.asked()
    assert list(remote.store.segments(WHERE)) == segments
    assert (remote.requests("list"), remote.requests("get")) == (2, 1 + 3)


def test_number_of_requests_of_a_store_only_query_is_constant() -> None:
    remote = SegmentStore(page_objects=1000)
    segments = many(500)
    remote.has(*segments)
    remote.summarise(*segments)
    remote.asked()
    options = parse_options({"subscribe": "t", "tiered.url": "unused"}, streaming=False)
    query = Query(options, store=remote.store)
    pieces = list(flatten_ranges(query.plan(query.ranges()).pieces))
    assert [(each.low, each.high) for each in pieces] == [
        (each.start_offset, each.end_offset + 1) for each in segments
    ]
    # topics; first page and pages after the summary; summary, leader epochs and their manifest
    assert (remote.requests("list"), remote.requests("get")) == (1 + 2, 3)


@pytest.mark.parametrize("by", ["assign", "filter"])
def test_only_partitions_that_are_read_are_listed(by: str) -> None:
    remote = SegmentStore()
    partitions = [replace(WHERE, partition=number) for number in range(40)]
    for number, each in enumerate(partitions):
        remote.has(replace(segment(1, 0, 9), id=RemoteLogSegmentId(each, UUID(int=number))))
    remote.asked()
    given = {"assign": '{"t":[7]}'} if by == "assign" else {"subscribe": "t"}
    options = parse_options({**given, "tiered.url": "unused"}, streaming=False)
    filtered = PushedFilters() if by == "assign" else PushedFilters(partitions=frozenset([7]))
    query = Query(options, filtered, store=remote.store)
    (piece,) = query.plan(query.ranges()).pieces
    assert (piece.low, piece.high) == (0, 10)
    assert remote.requests("list") == 1 + 2, (
        "the directories; one partition, and the pages after its summary"
    )


def test_summary_of_the_latest_leader_is_used() -> None:
    """That of the latest leader (epoch 1) has two segments, that of a deposed leader has five."""
    remote = SegmentStore()
    old, new = many(5), [segment(90, 20, 29, 1), segment(91, 30, 39, 1)]
    remote.has(*old, *new)
    remote.summarise(*old[:2], epoch=1)
    late = PartitionSummaryBuilder(old).encode()
    remote.objects.put(summary_key(WHERE, 0), [late])
    assert list(remote.store.segments(WHERE)) == in_order([*old, *new])


@pytest.mark.parametrize("what", ["broken", "empty", "missing"])
def test_unreadable_summary_is_ignored(what: str) -> None:
    remote = SegmentStore()
    segments = many(30)
    remote.has(*segments)
    remote.objects.put(summary_key(WHERE, 0), [b"ODSU nonsense" if what == "broken" else b""])
    first_page = remote.store.first_page(WHERE)
    if what == "missing":
        remote.objects.delete(summary_key(WHERE, 0))
    assert list(remote.store.segments(WHERE, first_page)) == segments


def test_directory_without_finished_segment_is_no_partition() -> None:
    remote = SegmentStore()
    remote.summarise(*many(3))
    remote.objects.put(segment_key(segment(1, 0, 9), LOG_SUFFIX), [b"of a copy that failed"])
    assert list(remote.store.partitions(lambda topic: True)) == []
    assert list(remote.store.segments(WHERE)) == []
    other = replace(WHERE, topic="u")
    remote.has(replace(segment(1, 0, 9), id=RemoteLogSegmentId(other, UUID(int=1))))
    assert list(remote.store.partitions(lambda topic: True)) == [other]
    assert list(remote.store.partitions(lambda topic: topic == "t")) == []
