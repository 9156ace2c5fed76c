"""Consumers of the remote tier in a cluster: any replica serves it, and the leader may change meanwhile
(T-32; the readers of E9 and E11).
"""

from __future__ import annotations

import gc
import socket
import struct
import time
from collections.abc import Iterator
from typing import Any
from uuid import UUID

import pytest
from confluent_kafka import (
    OFFSET_BEGINNING,
    Consumer,
    KafkaError,
    TopicCollection,
    TopicPartition,
)
from confluent_kafka.admin import AdminClient, NewTopic

from odradek.protocol import apis, messages
from odradek.protocol.apis import Api
from odradek.protocol.framing import read_response_header, request_header
from odradek.protocol.records.batch import batches
from odradek.testing import Cluster
from tests.support.librdkafka_clients import produce
from tests.support.waiting import deadline

pytestmark = pytest.mark.slow
BROKERS = 3
RECORDS = 300
CONFIGS = {
    "remote.log.manager.task.interval.ms": "200",
    "log.retention.check.interval.ms": "200",
    "log.initial.task.delay.ms": "200",
    "log.segment.delete.delay.ms": "0",
}
TIERED = {
    "remote.storage.enable": "true",
    "internal.segment.bytes": "20000",
    "local.retention.bytes": "1",
    "min.insync.replicas": "2",
}


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with Cluster(brokers=BROKERS, configs=CONFIGS, tiered=True) as running:
        yield running
        gc.collect()  # librdkafka's handles log errors while they outlive the brokers


def create_and_fill(cluster: Cluster, topic: str) -> int:
    """Create a topic whose data is mostly in the remote tier only; returns the leader's local log start
    offset.
    """
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap})
    admin.create_topics([NewTopic(topic, 1, BROKERS, config=TIERED)])[topic].result(20)
    for start in range(0, RECORDS, 20):
        values = [b"%06d" % number + b"x" * 1000 for number in range(start, start + 20)]
        produce(cluster.bootstrap, topic, values, config={"acks": "all", "batch.size": 5000})
    with deadline(30, "the remote tier") as check:
        while (local := earliest_local(cluster, topic)) < RECORDS * 2 // 3:
            check(0.2)
    return local


def earliest_local(cluster: Cluster, topic: str) -> int:
    wanted = {"name": topic, "partitions": [{"partition_index": 0, "timestamp": -4}]}
    response = ask(
        cluster.address(leader_of(cluster, topic)),
        apis.LIST_OFFSETS,
        8,
        {"replica_id": -1, "isolation_level": 0, "topics": [wanted]},
    )
    ((partition,),) = [each.partitions for each in response.topics]
    return int(partition.offset)


def read(cluster: Cluster, topic: str, stop_at: int, between: object = None) -> list[int]:
    """Read all records and return their numbers; `between` is called after one third."""
    consumer = Consumer(
        {
            "bootstrap.servers": cluster.bootstrap,
            "group.id": "readers",
            "auto.offset.reset": "error",
            "fetch.message.max.bytes": 10_000,
            "queued.max.messages.kbytes": 10,
        }
    )
    consumer.assign([TopicPartition(topic, 0, OFFSET_BEGINNING)])
    found: list[int] = []
    until = time.monotonic() + 90
    try:
        while len(found) < stop_at and time.monotonic() < until:
            message = consumer.poll(1.0)
            if message is None:
                continue
            error = message.error()
            assert error is None or error.code() != KafkaError._AUTO_OFFSET_RESET, error
            if error is None:
                found.append(int(message.value()[:6]))
            if callable(between) and len(found) >= stop_at // 3:
                between()
                between = None
    finally:
        consumer.close()
    return found


def leader_of(cluster: Cluster, topic: str) -> int:
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap})
    return int(admin.list_topics(topic, 20).topics[topic].partitions[0].leader)


def test_consumer_continues_at_new_leader(cluster: Cluster) -> None:
    """T-32: the consumer neither resets its offset nor gets OFFSET_OUT_OF_RANGE."""
    local = create_and_fill(cluster, "moved")
    assert local > 0
    killed: list[int] = []

    def kill() -> None:
        killed.append(leader_of(cluster, "moved"))
        cluster.kill(killed[0])

    try:
        assert read(cluster, "moved", RECORDS, kill) == list(range(RECORDS))
    finally:
        cluster.restart(killed[0])


def test_every_replica_serves_remote_tier(cluster: Cluster) -> None:
    """T-32, KIP-392: a follower reads from the remote tier itself."""
    local = create_and_fill(cluster, "near")
    leader = leader_of(cluster, "near")
    topic_id = topic_id_of(cluster, "near")
    for broker in cluster.brokers:
        offset = 0
        with deadline(30, f"all of it from {broker}, which follows {leader}") as check:
            while offset < local:
                offset = fetch(cluster.address(broker), topic_id, offset) or offset
                check()


def topic_id_of(cluster: Cluster, topic: str) -> UUID:
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap})
    described = admin.describe_topics(TopicCollection([topic]))[topic].result(20)
    found = described.topic_id
    bits = (found.get_most_significant_bits() << 64) | (
        found.get_least_significant_bits() & (2**64 - 1)
    )
    return UUID(int=bits & (2**128 - 1))


def fetch(address: str, topic_id: UUID, offset: int) -> int:
    """Offset after the records that a fetch from this broker returns, or 0 if it returns none."""
    wanted = {"partition": 0, "fetch_offset": offset, "partition_max_bytes": 1 << 16}
    response = ask(
        address,
        apis.FETCH,
        17,
        {
            "max_wait": 100,
            "min_bytes": 1,
            "topics": [{"topic_id": topic_id, "partitions": [wanted]}],
            "forgotten_topics_data": [],
        },
    )
    ((partition,),) = [each.partitions for each in response.responses]
    assert partition.error_code == 0
    next_offset = 0
    for batch in batches(memoryview(partition.records or b""), allow_partial=True):
        next_offset = batch.next_offset
    return next_offset


def ask(address: str, api: Api, version: int, values: dict[str, object]) -> Any:
    request = request_header(api, version, 5, "test")
    request += messages.write_request(api.key, version, values)
    host, _, port = address.rpartition(":")
    with socket.create_connection((host, int(port)), 20) as sock:
        sock.sendall(struct.pack(">i", len(request)) + request)
        reader = sock.makefile("rb")
        (size,) = struct.unpack(">i", reader.read(4))
        view = memoryview(reader.read(size))
    _, start = read_response_header(api, version, view)
    return messages.read_response(api.key, version, view, start)
