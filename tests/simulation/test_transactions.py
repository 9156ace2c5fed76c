"""Exactly once, whatever is killed when: made-up histories of transactional clients (KIP-98, KIP-890).

A failing seed is run again by `pytest -k "seed42"`, and always runs alike.
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


# The bugs that the checker is to find: what each does to the broker, and one of its traces


def readers_go_past_open_transactions(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(PartitionLog, "last_stable_offset", property(lambda log: log.high_watermark))


def aborted_transactions_are_not_listed(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(PartitionLog, "aborted_transactions", lambda log, start, end: [])


def repeated_batches_are_appended(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(ProducerEntry, "duplicate_of", lambda entry, batch: None)
    patch.setattr(ProducerStates, "_check_sequence", lambda states, batch, entry: None)


def a_coordinator_that_starts_forgets_what_it_had_decided(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Transaction, "resume", lambda transaction, now: TransactionResult())


def an_end_is_responded_before_it_is_written(patch: pytest.MonkeyPatch) -> None:
    def append(coordinator: TransactionCoordinator, led: Any, what: Any) -> TransactionResult:
        shard: Any = led.shard
        actions: TransactionResult = shard.appended(what.then, coordinator._now())
        return actions

    patch.setattr(TransactionCoordinator, "_append", append)


def offsets_of_aborted_transactions_hold(patch: pytest.MonkeyPatch) -> None:
    sound = OffsetStore.complete_transaction

    def end(store: OffsetStore, producer_id: int, *, committed: bool) -> None:
        sound(store, producer_id, committed=True)

    patch.setattr(OffsetStore, "complete_transaction", end)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("plant", "traces"),
    [
        (readers_go_past_open_transactions, {"aborted read", "partial transaction"}),
        (aborted_transactions_are_not_listed, {"aborted read"}),
        (repeated_batches_are_appended, {"duplicate"}),
        (a_coordinator_that_starts_forgets_what_it_had_decided, {"hanging transaction"}),
        (an_end_is_responded_before_it_is_written, {"lost write", "hanging transaction"}),
        (offsets_of_aborted_transactions_hold, {"wrong committed offset"}),
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
