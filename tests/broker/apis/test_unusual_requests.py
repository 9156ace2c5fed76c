"""Responses to unusual requests, as Apache Kafka 4.3 responds (found by tests/conformance/request_comparison.py)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any
from uuid import UUID

import pytest

from odradek.protocol import apis
from odradek.protocol.errors import ErrorCode
from odradek.protocol.records.records import Record, build_batch
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
def test_fetch_with_a_negative_size_fails_if_there_are_records(
    broker: Broker, client: RawClient, limits: dict[str, int], partition_limits: dict[str, int]
) -> None:
    name = f"records-{len(limits)}"
    broker.create_topic(name, 1)
    response = fetch(client, topics=topics(name, **partition_limits), **limits)
    assert errors(response) == [ErrorCode.none]
    records = {"index": 0, "records": batch()}
    produced(client, topic_data=[{"name": name, "partition_data": [records]}])
    response = fetch(client, topics=topics(name, **partition_limits), **limits)
    assert errors(response) == [ErrorCode.unknown_server_error]


def test_fetch_with_a_negative_size_checks_the_last_fetched_epoch_first(client: RawClient) -> None:
    response = fetch(client, topics=topics(partition_max_bytes=-1, last_fetched_epoch=100))
    assert errors(response) == [ErrorCode.offset_out_of_range]


def test_fetch_with_a_negative_size_checks_the_follower_first(
    broker: Broker, client: RawClient
) -> None:
    broker.create_topic("followed", 1)
    records = {"index": 0, "records": batch()}
    produced(client, topic_data=[{"name": "followed", "partition_data": [records]}])
    asked = topics("followed", partition_max_bytes=-1)
    found = [fetch(client, 10, replica_id=each, topics=asked) for each in (-1, 1)]
    assert [errors(response) for response in found] == [
        [ErrorCode.unknown_server_error],
        [ErrorCode.not_leader_or_follower],
    ]


def test_fetch_of_a_follower_has_no_node_endpoints(client: RawClient) -> None:
    asked = [{**topics()[0], "topic": None, "topic_id": topic_id(client, "t")}]
    state = {"replica_id": 1, "replica_epoch": 100}
    response = fetch(client, 18, topics=asked, replica_state=state)
    assert errors(response) == [ErrorCode.not_leader_or_follower]
    assert response.responses[0].partitions[0].current_leader.leader_id == 1
    assert response.node_endpoints == ()


def test_fetch_response_has_the_partitions_in_the_order_of_the_request(
    broker: Broker, client: RawClient
) -> None:
    broker.create_topic("other", 1)
    asked = [topics("t"), topics("other"), topics("t", partition=1)]
    response = fetch(client, 7, topics=[topic for (topic,) in asked])
    assert fetched_partitions(response) == [("t", [0]), ("other", [0]), ("t", [1])]


def test_fetch_response_has_unknown_partitions_last(client: RawClient) -> None:
    asked = [topics("missing"), topics("t"), topics("t", partition=7), topics("t", partition=1)]
    response = fetch(client, 7, topics=[topic for (topic,) in asked])
    assert fetched_partitions(response) == [("t", [0, 1]), ("missing", [0]), ("t", [7])]


def test_fetch_response_has_unknown_topic_ids_before_unknown_partitions(client: RawClient) -> None:
    known, unknown = topic_id(client, "t"), UUID(int=0x1234)
    asked = [
        {**topics(partition=partition)[0], "topic": None, "topic_id": each}
        for each, partition in ((known, 7), (unknown, 0), (known, 1))
    ]
    response = fetch(client, 13, topics=asked)
    assert [
        (topic.topic_id, [partition.partition_index for partition in topic.partitions])
        for topic in response.responses
    ] == [(known, [1]), (unknown, [0]), (known, [7])]


def fetched_partitions(response: Any) -> list[tuple[str, list[int]]]:
    return [
        (topic.topic, [partition.partition_index for partition in topic.partitions])
        for topic in response.responses
    ]


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


def test_fetch_of_an_invalid_request_repeats_its_session_id_and_topics(client: RawClient) -> None:
    asked = [{"topic": "missing", "partitions": []}, *topics()]
    response = fetch(client, topics=asked, isolation_level=2, session=(7, -1))
    assert response.session_id == 7
    assert [topic.topic for topic in response.responses] == ["missing", "t"]
    assert response.responses[1].partitions[0].aborted_transactions == ()


def produced(client: RawClient, version: int = 9, **values: Any) -> dict[tuple[str, int], Any]:
    """Responses of a Produce request by topic and partition."""
    response = client.ask(
        apis.PRODUCE, version, {"transactional_id": None, "acks": -1, "timeout": 5000, **values}
    )
    assert all(topic.partition_responses for topic in response.responses)
    return {
        (topic.name, partition.index): partition
        for topic in response.responses
        for partition in topic.partition_responses
    }


def batch(value: bytes = b"v") -> bytes:
    return bytes(build_batch([Record(-1, 1_700_000_000_000, None, value)]))


def test_produce_reports_unknown_partitions_and_invalid_records_before_invalid_acks(
    client: RawClient,
) -> None:
    found = produced(
        client,
        acks=2,
        topic_data=[
            {"name": "t", "partition_data": [{"index": 0, "records": batch()},
                                             {"index": 1, "records": b""},
                                             {"index": 9, "records": batch()}]},
            {"name": "missing", "partition_data": [{"index": 0, "records": batch()}]},
        ],
    )  # fmt: skip
    assert {key: each.error_code for key, each in found.items()} == {
        ("t", 0): ErrorCode.invalid_required_acks,
        ("t", 1): ErrorCode.invalid_record,
        ("t", 9): ErrorCode.unknown_topic_or_partition,
        ("missing", 0): ErrorCode.unknown_topic_or_partition,
    }


@pytest.mark.parametrize("cut", [0, 2])
def test_incomplete_batch_is_not_transactional(client: RawClient, cut: int) -> None:
    records = bytes(
        build_batch([Record(-1, 1_700_000_000_000, None, b"v")], producer_id=7, transactional=True)
    )
    partition = {"index": 0, "records": records[: len(records) - cut]}
    found = produced(
        client,
        topic_data=[
            {"name": "t", "partition_data": [partition]},
            {"name": "missing", "partition_data": [partition]},
        ],
    )
    denied = ErrorCode.transactional_id_authorization_failed
    assert [each.error_code for each in found.values()] == (
        [ErrorCode.invalid_record, ErrorCode.unknown_topic_or_partition] if cut else [denied] * 2
    )


def test_produce_reports_a_partition_outside_of_the_transaction_before_invalid_acks(
    client: RawClient,
) -> None:
    records = bytes(
        build_batch(
            [Record(-1, 1_700_000_000_000, None, b"v")],
            producer_id=77,
            producer_epoch=0,
            base_sequence=0,
            transactional=True,
        )
    )
    topic = {"name": "t", "partition_data": [{"index": 0, "records": records}]}
    found = produced(client, 11, transactional_id="unusual", acks=2, topic_data=[topic])
    assert found["t", 0].error_code not in (ErrorCode.none, ErrorCode.invalid_required_acks)


@pytest.mark.parametrize("version", [8, 12])
def test_produce_checks_the_number_of_batches_before_the_transaction(
    client: RawClient, version: int
) -> None:
    records = bytes(
        build_batch(
            [Record(-1, 1_700_000_000_000, None, b"v")],
            producer_id=78,
            producer_epoch=0,
            base_sequence=0,
            transactional=True,
        )
    )
    one, two = (
        produced(
            client,
            version,
            transactional_id="batches",
            topic_data=[
                {"name": "t", "partition_data": [{"index": 0, "records": records * count}]}
            ],
        )["t", 0]
        for count in (1, 2)
    )
    assert one.error_code not in (ErrorCode.none, ErrorCode.invalid_record)
    assert two.error_code == ErrorCode.invalid_record


def test_produce_of_two_batches_is_not_a_second_producer(
    client: RawClient,
) -> None:
    first, second = (
        bytes(
            build_batch(
                [Record(-1, 1_700_000_000_000, None, b"v")],
                producer_id=producer_id,
                producer_epoch=0,
                base_sequence=0,
                transactional=True,
            )
        )
        for producer_id in (81, 82)
    )
    partitions = [{"index": 0, "records": first}, {"index": 1, "records": second * 2}]
    found = produced(
        client,
        8,
        transactional_id="producers",
        topic_data=[{"name": "t", "partition_data": partitions}],
    )
    assert "several producers" not in (found["t", 0].error_message or "")
    assert found["t", 1].error_code == ErrorCode.invalid_record


def test_produce_checks_the_number_of_batches_before_the_partition(
    client: RawClient,
) -> None:
    def error_of(count: int) -> ErrorCode:
        partition = {"index": 0, "records": batch() * count}
        topic = {"name": "__consumer_offsets", "partition_data": [partition]}
        (found,) = produced(client, topic_data=[topic]).values()
        code: ErrorCode = found.error_code
        return code

    client.ask(apis.FIND_COORDINATOR, 4, {"key_type": 0, "coordinator_keys": ["g"]})
    wait_until(lambda: error_of(1) == ErrorCode.invalid_topic_exception)
    assert error_of(2) == ErrorCode.invalid_record


@pytest.mark.parametrize("acks", [-1, 2])
def test_produce_to_a_topic_without_partitions_has_no_result(client: RawClient, acks: int) -> None:
    assert produced(client, acks=acks, topic_data=[{"name": "t", "partition_data": []}]) == {}


def test_produce_appends_only_the_last_batch_of_a_repeated_partition(
    broker: Broker, client: RawClient
) -> None:
    broker.create_topic("repeated", 2)
    first = {"index": 0, "records": batch(b"first")}
    last = {"index": 0, "records": batch(b"last")}
    found = produced(
        client,
        topic_data=[
            {"name": "repeated", "partition_data": [first, {"index": 1, "records": batch()}]},
            {"name": "repeated", "partition_data": [last]},
        ],
    )
    assert {key: each.base_offset for key, each in found.items()} == {
        ("repeated", 0): 0,
        ("repeated", 1): 0,
    }
    fetched = fetch(client, topics=topics("repeated")).responses[0].partitions[0]
    assert fetched.high_watermark == 1
    assert b"last" in bytes(fetched.records)


def add_partitions(client: RawClient, *added: tuple[str, list[int]]) -> list[tuple[str, list[int]]]:
    """AddPartitionsToTxn of an unknown transactional id; return the topics and partitions of the response."""
    response = client.ask(
        apis.ADD_PARTITIONS_TO_TXN,
        3,
        {
            "v3_and_below_transactional_id": "unusual",
            "v3_and_below_producer_id": 1,
            "v3_and_below_producer_epoch": 0,
            "v3_and_below_topics": [
                {"name": name, "partitions": partitions} for name, partitions in added
            ],
        },
    )
    return [
        (topic.name, [each.partition_index for each in topic.results_by_partition])
        for topic in response.results_by_topic_v3_and_below
    ]


def test_add_partitions_to_txn_returns_the_topics_of_the_request(client: RawClient) -> None:
    """Results of the coordinator have the topics of the request, even those without partitions."""
    added = [("missing", []), ("t", [0, 0]), ("t", [1])]
    assert add_partitions(client, *added) == added


def test_add_partitions_to_txn_with_an_unknown_partition_has_one_result_a_topic(
    client: RawClient,
) -> None:
    assert add_partitions(client, ("missing", [0]), ("t", []), ("missing", [1])) == [
        ("missing", [0, 1])
    ]


def write_marker(
    client: RawClient,
    topic: str,
    indexes: list[int],
    producer_id: int = 5,
    transaction_version: int = 0,
) -> Any:
    marker = {
        "producer_id": producer_id,
        "producer_epoch": 0,
        "transaction_result": False,
        "coordinator_epoch": 0,
        "topics": [{"name": topic, "partition_indexes": indexes}],
        "transaction_version": transaction_version,
    }
    return client.ask(apis.WRITE_TXN_MARKERS, 2, {"markers": [marker]}).markers


def test_marker_is_written_once_to_a_repeated_partition(broker: Broker, client: RawClient) -> None:
    broker.create_topic("marked", 1)
    (marker,) = write_marker(client, "marked", [0, 0])
    assert [each.error_code for each in marker.topics[0].partitions] == [ErrorCode.none]
    assert fetch(client, topics=topics("marked")).responses[0].partitions[0].high_watermark == 1


def test_marker_without_a_transaction_version_fails(client: RawClient) -> None:
    (marker,) = write_marker(client, "t", [0], transaction_version=-1)
    assert marker.topics[0].partitions[0].error_code == ErrorCode.unknown_server_error


def test_marker_without_partitions_has_no_result(client: RawClient) -> None:
    assert write_marker(client, "t", []) == ()


def test_marker_of_an_invalid_producer_in_an_unknown_partition_reports_the_partition(
    client: RawClient,
) -> None:
    (marker,) = write_marker(client, "missing", [0], producer_id=-1)
    assert marker.topics[0].partitions[0].error_code == ErrorCode.unknown_topic_or_partition


def elect(
    client: RawClient, partitions: Any, *, election_type: int = 0, timeout: int = 1000
) -> Any:
    return client.ask(
        apis.ELECT_LEADERS,
        2,
        {"election_type": election_type, "topic_partitions": partitions, "timeout": timeout},
    )


def test_election_returns_one_result_for_each_topic_of_the_request(client: RawClient) -> None:
    requested = [("t", [0]), ("t", []), ("missing", [0, 0])]
    asked = [{"topic": name, "partitions": partitions} for name, partitions in requested]
    results = elect(client, asked).replica_election_results
    assert [
        (each.topic, [result.partition_id for result in each.partition_result]) for each in results
    ] == requested


def test_election_without_time_times_out_before_its_type_is_checked(client: RawClient) -> None:
    asked = [{"topic": "t", "partitions": [0]}]
    code = ErrorCode.request_timed_out
    assert elect(client, asked, election_type=9, timeout=0).error_code == code
    assert elect(client, asked, election_type=9).error_code == ErrorCode.invalid_request
    assert elect(client, [], election_type=9, timeout=0).error_code == ErrorCode.none


def test_deletion_without_time_still_refuses_invalid_topics(client: RawClient) -> None:
    """Kafka refuses them before the controller's operation, to which the timeout applies."""
    request = {"topics": [{"name": None, "topic_id": None}], "timeout": 0}
    (result,) = client.ask(apis.DELETE_TOPICS, 6, request).responses
    assert result.error_code == ErrorCode.invalid_request
    request = {"topic_names": ["missing", "missing"], "timeout": 0}
    (result,) = client.ask(apis.DELETE_TOPICS, 5, request).responses
    assert result.error_code == ErrorCode.invalid_request


