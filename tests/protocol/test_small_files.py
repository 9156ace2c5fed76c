"""The quorum-state file, producer snapshots, and the text form of UUIDs."""

from __future__ import annotations

from contextlib import suppress
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from odradek.protocol.schemas.producer_snapshot import (
    ProducerEntry,
    decode_producer_snapshot,
    encode_producer_snapshot,
)
from odradek.protocol.schemas.quorum_state import (
    QuorumStateData,
    decode_quorum_state,
    encode_quorum_state,
)
from odradek.protocol.schemas.serde import InvalidRecord
from odradek.protocol.uuids import uuid_from_text, uuid_to_text

int32 = st.integers(-1, 2**31 - 1)


@given(leader_id=int32, leader_epoch=int32, voted_id=int32, directory=st.uuids())
def test_quorum_state_is_read_as_written(
    leader_id: int, leader_epoch: int, voted_id: int, directory: UUID
) -> None:
    for state in (
        QuorumStateData(
            cluster_id="c",
            leader_id=leader_id,
            leader_epoch=leader_epoch,
            voted_id=voted_id,
            current_voters=(1, 2),
        ),
        QuorumStateData(leader_id=leader_id, current_voters=None),
        QuorumStateData(
            leader_id=leader_id,
            leader_epoch=leader_epoch,
            voted_id=voted_id,
            voted_directory_id=directory,
            data_version=1,
        ),
    ):
        assert decode_quorum_state(encode_quorum_state(state)) == state


def test_quorum_state_equals_kafka_json() -> None:
    """The examples are those in the documentation of FileQuorumStateStore."""
    assert encode_quorum_state(
        QuorumStateData(leader_id=1, leader_epoch=2, current_voters=(1,))
    ).decode() == (
        '{"clusterId":"","leaderId":1,"leaderEpoch":2,"votedId":-1,"appliedOffset":0,'
        '"currentVoters":[{"voterId":1}],"data_version":0}'
    )
    assert encode_quorum_state(
        QuorumStateData(leader_id=1, leader_epoch=2, data_version=1)
    ).decode() == (
        '{"leaderId":1,"leaderEpoch":2,"votedId":-1,'
        '"votedDirectoryId":"AAAAAAAAAAAAAAAAAAAAAA","data_version":1}'
    )


@pytest.mark.parametrize(
    "raw",
    [
        b"",
        b"[]",
        b"null",
        b"{}",
        b'{"data_version":2}',
        b'{"data_version":"0"}',
        b'{"data_version":0,"leaderId":1,"leaderEpoch":2,"votedId":-1}',
        b'{"data_version":0,"leaderId":true,"leaderEpoch":2,"votedId":-1}',
        b'{"data_version":1,"leaderId":1,"leaderEpoch":2,"votedId":-1,"votedDirectoryId":"x"}',
        b"\xff\xfe",
        b"[" * 100_000,
    ],
)
def test_malformed_quorum_state_is_invalid(raw: bytes) -> None:
    with pytest.raises(InvalidRecord):
        decode_quorum_state(raw)


@given(raw=st.binary(max_size=50))
def test_random_bytes_are_a_quorum_state_or_invalid(raw: bytes) -> None:
    with suppress(InvalidRecord):
        decode_quorum_state(raw)


int64 = st.integers(-(2**63), 2**63 - 1)
entries = st.builds(
    ProducerEntry,
    producer_id=int64,
    producer_epoch=st.integers(-(2**15), 2**15 - 1),
    last_sequence=int32,
    last_offset=int64,
    offset_delta=int32,
    timestamp=int64,
    coordinator_epoch=int32,
    current_txn_first_offset=int64,
)


@given(drawn=st.lists(entries, max_size=5), data=st.data())
def test_producer_snapshot_is_read_as_written(
    drawn: list[ProducerEntry], data: st.DataObject
) -> None:
    raw = encode_producer_snapshot(drawn)
    assert len(raw) == 10 + 46 * len(drawn)
    assert decode_producer_snapshot(raw) == drawn
    cut = data.draw(st.integers(0, len(raw) - 1))
    with pytest.raises(InvalidRecord):
        decode_producer_snapshot(raw[:cut])
    changed = bytearray(raw)
    changed[cut] ^= data.draw(st.integers(1, 255))
    with pytest.raises(InvalidRecord):
        decode_producer_snapshot(bytes(changed))


@given(raw=st.binary(max_size=120))
def test_random_bytes_are_a_snapshot_or_invalid(raw: bytes) -> None:
    with suppress(InvalidRecord):
        decode_producer_snapshot(raw)


@given(value=st.uuids())
def test_uuid_is_read_as_written(value: UUID) -> None:
    text = uuid_to_text(value)
    assert len(text) == 22
    assert uuid_from_text(text) == value
    assert uuid_from_text(text + "==") == value


def test_reserved_uuids_have_kafka_text() -> None:
    assert uuid_to_text(UUID(int=0)) == "AAAAAAAAAAAAAAAAAAAAAA"
    assert uuid_to_text(UUID(int=1)) == "AAAAAAAAAAAAAAAAAAAAAQ"


@pytest.mark.parametrize("text", ["", "A", "A" * 21, "A" * 23, "A" * 40, "ü" * 22, "*" * 22])
def test_malformed_uuid_text_is_rejected(text: str) -> None:
    with pytest.raises(ValueError, match="UUID"):
        uuid_from_text(text)
