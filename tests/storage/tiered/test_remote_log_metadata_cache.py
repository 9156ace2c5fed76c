"""Remote log segment metadata of one partition (T-23 to T-27, E15, E16, S-01, S-02)."""

from __future__ import annotations

import gc
import tracemalloc
from collections.abc import Callable, Iterator
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from odradek.storage.log.leader_epoch_cache import EpochStart
from odradek.storage.tiered.errors import (
    InvalidRemoteState,
    RemoteResourceNotFound,
)
from odradek.storage.tiered.leader_epoch_lineage import is_within, with_records
from odradek.storage.tiered.remote_log_metadata_cache import RemoteLogMetadataCache
from odradek.storage.tiered.segment_metadata import (
    PartitionDeleteState,
    RemoteLogSegmentMetadata,
    RemotePartitionDeleteMetadata,
)
from tests.support.remote_segments import (
    DELETED,
    DELETING,
    FINISHED,
    FOO_0,
    STARTED,
    Events,
    Model,
    any_events,
    becomes,
    check_against,
    play,
    segment,
    with_copies,
)


def number_of(found: RemoteLogSegmentMetadata | None) -> int | None:
    return None if found is None else found.id.id.int


def numbers(metadata: RemoteLogMetadataCache, epoch: int | None = None) -> list[int]:
    return [each.id.id.int for each in metadata.segments(epoch)]


def test_copy_is_readable_only_while_finished() -> None:
    metadata, copy = RemoteLogMetadataCache(FOO_0), segment(1, 0, 9)
    seen = []
    for event in (copy, *(becomes(copy, state) for state in (FINISHED, DELETING, DELETED))):
        metadata.apply(event)
        seen.append((number_of(metadata.find(0, 5)), numbers(metadata), metadata.size_bytes(0)))
    assert seen == [(None, [1], 0), (1, [1], 100), (None, [1], 0), (None, [], 0)]


def test_segment_starts_with_copy_segment_started() -> None:
    """T-23."""
    for state in (FINISHED, DELETING, DELETED):
        metadata = RemoteLogMetadataCache(FOO_0)
        copy = segment(1, 0, 9).updated(becomes(segment(1, 0, 9), state))
        with pytest.raises(InvalidRemoteState, match="should have the state COPY_SEGMENT_STARTED"):
            metadata.apply(copy)
        assert numbers(metadata) == []


def test_update_needs_existing_segment() -> None:
    """T-24."""
    metadata, copy = RemoteLogMetadataCache(FOO_0), segment(1, 0, 9)
    with pytest.raises(RemoteResourceNotFound):
        metadata.apply(becomes(copy, FINISHED))
    metadata.apply(copy)
    with pytest.raises(InvalidRemoteState):
        metadata.apply(becomes(copy, STARTED))


def test_repeated_state_changes_nothing() -> None:
    metadata, copy = RemoteLogMetadataCache(FOO_0), segment(1, 0, 9)
    metadata.apply(copy)
    metadata.apply(copy)
    metadata.apply(becomes(copy, FINISHED, 7))
    metadata.apply(becomes(copy, FINISHED, 8))
    assert [each.event_timestamp_ms for each in metadata.segments()] == [7]
    assert metadata.size_bytes(0) == 100


def test_copy_of_earlier_tiered_epoch_cannot_be_finished() -> None:
    """X-10: the remote data was deleted meanwhile, so only its deletion is valid."""
    metadata, copy = RemoteLogMetadataCache(FOO_0), segment(1, 0, 9)
    metadata.apply(replace(copy, tiered_epoch=2))
    metadata.first_tiered_epoch = 3
    for attempt in (metadata.check, metadata.apply):
        with pytest.raises(InvalidRemoteState, match="was copied in tiered epoch 2"):
            attempt(becomes(copy, FINISHED))
    metadata.apply(becomes(copy, DELETING))
    current = replace(segment(2, 0, 9), tiered_epoch=3)
    metadata.apply(current)
    metadata.apply(becomes(current, FINISHED))
    assert number_of(metadata.find(0, 5)) == 2


