"""Late requests and timeouts of a completed transaction do not end the next one."""

from __future__ import annotations

from dataclasses import replace

import pytest

from odradek.broker.transactions.messages import PRODUCER_EPOCH_MAX, ProducerIdAndEpoch
from odradek.broker.transactions.transaction_states import TransactionState
from odradek.protocol.errors import ErrorCode
from tests.broker.transactions.transaction_shard_driver import Stage


@pytest.mark.parametrize("is_commit", [True, False], ids=["commit", "abort"])
def test_fenced_producer_can_not_retry_end_of_its_successor(is_commit: bool) -> None:
    """After EndTxn below v5 the previous epoch is not that of a retry."""
    stage = Stage()
    stage.client("zombie").version = 2
    stage.begin("zombie")
    stage.client("owner").version = 0
    stage.begin("owner")
    stage.add("owner", "t-0")
    stage.end("owner", is_commit=is_commit)
    zombie, owner = stage.client("zombie"), stage.client("owner")
    assert zombie.producer.epoch + 1 == owner.producer.epoch
    received = stage.end("zombie", is_commit=is_commit).response
    assert received.error is ErrorCode.producer_fenced
    assert zombie.producer != owner.producer


def test_timeout_waiting_for_producer_id_does_not_abort_next_transaction() -> None:
    stage = Stage()
    stage.begin("P")
    transaction = stage.transaction
    transaction.metadata = replace(transaction.metadata, epoch=PRODUCER_EPOCH_MAX - 1)
    stage.client("P").producer = ProducerIdAndEpoch(
        transaction.metadata.producer_id, PRODUCER_EPOCH_MAX - 1
    )
    stage.add("P", "t-0")
    stage.now_ms += 61_000
    (allocate,) = stage.shard.abort_if_timed_out("txn", stage.now).allocations
    stage.end("P", is_commit=True)
    assert transaction.metadata.state is TransactionState.COMPLETE_COMMIT
    stage.add("P", "t-0")
    stage.do(stage.shard.handle(allocate.event, allocate.future, stage.now, 4711))
    assert transaction.metadata.state is TransactionState.ONGOING
