"""What a store says it has, by summaries and manifests: the same, whichever of them there are."""

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
from tests.pipeline.virtual_store import WHERE, World, segment


def in_order(segments: Sequence[RemoteLogSegmentMetadata]) -> list[RemoteLogSegmentMetadata]:
    return sorted(segments, key=lambda each: (each.start_offset, each.id.id.bytes))


@settings(deadline=None)
@given(
    st.lists(st.integers(0, 30), max_size=30),
    st.integers(0, 30),
    st.integers(0, 30),
    st.integers(1, 40),
)
def test_summary_and_manifests_are_as_manifests_alone(
    starts: list[int], summarised_to: int, begins_at: int, page_objects: int
) -> None:
    """With what lies before an offset in the summary, and retention having come to another since."""
    segments = [segment(number, start, start) for number, start in enumerate(starts)]
    cluster_view = World(page_objects)
    cluster_view.has(*(each for each in segments if each.start_offset >= begins_at))
    cluster_view.summarise(
        *in_order([each for each in segments if each.start_offset <= summarised_to])
    )
    left = [each for each in segments if each.start_offset >= begins_at]
    assert list(cluster_view.store.segments(WHERE)) == in_order(left)


def many(count: int) -> list[RemoteLogSegmentMetadata]:
    return [segment(number, 10 * number, 10 * number + 9) for number in range(count)]


def test_a_partition_costs_few_requests_whatever_it_has() -> None:
    cluster_view = World(page_objects=1000)
    segments = many(500)
    cluster_view.has(*segments)
    cluster_view.summarise(*segments[:497])
    cluster_view.asked()
    assert list(cluster_view.store.segments(WHERE)) == segments
    assert (cluster_view.requests("list"), cluster_view.requests("get")) == (2, 1 + 3)


def test_a_query_of_the_store_alone_costs_few_requests() -> None:
    cluster_view = World(page_objects=1000)
    segments = many(500)
    cluster_view.has(*segments)
    cluster_view.summarise(*segments)
    cluster_view.asked()
    options = parse_options({"subscribe": "t", "tiered.url": "unused"}, streaming=False)
    query = Query(options, store=cluster_view.store)
    pieces = list(flatten_ranges(query.plan(query.ranges()).pieces))
    assert [(each.low, each.high) for each in pieces] == [
        (each.start_offset, each.end_offset + 1) for each in segments
    ]
    # the topics; the beginning and what is behind the summary; it, and the epochs, with their manifest
    assert (cluster_view.requests("list"), cluster_view.requests("get")) == (1 + 2, 3)


@pytest.mark.parametrize("by", ["assign", "filter"])
def test_of_many_partitions_those_are_looked_into_that_are_read(by: str) -> None:
    cluster_view = World()
    partitions = [replace(WHERE, partition=number) for number in range(40)]
    for number, each in enumerate(partitions):
        cluster_view.has(replace(segment(1, 0, 9), id=RemoteLogSegmentId(each, UUID(int=number))))
    cluster_view.asked()
    given = {"assign": '{"t":[7]}'} if by == "assign" else {"subscribe": "t"}
    options = parse_options({**given, "tiered.url": "unused"}, streaming=False)
    filtered = PushedFilters() if by == "assign" else PushedFilters(partitions=frozenset([7]))
    query = Query(options, filtered, store=cluster_view.store)
    (piece,) = query.plan(query.ranges()).pieces
    assert (piece.low, piece.high) == (0, 10)
    assert cluster_view.requests("list") == 1 + 2, (
        "the directories; one of them, and what lies behind"
    )


def test_the_latest_leaders_summary_counts() -> None:
    """It begins with what that one has not; a deposed leader's says where an old history went."""
    cluster_view = World()
    old, new = many(5), [segment(90, 20, 29, 1), segment(91, 30, 39, 1)]
    cluster_view.has(*old, *new)
    cluster_view.summarise(*old[:2], epoch=1)
    late = PartitionSummaryBuilder(old).encode()
    cluster_view.objects.put(summary_key(WHERE, 0), [late])
    assert list(cluster_view.store.segments(WHERE)) == in_order([*old, *new])


@pytest.mark.parametrize("what", ["broken", "empty", "missing"])
def test_a_summary_that_cannot_be_read_is_done_without(what: str) -> None:
    cluster_view = World()
    segments = many(30)
    cluster_view.has(*segments)
    cluster_view.objects.put(summary_key(WHERE, 0), [b"ODSU nonsense" if what == "broken" else b""])
    first_page = cluster_view.store.first_page(WHERE)
    if what == "missing":
        cluster_view.objects.delete(summary_key(WHERE, 0))
    assert list(cluster_view.store.segments(WHERE, first_page)) == segments


def test_a_directory_without_a_finished_segment_is_no_partition() -> None:
    cluster_view = World()
    cluster_view.summarise(*many(3))
    cluster_view.objects.put(segment_key(segment(1, 0, 9), LOG_SUFFIX), [b"of a copy that failed"])
    assert list(cluster_view.store.partitions(lambda topic: True)) == []
    assert list(cluster_view.store.segments(WHERE)) == []
    other = replace(WHERE, topic="u")
    cluster_view.has(replace(segment(1, 0, 9), id=RemoteLogSegmentId(other, UUID(int=1))))
    assert list(cluster_view.store.partitions(lambda topic: True)) == [other]
    assert list(cluster_view.store.partitions(lambda topic: topic == "t")) == []