def test_failed_copy_is_deleted_without_being_readable() -> None:
    """T-25: state 0 to 2; E15: an unfinished copy has no size."""
    metadata, copy = RemoteLogMetadataCache(FOO_0), segment(1, 0, 9)
    metadata.apply(copy)
    assert (metadata.size_bytes(0), metadata.highest_offset(0)) == (0, None)
    metadata.apply(becomes(copy, DELETING))
    assert [each.state for each in metadata.unfinished()] == [DELETING]
    metadata.apply(becomes(copy, DELETED))
    assert (metadata.unfinished(), metadata.epochs(), len(metadata)) == ([], [], 0)


def test_deletion_of_unfinished_copy_is_refused_once_finished() -> None:
    metadata, copy = RemoteLogMetadataCache(FOO_0), segment(1, 0, 9)
    given_up = replace(becomes(copy, DELETING), unless_finished=True)
    metadata.apply(copy)
    metadata.apply(becomes(copy, FINISHED))
    with pytest.raises(InvalidRemoteState, match="deletion of an incomplete copy is refused"):
        metadata.apply(given_up)
    assert number_of(metadata.find(0, 5)) == 1
    metadata = RemoteLogMetadataCache(FOO_0)
    metadata.apply(copy)
    metadata.apply(given_up)
    with pytest.raises(InvalidRemoteState):
        metadata.apply(becomes(copy, FINISHED))


def test_partition_deletion_states() -> None:
    """T-27."""
    metadata = RemoteLogMetadataCache(FOO_0)
    marked, started, finished = (
        RemotePartitionDeleteMetadata(FOO_0, 1, 5, state) for state in PartitionDeleteState
    )
    with pytest.raises(InvalidRemoteState):
        metadata.apply(started)
    for event in (marked, marked, started, started):
        metadata.apply(event)
    with pytest.raises(InvalidRemoteState):
        metadata.apply(marked)
    metadata.apply(finished)
    assert metadata.deletion == finished


def test_offset_is_found_by_its_leader_epoch() -> None:
    metadata = with_copies(segment(1, 0, 9, [(0, 0), (2, 6)]), segment(2, 10, 19, [(2, 10)]))
    found = {(e, o): number_of(metadata.find(e, o)) for e in (0, 1, 2) for o in (0, 5, 6, 10, 20)}
    assert {at: number for at, number in found.items() if number} == {
        (0, 0): 1,
        (0, 5): 1,
        (2, 6): 1,
        (2, 10): 2,
    }


def test_larger_of_two_copies_is_readable() -> None:
    """E15: both leaders copied, the second in a segment that contains the first's."""
    for first, second in [((0, 100), (0, 200)), ((10, 90), (5, 100)), ((0, 9), (0, 9))]:
        metadata = with_copies(segment(1, *first), segment(2, *second))
        assert number_of(metadata.find(0, second[1])) == 2
        assert number_of(metadata.find(0, first[0])) == 2
        assert numbers(metadata) == ([1, 2] if first[0] <= second[0] else [2, 1])


def test_smaller_later_copy_hides_no_offsets() -> None:
    """Kafka's cache finds 50-100 for offset 150, and thus no segment."""
    metadata = with_copies(segment(1, 0, 200), segment(2, 50, 100))
    assert [number_of(metadata.find(0, offset)) for offset in (40, 75, 150)] == [1, 1, 1]


def test_smaller_copy_is_readable_after_larger_is_deleted() -> None:
    metadata = with_copies(segment(1, 10, 20), segment(2, 10, 15), segment(3, 0, 30))
    metadata.apply(becomes(segment(3, 0, 30), DELETING))
    assert [number_of(metadata.find(0, offset)) for offset in (5, 10, 20, 25)] == [None, 1, 1, None]


def test_unclean_leader_election_leaves_two_lineages() -> None:
    """The remote tier of T-61: seg-0-3 of both leaders, and seg-4-5 of the second."""
    metadata = with_copies(
        segment(1, 0, 3, [(0, 0)]), segment(2, 0, 3, [(1, 0)]), segment(3, 4, 5, [(0, 4), (2, 5)])
    )
    assert number_of(metadata.find(0, 3)) == 1
    assert number_of(metadata.find(1, 3)) == 2
    assert number_of(metadata.find(0, 4)) == 3
    assert number_of(metadata.find(0, 5)) is None
    assert number_of(metadata.find(2, 5)) == 3
    assert [metadata.highest_offset(epoch) for epoch in range(4)] == [4, 3, 5, None]


