"""ACL tests with Apache Kafka 4.3 and Odradek: the same ACLs and requests get the same responses. The
restricted client sends from 127.0.0.2. The client that sets the ACLs, and Kafka's own components, send from
127.0.0.1, which may do everything."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from odradek.broker.security.authorizer_config import STANDARD_AUTHORIZER
from odradek.protocol import apis
from odradek.replication.controller.acls import (
    AclOperation,
    AclResource,
    PatternType,
    Permission,
)
from tests.broker.apis.side_by_side import Both, Values, ask, plain, topic
from tests.support.broker_process import BrokerProcess
from tests.support.odradek_process import start_odradek
from tests.support.real_kafka import start_kafka
from tests.support.waiting import deadline

pytestmark = pytest.mark.interop

CONFIG = {
    "offsets.topic.num.partitions": "1",
    "transaction.state.log.num.partitions": "1",
    "authorizer.class.name": STANDARD_AUTHORIZER,
    "allow.everyone.if.no.acl.found": "true",
}
REFUSED = "127.0.0.2"
TOPIC, GROUP, CLUSTER, TXN = (
    AclResource.TOPIC,
    AclResource.GROUP,
    AclResource.CLUSTER,
    AclResource.TRANSACTIONAL_ID,
)
Op = AclOperation
Brokers = tuple[BrokerProcess, BrokerProcess]


def creation(
    resource: int,
    name: str,
    operation: int,
    *,
    host: str = REFUSED,
    pattern: int = PatternType.LITERAL,
    principal: str = "User:ANONYMOUS",
    permission: int = Permission.ALLOW,
) -> Values:
    return {
        "resource_type": int(resource),
        "resource_name": name,
        "resource_pattern_type": int(pattern),
        "principal": principal,
        "host": host,
        "operation": int(operation),
        "permission_type": int(permission),
    }


def filtered(**changes: Any) -> Values:
    return {
        "resource_type_filter": 1,
        "resource_name_filter": None,
        "pattern_type_filter": 1,
        "principal_filter": None,
        "host_filter": None,
        "operation": 1,
        "permission_type": 1,
        **changes,
    }


EVERYTHING = [
    creation(resource, name, Op.ALL, host="127.0.0.1", principal="User:*")
    for resource, name in ((TOPIC, "*"), (GROUP, "*"), (TXN, "*"), (CLUSTER, "kafka-cluster"))
]
TOPICS = ("readable", "writable", "described", "configured", "hidden", "pre-fixed", "deletable")
ALLOWED = [
    creation(TOPIC, "readable", Op.READ),
    creation(TOPIC, "writable", Op.WRITE),
    creation(TOPIC, "described", Op.DESCRIBE),
    creation(TOPIC, "configured", Op.ALTER_CONFIGS),
    creation(TOPIC, "deletable", Op.DELETE),
    creation(TOPIC, "pre-", Op.ALTER, pattern=PatternType.PREFIXED),
    creation(TOPIC, "new-", Op.CREATE, pattern=PatternType.PREFIXED),
    creation(TOPIC, "new-seen-", Op.DESCRIBE, pattern=PatternType.PREFIXED),
    creation(TOPIC, "new-seen-", Op.DESCRIBE_CONFIGS, pattern=PatternType.PREFIXED),
    creation(GROUP, "readers", Op.READ),
    creation(GROUP, "seen", Op.DESCRIBE),
    creation(GROUP, "doomed", Op.DELETE),
    creation(TXN, "mine", Op.WRITE),
    creation(CLUSTER, "kafka-cluster", Op.IDEMPOTENT_WRITE),
]


@pytest.fixture(scope="module")
def brokers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Brokers]:
    directory = tmp_path_factory.mktemp("acls")
    with (
        start_kafka(directory / "kafka", config=CONFIG) as kafka,
        start_odradek(directory / "odradek", config=CONFIG) as odradek,
    ):
        yield kafka, odradek


@pytest.fixture
def admin(brokers: Brokers) -> Iterator[Both]:
    both = Both(*brokers)
    yield both
    assert not both.differences, "\n".join(both.differences)


def test_create_describe_and_delete_acls(admin: Both, brokers: Brokers) -> None:
    for version in apis.CREATE_ACLS.versions:
        admin(apis.CREATE_ACLS, version, creations=EVERYTHING)
    admin(apis.CREATE_ACLS, 3, creations=[])
    # ANY in an ACL: Odradek returns INVALID_REQUEST, while Kafka fails the whole request.
    for wrong in (
        creation(TOPIC, "", Op.READ),
        creation(CLUSTER, "other", Op.ALTER),
        creation(TOPIC, "x", Op.READ, principal="nobody"),
        creation(TOPIC, "x", 99),
        creation(0, "x", Op.READ),
        creation(TOPIC, "x", Op.READ, principal=""),
        creation(TOPIC, "x", Op.READ, host=""),
        creation(GROUP, "x", Op.CLUSTER_ACTION),
    ):
        admin(apis.CREATE_ACLS, 3, creations=[wrong, creation(GROUP, "found", Op.READ)])
    some = [
        creation(TOPIC, "pay", Op.READ, pattern=PatternType.PREFIXED),
        creation(TOPIC, "payments", Op.WRITE, permission=Permission.DENY),
        creation(TOPIC, "payments", Op.READ, principal="User:bob"),
    ]
    admin(apis.CREATE_ACLS, 2, creations=[*some, *some])
    _settled(brokers, {"resource_name_filter": "payments", "resource_type_filter": TOPIC}, 1)
    for version in apis.DESCRIBE_ACLS.versions:
        for wanted in (
            {},
            {"resource_type_filter": 2, "resource_name_filter": "payments"},
            {"resource_name_filter": "payments", "pattern_type_filter": PatternType.MATCH},
            {"resource_name_filter": "pay", "pattern_type_filter": PatternType.PREFIXED},
            {"principal_filter": "User:bob"},
            {"operation": Op.WRITE},
            {"host_filter": "127.0.0.1"},
            {"permission_type": Permission.DENY},
            {"operation": 99},
        ):
            admin(apis.DESCRIBE_ACLS, version, **filtered(**wanted))
    for version in apis.DELETE_ACLS.versions:
        by_bob = filtered(principal_filter="User:bob")
        admin(apis.DELETE_ACLS, version, filters=[by_bob, filtered(host_filter="nowhere")])
    pays = filtered(resource_name_filter="payments", pattern_type_filter=PatternType.MATCH)
    admin(apis.DELETE_ACLS, 3, filters=[pays, filtered(permission_type=Permission.DENY)])
    admin(apis.DELETE_ACLS, 3, filters=[filtered(resource_type_filter=GROUP, host_filter=REFUSED)])
    admin(apis.DELETE_ACLS, 3, filters=[filtered(operation=0)])
    admin(apis.DELETE_ACLS, 3, filters=[])


def _settled(brokers: Brokers, wanted: Values, at_least: int) -> None:
    """Wait for Kafka's broker, which receives the ACLs from its controller with a delay."""
    for broker in brokers:
        with deadline(10, "the ACLs") as check:
            while len(ask(broker, apis.DESCRIBE_ACLS, 3, filtered(**wanted)).resources) < at_least:
                check()


