"""Responses to unusual requests, as Apache Kafka 4.3 responds (found by tests/conformance/request_comparison.py)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any
from uuid import UUID

import pytest

from odradek.protocol import apis
from odradek.protocol.errors import ErrorCode
from odradek.testing import Broker
from tests.support.brokers import broker_fixture
from tests.support.raw_client import RawClient
from tests.support.waiting import wait_until

broker = broker_fixture(scope="module", topics={"t": 2})


@pytest.fixture
def client(broker: Broker) -> Iterator[RawClient]:
    with RawClient(broker.bootstrap) as raw:
        yield raw


def topic_id(client: RawClient, name: str) -> UUID:
    (topic,) = client.ask(apis.METADATA, 12, {"topics": [{"topic_id": None, "name": name}]}).topics
    found: UUID = topic.topic_id
    return found


def delete_topic(client: RawClient, name: str) -> None:
    (result,) = client.ask(
        apis.DELETE_TOPICS, 5, {"topic_names": [name], "timeout": 10_000}
    ).responses
    assert result.error_code == ErrorCode.none
    asked = {"topics": [{"topic_id": None, "name": name}], "allow_auto_topic_creation": False}
    wait_until(
        lambda: (
            client.ask(apis.METADATA, 12, asked).topics[0].error_code
            == ErrorCode.unknown_topic_or_partition
        )
    )


def fetch(
    client: RawClient, version: int = 12, *, session: tuple[int, int] = (0, -1), **values: Any
) -> Any:
    """Fetch without waiting; `session` is the session id and epoch."""
    session_id, session_epoch = session
    request = {"max_wait": 0, "min_bytes": 0, "max_bytes": 1 << 20, "topics": [], **values}
    return client.ask(
        apis.FETCH,
        version,
        {"session_id": session_id, "session_epoch": session_epoch, **request},
    )


def topics(name: str = "t", **values: Any) -> list[dict[str, Any]]:
    partition = {"partition": 0, "fetch_offset": 0, "partition_max_bytes": 1 << 20, **values}
    return [{"topic": name, "partitions": [partition]}]


def errors(response: Any) -> list[ErrorCode]:
    return [partition.error_code for topic in response.responses for partition in topic.partitions]


def test_session_without_partitions_gets_an_id(client: RawClient) -> None:
    assert fetch(client, session=(0, 0)).session_id > 0


def test_session_of_a_deleted_topic_reports_an_unknown_topic(
    broker: Broker, client: RawClient
) -> None:
    broker.create_topic("deleted", 1)
    asked = [{**topics()[0], "topic": None, "topic_id": topic_id(client, "deleted")}]
    opened = fetch(client, 13, session=(0, 0), topics=asked)
    assert errors(opened) == [ErrorCode.none]
    delete_topic(client, "deleted")
    response = fetch(client, 13, session=(opened.session_id, 1))
    assert errors(response) == [ErrorCode.unknown_topic_or_partition]


def test_session_of_a_recreated_topic_reports_an_inconsistent_id(
    broker: Broker, client: RawClient
) -> None:
    broker.create_topic("recreated", 1)
    asked = [{**topics()[0], "topic": None, "topic_id": topic_id(client, "recreated")}]
    opened = fetch(client, 13, session=(0, 0), topics=asked)
    assert errors(opened) == [ErrorCode.none]
    delete_topic(client, "recreated")
    broker.create_topic("recreated", 1)
    response = fetch(client, 13, session=(opened.session_id, 1))
    assert errors(response) == [ErrorCode.inconsistent_topic_id]


@pytest.mark.parametrize("version", [12, 13])
def test_fetch_with_an_unknown_isolation_level_fails(client: RawClient, version: int) -> None:
    asked = topics()
    if version == 13:
        asked[0] |= {"topic": None, "topic_id": topic_id(client, "t")}
    response = fetch(client, version, topics=asked, isolation_level=2)
    assert response.error_code == ErrorCode.unknown_server_error
    assert errors(response) == [ErrorCode.unknown_server_error][: version == 12]


@pytest.mark.parametrize(
    ("limits", "partition_limits"), [({"max_bytes": -1}, {}), ({}, {"partition_max_bytes": -1})]
)
def test_fetch_with_a_negative_size_fails(
    client: RawClient, limits: dict[str, int], partition_limits: dict[str, int]
) -> None:
    response = fetch(client, topics=topics(**partition_limits), **limits)
    assert errors(response) == [ErrorCode.unknown_server_error]


def list_offsets(client: RawClient, partitions: list[int], *, isolation_level: int = 0) -> Any:
    entries = [{"partition_index": each, "timestamp": -1} for each in partitions]
    return client.ask(
        apis.LIST_OFFSETS,
        7,
        {
            "replica_id": -1,
            "isolation_level": isolation_level,
            "topics": [{"name": "t", "partitions": entries}],
        },
    )


def test_partition_that_is_listed_twice_has_one_result(client: RawClient) -> None:
    (topic,) = list_offsets(client, [0, 1, 0]).topics
    assert {each.partition_index: each.error_code for each in topic.partitions} == {
        0: ErrorCode.invalid_request,
        1: ErrorCode.none,
    }
    assert len(topic.partitions) == 2


def test_topic_without_partitions_has_no_result(client: RawClient) -> None:
    assert list_offsets(client, []).topics == ()


def test_list_offsets_with_an_unknown_isolation_level_fails(client: RawClient) -> None:
    (topic,) = list_offsets(client, [0, 1], isolation_level=2).topics
    assert [each.error_code for each in topic.partitions] == [ErrorCode.unknown_server_error] * 2
