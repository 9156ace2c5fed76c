"""Transactions of other clients, and Kafka's tool for transactions, against a broker process."""

from __future__ import annotations

import itertools
import random
import re
import socket
import struct
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from aiokafka import AIOKafkaProducer
from confluent_kafka import Consumer, KafkaException, TopicPartition

from odradek.protocol import apis, messages
from odradek.protocol.framing import read_response_header, request_header
from odradek.protocol.records.records import Record, build_batch
from tests.interop.asyncio_thread import on_asyncio
from tests.interop.transactional_clients import COMMITTED, java, transactional, values
from tests.support.anomalies import require
from tests.support.broker_kinds import BROKERS, STARTERS
from tests.support.broker_process import BrokerProcess
from tests.support.kafka_tools import ToolRun, run_tool
from tests.support.librdkafka_clients import TIMEOUT_S, create_topic, poll_until, produce
from tests.support.odradek_process import start_odradek

ALL = {"isolation.level": "read_uncommitted"}


# Java


def test_java_commits_and_aborts(bootstrap: str, name: str) -> None:
    create_topic(bootstrap, name, partitions=3)
    committed = java("ends", bootstrap, name, name, 30)
    assert len(committed) == 60
    read = values(bootstrap, name, 60, partitions=range(3), config=COMMITTED)
    assert sorted(read) == sorted(committed)
    assert len(values(bootstrap, name, 90, partitions=range(3), config=ALL)) == 90


def test_java_is_fenced(bootstrap: str, name: str) -> None:
    create_topic(bootstrap, name)
    seen = java("fence", bootstrap, name, name)
    assert seen == {"first": "ProducerFencedException", "second": "committed"}
    assert values(bootstrap, name, 1, config=COMMITTED) == ["second"]


def test_java_sends_offsets_to_its_transaction(bootstrap: str, name: str) -> None:
    create_topic(bootstrap, name)
    create_topic(bootstrap, f"{name}-out")
    produce(bootstrap, name, [b"%d" % n for n in range(10)])
    seen = java("transform", bootstrap, name, name, f"{name}-out")
    assert seen == {"read": 10, "aborted": "nothing", "committed": "10 committed"}
    read = values(bootstrap, f"{name}-out", 10, config=COMMITTED)
    assert read == [str(n) for n in range(10)]


@pytest.fixture(scope="module", params=BROKERS)
def short_timeouts(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[BrokerProcess]:
    """A broker that checks for timed-out transactions often, and appends batches without verification."""
    config = {
        "transaction.abort.timed.out.transaction.cleanup.interval.ms": "200",
        "transaction.partition.verification.enable": "false",
    }
    directory = tmp_path_factory.mktemp(f"short_timeouts-{request.param}")
    with STARTERS[request.param](directory, config=config) as running:
        yield running


def test_java_transaction_times_out(short_timeouts: BrokerProcess, name: str) -> None:
    create_topic(short_timeouts.bootstrap, name)
    seen = java("time-out", short_timeouts.bootstrap, name, name, 2500)
    assert seen["late"] == "InvalidTxnStateException"
    assert seen["next"] == "committed"
    assert values(short_timeouts.bootstrap, name, 1, config=COMMITTED) == ["in time"]


# librdkafka


def test_librdkafka_commits_and_aborts(bootstrap: str, name: str) -> None:
    create_topic(bootstrap, name, partitions=2)
    producer = transactional(bootstrap, name)
    committed = []
    for n in range(12):
        producer.begin_transaction()
        for i in range(5):
            producer.produce(name, b"%d-%d" % (n, i), partition=i % 2)
        producer.flush(TIMEOUT_S)
        if n % 3:
            producer.commit_transaction(TIMEOUT_S)
            committed += [f"{n}-{i}" for i in range(5)]
        else:
            producer.abort_transaction(TIMEOUT_S)
    read = values(bootstrap, name, len(committed), partitions=range(2), config=COMMITTED)
    assert sorted(read) == sorted(committed)


def test_librdkafka_is_fenced(bootstrap: str, name: str) -> None:
    create_topic(bootstrap, name)
    first = transactional(bootstrap, name)
    first.begin_transaction()
    first.produce(name, b"first")
    first.flush(TIMEOUT_S)
    second = transactional(bootstrap, name)
    second.begin_transaction()
    second.produce(name, b"second")
    second.commit_transaction(TIMEOUT_S)
    with pytest.raises(KafkaException) as fenced:
        first.commit_transaction(TIMEOUT_S)
    assert fenced.value.args[0].fatal()
    assert values(bootstrap, name, 1, config=COMMITTED) == ["second"]


def test_librdkafka_sends_offsets_to_its_transaction(bootstrap: str, name: str) -> None:
    create_topic(bootstrap, name)
    produce(bootstrap, name, [b"%d" % n for n in range(10)], partition=0)
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": name,
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
        }
    )
    consumer.subscribe([name])
    poll_until(consumer, 10)
    producer = transactional(bootstrap, name)
    where = TopicPartition(name, 0)
    for outcome, expected in (
        (producer.abort_transaction, -1001),
        (producer.commit_transaction, 7),
    ):
        producer.begin_transaction()
        producer.send_offsets_to_transaction(
            [TopicPartition(name, 0, 7)], consumer.consumer_group_metadata(), TIMEOUT_S
        )
        outcome(TIMEOUT_S)
        (found,) = consumer.committed([where], TIMEOUT_S)
        assert found.offset == expected
    consumer.close()


