"""In-flight batches after a rejected batch get the same error."""

from __future__ import annotations

import pytest

from odradek.protocol.errors import ErrorCode, KafkaError
from odradek.replication.errors import NotEnoughReplicas, NotLeader
from odradek.replication.partition.rejected_batches import (
    IN_FLIGHT_MAX,
    PRODUCERS_MAX,
    RejectedBatches,
)
from odradek.storage.errors import DiskFull, OutOfOrderSequence
from tests.support.partition_logs import batch, idempotent

TOO_FEW = NotEnoughReplicas("1 of 2")


def out_of_order(expected: int) -> OutOfOrderSequence:
    return OutOfOrderSequence("another was expected", expected)


@pytest.mark.parametrize("error", [TOO_FEW, NotLeader("node 2 leads"), DiskFull("disk full")])
def test_batch_after_rejected_one_gets_the_same_error(error: KafkaError) -> None:
    refusals = RejectedBatches()
    assert refusals.error_for_producer(idempotent(7, 10), error) is error
    assert refusals.error_for_producer(idempotent(7, 13), out_of_order(10)) is error


def test_only_in_flight_batches_get_the_earlier_error() -> None:
    refusals = RejectedBatches()
    refusals.error_for_producer(idempotent(7, 10), TOO_FEW)
    codes = [
        refusals.error_for_producer(idempotent(7, 11), out_of_order(10)).code
        for _ in range(IN_FLIGHT_MAX)
    ]
    assert codes == [ErrorCode.not_enough_replicas] * (IN_FLIGHT_MAX - 1) + [
        ErrorCode.out_of_order_sequence_number
    ]
    refusals.error_for_producer(idempotent(7, 10), TOO_FEW)
    assert refusals.error_for_producer(idempotent(7, 11), out_of_order(10)) is TOO_FEW


def test_several_rejected_batches_are_matched_by_expected_sequence() -> None:
    refusals = RejectedBatches()
    for sequence in (10, 12, 15):
        refusals.error_for_producer(idempotent(7, sequence), TOO_FEW)
    assert refusals.error_for_producer(idempotent(7, 16), out_of_order(10)) is TOO_FEW


@pytest.mark.parametrize(
    "later",
    [idempotent(7, 30, producer_epoch=1), idempotent(8, 30)],
    ids=["another epoch", "another producer"],
)
def test_batch_without_rejected_predecessor_is_out_of_order(later: memoryview) -> None:
    refusals = RejectedBatches()
    refusals.error_for_producer(idempotent(7, 10), TOO_FEW)
    error = out_of_order(10)
    assert refusals.error_for_producer(later, error) is error


def test_retried_batch_no_longer_explains_out_of_order() -> None:
    refusals = RejectedBatches()
    refusals.error_for_producer(idempotent(7, 10), TOO_FEW)
    error = out_of_order(11)
    assert refusals.error_for_producer(idempotent(7, 30), error) is error


def test_new_producer_epoch_is_remembered_separately() -> None:
    refusals = RejectedBatches()
    refusals.error_for_producer(idempotent(7, 10), TOO_FEW)
    refusals.error_for_producer(idempotent(7, 0, producer_epoch=1), TOO_FEW)
    error = out_of_order(10)
    assert refusals.error_for_producer(idempotent(7, 11), error) is error
    assert (
        refusals.error_for_producer(idempotent(7, 3, producer_epoch=1), out_of_order(0)) is TOO_FEW
    )


@pytest.mark.parametrize("records", [batch(), memoryview(b"nonsense")])
def test_batch_without_sequence_gets_its_own_error(records: memoryview) -> None:
    assert RejectedBatches().error_for_producer(records, TOO_FEW) is TOO_FEW


def test_remembered_producers_are_limited() -> None:
    refusals = RejectedBatches()
    for producer in range(PRODUCERS_MAX + 1):
        refusals.error_for_producer(idempotent(producer, 0), TOO_FEW)
    assert refusals.error_for_producer(idempotent(1, 1), out_of_order(0)) is TOO_FEW
    error = out_of_order(0)
    assert refusals.error_for_producer(idempotent(0, 1), error) is error
