"""Nodes of one cluster on virtual machines, each with the roles that a test gives it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import pytest
import trio

from odradek.broker.config.server_config import ServerConfig
from odradek.broker.node import Node
from odradek.client.connection import open_connection
from odradek.protocol import apis
from odradek.protocol.errors import ErrorCode
from odradek.replication.controller.configs import AlterConfigOp
from odradek.replication.controller.release_versions import initial_levels
from odradek.replication.raft.formatting import NodeFormat, format_node
from odradek.seams.network import Address
from odradek.testing.power import NodeCrashed
from odradek.testing.virtual_world import VirtualNode, VirtualWorld

CLUSTER_ID = "cluster-of-a-test-0001"


BOTH, BROKER, CONTROLLER = "broker,controller", "broker", "controller"


COMBINED = {1: BOTH, 2: BOTH, 3: BOTH}


APART = {1: CONTROLLER, 2: CONTROLLER, 3: CONTROLLER, 4: BROKER, 5: BROKER}


def config_of(number: int, roles: Mapping[int, str], **more: str) -> ServerConfig:
    addresses = {"broker": "PLAINTEXT://node-{}:9092", "controller": "CONTROLLER://node-{}:9093"}
    listeners = [addresses[role].format(number) for role in roles[number].split(",")]
    voters = [f"{each}@node-{each}:9093" for each in roles if CONTROLLER in roles[each]]
    configs = {
        "process.roles": roles[number],
        "node.id": str(number),
        "listeners": ",".join(listeners),
        "log.dirs": "/data",
        "controller.listener.names": "CONTROLLER",
        "controller.quorum.voters": ",".join(voters),
        "default.replication.factor": "2",
        **{name.replace("_", "."): value for name, value in more.items()},
    }
    return ServerConfig.from_properties(configs, test_node=True)


class Nodes:
    def __init__(
        self, world: VirtualWorld, roles: Mapping[int, str], configs: Mapping[str, str]
    ) -> None:
        """`configs` are additional configs of every node, with `_` for dots."""
        self.world = world
        self.roles = roles
        self.configs = configs
        self.machines: dict[int, VirtualNode] = {}
        self.brokers: dict[int, Node] = {}
        self.scopes: dict[int, trio.CancelScope] = {}
        self.nursery: Any = None

    def format(self, number: int) -> None:
        config = config_of(number, self.roles, **self.configs)
        machines = self.machines[number] = self.world.node(f"node-{number}")
        format_node(
            machines.files,
            machines.seams.entropy,
            NodeFormat(
                node_id=number,
                cluster_id=CLUSTER_ID,
                directories=config.log_dirs,
                metadata=config.metadata_log_dir,
                levels=initial_levels(None, {}, is_dynamic=False),
            ),
            now_ms=machines.seams.clock.wall_ms(),
            report=lambda _: None,
        )

    async def start(self, *numbers: int) -> None:
        """Start nodes concurrently; returns when all serve."""
        async with trio.open_nursery() as starting:
            for number in numbers:
                config = config_of(number, self.roles, **self.configs)
                broker = Node(self.machines[number].seams, config)
                self.brokers[number] = broker
                starting.start_soon(self.nursery.start, self._run, number, broker)

    async def stop(self, *numbers: int) -> None:
        for number in numbers:
            self.brokers[number].stop()
        for number in numbers:
            await self.brokers.pop(number).stopped.wait()

    def kill(self, number: int) -> None:
        """Cut the power of a node. `start` starts it again on its disk, with the writes that were not durable lost."""
        self.machines[number] = self.world.restart(self.machines[number], seed=number)
        self.scopes.pop(number).cancel()
        del self.brokers[number]

    async def _run(self, number: int, broker: Node, *, task_status: trio.TaskStatus[None]) -> None:
        with trio.CancelScope() as self.scopes[number]:
            try:
                await broker.run(task_status=task_status)
            except* NodeCrashed:  # after `kill`
                pass

    @property
    def active(self) -> int:
        (active,) = [each for each, node in self.brokers.items() if node.metadata.is_active]
        return active

    async def ask(self, number: int, api: apis.Api, values: Mapping[str, Any]) -> Any:
        """Send a client request to a broker, and return the response."""
        network = self.world.wires.host("client")
        async with trio.open_nursery() as nursery:
            address = Address(f"node-{number}", 9092)
            connection = await open_connection(network, address, nursery)
            response = await connection.request(api, values)
            nursery.cancel_scope.cancel()
        return response

    async def create(self, number: int, topic: str) -> ErrorCode:
        wanted = {"name": topic, "num_partitions": 2, "replication_factor": -1}
        response = await self.ask(
            number,
            apis.CREATE_TOPICS,
            {
                "topics": [{**wanted, "assignments": [], "configs": []}],
                "timeout": 5000,
                "validate_only": False,
            },
        )
        code: ErrorCode = response.topics[0].error_code
        return code


def run(
    main: Callable[[Nodes], Awaitable[None]],
    roles: Mapping[int, str],
    *,
    formatted: bool = True,
    configs: Mapping[str, str] | None = None,
    seed: int = 4,
) -> None:
    """Run `main`, which starts nodes of these roles. Their log directories are formatted, unless `formatted` is off."""
    world = VirtualWorld(seed=seed)
    world.clock.jumping = True
    nodes = Nodes(world, roles, configs or {})
    for number in roles:
        if formatted:
            nodes.format(number)
        else:
            nodes.machines[number] = world.node(f"node-{number}")

    async def all_of_it() -> None:
        with trio.fail_after(600):
            async with trio.open_nursery() as nodes.nursery:
                await main(nodes)
                nodes.nursery.cancel_scope.cancel()

    world.run(all_of_it)


@contextmanager
def raised(kind: type[Exception], text: str) -> Iterator[None]:
    """Expect one exception in exception groups, of this class and with this text."""
    with pytest.raises(BaseExceptionGroup) as group:
        yield
    error: BaseException = group.value
    while isinstance(error, BaseExceptionGroup):
        (error,) = error.exceptions
    assert isinstance(error, kind)
    assert text in str(error)


ALONE = {1: BOTH}


ONE = {"default_replication_factor": "1"}


async def alter(nodes: Nodes, name: str, value: str, *, broker: str = "") -> None:
    """Set a dynamic config of one broker, or of all brokers by default."""
    change = {"name": name, "config_operation": AlterConfigOp.SET, "value": value}
    resource = {"resource_type": 4, "resource_name": broker, "configs": [change]}
    response = await nodes.ask(
        1, apis.INCREMENTAL_ALTER_CONFIGS, {"resources": [resource], "validate_only": False}
    )
    assert response.responses[0].error_code is ErrorCode.none, response.responses[0]
