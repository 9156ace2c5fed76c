"""Tests of the plan of a local cluster and its file."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import count

import pytest

from odradek.broker.local_cluster.plan import HOST, ClusterPlan, ListenerAddress, make_plan
from odradek.seams.network import Address


def listener_addresses(proxied: bool = False) -> Iterator[ListenerAddress]:
    for port in count(9092):
        yield ListenerAddress(Address(HOST, port), Address(HOST, port + 1000 * proxied))


def plan(
    brokers: int,
    controllers: int = 0,
    *,
    proxied: bool = False,
    settings: Mapping[str, str] | None = None,
) -> ClusterPlan:
    ids = (f"id-{number}" for number in count(1))
    return make_plan(
        brokers=brokers,
        controllers=controllers,
        directory="/d",
        new_id=lambda: next(ids),
        addresses=listener_addresses(proxied),
        settings=settings,
    )


def roles(made: ClusterPlan) -> dict[int, str]:
    return {node.node_id: made.properties(node)["process.roles"] for node in made.nodes}


def test_first_three_brokers_are_controllers() -> None:
    both = "broker,controller"
    assert roles(plan(1)) == {1: both}
    assert roles(plan(2)) == {1: both, 2: both}
    assert roles(plan(4)) == {1: both, 2: both, 3: both, 4: "broker"}


def test_dedicated_controllers_follow_brokers() -> None:
    assert roles(plan(2, 1)) == {1: "broker", 2: "broker", 3: "controller"}


def test_plan_gives_brokers_the_first_addresses() -> None:
    made = plan(3)
    assert [str(node.clients.listen) for node in made.brokers if node.clients] == [
        "127.0.0.1:9092",
        "127.0.0.1:9093",
        "127.0.0.1:9094",
    ]
    assert made.properties(made.node(1))["listeners"] == (
        "PLAINTEXT://127.0.0.1:9092,CONTROLLER://127.0.0.1:9095"
    )


def test_plan_uses_advertised_addresses() -> None:
    made = plan(2, proxied=True)
    configs = made.properties(made.node(2))
    assert configs["listeners"] == "PLAINTEXT://127.0.0.1:9093,CONTROLLER://127.0.0.1:9095"
    assert configs["advertised.listeners"] == (
        "PLAINTEXT://127.0.0.1:10093,CONTROLLER://127.0.0.1:10095"
    )
    assert configs["controller.quorum.bootstrap.servers"] == "127.0.0.1:10094,127.0.0.1:10095"
    assert made.initial_controllers == "1@127.0.0.1:10094:id-1,2@127.0.0.1:10095:id-2"


@pytest.mark.parametrize(
    ("brokers", "replicas", "in_sync"), [(1, "1", "1"), (2, "2", "2"), (5, "3", "2")]
)
def test_internal_topic_replication_is_limited_by_brokers(
    brokers: int, replicas: str, in_sync: str
) -> None:
    made = plan(brokers)
    configs = made.properties(made.node(1))
    assert configs["offsets.topic.replication.factor"] == replicas
    assert configs["transaction.state.log.replication.factor"] == replicas
    assert configs["transaction.state.log.min.isr"] == in_sync


def test_settings_override_plan() -> None:
    made = plan(3, settings={"num.partitions": "6", "offsets.topic.replication.factor": "2"})
    configs = made.properties(made.node(3))
    assert configs["num.partitions"] == "6"
    assert configs["offsets.topic.replication.factor"] == "2"


def test_plan_is_parsed_from_its_json() -> None:
    made = plan(2, 1, proxied=True, settings={"num.partitions": "6"})
    assert ClusterPlan.from_json(made.to_json()) == made


@pytest.mark.parametrize("text", ["", "{}", '{"format": 2}', '{"format": 1, "nodes": [{}]}'])
def test_invalid_plan_is_rejected(text: str) -> None:
    with pytest.raises(ValueError):
        ClusterPlan.from_json(text)


@pytest.mark.parametrize(("brokers", "controllers"), [(0, 0), (0, 3), (1, -1)])
def test_plan_without_brokers_is_rejected(brokers: int, controllers: int) -> None:
    with pytest.raises(ValueError, match="at least one broker"):
        plan(brokers, controllers)


def test_brokers_share_the_store_of_diskless_topics() -> None:
    made = make_plan(
        brokers=2,
        directory="/d",
        new_id=lambda: "id",
        addresses=listener_addresses(),
        settings={"diskless.metadata.topic.num.partitions": "9"},
        diskless="/d/objects",
    )
    for node in made.nodes:
        properties = made.properties(node)
        assert properties["diskless.storage.system.enable"] == "true"
        assert properties["diskless.storage.url"] == "/d/objects"
        assert properties["diskless.metadata.topic.num.partitions"] == "9"
        assert properties["diskless.metadata.topic.replication.factor"] == "2"


def test_plan_with_several_log_directories() -> None:
    made = make_plan(
        brokers=1,
        controllers=1,
        directory="/d",
        new_id=lambda: "id",
        addresses=listener_addresses(),
        log_directories=2,
    )
    dirs = {node.node_id: made.properties(node)["log.dirs"] for node in made.nodes}
    assert dirs == {1: "/d/node-1/data,/d/node-1/data-2", 2: "/d/node-2/data"}
    assert ClusterPlan.from_json(made.to_json()) == made
