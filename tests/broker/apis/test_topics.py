from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any
from uuid import UUID

import pytest
import trio
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from odradek.protocol import apis


def topic(
    name: str,
    partitions: int = 1,
    replication_factor: int = 1,
    configs: Mapping[str, str | None] | None = None,
    assignments: Sequence[tuple[int, Sequence[int]]] = (),
) -> dict[str, Any]:
    return {
        "name": name,
        "num_partitions": partitions,
        "replication_factor": replication_factor,
        "assignments": [
            {"partition_index": index, "broker_ids": replicas} for index, replicas in assignments
        ],
        "configs": [{"name": key, "value": value} for key, value in (configs or {}).items()],
    }


async def create(client: Any, *topics: Any, version: int = 7, **more: Any) -> list[Any]:
    more.setdefault("timeout", 30_000)
    response = await client.ask(apis.CREATE_TOPICS, version, topics=topics, **more)
    return list(response.topics)


def codes(responses: Sequence[Any]) -> list[tuple[str | None, str]]:
    return [(each.name, each.error_code.name) for each in responses]


@pytest.mark.parametrize("version", apis.CREATE_TOPICS.versions)
async def test_create_topics_in_all_versions(client: Any, version: int) -> None:
    defaulted = -1 if version >= 4 else 1
    (created,) = await create(
        client, topic("t", defaulted, defaulted, {"retention.ms": "5"}), version=version
    )
    assert (created.error_code.name, created.error_message) == ("none", None)
    image = client.broker.metadata.image
    assert image.topics_by_name["t"].partitions[0].leader == 1
    assert image.topic_configs("t") == {"retention.ms": "5"}
    if version >= 5:
        assert (created.num_partitions, created.replication_factor) == (1, 1)
        configs = {each.name: (each.value, each.config_source) for each in created.configs}
        assert configs["retention.ms"] == ("5", 1)
        assert configs["segment.bytes"] == ("1073741824", 5)
        assert len(configs) == 33
    if version >= 7:
        assert created.topic_id == image.topics_by_name["t"].id


async def test_created_topic_has_leader_in_metadata_at_once(client: Any) -> None:
    await create(client, topic("t", 3))
    response = await client.ask(apis.METADATA, 13, topics=[{"name": "t", "topic_id": None}])
    assert [each.leader_id for each in response.topics[0].partitions] == [1, 1, 1]


async def test_validate_only_creates_no_topic(client: Any) -> None:
    (created,) = await create(client, topic("t"), validate_only=True)
    assert created.error_code.name == "none"
    assert len(created.configs) == 33
    assert client.broker.metadata.image.topics_by_name == {}


@pytest.mark.parametrize(
    ("wanted", "code"),
    [
        (topic("a b"), "invalid_topic_exception"),
        (topic(""), "invalid_topic_exception"),
        (topic("there"), "topic_already_exists"),
        (topic("the.re"), "none"),
        (topic("__cluster_metadata"), "invalid_request"),
        (topic("t", 0), "invalid_partitions"),
        (topic("t", -2), "invalid_partitions"),
        (topic("t", 1, 0), "invalid_replication_factor"),
        (topic("t", 1, 2), "invalid_replication_factor"),
        (topic("t", -1, -1, assignments=[(0, [1]), (1, [1])]), "none"),
        (topic("t", 2, 1, assignments=[(0, [1])]), "invalid_request"),
        (topic("t", -1, -1, assignments=[(0, [9])]), "invalid_replica_assignment"),
        (topic("t", -1, -1, assignments=[(1, [1])]), "invalid_replica_assignment"),
        (topic("t", -1, -1, assignments=[(0, [1]), (0, [1])]), "invalid_replica_assignment"),
        (topic("t", configs={"nonsense": "1"}), "invalid_config"),
        (topic("t", configs={"retention.ms": "soon"}), "invalid_config"),
        (topic("t", configs={"retention.ms": None}), "invalid_config"),
        (topic("t", configs={"segment.bytes": "1000"}), "invalid_config"),
        (topic("t", configs={"internal.segment.bytes": "1000"}), "none"),
    ],
)
async def test_create_topics_validates_topics(
    client: Any, wanted: dict[str, Any], code: str
) -> None:
    await client.create("there")
    (created,) = await create(client, wanted)
    assert codes([created]) == [(wanted["name"], code)]
    if code != "none":
        assert created.error_message
        assert created.configs == ()  # never null
        assert (created.num_partitions, created.replication_factor) == (-1, -1)


async def test_invalid_topic_does_not_affect_others(client: Any) -> None:
    responses = await create(client, topic("a"), topic("b b"), topic("c"), topic("d"), topic("d"))
    assert dict(codes(responses)) == {
        "a": "none",
        "b b": "invalid_topic_exception",
        "c": "none",
        "d": "invalid_request",
    }
    assert set(client.broker.metadata.image.topics_by_name) == {"a", "c"}


