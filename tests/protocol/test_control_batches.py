"""Control batches: transaction markers, and control records of KRaft."""

from __future__ import annotations

from uuid import UUID

import pytest

from odradek.protocol.errors import CorruptBatch
from odradek.protocol.records.batch import Batch
from odradek.protocol.records.control import (
    ControlType,
    control_key,
    control_type,
    end_marker,
    kraft_control_batch,
    marker_coordinator_epoch,
    read_end_marker,
)
from odradek.protocol.records.records import Record, build_batch, decode
from odradek.protocol.schemas import serde
from odradek.protocol.schemas.control_records import (
    KRaftVersionRecord,
    LeaderChangeMessage,
    QuorumVoter,
    SnapshotFooterRecord,
    SnapshotHeaderRecord,
    Voter,
    VoterEndpoint,
    VotersRecord,
)


def view(raw: bytearray) -> Batch:
    batch = Batch(memoryview(raw))
    batch.check()
    return batch


@pytest.mark.parametrize("commit", [False, True])
def test_transaction_marker_is_encoded_and_decoded(commit: bool) -> None:
    raw = end_marker(
        commit=commit,
        producer_id=9,
        producer_epoch=3,
        coordinator_epoch=17,
        timestamp_ms=1234,
        base_offset=50,
        leader_epoch=2,
    )
    batch = view(raw)
    assert batch.is_control
    assert batch.is_transactional
    assert (batch.producer_id, batch.producer_epoch, batch.base_sequence) == (9, 3, -1)
    assert (batch.base_offset, batch.leader_epoch, batch.record_count) == (50, 2, 1)
    assert batch.size == 78
    (record,) = decode(batch)
    assert record.key == b"\0\0\0" + (b"\1" if commit else b"\0")
    assert record.value == b"\0\0\0\0\0\x11"
    assert read_end_marker(batch) == (commit, 17)


def test_other_batches_are_not_transaction_markers() -> None:
    plain = view(build_batch([Record(-1, 0, control_key(ControlType.COMMIT), b"\0\0\0\0\0\1")]))
    two = view(build_batch([Record(-1, 0, b"\0\0\0\1", b"")] * 2, control=True))
    kraft = view(build_batch([Record(-1, 0, b"\0\0\0\2", b"")], control=True))
    keyless = view(build_batch([Record(-1, 0, None, b"")], control=True))
    short = view(build_batch([Record(-1, 0, b"\0\0\0\1", b"\0\0\0")], control=True))
    for batch in (plain, two, kraft, keyless, short):
        with pytest.raises(CorruptBatch):
            read_end_marker(batch)


def test_later_versions_are_read_as_known_ones() -> None:
    assert control_type(b"\0\5\0\1more") is ControlType.COMMIT
    assert control_type(b"\0\0\0\x63") is ControlType.UNKNOWN
    assert marker_coordinator_epoch(b"\0\1\0\0\0\7more") == 7
    with pytest.raises(CorruptBatch):
        control_type(b"\xff\xff\0\1")
    with pytest.raises(CorruptBatch):
        marker_coordinator_epoch(b"\xff\xff\0\0\0\7")
    with pytest.raises(CorruptBatch):
        marker_coordinator_epoch(None)


def test_kraft_control_records_are_encoded_and_decoded() -> None:
    messages = [
        (
            ControlType.LEADER_CHANGE,
            LeaderChangeMessage(
                leader_id=1, voters=(Voter(voter_id=1),), granting_voters=(Voter(voter_id=1),)
            ),
        ),
        (
            ControlType.LEADER_CHANGE,
            LeaderChangeMessage(
                version=1,
                leader_id=1,
                voters=(Voter(voter_id=1, voter_directory_id=UUID(int=5)),),
            ),
        ),
        (ControlType.SNAPSHOT_HEADER, SnapshotHeaderRecord(last_contained_log_timestamp=99)),
        (ControlType.SNAPSHOT_FOOTER, SnapshotFooterRecord()),
        (ControlType.KRAFT_VERSION, KRaftVersionRecord(kraft_version=1)),
        (
            ControlType.KRAFT_VOTERS,
            VotersRecord(
                voters=(
                    QuorumVoter(
                        voter_id=1,
                        voter_directory_id=UUID(int=5),
                        endpoints=(VoterEndpoint(name="C", host="localhost", port=65535),),
                    ),
                )
            ),
        ),
    ]
    batch = view(
        kraft_control_batch(list(messages), timestamp_ms=5, base_offset=10, leader_epoch=3)
    )
    assert batch.is_control
    assert not batch.is_transactional
    assert (batch.base_offset, batch.leader_epoch) == (10, 3)
    for record, (kind, message) in zip(decode(batch), messages, strict=True):
        assert control_type(record.key) is kind
        assert record.value is not None
        assert serde.decode(type(message), message.version, record.value) == message


def test_leader_change_version_0_has_no_directory_ids() -> None:
    message = LeaderChangeMessage(leader_id=1, voters=(Voter(voter_id=1),))
    assert serde.encode(message, 0).hex() == "0000" + "00000001" + "02" + "0000000100" + "01" + "00"