@pytest.mark.parametrize(
    ("api", "version", "topic"),
    [
        (apis.CREATE_TOPICS, 7, {"num_partitions": 1, "replication_factor": 1}),
        (apis.CREATE_PARTITIONS, 3, {"count": 2, "assignments": None}),
    ],
)
def test_creation_without_time_still_refuses_repeated_topics(
    client: RawClient, api: apis.Api, version: int, topic: dict[str, Any]
) -> None:
    def created(*names: str) -> set[ErrorCode]:
        asked = {"topics": [{"name": name, **topic} for name in names], "timeout": 0}
        response = client.ask(api, version, asked)
        results = response.topics if api is apis.CREATE_TOPICS else response.results
        return {each.error_code for each in results}

    assert created("new", "new") == {ErrorCode.invalid_request}
    assert created("new", "new", "other") == {ErrorCode.request_timed_out}


def test_metadata_by_id_ignores_topics_without_an_id(client: RawClient) -> None:
    asked = [{"topic_id": UUID(int=5), "name": None}, {"topic_id": None, "name": None},
             {"topic_id": None, "name": "t"}]  # fmt: skip
    response = client.ask(apis.METADATA, 12, {"topics": asked})
    assert [each.error_code for each in response.topics] == [ErrorCode.unknown_topic_id]
    assert response.brokers