@pytest.mark.parametrize("timeout", [0, -1])
async def test_zero_timeout_starts_no_change(client: Any, timeout: int) -> None:
    await client.create("there")
    performed = client.broker.metadata.performed
    assert codes(await create(client, topic("t"), timeout=timeout)) == [("t", "request_timed_out")]
    assert await delete_codes(client, 6, by_name("there"), timeout=timeout) == [
        ("there", "request_timed_out")
    ]
    assert await grow_codes(client, more("there", 2), timeout=timeout) == [
        ("there", "request_timed_out")
    ]
    assert client.broker.metadata.performed == performed


async def test_late_change_times_out(client: Any, autojump_clock: Any) -> None:
    async def wait(operation: Any) -> None:
        await trio.sleep_forever()

    client.broker.metadata.perform = wait
    assert codes(await create(client, topic("t"), topic("t"), timeout=500)) == [
        ("t", "request_timed_out")
    ]


# DeleteTopics


def by_name(name: str | None) -> dict[str, Any]:
    return {"name": name, "topic_id": None}


def by_id(topic_id: UUID) -> dict[str, Any]:
    return {"name": None, "topic_id": topic_id}


async def delete_codes(
    client: Any, version: int, *topics: Any, timeout: int = 1000
) -> list[tuple[str | None, str]]:
    key = "topics" if version >= 6 else "topic_names"
    values = {key: topics, "timeout": timeout}
    response = await client.ask(apis.DELETE_TOPICS, version, **values)
    return codes(response.responses)


@pytest.mark.parametrize("version", apis.DELETE_TOPICS.versions)
async def test_delete_topics_in_all_versions(client: Any, version: int) -> None:
    await client.create("t")
    wanted = [by_name("t"), by_name("gone")] if version >= 6 else ["t", "gone"]
    assert sorted(await delete_codes(client, version, *wanted)) == [
        ("gone", "unknown_topic_or_partition"),
        ("t", "none"),
    ]
    assert client.broker.metadata.image.topics_by_name == {}


async def test_delete_topics_by_id(client: Any) -> None:
    created = await client.create("t")
    response = await client.ask(
        apis.DELETE_TOPICS, 6, topics=[by_id(created.topic_id), by_id(UUID(int=5))], timeout=1000
    )
    found = {each.topic_id: (each.name, each.error_code.name) for each in response.responses}
    assert found == {
        created.topic_id: ("t", "none"),
        UUID(int=5): (None, "unknown_topic_id"),
    }


async def test_delete_topics_with_name_and_id_is_rejected(client: Any) -> None:
    created = await client.create("t")
    assert await delete_codes(client, 6, by_name(None)) == [(None, "invalid_request")]
    both = {"name": "t", "topic_id": created.topic_id}
    assert await delete_codes(client, 6, both) == [("t", "invalid_request")]
    assert await delete_codes(client, 6, by_name("t"), by_name("t")) == [("t", "invalid_request")]
    twice = [by_name("t"), by_id(created.topic_id)]
    assert await delete_codes(client, 6, *twice) == [("t", "invalid_request")]
    assert "t" in client.broker.metadata.image.topics_by_name


class TestWithoutDeletion:
    @pytest.fixture
    def configs(self) -> dict[str, str]:
        return {"delete.topic.enable": "false"}

    async def test_delete_topic_enable_false_rejects_deletion(self, client: Any) -> None:
        await client.create("t")
        assert await delete_codes(client, 2, "t") == [("t", "invalid_request")]
        assert await delete_codes(client, 3, "t") == [("t", "topic_deletion_disabled")]
        assert "t" in client.broker.metadata.image.topics_by_name


# CreatePartitions


def more(
    name: str, count: int, assignments: Sequence[Sequence[int]] | None = None
) -> dict[str, Any]:
    given = None if assignments is None else [{"broker_ids": each} for each in assignments]
    return {"name": name, "count": count, "assignments": given}


async def grow_codes(
    client: Any, *topics: Any, version: int = 3, timeout: int = 1000, validate_only: bool = False
) -> list[tuple[str | None, str]]:
    response = await client.ask(
        apis.CREATE_PARTITIONS, version, topics=topics, timeout=timeout, validate_only=validate_only
    )
    return codes(response.results)


@pytest.mark.parametrize("version", apis.CREATE_PARTITIONS.versions)
async def test_create_partitions_in_all_versions(client: Any, version: int) -> None:
    await client.create("t")
    assert await grow_codes(client, more("t", 3), version=version) == [("t", "none")]
    assert len(client.broker.metadata.image.topics_by_name["t"].partitions) == 3


