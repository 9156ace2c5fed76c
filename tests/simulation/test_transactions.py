"""Exactly-once semantics of transactional clients while the broker is killed (KIP-98, KIP-890).

`pytest -k "seed42"` repeats the run of a failing seed.
"""

from __future__ import annotations

import itertools
from typing import Any

import pytest

from odradek.broker.groups.offset_store import OffsetStore
from odradek.broker.transactions.coordinator import TransactionCoordinator
from odradek.broker.transactions.messages import TransactionResult
from odradek.broker.transactions.transaction import Transaction
from odradek.storage.log.partition_log import PartitionLog
from odradek.storage.log.producer_state import ProducerEntry, ProducerStates
from odradek.testing.simulation.history import TransactionOutcome, find_anomalies
from tests.simulation.single_broker_run import SingleBrokerRun

SEEDS_AT_ONCE = 10
SEEDS_FOR_A_BUG = 100


def check(seed: int) -> None:
    history = SingleBrokerRun(seed).run()
    assert [f"seed {seed}: {anomaly}" for anomaly in find_anomalies(history)] == []
    assert any(each.outcome is TransactionOutcome.COMMITTED for each in history.transactions)


@pytest.mark.parametrize("seed", range(3), ids="seed{}".format)
def test_histories_have_no_anomalies(seed: int) -> None:
    check(seed)


@pytest.mark.slow
@pytest.mark.parametrize(
    "first", range(3, 103, SEEDS_AT_ONCE), ids=lambda first: f"from_seed{first}"
)
def test_more_histories_have_no_anomalies(first: int) -> None:
    for seed in range(first, first + SEEDS_AT_ONCE):
        check(seed)


def test_seed_simulated_twice_gives_the_same_run() -> None:
    assert SingleBrokerRun(7).run() == SingleBrokerRun(7).run()


# Planted bugs that the checker must find


def set_last_stable_offset_to_high_watermark(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(PartitionLog, "last_stable_offset", property(lambda log: log.high_watermark))


def omit_aborted_transactions(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(PartitionLog, "aborted_transactions", lambda log, start, end, **options: [])


def append_duplicate_batches(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(ProducerEntry, "duplicate_of", lambda entry, batch: None)
    patch.setattr(ProducerStates, "_check_sequence", lambda states, batch, entry: None)


def skip_resuming_prepared_transactions(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Transaction, "resume", lambda transaction, now: TransactionResult())


def respond_to_end_txn_before_the_append(patch: pytest.MonkeyPatch) -> None:
    def append(coordinator: TransactionCoordinator, led: Any, what: Any) -> TransactionResult:
        shard: Any = led.shard
        actions: TransactionResult = shard.appended(what.then, coordinator._now())
        return actions

    patch.setattr(TransactionCoordinator, "_append", append)


def commit_offsets_of_aborted_transactions(patch: pytest.MonkeyPatch) -> None:
    sound = OffsetStore.complete_transaction

    def end(store: OffsetStore, producer_id: int, *, committed: bool) -> None:
        sound(store, producer_id, committed=True)

    patch.setattr(OffsetStore, "complete_transaction", end)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("plant", "traces"),
    [
        (set_last_stable_offset_to_high_watermark, {"aborted read", "partial transaction"}),
        (omit_aborted_transactions, {"aborted read"}),
        (append_duplicate_batches, {"duplicate"}),
        (skip_resuming_prepared_transactions, {"hanging transaction"}),
        (respond_to_end_txn_before_the_append, {"lost write", "hanging transaction"}),
        (commit_offsets_of_aborted_transactions, {"wrong committed offset"}),
    ],
)
def test_planted_bugs_are_found(
    plant: Any, traces: set[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    plant(monkeypatch)
    for seed in itertools.count():
        assert seed < SEEDS_FOR_A_BUG, "the bug was not found"
        if traces & {each.kind for each in find_anomalies(SingleBrokerRun(seed).run())}:
            break
