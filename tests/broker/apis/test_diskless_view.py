"""Diskless topics in Metadata and DescribeTopicPartitions (D-24)."""

from __future__ import annotations

import struct
from collections import Counter
from typing import Any

import pytest

from odradek.broker.diskless.client_view import GatewayCache, choose_leaders, rack_of_client
from odradek.protocol import apis, messages
from odradek.protocol.schemas.cluster_records import BrokerRegistrationChangeRecord
from odradek.replication.controller.broker_fencing import fence_broker
from odradek.replication.controller.controller_result import ControllerResult
from odradek.replication.diskless.produce_gateways import assign_gateways


@pytest.fixture
def configs() -> dict[str, str]:
    return {
        "diskless.storage.system.enable": "true",
        "diskless.storage.url": "/objects",
        "diskless.metadata.topic.num.partitions": "4",
        "diskless.metadata.topic.replication.factor": "1",
    }


async def view(client: Any, topic: str = "events", version: int = 13) -> Any:
    extra = {"topic_id": None} if version >= 10 else {}
    response = await client.ask(apis.METADATA, version, topics=[{"name": topic, **extra}])
    return response.topics[0]


async def leaders(client: Any, **wanted: Any) -> list[int]:
    return [each.leader_id for each in (await view(client, **wanted)).partitions]


@pytest.mark.parametrize("version", apis.METADATA.versions)
async def test_partition_has_one_gateway_as_leader_and_replica(client: Any, version: int) -> None:
    await client.create("events", 2, diskless_enable="true")
    topic = await view(client, version=version)
    for partition in topic.partitions:
        assert partition.error_code.name == "none"
        assert partition.leader_id == 1
        assert partition.replica_nodes == partition.isr_nodes == (1,)
        assert getattr(partition, "leader_epoch", 0) == 0
        assert not getattr(partition, "offline_replicas", ())


async def test_partitions_are_spread_over_all_brokers(client: Any) -> None:
    client.broker.register(2)
    client.broker.register(3)
    await client.create("events", 60, diskless_enable="true")
    found = Counter(await leaders(client))
    assert set(found) == {1, 2, 3}
    assert min(found.values()) >= 8
    assert Counter(await leaders(client)) == found


async def test_client_with_rack_gets_gateway_in_its_rack_d24(client: Any) -> None:
    client.broker.register(2)
    client.broker.register(3)
    await client.create("events", 12, diskless_enable="true")
    for broker in (1, 2, 3):
        client.client_id = f"orders,diskless_az=rack-{broker},more"
        assert set(await leaders(client)) == {broker}
    client.client_id = "diskless_az=elsewhere"
    assert set(await leaders(client)) == {1, 2, 3}


async def test_fenced_broker_is_no_gateway(client: Any) -> None:
    client.broker.register(2)
    await client.create("events", 12, diskless_enable="true")
    metadata = client.broker.metadata
    metadata.decide(lambda image: fence_broker(image, 2, image.brokers[2].epoch))
    client.client_id = "diskless_az=rack-2"
    assert set(await leaders(client)) == {1}


async def test_broker_in_controlled_shutdown_is_the_last_gateway(client: Any) -> None:
    client.broker.register(2)
    await client.create("events", 12, diskless_enable="true")
    metadata = client.broker.metadata
    for broker, left in ((2, {1}), (1, {1, 2})):
        epoch = metadata.image.brokers[broker].epoch
        record = BrokerRegistrationChangeRecord(
            broker_id=broker, broker_epoch=epoch, in_controlled_shutdown=1
        )
        metadata.decide(lambda _, record=record: ControllerResult([record], None))
        assert set(await leaders(client)) == left


async def test_broker_without_listener_of_client_is_no_gateway(client: Any) -> None:
    client.broker.register(2, "OTHER")
    await client.create("events", 12, diskless_enable="true")
    assert set(await leaders(client)) == {1}


async def test_no_live_broker(client: Any) -> None:
    await client.create("events", diskless_enable="true")
    metadata = client.broker.metadata
    metadata.decide(lambda image: fence_broker(image, 1, image.brokers[1].epoch))
    (partition,) = (await view(client)).partitions
    assert partition.error_code.name == "leader_not_available"
    assert (partition.leader_id, partition.replica_nodes) == (-1, ())


