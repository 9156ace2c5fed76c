"""Encoding, decoding and loading of transaction records."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from odradek.broker.transactions import record_serde as records
from odradek.broker.transactions.coordinator_shard import (
    TransactionCoordinatorShard,
    TransactionLoader,
)
from odradek.broker.transactions.messages import TransactionMetadata
from odradek.broker.transactions.transaction_states import PERSISTENT_STATES, TransactionState
from odradek.protocol.records import records as log_records
from odradek.protocol.schemas.serde import InvalidRecord, UnknownRecord
from odradek.protocol.topics import TopicPartition

T0, T1, U0 = TopicPartition("t", 0), TopicPartition("t", 1), TopicPartition("u", 0)
ONGOING = TransactionMetadata(
    4, 7, 60_000, TransactionState.ONGOING, 2000, (T0, U0, T1), 1000, 4, -1, 2
)


def test_value_is_version_0_below_transaction_version_1() -> None:
    """Expected bytes are derived from Kafka's schemas; partitions are grouped by topic."""
    assert records.encode("id", ONGOING, 0) == (
        bytes.fromhex("0000" "0002") + b"id",
        bytes.fromhex(
            "0000" "0000000000000004" "0007" "0000ea60" "01"
            "00000002" "000174" "00000002" "00000000" "00000001" "000175" "00000001" "00000000"
            "00000000000007d0" "00000000000003e8"
        ),
    )  # fmt: skip


@pytest.mark.parametrize("version", [1, 2])
def test_value_is_version_1_from_transaction_version_1(version: int) -> None:
    _, value = records.encode("id", ONGOING, version)
    assert value == bytes.fromhex(
        "0001" "0000000000000004" "0007" "0000ea60" "01"
        "03" "0274" "03" "00000000" "00000001" "00" "0275" "02" "00000000" "00"
        "00000000000007d0" "00000000000003e8"
        "02" "00" "08" "0000000000000004" "02" "02" "0002"
    )  # fmt: skip


def test_partitions_are_null_when_empty_and_empty_when_complete() -> None:
    empty = TransactionMetadata(4, 7, 1, TransactionState.EMPTY, 2)
    _, value = records.encode("id", empty, 0)
    assert value is not None
    assert value[17:21] == bytes.fromhex("ffffffff")
    _, value = records.encode(
        "id", TransactionMetadata(4, 7, 1, TransactionState.COMPLETE_COMMIT, 2), 0
    )
    assert value is not None
    assert value[17:21] == bytes(4)


def test_tombstone_has_no_value() -> None:
    assert records.encode("id", None, 2)[1] is None


ids = st.integers(-1, 2**62)
some_stored = st.builds(
    TransactionMetadata,
    st.integers(0, 2**62),
    st.integers(0, 32767),
    st.integers(1, 2**31 - 1),
    st.sampled_from(PERSISTENT_STATES),
    st.integers(0, 2**50),
    st.lists(st.builds(TopicPartition, st.sampled_from("tu"), st.integers(0, 9)), unique=True).map(
        lambda found: tuple(sorted(found))
    ),
    st.integers(-1, 2**50),
    ids,
    ids,
    st.sampled_from([0, 2]),
).map(lambda each: each if each.state is not TransactionState.EMPTY else _without_partitions(each))


def _without_partitions(metadata: TransactionMetadata) -> TransactionMetadata:
    from dataclasses import replace

    return replace(metadata, partitions=())


@given(st.text(max_size=9), some_stored)
def test_encoded_records_are_decoded(transactional_id: str, metadata: TransactionMetadata) -> None:
    key, value = records.encode(transactional_id, metadata, 2)
    assert records.decode_key(key) == transactional_id
    assert value is not None
    assert records.decode_value(value) == metadata


@pytest.mark.parametrize("code", [6, 7, 8, -1])
def test_record_with_transient_state_is_invalid(code: int) -> None:
    _, value = records.encode("id", ONGOING, 0)
    assert value is not None
    broken = bytearray(value)
    broken[16] = code & 0xFF
    with pytest.raises(InvalidRecord):
        records.decode_value(broken)


def load(*batches: bytearray) -> TransactionCoordinatorShard:
    shard = TransactionCoordinatorShard()
    loader = TransactionLoader(shard)
    for batch in batches:
        for _ in loader.feed(batch):
            pass
    for _ in loader.finish():
        pass
    return shard


def batch(*pairs: tuple[bytes | None, bytes | None], base: int = 0) -> bytearray:
    rows = [log_records.Record(base + n, 1, key, value) for n, (key, value) in enumerate(pairs)]
    return log_records.build_batch(rows, base_offset=base)


def test_load_keeps_last_record_of_each_transactional_id() -> None:
    first, second = (
        TransactionMetadata(4, 7, 1, TransactionState.EMPTY, 2),
        TransactionMetadata(5, 0, 1, TransactionState.EMPTY, 3),
    )
    shard = load(
        batch(
            records.encode("a", first, 2),
            records.encode("b", first, 2),
            records.encode("c", first, 0),
        ),
        batch(records.encode("a", second, 2), records.encode("b", None, 2), base=3),
    )
    stands = {each.transactional_id: each.metadata for each in shard.transactions.values()}
    assert stands["a"].producer_id == 5
    assert stands["c"].producer_id == 4
    assert set(stands) == {"a", "c"}


def test_load_skips_records_of_newer_versions(caplog: pytest.LogCaptureFixture) -> None:
    good = records.encode("a", TransactionMetadata(4, 7, 1, TransactionState.EMPTY, 2), 2)
    shard = load(
        batch((b"\x00\x09what", b"x"), (records.encode("b", None, 2)[0], b"\x00\x63"), good)
    )
    assert set(shard.transactions) == {"a"}
    (line,) = caplog.messages
    assert line.startswith("Skipped 2 records of unknown types")
    with pytest.raises(UnknownRecord):
        records.decode_key(b"\x00\x09what")


def test_load_skips_invalid_records() -> None:
    key, value = records.encode("a", ONGOING, 2)
    assert value is not None
    good = records.encode("b", ONGOING, 2)
    assert list(load(batch((key, value[:-3]), good)).transactions) == ["b"]