def test_copy_without_records_of_epoch_is_covered_by_previous_copy() -> None:
    """It ends at the end of the other copy of the epoch, one record before it starts; in either
    order of arrival."""
    before, without = segment(1, 0, 4), segment(2, 5, 9, ((0, 5), (1, 5)))
    for order in ((before, without), (without, before)):
        metadata = RemoteLogMetadataCache(FOO_0)
        for each in order:
            metadata.apply(each)
            metadata.apply(becomes(each, FINISHED))
        assert metadata.size_bytes(0) == metadata.size_bytes(1) == 100


def test_highest_offset_is_kept_after_deletion() -> None:
    """T-31: expired segments must not be copied again."""
    copy = segment(1, 0, 9)
    metadata = with_copies(copy)
    metadata.apply(becomes(copy, DELETING))
    metadata.apply(becomes(copy, DELETED))
    assert (metadata.highest_offset(0), metadata.epochs()) == (9, [])


def test_sizes_by_epoch() -> None:
    """S-01, E16: a segment of several epochs counts in each; an unknown epoch has size 0."""
    metadata = with_copies(
        segment(1, 0, 9, [(0, 0)]),
        segment(2, 10, 19, [(0, 10), (1, 15)]),
        segment(3, 20, 29, [(1, 20), (2, 25)]),
        segment(4, 30, 39, [(2, 30)]),
        segment(5, 40, 49, [(2, 40)]),
    )
    assert [metadata.size_bytes(epoch) for epoch in range(4)] == [200, 200, 300, 0]
    lineage = [EpochStart(0, 0), EpochStart(1, 15), EpochStart(2, 25)]
    assert metadata.lineage_bytes(lineage, 50) == 500


def test_segments_without_transaction_index_are_skipped() -> None:
    """T-35: 1,000 segments, two of which have a transaction index."""
    copies = [
        segment(n, 10 * n, 10 * n + 9, txn_index_empty=n not in (300, 700)) for n in range(1, 1000)
    ]
    metadata = with_copies(*copies)
    found = [metadata.find_with_transactions(0, offset) for offset in (0, 3009, 3010, 7000, 7010)]
    assert [number_of(each) for each in found] == [300, 300, 700, 700, None]


def test_custom_metadata_may_enlarge_row() -> None:
    metadata = RemoteLogMetadataCache(FOO_0)
    for number in range(3):
        metadata.apply(segment(number, number, number))
        metadata.apply(becomes(segment(number, 0, 0), FINISHED, 1, bytes([number]) * 100))
    assert [each.custom_metadata for each in metadata.segments()] == [
        bytes([number]) * 100 for number in range(3)
    ]
    assert metadata.size_bytes(0) == 300


def test_iteration_continues_during_concurrent_changes() -> None:
    copies = [segment(n, 10 * n, 10 * n + 9) for n in range(10)]
    walks: list[Callable[[RemoteLogMetadataCache], Iterator[RemoteLogSegmentMetadata]]] = [
        RemoteLogMetadataCache.segments,
        lambda metadata: metadata.segments(0),
        lambda metadata: metadata.segments_reaching(0),
    ]
    for walk in walks:
        metadata = with_copies(*copies)
        seen = []
        for each in walk(metadata):
            seen.append(each.start_offset)
            if each.start_offset == 30:
                for gone in (0, 3, 4):
                    metadata.apply(becomes(copies[gone], DELETING))
                    metadata.apply(becomes(copies[gone], DELETED))
                metadata.apply(segment(99, 55, 56))
        assert seen == [0, 10, 20, 30, 50, 55, 60, 70, 80, 90]


def test_segments_below_timestamp_are_skipped() -> None:
    """T-39: the largest timestamps need not increase."""
    times = [(37_037 * n) % 1_000_000 for n in range(2500)]
    times[7], times[2000] = -1, 1 << 60
    copies = [replace(segment(n, n, n), max_timestamp_ms=each) for n, each in enumerate(times)]
    metadata = with_copies(*copies)
    for timestamp in (-1, 0, 1, 500_250, 998_999, 999_000, 1_000_000, 1 << 61):
        found = [each.start_offset for each in metadata.segments_reaching(timestamp)]
        assert found == [n for n, each in enumerate(times) if each >= timestamp]


