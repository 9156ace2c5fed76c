"""Rows have the bytes of Kafka's snapshot records, and are read in place."""

from __future__ import annotations

from itertools import pairwise
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from odradek.protocol.schemas import remote_log_records as wire
from odradek.protocol.schemas import serde
from odradek.storage.tiered import segment_row
from odradek.storage.tiered.custom_metadata import DENSE, custom_metadata
from odradek.storage.tiered.errors import CorruptRemoteData
from odradek.storage.tiered.segment_metadata import (
    EpochStart,
    RemoteLogSegmentId,
    RemoteLogSegmentMetadata,
)
from tests.support.remote_segments import FOO_0, segments


def as_kafka_writes(segment: RemoteLogSegmentMetadata) -> bytes:
    record = wire.RemoteLogSegmentMetadataSnapshotRecord(
        segment_id=segment.id.id,
        start_offset=segment.start_offset,
        end_offset=segment.end_offset,
        broker_id=segment.broker_id,
        max_timestamp_ms=segment.max_timestamp_ms,
        event_timestamp_ms=segment.event_timestamp_ms,
        segment_leader_epochs=tuple(
            wire.SegmentLeaderEpoch(leader_epoch=each.epoch, offset=each.start_offset)
            for each in segment.epochs
        ),
        segment_size_in_bytes=segment.size_bytes,
        custom_metadata=segment.custom_metadata,
        remote_log_segment_state=int(segment.state),
        txn_index_empty=segment.txn_index_empty,
        tiered_epoch=segment.tiered_epoch,
    )
    return serde.encode(record, 0)


@given(segments())
def test_row_equals_kafka_snapshot_record(segment: RemoteLogSegmentMetadata) -> None:
    row = segment_row.pack(segment)
    assert row == as_kafka_writes(segment)
    assert segment_row.check(row, FOO_0) == segment


@given(segments(), st.binary(max_size=80), st.binary(max_size=80))
def test_fields_are_read_in_place(
    segment: RemoteLogSegmentMetadata, before: bytes, behind: bytes
) -> None:
    row, at = segment_row.pack(segment), len(before)
    block = bytearray(before + row + behind)
    assert segment_row.unpack(block, at, FOO_0) == segment
    assert segment_row.row_at(block, at) == row
    assert segment_row.id_of(block, at) == segment.id.id.bytes
    assert segment_row.end_offset_of(block, at) == segment.end_offset
    assert segment_row.event_timestamp_of(block, at) == segment.event_timestamp_ms
    assert segment_row.size_of(block, at) == segment.size_bytes
    assert segment_row.state_of(block, at) is segment.state
    assert segment_row.epochs_of(block, at) == segment.epochs
    assert segment_row.spans_epochs(block, at) == (len(segment.epochs) > 1)
    assert segment_row.has_transactions(block, at) == (not segment.txn_index_empty)
    assert segment_row.tiered_epoch_of(block, at) == segment.tiered_epoch
    for each in segment.epochs:
        assert segment_row.epoch_start_of(block, at, each.epoch) == each.start_offset
        assert segment_row.epoch_end_of(block, at, each.epoch) == segment.last_offset_of(each.epoch)


@given(st.lists(segments(), min_size=2, max_size=5))
def test_rows_are_ordered_by_start_offset_then_id(found: list[RemoteLogSegmentMetadata]) -> None:
    found.sort(key=lambda each: segment_row.order_of(segment_row.pack(each), 0))
    keys = [(each.start_offset, each.id.id.bytes) for each in found]
    assert all(a <= b for a, b in pairwise(keys))


@given(segments(), st.data())
def test_invalid_row_is_refused(segment: RemoteLogSegmentMetadata, data: st.DataObject) -> None:
    row = segment_row.pack(segment)
    cut = data.draw(st.integers(0, len(row) - 1))
    with pytest.raises(CorruptRemoteData):
        segment_row.check(row[:cut], FOO_0)
    with pytest.raises(CorruptRemoteData):
        segment_row.check(row + b"\0", FOO_0)


@given(st.binary(max_size=120))
def test_random_bytes_raise_only_corrupt_remote_data(garbage: bytes) -> None:
    try:
        found = segment_row.check(garbage, FOO_0)
    except CorruptRemoteData:
        return
    assert segment_row.pack(found) == garbage


def test_row_of_many_epochs() -> None:
    segment = RemoteLogSegmentMetadata(
        RemoteLogSegmentId(FOO_0, UUID(int=7)),
        0,
        999,
        1,
        5,
        6,
        tuple(EpochStart(epoch, epoch) for epoch in range(1000)),
        1024,
    )
    assert segment_row.pack(segment) == as_kafka_writes(segment)
    assert segment_row.unpack(segment_row.pack(segment), 0, FOO_0) == segment


def test_usual_row_takes_78_bytes() -> None:
    segment = RemoteLogSegmentMetadata(
        RemoteLogSegmentId(FOO_0, UUID(int=7)),
        100,
        199,
        1,
        5,
        6,
        (EpochStart(3, 100),),
        1024,
        custom_metadata=custom_metadata(DENSE),
        txn_index_empty=True,
    )
    assert len(segment_row.pack(segment)) == 78
