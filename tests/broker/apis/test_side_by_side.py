"""The same requests to Apache Kafka 4.3 and Odradek; `side_by_side.py` compares the responses. Intended
differences are noted at their cases."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any
from uuid import UUID

import pytest

from odradek.protocol import apis
from tests.broker.apis.side_by_side import Both, Values, ask, plain, topic
from tests.support.broker_process import BrokerProcess

pytestmark = pytest.mark.interop


def create(both: Both, *topics: Values, version: int = 7, **more: Any) -> None:
    more.setdefault("timeout", 30_000)
    more.setdefault("validate_only", False)
    values = {"topics": topics, **more}

    def question(broker: BrokerProcess) -> Any:
        response = ask(broker, apis.CREATE_TOPICS, version, values)
        if response is not None and not more["validate_only"]:
            _wait_for(broker, [each.name for each in response.topics if not each.error_code])
        return response

    both.each(question, f"CreateTopics {version} {values}")


def _wait_for(broker: BrokerProcess, names: Sequence[str]) -> None:
    """Wait for Kafka's broker, which receives changes after its controller has responded."""
    topics = [named(name, 9) for name in names]
    wanted = {"topics": topics, "allow_auto_topic_creation": False}
    while any(each.error_code for each in ask(broker, apis.METADATA, 9, wanted).topics):
        time.sleep(0.02)


def named(name: str | None, version: int, topic_id: UUID | None = None) -> Values:
    return {"name": name, "topic_id": topic_id} if version >= 10 else {"name": name}


def test_api_versions(both: Both, brokers: Any) -> None:
    software = {"client_software_name": "a", "client_software_version": "1"}
    for version in apis.API_VERSIONS.versions:
        values = software if version >= 3 else {}
        kafka, odradek = (ask(broker, apis.API_VERSIONS, version, values) for broker in brokers)
        assert {tuple(plain(each).items()) for each in odradek.api_keys} <= {
            tuple(plain(each).items()) for each in kafka.api_keys
        }
        if version >= 3:
            assert plain(odradek.supported_features) == plain(kafka.supported_features)
            assert plain(odradek.finalized_features) == plain(kafka.finalized_features)
    both(apis.API_VERSIONS, 4, client_software_name="-", client_software_version="1")


def test_create_topics(both: Both) -> None:
    for wanted in (
        topic("made", 3, 1, [("retention.ms", "1000")]),
        topic("made"),
        *(topic(name) for name in ("a b", "", ".", "..", "x" * 250, "__cluster_metadata")),
        *(topic("bad", count) for count in (0, -2, 10_001)),
        *(topic("bad", 1, factor) for factor in (0, -2, 2)),
        topic("assigned", -1, -1, (), [(0, [1]), (1, [1])]),
        topic("bad", 2, 1, (), [(0, [1])]),
        topic("bad", -1, 1, (), [(0, [1])]),
        topic("bad", 1, -1, (), [(0, [1])]),
        topic("bad", -1, -1, (), [(0, [9])]),
        topic("bad", -1, -1, (), [(0, [])]),
        topic("bad", -1, -1, (), [(0, [1, 1])]),
        topic("bad", -1, -1, (), [(1, [1])]),
        topic("bad", -1, -1, (), [(0, [1]), (0, [1])]),
        *(
            topic("bad", 1, 1, [config])
            for config in (
                ("nonsense", "1"),
                ("", "1"),
                ("retention.ms", "soon"),
                ("retention.ms", None),
                ("segment.bytes", "1000"),
                ("compression.type", "none"),
                ("remote.storage.enable", "true"),
                ("cleanup.policy", "delete,"),
            )
        ),
        topic("bad", 1, 1, [("min.compaction.lag.ms", "5"), ("max.compaction.lag.ms", "4")]),
        topic("c1", 1, 1, [("cleanup.policy", "delete,delete")]),
        topic("c2", 1, 1, [("cleanup.policy", "")]),
        topic("c3", 1, 1, [("cleanup.policy", "compact, delete")]),
        topic("c4", 1, 1, [("retention.ms", "5"), ("retention.ms", "6")]),
        topic("c5", 1, 1, [("internal.segment.bytes", "100")]),
        topic("c6", 1, 1, [("leader.replication.throttled.replicas", "*")]),
        topic("c7", 1, 1, [("local.retention.ms", "5")]),
        topic("di.ff"),
        topic("di_ff"),
    ):
        create(both, wanted)
    create(both, topic("twice"), topic("twice"))
    create(both)
    for timeout in (0, -1):
        create(both, topic("late"), timeout=timeout)
    for version in apis.CREATE_TOPICS.versions:
        defaulted = -1 if version >= 4 else 1
        create(both, topic(f"v{version}", defaulted, defaulted), version=version)
        create(both, topic(f"v{version}"), version=version, validate_only=True)
        create(both, topic(f"w{version}"), version=version, validate_only=True)