@pytest.mark.parametrize(
    ("wanted", "code"),
    [
        (more("gone", 5), "unknown_topic_or_partition"),
        (more("t", 2), "invalid_partitions"),
        (more("t", 1), "invalid_partitions"),
        (more("t", -1), "invalid_partitions"),
        (more("t", 3, [[1]]), "none"),
        (more("t", 4, [[1]]), "invalid_replica_assignment"),
        (more("t", 3, [[9]]), "invalid_replica_assignment"),
    ],
)
async def test_create_partitions_validates_the_count(
    client: Any, wanted: dict[str, Any], code: str
) -> None:
    await client.create("t", partitions=2)
    assert await grow_codes(client, wanted) == [(wanted["name"], code)]


async def test_validate_only_and_duplicates_add_no_partitions(client: Any) -> None:
    await client.create("t")
    assert await grow_codes(client, more("t", 3), validate_only=True) == [("t", "none")]
    twice = [more("t", 3), more("t", 4)]
    assert await grow_codes(client, *twice) == [("t", "invalid_request")]
    assert len(client.broker.metadata.image.topics_by_name["t"].partitions) == 1


# DescribeTopicPartitions


async def page(client: Any, *topics: str, cursor: Any = None, limit: int = 2000) -> Any:
    if isinstance(cursor, tuple):
        cursor = {"topic_name": cursor[0], "partition_index": cursor[1]}
    return await client.ask(
        apis.DESCRIBE_TOPIC_PARTITIONS,
        0,
        topics=[{"name": name} for name in topics],
        response_partition_limit=limit,
        cursor=cursor,
    )


def shown(response: Any) -> list[tuple[str, list[int]]]:
    return [
        (each.name, [partition.partition_index for partition in each.partitions])
        for each in response.topics
    ]


async def test_describe_topic_partitions_of_topic(client: Any) -> None:
    created = await client.create("t", partitions=2)
    response = await page(client, "t", "gone", "bad name")
    missing_bad, missing, found = response.topics
    assert (missing_bad.name, missing_bad.error_code.name) == (
        "bad name",
        "invalid_topic_exception",
    )
    assert (missing.name, missing.error_code.name) == ("gone", "unknown_topic_or_partition")
    assert found.topic_id == created.topic_id
    assert found.topic_authorized_operations == 3576
    partition = found.partitions[1]
    assert (partition.leader_id, partition.leader_epoch) == (1, 0)
    assert partition.replica_nodes == partition.isr_nodes == (1,)
    assert partition.eligible_leader_replicas == partition.last_known_elr == ()  # never null
    assert response.next_cursor is None


async def test_describe_topic_partitions_in_pages(client: Any) -> None:
    await client.create("a", partitions=2)
    await client.create("b", partitions=3)
    await client.create("c", partitions=1)
    first = await page(client, limit=3)
    assert shown(first) == [("a", [0, 1]), ("b", [0])]
    assert (first.next_cursor.topic_name, first.next_cursor.partition_index) == ("b", 1)
    second = await page(client, limit=2, cursor=("b", 1))
    assert shown(second) == [("b", [1, 2])]
    assert (second.next_cursor.topic_name, second.next_cursor.partition_index) == ("c", 0)
    third = await page(client, limit=2, cursor=("c", 0))
    assert shown(third) == [("c", [0])]
    assert third.next_cursor is None
    assert shown(await page(client, "c", "a", limit=0)) == [("a", [0])]  # at least one


async def test_invalid_cursor_is_rejected(client: Any) -> None:
    await client.create("a")
    for cursor in (("b", 0), ("a", -1)):
        response = await page(client, "a", cursor=cursor)
        assert codes(response.topics) == [("a", "invalid_request")]
    # a topic that was deleted or shrank by recreation between two pages is skipped
    await client.create("c")
    assert shown(await page(client, cursor=("b", 7))) == [("c", [0])]
    assert shown(await page(client, cursor=("a", 7))) == [("a", []), ("c", [0])]


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=40)
@given(
    sizes=st.lists(st.integers(1, 5), min_size=1, max_size=4),
    limit=st.integers(1, 7),
)
async def test_pages_have_each_partition_once(client: Any, sizes: list[int], limit: int) -> None:
    image = client.broker.metadata.image
    for name in list(image.topics_by_name):
        await delete_codes(client, 6, by_name(name))
    for number, size in enumerate(sizes):
        await client.create(f"t{number}", partitions=size)
    found: list[tuple[str, int]] = []
    cursor: Any = None
    while True:
        response = await page(client, cursor=cursor, limit=limit)
        on_page = [(name, index) for name, indexes in shown(response) for index in indexes]
        assert len(on_page) <= limit
        found += on_page
        if response.next_cursor is None:
            break
        cursor = (response.next_cursor.topic_name, response.next_cursor.partition_index)
    assert found == [
        (f"t{number}", index) for number, size in enumerate(sizes) for index in range(size)
    ]


class TestWithALimit:
    @pytest.fixture
    def configs(self) -> dict[str, str]:
        return {"max.request.partition.size.limit": "2"}

    async def test_page_is_limited_by_max_request_partition_size_limit(self, client: Any) -> None:
        await client.create("a", partitions=5)
        assert shown(await page(client)) == [("a", [0, 1])]