@pytest.fixture(scope="module")
def guarded(brokers: Brokers) -> Brokers:
    """Both brokers with topics, and with ACLs that restrict 127.0.0.2."""
    topics = [topic(name, 2) for name in TOPICS]
    for broker in brokers:
        ask(broker, apis.CREATE_TOPICS, 7, {"topics": topics, "timeout": 30_000})
        for kind in (0, 1):
            ask(broker, apis.FIND_COORDINATOR, 3, {"key": "readers", "key_type": kind})
        ask(broker, apis.CREATE_ACLS, 3, {"creations": [*EVERYTHING, *ALLOWED]})
    _settled(brokers, {"host_filter": REFUSED, "resource_type_filter": CLUSTER}, 1)
    for broker in brokers:
        with deadline(10, "topics") as check:
            while not _all_there(broker):
                check()
    return brokers


def _all_there(broker: BrokerProcess) -> bool:
    values = {"topics": None, "allow_auto_topic_creation": False}
    found = {each.name for each in ask(broker, apis.METADATA, 9, values).topics}
    return {*TOPICS, "__consumer_offsets", "__transaction_state"} <= found


@pytest.fixture
def client(guarded: Brokers) -> Iterator[Both]:
    both = Both(*guarded, source=REFUSED)
    yield both
    assert not both.differences, "\n".join(both.differences)


