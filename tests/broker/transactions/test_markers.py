"""WriteTxnMarkers, read_committed fetches, and DescribeProducers."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any

import pytest

from odradek.protocol import apis
from odradek.protocol.errors import ErrorCode
from odradek.protocol.records.batch import batches
from odradek.protocol.records.control import read_end_marker
from odradek.testing import Broker
from tests.support.produce_requests import produce_transactionally
from tests.support.raw_requests import ask
from tests.support.records import NOW_MS, transactional_batch
from tests.support.transaction_coordinator import Coordinator

NONE = ErrorCode.none
COMMITTED, UNCOMMITTED = 1, 0
P = 5
_numbers = itertools.count()


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    with Broker() as running:
        running.node.services.transaction_partitions = Coordinator()
        yield running


@pytest.fixture
def topic(broker: Broker) -> str:
    name = f"ended-{next(_numbers)}"
    broker.create_topic(name, partitions=1)
    return name


def marker(
    topic: str,
    *,
    commit: bool = True,
    producer_id: int = P,
    epoch: int = 0,
    coordinator: int = 0,
    version: int = 0,
    partitions: tuple[int, ...] = (0,),
) -> dict[str, Any]:
    return {
        "producer_id": producer_id,
        "producer_epoch": epoch,
        "transaction_result": commit,
        "topics": [{"name": topic, "partition_indexes": partitions}],
        "coordinator_epoch": coordinator,
        "transaction_version": version,
    }


def write(
    broker: Broker, *markers: dict[str, Any], version: int = 2
) -> dict[int, dict[tuple[str, int], ErrorCode]]:
    """Send WriteTxnMarkers; returns the error code per partition by producer id."""
    response = ask(broker, apis.WRITE_TXN_MARKERS, version, {"markers": list(markers)})
    return {
        each.producer_id: {
            (topic.name, partition.partition_index): partition.error_code
            for topic in each.topics
            for partition in topic.partitions
        }
        for each in response.markers
    }


def fetch(
    broker: Broker,
    topic: str,
    offset: int = 0,
    *,
    isolation: int = COMMITTED,
    wait_ms: int = 0,
    min_bytes: int = 1,
) -> Any:
    """Fetch one partition; returns its result."""
    response = ask(
        broker,
        apis.FETCH,
        12,
        {
            "max_wait": timedelta(milliseconds=wait_ms),
            "min_bytes": min_bytes,
            "max_bytes": 1 << 20,
            "isolation_level": isolation,
            "topics": [
                {
                    "topic": topic,
                    "partitions": [
                        {"partition": 0, "fetch_offset": offset, "partition_max_bytes": 1 << 20}
                    ],
                }
            ],
        },
    )
    (found,) = response.responses
    return found.partitions[0]


def offsets(response: Any) -> list[int]:
    return [each.base_offset for each in batches(memoryview(response.records or b""))]


def latest(broker: Broker, topic: str, isolation: int) -> int:
    wanted = {"partition_index": 0, "timestamp": -1}
    response = ask(
        broker,
        apis.LIST_OFFSETS,
        7,
        {
            "replica_id": -1,
            "isolation_level": isolation,
            "topics": [{"name": topic, "partitions": [wanted]}],
        },
    )
    ((found,),) = [each.partitions for each in response.topics]
    return int(found.offset)


def producers(broker: Broker, topic: str, *partitions: int) -> list[Any]:
    wanted = [{"name": topic, "partition_indexes": partitions or (0,)}]
    response = ask(broker, apis.DESCRIBE_PRODUCERS, 0, {"topics": wanted})
    (found,) = response.topics
    return list(found.partitions)


@pytest.mark.parametrize("version", [1, 2])
@pytest.mark.parametrize("commit", [True, False])
def test_marker_completes_transaction(
    broker: Broker, topic: str, version: int, commit: bool
) -> None:
    assert produce_transactionally(broker, topic, transactional_batch()) == [NONE]
    before = fetch(broker, topic)
    assert (before.last_stable_offset, before.high_watermark) == (0, 1)
    assert (offsets(before), list(before.aborted_transactions)) == ([], [])
    assert latest(broker, topic, COMMITTED) == 0
    assert latest(broker, topic, UNCOMMITTED) == 1
    assert write(broker, marker(topic, commit=commit), version=version) == {P: {(topic, 0): NONE}}
    after = fetch(broker, topic)
    assert (after.last_stable_offset, after.high_watermark) == (2, 2)
    assert offsets(after) == [0, 1]
    assert latest(broker, topic, COMMITTED) == 2
    aborted = [(each.producer_id, each.first_offset) for each in after.aborted_transactions]
    assert aborted == ([] if commit else [(P, 0)])
    assert fetch(broker, topic, isolation=UNCOMMITTED).aborted_transactions is None
    _, control = batches(memoryview(after.records))
    assert control.is_control
    assert control.is_transactional
    assert read_end_marker(control) == (commit, 0)


def test_markers_of_one_producer_have_one_result(broker: Broker, topic: str) -> None:
    other = f"{topic}-other"
    broker.create_topic(other, partitions=3)
    assert write(
        broker,
        marker(topic),
        marker(other, partitions=(0, 2, 3)),
        marker(topic, producer_id=9, partitions=(4,)),
    ) == {
        P: {
            (topic, 0): NONE,
            (other, 0): NONE,
            (other, 2): NONE,
            (other, 3): ErrorCode.unknown_topic_or_partition,
        },
        9: {(topic, 4): ErrorCode.unknown_topic_or_partition},
    }
    assert write(broker) == {}


@pytest.mark.parametrize(
    ("epoch", "coordinator", "version", "error"),
    [
        (3, 2, 0, NONE),
        (4, 2, 0, NONE),
        (2, 2, 0, ErrorCode.invalid_producer_epoch),
        (3, 1, 0, ErrorCode.transaction_coordinator_fenced),
        (3, 2, 2, ErrorCode.invalid_producer_epoch),
        (4, 2, 2, NONE),
    ],
)
def test_markers_with_old_epoch_are_rejected(
    broker: Broker, topic: str, epoch: int, coordinator: int, version: int, error: ErrorCode
) -> None:
    assert produce_transactionally(broker, topic, transactional_batch(epoch=3)) == [NONE]
    write(broker, marker(topic, epoch=3, coordinator=2))
    assert produce_transactionally(broker, topic, transactional_batch(1, epoch=3)) == [NONE]
    late = marker(topic, epoch=epoch, coordinator=coordinator, version=version)
    assert write(broker, late) == {P: {(topic, 0): error}}
    assert latest(broker, topic, COMMITTED) == (4 if error is NONE else 2)


def test_marker_of_version_2_can_be_written_twice(broker: Broker, topic: str) -> None:
    produce_transactionally(broker, topic, transactional_batch())
    for _ in range(2):
        assert write(broker, marker(topic, epoch=1, version=2)) == {P: {(topic, 0): NONE}}
    assert produce_transactionally(broker, topic, transactional_batch(epoch=1)) == [NONE]
    again = write(broker, marker(topic, epoch=1, version=2))
    assert again == {P: {(topic, 0): ErrorCode.invalid_producer_epoch}}


@pytest.mark.parametrize(("producer_id", "epoch"), [(-1, 0), (P, -1)])
def test_marker_without_producer_id_is_rejected(
    broker: Broker, topic: str, producer_id: int, epoch: int
) -> None:
    no_producer = marker(topic, producer_id=producer_id, epoch=epoch)
    assert write(broker, no_producer) == {producer_id: {(topic, 0): ErrorCode.unknown_server_error}}
    assert latest(broker, topic, UNCOMMITTED) == 0


def test_marker_without_group_coordinator_returns_not_leader(broker: Broker) -> None:
    response = write(broker, marker("__consumer_offsets"))
    (error,) = response[P].values()
    assert error in (ErrorCode.unknown_topic_or_partition, ErrorCode.not_leader_or_follower)


def waiting(read: Callable[[], Any]) -> Callable[[], Any]:
    """Start `read` in a thread; the returned function waits for its result."""
    found: list[Any] = []
    thread = threading.Thread(target=lambda: found.append(read()), daemon=True)
    thread.start()

    def result() -> Any:
        thread.join(timeout=20)
        return found[0]

    return result


def test_read_committed_fetch_completes_with_marker(broker: Broker, topic: str) -> None:
    produce_transactionally(broker, topic, transactional_batch())
    result = waiting(lambda: fetch(broker, topic, wait_ms=15_000))
    produce_transactionally(broker, topic, transactional_batch(1))  # a wakeup without new data
    write(broker, marker(topic))
    assert offsets(result()) == [0, 1, 2]


def test_read_committed_fetch_does_not_complete_with_open_transaction(
    broker: Broker, topic: str
) -> None:
    """The marker of another transaction advances the last stable offset too little to complete the fetch."""
    produce_transactionally(broker, topic, transactional_batch())
    produce_transactionally(broker, topic, transactional_batch(producer_id=6))
    whole_bytes = 2 * len(transactional_batch()) + 1
    result = waiting(lambda: fetch(broker, topic, wait_ms=15_000, min_bytes=whole_bytes))
    write(broker, marker(topic))
    assert latest(broker, topic, COMMITTED) == 1
    write(broker, marker(topic, producer_id=6))
    assert offsets(result()) == [0, 1, 2, 3]


def test_marker_without_replication_times_out(broker: Broker, topic: str) -> None:
    produce_transactionally(broker, topic, transactional_batch())
    response = fetch(broker, topic, wait_ms=50)
    assert (offsets(response), response.last_stable_offset) == ([], 0)


def test_describe_producers(broker: Broker, topic: str) -> None:
    assert producers(broker, topic)[0].active_producers == ()
    produce_transactionally(broker, topic, transactional_batch(epoch=2))
    produce_transactionally(broker, topic, transactional_batch(1, epoch=2))
    (found,) = producers(broker, topic)[0].active_producers
    assert (found.producer_id, found.producer_epoch) == (P, 2)
    assert (found.last_sequence, found.last_timestamp) == (1, NOW_MS)
    assert (found.coordinator_epoch, found.current_txn_start_offset) == (-1, 0)
    write(broker, marker(topic, epoch=2, coordinator=7))
    produce_transactionally(broker, topic, transactional_batch(2, epoch=2))
    (found,) = producers(broker, topic)[0].active_producers
    assert (found.coordinator_epoch, found.current_txn_start_offset) == (7, 3)


def test_describe_producers_of_unknown_partition_fails(broker: Broker, topic: str) -> None:
    there, not_there = producers(broker, topic, 0, 7)
    assert there.error_code is NONE
    assert not_there.error_code is ErrorCode.unknown_topic_or_partition
    (nowhere,) = producers(broker, "no-such-topic")
    assert nowhere.error_code is ErrorCode.unknown_topic_or_partition
    (impossible,) = producers(broker, "no such topic")
    assert impossible.error_code is ErrorCode.invalid_topic_exception


def test_restart_restores_open_and_aborted_transactions(tmp_path: Any) -> None:
    with Broker(data=tmp_path) as first:
        first.node.services.transaction_partitions = Coordinator()
        first.create_topic("t", partitions=1)
        produce_transactionally(first, "t", transactional_batch())
        write(first, marker("t", commit=False))
        produce_transactionally(first, "t", transactional_batch(1))
    with Broker(data=tmp_path) as second:
        response = fetch(second, "t")
        assert offsets(response) == [0, 1]
        assert [each.first_offset for each in response.aborted_transactions] == [0]
        assert response.last_stable_offset == 2
        second.node.services.transaction_partitions = coordinator = Coordinator()
        assert produce_transactionally(second, "t", transactional_batch(2)) == [NONE]
        assert coordinator.asked == []  # the transaction is still open
        write(second, marker("t"))
        assert latest(second, "t", COMMITTED) == 5
