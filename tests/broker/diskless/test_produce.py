"""Produce requests to diskless topics: validation, errors, order of responses, and requests that overlap."""

from __future__ import annotations

import socket
import struct
import time
from collections.abc import Iterator
from typing import Any

import pytest
from confluent_kafka import KafkaException, Producer

from odradek.protocol import apis, messages
from odradek.protocol.errors import ErrorCode
from odradek.protocol.framing import read_response_header
from odradek.protocol.records.batch import batches
from odradek.protocol.records.compression import LZ4
from odradek.testing import Broker
from tests.support.client_quotas import set_client_quotas
from tests.support.librdkafka_clients import TIMEOUT_S
from tests.support.produce_requests import (
    PRODUCE_VERSION,
    produce_batch,
    produce_transactionally,
    produce_values,
)
from tests.support.raw_client import RawClient
from tests.support.raw_requests import (
    ask,
    connect,
    fetch_frame,
    read_correlation_ids,
    receive_frame,
    request_frame,
)
from tests.support.records import batch, batch_of_size, transactional_batch

INTERVAL_SECONDS = 0.25
DISKLESS = {"diskless.enable": "true"}


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    with Broker(diskless=True, topics={"classic": 2}) as running:
        for topic in ("d", "other"):
            running.create_topic(topic, 4, DISKLESS)
        running.create_topic("small", 1, {**DISKLESS, "max.message.bytes": "500"})
        times = {"message.timestamp.type": "LogAppendTime"}
        running.create_topic("append-time", 1, {**DISKLESS, **times})
        late = {"message.timestamp.before.max.ms": "3600000"}
        running.create_topic("late", 1, {**DISKLESS, **late})
        yield running


def frame(correlation_id: int, values: dict[str, Any], version: int = PRODUCE_VERSION) -> bytes:
    return request_frame(apis.PRODUCE, version, correlation_id, values)


def produced(broker: Broker, values: dict[str, Any]) -> list[tuple[str, int, ErrorCode, int]]:
    """Topic, partition, error and base offset of each result."""
    response = ask(broker, apis.PRODUCE, PRODUCE_VERSION, values)
    return [
        (topic.name, each.index, each.error_code, each.base_offset)
        for topic in response.responses
        for each in topic.partition_responses
    ]


def results(data: bytes) -> list[tuple[ErrorCode, int]]:
    view = memoryview(data)
    _, start = read_response_header(apis.PRODUCE, PRODUCE_VERSION, view)
    response = messages.read_response(apis.PRODUCE.key, PRODUCE_VERSION, view, start)
    return [
        (each.error_code, each.base_offset)
        for topic in response.responses
        for each in topic.partition_responses
    ]


def next_offset(broker: Broker, topic: str = "d", partition: int = 0) -> int:
    return 1 + int(produce_batch(broker, topic, batch_of_size(), partition=partition).base_offset)


@pytest.mark.parametrize("acks", [1, -1])
def test_batch_is_acknowledged_when_it_is_committed(broker: Broker, acks: int) -> None:
    first = next_offset(broker)
    found = produce_batch(broker, "d", batch_of_size(), acks=acks)
    assert (found.error_code, found.base_offset) == (ErrorCode.none, first)
    assert (found.log_append_time, found.log_start_offset) == (None, 0)
    assert next_offset(broker) == first + 2


def test_acks_0_has_no_response_and_keeps_the_connection(broker: Broker) -> None:
    first = next_offset(broker)
    with connect(broker) as sock:
        sock.sendall(frame(1, produce_values("d", batch_of_size(), acks=0, timeout_ms=5000)))
        sock.sendall(frame(2, produce_values("d", batch_of_size(), acks=1, timeout_ms=5000)))
        data = receive_frame(sock)
    assert data[:4] == struct.pack(">i", 2)
    assert results(data) == [(ErrorCode.none, first + 1)]


def test_error_of_acks_0_closes_the_connection(broker: Broker) -> None:
    """The error is one of the coordinator, after the request was read."""
    refused = batch(producer_id=77, producer_epoch=0, base_sequence=0)
    gap = batch(producer_id=77, producer_epoch=0, base_sequence=9)
    assert produce_batch(broker, "d", refused).error_code is ErrorCode.none
    with connect(broker) as sock:
        sock.sendall(frame(1, produce_values("d", gap, acks=0)))
        assert sock.recv(10) == b""