def test_metadata(both: Both) -> None:
    create(both, topic("m", 2))
    stranger = UUID(int=9)
    for version in apis.METADATA.versions:
        both(apis.METADATA, version, topics=[named("m", version)])
        both(apis.METADATA, version, topics=[named("m", version)] * 2)
        both(apis.METADATA, version, topics=[])
        if version >= 1:
            both(apis.METADATA, version, topics=None)
        if version >= 4:
            missing = [named(name, version) for name in ("gone", "a b", "__transaction_state")]
            both(apis.METADATA, version, topics=missing, allow_auto_topic_creation=False)
        if version >= 8:
            operations = {"include_topic_authorized_operations": True}
            if version <= 10:
                operations["include_cluster_authorized_operations"] = True
            both(apis.METADATA, version, topics=[named("m", version)], **operations)
        if version >= 10:
            for wanted in (
                [named(None, version, stranger)],
                [named("m", version, stranger)],
                [named("m", version), named(None, version, stranger)],
            ):
                both(apis.METADATA, version, topics=wanted, allow_auto_topic_creation=False)

    def by_id(broker: BrokerProcess) -> Any:
        topic_id = ask(broker, apis.METADATA, 13, {"topics": [named("m", 13)]}).topics[0].topic_id
        wanted = [named(None, 13, topic_id), named(None, 13, stranger)]
        return ask(broker, apis.METADATA, 13, {"topics": wanted})

    both.each(by_id, "Metadata by id")


def test_describe_cluster(both: Both) -> None:
    for version in apis.DESCRIBE_CLUSTER.versions:
        for asked in (True, False):
            both(apis.DESCRIBE_CLUSTER, version, include_cluster_authorized_operations=asked)
        for endpoint_type in (0, 2, 3, -1) if version >= 1 else ():
            both(apis.DESCRIBE_CLUSTER, version, endpoint_type=endpoint_type)


def test_create_partitions(both: Both) -> None:
    def grow(
        *wanted: tuple[str, int, Sequence[Sequence[int]] | None], version: int = 3, **more: Any
    ) -> None:
        topics = [
            {
                "name": name,
                "count": count,
                "assignments": None if given is None else [{"broker_ids": each} for each in given],
            }
            for name, count, given in wanted
        ]
        values = {"timeout": 30_000, "validate_only": False, **more}
        both(apis.CREATE_PARTITIONS, version, topics=topics, **values)

    create(both, topic("p"))
    for version in apis.CREATE_PARTITIONS.versions:
        grow(("p", 2 + version, None), version=version)
    wanted: tuple[str, int, Sequence[Sequence[int]] | None]
    for wanted in (
        ("p", 5, None),
        ("p", 2, None),
        ("p", -1, None),
        ("gone", 2, None),
        ("a b", 2, None),
        ("p", 6, [[1]]),
        ("p", 7, [[9]]),
        ("p", 7, [[]]),
        ("p", 7, [[1, 1]]),
        ("p", 9, [[1]]),
    ):
        grow(wanted)
    grow(("p", 9, None), validate_only=True)
    grow(("p", 9, None), timeout=0)
    grow(("p", 9, None), ("p", 10, None))


def test_describe_topic_partitions(both: Both) -> None:
    create(both, topic("da", 3), topic("db", 2))

    def page(*names: str, cursor: tuple[str, int] | None = None, limit: int = 2000) -> None:
        both(
            apis.DESCRIBE_TOPIC_PARTITIONS,
            0,
            topics=[{"name": name} for name in names],
            response_partition_limit=limit,
            cursor=cursor and {"topic_name": cursor[0], "partition_index": cursor[1]},
        )

    page("da", "db", "gone", "a b")
    page()
    for limit in (-5, 0, 1, 3, 4, 5):
        page("da", "db", limit=limit)
    for cursor in (("da", 2), ("da", -1), ("da", 50), ("db", 0), ("a", 0), ("zz", 0)):
        page("da", "db", cursor=cursor, limit=2)
        page(cursor=cursor, limit=2)
    page("da", "gone", cursor=("gone", 1))
    page("da", "da")


