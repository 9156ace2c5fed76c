"""A query names segments that the brokers list as copied and the store does not have."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from odradek.pipeline.errors import BrokersUnavailable, MissingSegment
from odradek.pipeline.planning import LostOffsets
from odradek.storage.tiered.custom_metadata import CHUNKED, custom_metadata
from odradek.storage.tiered.object_names import LOG_SUFFIX, MANIFEST_SUFFIX, segment_key
from odradek.storage.tiered.segment_metadata import RemoteLogSegmentMetadata
from tests.pipeline.tiered_queries import ONLY, query
from tests.pipeline.virtual_leader import VirtualLeader
from tests.pipeline.virtual_store import SegmentStore, segment

FIRST, SECOND = segment(1, 0, 9), segment(2, 10, 19)


def leader_of(*finished: RemoteLogSegmentMetadata, copied_end: int | None = 20) -> VirtualLeader:
    leader = VirtualLeader((0, 40))
    leader.logs[ONLY].tiered_end = copied_end
    leader.finished = list(finished)
    return leader


def ends(remote: SegmentStore, leader: VirtualLeader, **options: str) -> list[tuple[str, int, int]]:
    """Return kind, start and end of the ranges of a query of everything."""
    with leader.reachable():
        pieces = query(remote, leader, **options).plan({ONLY: (0, 40)}).pieces
    return [(type(each).__name__, each.low, each.high) for each in pieces]


@pytest.mark.parametrize("copied_end", [20, None], ids=["new brokers", "old brokers"])
@pytest.mark.parametrize("has", [(), (FIRST,), (SECOND,)], ids=["none", "first", "second"])
def test_missing_segment_is_named(
    has: tuple[RemoteLogSegmentMetadata, ...], copied_end: int | None
) -> None:
    """Without the end of the remote tier, the local log start offset shows what is copied."""
    remote, leader = SegmentStore(), leader_of(FIRST, SECOND, copied_end=copied_end)
    leader.logs[ONLY].local_start = 20
    remote.store.url = "file:///srv/other"
    remote.has(*has)
    missing = SECOND if FIRST in has else FIRST
    key = segment_key(missing, LOG_SUFFIX)
    start, last = missing.start_offset, missing.end_offset
    message = (
        f"^offsets {start} to {last} of t-0: the brokers list a copied segment with offsets {start} to {last},"
        f" but file:///srv/other has no object {key}: check that tiered.url is the store that the brokers use"
    )
    with pytest.raises(MissingSegment, match=message) as caught:
        ends(remote, leader)
    assert caught.value.key == key


@pytest.mark.parametrize("kind", ["skip", "report"])
def test_missing_segment_can_be_skipped_or_reported(kind: str) -> None:
    remote, leader = SegmentStore(), leader_of(FIRST, SECOND)
    remote.has(SECOND)
    with leader.reachable():
        pieces = query(remote, leader, onCorruptSegment=kind).plan({ONLY: (0, 40)}).pieces
    (lost,) = [each for each in pieces if isinstance(each, LostOffsets)]
    assert (lost.low, lost.high, lost.key) == (0, 10, segment_key(FIRST, LOG_SUFFIX))


def test_offsets_that_are_not_copied_are_read_from_brokers() -> None:
    """The metadata is not read for a complete store."""
    remote, leader = SegmentStore(), leader_of(FIRST, SECOND)
    remote.has(FIRST, SECOND)
    assert ends(remote, leader) == [("PackedSlices", 0, 20), ("BrokerRange", 20, 40)]
    assert leader.metadata_reads == 0
    leader.finished, leader.logs[ONLY].tiered_end = [], 30  # a gap that no segment has
    assert ends(remote, leader) == [("PackedSlices", 0, 20), ("BrokerRange", 20, 40)]
    assert leader.metadata_reads == 1


def test_segment_of_another_lineage_is_not_missing() -> None:
    remote, leader = SegmentStore(), leader_of(segment(1, 0, 9, epoch=3))
    assert ends(remote, leader) == [("BrokerRange", 0, 40)]
    assert leader.metadata_reads == 1


def test_log_without_manifest_is_not_missing() -> None:
    """As Kafka writes it; a log in chunks cannot be read without the manifest."""
    remote, leader = SegmentStore(), leader_of(FIRST)
    remote.has(FIRST)
    remote.objects.delete(segment_key(FIRST, MANIFEST_SUFFIX))
    assert ends(remote, leader) == [("BrokerRange", 0, 40)]
    leader.finished = [replace(FIRST, custom_metadata=custom_metadata(CHUNKED))]
    with pytest.raises(MissingSegment, match=segment_key(FIRST, MANIFEST_SUFFIX)):
        ends(remote, leader)


def _advance_start(leader: VirtualLeader) -> None:
    leader.logs[ONLY].start = 20


def _start_deletion(leader: VirtualLeader) -> None:
    leader.finished = []


@pytest.mark.parametrize("delete", [_advance_start, _start_deletion])
@pytest.mark.parametrize("when", ["before the metadata", "after the metadata"])
def test_segment_deleted_by_retention_while_planning_is_not_missing(
    delete: Callable[[VirtualLeader], None], when: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The brokers publish both before they delete the objects."""
    if delete is _advance_start and when == "after the metadata":
        delete = _start_deletion
    remote, leader = SegmentStore(), leader_of(FIRST, SECOND)
    remote.has(FIRST, SECOND)
    with leader.reachable():
        asked = query(remote, leader)
        assert list(asked.partitions) == [ONLY]
        for key in [each.key for each in remote.objects.list("")]:
            remote.objects.delete(key)
        if when == "before the metadata":
            delete(leader)
        else:
            lacking = remote.store.lacking
            monkeypatch.setattr(
                remote.store, "lacking", lambda slices: (lacking(slices), delete(leader))[0]
            )
        (piece,) = asked.plan({ONLY: (0, 40)}).pieces
    assert (piece.low, piece.high) == (0, 40)


def test_metadata_that_cannot_be_read_is_an_error_with_the_offsets() -> None:
    remote, leader = SegmentStore(), leader_of(FIRST, SECOND)
    leader.metadata_error = BrokersUnavailable("not authorized")
    with pytest.raises(
        BrokersUnavailable,
        match=r"^memory:/// has no segment with offsets 0 to 19 of t-0, .* listed: not authorized; check",
    ):
        ends(remote, leader)
    leader.logs[ONLY].start = 20  # retention deleted them
    assert ends(remote, leader) == [("BrokerRange", 0, 40)]
