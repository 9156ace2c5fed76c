"""Tests of nodes with roles on virtual machines: start, failover, restart and shutdown."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import pytest
import trio

from odradek.broker.config.server_config import ServerConfig
from odradek.broker.node import CannotStart, Node, Stopped
from odradek.client.connection import open_connection
from odradek.protocol import apis
from odradek.protocol.errors import ErrorCode
from odradek.replication.controller.release_versions import initial_levels
from odradek.replication.raft.formatting import NodeFormat, format_node
from odradek.seams.network import Address
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
        """`configs` are more of every node's, with `_` for dots."""
        self.world = world
        self.roles = roles
        self.configs = configs
        self.machines: dict[int, VirtualNode] = {}
        self.brokers: dict[int, Node] = {}
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
                starting.start_soon(self.nursery.start, broker.run)

    async def stop(self, *numbers: int) -> None:
        for number in numbers:
            self.brokers[number].stop()
        for number in numbers:
            await self.brokers.pop(number).stopped.wait()

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
) -> None:
    world = VirtualWorld(seed=4)
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
    """By a node in a nursery."""
    with pytest.raises(BaseExceptionGroup) as group:
        yield
    error: BaseException = group.value
    while isinstance(error, BaseExceptionGroup):
        (error,) = error.exceptions
    assert isinstance(error, kind)
    assert text in str(error)


@pytest.mark.parametrize("roles", [COMBINED, APART], ids=["combined", "apart"])
def test_nodes_form_a_cluster(roles: Mapping[int, str]) -> None:
    async def main(nodes: Nodes) -> None:
        await nodes.start(*roles)
        brokers = [each for each in roles if BROKER in roles[each]]
        controllers = [each for each in roles if CONTROLLER in roles[each]]
        image = nodes.brokers[nodes.active].metadata.image
        assert sorted(image.brokers) == brokers
        assert not any(each.fenced for each in image.brokers.values())
        assert sorted(image.controllers) == controllers
        for number in brokers:  # whichever is asked, the controller does it
            assert await nodes.create(number, f"t{number}") is ErrorCode.none
        names = {f"t{number}" for number in brokers}
        for number in brokers:
            response = await nodes.ask(number, apis.METADATA, {"topics": None})
            assert {each.node_id for each in response.brokers} == set(brokers)
            while set(nodes.brokers[number].metadata.image.topics_by_name) != names:
                await trio.sleep(0.1)

    run(main, roles)


@pytest.mark.parametrize("controllers", ["CONTROLLER://:9093", "CONTROLLER://0.0.0.0:9093"])
def test_wildcard_listeners_advertise_host_names(controllers: str) -> None:
    """As in Kafka's example configs: other machines cannot use the wildcard address."""

    async def main(nodes: Nodes) -> None:
        nodes.configs = {"listeners": f"PLAINTEXT://:9092,{controllers}"}
        await nodes.start(*COMBINED)
        hosts = {number: f"node-{number}" for number in COMBINED}
        image = nodes.brokers[nodes.active].metadata.image
        for known in (image.brokers.values(), image.controllers.values()):
            assert {each.id: each.endpoints[0].host for each in known} == hosts

    run(main, COMBINED)


def test_controller_failover_keeps_metadata() -> None:
    """The active controller is stopped and restarted: metadata is kept, and client requests succeed."""

    async def main(nodes: Nodes) -> None:
        await nodes.start(*COMBINED)
        first = nodes.active
        others = [each for each in COMBINED if each != first]
        assert await nodes.create(others[0], "before") is ErrorCode.none
        await nodes.stop(first)
        image = nodes.brokers[others[0]].metadata.image
        assert image.brokers[first].fenced
        assert await nodes.create(others[1], "between") is ErrorCode.none
        assert nodes.active in others
        await nodes.start(first)
        assert await nodes.create(first, "after") is ErrorCode.none
        image = nodes.brokers[nodes.active].metadata.image
        assert not image.brokers[first].fenced
        assert set(image.topics_by_name) == {"before", "between", "after"}

    run(main, COMBINED)


def test_restarted_cluster_keeps_its_data() -> None:
    async def main(nodes: Nodes) -> None:
        await nodes.start(*APART)
        assert await nodes.create(4, "t") is ErrorCode.none
        epochs = {each: nodes.brokers[each].services.lifecycle.broker_epoch for each in (4, 5)}
        await nodes.stop(4, 5)
        await nodes.stop(1, 2, 3)
        await nodes.start(*APART)
        image = nodes.brokers[nodes.active].metadata.image
        assert set(image.topics_by_name) == {"t"}
        for number, before in epochs.items():
            assert image.brokers[number].epoch > before
            assert not image.brokers[number].fenced

    run(main, APART)


def test_node_waiting_for_quorum_can_be_stopped(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def main(nodes: Nodes) -> None:
        async def stop_later() -> None:
            await trio.sleep(30)
            nodes.brokers[4].stop()

        nodes.nursery.start_soon(stop_later)
        with raised(Stopped, "stopped before it could serve"):
            await nodes.start(4)

    run(main, APART)
    assert "still waiting: the committed metadata is not known yet" in caplog.text


def test_node_stopped_during_start_can_restart() -> None:
    """The broker was waiting for its registration by a controller."""

    async def main(nodes: Nodes) -> None:
        await nodes.start(1, 2, 3)

        async def stop_later() -> None:
            while 4 not in nodes.brokers or not hasattr(nodes.brokers[4], "endpoints"):
                await trio.sleep(0.001)
            nodes.brokers[4].stop()

        nodes.nursery.start_soon(stop_later)
        with raised(Stopped, "stopped before it could serve"):
            await nodes.start(4)
        await nodes.start(4)
        assert await nodes.create(4, "t") is ErrorCode.invalid_replication_factor

    run(main, APART)


def test_node_with_static_voters_must_be_formatted() -> None:
    async def main(nodes: Nodes) -> None:
        with raised(CannotStart, "odradek storage format"):
            await nodes.start(1)

    run(main, COMBINED, formatted=False)


def test_auto_created_topic_uses_configs_of_the_broker() -> None:
    """The configs of the broker take precedence over those of the controller."""

    async def main(nodes: Nodes) -> None:
        await nodes.start(1, 2, 3)
        nodes.configs = {"num_partitions": "3", "default_replication_factor": "1"}
        await nodes.start(4, 5)
        await nodes.ask(4, apis.METADATA, {"topics": [{"topic_id": None, "name": "t"}]})
        topic = nodes.brokers[4].metadata.image.topics_by_name["t"]
        assert len(topic.partitions) == 3
        assert all(len(each.replicas) == 1 for each in topic.partitions.values())

    run(main, APART)
