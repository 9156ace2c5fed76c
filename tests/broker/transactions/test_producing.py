"""Transactional Produce requests and their verification, at every version (KIP-890)."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from typing import Any

import pytest
import trio

from odradek.protocol import apis
from odradek.protocol.errors import ErrorCode
from odradek.protocol.records.records import Record, build_batch
from odradek.protocol.topics import TopicPartition
from odradek.testing import Broker
from tests.support.brokers import broker_fixture
from tests.support.produce_requests import end_offset, produce_transactionally, produce_values
from tests.support.raw_requests import ask, connect, read_correlation_ids, request_frame
from tests.support.records import NOW_MS, transactional_batch
from tests.support.transaction_coordinator import Coordinator

NONE = ErrorCode.none
_numbers = itertools.count()


broker = broker_fixture()


@pytest.fixture
def coordinator(broker: Broker) -> Iterator[Coordinator]:
    fresh = Coordinator()
    before = broker.node.services.transaction_partitions
    broker.node.services.transaction_partitions = fresh
    yield fresh
    broker.node.services.transaction_partitions = before


@pytest.fixture
def topic(broker: Broker) -> str:
    name = f"written-in-transactions-{next(_numbers)}"
    broker.create_topic(name, partitions=2)
    return name


@pytest.mark.parametrize(
    ("version", "verify_only"), [(3, True), (9, True), (11, True), (12, False)]
)
def test_only_first_batch_is_verified(
    broker: Broker, coordinator: Coordinator, topic: str, version: int, verify_only: bool
) -> None:
    assert produce_transactionally(
        broker, topic, transactional_batch(), transactional_batch(), version=version
    ) == [NONE, NONE]
    partitions = [TopicPartition(topic, 0), TopicPartition(topic, 1)]
    assert coordinator.asked == [("tx", 5, 0, partitions, verify_only)]
    assert produce_transactionally(broker, topic, transactional_batch(1), version=version) == [NONE]
    assert len(coordinator.asked) == 1
    assert end_offset(broker, topic) == 2


class SlowCoordinator(Coordinator):
    """A coordinator that does not respond before `may_respond` is set."""

    may_respond: trio.Event

    async def add_partitions(self, *args: Any, **more: Any) -> Mapping[TopicPartition, ErrorCode]:
        self.may_respond = trio.Event()
        await self.may_respond.wait()
        return await super().add_partitions(*args, **more)


def test_earlier_responses_do_not_wait_for_verification(
    broker: Broker, coordinator: Coordinator, topic: str
) -> None:
    slow = broker.node.services.transaction_partitions = SlowCoordinator()
    values = produce_values(topic, transactional_batch(), transactional_id="tx")
    alone = produce_values(topic, bytes(build_batch([Record(0, NOW_MS, b"k", b"v", ())])))
    with connect(broker) as sock:
        sock.sendall(
            request_frame(apis.PRODUCE, 12, 1, alone) + request_frame(apis.PRODUCE, 12, 2, values)
        )
        assert read_correlation_ids(sock, 1) == [1]

        async def response() -> None:
            slow.may_respond.set()

        broker._call(response)
        assert read_correlation_ids(sock, 1) == [2]


def test_topic_created_during_verification_of_another(broker: Broker, topic: str) -> None:
    """The partition of the new topic was not verified."""
    new = f"new-{topic}"

    class Creating(Coordinator):
        async def add_partitions(
            self, *args: Any, **more: Any
        ) -> Mapping[TopicPartition, ErrorCode]:
            await trio.to_thread.run_sync(broker.create_topic, new, 1)
            return await super().add_partitions(*args, **more)

    before = broker.node.services.transaction_partitions
    broker.node.services.transaction_partitions = Creating()
    values = produce_values(topic, transactional_batch(), transactional_id="tx")
    values["topic_data"] += produce_values(new, transactional_batch())["topic_data"]
    try:
        response = ask(broker, apis.PRODUCE, 12, values)
        received = {
            each.name: each.partition_responses[0].error_code for each in response.responses
        }
        assert received == {topic: NONE, new: ErrorCode.unknown_topic_or_partition}
        assert end_offset(broker, new) == 0
    finally:
        broker.node.services.transaction_partitions = before


OLD, KNOWS_ABORTABLE, ADDS = 10, 11, 12


@pytest.mark.parametrize(
    ("version", "fields", "received"),
    [
        (OLD, ErrorCode.producer_fenced, ErrorCode.invalid_producer_epoch),
        (ADDS, ErrorCode.producer_fenced, ErrorCode.invalid_producer_epoch),
        (OLD, ErrorCode.transaction_abortable, ErrorCode.invalid_txn_state),
        (KNOWS_ABORTABLE, ErrorCode.transaction_abortable, ErrorCode.transaction_abortable),
        (ADDS, ErrorCode.transaction_abortable, ErrorCode.transaction_abortable),
        (ADDS, ErrorCode.invalid_txn_state, ErrorCode.invalid_txn_state),
        (OLD, ErrorCode.invalid_producer_id_mapping, ErrorCode.invalid_producer_id_mapping),
        (OLD, ErrorCode.not_coordinator, ErrorCode.not_enough_replicas),
        (ADDS, ErrorCode.coordinator_not_available, ErrorCode.not_enough_replicas),
        (ADDS, ErrorCode.coordinator_load_in_progress, ErrorCode.not_enough_replicas),
        (ADDS, ErrorCode.network_exception, ErrorCode.not_enough_replicas),
        (OLD, ErrorCode.operation_not_attempted, ErrorCode.not_enough_replicas),
        (ADDS, ErrorCode.operation_not_attempted, ErrorCode.not_enough_replicas),
        (OLD, ErrorCode.concurrent_transactions, ErrorCode.not_enough_replicas),
        (ADDS, ErrorCode.concurrent_transactions, ErrorCode.concurrent_transactions),
    ],
)
def test_verification_error_returned_to_producer(
    broker: Broker,
    coordinator: Coordinator,
    topic: str,
    version: int,
    fields: ErrorCode,
    received: ErrorCode,
) -> None:
    coordinator.responses = [fields]
    assert produce_transactionally(broker, topic, transactional_batch(), version=version) == [
        received
    ]
    assert end_offset(broker, topic) == 0


@pytest.mark.parametrize(("version", "error"), [(ADDS, NONE), (OLD, ErrorCode.not_enough_replicas)])
def test_concurrent_transactions_is_retried_by_broker(
    broker: Broker, coordinator: Coordinator, topic: str, version: int, error: ErrorCode
) -> None:
    coordinator.responses = [
        ErrorCode.concurrent_transactions,
        ErrorCode.concurrent_transactions,
        NONE,
    ]
    assert produce_transactionally(broker, topic, transactional_batch(), version=version) == [error]
    assert len(coordinator.asked) == (3 if version == ADDS else 1)


def test_rejected_partition_does_not_affect_others(
    broker: Broker, coordinator: Coordinator, topic: str
) -> None:
    assert produce_transactionally(broker, topic, transactional_batch()) == [NONE]
    coordinator.responses = [ErrorCode.transaction_abortable]
    assert produce_transactionally(
        broker, topic, transactional_batch(1), transactional_batch()
    ) == [NONE, ErrorCode.transaction_abortable]


def test_produce_with_several_producers_fails(
    broker: Broker, coordinator: Coordinator, topic: str
) -> None:
    wrong = ErrorCode.invalid_producer_id_mapping
    assert produce_transactionally(
        broker, topic, transactional_batch(), transactional_batch(producer_id=6)
    ) == [wrong, wrong]
    assert coordinator.asked == []


def test_transactional_batch_without_transactional_id_fails(
    broker: Broker, coordinator: Coordinator, topic: str
) -> None:
    refused = produce_transactionally(broker, topic, transactional_batch(), transactional_id=None)
    assert refused == [ErrorCode.transactional_id_authorization_failed]
    assert end_offset(broker, topic) == 0


def test_log_append_time_is_set_once(broker: Broker, coordinator: Coordinator) -> None:
    broker.create_topic("log-append-time", 1, configs={"message.timestamp.type": "LogAppendTime"})
    assert produce_transactionally(broker, "log-append-time", transactional_batch()) == [NONE]


def test_invalid_batch_is_rejected(broker: Broker, coordinator: Coordinator, topic: str) -> None:
    assert produce_transactionally(broker, topic, b"\x00" * 70) == [ErrorCode.corrupt_message]
    assert coordinator.asked == []


@pytest.mark.parametrize(("version", "asks"), [(OLD, 0), (ADDS, 1)])
def test_disabled_verification_still_adds_partitions(
    coordinator: Coordinator, version: int, asks: int
) -> None:
    off = {"transaction.partition.verification.enable": "false"}
    with Broker(configs=off) as other:
        other.node.services.transaction_partitions = coordinator
        other.create_topic("t", 1)
        assert produce_transactionally(other, "t", transactional_batch(), version=version) == [NONE]
        assert len(coordinator.asked) == asks
        if asks:
            coordinator.responses = [ErrorCode.transaction_abortable]
            other.create_topic("u", 1)
            assert produce_transactionally(other, "u", transactional_batch()) == [
                ErrorCode.transaction_abortable
            ]


def test_response_is_complete_with_unknown_topic(broker: Broker, coordinator: Coordinator) -> None:
    unknown: Any = produce_transactionally(broker, "there-is-no-such-topic", transactional_batch())
    assert unknown == [ErrorCode.unknown_topic_or_partition]