def resource(kind: int, name: str, keys: Sequence[str] | None = None) -> Values:
    return {"resource_type": kind, "resource_name": name, "configuration_keys": keys}


def describe(both: Both, *resources: Values, version: int = 4, synonyms: bool = True) -> None:
    both(apis.DESCRIBE_CONFIGS, version, resources=resources, include_synonyms=synonyms)


EVERYTHING = [(2, "c"), (4, "1"), (4, ""), (32, "g"), (16, "s")]


def test_describe_configs(both: Both) -> None:
    create(both, topic("c", 1, 1, [("retention.ms", "5"), ("internal.segment.bytes", "100")]))
    for version in apis.DESCRIBE_CONFIGS.versions:
        for synonyms in (True, False):
            for kind, name in EVERYTHING:
                describe(both, resource(kind, name), version=version, synonyms=synonyms)
    for kind, name in (
        *((2, name) for name in ("gone", "a b", "")),
        *((4, name) for name in ("2", "x", "-1")),
        *((8, name) for name in ("", "2", "x")),
        (16, ""),
        (32, ""),
        (3, "x"),
        (0, ""),
    ):
        describe(both, resource(kind, name))
    describe(both, resource(4, "1"), resource(3, "x"))
    for keys in ([], ["retention.ms", "nonsense"]):
        describe(both, resource(2, "c", keys))
    describe(both, resource(4, "1", ["node.id", "log.roll.ms"]))


SET, DELETE, APPEND, SUBTRACT = range(4)
NO_SUCH_OPERATION = 9

