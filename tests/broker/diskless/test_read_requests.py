"""Read requests of raw clients for a diskless topic at a broker: all Fetch versions, quotas, ACLs, refused fetches."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from confluent_kafka.admin import (
    AclBinding,
    AclOperation,
    AclPermissionType,
    AdminClient,
    ResourcePatternType,
    ResourceType,
)

from odradek.broker.security.authorizer_config import STANDARD_AUTHORIZER
from odradek.protocol import apis
from odradek.protocol.errors import ErrorCode
from odradek.protocol.records.batch import batches
from odradek.protocol.records.records import decode
from odradek.testing import Broker
from tests.support.client_quotas import set_client_quotas
from tests.support.librdkafka_clients import TIMEOUT_S, create_topic, produce
from tests.support.raw_client import RawClient

RECORDS = 20
CONFIGS = {
    "diskless.append.commit.interval.ms": "10",
    "authorizer.class.name": STANDARD_AUTHORIZER,
    "allow.everyone.if.no.acl.found": "true",
}


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    with Broker(diskless=True, configs=CONFIGS) as running:
        create_topic(running.bootstrap, "d", config={"diskless.enable": "true"})
        produce(running.bootstrap, "d", [bytes(1000)] * RECORDS)
        yield running


@pytest.fixture
def client(broker: Broker) -> Iterator[RawClient]:
    with RawClient(broker.bootstrap) as client:
        yield client


def fetch(client: RawClient, version: int, *, replica_id: int = -1) -> tuple[Any, Any]:
    """Response to a fetch from the start of the topic, and its partition."""
    topic: dict[str, Any] = {
        "partitions": [
            {
                "partition": 0,
                "current_leader_epoch": 0,
                "fetch_offset": 0,
                "last_fetched_epoch": -1,
                "log_start_offset": -1,
                "partition_max_bytes": 1 << 20,
            }
        ]
    }
    if version >= 13:
        metadata = client.ask(
            apis.METADATA,
            12,
            {
                "topics": [{"topic_id": None, "name": "d"}],
                "allow_auto_topic_creation": False,
                "include_topic_authorized_operations": False,
            },
        )
        topic["topic_id"] = metadata.topics[0].topic_id
    else:
        topic["topic"] = "d"
    values: dict[str, Any] = {
        "max_wait": 0,
        "min_bytes": 0,
        "max_bytes": 1 << 20,
        "isolation_level": 0,
        "session_id": 0,
        "session_epoch": -1,
        "topics": [topic],
        "forgotten_topics_data": [],
        "rack_id": "",
    }
    if version >= 15:
        values["replica_state"] = {"replica_id": replica_id, "replica_epoch": -1}
    else:
        values["replica_id"] = replica_id
    response = client.ask(apis.FETCH, version, values)
    (partition,) = response.responses[0].partitions
    return response, partition


@pytest.mark.parametrize("version", range(4, 18))
def test_every_fetch_version_reads_a_diskless_topic(client: RawClient, version: int) -> None:
    _, partition = fetch(client, version)
    assert partition.error_code is ErrorCode.none
    assert (partition.high_watermark, partition.last_stable_offset) == (RECORDS, RECORDS)
    offsets = [
        record.offset
        for batch in batches(memoryview(partition.records), check=True)
        for record in decode(batch)
    ]
    assert offsets == list(range(RECORDS))


@pytest.mark.parametrize("version", [12, 17])
def test_follower_fetch_of_a_diskless_topic_is_not_leader_or_follower(
    client: RawClient, version: int
) -> None:
    _, partition = fetch(client, version, replica_id=1)
    assert partition.error_code is ErrorCode.not_leader_or_follower
    assert not partition.records


def test_consumer_above_its_quota_is_throttled(broker: Broker, client: RawClient) -> None:
    set_client_quotas(client, consumer_byte_rate=1000.0)
    with RawClient(broker.bootstrap) as throttled:
        response, partition = fetch(throttled, 12)
    set_client_quotas(client)
    assert partition.records
    assert response.throttle_time.total_seconds() > 0


def test_describe_producers_of_a_diskless_partition_is_empty(client: RawClient) -> None:
    response = client.ask(
        apis.DESCRIBE_PRODUCERS, 0, {"topics": [{"name": "d", "partition_indexes": [0, 1]}]}
    )
    first, unknown = response.topics[0].partitions
    assert (first.error_code, len(first.active_producers)) == (ErrorCode.none, 0)
    assert unknown.error_code is ErrorCode.unknown_topic_or_partition


def test_consumer_without_read_access_is_refused(broker: Broker, client: RawClient) -> None:
    admin = AdminClient({"bootstrap.servers": broker.bootstrap})
    denied = AclBinding(
        ResourceType.TOPIC,
        "d",
        ResourcePatternType.LITERAL,
        "User:ANONYMOUS",
        "*",
        AclOperation.READ,
        AclPermissionType.DENY,
    )
    for created in admin.create_acls([denied]).values():
        created.result(TIMEOUT_S)
    _, partition = fetch(client, 12)
    assert partition.error_code is ErrorCode.topic_authorization_failed
    assert not partition.records
