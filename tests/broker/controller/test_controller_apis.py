"""Tests of the requests of brokers to the controller, encoded in all versions."""

from __future__ import annotations

from typing import Any
from uuid import UUID

import pytest

from odradek.broker.apis.node_to_controller import HANDLERS
from odradek.protocol import apis
from odradek.protocol.errors import ErrorCode
from odradek.replication.controller.features import SUPPORTED_FEATURES
from odradek.replication.controller.topics import NewTopic
from tests.support.cluster_images import cluster, create, directory, partition
from tests.support.controller_node import CLUSTER_ID, Channel, ControllerNode, FakeMetadata


@pytest.fixture
def channel() -> Channel:
    image, _ = create(cluster(2, directories=2), NewTopic("t", assignments={0: (1, 2)}))
    return Channel(ControllerNode(FakeMetadata(image)))


def registration(broker: int = 3, **changes: Any) -> dict[str, Any]:
    return {
        "broker_id": broker,
        "cluster_id": CLUSTER_ID,
        "incarnation_id": UUID(int=77),
        "listeners": [{"name": "A", "host": "h", "port": 9, "security_protocol": 1}],
        "features": [
            {"name": name, "min_supported_version": low, "max_supported_version": high}
            for name, (low, high) in SUPPORTED_FEATURES.items()
        ],
        "rack": "r",
        "is_migrating_zk_broker": False,
        "log_dirs": [directory(broker)],
        "previous_broker_epoch": -1,
        **changes,
    }


def epoch_of(channel: Channel, broker: int) -> int:
    return channel.node.metadata.image.brokers[broker].epoch


@pytest.mark.parametrize("version", [2, 3, 4])
async def test_broker_registration_in_all_versions(channel: Channel, version: int) -> None:
    channel.version = version
    response = await channel.request(apis.BROKER_REGISTRATION, registration())
    broker = channel.node.metadata.image.brokers[3]
    assert (response.error_code, response.broker_epoch) == (ErrorCode.none, broker.epoch)
    assert (broker.rack, broker.fenced, broker.directories) == ("r", True, (directory(3),))
    assert (broker.endpoints[0].name, broker.endpoints[0].port) == ("A", 9)


@pytest.mark.parametrize("version", [0, 1])
async def test_registration_before_directories_version_is_rejected(
    channel: Channel, version: int
) -> None:
    channel.version = version
    response = await channel.request(apis.BROKER_REGISTRATION, registration())
    assert response.error_code is ErrorCode.invalid_registration


@pytest.mark.parametrize(
    ("changes", "code"),
    [
        ({"cluster_id": "another"}, ErrorCode.inconsistent_cluster_id),
        ({"is_migrating_zk_broker": True}, ErrorCode.broker_id_not_registered),
        ({"broker_id": 1}, ErrorCode.duplicate_broker_registration),
        ({"log_dirs": []}, ErrorCode.invalid_registration),
        ({"log_dirs": [None]}, ErrorCode.invalid_registration),
        ({"features": []}, ErrorCode.invalid_registration),
    ],
)
async def test_unauthorized_registration_is_rejected(
    channel: Channel, changes: dict[str, Any], code: ErrorCode
) -> None:
    response = await channel.request(apis.BROKER_REGISTRATION, registration(**changes))
    assert (response.error_code, response.broker_epoch) == (code, -1)
    assert channel.node.metadata.batches == []


@pytest.mark.parametrize("version", [0, 1, 2])
async def test_heartbeat_response_and_offline_directories(channel: Channel, version: int) -> None:
    channel.version = version
    values = {
        "broker_id": 1,
        "broker_epoch": epoch_of(channel, 1),
        "current_metadata_offset": channel.node.metadata.image.offset,
        "want_fence": False,
        "want_shut_down": False,
        "offline_log_dirs": [directory(1, 1)],
        "cordoned_log_dirs": [directory(1, 0)],
    }
    response = await channel.request(apis.BROKER_HEARTBEAT, values)
    assert response.error_code is ErrorCode.none
    assert (response.is_caught_up, response.is_fenced, response.should_shut_down) == (
        True,
        False,
        False,
    )
    known = channel.node.metadata.image.brokers[1]
    left = (directory(1, 0),)
    assert known.directories == (left if version >= 1 else (*left, directory(1, 1)))
    assert known.cordoned_directories == (left if version >= 2 else None)
    values["broker_epoch"] -= 1
    response = await channel.request(apis.BROKER_HEARTBEAT, values)
    assert (response.error_code, response.is_fenced) == (ErrorCode.stale_broker_epoch, True)