def test_metadata_hides_unauthorized_topics(client: Both) -> None:
    names = [*TOPICS, "new-none", "gone", "a b"]
    for version in (0, 1, 7, 8, 9):
        more: Values = {"allow_auto_topic_creation": False} if version >= 4 else {}
        if version >= 8:
            more["include_topic_authorized_operations"] = True
            more["include_cluster_authorized_operations"] = True
        if version >= 4:
            client(apis.METADATA, version, topics=[{"name": each} for each in names], **more)
        client(apis.METADATA, version, topics=None if version else [], **more)
    client(apis.METADATA, 9, topics=[{"name": "gone"}, {"name": "__transaction_state"}])
    client(apis.DESCRIBE_CLUSTER, 2, include_cluster_authorized_operations=True)


def test_metadata_by_id_hides_unauthorized_topics(client: Both, guarded: Brokers) -> None:
    responses = []
    for broker in guarded:
        values = {"topics": None, "allow_auto_topic_creation": False}
        ids = {each.name: each.topic_id for each in ask(broker, apis.METADATA, 12, values).topics}
        asked = [{"name": None, "topic_id": ids[name]} for name in ("hidden", "readable")]
        values = {"topics": asked, "allow_auto_topic_creation": False}
        responses.append(plain(ask(broker, apis.METADATA, 12, values, REFUSED)))
    assert responses[0] == responses[1]


def test_describe_topic_partitions_hides_unauthorized_topics(client: Both) -> None:
    for names in ([], [*TOPICS, "gone"], ["hidden"]):
        client(
            apis.DESCRIBE_TOPIC_PARTITIONS,
            0,
            topics=[{"name": name} for name in names],
            response_partition_limit=2000,
            cursor=None,
        )


def test_topic_operations_are_authorized(client: Both) -> None:
    for name in ("new-1", "new-seen-1", "other", "__cluster_metadata"):
        client(apis.CREATE_TOPICS, 7, topics=[topic(name)], timeout=30_000, validate_only=True)
    twice = [topic("other"), topic("other"), topic("new-2"), topic("another")]
    client(apis.CREATE_TOPICS, 5, topics=twice, timeout=30_000, validate_only=True)
    grown = [{"name": name, "count": 3, "assignments": None} for name in ("pre-fixed", "hidden")]
    client(apis.CREATE_PARTITIONS, 3, topics=grown, timeout=30_000, validate_only=True)
    names = ["hidden", "readable", "gone"]
    client(apis.DELETE_TOPICS, 5, topic_names=names, timeout=30_000)
    client(
        apis.DELETE_TOPICS,
        6,
        topics=[{"name": name, "topic_id": None} for name in [*names, "deletable"]],
        timeout=30_000,
    )