@pytest.mark.parametrize("timeout", [0, 1000])
def test_reassignment_error_has_the_default_replication_factor_flag(
    client: RawClient, timeout: int
) -> None:
    topics = [{"name": "t", "partitions": [{"partition_index": 0, "replicas": [9]}]}]
    response = client.ask(
        apis.ALTER_PARTITION_REASSIGNMENTS,
        1,
        {"allow_replication_factor_change": False, "topics": topics, "timeout": timeout},
    )
    assert response.allow_replication_factor_change is (timeout == 0)


def test_offset_deletion_has_no_result_for_a_topic_without_partitions(client: RawClient) -> None:
    committed = {"partition_index": 0, "committed_offset": 1, "committed_metadata": ""}
    commit = {
        "group_id": "offsets",
        "generation_id_or_member_epoch": -1,
        "member_id": "",
        "topics": [{"name": "t", "partitions": [committed]}],
    }
    client.ask(apis.FIND_COORDINATOR, 4, {"key_type": 0, "coordinator_keys": ["offsets"]})
    wait_until(
        lambda: (
            client.ask(apis.OFFSET_COMMIT, 8, commit).topics[0].partitions[0].error_code
            == ErrorCode.none
        )
    )
    asked = [{"name": "t", "partitions": []}, {"name": "missing", "partitions": []}]
    response = client.ask(apis.OFFSET_DELETE, 0, {"group_id": "offsets", "topics": asked})
    assert [topic.name for topic in response.topics] == ["missing"]


