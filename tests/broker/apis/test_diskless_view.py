"""Diskless topics in Metadata and DescribeTopicPartitions (D-24)."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

from odradek.broker.diskless.client_view import GatewayCache, choose_leaders, rack_of_client
from odradek.protocol import apis
from odradek.replication.controller.broker_fencing import fence_broker
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
