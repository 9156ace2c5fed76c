"""Log directories that one broker wrote and the other one opens: Apache Kafka's in Odradek, and Odradek's in
Apache Kafka.

A broker writes topics of many kinds and stops cleanly. The other broker starts on the same directories,
including the metadata log. It must serve every record, offset and config, and continue to write. With
`ODRADEK_INTEROP_BROKER=kafka`, Kafka opens its own directories, which tests the tests.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from confluent_kafka import (
    Consumer,
    ConsumerGroupTopicPartitions,
    KafkaError,
    KafkaException,
    Producer,
    TopicPartition,
)
from confluent_kafka.admin import AdminClient, ConfigResource, ResourceType

from tests.interop.directories_of_other_broker import open_directories
from tests.support.broker_kinds import BROKERS
from tests.support.broker_process import BrokerProcess
from tests.support.librdkafka_clients import (
    TIMEOUT_S,
    create_topic,
    poll_until,
    produce,
    read_all,
    wait_for_topic,
)
from tests.support.odradek_process import start_odradek
from tests.support.real_kafka import start_kafka
from tests.support.waiting import deadline

CODECS = ["none", "gzip", "snappy", "lz4", "zstd"]
GROUP = "readers"
SMALL_BATCHES = {"batch.size": 8000}
"""Small enough that a batch fits into a small segment."""
Row = tuple[int, bytes | None, bytes | None, object, object]


@dataclass
class Seen:
    """Topics, records, offsets and configs that clients read from a broker."""

    rows: dict[tuple[str, int], list[Row]] = field(default_factory=dict)
    watermarks: dict[tuple[str, int], tuple[int, int]] = field(default_factory=dict)
    configs: dict[str, dict[str, str]] = field(default_factory=dict)
    committed: dict[tuple[str, int], int] = field(default_factory=dict)
    cluster_id: str = ""


def fill(broker: BrokerProcess, *, transactions: bool) -> None:
    """Create topics of every kind that a broker can write without waiting for the log cleaner."""
    bootstrap = broker.bootstrap
    small = {"internal.segment.bytes": "30000", "index.interval.bytes": "1000"}
    create_topic(bootstrap, "segments", partitions=3, config={**small, "retention.ms": "-1"})
    for codec in CODECS:
        config = {"bootstrap.servers": bootstrap, "enable.idempotence": True, "linger.ms": 5}
        config |= {"compression.type": codec, "batch.num.messages": 20}
        producer = Producer(config)
        for n in range(300):
            value = f"{codec}-{n}".encode().ljust(200)
            producer.produce("segments", value, b"%d" % n, n % 3)
        assert producer.flush(TIMEOUT_S) == 0
    create_topic(bootstrap, "appended", config={"message.timestamp.type": "LogAppendTime"})
    produce(bootstrap, "appended", [b"%d" % n for n in range(10)])
    create_topic(bootstrap, "trimmed", config=small)
    produce(bootstrap, "trimmed", [b"%d" % n * 50 for n in range(1000)], config=SMALL_BATCHES)
    admin = AdminClient({"bootstrap.servers": bootstrap})
    for future in admin.delete_records([TopicPartition("trimmed", 0, 777)]).values():
        future.result(TIMEOUT_S)
    create_topic(bootstrap, "headers", config={"cleanup.policy": "compact"})
    producer = Producer({"bootstrap.servers": bootstrap})
    for n in range(5):
        producer.produce("headers", None, f"k{n}", headers=[("a", b"1"), ("null", None)])
    assert producer.flush(TIMEOUT_S) == 0
    create_topic(bootstrap, "empty", partitions=2)
    commit(bootstrap, 120)
    if transactions:
        create_topic(bootstrap, "transactional")
        transact(bootstrap)


def commit(bootstrap: str, count: int) -> None:
    """Read `count` records of "segments" in a group, and commit."""
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": GROUP,
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
        }
    )
    consumer.subscribe(["segments"])
    consumer.commit(message=poll_until(consumer, count)[-1], asynchronous=False)
    consumer.close()


def transact(bootstrap: str) -> None:
    """Committed and aborted transactions, one after the other."""
    config = {"bootstrap.servers": bootstrap, "transactional.id": "t"}
    producer = Producer(config)
    producer.init_transactions(TIMEOUT_S)
    for number, commits in enumerate([True, False, True, False]):
        producer.begin_transaction()
        for n in range(5):
            producer.produce("transactional", f"{number}-{n}")
        assert producer.flush(TIMEOUT_S) == 0
        if commits:
            producer.commit_transaction(TIMEOUT_S)
        else:
            producer.abort_transaction(TIMEOUT_S)


def look(broker: BrokerProcess) -> Seen:
    """Read everything through librdkafka."""
    seen = Seen()
    admin = AdminClient({"bootstrap.servers": broker.bootstrap})
    seen.cluster_id = admin.describe_cluster().result(TIMEOUT_S).cluster_id
    watcher = Consumer({"bootstrap.servers": broker.bootstrap, "group.id": "watcher"})
    topics = admin.list_topics(timeout=TIMEOUT_S).topics
    for name in sorted(topic for topic in topics if not topic.startswith("__")):
        wait_for_topic(broker.bootstrap, name)
        for partition in sorted(topics[name].partitions):
            where = TopicPartition(name, partition)
            low, high = watermarks(broker, watcher, where)
            seen.watermarks[name, partition] = (low, high)
            seen.rows[name, partition] = rows(broker.bootstrap, name, partition, low, high)
        (future,) = admin.describe_configs([ConfigResource(ResourceType.TOPIC, name)]).values()
        seen.configs[name] = {
            entry.name: entry.value
            for entry in future.result(TIMEOUT_S).values()
            if entry.source == 1  # DYNAMIC_TOPIC_CONFIG
        }
    watcher.close()
    (offsets,) = admin.list_consumer_group_offsets([ConsumerGroupTopicPartitions(GROUP)]).values()
    for part in offsets.result(TIMEOUT_S).topic_partitions:
        seen.committed[part.topic, part.partition] = part.offset
    return seen


def watermarks(broker: BrokerProcess, watcher: Consumer, where: TopicPartition) -> tuple[int, int]:
    """First offset and end offset of the partition.

    Kafka returns the leader in Metadata before it is ready (`BrokerMetadataPublisher` sets the image of the
    metadata cache first and then notifies the replica manager), so the request is repeated. Clients of
    Odradek never get this error.
    """
    with deadline(TIMEOUT_S, f"{where} to be led") as check:
        while True:
            try:
                low, high = watcher.get_watermark_offsets(where, timeout=TIMEOUT_S)
            except KafkaException as failed:
                led_later = failed.args[0].code() == KafkaError.NOT_LEADER_FOR_PARTITION
                if not (led_later and broker.kind == "kafka"):
                    raise
                check()
            else:
                return low, high


def rows(bootstrap: str, topic: str, partition: int, low: int, high: int) -> list[Row]:
    """Committed records of a partition up to its end."""
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": "looks",
            "enable.auto.commit": False,
            "enable.partition.eof": True,
            "fetch.wait.max.ms": 10,
            "isolation.level": "read_committed",
            "check.crcs": True,
        }
    )
    consumer.assign([TopicPartition(topic, partition, low)])
    found: list[Row] = []
    try:
        while low < high:
            message = consumer.poll(TIMEOUT_S)
            assert message is not None, f"{topic}-{partition} stops before {high}"
            if message.error() is not None:
                assert message.error().name() == "_PARTITION_EOF", message.error()
                break
            found.append(
                (
                    message.offset(),
                    message.key(),
                    message.value(),
                    message.timestamp(),
                    message.headers(),
                )
            )
    finally:
        consumer.close()
    return found


def write_more(broker: BrokerProcess) -> None:
    """Append to existing topics on the second broker, and create new ones."""
    (report,) = produce(broker.bootstrap, "segments", [b"more"], partition=0)
    assert report.offset() == 500
    last = Consumer({"bootstrap.servers": broker.bootstrap, "group.id": "last"})
    last.assign([TopicPartition("segments", 0, 499)])
    assert [m.value()[:4] for m in poll_until(last, 2)] == [b"zstd", b"more"]
    last.close()
    create_topic(broker.bootstrap, "made-later")
    produce(broker.bootstrap, "made-later", [b"x"])
    assert [m.value() for m in read_all(broker.bootstrap, "made-later", 1)] == [b"x"]


def check(seen: Seen, *, transactions: bool) -> None:
    """Check that the first broker served the expected content, so that a comparison is meaningful."""
    assert len(seen.rows["segments", 2]) == 500
    assert seen.watermarks["trimmed", 0] == (777, 1000)
    assert seen.rows["headers", 0][4][4] == [("a", b"1"), ("null", None)]
    assert sum(seen.committed.values()) > 0
    assert seen.configs["headers"] == {"cleanup.policy": "compact"}
    if transactions:
        values = [row[2] for row in seen.rows["transactional", 0]]
        assert values == [f"{t}-{n}".encode() for t in (0, 2) for n in range(5)]


Start = Callable[..., BrokerProcess]


@pytest.mark.slow
def test_odradek_opens_kafka_directories(tmp_path: Path) -> None:
    with start_kafka(tmp_path / "kafka", log_dir_count=2) as kafka:
        fill(kafka, transactions=True)
        before = look(kafka)
    check(before, transactions=True)
    opener = BROKERS[0]
    with open_directories(opener, tmp_path / "again", kafka) as broker:
        assert look(broker) == before
        write_more(broker)
    if opener == "odradek":  # Kafka opens the directories again
        with open_directories("kafka", tmp_path / "back", kafka) as again:
            after = look(again)
            assert after.rows["made-later", 0][0][2] == b"x"
            assert after.rows["segments", 1] == before.rows["segments", 1]
            assert after.committed == before.committed


@pytest.mark.slow
def test_kafka_opens_odradek_directories(tmp_path: Path) -> None:
    writer = BROKERS[0]
    starter: Start = start_odradek if writer == "odradek" else start_kafka
    with starter(tmp_path / "odradek", log_dir_count=2) as odradek:
        fill(odradek, transactions=False)
        before = look(odradek)
    check(before, transactions=False)
    for directory in odradek.log_dirs:
        assert (directory / ".kafka_cleanshutdown").exists(), "not a clean shutdown"
    with open_directories("kafka", tmp_path / "kafka", odradek) as kafka:
        assert look(kafka) == before
        write_more(kafka)
        strays = [path for d in odradek.log_dirs for path in d.glob("*-stray")]
        assert strays == []
        log = kafka.log_file.read_text()
        assert log.count("Skipping recovery of") == 2  # once per directory, after a clean shutdown
        assert "Recovering" not in log
