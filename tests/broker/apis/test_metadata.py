from __future__ import annotations

from types import SimpleNamespace
from typing import Any
from uuid import UUID

import pytest

from odradek.broker.security.request_authorization import NOT_REQUESTED
from odradek.protocol import apis
from odradek.protocol.topics import TopicPartition
from odradek.replication.controller.broker_fencing import fence_broker


def names(*topics: str, version: int = 13) -> list[dict[str, Any]]:
    extra = {"topic_id": None} if version >= 10 else {}
    return [{"name": topic, **extra} for topic in topics]


@pytest.mark.parametrize("version", apis.METADATA.versions)
async def test_metadata_of_topic_in_all_versions(client: Any, version: int) -> None:
    created = await client.create("t", partitions=2)
    response = await client.ask(apis.METADATA, version, topics=names("t", version=version))
    (broker,) = response.brokers
    assert (broker.node_id, broker.host, broker.port) == (1, "host-1", 9092)
    (topic,) = response.topics
    assert (topic.error_code.name, topic.name) == ("none", "t")
    assert [each.partition_index for each in topic.partitions] == [0, 1]
    for partition in topic.partitions:
        assert partition.error_code.name == "none"
        assert partition.leader_id == 1
        assert partition.replica_nodes == partition.isr_nodes == (1,)
        assert getattr(partition, "leader_epoch", 0) == 0
        assert getattr(partition, "offline_replicas", ()) == ()
    if version >= 1:
        assert response.controller_id == 1
        assert broker.rack == "rack-1"
        assert not topic.is_internal
    if version >= 2:
        assert response.cluster_id == client.broker.cluster_id
    if version >= 10:
        assert topic.topic_id == created.topic_id
    if 8 <= version <= 10:
        assert response.cluster_authorized_operations == NOT_REQUESTED
    if version >= 8:
        assert topic.topic_authorized_operations == NOT_REQUESTED
    if version >= 13:
        assert response.error_code.name == "none"


async def test_metadata_of_all_topics(client: Any) -> None:
    await client.create("a")
    await client.create("b")

    async def found(version: int, topics: Any) -> set[str]:
        response = await client.ask(apis.METADATA, version, topics=topics)
        return {topic.name for topic in response.topics}

    assert await found(0, []) == {"a", "b"}  # in version 0 an empty list means all topics
    assert await found(1, []) == set()
    assert await found(1, None) == {"a", "b"}
    assert await found(13, []) == set()
    assert await found(13, None) == {"a", "b"}


async def test_duplicate_topics_are_returned_once(client: Any) -> None:
    await client.create("t")
    response = await client.ask(apis.METADATA, 13, topics=names("t", "t"))
    assert len(response.topics) == 1


async def test_metadata_by_topic_id(client: Any) -> None:
    created = await client.create("t")
    stranger = UUID(int=77)
    response = await client.ask(
        apis.METADATA,
        12,
        topics=[
            {"name": None, "topic_id": created.topic_id},
            {"name": None, "topic_id": stranger},
        ],
        include_topic_authorized_operations=True,
    )
    known, unknown = response.topics
    assert (known.error_code.name, known.name) == ("none", "t")
    assert known.topic_authorized_operations == 3576
    assert (unknown.error_code.name, unknown.name) == ("unknown_topic_id", None)
    assert unknown.topic_id == stranger


@pytest.mark.parametrize("version", [10, 11])
async def test_ids_and_null_names_are_rejected_in_versions_10_and_11(
    client: Any, version: int
) -> None:
    created = await client.create("t")
    by_id = [{"name": "t", "topic_id": created.topic_id}]
    response = await client.ask(apis.METADATA, version, topics=by_id)
    assert [(t.name, t.error_code.name) for t in response.topics] == [("t", "invalid_request")]
    response = await client.ask(apis.METADATA, version, topics=[{"name": None, "topic_id": None}])
    assert [(t.name, t.error_code.name) for t in response.topics] == [("", "invalid_request")]


async def test_missing_topics_are_created(client: Any) -> None:
    """As in Kafka, the response does not have the topics that it creates."""
    for version in (13, 3):  # version 3 cannot decline the creation
        asked = names(f"new-{version}", version=version)
        response = await client.ask(apis.METADATA, version, topics=asked)
        assert response.topics[0].error_code.name == "unknown_topic_or_partition"
        response = await client.ask(apis.METADATA, version, topics=asked)
        (topic,) = response.topics
        assert topic.error_code.name == "none"
        assert [partition.leader_id for partition in topic.partitions] == [1]


async def test_missing_topics_are_not_created_if_client_declines(client: Any) -> None:
    response = await client.ask(
        apis.METADATA, 13, topics=names("new", "no topic"), allow_auto_topic_creation=False
    )
    assert [topic.error_code.name for topic in response.topics] == [
        "unknown_topic_or_partition",
        "invalid_topic_exception",
    ]
    assert [topic.partitions for topic in response.topics] == [(), ()]
    assert client.broker.metadata.image.topics_by_name == {}


async def test_invalid_topic_names_are_not_created(client: Any) -> None:
    response = await client.ask(apis.METADATA, 13, topics=names("a/b", "x" * 250, "..", "ok"))
    assert [topic.error_code.name for topic in response.topics] == [
        "invalid_topic_exception",
        "invalid_topic_exception",
        "invalid_topic_exception",
        "unknown_topic_or_partition",
    ]
    assert list(client.broker.metadata.image.topics_by_name) == ["ok"]


