"""Unmodified clients and tools with diskless topics, against three Odradek brokers: they see ordinary topics.

librdkafka, Kafka's Java client, aiokafka, and Kafka's command-line tools. Only Odradek has diskless topics.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer
from confluent_kafka import Consumer, TopicPartition
from confluent_kafka.admin import AdminClient

from odradek.testing import Cluster
from tests.interop.asyncio_thread import on_asyncio
from tests.support.kafka_tools import ToolRun, run_tool, spawn_tool
from tests.support.librdkafka_clients import (
    TIMEOUT_S,
    create_topic,
    poll_until,
    produce,
    produce_with_timestamps,
    read_all,
)

DISKLESS = {"diskless.enable": "true"}
Tool = Callable[..., ToolRun]


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    configs = {
        "diskless.append.commit.interval.ms": "20",
        "group.initial.rebalance.delay.ms": "0",
        "group.consumer.heartbeat.interval.ms": "200",
        "group.consumer.min.heartbeat.interval.ms": "200",
    }
    with Cluster(brokers=3, diskless=True, configs=configs, proxied=False) as running:
        yield running


@pytest.fixture(scope="module")
def bootstrap(cluster: Cluster) -> str:
    return cluster.bootstrap


@pytest.fixture
def tool(bootstrap: str) -> Tool:
    """Runs a tool with --bootstrap-server."""

    def run(name: str, *args: str, **options: Any) -> ToolRun:
        return run_tool(name, *args, "--bootstrap-server", bootstrap, **options)

    return run


@pytest.fixture
def topic(bootstrap: str, name: str) -> str:
    """A diskless topic with three partitions."""
    create_topic(bootstrap, name, partitions=3, config=DISKLESS)
    return name


def places(messages: list[Any]) -> list[tuple[int, int, bytes]]:
    return sorted((each.partition(), each.offset(), each.value()) for each in messages)


# librdkafka


def test_librdkafka_reads_what_an_idempotent_producer_wrote(bootstrap: str, topic: str) -> None:
    values = [b"value-%d" % number for number in range(600)]
    idempotent = {"enable.idempotence": True, "linger.ms": 1, "batch.num.messages": 7}
    sent = produce(bootstrap, topic, values, partition=(0, 1, 2), config=idempotent)
    read = read_all(bootstrap, topic, 600, partitions=(0, 1, 2), config={"check.crcs": True})
    assert places(read) == places(sent)
    assert [each[1] for each in places(read) if each[0] == 1] == list(range(200))


@pytest.mark.parametrize("codec", ["gzip", "snappy", "lz4", "zstd"])
def test_librdkafka_reads_compressed_batches(bootstrap: str, topic: str, codec: str) -> None:
    sent = produce(
        bootstrap, topic, [b"value" * 100] * 50, partition=0, config={"compression.type": codec}
    )
    assert places(read_all(bootstrap, topic, 50, config={"check.crcs": True})) == places(sent)


def test_librdkafka_reads_log_append_time(bootstrap: str, name: str) -> None:
    create_topic(bootstrap, name, config={**DISKLESS, "message.timestamp.type": "LogAppendTime"})
    produce_with_timestamps(bootstrap, name, [1000, 2000])
    read = read_all(bootstrap, name, 2, config={"check.crcs": True})
    assert [each.timestamp()[0] for each in read] == [2, 2]  # TIMESTAMP_LOG_APPEND_TIME
    assert all(each.timestamp()[1] > 1_700_000_000_000 for each in read)


@pytest.mark.parametrize("protocol", ["classic", "consumer"])
def test_librdkafka_group_continues_at_its_committed_offsets(
    bootstrap: str, topic: str, protocol: str
) -> None:
    group = {
        "bootstrap.servers": bootstrap,
        "group.id": f"{topic}-group",
        "group.protocol": protocol,
        "auto.offset.reset": "earliest",
        "enable.auto.commit": False,
    }
    found = []
    for number in range(3):
        produce(bootstrap, topic, [b"%d" % number] * 30, partition=(0, 1, 2))
        consumer = Consumer(group)
        consumer.subscribe([topic])
        read = poll_until(consumer, 30)
        consumer.commit(asynchronous=False)
        consumer.close()
        found += [(each.partition(), each.offset()) for each in read]
        assert {each.value() for each in read} == {b"%d" % number}
    assert sorted(found) == [(index, offset) for index in range(3) for offset in range(30)]


def test_one_consumer_reads_diskless_and_classic_partitions(
    bootstrap: str, topic: str, name: str
) -> None:
    classic = f"{name}-classic"
    create_topic(bootstrap, classic, partitions=3)
    consumer = Consumer(
        {"bootstrap.servers": bootstrap, "group.id": name, "auto.offset.reset": "earliest"}
    )
    consumer.assign(
        [TopicPartition(each, index, 0) for each in (topic, classic) for index in range(3)]
    )
    for number in range(5):
        for each in (topic, classic):
            produce(bootstrap, each, [b"%d" % number] * 6, partition=(0, 1, 2))
        read = poll_until(consumer, 12)
        assert sorted(each.topic() for each in read) == [topic] * 6 + [classic] * 6
        assert {each.value() for each in read} == {b"%d" % number}
    consumer.close()


def test_offsets_for_times_finds_the_exact_record(bootstrap: str, topic: str) -> None:
    """D-09 with a client: the first record with at least the timestamp."""
    base_ms = 1_700_000_000_000
    produce_with_timestamps(bootstrap, topic, [base_ms + number for number in (0, 30, 10, 40)])
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": topic})
    wanted = [TopicPartition(topic, 0, base_ms + 20), TopicPartition(topic, 1, base_ms)]
    assert [each.offset for each in consumer.offsets_for_times(wanted, TIMEOUT_S)] == [1, -1]
    assert consumer.get_watermark_offsets(TopicPartition(topic, 0), TIMEOUT_S) == (0, 4)
    consumer.close()


@pytest.mark.parametrize("offset", [1, 50])
def test_offset_out_of_range_is_reset_to_the_earliest(
    bootstrap: str, topic: str, offset: int
) -> None:
    """D-10: below the log start offset, and above the high watermark."""
    produce(bootstrap, topic, [b"%d" % number for number in range(10)], partition=0)
    admin = AdminClient({"bootstrap.servers": bootstrap})
    for deleted in admin.delete_records([TopicPartition(topic, 0, 5)]).values():
        assert deleted.result(TIMEOUT_S).low_watermark == 5
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": topic,
            "auto.offset.reset": "earliest",
            "log_level": 0,
        }
    )
    consumer.assign([TopicPartition(topic, 0, offset)])
    assert [each.offset() for each in poll_until(consumer, 5)] == [5, 6, 7, 8, 9]
    consumer.close()


# Java


@pytest.mark.parametrize("codec", ["none", "zstd"])
def test_java_client_produces_and_consumes_in_a_group(
    bootstrap: str, topic: str, codec: str
) -> None:
    run_tool("client", "produce", bootstrap, topic, codec, "60", timeout=90)
    consumed = run_tool("client", "consume", bootstrap, topic, f"{topic}-group", "60", timeout=90)
    found = sorted((each["partition"], each["offset"]) for each in json.loads(consumed.stdout))
    by_partition = [sum(index == partition for index, _ in found) for partition in range(3)]
    assert found == [
        (index, offset) for index, count in enumerate(by_partition) for offset in range(count)
    ]


# aiokafka


def test_aiokafka_produces_and_consumes_in_a_group(bootstrap: str, topic: str) -> None:
    async def main() -> list[tuple[int, int, bytes]]:
        producer = AIOKafkaProducer(bootstrap_servers=bootstrap, enable_idempotence=True)
        await producer.start()
        for number in range(60):
            await producer.send(topic, b"value-%d" % number, partition=number % 3)
        await producer.stop()
        consumer = AIOKafkaConsumer(
            topic,
            bootstrap_servers=bootstrap,
            group_id=f"{topic}-group",
            auto_offset_reset="earliest",
        )
        await consumer.start()
        read = [await consumer.getone() for _ in range(60)]
        await consumer.stop()
        return sorted((each.partition, each.offset, each.value) for each in read)

    assert on_asyncio(main()) == [
        (index, offset, b"value-%d" % (3 * offset + index))
        for index in range(3)
        for offset in range(20)
    ]


# Kafka's tools


def test_topics_tool_shows_a_diskless_topic_with_leaders(
    tool: Tool, cluster: Cluster, topic: str
) -> None:
    lines = tool("topics", "--describe", "--topic", topic).lines
    assert "diskless.enable=true" in lines[0]
    for line in lines[1:]:
        leader = re.search(r"Leader: (\d+)\tReplicas: (\d+)\tIsr: (\d+)", line)
        assert leader is not None, line
        assert int(leader[1]) in cluster.brokers
        assert leader[1] == leader[2] == leader[3]
    assert tool("topics", "--describe", "--unavailable-partitions").stdout.count(topic) == 0
    assert tool("topics", "--describe", "--under-replicated-partitions").stdout.count(topic) == 0


def test_get_offsets_tool_lists_offsets_of_a_diskless_topic(
    tool: Tool, bootstrap: str, topic: str
) -> None:
    """D-09 with kafka-get-offsets."""
    base_ms = 1_700_000_000_000
    produce_with_timestamps(bootstrap, topic, [base_ms + 1000, base_ms + 3000, base_ms + 2000])
    produce(bootstrap, topic, [b"x"] * 5, partition=1)

    def at(*words: str) -> list[str]:
        return [
            line.removeprefix(f"{topic}:")
            for line in tool("get-offsets", "--topic", topic, *words).lines
        ]

    assert at() == ["0:3", "1:5", "2:0"]
    assert at("--time", "earliest") == ["0:0", "1:0", "2:0"]
    assert at("--time", "max-timestamp", "--partitions", "0") == ["0:1"]
    assert at("--time", "earliest-local") == ["0:0", "1:0", "2:0"]
    assert at("--time", str(base_ms + 1500), "--partitions", "0") == ["0:1"]
    assert at("--time", str(base_ms + 3001), "--partitions", "0") == []


def test_delete_records_tool_advances_the_log_start(
    tool: Tool, bootstrap: str, topic: str, tmp_path: Path
) -> None:
    """D-08 with kafka-delete-records."""
    produce(bootstrap, topic, [b"%d" % number for number in range(10)], partition=0)

    def delete(offset: int) -> ToolRun:
        rows = [{"topic": topic, "partition": 0, "offset": offset}]
        file = tmp_path / "offsets.json"
        file.write_text(json.dumps({"version": 1, "partitions": rows}))
        return tool("delete-records", "--offset-json-file", str(file))

    def earliest() -> list[str]:
        return tool("get-offsets", "--topic", topic, "--time", "-2", "--partitions", "0").lines

    assert f"partition: {topic}-0\tlow_watermark: 4" in delete(4).stdout
    assert earliest() == [f"{topic}:0:4"]
    assert "OffsetOutOfRangeException" in delete(11).stdout
    assert f"partition: {topic}-0\tlow_watermark: 10" in delete(-1).stdout
    assert earliest() == [f"{topic}:0:10"]


def test_log_dirs_tool_shows_no_directory_of_a_diskless_topic(tool: Tool, topic: str) -> None:
    shown = json.loads(tool("log-dirs", "--describe", "--topic-list", topic).lines[-1])
    assert len(shown["brokers"]) == 3
    directories = [each for broker in shown["brokers"] for each in broker["logDirs"]]
    assert [each for directory in directories for each in directory["partitions"]] == []


def test_console_producer_and_consumer_use_a_diskless_topic(tool: Tool, topic: str) -> None:
    tool("console-producer", "--topic", topic, stdin="one\ntwo\nthree\n")
    lines = tool(
        "console-consumer", "--topic", topic, "--from-beginning", "--max-messages", "3",
        "--timeout-ms", "20000",
    ).lines  # fmt: skip
    assert sorted(lines) == ["one", "three", "two"]


def test_verifiable_producer_and_consumer_use_a_diskless_topic(
    bootstrap: str, topic: str, name: str
) -> None:
    producer = spawn_tool(
        "verifiable-producer", "--bootstrap-server", bootstrap, "--topic", topic,
        "--max-messages", "300", "--throughput", "-1", "--acks", "-1",
    )  # fmt: skip
    output, _ = producer.communicate(timeout=TIMEOUT_S)
    events = [json.loads(line) for line in output.splitlines() if line.startswith("{")]
    acked = {(e["partition"], e["offset"]) for e in events if e["name"] == "producer_send_success"}
    assert len(acked) == 300
    consumer = spawn_tool(
        "verifiable-consumer", "--bootstrap-server", bootstrap, "--topic", topic,
        "--group-id", name, "--max-messages", "300", "--reset-policy", "earliest", "--verbose",
    )  # fmt: skip
    output, _ = consumer.communicate(timeout=TIMEOUT_S)
    events = [json.loads(line) for line in output.splitlines() if line.startswith("{")]
    read = [(e["partition"], e["offset"]) for e in events if e["name"] == "record_data"]
    assert len(read) == 300
    assert set(read) == acked


def test_consumer_groups_tool_shows_lag_and_resets_offsets(
    tool: Tool, bootstrap: str, topic: str
) -> None:
    group = f"{topic}-group"
    produce(bootstrap, topic, [b"x"] * 10, partition=0)
    consumer = Consumer(
        {"bootstrap.servers": bootstrap, "group.id": group, "enable.auto.commit": False}
    )
    consumer.commit(offsets=[TopicPartition(topic, 0, 4)], asynchronous=False)
    consumer.close()
    described = tool("consumer-groups", "--describe", "--group", group).stdout
    row = next(line.split() for line in described.splitlines() if topic in line.split())
    assert row[2:6] == ["0", "4", "10", "6"]
    for words, offset in ((["--to-earliest"], "0"), (["--to-latest"], "10")):
        reset = tool(
            "consumer-groups", "--group", group, "--reset-offsets", *words,
            "--topic", f"{topic}:0", "--execute",
        ).stdout  # fmt: skip
        assert re.search(rf"{topic}\s+0\s+{offset}\b", reset), reset
