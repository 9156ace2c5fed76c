"""Tests of the authorization by a controller before its ACLs are loaded."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import trio

from odradek.broker.node import Node
from odradek.broker.security.acl_loading import TIMEOUT_SECONDS
from odradek.broker.security.authorizer_config import ALLOW_EVERYONE, STANDARD_AUTHORIZER
from odradek.client.connection import BrokerConnection, open_connection
from odradek.client.errors import Unreachable
from odradek.protocol import apis
from odradek.protocol.acls import AclOperation, AclResource, PatternType, Permission
from odradek.protocol.errors import ErrorCode
from odradek.replication.controller.acls import CLUSTER_NAME, Acl, create_acls
from odradek.seams.network import Address
from odradek.seams.real import real_seams
from odradek.seams.tcp import TcpNetwork
from odradek.testing import Broker
from tests.support.brokers import COMBINED_CONFIGS
from tests.support.virtual_cluster import CONTROLLER, Nodes, run

AUTHORIZED = {"authorizer.class.name": STANDARD_AUTHORIZER, ALLOW_EVERYONE: "true"}
NO_ALTERING = Acl(
    AclResource.CLUSTER,
    CLUSTER_NAME,
    PatternType.LITERAL,
    "User:*",
    "*",
    AclOperation.ALTER,
    Permission.DENY,
)
ALL_ACLS: Mapping[str, Any] = {
    "resource_type_filter": AclResource.ANY,
    "resource_name_filter": None,
    "pattern_type_filter": PatternType.ANY,
    "principal_filter": None,
    "host_filter": None,
    "operation": AclOperation.ANY,
    "permission_type": Permission.ANY,
}
QUORUM: Mapping[str, Any] = {
    "topics": [{"topic_name": "__cluster_metadata", "partitions": [{"partition_index": 0}]}]
}
VERSIONS: Mapping[str, Any] = {
    "client_software_name": "test",
    "client_software_version": "1",
}
START_SECONDS = 20


class SlowNode(Node):
    """Node with many logs to recover."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.recovers, self.may_go_on = trio.Event(), trio.Event()

    async def _load_replicas(self) -> None:
        self.recovers.set()
        await self.may_go_on.wait()
        await super()._load_replicas()


async def alter(address: Address) -> ErrorCode:
    """Response of a controller to CreateTopics of a client."""
    wanted: Mapping[str, Any] = {
        "resource_type": AclResource.TOPIC,
        "resource_name": "t",
        "resource_pattern_type": PatternType.LITERAL,
        "principal": "User:alice",
        "host": "*",
        "operation": AclOperation.READ,
        "permission_type": Permission.ALLOW,
    }
    async with trio.open_nursery() as nursery:
        connection = await open_connection(TcpNetwork(), address, nursery)
        response = await connection.request(apis.CREATE_ACLS, {"creations": [wanted]}, timeout_s=10)
        nursery.cancel_scope.cancel()
    code: ErrorCode = response.results[0].error_code
    return code


async def test_acls_apply_during_log_recovery(tmp_path: Path) -> None:
    broker = Broker(configs={**COMBINED_CONFIGS, **AUTHORIZED}, data=tmp_path)
    async with broker:
        metadata, entropy = broker.node.metadata, broker.node.seams.entropy
        await metadata.perform(lambda image: create_acls(image, [NO_ALTERING], entropy=entropy))
    node = SlowNode(real_seams(), broker._new_node()._config())
    with trio.fail_after(START_SECONDS):
        async with trio.open_nursery() as nursery:

            async def start_and_stop() -> None:
                await nursery.start(node.run)
                node.stop()

            nursery.start_soon(start_and_stop)
            await node.recovers.wait()
            (controller,) = node.controller_endpoints
            assert await alter(controller.address) is ErrorCode.cluster_authorization_failed
            node.may_go_on.set()


def start_one_of_three(
    talk: Callable[[Nodes, BrokerConnection], Awaitable[None]], **configs: str
) -> None:
    """Run `talk` as an anonymous client of a controller without a majority."""
    roles = dict.fromkeys((1, 2, 3), CONTROLLER)

    async def main(nodes: Nodes) -> None:
        nodes.nursery.start_soon(nodes.start, 1)
        await trio.sleep(5)
        async with trio.open_nursery() as nursery:
            await talk(nodes, await connect(nodes, nursery))
            nursery.cancel_scope.cancel()
        await nodes.stop(1, 2)

    settings = {**AUTHORIZED, **configs}
    run(main, roles, configs={key.replace(".", "_"): value for key, value in settings.items()})


async def connect(nodes: Nodes, nursery: trio.Nursery) -> BrokerConnection:
    network = nodes.world.wires.host("client")
    return await open_connection(network, Address("node-1", 9093), nursery)


def test_controller_denies_before_acls_are_loaded() -> None:
    """Except quorum requests, without which the ACLs could not be loaded."""

    async def talk(nodes: Nodes, connection: BrokerConnection) -> None:
        responses: list[Any] = []

        async def ask() -> None:
            responses.append(await connection.request(apis.DESCRIBE_ACLS, ALL_ACLS))

        async with trio.open_nursery() as asking:
            asking.start_soon(ask)
            await trio.sleep(1)
            assert not responses
            await nodes.start(2)
        assert responses[0].error_code is ErrorCode.none

    start_one_of_three(talk)


def test_wait_for_acls_times_out() -> None:
    """The quorum may never have a majority. The client is disconnected and tries another controller."""

    async def talk(nodes: Nodes, connection: BrokerConnection) -> None:
        with trio.fail_after(TIMEOUT_SECONDS + 1), pytest.raises(Unreachable):
            await connection.request(apis.DESCRIBE_QUORUM, QUORUM, timeout_s=60)
        async with trio.open_nursery() as nursery:
            again = await connect(nodes, nursery)
            assert (await again.request(apis.API_VERSIONS, VERSIONS)).error_code is ErrorCode.none
            nursery.cancel_scope.cancel()
        await nodes.start(2)

    start_one_of_three(talk)


def test_super_users_do_not_wait_for_acls() -> None:
    """ACLs do not apply to them, and administrators must be able to find out why there is no majority."""

    async def talk(nodes: Nodes, connection: BrokerConnection) -> None:
        with trio.fail_after(1):
            response = await connection.request(apis.DESCRIBE_QUORUM, QUORUM)
        (partition,) = response.topics[0].partitions
        assert partition.error_code is ErrorCode.not_leader_or_follower
        await nodes.start(2)

    start_one_of_three(talk, **{"super.users": "User:ANONYMOUS"})
