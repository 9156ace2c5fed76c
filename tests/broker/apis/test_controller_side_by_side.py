"""Tests of leader elections, reassignments, features and the quorum with Apache Kafka 4.3 and Odradek."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from odradek.protocol import apis
from tests.broker.apis.side_by_side import Both, ask, topic
from tests.support.broker_process import BrokerProcess

pytestmark = pytest.mark.interop


@pytest.fixture
def both(both: Both) -> Both:
    for broker in both.brokers:
        made = {"topics": [topic("moved", 2)], "timeout": 30_000}
        ask(broker, apis.CREATE_TOPICS, 7, made)
    return both


def partitions(*named: tuple[str, Sequence[int]]) -> list[dict[str, Any]]:
    return [{"topic": name, "partitions": indexes} for name, indexes in named]


def test_elect_leaders(both: Both) -> None:
    some = partitions(("moved", [0, 1, 9]), ("gone", [0]))
    for version in apis.ELECT_LEADERS.versions:
        for kind in (0, 1, 7):
            more = {"election_type": kind} if version else {}
            both(apis.ELECT_LEADERS, version, topic_partitions=some, timeout=30_000, **more)
            both(apis.ELECT_LEADERS, version, topic_partitions=[], timeout=30_000, **more)
    for broker in both.brokers:
        response = ask(
            broker,
            apis.ELECT_LEADERS,
            2,
            {"election_type": 0, "topic_partitions": None, "timeout": 30_000},
        )
        assert "moved" in {each.topic for each in response.replica_election_results}
        assert not any(each.partition_result for each in response.replica_election_results)


def test_reassignments(both: Both) -> None:
    def alter(name: str, index: int, replicas: Sequence[int] | None, **more: Any) -> None:
        both(
            apis.ALTER_PARTITION_REASSIGNMENTS,
            1 if more else 0,
            timeout=30_000,
            topics=[
                {"name": name, "partitions": [{"partition_index": index, "replicas": replicas}]}
            ],
            **more,
        )

    for replicas in ([1], [2], [], [1, 1], [1, 2], None):
        alter("moved", 0, replicas)
        alter("moved", 0, replicas, allow_replication_factor_change=False)
    alter("moved", 9, [1])
    alter("gone", 0, [1])
    both(apis.ALTER_PARTITION_REASSIGNMENTS, 0, timeout=30_000, topics=[])
    for topics in (None, [], [{"name": "moved", "partition_indexes": [0, 5]}]):
        both(apis.LIST_PARTITION_REASSIGNMENTS, 0, timeout=30_000, topics=topics)
    gone = [{"name": "gone", "partition_indexes": [0]}]
    both(apis.LIST_PARTITION_REASSIGNMENTS, 0, timeout=30_000, topics=gone)


UP, SAFE, UNSAFE = 1, 2, 3

UPDATES: Sequence[tuple[str, int, int]] = (
    ("metadata.version", 30, UP),
    ("metadata.version", 31, UP),
    ("metadata.version", 99, UP),
    ("metadata.version", 0, SAFE),
    ("metadata.version", 7, SAFE),
    ("metadata.version", 29, UP),
    ("metadata.version", 29, SAFE),
    ("metadata.version", 29, UNSAFE),
    ("group.version", 0, UP),
    ("group.version", 0, SAFE),
    ("group.version", 1, SAFE),
    ("group.version", 1, UP),
    ("group.version", -1, UP),
    ("transaction.version", 1, SAFE),
    ("transaction.version", 2, UP),
    ("transaction.version", 3, UP),
    ("eligible.leader.replicas.version", 0, SAFE),
    ("eligible.leader.replicas.version", 1, UP),
    ("kraft.version", 1, UP),
    ("kraft.version", 0, SAFE),
    ("kraft.version", 2, UP),
    ("nonsense", 1, UP),
    ("nonsense", 0, SAFE),
    ("group.version", 1, 0),
    ("group.version", 1, 9),
)


def test_update_features(both: Both) -> None:
    for name, level, kind in UPDATES:
        wanted = [{"feature": name, "max_version_level": level, "upgrade_type": kind}]
        for validate_only in (True, False):
            both(
                apis.UPDATE_FEATURES,
                2,
                timeout=30_000,
                feature_updates=wanted,
                validate_only=validate_only,
            )
    both(apis.UPDATE_FEATURES, 1, timeout=30_000, feature_updates=[], validate_only=False)
    for level in (0, 1):
        older = [{"feature": "group.version", "max_version_level": level}]
        both(
            apis.UPDATE_FEATURES,
            0,
            timeout=30_000,
            feature_updates=[{**each, "allow_downgrade": True} for each in older],
        )
    same = {"feature": "group.version", "max_version_level": 1, "upgrade_type": UP}
    wrong = {"feature": "nonsense", "max_version_level": 1, "upgrade_type": UP}
    for several in ([same], [same, wrong]):
        both(apis.UPDATE_FEATURES, 1, timeout=30_000, feature_updates=several, validate_only=False)


def test_describe_quorum(both: Both, brokers: tuple[BrokerProcess, BrokerProcess]) -> None:
    for name, index in (("gone", 0), ("__cluster_metadata", 1)):
        for version in apis.DESCRIBE_QUORUM.versions:
            asked = [{"topic_name": name, "partitions": [{"partition_index": index}]}]
            both(apis.DESCRIBE_QUORUM, version, topics=asked)
    both(apis.DESCRIBE_QUORUM, 2, topics=[])
    for broker in brokers:
        for version in apis.DESCRIBE_QUORUM.versions:
            asked = [{"topic_name": "__cluster_metadata", "partitions": [{"partition_index": 0}]}]
            response = ask(broker, apis.DESCRIBE_QUORUM, version, {"topics": asked})
            (partition,) = response.topics[0].partitions
            assert (partition.error_code.name, partition.leader_id) == ("none", 1)
            (voter,) = partition.current_voters
            assert voter.replica_id == 1
            assert 0 < partition.high_watermark <= voter.log_end_offset
            assert partition.leader_epoch >= 1
            assert not partition.observers
            if version >= 1:
                assert voter.last_caught_up_timestamp > 1_600_000_000_000
            if version >= 2:
                assert voter.replica_directory_id is not None
                assert [node.node_id for node in response.nodes] == [1]


def test_unregister_broker(both: Both) -> None:
    both(apis.UNREGISTER_BROKER, 0, broker_id=7)


def test_delegation_tokens(both: Both) -> None:
    for version in apis.CREATE_DELEGATION_TOKEN.versions:
        more: dict[str, Any] = {}
        if version >= 3:
            more = {"owner_principal_type": None, "owner_principal_name": None}
        both(apis.CREATE_DELEGATION_TOKEN, version, renewers=[], max_lifetime=-1, **more)
    for kind, name in (("User", "alice"), ("User", ""), ("", "alice"), (None, "alice")):
        owner = {"owner_principal_type": kind, "owner_principal_name": name}
        both(apis.CREATE_DELEGATION_TOKEN, 3, renewers=[], max_lifetime=-1, **owner)
    for version in (1, 2):
        both(apis.RENEW_DELEGATION_TOKEN, version, hmac=b"x", renew_period=1)
        both(apis.EXPIRE_DELEGATION_TOKEN, version, hmac=b"x", expiry_time_period=1)
    for version in apis.DESCRIBE_DELEGATION_TOKEN.versions:
        both(apis.DESCRIBE_DELEGATION_TOKEN, version, owners=None)
