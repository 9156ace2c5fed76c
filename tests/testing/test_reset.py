"""`Broker.reset`: everything that a client can change is as after the start."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewPartitions

from odradek.protocol import apis
from odradek.protocol.errors import ErrorCode
from odradek.replication.controller.features import TRANSACTION_VERSION
from odradek.replication.controller.image import MetadataImage
from odradek.testing import Broker
from tests.support.librdkafka_clients import produce
from tests.support.raw_client import RawClient

TOPIC, BROKER, BROKER_LOGGER, CLIENT_METRICS, GROUP = 2, 4, 8, 16, 32
SCRAM_SHA_256 = 1
LOGGER = "odradek.node"

AUTHORIZER = "org.apache.kafka.metadata.authorizer.StandardAuthorizer"


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    directories = [tmp_path_factory.mktemp("reset") for _ in range(2)]
    configs = {
        "authorizer.class.name": AUTHORIZER,
        "super.users": "User:ANONYMOUS",
        "offsets.topic.num.partitions": 2,
        "transaction.state.log.num.partitions": 2,
    }
    data = ",".join(map(str, directories))
    with Broker(topics={"declared": 2}, configs=configs, data=data) as broker:
        yield broker


@pytest.fixture
def broker(running: Broker) -> Broker:
    running.reset()
    return running


@pytest.fixture
def client(broker: Broker) -> Iterator[RawClient]:
    with RawClient(broker.bootstrap) as client:
        yield client


def image(broker: Broker) -> MetadataImage:
    return broker.node.metadata.image


# Changes, each by the request of a client


def alter_config(client: RawClient, kind: int, name: str, key: str, value: str) -> None:
    config = {"name": key, "config_operation": 0, "value": value}
    resource = {"resource_type": kind, "resource_name": name, "configs": [config]}
    response = client.ask(
        apis.INCREMENTAL_ALTER_CONFIGS, 1, {"resources": [resource], "validate_only": False}
    )
    assert response.responses[0].error_code is ErrorCode.none, response


def configs(client: RawClient, kind: int, name: str) -> dict[str, str]:
    resource = {"resource_type": kind, "resource_name": name, "configuration_keys": None}
    values = {"resources": [resource], "include_synonyms": False, "include_documentation": False}
    (result,) = client.ask(apis.DESCRIBE_CONFIGS, 4, values).results
    assert result.error_code is ErrorCode.none, result
    return {each.name: each.value for each in result.configs}


def listed(client: RawClient, kind: int) -> list[str]:
    found = client.ask(apis.LIST_CONFIG_RESOURCES, 1, {"resource_types": [kind]})
    return [each.resource_name for each in found.config_resources]


def create_acl(client: RawClient) -> None:
    acl = {
        "resource_type": 2,
        "resource_name": "t",
        "resource_pattern_type": 3,
        "principal": "User:alice",
        "host": "*",
        "operation": 3,
        "permission_type": 3,
    }
    (result,) = client.ask(apis.CREATE_ACLS, 3, {"creations": [acl]}).results
    assert result.error_code is ErrorCode.none, result


def acls(client: RawClient) -> list[str]:
    values = {
        "resource_type_filter": 1,
        "resource_name_filter": None,
        "pattern_type_filter": 1,
        "principal_filter": None,
        "host_filter": None,
        "operation": 1,
        "permission_type": 1,
    }
    return [each.resource_name for each in client.ask(apis.DESCRIBE_ACLS, 3, values).resources]


def alter_quota(client: RawClient, entity_type: str, name: str | None, key: str) -> None:
    entity = [{"entity_type": entity_type, "entity_name": name}]
    ops = [{"key": key, "value": 1000.0, "remove": False}]
    values = {"entries": [{"entity": entity, "ops": ops}], "validate_only": False}
    (result,) = client.ask(apis.ALTER_CLIENT_QUOTAS, 1, values).entries
    assert result.error_code is ErrorCode.none, result


def quotas(client: RawClient) -> int:
    values = {"components": [], "strict": False}
    return len(client.ask(apis.DESCRIBE_CLIENT_QUOTAS, 1, values).entries or ())


def create_scram_user(client: RawClient) -> None:
    upsertion = {
        "name": "alice",
        "mechanism": SCRAM_SHA_256,
        "iterations": 4096,
        "salt": b"salt",
        "salted_password": b"p" * 32,
    }
    values = {"deletions": [], "upsertions": [upsertion]}
    (result,) = client.ask(apis.ALTER_USER_SCRAM_CREDENTIALS, 0, values).results
    assert result.error_code is ErrorCode.none, result


def scram_users(client: RawClient) -> list[str]:
    results = client.ask(apis.DESCRIBE_USER_SCRAM_CREDENTIALS, 0, {"users": None}).results
    return [each.user for each in results]


def downgrade_transaction_version(client: RawClient) -> None:
    update = {"feature": TRANSACTION_VERSION, "max_version_level": 1, "upgrade_type": 2}
    values = {"timeout": 10_000, "feature_updates": [update], "validate_only": False}
    assert client.ask(apis.UPDATE_FEATURES, 1, values).error_code is ErrorCode.none


def transact(bootstrap: str, topic: str, *, commit: bool) -> Producer:
    producer = Producer({"bootstrap.servers": bootstrap, "transactional.id": "txn"})
    producer.init_transactions(20)
    producer.begin_transaction()
    producer.produce(topic, b"v")
    producer.flush(20)
    if commit:
        producer.commit_transaction(20)
    return producer


def commit_offset(bootstrap: str, topic: str) -> None:
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": "g"})
    consumer.commit(offsets=[TopicPartition(topic, 0, 1)], asynchronous=False)
    consumer.close()


# One test per kind


def test_reset_deletes_topics_and_their_configs(broker: Broker, client: RawClient) -> None:
    broker.create_topic("t", configs={"retention.ms": 1})
    alter_config(client, TOPIC, "declared", "retention.ms", "1")
    broker.reset()
    assert set(image(broker).topics_by_name) - {"__consumer_offsets", "__transaction_state"} == {
        "declared"
    }
    assert configs(client, TOPIC, "declared")["retention.ms"] == "604800000"
    assert len(image(broker).topics_by_name["declared"].partitions) == 2


def test_reset_deletes_groups_and_offsets(broker: Broker, client: RawClient) -> None:
    commit_offset(broker.bootstrap, "declared")
    broker.reset()
    groups = client.ask(apis.LIST_GROUPS, 4, {"states_filter": []}).groups
    assert [each.group_id for each in groups] == []
    consumer = Consumer({"bootstrap.servers": broker.bootstrap, "group.id": "g"})
    (committed,) = consumer.committed([TopicPartition("declared", 0)], 20)
    consumer.close()
    assert committed.offset < 0


@pytest.mark.parametrize("commit", [True, False])
def test_reset_deletes_transactional_ids(broker: Broker, client: RawClient, commit: bool) -> None:
    producer = transact(broker.bootstrap, "declared", commit=commit)
    broker.reset()
    values: dict[str, Any] = {"state_filters": [], "producer_id_filters": []}
    states = client.ask(apis.LIST_TRANSACTIONS, 0, values).transaction_states
    assert [each.transactional_id for each in states] == []
    if not commit:
        with pytest.raises(KafkaException):
            producer.commit_transaction(20)


@pytest.mark.parametrize("name", ["", "1"])
def test_reset_deletes_dynamic_broker_configs(broker: Broker, client: RawClient, name: str) -> None:
    alter_config(client, BROKER, name, "log.retention.ms", "1")
    assert broker.node.config.get_int("log.retention.ms") == 1
    broker.reset()
    assert image(broker).config(BROKER, name).get("log.retention.ms") is None
    assert broker.node.config["log.retention.ms"] is None
    assert configs(client, BROKER, "1")["log.retention.ms"] is None


def test_reset_removes_replication_throttles(broker: Broker, client: RawClient) -> None:
    key = "leader.replication.throttled.rate"
    alter_config(client, BROKER, "1", key, "1")
    broker.reset()
    assert key not in image(broker).config(BROKER, "1")


def test_reset_uncordons_log_directories(broker: Broker, client: RawClient) -> None:
    directory = str(broker.node.config.log_dirs[0])
    alter_config(client, BROKER, "1", "cordoned.log.dirs", directory)
    broker.reset()
    results = client.ask(apis.DESCRIBE_LOG_DIRS, 5, {"topics": None}).results
    assert [each.is_cordoned for each in results] == [False, False]
    assert not image(broker).brokers[1].cordoned_directories


def test_reset_deletes_client_metrics_subscriptions(broker: Broker, client: RawClient) -> None:
    alter_config(client, CLIENT_METRICS, "subscription", "interval.ms", "1000")
    assert listed(client, CLIENT_METRICS) == ["subscription"]
    broker.reset()
    assert listed(client, CLIENT_METRICS) == []


def test_reset_deletes_group_configs(broker: Broker, client: RawClient) -> None:
    alter_config(client, GROUP, "g", "consumer.session.timeout.ms", "50000")
    assert listed(client, GROUP) == ["g"]
    broker.reset()
    assert listed(client, GROUP) == []


def test_reset_restores_log_levels(broker: Broker, client: RawClient) -> None:
    logger, root = logging.getLogger(LOGGER), logging.getLogger()
    before = logger.level, root.level
    alter_config(client, BROKER_LOGGER, "1", LOGGER, "DEBUG")
    alter_config(client, BROKER_LOGGER, "1", LOGGER, "ERROR")
    alter_config(client, BROKER_LOGGER, "1", "root", "TRACE")
    assert (logger.level, root.level) == (logging.ERROR, 5)
    broker.reset()
    assert (logger.level, root.level) == before


def test_reset_keeps_log_levels_that_the_test_has_set(broker: Broker, client: RawClient) -> None:
    logger = logging.getLogger(LOGGER)
    alter_config(client, BROKER_LOGGER, "1", LOGGER, "DEBUG")
    logger.setLevel(logging.WARNING)
    broker.reset()
    assert logger.level == logging.WARNING
    logger.setLevel(logging.NOTSET)


def test_reset_deletes_acls(broker: Broker, client: RawClient) -> None:
    create_acl(client)
    assert acls(client) == ["t"]
    broker.reset()
    assert acls(client) == []


@pytest.mark.parametrize(
    ("entity_type", "name", "key"),
    [
        ("user", "ANONYMOUS", "producer_byte_rate"),
        ("client-id", None, "request_percentage"),
        ("ip", "127.0.0.2", "connection_creation_rate"),
    ],
)
def test_reset_deletes_client_quotas(
    broker: Broker, client: RawClient, entity_type: str, name: str | None, key: str
) -> None:
    alter_quota(client, entity_type, name, key)
    assert quotas(client) == 1
    broker.reset()
    assert quotas(client) == 0
    services = broker.node.services
    assert services.client_quotas is None
    assert services.connection_quotas is None


def test_reset_deletes_scram_credentials(broker: Broker, client: RawClient) -> None:
    create_scram_user(client)
    assert scram_users(client) == ["alice"]
    broker.reset()
    assert scram_users(client) == []


def test_reset_restores_features(broker: Broker, client: RawClient) -> None:
    before = image(broker).features
    downgrade_transaction_version(client)
    assert image(broker).features[TRANSACTION_VERSION] == 1
    broker.reset()
    assert image(broker).features == before


def test_reset_waits_until_an_unregistered_broker_is_registered(
    broker: Broker, client: RawClient
) -> None:
    commit_offset(broker.bootstrap, "declared")
    response = client.ask(apis.UNREGISTER_BROKER, 0, {"broker_id": 1})
    assert response.error_code is ErrorCode.none
    assert not image(broker).brokers
    broker.reset()
    assert image(broker).is_active(1)
    produce(broker.bootstrap, "declared", [b"v"])
    commit_offset(broker.bootstrap, "declared")


@pytest.mark.parametrize("change", ["configs", "partitions"])
def test_reset_deletes_internal_topics_that_a_client_has_changed(
    broker: Broker, client: RawClient, change: str
) -> None:
    commit_offset(broker.bootstrap, "declared")
    broker.reset()
    assert len(image(broker).topics_by_name["__consumer_offsets"].partitions) == 2  # is kept
    if change == "configs":
        alter_config(client, TOPIC, "__consumer_offsets", "max.message.bytes", "2000000")
    else:
        admin = AdminClient({"bootstrap.servers": broker.bootstrap})
        (done,) = admin.create_partitions([NewPartitions("__consumer_offsets", 3)]).values()
        done.result(20)
    broker.reset()
    assert "__consumer_offsets" not in image(broker).topics_by_name
    commit_offset(broker.bootstrap, "declared")
    assert len(image(broker).topics_by_name["__consumer_offsets"].partitions) == 2
    assert "max.message.bytes" not in image(broker).topic_configs("__consumer_offsets")


# The whole image


def without_internal_topics(image: MetadataImage) -> MetadataImage:
    """The image without offsets, times and ids, and without what a reset keeps."""
    internal = ("__consumer_offsets", "__transaction_state")
    by_name = {
        name: sorted(topic.partitions)
        for name, topic in image.topics_by_name.items()
        if name not in internal
    }
    return replace(
        image,
        offset=0,
        epoch=0,
        timestamp_ms=0,
        topics_by_name=by_name,
        topics_by_id={},
        configs={key: value for key, value in image.configs.items() if key[1] not in internal},
        collisions={
            key: names for key, names in image.collisions.items() if names[0] not in internal
        },
        next_producer_id=0,
    )


CHANGES: list[Callable[[RawClient], None]] = [
    create_acl,
    create_scram_user,
    downgrade_transaction_version,
    lambda client: alter_quota(client, "user", "alice", "producer_byte_rate"),
    lambda client: alter_quota(client, "ip", None, "connection_creation_rate"),
    lambda client: alter_config(client, BROKER, "", "log.retention.ms", "1"),
    lambda client: alter_config(client, BROKER, "1", "follower.replication.throttled.rate", "1"),
    lambda client: alter_config(client, BROKER, "", "min.insync.replicas", "2"),
    lambda client: alter_config(client, TOPIC, "declared", "cleanup.policy", "compact"),
    lambda client: alter_config(client, GROUP, "g", "consumer.session.timeout.ms", "50000"),
    lambda client: alter_config(client, CLIENT_METRICS, "s", "interval.ms", "1000"),
]


def test_reset_restores_the_whole_metadata_image(broker: Broker, client: RawClient) -> None:
    before = without_internal_topics(image(broker))
    for change in CHANGES:
        change(client)
    alter_config(client, BROKER, "1", "cordoned.log.dirs", str(broker.node.config.log_dirs[1]))
    broker.create_topic("created", partitions=3)
    broker.create_topic("a.b")
    produce(broker.bootstrap, "automatic", [b"v"])
    commit_offset(broker.bootstrap, "declared")
    assert without_internal_topics(image(broker)) != before
    broker.reset()
    assert without_internal_topics(image(broker)) == before


def test_reset_in_a_process_of_its_own_undoes_the_same_changes(tmp_path: Path) -> None:
    with Broker(data=tmp_path, process=True) as broker, RawClient(broker.bootstrap) as client:
        alter_quota(client, "user", "alice", "producer_byte_rate")
        create_scram_user(client)
        broker.create_topic("t")
        broker.reset()
        assert (quotas(client), scram_users(client)) == (0, [])
        topics = AdminClient({"bootstrap.servers": broker.bootstrap}).list_topics(timeout=20)
        assert not topics.topics


def test_reset_of_an_unchanged_broker_writes_nothing() -> None:
    with Broker() as unused:
        offset = image(unused).offset
        unused.reset()
        assert image(unused).offset == offset