def test_requests_of_one_connection_overlap_and_responses_keep_their_order(broker: Broker) -> None:
    """Ten requests in a row need one commit interval, not ten."""
    first = next_offset(broker)
    with connect(broker) as sock:
        started = time.monotonic()
        values = produce_values("d", batch_of_size(), acks=-1, timeout_ms=10_000)
        for number in range(10):
            sock.sendall(frame(number, values))
            time.sleep(0.01)
        responses = [receive_frame(sock) for _ in range(10)]
        seconds = time.monotonic() - started
    assert [each[:4] for each in responses] == [struct.pack(">i", n) for n in range(10)]
    assert [results(each) for each in responses] == [
        [(ErrorCode.none, first + n)] for n in range(10)
    ]
    assert seconds < 4 * INTERVAL_SECONDS


def test_requests_of_one_connection_that_overlap_are_limited(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of six requests, two wait for each commit interval."""
    monkeypatch.setattr("odradek.broker.network.connection.DEFERRED_MAX", 2)
    first = next_offset(broker)
    with connect(broker) as sock:
        started = time.monotonic()
        values = produce_values("d", batch_of_size(), acks=-1, timeout_ms=10_000)
        sock.sendall(b"".join([frame(number, values) for number in range(6)]))
        responses = [receive_frame(sock) for _ in range(6)]
        seconds = time.monotonic() - started
    assert [results(each) for each in responses] == [
        [(ErrorCode.none, first + n)] for n in range(6)
    ]
    assert seconds > 2 * INTERVAL_SECONDS


def test_other_requests_between_deferred_responses_keep_their_order(broker: Broker) -> None:
    def metadata(number: int) -> bytes:
        return request_frame(apis.METADATA, 9, number, {"topics": None})

    diskless = produce_values("d", batch_of_size(), acks=-1, timeout_ms=10_000)
    classic = produce_values("classic", batch_of_size(), acks=1)
    large = produce_values("d", batch_of_size(100_000), acks=1, timeout_ms=10_000)
    unknown = produce_values("there is no such topic", batch_of_size(), acks=1)
    requests = [
        frame(0, diskless),
        frame(1, classic),
        frame(2, classic),
        frame(3, diskless),
        metadata(4),
        frame(5, large),
        fetch_frame(6, 0, wait_ms=50, topic="classic"),
        frame(7, diskless),
        frame(8, unknown),
        frame(9, produce_values("classic", batch_of_size(), acks=-1)),
        frame(10, diskless),
        metadata(11),
        frame(12, classic),
    ]
    with connect(broker) as sock:
        sock.sendall(b"".join(requests))
        assert read_correlation_ids(sock, len(requests)) == list(range(len(requests)))
    with connect(broker) as sock:
        for request in requests:
            for n in range(0, len(request), 40):
                sock.sendall(request[n : n + 40])
            time.sleep(0.002)
        assert read_correlation_ids(sock, len(requests)) == list(range(len(requests)))


def test_half_closed_connection_gets_its_responses(broker: Broker) -> None:
    with connect(broker) as sock:
        values = produce_values("d", batch_of_size(), acks=-1, timeout_ms=10_000)
        sock.sendall(frame(0, values) + frame(1, values))
        sock.shutdown(socket.SHUT_WR)
        assert read_correlation_ids(sock, 2) == [0, 1]
        assert sock.recv(1) == b""


def test_invalid_frame_after_deferred_responses_closes_the_connection_after_them(
    broker: Broker,
) -> None:
    with connect(broker) as sock:
        values = produce_values("d", batch_of_size(), acks=-1, timeout_ms=10_000)
        sock.sendall(frame(0, values) + frame(1, values) + struct.pack(">i", -5))
        assert read_correlation_ids(sock, 2) == [0, 1]
        assert sock.recv(1) == b""


def test_batches_of_a_disconnected_client_are_committed(broker: Broker) -> None:
    first = next_offset(broker)
    with connect(broker) as sock:
        values = produce_values("d", batch_of_size(), acks=-1, timeout_ms=10_000)
        sock.sendall(frame(0, values) + frame(1, values))
        time.sleep(0.05)
    assert next_offset(broker) == first + 3


def test_classic_and_diskless_partitions_in_one_request(broker: Broker) -> None:
    values = produce_values("d", batch_of_size(), batch_of_size(), acks=-1, timeout_ms=5000)
    classic = produce_values("classic", batch_of_size(), b"no batch")["topic_data"]
    unknown = produce_values("other", batch_of_size(), first_partition=9)["topic_data"]
    values["topic_data"] += classic + unknown
    found = produced(broker, values)
    assert [each[:3] for each in found] == [
        ("d", 0, ErrorCode.none),
        ("d", 1, ErrorCode.none),
        ("classic", 0, ErrorCode.none),
        ("classic", 1, ErrorCode.invalid_record),
        ("other", 9, ErrorCode.unknown_topic_or_partition),
    ]


def test_topic_id_finds_the_topic(broker: Broker) -> None:
    topic_id = broker.node.metadata.image.topics_by_name["d"].id
    values = produce_values("", batch_of_size(), acks=-1, timeout_ms=5000)
    values["topic_data"] = [
        {"topic_id": topic_id, "partition_data": values["topic_data"][0]["partition_data"]}
    ]
    response = ask(broker, apis.PRODUCE, 13, values)
    assert response.responses[0].partition_responses[0].error_code is ErrorCode.none


def test_invalid_acks_are_refused(broker: Broker) -> None:
    found = produce_batch(broker, "d", batch_of_size(), acks=7)
    assert found.error_code is ErrorCode.invalid_required_acks


def _with_wrong_crc() -> bytes:
    data = bytearray(batch_of_size())
    data[-1] ^= 1
    return bytes(data)


@pytest.mark.parametrize(
    ("topic", "records", "error"),
    [
        ("small", batch_of_size(1000), ErrorCode.message_too_large),
        ("d", _with_wrong_crc(), ErrorCode.corrupt_message),
        ("d", b"", ErrorCode.invalid_record),
        ("d", None, ErrorCode.invalid_record),
        ("d", batch_of_size() * 2, ErrorCode.invalid_record),
        ("d", batch(control=True), ErrorCode.invalid_record),
        ("late", batch(timestamp_ms=5), ErrorCode.invalid_timestamp),
    ],
)
def test_invalid_batches_have_the_errors_of_classic_topics(
    broker: Broker, topic: str, records: bytes | None, error: ErrorCode
) -> None:
    found = produce_batch(broker, topic, records)
    assert found.error_code is error
    assert found.error_message


def test_append_time_is_that_of_the_commit(broker: Broker) -> None:
    before = time.time() - 0.001  # the response has ms
    found = produce_batch(broker, "append-time", batch(timestamp_ms=5))
    assert before <= found.log_append_time.timestamp() <= time.time()


def test_duplicate_has_the_offset_of_its_first_commit(broker: Broker) -> None:
    """D-06, D-07: a repeated batch is not an error for its producer."""

    def append(sequence: int) -> tuple[ErrorCode, int]:
        data = batch(producer_id=501, producer_epoch=0, base_sequence=sequence)
        found = produce_batch(broker, "other", data, partition=1)
        return found.error_code, found.base_offset

    committed = [append(sequence) for sequence in range(3)]
    assert committed == [(ErrorCode.none, n) for n in range(3)]
    assert [append(sequence) for sequence in range(3)] == committed
    assert append(7) == (ErrorCode.out_of_order_sequence_number, -1)
    assert append(3) == (ErrorCode.none, 3)


def test_transactional_batch_is_refused(broker: Broker) -> None:
    found = produce_transactionally(broker, "d", transactional_batch())
    assert found == [ErrorCode.invalid_txn_state]


def test_diskless_partition_cannot_be_added_to_a_transaction(broker: Broker) -> None:
    """The other partitions are not attempted, as for an unknown topic."""
    started = ask(
        broker,
        apis.INIT_PRODUCER_ID,
        4,
        {"transactional_id": "tx", "transaction_timeout": 60_000},
    )
    values = {
        "v3_and_below_transactional_id": "tx",
        "v3_and_below_producer_id": started.producer_id,
        "v3_and_below_producer_epoch": started.producer_epoch,
        "v3_and_below_topics": [
            {"name": "d", "partitions": [0]},
            {"name": "classic", "partitions": [0]},
        ],
    }
    response = ask(broker, apis.ADD_PARTITIONS_TO_TXN, 3, values)
    assert [
        each.partition_error_code
        for topic in response.results_by_topic_v3_and_below
        for each in topic.results_by_partition
    ] == [ErrorCode.invalid_topic_exception, ErrorCode.operation_not_attempted]


def test_transactional_producer_aborts_and_continues_with_classic_topics(broker: Broker) -> None:
    """librdkafka: the error of a diskless topic is abortable, not fatal. The transaction has a classic partition, because
    librdkafka cannot abort one without any."""
    producer = Producer({"bootstrap.servers": broker.bootstrap, "transactional.id": "aborts"})
    producer.init_transactions(TIMEOUT_S)
    producer.begin_transaction()
    producer.produce("classic", b"aborted")
    producer.flush(TIMEOUT_S)
    producer.produce("d", b"refused")
    with pytest.raises(KafkaException) as raised:
        producer.commit_transaction(TIMEOUT_S)
    assert raised.value.args[0].txn_requires_abort()
    producer.abort_transaction(TIMEOUT_S)
    producer.begin_transaction()
    producer.produce("classic", b"accepted")
    producer.commit_transaction(TIMEOUT_S)


def test_timeout_of_the_request_ends_the_wait(broker: Broker) -> None:
    values = produce_values("d", batch_of_size(), acks=-1, timeout_ms=20)
    started = time.monotonic()
    ((*_, error, offset),) = produced(broker, values)
    assert (error, offset) == (ErrorCode.request_timed_out, -1)
    assert time.monotonic() - started < INTERVAL_SECONDS


def test_batch_for_another_topic_config_is_compressed_again(broker: Broker) -> None:
    broker.create_topic("compressed", 1, {**DISKLESS, "compression.type": "lz4"})
    assert produce_batch(broker, "compressed", batch_of_size(1000)).error_code is ErrorCode.none
    diskless = broker.node.services.diskless
    assert diskless is not None
    stored = [diskless.objects.get(each.key) for each in diskless.objects.list("diskless")]
    assert any(each.compression == LZ4 for data in stored for each in batches(memoryview(data)))


def test_requests_within_quotas_overlap_and_throttled_ones_have_the_throttle_time(
    broker: Broker,
) -> None:
    values = produce_values("d", batch_of_size(10_000), timeout_ms=10_000)

    def send(count: int) -> tuple[list[int], float]:
        """Throttle times in ms of requests in a row, and the seconds until the last response."""
        with connect(broker) as sock:
            started = time.monotonic()
            sock.sendall(b"".join(frame(number, values) for number in range(count)))
            responses = [receive_frame(sock) for _ in range(count)]
            seconds = time.monotonic() - started
        assert [each[:4] for each in responses] == [struct.pack(">i", n) for n in range(count)]
        assert all(results(each)[0][0] is ErrorCode.none for each in responses)
        return [int.from_bytes(each[-5:-1], "big") for each in responses], seconds

    with RawClient(broker.bootstrap) as client:
        try:
            set_client_quotas(client, producer_byte_rate=10_000_000)
            throttled_ms, seconds = send(10)
            assert not any(throttled_ms)
            assert seconds < 4 * INTERVAL_SECONDS
            set_client_quotas(client, producer_byte_rate=10_000)
            throttled_ms, _ = send(1)
            assert throttled_ms[0] > 0
        finally:
            set_client_quotas(client)


def test_shutdown_commits_what_is_buffered() -> None:
    with Broker(diskless=True, configs={"diskless.append.commit.interval.ms": "3000"}) as broker:
        broker.create_topic("d", 1, DISKLESS)
        sock = connect(broker)
        sock.sendall(frame(3, produce_values("d", batch_of_size(), timeout_ms=10_000)))
        time.sleep(0.2)
    with sock:
        data = receive_frame(sock)
    assert results(data) == [(ErrorCode.none, 0)]
