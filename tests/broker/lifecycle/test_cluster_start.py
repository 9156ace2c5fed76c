"""Tests of nodes with roles on virtual machines: start, failover, restart and shutdown."""

from __future__ import annotations

from collections.abc import Mapping

import pytest
import trio

from odradek.broker.node import CannotStart, Stopped
from odradek.protocol import apis
from odradek.protocol.errors import ErrorCode
from tests.support.virtual_cluster import APART, BROKER, COMBINED, CONTROLLER, Nodes, raised, run


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
        for number in brokers:  # any node forwards to the controller
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
