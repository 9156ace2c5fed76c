"""A broker of each kind, under a controller of each kind.

One topic is replicated in both directions: each broker leads some of the partitions and follows the others.
Batches are replicated unchanged, so at the end both logs are identical. Requests that only the active
controller can serve are sent to the broker of the other kind: Apache Kafka's broker forwards them in
envelopes to Odradek's controller, and Odradek's broker forwards them to Kafka's (KIP-590).
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewPartitions,
    NewTopic,
    ResourceType,
)

from odradek.protocol import apis
from tests.interop.mixed_brokers import KAFKA, ODRADEK, MixedBrokers, mixed_brokers
from tests.support.anomalies import require
from tests.support.broker_process import BrokerProcess
from tests.support.kafka_tools import run_tool
from tests.support.librdkafka_clients import delivery_errors, read_all
from tests.support.raw_client import RawClient
from tests.support.waiting import deadline

pytestmark = pytest.mark.interop
TIMEOUT_S = 30
ASSIGNMENT = [[ODRADEK, KAFKA], [KAFKA, ODRADEK], [ODRADEK, KAFKA], [KAFKA, ODRADEK]]


@pytest.fixture(
    scope="module", params=[ODRADEK, KAFKA], ids=["odradek-controller", "kafka-controller"]
)
def mixed(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[MixedBrokers, int]]:
    """The brokers, with the id of the controller."""
    directory = tmp_path_factory.mktemp("mixed")
    with mixed_brokers(directory, controller=request.param) as mixed:
        yield mixed, request.param


# Forwarded


@pytest.fixture
def other(mixed: tuple[MixedBrokers, int]) -> tuple[AdminClient, int]:
    """Admin client of the broker that is not the controller, and that broker's id."""
    both, controller = mixed
    asked = both.kafka if controller == ODRADEK else both.odradek
    return AdminClient({"bootstrap.servers": asked.bootstrap}), ODRADEK + KAFKA - controller


def done(futures: dict[Any, Any]) -> None:
    for future in futures.values():
        future.result(TIMEOUT_S)


def refused(futures: dict[Any, Any]) -> int:
    (future,) = futures.values()
    with pytest.raises(KafkaException) as error:
        future.result(TIMEOUT_S)
    code: int = error.value.args[0].code()
    return code


def config_of(admin: AdminClient, resource: ConfigResource, name: str) -> str | None:
    """Value of a config; None while the broker does not have the resource."""
    (future,) = admin.describe_configs([resource]).values()
    try:
        value: str = future.result(TIMEOUT_S)[name].value
    except KafkaException as error:
        if error.args[0].code() != KafkaError.UNKNOWN_TOPIC_OR_PART:
            raise
        return None
    return value


def altered(admin: AdminClient, kind: ResourceType, name: str, config: str, value: str) -> None:
    entry = ConfigEntry(config, value, incremental_operation=AlterConfigOpType.SET)
    resource = ConfigResource(kind, name, incremental_configs=[entry])
    done(admin.incremental_alter_configs([resource]))
    with deadline(TIMEOUT_S, f"{config} of {name} to be {value}") as check:
        while config_of(admin, ConfigResource(kind, name), config) != value:
            check()


def test_topics_are_created_extended_and_deleted(other: tuple[AdminClient, int]) -> None:
    admin, _ = other
    done(admin.create_topics([NewTopic("forwarded", 2, 2)]))
    assert refused(admin.create_topics([NewTopic("forwarded", 1, 1)])) == (
        KafkaError.TOPIC_ALREADY_EXISTS
    )
    assert refused(admin.create_topics([NewTopic("too-wide", 1, 3)])) == (
        KafkaError.INVALID_REPLICATION_FACTOR
    )
    done(admin.create_partitions([NewPartitions("forwarded", 4)]))
    with deadline(TIMEOUT_S, "four partitions") as check:
        while len(admin.list_topics("forwarded", 10).topics["forwarded"].partitions) != 4:
            check()
    done(admin.delete_topics(["forwarded"], operation_timeout=TIMEOUT_S))
    with deadline(TIMEOUT_S, "no topic") as check:
        while "forwarded" in admin.list_topics(timeout=10).topics:
            check()


def test_configs_are_validated_by_broker_and_changed_by_controller(
    other: tuple[AdminClient, int],
) -> None:
    admin, broker = other
    done(admin.create_topics([NewTopic("configured", 1, 1)]))
    altered(admin, ResourceType.TOPIC, "configured", "retention.ms", "123456")
    altered(admin, ResourceType.BROKER, str(broker), "log.cleaner.threads", "2")
    entry = ConfigEntry("retention.ms", "soon", incremental_operation=AlterConfigOpType.SET)
    wrong = ConfigResource(ResourceType.TOPIC, "configured", incremental_configs=[entry])
    assert refused(admin.incremental_alter_configs([wrong])) == KafkaError.INVALID_CONFIG