def test_produce_and_fetch_are_authorized(client: Both) -> None:
    for version in (3, 9):
        for name in ("readable", "hidden", "gone"):
            client(
                apis.PRODUCE,
                version,
                transactional_id=None,
                acks=1,
                timeout=1000,
                topic_data=[{"name": name, "partition_data": [{"index": 7, "records": b"x"}]}],
            )
    for name in TOPICS:
        client(
            apis.LIST_OFFSETS,
            5,
            replica_id=-1,
            isolation_level=0,
            topics=[
                {
                    "name": name,
                    "partitions": [
                        {"partition_index": 0, "current_leader_epoch": -1, "timestamp": -1}
                    ],
                }
            ],
        )
        client(
            apis.FETCH,
            11,
            replica_id=-1,
            max_wait=0,
            min_bytes=0,
            max_bytes=1000,
            isolation_level=0,
            session_id=0,
            session_epoch=-1,
            topics=[
                {
                    "topic": name,
                    "partitions": [
                        {
                            "partition": 0,
                            "current_leader_epoch": -1,
                            "fetch_offset": 0,
                            "log_start_offset": -1,
                            "partition_max_bytes": 1000,
                        }
                    ],
                }
            ],
            forgotten_topics_data=[],
            rack_id="",
        )
        client(
            apis.OFFSET_FOR_LEADER_EPOCH,
            4,
            replica_id=-1,
            topics=[
                {
                    "topic": name,
                    "partitions": [{"partition": 0, "current_leader_epoch": -1, "leader_epoch": 0}],
                }
            ],
        )
        client(
            apis.DELETE_RECORDS,
            2,
            topics=[{"name": name, "partitions": [{"partition_index": 0, "offset": 0}]}],
            timeout=1000,
        )


def test_group_operations_are_authorized(client: Both) -> None:
    groups = ("readers", "seen", "doomed", "hidden")
    for group in groups:
        client(apis.FIND_COORDINATOR, 3, key=group, key_type=0)
        member = {"group_id": group, "member_id": "m"}
        client(apis.HEARTBEAT, 4, generation_id=1, **member)
        client(
            apis.JOIN_GROUP,
            5,
            session_timeout=10_000,
            rebalance_timeout=10_000,
            group_instance_id=None,
            protocol_type="consumer",
            protocols=[{"name": "range", "metadata": b""}],
            **member,
        )
        client(apis.SYNC_GROUP, 3, generation_id=1, assignments=[], **member)
        client(
            apis.LEAVE_GROUP,
            3,
            group_id=group,
            members=[{"member_id": "m", "group_instance_id": None}],
        )
        for version in (2, 7, 9):
            client(
                apis.OFFSET_COMMIT,
                version,
                generation_id_or_member_epoch=-1,
                retention_time=-1,
                topics=[
                    {
                        "name": name,
                        "partitions": [
                            {
                                "partition_index": 0,
                                "committed_offset": 5,
                                "committed_leader_epoch": -1,
                                "committed_metadata": "",
                            }
                        ],
                    }
                    for name in ("readable", "hidden", "writable", "gone")
                ],
                **{**member, "member_id": "", "group_instance_id": None},
            )
        for version in (1, 5, 7):
            asked = [{"name": name, "partition_indexes": [0]} for name in ("readable", "hidden")]
            client(apis.OFFSET_FETCH, version, group_id=group, topics=asked)
        client(
            apis.OFFSET_DELETE,
            0,
            group_id=group,
            topics=[
                {"name": name, "partitions": [{"partition_index": 0}]}
                for name in ("readable", "hidden")
            ],
        )
    client(
        apis.OFFSET_FETCH,
        9,
        groups=[
            {"group_id": group, "member_id": None, "member_epoch": -1, "topics": None}
            for group in groups
        ],
    )
    client(apis.DESCRIBE_GROUPS, 6, groups=groups, include_authorized_operations=True)
    client(apis.LIST_GROUPS, 5)
    client(apis.DELETE_GROUPS, 2, groups_names=groups)
    for txn in ("mine", "hidden"):
        client(apis.FIND_COORDINATOR, 4, key_type=1, coordinator_keys=[txn])


