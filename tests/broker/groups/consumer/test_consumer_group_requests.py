"""Consumer groups over the wire, with the coordinator, the node and configs."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from odradek.protocol import apis
from odradek.protocol.errors import ErrorCode
from odradek.testing import Broker
from tests.support.brokers import broker_fixture
from tests.support.consumer_group_clients import JOINS, LEAVES, TOPICS, Reader
from tests.support.group_clients import Connection, wait_for_coordinators
from tests.support.odradek_process import start_odradek
from tests.support.waiting import wait_until

CONFIGS = {
    "offsets.topic.num.partitions": "1",
    "offsets.topic.replication.factor": "1",
    "group.consumer.assignment.interval.ms": "0",
    "group.consumer.min.session.timeout.ms": "100",
    "group.consumer.min.heartbeat.interval.ms": "50",
}
GROUP = 32
TIMEOUT_S = 10.0


broker = broker_fixture(topics=TOPICS, configs=CONFIGS)


@pytest.fixture
def reader(broker: Broker) -> Iterator[Reader]:
    made = Reader(broker.bootstrap)
    wait_for_coordinators(made, "g")
    yield made
    made.close()


def describe(reader: Reader, group: str) -> Any:
    return reader.ask("admin", apis.CONSUMER_GROUP_DESCRIBE, 1, group_ids=[group]).groups[0]


def alter(reader: Reader, group: str, **configs: int | None) -> ErrorCode:
    """Alter configs of a group; None deletes a config."""
    values = [
        {
            "name": name.replace("_", "."),
            "config_operation": 1 if value is None else 0,
            "value": None if value is None else str(value),
        }
        for name, value in configs.items()
    ]
    resource = {"resource_type": GROUP, "resource_name": group, "configs": values}
    response = reader.ask(
        "admin", apis.INCREMENTAL_ALTER_CONFIGS, 1, resources=[resource], validate_only=False
    )
    code: ErrorCode = response.responses[0].error_code
    return code


def interval_ms(response: Any) -> int:
    return round(response.heartbeat_interval.total_seconds() * 1000)


def test_group_configs_override_broker_configs(reader: Reader) -> None:
    assert interval_ms(reader.beat("a", "settings", JOINS)) == 5000
    assert alter(reader, "settings", consumer_heartbeat_interval_ms=60) is ErrorCode.none
    assert interval_ms(wait_until(lambda: reader.beat("a", "settings", 2))) == 60
    assert interval_ms(reader.beat("b", "others", JOINS)) == 5000
    refused = alter(reader, "settings", consumer_heartbeat_interval_ms=10)
    assert refused is ErrorCode.invalid_config
    assert alter(reader, "settings", consumer_heartbeat_interval_ms=None) is ErrorCode.none
    assert interval_ms(reader.beat("a", "settings", 2)) == 5000


def test_member_without_heartbeats_expires_after_group_session_timeout(reader: Reader) -> None:
    configs = {"consumer_session_timeout_ms": 200, "consumer_heartbeat_interval_ms": 50}
    assert alter(reader, "silent", **configs) is ErrorCode.none
    reader.beat("a", "silent", JOINS)
    wait_until(lambda: describe(reader, "silent").group_state == "Empty")
    assert reader.beat("a", "silent", 2).error_code is ErrorCode.unknown_member_id


def test_topic_changes_cause_new_assignment(broker: Broker, reader: Reader) -> None:
    broker.create_topic("grows", 1)
    epoch = reader.beat("a", "grown", JOINS, subscribed_topic_names=["grows"]).member_epoch
    topic = {"name": "grows", "count": 3, "assignments": None}
    reader.ask(
        "admin", apis.CREATE_PARTITIONS, 3, topics=[topic], timeout=1000, validate_only=False
    )
    grown = wait_until(lambda: reader.beat("a", "grown", epoch).assignment)
    assert [list(each.partitions) for each in grown.topic_partitions] == [[0, 1, 2]]
    reader.ask("admin", apis.DELETE_TOPICS, 5, topic_names=["grows"], timeout=1000)
    gone = wait_until(lambda: reader.beat("a", "grown", epoch + 1).assignment)
    assert not gone.topic_partitions


def test_regular_expressions_are_resolved_while_requests_are_served(
    broker: Broker, reader: Reader
) -> None:
    for number in range(450):  # more topics than are matched in one step
        broker.create_topic(f"many-{number}", 1)
    joined = reader.beat(
        "a", "many", JOINS, subscribed_topic_names=None, subscribed_topic_regex="many-[0-9]+"
    )
    assert not joined.error_code
    found = wait_until(lambda: reader.beat("a", "many", joined.member_epoch).assignment)
    assert len(found.topic_partitions) == 450
    reader.beat("a", "many", LEAVES)


def test_reset_removes_consumer_groups(broker: Broker) -> None:
    first = Reader(broker.bootstrap)
    first.beat("a", "reset", JOINS)
    broker.reset()
    second = Reader(broker.bootstrap)
    wait_for_coordinators(second, "g")
    assert describe(second, "reset").error_code is ErrorCode.group_id_not_found
    for each in (first, second):
        each.close()


def test_consumer_protocol_disabled_rejects_heartbeat() -> None:
    configs = {**CONFIGS, "group.coordinator.rebalance.protocols": "classic"}
    with Broker(topics=TOPICS, configs=configs) as broker:
        reader = Reader(broker.bootstrap)
        wait_for_coordinators(reader, "g")
        assert reader.beat("a", "none", JOINS).error_code is ErrorCode.unsupported_version
        assert describe(reader, "none").error_code is ErrorCode.unsupported_version
        reader.close()


def make_topics(bootstrap: str) -> None:
    admin = Connection(bootstrap, "admin")
    topics = [
        {
            "name": name, "num_partitions": partitions, "replication_factor": 1,
            "assignments": [], "configs": [],
        }
        for name, partitions in TOPICS.items()
    ]  # fmt: skip
    values = {"topics": topics, "timeout": 5000, "validate_only": False}
    admin.send(apis.CREATE_TOPICS, 7, values)
    admin.receive()
    admin.close()


def test_consumer_group_survives_crash(tmp_path: Path) -> None:
    """Members keep their epoch and assignment."""
    broker = start_odradek(tmp_path, config=CONFIGS)
    try:
        make_topics(broker.bootstrap)
        reader = Reader(broker.bootstrap)
        wait_for_coordinators(reader, "g")
        reader.beat("a", "kept", JOINS, subscribed_topic_names=["payments"])
        reader.beat("b", "kept", JOINS, subscribed_topic_names=["payments"], instance_id="i")
        reader.commit("a", "kept", 2)
        before = describe(reader, "kept")
        reader.close()
        broker.kill()
        broker = start_odradek(tmp_path, config=CONFIGS, log_dirs=broker.log_dirs)
        reader = Reader(broker.bootstrap)
        wait_for_coordinators(reader, "g")
        assert describe(reader, "kept") == before
        assert not reader.beat("a", "kept", 2).error_code
        assert not reader.beat("b", "kept", 3, instance_id="i").error_code
        fetched = reader.fetch("kept", "a-member", 2).groups[0].topics[0].partitions
        assert [each.committed_offset for each in fetched] == [5, 5]
        reader.close()
    finally:
        broker.kill()