def test_deleted_segments_leave_no_rows() -> None:
    metadata = RemoteLogMetadataCache(FOO_0)
    copies = [segment(n, n, n) for n in range(3000)]
    for round_ in range(3):
        for each in copies:
            metadata.apply(each)
        for each in copies[:: 1 if round_ else -1]:
            metadata.apply(becomes(each, DELETING))
            metadata.apply(becomes(each, DELETED))
    assert (len(metadata), numbers(metadata), metadata.epochs()) == (0, [], [])


@st.composite
def lineages(draw: st.DrawFn) -> list[EpochStart]:
    epochs = sorted(draw(st.sets(st.integers(0, 4), max_size=4)))
    starts = sorted(draw(st.lists(st.integers(0, 30), min_size=len(epochs), max_size=len(epochs))))
    return list(map(EpochStart, epochs, starts))


@settings(max_examples=150, deadline=None)
@given(any_events, lineages(), st.integers(0, 60))
def test_random_events_match_model(events: Events, lineage: list[EpochStart], log_end: int) -> None:
    model, metadata = Model(), RemoteLogMetadataCache(FOO_0)
    play(events, model, metadata)
    check_against(model, metadata)
    assert {epoch: metadata.highest_offset(epoch) for epoch in model.highest} == model.highest
    assert metadata.lineage_bytes(lineage, log_end) == sum(
        each.size_bytes
        for each in model.segments()
        if is_within(each, with_records(lineage), log_end)
        and any(each is found for epoch in range(5) for _, _, found in model.readable(epoch))
    )


@settings(max_examples=50, deadline=None)
@given(any_events, any_events)
def test_rows_restored_in_any_order_are_equal(events: Events, more: Events) -> None:
    model, before = Model(), RemoteLogMetadataCache(FOO_0)
    play(events, model, before)
    metadata = RemoteLogMetadataCache(FOO_0)
    for row in reversed(list(before.rows())):
        metadata.restore(row)
    for epoch, offset in before.highest_offsets.items():
        metadata.restore_highest(epoch, offset)
    check_against(model, metadata)
    play(more, model, metadata)
    check_against(model, metadata)


def test_segment_takes_less_than_100_bytes() -> None:
    """Resident memory with all tables, over 3,000 segments."""
    copies = [segment(n, 10 * n, 10 * n + 9) for n in range(3_000)]
    gc.collect()
    tracemalloc.start()
    try:
        metadata = with_copies(*copies)
        gc.collect()
        kept = tracemalloc.take_snapshot()
    finally:
        tracemalloc.stop()
    assert len(metadata) == 3_000
    of_it = tracemalloc.Filter(True, "*/storage/tiered/*")  # excludes allocations of other threads
    resident = sum(each.size for each in kept.filter_traces([of_it]).statistics("filename"))
    assert resident / 3_000 < 100


def test_copy_without_records_of_epoch_is_readable_after_covering_copy_is_deleted() -> None:
    """In that epoch it ends where it starts, behind the other's end."""
    other = segment(1, 8, 15, [(0, 8)])
    both = segment(2, 16, 16, [(0, 16), (1, 16)], size=7)
    metadata = with_copies(both, other)
    assert metadata.size_bytes(0) == other.size_bytes
    metadata.apply(becomes(other, DELETING))
    assert metadata.size_bytes(0) == both.size_bytes


def test_repeated_copy_counts_once() -> None:
    """S-02: the next leader did not know a copy of the previous one, and copied the segment
    again."""
    metadata = with_copies(segment(1, 0, 9, [(0, 0)]), segment(2, 10, 19, [(0, 10)]))
    for again in (segment(3, 10, 19, [(0, 10)]), segment(4, 10, 29, [(0, 10), (1, 20)], size=200)):
        metadata.apply(again)
        metadata.apply(becomes(again, FINISHED))
    lineage = [EpochStart(0, 0), EpochStart(1, 20)]
    assert (metadata.size_bytes(0), metadata.size_bytes(1)) == (300, 200)
    assert metadata.lineage_bytes(lineage, 100) == 300
    metadata.apply(becomes(segment(4, 0, 0), DELETING))
    assert metadata.lineage_bytes(lineage, 100) == 200
