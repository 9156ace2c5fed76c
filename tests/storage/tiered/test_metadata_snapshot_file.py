"""Snapshot files that a restart reads instead of the metadata topic (T-47, T-48)."""

from __future__ import annotations

from uuid import UUID

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from odradek.protocol.records.crc32c import crc32c
from odradek.storage.tiered.errors import (
    CorruptRemoteData,
    InvalidRemoteState,
    RemoteResourceNotFound,
)
from odradek.storage.tiered.metadata_snapshot_file import (
    MetadataSnapshotReader,
    decode_offsets,
    decode_topic_id,
    encode_offsets,
    encode_snapshot,
    encode_topic_id,
)
from odradek.storage.tiered.remote_log_metadata_cache import RemoteLogMetadataCache
from odradek.storage.tiered.segment_metadata import (
    PartitionDeleteState,
    RemotePartitionDeleteMetadata,
    TopicIdPartition,
)
from tests.support.remote_segments import (
    DELETED,
    DELETING,
    FINISHED,
    FOO_0,
    Events,
    Model,
    any_events,
    becomes,
    check_against,
    play,
    segment,
    with_copies,
)


def restored(data: bytes, partition: TopicIdPartition = FOO_0) -> MetadataSnapshotReader:
    snapshot = MetadataSnapshotReader(data, partition)
    while snapshot.load(3):
        pass
    return snapshot


def test_snapshot_file_has_kip_format() -> None:
    """T-48, byte by byte."""
    metadata = with_copies(segment(2, 0, 100))
    deletion = RemotePartitionDeleteMetadata(
        FOO_0, 7, 123, PartitionDeleteState.DELETE_PARTITION_MARKED
    )
    metadata.apply(deletion)
    expected = bytes.fromhex(
        "00"  # magic
        "0003666f6f"  # topic
        "00000000000000000000000000000001"  # topic id
        "ac02"  # metadata topic offset 150
        "0f 01 00 00000007 000000000000007b 00"  # the deletion: broker, time, state
        "0e 02 00 00000000 0000000000000064"  # highest offset of epoch 0
        "4e 00 01"  # a segment
        "00000000000000000000000000000002 0000000000000000 0000000000000064 00000001"
        "0000000000000064 0000000000000002 02 00000000 0000000000000000 00 00000064 00 01 01000101"
    )
    expected += bytes.fromhex("060300") + crc32c(expected).to_bytes(4, "big")
    assert b"".join(encode_snapshot(metadata, 150)) == expected


@settings(max_examples=50, deadline=None)
@given(any_events, any_events, st.integers(0, 2**62))
def test_restored_snapshot_equals_original(events: Events, more: Events, offset: int) -> None:
    model, before = Model(), RemoteLogMetadataCache(FOO_0)
    play(events, model, before)
    snapshot = restored(b"".join(encode_snapshot(before, offset)))
    assert snapshot.next_offset == offset
    check_against(model, snapshot.metadata)
    assert snapshot.metadata.highest_offsets == before.highest_offsets
    play(more, model, snapshot.metadata)
    check_against(model, snapshot.metadata)


def test_partition_deletion_is_restored() -> None:
    metadata = RemoteLogMetadataCache(FOO_0)
    assert restored(b"".join(encode_snapshot(metadata, 0))).metadata.deletion is None
    for state in list(PartitionDeleteState)[:2]:
        metadata.apply(RemotePartitionDeleteMetadata(FOO_0, 1, 5, state))
    data = b"".join(encode_snapshot(metadata, 0))
    assert restored(data).metadata.deletion == metadata.deletion


def test_events_applied_during_snapshot_may_be_applied_again() -> None:
    """Each event is applied before some chunk, and again after the restart."""
    copies = [segment(n, 10 * n, 10 * n + 9) for n in range(1, 1001)]
    later = [
        event
        for each in (copies[0], copies[255], copies[256], copies[700], copies[999])
        for event in (becomes(each, DELETING), becomes(each, DELETED))
    ]
    new = [segment(5000 + n, 10 * n, 10 * n + 9) for n in range(2000, 2004)]
    later += [event for each in new for event in (each, becomes(each, FINISHED))]  # type: ignore[misc]
    for part in range(4):
        metadata = with_copies(*copies)
        data = b""
        for number, each in enumerate(encode_snapshot(metadata, 77)):
            data += each
            if number == part:
                for event in later:
                    metadata.apply(event)
        again = restored(data).metadata
        for event in later:
            try:
                again.apply(event)
            except (InvalidRemoteState, RemoteResourceNotFound):
                continue
        assert list(again.segments()) == list(metadata.segments())
        assert again.size_bytes(0) == metadata.size_bytes(0)
        assert again.highest_offsets == metadata.highest_offsets


def test_corruption_of_any_byte_is_detected() -> None:
    data = b"".join(encode_snapshot(with_copies(segment(1, 0, 9), segment(2, 10, 19)), 150))
    for at in range(len(data)):
        with pytest.raises(CorruptRemoteData):
            MetadataSnapshotReader(data[:at], FOO_0)
        with pytest.raises(CorruptRemoteData):
            MetadataSnapshotReader(data[:at] + bytes([data[at] ^ 0x40]) + data[at + 1 :], FOO_0)


@given(st.binary(max_size=60))
def test_random_bytes_with_valid_crc_are_refused_or_read(garbage: bytes) -> None:
    data = garbage + bytes.fromhex("060300") + crc32c(garbage).to_bytes(4, "big")
    with pytest.raises(CorruptRemoteData):
        restored(data)


def test_snapshot_of_recreated_topic_is_refused() -> None:
    """T-52."""
    data = b"".join(encode_snapshot(with_copies(segment(1, 0, 9)), 150))
    with pytest.raises(CorruptRemoteData, match="another topic"):
        MetadataSnapshotReader(data, TopicIdPartition(UUID(int=9), "foo", 0))


def test_committed_offsets_file_format() -> None:
    """T-47, with the KIP's example."""
    assert encode_offsets({0: 2022, 4: 104, 2: 498}) == b"0 2022\n4 104\n2 498\n"
    assert decode_offsets(b"0 2022\n4 104\n2 498\n") == {0: 2022, 4: 104, 2: 498}
    assert decode_offsets(b"") == {}


def test_topic_id_file_format() -> None:
    assert encode_topic_id(UUID(int=1)) == b"AAAAAAAAAAAAAAAAAAAAAQ\n"
    assert decode_topic_id(b"AAAAAAAAAAAAAAAAAAAAAQ\n") == UUID(int=1)
    for data in (b"", b"\n", b"AAAAAAAAAAAAAAAAAAAAAQ", b"AAAAAAAAAAAAAAAAAAAA\n", b"\xff" * 22):
        with pytest.raises(CorruptRemoteData):
            decode_topic_id(data)


@pytest.mark.parametrize(
    "data",
    [b"0", b"0 1", b"0 1\n2", b"0 -1\n", b"a b\n", b"0 1 2\n", b"\xff\n", b"0 1\n\n", b"\x00" * 8],
)
def test_corrupt_committed_offsets_are_refused(data: bytes) -> None:
    with pytest.raises(CorruptRemoteData):
        decode_offsets(data)
