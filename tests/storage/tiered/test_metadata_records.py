"""Records of `__remote_log_metadata` in Kafka's format (T-45, T-46)."""

from __future__ import annotations

from dataclasses import replace
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from odradek.protocol.schemas import remote_log_records as wire
from odradek.protocol.schemas import serde
from odradek.storage.tiered.errors import CorruptRemoteData
from odradek.storage.tiered.metadata_records import UnknownRemoteRecord, decode, encode
from odradek.storage.tiered.segment_metadata import (
    PartitionDeleteState,
    RemotePartitionDeleteMetadata,
    SegmentState,
    TopicIdPartition,
)
from tests.support.remote_segments import FINISHED, FOO_0, becomes, segment, segments

VECTOR = bytes.fromhex(
    "01000004666f6f0000000000000000000000000000000100000000000000000000000000000000000000"
    "0002000000000000000000000000000000006400000001ffffffffffffffff000000000000007b020000"
    "000000000000000000000000000400000001000101"
)
KNOWN = replace(segment(2, 0, 100, size=1024), max_timestamp_ms=-1, event_timestamp_ms=123)


def test_record_has_kafka_bytes() -> None:
    assert encode(KNOWN) == VECTOR
    assert decode(VECTOR) == KNOWN


@given(segments())
def test_encoded_segment_is_decoded(found: object) -> None:
    assert decode(encode(found)) == found  # type: ignore[arg-type]


@pytest.mark.parametrize("state", SegmentState)
@pytest.mark.parametrize("custom", [None, b"where it is"])
def test_encoded_update_is_decoded(state: SegmentState, custom: bytes | None) -> None:
    update = becomes(KNOWN, state, 55, custom)
    assert decode(encode(update)) == update


@pytest.mark.parametrize("state", PartitionDeleteState)
def test_encoded_partition_deletion_is_decoded(state: PartitionDeleteState) -> None:
    deletion = RemotePartitionDeleteMetadata(FOO_0, 3, 99, state)
    assert decode(encode(deletion)) == deletion


def test_unknown_tagged_fields_are_ignored() -> None:
    tagged = VECTOR[:-4] + b"\x02" + b"\x00\x01\x01" + b"\x64\x03new"
    assert decode(tagged) == KNOWN


@pytest.mark.parametrize("value", [b"\x01\x09\x00", b"\x01\x00\x07", b"\x02\x00\x00"])
def test_unknown_record_type_or_version_raises(value: bytes) -> None:
    with pytest.raises(UnknownRemoteRecord):
        decode(value)


def test_deletion_of_unfinished_copy_is_decoded() -> None:
    update = replace(becomes(KNOWN, SegmentState.DELETE_SEGMENT_STARTED), unless_finished=True)
    assert decode(encode(update)) == update
    finished = becomes(KNOWN, SegmentState.COPY_SEGMENT_FINISHED, custom_metadata=b"")
    assert decode(encode(finished)) == finished


def test_decoded_custom_metadata_is_independent_of_buffer() -> None:
    batch = bytearray(encode(becomes(KNOWN, FINISHED, 5, b"where")))
    update = decode(memoryview(batch))
    batch[:] = bytes(len(batch))
    assert update == becomes(KNOWN, FINISHED, 5, b"where")


@given(st.binary(max_size=100))
def test_random_bytes_are_refused(garbage: bytes) -> None:
    for value in (garbage, VECTOR[: len(garbage)], VECTOR + garbage + b"\0"):
        with pytest.raises((CorruptRemoteData, UnknownRemoteRecord)):
            decode(value)


@pytest.mark.parametrize(
    "wrong",
    [
        {"start_offset": -1},
        {"end_offset": -1},
        {"segment_leader_epochs": ()},
        {"segment_leader_epochs": (wire.SegmentLeaderEpoch(leader_epoch=1, offset=0),) * 2},
        {"remote_log_segment_state": 4},
        {"remote_log_segment_state": -1},
        {"segment_size_in_bytes": -1},
    ],
    ids=lambda wrong: next(iter(wrong)),
)
def test_segment_that_kafka_rejects_is_refused(wrong: dict[str, object]) -> None:
    record = replace(serde.decode_remote_log_record(VECTOR), **wrong)
    with pytest.raises(CorruptRemoteData):
        decode(serde.encode_remote_log_record(record))


def test_snapshot_record_is_no_event() -> None:
    record = wire.RemoteLogSegmentMetadataSnapshotRecord(segment_id=UUID(int=1))
    with pytest.raises(CorruptRemoteData):
        decode(serde.encode_remote_log_record(record))


@pytest.mark.parametrize(
    "partition",
    [
        replace(FOO_0, topic="../x"),
        replace(FOO_0, topic="a\0b"),
        replace(FOO_0, topic=".."),
        replace(FOO_0, topic=""),
        replace(FOO_0, topic="x" * 250),
        replace(FOO_0, partition=-1),
        replace(FOO_0, topic_id=UUID(int=0)),
    ],
    ids=repr,
)
def test_record_of_an_impossible_partition_is_refused(partition: TopicIdPartition) -> None:
    """Names become parts of paths and of object keys."""
    finished = becomes(KNOWN, SegmentState.COPY_SEGMENT_FINISHED)
    for event in (
        replace(KNOWN, id=replace(KNOWN.id, partition=partition)),
        replace(finished, id=replace(finished.id, partition=partition)),
        RemotePartitionDeleteMetadata(
            partition, 3, 99, PartitionDeleteState.DELETE_PARTITION_MARKED
        ),
    ):
        with pytest.raises(CorruptRemoteData):
            decode(encode(event))