def test_classic_member_of_a_consumer_group_is_found_before_its_subscription_is_read(
    client: RawClient,
) -> None:
    heartbeat = {
        "group_id": "consumers",
        "member_id": "AAAAAAAAAAAAAAAAAAAAAQ",
        "member_epoch": 0,
        "rebalance_timeout": 60_000,
        "subscribed_topic_names": ["t"],
        "topic_partitions": [],
    }
    client.ask(apis.FIND_COORDINATOR, 4, {"key_type": 0, "coordinator_keys": ["consumers"]})
    wait_until(
        lambda: client.ask(apis.CONSUMER_GROUP_HEARTBEAT, 1, heartbeat).error_code == ErrorCode.none
    )
    join = {
        "group_id": "consumers",
        "session_timeout": 30_000,
        "rebalance_timeout": 500,
        "protocol_type": "consumer",
        "protocols": [{"name": "range", "metadata": b"\0\1"}],
    }
    unknown = {"member_id": "unknown", "group_instance_id": "i"}
    response = client.ask(apis.JOIN_GROUP, 5, {**join, **unknown})
    assert response.error_code == ErrorCode.unknown_member_id
    new = {"member_id": "", "group_instance_id": "i"}
    response = client.ask(apis.JOIN_GROUP, 5, {**join, **new})
    assert response.error_code == ErrorCode.unknown_server_error