# aiokafka, which does not implement KIP-890


def test_aiokafka_commits_and_aborts(bootstrap: str, name: str) -> None:
    create_topic(bootstrap, name)

    async def scenario() -> None:
        producer = AIOKafkaProducer(bootstrap_servers=bootstrap, transactional_id=name)
        await producer.start()
        for n in range(6):
            await producer.begin_transaction()
            await producer.send_and_wait(name, b"%d" % n)
            if n % 2:
                await producer.abort_transaction()
            else:
                await producer.commit_transaction()
        await producer.stop()

    on_asyncio(scenario())
    assert values(bootstrap, name, 3, config=COMMITTED) == ["0", "2", "4"]


# Kafka's tool


def tool(bootstrap: str, *args: str, **options: Any) -> ToolRun:
    return run_tool("transactions", "--bootstrap-server", bootstrap, *args, **options)


def rows(run: ToolRun) -> list[list[str]]:
    """Rows of the tool's table, without its header."""
    return [re.split(r"\s+", line.strip()) for line in run.lines[1:]]


def test_transactions_list_and_describe(bootstrap: str, name: str) -> None:
    create_topic(bootstrap, name, partitions=2)
    producer = transactional(bootstrap, name)
    producer.begin_transaction()
    for index in range(2):
        producer.produce(name, b"open", partition=index)
    producer.flush(TIMEOUT_S)
    (mine,) = [row for row in rows(tool(bootstrap, "list")) if row[0] == name]
    producer_id, state = mine[2], mine[3]
    assert state == "Ongoing"
    alike = tool(bootstrap, "list", "--transactional-id-pattern", f"{name[:-1]}.*")
    assert name in {row[0] for row in rows(alike)}
    long = rows(tool(bootstrap, "list", "--duration-filter", "3600000"))
    assert name not in {row[0] for row in long}
    (described,) = rows(tool(bootstrap, "describe", "--transactional-id", name))
    assert described[1:4] == [name, producer_id, "0"]
    assert described[4] == "Ongoing"
    assert set(described[-1].split(",")) == {f"{name}-0", f"{name}-1"}
    (active,) = rows(tool(bootstrap, "describe-producers", "--topic", name, "--partition", "0"))
    assert active[:2] == [producer_id, "0"]
    assert active[-1] == "0", "where its transaction begins"
    producer.commit_transaction(TIMEOUT_S)
    (described,) = rows(tool(bootstrap, "describe", "--transactional-id", name))
    assert described[4] == "CompleteCommit"
    (idle,) = rows(tool(bootstrap, "describe-producers", "--topic", name, "--partition", "0"))
    assert idle[-1] == "None"


def test_transactions_abort(bootstrap: str, name: str) -> None:
    """The tool aborts an open transaction at an offset with its own markers."""
    create_topic(bootstrap, name)
    producer = transactional(bootstrap, name)
    producer.begin_transaction()
    producer.produce(name, b"open")
    producer.flush(TIMEOUT_S)
    tool(bootstrap, "abort", "--topic", name, "--partition", "0", "--start-offset", "0")
    (left,) = rows(tool(bootstrap, "describe-producers", "--topic", name, "--partition", "0"))
    assert left[-1] == "None"
    produce(bootstrap, name, [b"after"])
    assert values(bootstrap, name, 1, config=COMMITTED) == ["after"]


def hang(bootstrap: str, topic: str, producer_id: int) -> None:
    """Begin a transaction an hour ago that no coordinator knows, as an old bug did (KAFKA-12671)."""
    written_ms = int(time.time() * 1000) - 3_600_000
    batch = build_batch(
        [Record(0, written_ms, None, b"hangs")],
        producer_id=producer_id,
        producer_epoch=0,
        base_sequence=0,
        transactional=True,
    )
    data = {"name": topic, "partition_data": [{"index": 0, "records": bytes(batch)}]}
    body = {"transactional_id": "gone", "acks": -1, "timeout": 5000, "topic_data": [data]}
    request = request_header(apis.PRODUCE, 11, 1, "test") + messages.write_request(0, 11, body)
    host, _, port = bootstrap.rpartition(":")
    with socket.create_connection((host, int(port)), timeout=TIMEOUT_S) as sock:
        sock.sendall(struct.pack(">i", len(request)) + request)
        stream = sock.makefile("rb")
        response = memoryview(stream.read(struct.unpack(">i", stream.read(4))[0]))
    _, start = read_response_header(apis.PRODUCE, 11, response)
    ((partition,),) = [
        each.partition_responses
        for each in messages.read_response(0, 11, response, start).responses
    ]
    assert partition.error_code == 0, partition


