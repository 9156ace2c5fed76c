"""Tests of the APIs on broker and controller listeners."""

from __future__ import annotations

import trio

from odradek.client.connection import BrokerConnection, open_connection
from odradek.protocol import apis
from odradek.protocol.errors import ErrorCode
from odradek.seams.network import Address
from odradek.seams.tcp import TcpNetwork
from odradek.testing import Broker
from tests.support.brokers import COMBINED_CONFIGS


async def connect(address: Address, nursery: trio.Nursery) -> BrokerConnection:
    return await open_connection(TcpNetwork(), address, nursery)


async def test_api_versions_differ_by_listener() -> None:
    async with Broker(configs=COMBINED_CONFIGS) as broker, trio.open_nursery() as nursery:
        (controller,) = broker.node.controller_endpoints
        to_broker = await connect(broker.node.endpoints[0].address, nursery)
        to_controller = await connect(controller.address, nursery)
        for api in (apis.PRODUCE, apis.METADATA, apis.FIND_COORDINATOR):
            assert to_broker.serves(api), api.name
            assert not to_controller.serves(api), api.name
        assert to_controller.serves(apis.ENVELOPE)
        assert not to_broker.serves(apis.ENVELOPE)
        for api in (apis.CREATE_TOPICS, apis.DESCRIBE_CONFIGS, apis.DESCRIBE_QUORUM):
            assert to_broker.serves(api), api.name
            assert to_controller.serves(api), api.name
        nursery.cancel_scope.cancel()


async def test_controller_serves_direct_requests() -> None:
    """KIP-919; the controller registers its listener."""
    async with Broker(configs=COMBINED_CONFIGS) as broker, trio.open_nursery() as nursery:
        (controller,) = broker.node.controller_endpoints
        connection = await connect(controller.address, nursery)
        topic = {"name": "t", "num_partitions": 1, "replication_factor": 1, "assignments": []}
        response = await connection.request(
            apis.CREATE_TOPICS,
            {"topics": [{**topic, "configs": []}], "timeout": 5000, "validate_only": False},
        )
        assert response.topics[0].error_code is ErrorCode.none
        assert "t" in broker.node.metadata.image.topics_by_name
        (voter,) = broker.node.metadata.quorum.voters
        assert [(each.listener, each.port) for each in voter.endpoints] == [
            ("CONTROLLER", controller.bound.port)
        ]
        nursery.cancel_scope.cancel()


async def test_describe_cluster_lists_controllers_on_controller_listener() -> None:
    """KIP-919; on broker listeners it lists brokers."""
    async with Broker(configs=COMBINED_CONFIGS) as broker, trio.open_nursery() as nursery:
        (controller,) = broker.node.controller_endpoints
        to_broker = await connect(broker.node.endpoints[0].address, nursery)
        to_controller = await connect(controller.address, nursery)
        asked = {"include_cluster_authorized_operations": False, "include_fenced_brokers": False}
        for connection, own, port in (
            (to_broker, 1, broker.port),
            (to_controller, 2, controller.bound.port),
        ):
            found = await connection.request(
                apis.DESCRIBE_CLUSTER, {**asked, "endpoint_type": own}, timeout_s=5
            )
            assert found.error_code is ErrorCode.none
            assert found.controller_id == 1
            assert [(each.broker_id, each.port) for each in found.brokers] == [(1, port)]
            other = await connection.request(
                apis.DESCRIBE_CLUSTER, {**asked, "endpoint_type": 3 - own}, timeout_s=5
            )
            assert other.error_code is ErrorCode.mismatched_endpoint_type
            strange = await connection.request(
                apis.DESCRIBE_CLUSTER, {**asked, "endpoint_type": 7}, timeout_s=5
            )
            assert strange.error_code is ErrorCode.unsupported_endpoint_type
        nursery.cancel_scope.cancel()