class TestWithoutAutoCreation:
    @pytest.fixture
    def configs(self) -> dict[str, str]:
        return {"auto.create.topics.enable": "false"}

    async def test_missing_topics_are_unknown(self, client: Any) -> None:
        response = await client.ask(apis.METADATA, 13, topics=names("new"))
        assert response.topics[0].error_code.name == "unknown_topic_or_partition"


class TestWithTooFewBrokers:
    @pytest.fixture
    def configs(self) -> dict[str, str]:
        return {"default.replication.factor": "3", "num.partitions": "4"}

    async def test_topic_that_cannot_be_created_is_unknown(
        self, client: Any, caplog: pytest.LogCaptureFixture
    ) -> None:
        response = await client.ask(apis.METADATA, 13, topics=names("new"))
        assert response.topics[0].error_code.name == "unknown_topic_or_partition"
        assert (
            "auto-creation of 1 topics failed; first error, of new: Unable to replicate"
            in caplog.text
        )


async def test_internal_topics_are_created_with_their_configs(client: Any) -> None:
    for _ in range(2):  # the first response does not have the topic that it creates
        response = await client.ask(apis.METADATA, 13, topics=names("__consumer_offsets"))
    (topic,) = response.topics
    assert topic.is_internal
    assert len(topic.partitions) == 50
    configs = client.broker.metadata.image.topic_configs("__consumer_offsets")
    assert configs["cleanup.policy"] == "compact"


async def test_metadata_has_authorized_operations_of_cluster(client: Any) -> None:
    response = await client.ask(
        apis.METADATA, 10, topics=[], include_cluster_authorized_operations=True
    )
    assert response.cluster_authorized_operations == 8096


async def test_broker_without_listener_of_client_is_left_out(client: Any) -> None:
    """Its partitions have no leader for the client."""
    client.broker.register(2, "OTHER")
    response = await client.ask(
        apis.CREATE_TOPICS,
        7,
        topics=[
            {
                "name": "t",
                "num_partitions": -1,
                "replication_factor": -1,
                "assignments": [{"partition_index": 0, "broker_ids": [2, 1]}],
                "configs": [],
            }
        ],
        timeout=1000,
    )
    assert response.topics[0].error_code.name == "none"

    async def partition(version: int) -> Any:
        response = await client.ask(apis.METADATA, version, topics=names("t", version=version))
        assert [broker.node_id for broker in response.brokers] == [1]
        return response.topics[0].partitions[0]

    newest = await partition(13)
    assert (newest.error_code.name, newest.leader_id) == ("listener_not_found", -1)
    assert newest.offline_replicas == (2,)
    assert newest.replica_nodes == (2, 1)
    assert (await partition(5)).error_code.name == "leader_not_available"
    assert (await partition(0)).replica_nodes == (1,)


async def test_fenced_broker_is_left_out(client: Any) -> None:
    client.broker.register(2)
    await client.create("t", partitions=2)
    image = client.broker.metadata.image
    client.broker.metadata.decide(lambda image: fence_broker(image, 2, image.brokers[2].epoch))
    response = await client.ask(apis.METADATA, 13, topics=names("t"))
    assert [broker.node_id for broker in response.brokers] == [1]
    by_leader = {
        index: partition.replicas
        for index, partition in image.topics_by_name["t"].partitions.items()
    }
    for partition in response.topics[0].partitions:
        if by_leader[partition.partition_index] == (2,):
            assert partition.error_code.name == "leader_not_available"
            assert (partition.leader_id, partition.offline_replicas) == (-1, (2,))
        else:
            assert partition.error_code.name == "none"


async def test_partition_in_offline_directory_has_offline_replica(client: Any) -> None:
    await client.create("t", partitions=2)
    client.broker.logs = SimpleNamespace(offline=(TopicPartition("t", 1),))
    response = await client.ask(apis.METADATA, 13, topics=names("t"))
    served, lost = response.topics[0].partitions
    assert served.error_code.name == "none"
    assert (lost.error_code.name, lost.leader_id) == ("leader_not_available", -1)
    assert lost.offline_replicas == (1,)


@pytest.mark.parametrize("version", apis.DESCRIBE_CLUSTER.versions)
async def test_describe_cluster(client: Any, version: int) -> None:
    client.broker.register(2)
    client.broker.metadata.decide(lambda image: fence_broker(image, 2, image.brokers[2].epoch))
    response = await client.ask(
        apis.DESCRIBE_CLUSTER, version, include_cluster_authorized_operations=True
    )
    assert response.error_code.name == "none"
    assert response.cluster_id == client.broker.cluster_id
    assert response.controller_id == 1
    assert [broker.broker_id for broker in response.brokers] == [1]
    assert response.cluster_authorized_operations == 8096
    if version >= 2:
        response = await client.ask(apis.DESCRIBE_CLUSTER, 2, include_fenced_brokers=True)
        assert [(b.broker_id, b.is_fenced) for b in response.brokers] == [(1, False), (2, True)]
        assert response.cluster_authorized_operations == NOT_REQUESTED


@pytest.mark.parametrize(
    ("endpoint_type", "code"),
    [(2, "mismatched_endpoint_type"), (7, "unsupported_endpoint_type")],
)
async def test_describe_cluster_of_other_endpoint_type_fails(
    client: Any, endpoint_type: int, code: str
) -> None:
    """KIP-919."""
    response = await client.ask(apis.DESCRIBE_CLUSTER, 1, endpoint_type=endpoint_type)
    assert response.error_code.name == code
    assert (response.controller_id, response.brokers) == (-1, ())