def test_transactions_find_hanging(short_timeouts: BrokerProcess, name: str) -> None:
    bootstrap = short_timeouts.bootstrap
    create_topic(bootstrap, name)
    hang(bootstrap, name, producer_id=4_000_000)
    found = tool(bootstrap, "find-hanging", "--topic", name, "--max-transaction-timeout", "1")
    (hanging,) = rows(found)
    assert hanging[:3] == [name, "0", "4000000"]
    tool(bootstrap, "abort", "--topic", name, "--partition", "0", "--start-offset", "0")
    left = tool(bootstrap, "find-hanging", "--topic", name, "--max-transaction-timeout", "1")
    assert rows(left) == []


# Kills


class Ledger:
    """Results of a producer's transactions: each has four records in two partitions."""

    def __init__(self) -> None:
        self.committed: set[int] = set()
        self.aborted: set[int] = set()
        self.unsure: set[int] = set()

    def check(self, read: list[str]) -> None:
        """Check that no record is duplicated, each transaction is complete or absent, and committed
        transactions are present.
        """
        require(len(read) == len(set(read)), "a record is duplicated")
        found: dict[int, int] = {}
        for value in read:
            number = int(value.partition("-")[0])
            found[number] = found.get(number, 0) + 1
        require(set(found.values()) <= {4}, "a transaction is incomplete")
        require(self.committed <= set(found), "a commit is lost")
        require(not self.aborted & set(found), "an aborted record is read")
        require(set(found) <= self.committed | self.unsure, "an unknown transaction is read")


QUIET = {"message.timeout.ms": 1000, "log_level": 0}


def _transact(broker: BrokerProcess, lives: float, numbers: Iterator[int], ledger: Ledger) -> None:
    """Run transactions one after the other until the broker is killed; every fifth one is aborted."""
    producer = transactional(broker.bootstrap, "id", **QUIET)
    killer = threading.Timer(lives, broker.kill)
    killer.start()
    while True:
        number = next(numbers)
        ledger.unsure.add(number)
        try:
            producer.begin_transaction()
            for i in range(4):
                producer.produce("t", f"{number}-{i}".encode(), partition=i % 2)
            if number % 5:
                producer.commit_transaction(1)
                ledger.committed.add(number)
            else:
                producer.flush(1)
                producer.abort_transaction(1)
                ledger.aborted.add(number)
        except KafkaException:
            killer.join()
            return
        ledger.unsure.discard(number)


FEW = {"transaction.state.log.num.partitions": "2", "offsets.topic.num.partitions": "1"}


@pytest.mark.slow
def test_transactions_survive_kills(tmp_path: Path) -> None:
    """The broker is killed at any time during a transaction. Committed transactions are present once,
    aborted ones are absent, and a transaction without a known result is complete or absent.
    """
    source, ledger, numbers = random.Random(7), Ledger(), itertools.count(1)
    broker = start_odradek(tmp_path, config=FEW)
    try:
        create_topic(broker.bootstrap, "t", partitions=2)
        for _ in range(5):
            _transact(broker, source.uniform(0.1, 0.5), numbers, ledger)
            broker = start_odradek(tmp_path, config=FEW)
        transactional(broker.bootstrap, "id")  # open transactions have ended
        assert len(ledger.committed) > 5
        ledger.check(_read_to_the_end(broker.bootstrap))
    finally:
        broker.kill()


def _read_to_the_end(bootstrap: str) -> list[str]:
    """All committed records of topic t, up to those of a last transaction."""
    last = transactional(bootstrap, "the-last")
    last.begin_transaction()
    for partition in range(2):
        last.produce("t", b"last", partition=partition)
    last.commit_transaction(TIMEOUT_S)
    config = {"bootstrap.servers": bootstrap, "group.id": "reads", **COMMITTED}
    consumer = Consumer({**config, "enable.auto.commit": False})
    consumer.assign([TopicPartition("t", partition, 0) for partition in range(2)])
    found: list[str] = []
    try:
        while found.count("last") < 2:
            found += [(each.value() or b"").decode() for each in poll_until(consumer, 1)]
    finally:
        consumer.close()
    return [value for value in found if value != "last"]
