"""Tests of the throttling of clients with quotas on a running broker."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
import trio

from odradek.broker.network.connection import ClientConnection
from odradek.broker.quotas.request_throttling import wait_by_controller
from odradek.broker.requests.forwarding import ForwardedResponse
from odradek.protocol import apis
from odradek.protocol.errors import ErrorCode
from odradek.seams.selector import EachAlone
from odradek.testing import Broker
from odradek.testing.virtual_network import VirtualWires
from tests.support.brokers import broker_fixture
from tests.support.client_quotas import set_client_quotas
from tests.support.produce_requests import produce_frame, produce_values
from tests.support.raw_client import RawClient
from tests.support.raw_requests import connect, read_correlation_ids
from tests.support.records import batch_of_size

QUOTA = 20_000.0
"""Bytes per second, and the burst: of two windows of a second, one counts in full."""


broker = broker_fixture(topics={"t": 1, "small": 1}, configs={"quota.window.num": "2"})


@pytest.fixture
def client(broker: Broker) -> Iterator[RawClient]:
    with RawClient(broker.bootstrap) as connected:
        yield connected
        set_client_quotas(connected)


def milliseconds(response: Any) -> int:
    found: int = round(response.throttle_time.total_seconds() * 1000)
    return found


def produce_throttle_ms(
    client: RawClient, size_bytes: int, *, topic: str = "t", version: int = 9
) -> int:
    """Produce a record of this size; return the throttle time (ms) of the response."""
    values = produce_values(topic, batch_of_size(size_bytes), acks=1, timeout_ms=5_000)
    response = client.ask(apis.PRODUCE, version, values)
    assert response.responses[0].partition_responses[0].error_code is ErrorCode.none
    return milliseconds(response)


def fetch(
    client: RawClient, topic: str = "t", *, max_bytes: int = 1 << 20, replica_id: int = -1
) -> tuple[int, int]:
    """Throttle time in ms, and the number of bytes of records."""
    asked = {
        "partition": 0,
        "current_leader_epoch": -1,
        "fetch_offset": 0,
        "log_start_offset": -1,
        "partition_max_bytes": max_bytes,
    }
    response = client.ask(
        apis.FETCH,
        11,
        {
            "replica_id": replica_id,
            "max_wait": 0,
            "min_bytes": 0,
            "max_bytes": max_bytes,
            "isolation_level": 0,
            "session_id": 0,
            "session_epoch": -1,
            "topics": [{"topic": topic, "partitions": [asked]}],
            "forgotten_topics_data": [],
            "rack_id": "",
        },
    )
    (found,) = response.responses[0].partitions
    return milliseconds(response), len(found.records or b"")


def seconds_to_response(client: RawClient) -> float:
    begun = time.monotonic()
    client.ask(apis.API_VERSIONS, 0, {})
    return time.monotonic() - begun


@pytest.mark.parametrize("version", [3, 9, 12])
def test_producer_above_quota_is_throttled(client: RawClient, version: int) -> None:
    set_client_quotas(client, producer_byte_rate=QUOTA)
    wait_ms = produce_throttle_ms(client, 24_000, version=version)
    assert wait_ms > 100
    assert seconds_to_response(client) >= wait_ms / 1000 * 0.9


def create_topics(client: RawClient, *names: str, version: int = 7) -> Any:
    wanted = [
        {
            "name": name,
            "num_partitions": 12,
            "replication_factor": 1,
            "assignments": [],
            "configs": [],
        }
        for name in names
    ]
    values = {"topics": wanted, "timeout": 10_000, "validate_only": False}
    return client.ask(apis.CREATE_TOPICS, version, values)


@pytest.mark.parametrize("version", [5, 7])
def test_mutations_above_quota_are_throttled(client: RawClient, version: int) -> None:
    """KIP-599: a burst of 11, then one in 100 ms."""
    set_client_quotas(client, controller_mutation_rate=10.0)
    names = [f"{each}-{version}" for each in range(11)]
    response = create_topics(client, *names, version=version)
    refused = [each.error_code for each in response.topics if each.error_code is not ErrorCode.none]
    is_strict = version == 7
    assert refused == [ErrorCode.throttling_quota_exceeded] * (1 if is_strict else 0)
    wait_ms = milliseconds(response)
    assert wait_ms > (900 if is_strict else 2000)
    assert seconds_to_response(client) >= wait_ms / 1000 * 0.7


def test_throttle_time_of_remote_controller_is_applied() -> None:
    responded = ForwardedResponse(b"\x00\x00\x05\xdc" + bytes(20))
    assert wait_by_controller(apis.CREATE_TOPICS, responded) == 1500
    assert wait_by_controller(apis.DELETE_TOPICS, None) == 0
    assert wait_by_controller(apis.ALTER_CONFIGS, responded) == 0


def test_client_within_quota_is_not_throttled(client: RawClient) -> None:
    set_client_quotas(
        client, producer_byte_rate=1e9, consumer_byte_rate=1e9, request_percentage=1e6
    )
    assert produce_throttle_ms(client, 24_000) == 0
    assert fetch(client)[0] == 0
    assert seconds_to_response(client) < 1


def test_fetch_returns_at_most_a_burst(client: RawClient) -> None:
    for _ in range(8):
        produce_throttle_ms(client, 8_000, topic="small")
    set_client_quotas(client, consumer_byte_rate=QUOTA)
    begun = time.monotonic()  # the broker mutes the connection before the response arrives
    wait_ms, size_bytes = fetch(client, "small")
    assert 0 < size_bytes <= QUOTA
    again_ms, _ = fetch(client, "small")
    assert again_ms > 0
    assert time.monotonic() - begun >= wait_ms / 1000 * 0.9
    assert seconds_to_response(client) >= again_ms / 1000 * 0.9


def test_follower_fetches_are_not_throttled_by_client_quotas(client: RawClient) -> None:
    set_client_quotas(client, consumer_byte_rate=1.0)
    assert fetch(client, replica_id=7)[0] == 0, "refused, for it is none, and not throttled"


def test_request_percentage_throttles(client: RawClient) -> None:
    """0.01% is 0.1 ms per second."""
    set_client_quotas(client, request_percentage=0.01)
    wait_ms = 0
    for _ in range(200):
        response = client.ask(
            apis.METADATA, 9, {"topics": None, "allow_auto_topic_creation": False}
        )
        if wait_ms := milliseconds(response):
            break
    assert 0 < wait_ms <= 1000, "no longer than a window at once"


def test_request_without_response_records_no_time(broker: Broker, client: RawClient) -> None:
    set_client_quotas(client, request_percentage=0.0001)
    requests = [produce_frame(number, acks=0) for number in range(3)]
    with connect(broker) as sock:
        begun = time.monotonic()
        sock.sendall(b"".join(requests) + produce_frame(3, acks=1))
        assert read_correlation_ids(sock, 1) == [3]
    assert time.monotonic() - begun < 1, "each would have been waited for as long as that"


def test_removed_quotas_do_not_close_waiting_connection(broker: Broker, client: RawClient) -> None:
    set_client_quotas(client, producer_byte_rate=1e9)
    request = produce_frame(0, size=10)

    async def ask() -> bytes:
        node = broker.node
        wires = VirtualWires()
        (listener,) = await wires.host("broker").listen("", 9092)
        near = await wires.host("client").connect("broker", 9092)
        connection = await listener.accept()
        served = ClientConnection(connection, node.endpoints[0], node.services, EachAlone())
        served.free_space()[: len(request)] = request
        assert not served.take(len(request)), "the rest is for its task"
        node.apply_quotas(replace(node.metadata.image, quotas={}))
        buffer = memoryview(bytearray(4096))
        async with trio.open_nursery() as nursery:
            nursery.start_soon(served.talk)
            size = await near.receive_into(buffer)
            await near.aclose()
        return bytes(buffer[:size])

    assert broker._call(ask)[4:8] == bytes(4)


def test_quotas_are_described_after_alteration(client: RawClient) -> None:
    set_client_quotas(client, producer_byte_rate=QUOTA)
    response = client.ask(
        apis.DESCRIBE_CLIENT_QUOTAS,
        1,
        {
            "components": [{"entity_type": "user", "match_type": 0, "match": "ANONYMOUS"}],
            "strict": True,
        },
    )
    (entry,) = response.entries
    assert [(value.key, value.value) for value in entry.values] == [("producer_byte_rate", QUOTA)]
