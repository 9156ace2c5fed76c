"""Tests of the voters, bootstrap servers and timeouts from the quorum configs."""

from __future__ import annotations

import pytest

from odradek.broker.config.server_config import ServerConfig
from odradek.broker.controller.metadata_quorum import (
    bootstrap_servers,
    configures_no_other_node,
    quorum_settings,
    static_voters,
)

NODE = {
    "process.roles": "broker,controller",
    "node.id": "1",
    "listeners": "PLAINTEXT://a:9092,CONTROLLER://a:9093",
    "controller.listener.names": "CONTROLLER",
}


def config(**configs: str) -> ServerConfig:
    given = {name.replace("_", "."): value for name, value in configs.items()}
    return ServerConfig.from_properties({**NODE, **given})


def test_node_without_quorum_configs_configures_no_other_node() -> None:
    assert configures_no_other_node(ServerConfig.from_properties({}, test_node=True))


def test_static_voters_by_id() -> None:
    found = config(controller_quorum_voters="1@a:9093")
    assert static_voters(found) == {1: ("a", 9093)}
    assert bootstrap_servers(found) == []
    assert configures_no_other_node(found)


@pytest.mark.parametrize(
    ("listeners", "server", "alone"),
    [
        ("PLAINTEXT://a:9092,CONTROLLER://a:9093", "a:9093", True),
        ("PLAINTEXT://a:9092,CONTROLLER://a:9093", "b:9093", False),
        ("PLAINTEXT://a:9092,CONTROLLER://a:9093", "a:9094", False),
        ("PLAINTEXT://:9092,CONTROLLER://:9093", "whoever:9093", True),
        ("PLAINTEXT://:9092,CONTROLLER://127.0.0.1:9093", "localhost:9093", True),
        ("PLAINTEXT://:9092,CONTROLLER://localhost:9093", "localhost:9094", False),
    ],
)
def test_bootstrap_servers_exclude_the_node(listeners: str, server: str, alone: bool) -> None:
    found = config(listeners=listeners, controller_quorum_bootstrap_servers=server)
    assert configures_no_other_node(found) is alone
    assert bool(bootstrap_servers(found)) is not alone


@pytest.mark.parametrize(
    ("advertised", "servers", "others"),
    [
        ("CONTROLLER://b1:9093", "b2:9093", ["b2"]),
        ("CONTROLLER://b1:9093", "b1:9093", []),
        ("CONTROLLER://b1:9093", "b1:9093,b2:9093,b3:9093", ["b2", "b3"]),
        ("CONTROLLER://b1:9093", "localhost:9093", []),
        ("", "b1:9093,b2:9093,b3:9093", ["b1", "b2", "b3"]),
        ("", "b1:9093,localhost:9093", []),
    ],
)
def test_same_port_on_other_host_is_another_node(
    advertised: str, servers: str, others: list[str]
) -> None:
    """Containers listen on all addresses. A node that took the other for itself would form a cluster of its
    own. A node that does not know its host name connects to all of them."""
    reported = {"advertised_listeners": f"PLAINTEXT://b1:9092,{advertised}"} if advertised else {}
    found = config(
        listeners="PLAINTEXT://:9092,CONTROLLER://:9093",
        controller_quorum_bootstrap_servers=servers,
        **reported,
    )
    assert bootstrap_servers(found) == [(host, 9093) for host in others]
    assert configures_no_other_node(found) is (not others)


def test_quorum_timeouts_come_from_configs() -> None:
    settings = quorum_settings(
        config(
            controller_quorum_voters="1@a:9093",
            controller_quorum_election_timeout_ms="7",
            controller_quorum_fetch_timeout_ms="8",
            controller_quorum_retry_backoff_ms="9",
        ),
        "cluster",
    )
    assert settings.election_timeout_ms == 7
    assert settings.fetch_timeout_ms == 8
    assert settings.retry_backoff_ms == 9
    assert settings.cluster_id == "cluster"
    assert settings.can_become_voter