def test_config_and_cluster_requests_are_authorized(client: Both) -> None:
    resources = [(2, "configured"), (2, "hidden"), (2, "readable"), (4, "1"), (16, "s"), (32, "g")]
    for kind, name in resources:
        resource = {"resource_type": kind, "resource_name": name}
        client(
            apis.DESCRIBE_CONFIGS,
            4,
            resources=[{**resource, "configuration_keys": ["retention.ms"]}],
        )
        client(
            apis.INCREMENTAL_ALTER_CONFIGS,
            1,
            resources=[{**resource, "configs": []}],
            validate_only=True,
        )
        client(apis.ALTER_CONFIGS, 2, resources=[{**resource, "configs": []}], validate_only=True)
    logger = {"name": "root", "config_operation": 0, "value": "INFO"}
    client(
        apis.INCREMENTAL_ALTER_CONFIGS,
        1,
        resources=[{"resource_type": 8, "resource_name": "1", "configs": [logger]}],
        validate_only=True,
    )
    client(apis.LIST_CONFIG_RESOURCES, 1, resource_types=[])
    client(apis.DESCRIBE_LOG_DIRS, 4, topics=None)
    client(apis.DESCRIBE_ACLS, 3, **filtered())
    client(apis.CREATE_ACLS, 3, creations=ALLOWED[:2])
    client(apis.DELETE_ACLS, 3, filters=[filtered()])


def test_consumer_group_requests_are_authorized(client: Both) -> None:
    for group, topics in (("hidden", ["readable"]), ("readers", ["readable", "hidden"])):
        client(
            apis.CONSUMER_GROUP_HEARTBEAT,
            1,
            group_id=group,
            member_id="m",
            member_epoch=0,
            instance_id=None,
            rack_id=None,
            rebalance_timeout=1000,
            subscribed_topic_names=topics,
            subscribed_topic_regex=None,
            server_assignor=None,
            topic_partitions=[],
        )
    client(
        apis.CONSUMER_GROUP_DESCRIBE,
        1,
        group_ids=["hidden", "seen"],
        include_authorized_operations=True,
    )


def test_transactional_requests_are_authorized(client: Both) -> None:
    for txn in ("hidden", "mine"):
        client(
            apis.TXN_OFFSET_COMMIT,
            3,
            transactional_id=txn,
            group_id="seen",
            producer_id=1,
            producer_epoch=0,
            generation_id=-1,
            member_id="",
            group_instance_id=None,
            topics=[
                {
                    "name": "readable",
                    "partitions": [
                        {
                            "partition_index": 0,
                            "committed_offset": 1,
                            "committed_leader_epoch": -1,
                            "committed_metadata": "",
                        }
                    ],
                }
            ],
        )
    for version in (4, 5):
        client(
            apis.INIT_PRODUCER_ID,
            version,
            transactional_id="hidden",
            transaction_timeout=1000,
            producer_id=-1,
            producer_epoch=-1,
        )
    for txn in ("hidden", "mine"):
        producer = {"transactional_id": txn, "producer_id": 1, "producer_epoch": 0}
        both_topics = [{"name": name, "partitions": [0]} for name in ("writable", "hidden")]
        for version in (0, 3):
            client(
                apis.ADD_PARTITIONS_TO_TXN,
                version,
                **{f"v3_and_below_{key}": value for key, value in producer.items()},
                v3_and_below_topics=both_topics,
            )
        for group in ("readers", "hidden"):
            client(apis.ADD_OFFSETS_TO_TXN, 3, group_id=group, **producer)
        client(apis.END_TXN, 3, committed=True, **producer)
    client(apis.DESCRIBE_TRANSACTIONS, 0, transactional_ids=["hidden", "mine"])
    client(
        apis.LIST_TRANSACTIONS,
        1,
        state_filters=[],
        producer_id_filters=[],
        duration_filter=-1,
    )
    batched = {**producer, "verify_only": True, "topics": both_topics}
    client(apis.ADD_PARTITIONS_TO_TXN, 4, transactions=[batched])
    producers = [{"name": each, "partition_indexes": [0]} for each in ("readable", "hidden")]
    client(apis.DESCRIBE_PRODUCERS, 0, topics=producers)
    marker = {
        "producer_id": 1,
        "producer_epoch": 0,
        "transaction_result": False,
        "topics": [{"name": "hidden", "partition_indexes": [0]}],
        "coordinator_epoch": 0,
    }
    client(apis.WRITE_TXN_MARKERS, 1, markers=[marker])


