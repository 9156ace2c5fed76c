"""Administration of diskless topics with Apache Kafka's tools, its Java client and librdkafka, and Apache Kafka on a
metadata log with diskless topics."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient

from tests.interop.directories_of_other_broker import open_directories
from tests.support.broker_process import BrokerProcess
from tests.support.kafka_tools import ToolRun, run_tool
from tests.support.librdkafka_clients import TIMEOUT_S, create_topic, produce, read_all
from tests.support.odradek_process import start_odradek
from tests.support.waiting import deadline

pytestmark = pytest.mark.slow
DISKLESS = {"diskless.enable": "true"}


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    directory = tmp_path_factory.mktemp("diskless")
    arguments = ("--diskless", str(directory / "objects"))
    with start_odradek(directory / "node", arguments=arguments) as started:
        yield started


def tool(broker: BrokerProcess, name: str, *words: str, check: bool = True) -> ToolRun:
    return run_tool(name, *words, "--bootstrap-server", broker.bootstrap, check=check)


def refusal(broker: BrokerProcess, name: str, *words: str) -> str:
    run = tool(broker, name, *words, check=False)
    assert run.code != 0
    return run.stdout + run.stderr


def test_topic_created_by_librdkafka_is_described_by_kafka_topics(broker: BrokerProcess) -> None:
    create_topic(broker.bootstrap, "described", partitions=2, config=DISKLESS)
    first, *partitions = tool(broker, "topics", "--describe", "--topic", "described").lines
    assert "PartitionCount: 2\tReplicationFactor: 1" in first
    assert "diskless.enable=true" in first
    for number, line in enumerate(partitions):
        assert f"Partition: {number}\tLeader: 1\tReplicas: 1\tIsr: 1" in line
    for option in (
        "--unavailable-partitions",
        "--under-replicated-partitions",
        "--under-min-isr-partitions",
    ):
        assert not tool(broker, "topics", "--describe", option).lines


def test_java_admin_client_creates_and_grows_topic(broker: BrokerProcess) -> None:
    created = run_tool("client", "create", broker.bootstrap, "java", "3", "diskless.enable=true")
    assert json.loads(created.stdout) == [{"leader": 1, "replicas": 1, "isr": 1, "elr": 0}] * 4


def test_kafka_topics_grows_and_deletes_topic(broker: BrokerProcess) -> None:
    create_topic(broker.bootstrap, "grown", config=DISKLESS)
    tool(broker, "topics", "--alter", "--topic", "grown", "--partitions", "5")
    assert len(tool(broker, "topics", "--describe", "--topic", "grown").lines) == 6
    tool(broker, "topics", "--delete", "--topic", "grown")
    with deadline(TIMEOUT_S, "the topic to be gone") as check:
        while "grown" in tool(broker, "topics", "--list").lines:
            check()


def test_kafka_topics_cannot_name_the_config(broker: BrokerProcess) -> None:
    """The tool knows the topic configs of Apache Kafka only; `log.diskless.enable` is for it."""
    words = ("--create", "--topic", "refused", "--config", "diskless.enable=true")
    assert "Unknown topic config name: diskless.enable" in refusal(broker, "topics", *words)


def test_kafka_topics_creates_diskless_topic_by_default(tmp_path: Path) -> None:
    arguments = ("--diskless", str(tmp_path / "objects"))
    config = {"log.diskless.enable": "true"}
    with start_odradek(tmp_path / "node", arguments=arguments, config=config) as broker:
        tool(broker, "topics", "--create", "--topic", "events", "--partitions", "2")
        words = ("--create", "--topic", "state", "--config", "cleanup.policy=compact")
        tool(broker, "topics", *words)
        described = tool(broker, "topics", "--describe", "--exclude-internal").stdout
        topics = dict(re.findall(r"Topic: (\w+)\tTopicId.*Configs: (.*)", described))
        assert "diskless.enable=true" in topics["events"]
        assert "diskless.enable" not in topics["state"]
        words = ("--create", "--topic", "three", "--replication-factor", "3")
        assert "must be 1 or -1" in refusal(broker, "topics", *words)


def test_kafka_configs(broker: BrokerProcess) -> None:
    create_topic(broker.bootstrap, "configured", config=DISKLESS)
    create_topic(broker.bootstrap, "classic")
    of = ("--entity-type", "topics", "--entity-name")
    tool(broker, "configs", *of, "configured", "--alter", "--add-config", "retention.ms=100000")
    described = tool(broker, "configs", *of, "configured", "--describe").stdout
    assert "diskless.enable=true" in described
    assert "retention.ms=100000" in described
    for topic, change, reason in (
        ("configured", ("--add-config", "diskless.enable=false"), "cannot become classic"),
        ("configured", ("--delete-config", "diskless.enable"), "cannot become classic"),
        ("configured", ("--add-config", "cleanup.policy=compact"), "cannot be compacted"),
        ("classic", ("--add-config", "diskless.enable=true"), "cannot become diskless"),
    ):
        assert reason in refusal(broker, "configs", *of, topic, "--alter", *change)


def test_replicas_cannot_be_moved_or_elected(broker: BrokerProcess, tmp_path: Path) -> None:
    create_topic(broker.bootstrap, "fixed", config=DISKLESS)
    plan = tmp_path / "plan.json"
    plan.write_text(
        json.dumps(
            {
                "version": 1,
                "partitions": [{"topic": "fixed", "partition": 0, "replicas": [1]}],
            }
        )
    )
    words = ("--reassignment-json-file", str(plan), "--execute")
    assert "have no replicas" in refusal(broker, "reassign-partitions", *words)
    words = ("--election-type", "preferred", "--topic", "fixed", "--partition", "0")
    assert "Valid replica already elected" in tool(broker, "leader-election", *words).stdout
    tool(broker, "leader-election", "--election-type", "unclean", "--all-topic-partitions")


def test_metadata_topic_is_deleted_last(broker: BrokerProcess) -> None:
    create_topic(broker.bootstrap, "last", config=DISKLESS)
    admin = AdminClient({"bootstrap.servers": broker.bootstrap})
    (future,) = admin.delete_topics(["__diskless_metadata"]).values()
    with pytest.raises(KafkaException, match="TOPIC_DELETION_DISABLED"):
        future.result(TIMEOUT_S)


def test_kafka_starts_on_metadata_log_with_diskless_topics(tmp_path: Path) -> None:
    """Apache Kafka skips the coordinator in the records: it shows partitions without replicas, and serves the other
    topics. Odradek then serves the records of diskless topics again."""
    arguments = ("--diskless", str(tmp_path / "objects"))
    with start_odradek(tmp_path / "node", arguments=arguments) as first:
        create_topic(first.bootstrap, "events", partitions=3, config=DISKLESS)
        create_topic(first.bootstrap, "classic")
        produce(first.bootstrap, "classic", [b"one", b"two"])
        produce(first.bootstrap, "events", [b"three", b"four"], partition=1)
    with open_directories("kafka", tmp_path / "kafka", first) as second:
        found = read_all(second.bootstrap, "classic", 2)
        assert [each.value() for each in found] == [b"one", b"two"]
        create_topic(second.bootstrap, "more")
        described = tool(second, "topics", "--describe", "--topic", "events").lines
        assert len(described) == 4
        assert all("Leader: none\tReplicas: \tIsr: " in line for line in described[1:])
    with start_odradek(tmp_path / "again", log_dirs=first.log_dirs, arguments=arguments) as third:
        described = tool(third, "topics", "--describe", "--topic", "events").lines
        assert all("Leader: 1\tReplicas: 1\tIsr: 1" in line for line in described[1:])
        produce(third.bootstrap, "events", [b"five"], partition=1)
        found = read_all(third.bootstrap, "events", 3, partitions=(1,))
        assert [each.value() for each in found] == [b"three", b"four", b"five"]