async def test_producer_id_blocks_are_consecutive(channel: Channel) -> None:
    firsts = []
    for broker in (1, 2):
        values = {"broker_id": broker, "broker_epoch": epoch_of(channel, broker)}
        response = await channel.request(apis.ALLOCATE_PRODUCER_IDS, values)
        firsts.append((response.error_code, response.producer_id_start, response.producer_id_len))
    assert firsts == [(ErrorCode.none, 0, 1000), (ErrorCode.none, 1000, 1000)]
    stale = {"broker_id": 1, "broker_epoch": 99}
    response = await channel.request(apis.ALLOCATE_PRODUCER_IDS, stale)
    assert response.error_code is ErrorCode.stale_broker_epoch


async def test_controller_registration(channel: Channel) -> None:
    values = {
        "controller_id": 7,
        "incarnation_id": UUID(int=5),
        "zk_migration_ready": False,
        "listeners": [{"name": "CONTROLLER", "host": "h", "port": 1, "security_protocol": 0}],
        "features": [
            {"name": "metadata.version", "min_supported_version": 7, "max_supported_version": 30}
        ],
    }
    response = await channel.request(apis.CONTROLLER_REGISTRATION, values)
    assert response.error_code is ErrorCode.none
    known = channel.node.metadata.image.controllers[7]
    assert known.endpoints[0].name == "CONTROLLER"
    assert known.features == {"metadata.version": (7, 30)}


@pytest.mark.parametrize("version", [2, 3])
async def test_alter_partition_results_are_in_request_order(channel: Channel, version: int) -> None:
    channel.version = version
    topic_id = channel.node.metadata.image.topics_by_name["t"].id

    def proposal(index: int) -> dict[str, Any]:
        return {
            "partition_index": index,
            "leader_epoch": 0,
            "new_isr": [1],
            "new_isr_with_epochs": [{"broker_id": 1, "broker_epoch": epoch_of(channel, 1)}],
            "leader_recovery_state": 0,
            "partition_epoch": 0,
        }

    values = {
        "broker_id": 1,
        "broker_epoch": epoch_of(channel, 1),
        "topics": [
            {"topic_id": UUID(int=3), "partitions": [proposal(0)]},
            {"topic_id": topic_id, "partitions": [proposal(9), proposal(0)]},
        ],
    }
    response = await channel.request(apis.ALTER_PARTITION, values)
    reported = [
        (each.error_code, tuple(each.isr), each.partition_epoch)
        for topic in response.topics
        for each in topic.partitions
    ]
    assert reported == [
        (ErrorCode.unknown_topic_id, (), 0),
        (ErrorCode.unknown_topic_or_partition, (), 0),
        (ErrorCode.none, (1,), 1),
    ]
    assert partition(channel.node.metadata.image, "t").isr == (1,)


async def test_assign_replicas_to_directories(channel: Channel) -> None:
    topic_id = channel.node.metadata.image.topics_by_name["t"].id
    values = {
        "broker_id": 2,
        "broker_epoch": epoch_of(channel, 2),
        "directories": [
            {
                "id_": directory(2, 1),
                "topics": [
                    {"topic_id": topic_id, "partitions": [{"partition_index": 0}]},
                    {"topic_id": UUID(int=3), "partitions": [{"partition_index": 4}]},
                ],
            }
        ],
    }
    response = await channel.request(apis.ASSIGN_REPLICAS_TO_DIRS, values)
    assert [
        (each.partition_index, each.error_code)
        for found in response.directories
        for topic in found.topics
        for each in topic.partitions
    ] == [(0, ErrorCode.none), (4, ErrorCode.unknown_topic_id)]
    assert partition(channel.node.metadata.image, "t").directory_of(2) == directory(2, 1)


async def test_inactive_controller_responds_not_controller(channel: Channel) -> None:
    channel.node.metadata.turn(False)
    asked: dict[apis.Api, dict[str, Any]] = {
        apis.BROKER_REGISTRATION: registration(),
        apis.BROKER_HEARTBEAT: {
            "broker_id": 1,
            "broker_epoch": 1,
            "current_metadata_offset": 1,
            "want_fence": False,
            "want_shut_down": False,
        },
        apis.ALLOCATE_PRODUCER_IDS: {"broker_id": 1, "broker_epoch": 1},
        apis.CONTROLLER_REGISTRATION: {
            "controller_id": 7,
            "incarnation_id": None,
            "zk_migration_ready": False,
            "listeners": [],
            "features": [],
        },
        apis.ALTER_PARTITION: {"broker_id": 1, "broker_epoch": 1, "topics": []},
        apis.ASSIGN_REPLICAS_TO_DIRS: {"broker_id": 1, "broker_epoch": 1, "directories": []},
    }
    assert asked.keys() == HANDLERS.keys()
    for api, values in asked.items():
        response = await channel.request(api, values)
        assert response.error_code is ErrorCode.not_controller, api.title
