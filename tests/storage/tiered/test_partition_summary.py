"""Partition summaries contain the metadata of the manifests; other bytes are refused."""

from __future__ import annotations

from dataclasses import replace
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from odradek.seams.entropy import SeededEntropy
from odradek.storage.tiered.errors import CorruptRemoteData
from odradek.storage.tiered.object_names import (
    NO_LEADER,
    keys_from,
    parse_key,
    parse_summary,
    segment_key,
    summary_key,
)
from odradek.storage.tiered.object_store import ObjectStoreStorage
from odradek.storage.tiered.partition_summary import PartitionSummaryBuilder, decode
from odradek.storage.tiered.segment_metadata import (
    EpochStart,
    RemoteLogSegmentId,
    RemoteLogSegmentMetadata,
    SegmentState,
    TopicIdPartition,
)
from odradek.testing.virtual_object_store import VirtualObjectStore

WHERE = TopicIdPartition(UUID(int=1), "t", 0)


@st.composite
def segments(draw: st.DrawFn) -> RemoteLogSegmentMetadata:
    start = draw(st.integers(0, 1 << 40))
    last = draw(st.integers(0, (1 << 31) - 1))
    starts = sorted({start, *draw(st.lists(st.integers(start, start + last), max_size=2))})
    first = draw(st.integers(0, 1 << 30))
    return RemoteLogSegmentMetadata(
        RemoteLogSegmentId(WHERE, draw(st.uuids())),
        start,
        start + last,
        draw(st.integers(0, (1 << 31) - 1)),
        draw(st.integers(-1, 1 << 50)),
        draw(st.integers(0, 1 << 50)),
        tuple(EpochStart(first + number, each) for number, each in enumerate(starts)),
        draw(st.integers(0, (1 << 31) - 1)),
        SegmentState.COPY_SEGMENT_FINISHED,
        draw(st.sampled_from((None, b"", b"\x01\x03", b"of another RSM"))),
        draw(st.booleans()),
    )


@given(st.lists(segments(), max_size=20))
def test_encoded_summary_is_decoded(given: list[RemoteLogSegmentMetadata]) -> None:
    assert list(decode(PartitionSummaryBuilder(given).encode()).segments(WHERE)) == given


SOME = RemoteLogSegmentMetadata(
    RemoteLogSegmentId(WHERE, UUID(int=9)),
    100,
    199,
    1,
    5,
    6,
    (EpochStart(3, 100),),
    1000,
    SegmentState.COPY_SEGMENT_FINISHED,
)


def test_flipped_bit_is_detected() -> None:
    whole = PartitionSummaryBuilder([SOME]).encode()
    for at in range(len(whole)):
        broken = whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :]
        with pytest.raises(CorruptRemoteData):
            decode(broken)
        with pytest.raises(CorruptRemoteData):
            decode(whole[:at])


def test_segment_that_format_cannot_hold_is_refused() -> None:
    builder = PartitionSummaryBuilder([SOME])
    with pytest.raises(ValueError, match="cannot be represented"):
        builder.add(replace(SOME, end_offset=SOME.start_offset + (1 << 32)))


def test_summary_key_sorts_before_segments_and_by_epoch() -> None:
    first = replace(SOME, start_offset=0, id=RemoteLogSegmentId(WHERE, UUID(int=0)))
    assert summary_key(WHERE, 7) < summary_key(WHERE, 12) < segment_key(first, ".index")
    assert summary_key(WHERE, NO_LEADER) < summary_key(WHERE, 0)
    for epoch in (NO_LEADER, 0, 12):
        assert parse_summary(summary_key(WHERE, epoch)) == (WHERE, epoch)
    assert parse_key(summary_key(WHERE, 12)) is None
    assert parse_summary(segment_key(SOME, ".manifest")) is None
    assert keys_from(WHERE, 99) < segment_key(SOME, ".index")
    assert keys_from(WHERE, 100) < segment_key(SOME, ".index") < keys_from(WHERE, 101)


def test_latest_summary_is_kept_and_removed_with_partition() -> None:
    objects = VirtualObjectStore()
    storage = ObjectStoreStorage(objects, SeededEntropy(1))
    storage.put_summary(WHERE, 3, b"old")
    storage.put_summary(WHERE, 5, b"new")
    storage.put_summary(WHERE, 4, b"of a leader that was deposed")
    assert bytes(objects.get(summary_key(WHERE, 5))) == b"new"
    storage.put_summary(WHERE, 5, b"newer")
    assert {key: bytes(data) for key, data in objects.bucket.objects.items()} == {
        summary_key(WHERE, 5): b"newer"
    }
    storage.put_summary(WHERE, NO_LEADER, b"of none")
    storage.put_summary(WHERE, 5, b"newest")
    assert [bytes(each) for each in objects.bucket.objects.values()] == [b"newest"]
    storage.put_summary(WHERE, NO_LEADER, b"of none")
    storage.remove_summaries(WHERE)
    assert not objects.bucket.objects