# The order matters: later cases use earlier ones.
CHANGES: Sequence[tuple[int, str, Sequence[tuple[str, int, str | None]]]] = (
    (2, "i", [("retention.ms", SET, "5"), ("cleanup.policy", APPEND, "compact")]),
    (2, "i", [("nonsense", SET, "1")]),
    (2, "i", [("nonsense", DELETE, None)]),
    (2, "i", [("retention.ms", SET, "soon")]),
    (2, "i", [("retention.ms", SET, None)]),
    (2, "i", [("retention.ms", APPEND, "1")]),
    (2, "i", [("retention.ms", SET, "1"), ("retention.ms", SET, "2")]),
    (2, "i", [("segment.bytes", SET, "10")]),
    (2, "i", []),
    (2, "gone", [("retention.ms", SET, "1")]),
    (2, "gone", [("retention.ms", SET, "soon")]),
    (2, "", [("retention.ms", SET, "1")]),
    (2, "a b", [("retention.ms", SET, "1")]),
    (2, "i", [("cleanup.policy", SUBTRACT, "delete")]),
    (2, "i", [("cleanup.policy", SUBTRACT, "compact")]),
    (2, "i", [("cleanup.policy", APPEND, "delete,compact")]),
    (2, "i", [("cleanup.policy", APPEND, "nonsense")]),
    (2, "i", [("cleanup.policy", DELETE, None)]),
    (2, "i", [("retention.ms", DELETE, "x")]),
    (2, "i", [("min.insync.replicas", SET, "2")]),
    (4, "2", [("log.retention.ms", SET, "1")]),
    (4, "x", [("log.retention.ms", SET, "1")]),
    (4, "-1", [("log.retention.ms", SET, "1")]),
    (4, "1", [("num.partitions", SET, "1")]),
    (4, "1", [("log.retention.ms", SET, "soon")]),
    (4, "1", [("log.retention.ms", SET, None)]),
    (4, "1", [("log.retention.ms", APPEND, "1")]),
    (4, "1", [("log.retention.ms", NO_SUCH_OPERATION, "1")]),
    (4, "1", [("min.insync.replicas", SET, "2")]),
    (4, "", [("min.insync.replicas", DELETE, None)]),
    (4, "", [("listener.name.x.ssl.keystore.type", SET, "PEM")]),
    (4, "1", [("ssl.keystore.type", SET, "PEM")]),
    (4, "", [("ssl.keystore.type", SET, "PEM")]),
    (4, "1", [("log.cleanup.policy", APPEND, "compact")]),
    (4, "1", [("log.cleanup.policy", SUBTRACT, "delete")]),
    (4, "1", [("log.cleanup.policy", DELETE, None)]),
    (4, "", [("log.retention.ms", SET, "7000")]),
    (4, "1", [("log.retention.ms", SET, "8000")]),
    (4, "1", [("somebody.elses", SET, "x")]),
    (4, "1", [("somebody.elses", APPEND, "x")]),
    (4, "1", [("num.io.threads", SET, "16")]),
    (4, "1", [("num.io.threads", SET, "100")]),
    (4, "1", [("num.io.threads", SET, "0")]),
    (4, "1", [("log.local.retention.ms", SET, "-1")]),
    (4, "", [("message.max.bytes", SET, "2000000")]),
    (4, "", [("log.segment.bytes", SET, "100")]),
    (4, "", [("cordoned.log.dirs", SET, "*")]),
    (4, "1", [("cordoned.log.dirs", SET, "/elsewhere")]),
    (4, "1", [("cordoned.log.dirs", SET, "*,/elsewhere")]),
    (4, "1", [("cordoned.log.dirs", SET, "*")]),
    (4, "1", [("cordoned.log.dirs", DELETE, None)]),
    (4, "1", [("leader.replication.throttled.rate", SET, "100")]),
    (4, "1", [("leader.replication.throttled.rate", SET, "-1")]),
    (4, "1", [("max.connections.per.ip.overrides", SET, "bad")]),
    (4, "1", [("max.connections", SET, "0")]),
    (4, "1", [("group.consumer.assignment.interval.ms", SET, "15001")]),
    (4, "", [("group.share.assignment.interval.ms", SET, "15000")]),
    (4, "", [("listener.name.plaintext.max.connections", SET, "0")]),
    (32, "g", [("consumer.session.timeout.ms", SET, "1")]),
    (32, "g", [("consumer.session.timeout.ms", SET, "50000")]),
    (32, "g", [("consumer.heartbeat.interval.ms", SET, "20000")]),
    (32, "g", [("nonsense", SET, "1")]),
    (32, "", [("consumer.session.timeout.ms", SET, "50000")]),
    (16, "s", [("interval.ms", SET, "1")]),
    (16, "s", [("interval.ms", SET, "often")]),
    (16, "s", [("interval.ms", SET, "1000"), ("match", SET, "client_id=x")]),
    (16, "s", [("match", SET, "hat_size=x")]),
    (16, "s", [("match", SET, "client_id")]),
    (16, "s", [("metrics", APPEND, "a")]),
    (16, "s", [("nonsense", SET, "x")]),
    (16, "", [("metrics", SET, "a")]),
    (8, "1", [("root", SET, "LOUD")]),
    (8, "1", [("root", DELETE, None)]),
    (8, "1", [("root", APPEND, "INFO")]),
    (8, "1", [("nobody", SET, "INFO")]),
    (8, "2", [("root", SET, "INFO")]),
    (8, "", [("root", SET, "INFO")]),
    (3, "x", [("y", SET, "z")]),
    (0, "x", [("y", SET, "z")]),
)


def altered(kind: int, name: str, changes: Sequence[tuple[str, int, str | None]]) -> Values:
    return {
        "resource_type": kind,
        "resource_name": name,
        "configs": [
            {"name": key, "config_operation": operation, "value": value}
            for key, operation, value in changes
        ],
    }