def test_transaction_coordinator_requests_are_authorized(client: Both, guarded: Brokers) -> None:
    for broker in guarded:
        with deadline(10, "the coordinator") as check:
            while _describe_error(broker, "mine") != "transactional_id_not_found":
                check()
    partitions = [{"name": name, "partitions": [0, 7]} for name in ("writable", "hidden", "gone")]
    internal = [{"name": "__transaction_state", "partitions": [0]}]
    for name in ("mine", "other"):
        who = {"transactional_id": name, "producer_id": 7_000_000, "producer_epoch": 0}
        # An authorized client gets the next error, so that a producer id cannot be invented.
        client(apis.INIT_PRODUCER_ID, 5, **who, transaction_timeout=-1)
        for topics in (partitions, partitions[:1], [{"name": "writable", "partitions": [0]}]):
            old = {f"v3_and_below_{key}": value for key, value in who.items()}
            client(apis.ADD_PARTITIONS_TO_TXN, 3, **old, v3_and_below_topics=topics + internal)
            client(apis.ADD_PARTITIONS_TO_TXN, 3, **old, v3_and_below_topics=topics)
            transaction = {**who, "verify_only": False, "topics": topics}
            client(apis.ADD_PARTITIONS_TO_TXN, 5, transactions=[transaction])
        for group in ("readers", "hidden"):
            client(apis.ADD_OFFSETS_TO_TXN, 4, **who, group_id=group)
        for version in (4, 5):
            client(apis.END_TXN, version, **who, committed=True)
    client(apis.DESCRIBE_TRANSACTIONS, 0, transactional_ids=["mine", "other"])
    client(apis.LIST_TRANSACTIONS, 2, state_filters=[], producer_id_filters=[])


def _describe_error(broker: BrokerProcess, transactional_id: str) -> str:
    values = {"transactional_ids": [transactional_id]}
    response = ask(broker, apis.DESCRIBE_TRANSACTIONS, 0, values)
    (state,) = response.transaction_states
    name: str = state.error_code.name
    return name


def test_cluster_operations_are_authorized(client: Both) -> None:
    client(apis.DESCRIBE_USER_SCRAM_CREDENTIALS, 0, users=[{"name": "x"}])
    credential = {"name": "x", "mechanism": 1}
    client(apis.ALTER_USER_SCRAM_CREDENTIALS, 0, deletions=[credential], upsertions=[])
    client(apis.DESCRIBE_CLIENT_QUOTAS, 1, components=[], strict=False)
    moved = [{"topic": "readable", "partitions": [0]}]
    for version in apis.ELECT_LEADERS.versions:
        more = {"election_type": 0} if version else {}
        client(apis.ELECT_LEADERS, version, topic_partitions=moved, timeout=1000, **more)
    placed = [{"name": "readable", "partitions": [{"partition_index": 0, "replicas": [1]}]}]
    client(apis.ALTER_PARTITION_REASSIGNMENTS, 0, timeout=1000, topics=placed)
    client(apis.LIST_PARTITION_REASSIGNMENTS, 0, timeout=1000, topics=None)
    feature = {"feature": "group.version", "max_version_level": 1, "upgrade_type": 1}
    client(apis.UPDATE_FEATURES, 2, timeout=1000, feature_updates=[feature], validate_only=True)
    quorum = [{"topic_name": "__cluster_metadata", "partitions": [{"partition_index": 0}]}]
    for version in apis.DESCRIBE_QUORUM.versions:
        client(apis.DESCRIBE_QUORUM, version, topics=quorum)
    client(apis.UNREGISTER_BROKER, 0, broker_id=9)