def test_each_broker_gets_its_own_producer_ids(mixed: tuple[MixedBrokers, int]) -> None:
    """The controller allocates blocks of a thousand ids (AllocateProducerIds)."""
    both, _ = mixed
    blocks = [producer_id(each.bootstrap) // 1000 for each in (both.odradek, both.kafka)]
    assert blocks[0] != blocks[1]


def producer_id(bootstrap: str) -> int:
    plain = {"transactional_id": None, "transaction_timeout": 0}
    with RawClient(bootstrap) as client, deadline(TIMEOUT_S, "a producer id") as check:
        while (response := client.ask(apis.INIT_PRODUCER_ID, 0, plain)).error_code:
            check(0.1)
    return int(response.producer_id)


# Replicated


@pytest.mark.parametrize("compression", ["none", "zstd"])
def test_topic_is_replicated_in_both_directions(
    mixed: tuple[MixedBrokers, int], compression: str
) -> None:
    both, _ = mixed
    name = f"both-ways-{compression}"
    admin = AdminClient({"bootstrap.servers": both.odradek.bootstrap})
    topic = NewTopic(
        name,
        num_partitions=len(ASSIGNMENT),
        replica_assignment=ASSIGNMENT,
        config={"min.insync.replicas": "2"},
    )
    admin.create_topics([topic])[name].result(30)
    assert both.leaders(name) == [each[0] for each in ASSIGNMENT]
    failed = produce_numbers(both.kafka.bootstrap, name, 4000, compression)
    assert failed == []
    for partition in range(len(ASSIGNMENT)):
        wait_for_equal_logs(both, name, partition)


def test_reassignment_adds_and_removes_replicas(
    mixed: tuple[MixedBrokers, int], tmp_path: Path
) -> None:
    """kafka-reassign-partitions adds a replica, which the leader of the other kind adds to the ISR
    (AlterPartition), and removes the first one. The new replica then has all records.
    """
    both, _ = mixed
    name, alone = "reassigned", [[leader] for leader, _ in ASSIGNMENT]
    admin = AdminClient({"bootstrap.servers": both.odradek.bootstrap})
    admin.create_topics([NewTopic(name, len(alone), replica_assignment=alone)])[name].result(30)
    assert both.leaders(name) == [leader for leader, _ in ASSIGNMENT]
    assert produce_numbers(both.kafka.bootstrap, name, 400, "none") == []
    reassign(both, tmp_path, name, ASSIGNMENT)
    assert produce_numbers(both.kafka.bootstrap, name, 400, "lz4") == []
    for partition in range(len(ASSIGNMENT)):
        wait_for_equal_logs(both, name, partition)
    reassign(both, tmp_path, name, [[follower] for _, follower in ASSIGNMENT])
    assert both.leaders(name) == [follower for _, follower in ASSIGNMENT]
    read = read_all(both.odradek.bootstrap, name, 800, partitions=range(len(ASSIGNMENT)))
    assert sorted(each.value() or b"" for each in read) == sorted(
        2 * [b"%06d" % n for n in range(400)]
    )


def reassign(
    mixed: MixedBrokers, directory: Path, topic: str, wanted: Sequence[Sequence[int]]
) -> None:
    """Reassign to these replicas, and wait until all of them are in sync."""
    rows = [
        {"topic": topic, "partition": index, "replicas": list(replicas)}
        for index, replicas in enumerate(wanted)
    ]
    file = directory / "wanted.json"
    file.write_text(json.dumps({"version": 1, "partitions": rows}))
    words = ("--bootstrap-server", mixed.kafka.bootstrap, "--reassignment-json-file", str(file))
    run_tool("reassign-partitions", *words, "--execute")
    admin = AdminClient({"bootstrap.servers": mixed.odradek.bootstrap})
    with deadline(TIMEOUT_S, f"{topic} to be reassigned") as check:
        while True:
            found = admin.list_topics(topic, 10).topics[topic].partitions
            if all(
                sorted(found[index].replicas) == sorted(found[index].isrs) == sorted(replicas)
                for index, replicas in enumerate(wanted)
            ):
                return
            check(0.1)


def produce_numbers(bootstrap: str, topic: str, count: int, compression: str) -> list[KafkaError]:
    """Produce idempotently with acks=all; return the errors."""
    config = {
        "enable.idempotence": True,
        "compression.type": compression,
        "batch.num.messages": 50,
    }
    values = [b"%06d" % number for number in range(count)]
    partitions = range(len(ASSIGNMENT))
    errors = delivery_errors(bootstrap, topic, values, partition=partitions, config=config)
    return [error for error in errors if error is not None]


def wait_for_equal_logs(mixed: MixedBrokers, topic: str, partition: int) -> None:
    with deadline(20, f"equal logs of {topic}-{partition}") as check:
        while True:
            odradek_log, kafka_log = (
                log(each, topic, partition) for each in (mixed.odradek, mixed.kafka)
            )
            if odradek_log and odradek_log == kafka_log:
                return
            equal = odradek_log.startswith(kafka_log) or kafka_log.startswith(odradek_log)
            require(equal, "the logs diverge")
            check()


def log(broker: BrokerProcess, topic: str, partition: int) -> bytes:
    directory: Path = broker.partition_directory(topic, partition)
    return (directory / f"{0:020d}.log").read_bytes().rstrip(b"\0")
