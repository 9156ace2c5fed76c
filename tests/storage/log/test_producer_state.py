"""Producer state, after Kafka's ProducerStateManagerTest: sequences, epochs, transactions
(KIP-98)."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from odradek.protocol.errors import CorruptBatch
from odradek.protocol.records.batch import Batch
from odradek.storage.errors import (
    CoordinatorFenced,
    InvalidProducerEpoch,
    InvalidTransactionState,
    OutOfOrderSequence,
)
from odradek.storage.log.producer_state import BatchMetadata, ProducerStates
from odradek.storage.log.transaction_verification import VERIFICATION_DISABLED, VerificationGuard
from tests.support.partition_logs import NOW_MS, batch, idempotent, marker

P = 7
LAST_SEQUENCE = 2**31 - 1


class Log:
    """Assigns offsets to batches of a client or a coordinator."""

    def __init__(self) -> None:
        self.states = ProducerStates("t-0", expiration_ms=lambda: 86_400_000)
        self.end = 0

    def append(
        self,
        data: memoryview,
        *,
        client: bool = True,
        version: int = 0,
        guard: VerificationGuard | None = VERIFICATION_DISABLED,
    ) -> BatchMetadata | None:
        """Append the batch unless it is a duplicate; returns the earlier append of a duplicate."""
        found = Batch(data)
        kept = self.states.check(
            found, from_client=client, transaction_version=version, guard=guard
        )
        if kept is None:
            found.stamp(self.end, 0)
            self.end = found.last_offset + 1
            completed = self.states.apply(found)
            if completed is not None:
                self.states.complete(completed)
        return kept

    def end_transaction(
        self, *, commit: bool = True, epoch: int = 0, coordinator: int = 0, version: int = 0
    ) -> None:
        data = marker(P, epoch, commit=commit, coordinator=coordinator)
        self.append(data, client=False, version=version)


@pytest.fixture
def log() -> Log:
    return Log()


def test_out_of_order_sequence_is_refused(log: Log) -> None:
    log.append(idempotent(P, 0, 3))
    log.append(idempotent(P, 3, 1))
    with pytest.raises(OutOfOrderSequence, match=r"4 \(expected seq\. number\)"):
        log.append(idempotent(P, 5))
    with pytest.raises(OutOfOrderSequence):
        log.append(idempotent(P, 2))
    log.append(idempotent(P, 4))


def test_sequence_wraps_around(log: Log) -> None:
    log.append(idempotent(P, LAST_SEQUENCE - 1, 2))
    entry = log.states.get(P)
    assert entry is not None
    assert entry.last_sequence == LAST_SEQUENCE
    log.append(idempotent(P, 0, 1))
    # Also within a batch.
    other = Log()
    other.append(idempotent(P, LAST_SEQUENCE, 3))
    kept = other.append(idempotent(P, LAST_SEQUENCE, 3))
    assert kept is not None
    assert (kept.first_sequence, kept.last_sequence) == (LAST_SEQUENCE, 1)
    other.append(idempotent(P, 2))


def test_last_five_batches_are_detected_as_duplicates(log: Log) -> None:
    for number in range(6):
        log.append(idempotent(P, number * 2, 2, timestamps=NOW_MS + number))
    for number in range(1, 6):
        kept = log.append(idempotent(P, number * 2, 2))
        assert kept is not None
        assert (kept.first_offset, kept.last_offset) == (number * 2, number * 2 + 1)
        assert kept.timestamp == NOW_MS + number
    with pytest.raises(OutOfOrderSequence):
        log.append(idempotent(P, 0, 2))  # only the last five are kept
    with pytest.raises(OutOfOrderSequence):
        log.append(idempotent(P, 10, 1))  # a part of a batch is no duplicate


def test_unknown_producer_may_start_with_any_sequence(log: Log) -> None:
    log.append(idempotent(P, 42))
    with pytest.raises(OutOfOrderSequence):
        log.append(idempotent(P, 42, 2))


def test_new_producer_epoch_starts_at_sequence_zero_and_fences_old_epoch(log: Log) -> None:
    log.append(idempotent(P, 0, 2))
    with pytest.raises(OutOfOrderSequence):
        log.append(idempotent(P, 2, producer_epoch=1))
    log.append(idempotent(P, 0, producer_epoch=1))
    with pytest.raises(InvalidProducerEpoch):
        log.append(idempotent(P, 2))
    entry = log.states.get(P)
    assert entry is not None
    assert len(entry.batches) == 1


def test_coordinator_batches_need_no_sequences(log: Log) -> None:
    log.append(idempotent(P, -1, producer_epoch=3), client=False)
    log.append(idempotent(P, -1, producer_epoch=3), client=False)
    with pytest.raises(InvalidProducerEpoch):
        log.append(idempotent(P, -1, producer_epoch=2), client=False)


def test_open_transaction_limits_first_unstable_offset(log: Log) -> None:
    log.append(idempotent(1, 0))
    assert log.states.first_unstable_offset is None
    log.append(idempotent(P, 0, transactional=True))
    log.append(idempotent(P, 1, transactional=True))
    assert log.states.first_unstable_offset == 1
    log.end_transaction()
    # Completed, but the marker (offset 3) is not replicated yet.
    assert log.states.first_unstable_offset == 1
    log.states.replicated_to(3)
    assert log.states.first_unstable_offset == 1
    log.states.replicated_to(4)
    assert log.states.first_unstable_offset is None


def test_earliest_open_transaction_is_first_unstable(log: Log) -> None:
    log.append(idempotent(P, 0, transactional=True))
    log.append(idempotent(8, 0, transactional=True))
    log.end_transaction()
    assert log.states.first_unstable_offset == 0
    log.states.replicated_to(log.end)
    assert log.states.first_unstable_offset == 1
    completed = log.states.apply(_stamped(marker(8, commit=False), log.end))
    assert completed is not None
    assert (completed.first_offset, completed.last_offset) == (1, 3)
    assert completed.is_aborted
    assert log.states.stable_offset_after(completed) == 4


def _stamped(data: memoryview, offset: int) -> Batch:
    found = Batch(data)
    found.stamp(offset, 0)
    return found


def test_non_transactional_batch_in_open_transaction_is_refused(log: Log) -> None:
    log.append(idempotent(P, 0, transactional=True))
    with pytest.raises(InvalidTransactionState):
        log.append(idempotent(P, 1))


def test_marker_without_transaction_completes_nothing(log: Log) -> None:
    log.end_transaction(epoch=4, coordinator=2)
    entry = log.states.get(P)
    assert entry is not None
    assert (entry.epoch, entry.coordinator_epoch, entry.last_sequence) == (4, 2, -1)
    with pytest.raises(OutOfOrderSequence):
        log.append(idempotent(P, 3, producer_epoch=4))
    log.append(idempotent(P, 0, producer_epoch=4))


def test_old_coordinator_epoch_and_old_marker_epoch_are_fenced(log: Log) -> None:
    log.append(idempotent(P, 0, producer_epoch=5, transactional=True))
    log.end_transaction(epoch=5, coordinator=3)
    with pytest.raises(CoordinatorFenced):
        log.end_transaction(epoch=5, coordinator=2)
    with pytest.raises(InvalidProducerEpoch):
        log.end_transaction(epoch=4, coordinator=3)


def test_marker_of_transaction_version_2_needs_larger_epoch(log: Log) -> None:
    log.append(idempotent(P, 0, producer_epoch=5, transactional=True))
    with pytest.raises(InvalidProducerEpoch):
        log.end_transaction(epoch=5, version=2)
    log.end_transaction(epoch=6, version=2)
    log.end_transaction(epoch=6, version=2)  # repeated marker (KAFKA-19999)
    with pytest.raises(InvalidProducerEpoch):
        log.end_transaction(epoch=5, version=2)


def test_invalid_control_batch_is_corrupt(log: Log) -> None:
    data = batch(1, producer_id=P, producer_epoch=0, base_sequence=0, control=True)
    with pytest.raises(CorruptBatch):
        log.append(data, client=False)


def test_idle_producers_expire_unless_in_transaction(log: Log) -> None:
    log.append(idempotent(1, 0))
    log.append(idempotent(2, 0, timestamps=NOW_MS + 10))
    log.append(idempotent(3, 0, transactional=True))
    assert log.states.expire(NOW_MS + 86_400_000 - 1) == 0
    assert log.states.expire(NOW_MS + 86_400_000) == 1
    assert sorted(log.states.active) == [2, 3]


def test_ongoing_transaction_is_known_by_producer_and_epoch(log: Log) -> None:
    log.append(idempotent(P, 0, transactional=True))
    assert log.states.has_ongoing_transaction(P, 0)
    assert not log.states.has_ongoing_transaction(P, 1)
    assert not log.states.has_ongoing_transaction(8, 0)


@settings(max_examples=200)
@given(
    st.lists(
        st.tuples(st.integers(0, 3), st.integers(0, 12), st.integers(1, 3)), min_size=1, max_size=30
    )
)
def test_accepted_sequences_have_no_gaps_or_duplicates(
    attempts: list[tuple[int, int, int]],
) -> None:
    """For any input of a producer, the log has the sequences 0, 1, 2, … of each epoch."""
    log = Log()
    written: dict[int, list[int]] = {}
    for epoch, sequence, count in attempts:
        try:
            kept = log.append(idempotent(P, sequence, count, producer_epoch=epoch))
        except (OutOfOrderSequence, InvalidProducerEpoch):
            continue
        sequences = written.setdefault(epoch, [])
        wanted = list(range(sequence, sequence + count))
        if kept is None:
            sequences += wanted
        else:
            assert wanted[0] in sequences
            assert wanted[-1] in sequences
    for number, sequences in enumerate(written.values()):
        first = sequences[0]
        assert sequences == list(range(first, first + len(sequences)))
        assert number == 0 or first == 0