def test_alter_configs(both: Both) -> None:
    create(both, topic("i"), topic("c"))
    for change in CHANGES:
        for validate_only in (True, False):
            both(
                apis.INCREMENTAL_ALTER_CONFIGS,
                1,
                resources=[altered(*change)],
                validate_only=validate_only,
            )
    for several in (
        [altered(2, "i", [("retention.ms", SET, "5")])] * 2,
        [altered(*CHANGES[0]), altered(4, "1", [("num.partitions", SET, "1")])],
        [],
    ):
        both(apis.INCREMENTAL_ALTER_CONFIGS, 0, resources=several, validate_only=False)
    both.each(described_soon(both), "DescribeConfigs after increments")

    for version in apis.ALTER_CONFIGS.versions:
        for kind, name, configs in (
            (2, "i", [("retention.ms", "77")]),
            (2, "i", [("nonsense", "77")]),
            (2, "i", [("retention.ms", None)]),
            (2, "i", [("retention.ms", "1"), ("retention.ms", "2")]),
            (2, "gone", [("retention.ms", "1")]),
            (2, "", []),
            (4, "1", [("log.retention.ms", "99")]),
            (4, "1", [("num.partitions", "99")]),
            (4, "", []),
            (4, "1", []),
            (4, "2", []),
            (8, "1", [("root", "INFO")]),
            (32, "g", []),
            (16, "s", []),
        ):
            replaced = {
                "resource_type": kind,
                "resource_name": name,
                "configs": [{"name": key, "value": value} for key, value in configs],
            }
            both(apis.ALTER_CONFIGS, version, resources=[replaced], validate_only=False)
    both.each(described_soon(both), "DescribeConfigs after AlterConfigs")


def described_soon(both: Both) -> Callable[[BrokerProcess], Any]:
    """Descriptions of the resources once Kafka's broker has received the changes, which is when it knows a
    topic that was created after them."""
    marker = f"marker-{id(both)}-{len(both.differences)}"

    def question(broker: BrokerProcess) -> Any:
        wanted = {"topics": [topic(marker)], "timeout": 30_000}
        ask(broker, apis.CREATE_TOPICS, 7, wanted)
        while True:
            metadata = {"topics": [named(marker, 13)], "allow_auto_topic_creation": False}
            response = ask(broker, apis.METADATA, 13, metadata)
            if response.topics[0].error_code.name == "none":
                break
        ask(broker, apis.DELETE_TOPICS, 6, {"topics": [named(marker, 13)], "timeout": 30_000})
        resources = [resource(kind, "i" if name == "c" else name) for kind, name in EVERYTHING]
        values = {"resources": resources, "include_synonyms": True}
        return ask(broker, apis.DESCRIBE_CONFIGS, 4, values)

    return question


def test_list_config_resources(both: Both) -> None:
    both(apis.LIST_CONFIG_RESOURCES, 0)
    for kinds in ([32], [4, 8], [3], [4, 4]):
        both(apis.LIST_CONFIG_RESOURCES, 1, resource_types=kinds)


def test_describe_log_dirs(both: Both) -> None:
    create(both, topic("l", 2))
    for version in apis.DESCRIBE_LOG_DIRS.versions:
        both(apis.DESCRIBE_LOG_DIRS, version, topics=[])
        both(apis.DESCRIBE_LOG_DIRS, version, topics=[{"topic": "gone", "partitions": [0]}])


def test_delete_topics(both: Both) -> None:
    create(both, *(topic(f"x{version}") for version in range(7)))

    def delete(*topics: Values, **more: Any) -> None:
        both(apis.DELETE_TOPICS, 6, topics=topics, **{"timeout": 30_000, **more})

    for version in range(1, 6):
        names = [f"x{version}", "gone"]
        both(apis.DELETE_TOPICS, version, topic_names=names, timeout=30_000)
    stranger = UUID(int=9)
    for topics in (
        [named("gone", 13)],
        [named("a b", 13)],
        [named("", 13)],
        [named(None, 13)],
        [named(None, 13, stranger)],
        [named(None, 13, stranger)] * 2,
        [named("x6", 13, stranger)],
        [named("x6", 13)] * 2,
        [],
    ):
        delete(*topics)
    delete(named("x6", 13), timeout=0)
    delete(named("x6", 13), named("gone", 13))
    delete(named("x6", 13))


def test_acl_requests_without_authorizer(both: Both) -> None:
    anything = {
        "resource_type_filter": 1,
        "resource_name_filter": None,
        "pattern_type_filter": 1,
        "principal_filter": None,
        "host_filter": None,
        "operation": 1,
        "permission_type": 1,
    }
    wanted = {
        "resource_type": 2,
        "resource_name": "x",
        "resource_pattern_type": 3,
        "principal": "User:x",
        "host": "*",
        "operation": 3,
        "permission_type": 3,
    }
    both(apis.DESCRIBE_ACLS, 3, **anything)
    both(apis.CREATE_ACLS, 3, creations=[wanted, wanted])
    both(apis.DELETE_ACLS, 3, filters=[anything, anything])