async def test_describe_topic_partitions_shows_gateway(client: Any) -> None:
    await client.create("events", 3, diskless_enable="true")
    response = await client.ask(
        apis.DESCRIBE_TOPIC_PARTITIONS,
        0,
        topics=[{"name": "events"}],
        response_partition_limit=2000,
        cursor=None,
    )
    (topic,) = response.topics
    assert [each.leader_id for each in topic.partitions] == [1, 1, 1]
    assert all(each.isr_nodes == each.replica_nodes == (1,) for each in topic.partitions)


async def test_metadata_topic_is_shown_as_internal_and_classic(client: Any) -> None:
    await client.create("events", diskless_enable="true")
    topic = await view(client, "__diskless_metadata")
    assert topic.is_internal
    assert len(topic.partitions) == 4


async def test_gateways_are_computed_once_per_change(client: Any) -> None:
    await client.create("events", diskless_enable="true")
    image = client.broker.metadata.image
    cache = GatewayCache()
    assert cache.of(image) is cache.of(image)
    before = cache.of(image)
    await client.create("more")
    assert cache.of(client.broker.metadata.image) is before
    client.broker.register(2)
    assert cache.of(client.broker.metadata.image) is not before


async def test_partitions_of_a_coordinator_use_all_its_gateways(client: Any) -> None:
    """48 partitions of 4 coordinators, of which each has 4 gateways."""
    await client.create("events", 48, diskless_enable="true")
    topic = client.broker.metadata.image.topics_by_name["events"]
    gateways = assign_gateways(dict.fromkeys(range(16)), dict.fromkeys(range(4), 0))
    found = choose_leaders(topic, gateways, None, range(16))
    per_coordinator: dict[int, set[int]] = {}
    for index, leader in found.items():
        coordinator = topic.partitions[index].diskless_coordinator
        per_coordinator.setdefault(coordinator, set()).add(leader)
    assert [len(each) for each in per_coordinator.values()] == [4] * 4


def preferred_brokers(response: bytes) -> list[tuple[int, ...]]:
    """Values of the tagged fields 21640 in a response: number of bytes, number of brokers plus 1, broker ids."""
    found = []
    for rest in response.split(bytes.fromhex("0188a901"))[1:]:
        count = rest[1] - 1
        assert rest[0] == 1 + 4 * count
        found.append(struct.unpack(f">{count}i", rest[2 : 2 + 4 * count]))
    return found


@pytest.mark.parametrize("version", range(9, 14))
async def test_metadata_has_preferred_brokers_for_clients_that_ask_d24(
    client: Any, version: int
) -> None:
    """Three brokers in three racks: each coordinator has one gateway in each rack."""
    client.broker.register(2)
    client.broker.register(3)
    await client.create("events", 2, diskless_enable="true")
    await client.create("orders")
    wanted = {"topics": None, "allow_auto_topic_creation": False}

    async def ask(rack: str | None) -> bytes:
        tags = b"" if rack is None else rack_tag(rack)
        response: bytes = await client.ask_raw(apis.METADATA, version, tags=tags, **wanted)
        return response

    assert preferred_brokers(await ask("rack-2")) == [(2,), (2,)]
    assert preferred_brokers(await ask("")) == [(1, 2, 3), (1, 2, 3)]
    assert preferred_brokers(await ask("elsewhere")) == [(1, 2, 3), (1, 2, 3)]
    assert preferred_brokers(await ask(None)) == []
    plain, extended = [
        messages.read_response(3, version, memoryview(each))
        for each in (await ask(None), await ask("rack-1"))
    ]
    assert plain == extended


def rack_tag(rack: str) -> bytes:
    """Section of one tagged field: tag 21640, its size, and the rack as a compact string."""
    text = rack.encode()
    return bytes.fromhex("0188a901") + bytes([len(text) + 1, len(text) + 1]) + text


def test_request_with_rack_equals_request_without() -> None:
    plain = messages.write_request(3, 13, {"topics": None})
    with_rack = messages.read_request(3, 13, memoryview(plain[:-1] + rack_tag("r1")))
    without = messages.read_request(3, 13, memoryview(plain))
    assert (with_rack.rack, without.rack) == ("r1", None)
    assert with_rack == without
    assert messages.write_request(3, 13, with_rack) == plain


@pytest.mark.parametrize(
    ("client_id", "rack"),
    [
        (None, None),
        ("orders", None),
        ("diskless_az=", None),
        ("diskless_az=a", "a"),
        ("orders,diskless_az=eu-1b", "eu-1b"),
        ("diskless_az=eu-1b,orders", "eu-1b"),
        ("diskless_az=eu-1b orders", "eu-1b"),
    ],
)
def test_rack_in_client_id(client_id: str | None, rack: str | None) -> None:
    assert rack_of_client(client_id) == rack
