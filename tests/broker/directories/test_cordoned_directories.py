"""Tests of `cordoned.log.dirs` (KIP-1066): dynamic updates, restarts, and reports to the controller."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

from odradek.protocol import apis
from odradek.protocol.errors import ErrorCode
from odradek.replication.controller.features import CORDONED_DIRECTORIES, METADATA_VERSION
from tests.broker.directories.node import A, B, Node, running, two_disks
from tests.support.waiting import wait_until

SET, DELETE = 0, 1


def cordon(node: Node, value: str | None, *, broker: str = "1") -> ErrorCode:
    """Set or delete the config."""
    config = {
        "name": "cordoned.log.dirs",
        "config_operation": DELETE if value is None else SET,
        "value": value,
    }
    resource = {"resource_type": 4, "resource_name": broker, "configs": [config]}
    response = node.ask(
        apis.INCREMENTAL_ALTER_CONFIGS, 1, resources=[resource], validate_only=False
    )
    code: ErrorCode = response.responses[0].error_code
    return code


def create(node: Node, topic: str, partitions: int) -> Any:
    wanted = {
        "name": topic,
        "num_partitions": partitions,
        "replication_factor": 1,
        "assignments": [],
        "configs": [],
    }
    response = node.ask(apis.CREATE_TOPICS, 7, topics=[wanted], timeout=10_000, validate_only=False)
    return response.topics[0]


def places(node: Node, topic: str) -> Counter[str]:
    """Number of partitions of the topic in each log directory."""
    return Counter(path for (name, _), path in node.where().items() if name == topic)


def described(node: Node) -> dict[str, bool]:
    response = node.ask(apis.DESCRIBE_LOG_DIRS, 5, topics=None)
    return {each.log_dir: each.is_cordoned for each in response.results}


def cordoned_paths(node: Node) -> list[str]:
    """Paths of the cordoned directories in the metadata image."""
    broker = node.broker.node
    cordoned = broker.metadata.image.brokers[1].cordoned_directories
    return [
        str(each.path) for each in broker.services.directories.all if each.id in (cordoned or ())
    ]


def test_cordoned_directory_gets_no_new_replicas() -> None:
    disk = two_disks()
    with running(disk) as node:
        assert create(node, "before", 4).error_code is ErrorCode.none
        assert set(places(node, "before")) == {str(A), str(B)}
        assert cordon(node, str(B)) is ErrorCode.none
        assert described(node) == {str(A): False, str(B): True}
        assert create(node, "t", 4).error_code is ErrorCode.none
        assert places(node, "t") == {str(A): 4}
        assert set(places(node, "before")) == {str(A), str(B)}, "what is there stays"
        wait_until(lambda: cordoned_paths(node) == [str(B)])
        moved = {"path": str(B), "topics": [{"name": "t", "partitions": [0]}]}
        response = node.ask(apis.ALTER_REPLICA_LOG_DIRS, 2, dirs=[moved])
        code = response.results[0].partitions[0].error_code
        assert code is ErrorCode.invalid_replica_assignment
        gauges = node.broker.node.logs.gauges()
        assert gauges["CordonedLogDirectoryCount"] == 1
        assert gauges[f"LogDirectoryCordoned,logDirectory={B}"] == 1
    with running(disk) as node:  # the registration is in the metadata log
        assert described(node) == {str(A): False, str(B): True}
        assert cordoned_paths(node) == [str(B)]
        assert cordon(node, None) is ErrorCode.none
        assert described(node) == {str(A): False, str(B): False}
        wait_until(lambda: cordoned_paths(node) == [])
        assert create(node, "after", 6).error_code is ErrorCode.none
        assert places(node, "after")[str(B)] > 0


def test_broker_with_only_cordoned_directories_gets_no_replicas() -> None:
    with running(two_disks()) as node:
        assert cordon(node, "*") is ErrorCode.none
        assert described(node) == {str(A): True, str(B): True}
        wait_until(lambda: len(cordoned_paths(node)) == 2)
        refused = create(node, "t", 1)
        assert refused.error_code is ErrorCode.invalid_replication_factor
        assert refused.error_message.endswith(
            "All brokers are currently fenced, or have all their log directories cordoned."
        )
        assert cordon(node, str(A)) is ErrorCode.none
        wait_until(lambda: cordoned_paths(node) == [str(A)])
        assert create(node, "t", 2).error_code is ErrorCode.none
        assert places(node, "t") == {str(B): 2}


def test_static_config_cordons_at_start() -> None:
    with running(two_disks(), topics={"t": 3}, cordoned_log_dirs=str(A)) as node:
        assert cordoned_paths(node) == [str(A)]
        assert places(node, "t") == {str(B): 3}
        assert described(node) == {str(A): True, str(B): False}


@pytest.mark.parametrize("value", ["/elsewhere", f"*,{A}"])
def test_unknown_cordoned_directory_is_rejected(value: str) -> None:
    with running(two_disks()) as node:
        assert cordon(node, value) is ErrorCode.invalid_request
        assert described(node) == {str(A): False, str(B): False}


def test_cordoning_requires_broker_config_and_metadata_version() -> None:
    with running(two_disks(), cordoned_log_dirs=str(A)) as node:
        assert cordon(node, str(A), broker="") is ErrorCode.invalid_request
        image = node.broker.node.metadata.image
        older = {**image.features, METADATA_VERSION: CORDONED_DIRECTORIES - 1}
        object.__setattr__(image, "features", older)
        assert described(node) == {str(A): False, str(B): False}
        assert cordon(node, str(B)) is ErrorCode.invalid_config