def test_empty_salted_password_is_not_accepted(client: RawClient) -> None:
    """An intended difference: Kafka returns UNKNOWN_SERVER_ERROR for all users."""
    users = [
        {
            "name": name,
            "mechanism": 1,
            "iterations": 4096,
            "salt": b"s",
            "salted_password": password,
        }
        for name, password in (("alice", b"p"), ("bob", b""))
    ]
    request = {"deletions": [], "upsertions": users}
    response = client.ask(apis.ALTER_USER_SCRAM_CREDENTIALS, 0, request)
    assert {each.user: each.error_code for each in response.results} == {
        "alice": ErrorCode.none,
        "bob": ErrorCode.unacceptable_credential,
    }


def test_describe_quorum_of_another_topic_without_partitions_too_is_unknown(
    client: RawClient,
) -> None:
    metadata = {"topic_name": "__cluster_metadata", "partitions": [{"partition_index": 0}]}
    for others in ([], [{"topic_name": "", "partitions": []}]):
        response = client.ask(apis.DESCRIBE_QUORUM, 0, {"topics": [metadata, *others]})
        assert len(response.topics) == 1 + len(others)
        (partition,) = response.topics[0].partitions
        expected = ErrorCode.unknown_topic_or_partition if others else ErrorCode.none
        assert partition.error_code == expected
