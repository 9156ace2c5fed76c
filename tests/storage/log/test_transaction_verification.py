"""Transaction verification: the first batch of a transaction needs a guard that was created
before the coordinator was asked (KIP-890)."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest
from hypothesis import given
from hypothesis import strategies as st

from odradek.protocol.records.batch import Batch
from odradek.storage.errors import (
    InvalidProducerEpoch,
    InvalidTransactionState,
    OutOfOrderSequence,
    StorageError,
)
from odradek.storage.log.producer_state import ProducerStates
from odradek.storage.log.transaction_verification import VERIFICATION_DISABLED, VerificationGuard
from tests.support.partition_logs import LogWorld, idempotent, marker

P = 7
DAY_MS = 86_400_000


@dataclass
class Log:
    """One producer and its coordinator; each batch follows the previous one."""

    states: ProducerStates = field(
        default_factory=lambda: ProducerStates("t-0", expiration_ms=lambda: DAY_MS)
    )
    end: int = 0

    def ask(
        self, epoch: int = 0, sequence: int = 0, *, adds: bool = False, now_ms: int = 0
    ) -> VerificationGuard | None:
        return self.states.begin_verification(
            P, epoch, sequence, adds_partitions=adds, now_ms=now_ms
        )

    def write(
        self,
        guard: VerificationGuard | None,
        *,
        epoch: int = 0,
        sequence: int = 0,
        client: bool = True,
        transactional: bool = True,
    ) -> bool:
        """Append; True if it was appended, False for a duplicate."""
        data = idempotent(P, sequence, producer_epoch=epoch, transactional=transactional)
        return self._append(data, client=client, guard=guard)

    def end_transaction(self, *, epoch: int = 0, version: int = 0, commit: bool = True) -> bool:
        return self._append(marker(P, epoch, commit=commit), client=False, version=version)

    def _append(
        self,
        data: memoryview,
        *,
        client: bool,
        guard: VerificationGuard | None = None,
        version: int = 0,
    ) -> bool:
        found = Batch(data)
        kept = self.states.check(
            found, from_client=client, transaction_version=version, guard=guard
        )
        if kept is not None:
            return False
        found.stamp(self.end, 0)
        self.end = found.last_offset + 1
        completed = self.states.apply(found)
        if completed is not None:
            self.states.complete(completed)
        return True


@pytest.fixture
def log() -> Log:
    return Log()


@pytest.mark.parametrize("client", [True, False], ids=["client", "coordinator"])
def test_first_batch_of_transaction_needs_guard_and_later_ones_do_not(
    log: Log, client: bool
) -> None:
    with pytest.raises(InvalidTransactionState):
        log.write(None, client=client)
    with pytest.raises(InvalidTransactionState):
        log.write(VerificationGuard(), client=client)
    guard = log.ask()
    assert guard is not None
    assert log.write(guard, client=client)
    assert log.ask(sequence=1) is None
    assert log.write(None, sequence=1, client=client)


def test_concurrent_verifications_share_guard(log: Log) -> None:
    assert log.ask() is log.ask(sequence=5)


@pytest.mark.parametrize("commit", [True, False])
def test_marker_invalidates_guard(log: Log, commit: bool) -> None:
    guard = log.ask()
    log.end_transaction(commit=commit)
    with pytest.raises(InvalidTransactionState):
        log.write(guard)
    assert log.ask() is not guard
    # So does a transaction that starts and ends meanwhile.
    guard = log.ask()
    assert log.write(guard)
    log.end_transaction()
    with pytest.raises(InvalidTransactionState):
        log.write(guard, sequence=1)


@pytest.mark.parametrize(
    ("adds", "marker_epoch", "survives"),
    [
        (True, 1, True),  # the marker of the transaction of epoch 0 has epoch 1
        (True, 2, False),
        (False, 1, False),
    ],
)
def test_marker_of_previous_transaction_keeps_version_2_guard(
    log: Log, adds: bool, marker_epoch: int, survives: bool
) -> None:
    log.write(log.ask(adds=adds))
    guard = log.ask(epoch=1, adds=adds)
    log.end_transaction(epoch=marker_epoch, version=2)
    assert (log.ask(epoch=marker_epoch, adds=adds) is guard) == survives
    if survives:
        assert log.write(guard, epoch=1)


def test_repeated_marker_keeps_guard_of_later_transaction(log: Log) -> None:
    """The producer has written to other partitions in between."""
    log.write(log.ask(adds=True))
    log.end_transaction(epoch=1, version=2)
    guard = log.ask(epoch=3, adds=True)
    log.end_transaction(epoch=1, version=2)
    assert log.write(guard, epoch=3)


@pytest.mark.parametrize(("asked", "survives"), [(0, False), (1, True)])
def test_marker_that_keeps_epoch_invalidates_guard_of_that_epoch(
    asked: int, survives: bool
) -> None:
    """EndTxn before version 5, from a producer whose partitions are added by Produce requests."""
    world = LogWorld()
    guard = world.log.producers.begin_verification(P, asked, 0, adds_partitions=True, now_ms=0)
    world.coordinate(marker(P, 0, commit=False), transaction_version=0)
    late = idempotent(P, 0, producer_epoch=asked, transactional=True)
    if survives:
        world.append(late, guard=guard)
    else:
        with pytest.raises(InvalidTransactionState):
            world.append(late, guard=guard)
        world.log.advance_high_watermark(world.log.end_offset)
        assert world.log.last_stable_offset == world.log.end_offset


def test_fenced_producer_is_refused_before_verification(log: Log) -> None:
    log.write(log.ask(epoch=3), epoch=3)
    with pytest.raises(InvalidProducerEpoch):
        log.ask(epoch=2)
    log.end_transaction(epoch=3)
    with pytest.raises(InvalidProducerEpoch):
        log.write(VERIFICATION_DISABLED, epoch=2)


def test_duplicate_batch_is_detected_after_its_transaction(log: Log) -> None:
    log.write(log.ask())
    log.end_transaction()
    assert not log.write(None)


def test_disabled_verification_needs_no_guard(log: Log) -> None:
    assert log.write(VERIFICATION_DISABLED)
    log.end_transaction()
    assert log.write(VERIFICATION_DISABLED, sequence=1)


def test_later_batch_does_not_overtake_retried_batch(log: Log) -> None:
    log.write(log.ask())
    log.end_transaction()
    log.ask(sequence=4)
    guard = log.ask(sequence=1)
    with pytest.raises(OutOfOrderSequence, match=r"1 \(earliest seen sequence\)") as refused:
        log.write(guard, sequence=4)
    assert refused.value.expected == 1
    assert log.write(guard, sequence=1)


def test_new_epoch_resets_lowest_sequence(log: Log) -> None:
    log.ask(epoch=0, sequence=0)
    guard = log.ask(epoch=1, sequence=3)
    assert log.write(guard, epoch=1, sequence=3)


@pytest.mark.parametrize(("adds", "allowed"), [(True, False), (False, True)])
def test_unknown_producer_of_version_2_starts_at_sequence_zero(
    log: Log, adds: bool, allowed: bool
) -> None:
    guard = log.ask(sequence=9, adds=adds)
    if allowed:
        assert log.write(guard, sequence=9)
    else:
        with pytest.raises(OutOfOrderSequence):
            log.write(guard, sequence=9)


def test_unused_guard_expires(log: Log) -> None:
    guard = log.ask(now_ms=5)
    log.states.expire(DAY_MS + 4)
    assert log.ask() is guard
    log.states.expire(DAY_MS + 5)
    assert log.ask() is not guard


steps = st.lists(
    st.sampled_from(["ask", "write", "write old", "write none", "commit", "abort"]), max_size=40
)


@given(steps, st.booleans())
def test_transaction_starts_only_with_guard_created_after_last_marker(
    steps: list[str], adds: bool
) -> None:
    """Transaction version 1: all transactions have one producer epoch."""
    log = Log()
    guard: VerificationGuard | None = None
    old: VerificationGuard | None = None
    sequence = 0
    asked = is_open = False
    for step in steps:
        if step == "ask":
            guard = log.ask(sequence=sequence, adds=False)
            assert (guard is None) == is_open
            asked = not is_open
        elif step in ("commit", "abort"):
            log.end_transaction(commit=step == "commit")
            guard, old = None, guard or old
            asked = is_open = False
        else:
            used = {"write": guard, "write old": old, "write none": None}[step]
            may = is_open or (asked and used is guard and guard is not None)
            try:
                log.write(used, sequence=sequence)
            except StorageError:
                assert not may
            else:
                assert may
                sequence += 1
                is_open, asked, old = True, False, guard or old
