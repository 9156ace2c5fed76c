"""CreateTopics: records of topics, and errors with Kafka's messages (KIP-4, KIP-464, KIP-525)."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from odradek.protocol.errors import ErrorCode, KafkaError
from odradek.replication.controller.broker_directories import mark_directories_cordoned
from odradek.replication.controller.broker_fencing import fence_broker
from odradek.replication.controller.controller_result import MAX_RECORDS
from odradek.replication.controller.image import TOPIC, UNASSIGNED, MetadataImage
from odradek.replication.controller.topics import NewTopic, TopicDefaults
from tests.support.cluster_images import (
    cluster,
    committed,
    create,
    directory,
    formatted,
    partition,
)


def refusal(image: MetadataImage, topic: NewTopic) -> tuple[ErrorCode, str | None]:
    after, (response,) = create(image, topic)
    assert after == image, "a refused topic leaves no trace"
    return response.error_code, response.error_message


def test_topic_uses_controller_defaults() -> None:
    image, (response,) = create(cluster(), NewTopic("flights"), defaults=TopicDefaults(4, 2))
    assert (response.error_code, response.partitions, response.replication_factor) == (0, 4, 2)
    topic = image.topics_by_name["flights"]
    assert response.topic_id == topic.id
    assert list(topic.partitions) == [0, 1, 2, 3]
    for each in topic.partitions.values():
        assert len(set(each.replicas)) == 2
        assert each.isr == each.replicas
        assert each.leader == each.replicas[0]
        assert (each.leader_epoch, each.partition_epoch) == (0, 0)
        assert each.directories == tuple(directory(broker) for broker in each.replicas)


def test_order_of_topic_records() -> None:
    image = cluster(1)
    _, _ = create(image, NewTopic("flights", 2, 1, configs={"a": "1"}))
    from odradek.replication.controller.topics import create_topics
    from tests.support.cluster_images import any_config, entropy

    plan = create_topics(
        image,
        [NewTopic("flights", 2, 1, configs={"a": "1"}), NewTopic("weather", 1, 1)],
        entropy=entropy(),
        defaults=TopicDefaults(),
        validate_config=any_config,
    )
    assert [type(record).__name__ for record in plan.records] == [
        "TopicRecord",
        "ConfigRecord",
        "PartitionRecord",
        "PartitionRecord",
        "TopicRecord",
        "PartitionRecord",
    ]


def test_topic_configs_are_written() -> None:
    image, (response,) = create(cluster(1), NewTopic("t", configs={"retention.ms": "1"}))
    assert response.configs == {"retention.ms": "1"}
    assert image.topic_configs("t") == {"retention.ms": "1"}


def test_validate_only_returns_result_without_records() -> None:
    before = cluster(1)
    image, (response,) = create(before, NewTopic("t", 3), validate_only=True)
    assert (response.error_code, response.partitions) == (ErrorCode.none, 3)
    assert image == before


def test_broker_with_several_directories_chooses_one() -> None:
    image, _ = create(cluster(1, directories=2), NewTopic("t"))
    assert partition(image, "t").directories == (UNASSIGNED,)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("", "Topic name is invalid: the empty string is not allowed"),
        (".", "Topic name is invalid: '.' is not allowed"),
        ("..", "Topic name is invalid: '..' is not allowed"),
        (
            "a/b",
            "Topic name is invalid: 'a/b' contains one or more characters other than ASCII "
            "alphanumerics, '.', '_' and '-'",
        ),
        (
            "y" * 250,
            f"Topic name is invalid: the length of '{'y' * 250}' is longer than the max allowed "
            "length 249",
        ),
    ],
)
def test_invalid_names_are_rejected(name: str, message: str) -> None:
    assert refusal(cluster(1), NewTopic(name)) == (ErrorCode.invalid_topic_exception, message)


def test_longest_name_is_accepted() -> None:
    _, (response,) = create(cluster(1), NewTopic("y" * 249))
    assert response.error_code is ErrorCode.none


def test_existing_topic_is_rejected() -> None:
    image, _ = create(cluster(1), NewTopic("t"))
    assert refusal(image, NewTopic("t")) == (
        ErrorCode.topic_already_exists,
        "Topic 't' already exists.",
    )


@pytest.mark.parametrize(("there", "new"), [("a.b", "a_b"), ("a_b", "a.b"), ("a.b_c", "a_b.c")])
def test_colliding_names_are_rejected(there: str, new: str) -> None:
    image, _ = create(cluster(1), NewTopic(there))
    assert refusal(image, NewTopic(new)) == (
        ErrorCode.invalid_topic_exception,
        f"Topic '{new}' collides with existing topic: {there}",
    )


@pytest.mark.parametrize(
    ("topic", "code", "message"),
    [
        (
            NewTopic("t", 0, 1),
            ErrorCode.invalid_partitions,
            "Number of partitions was set to an invalid non-positive value.",
        ),
        (
            NewTopic("t", -2, 1),
            ErrorCode.invalid_partitions,
            "Number of partitions was set to an invalid non-positive value.",
        ),
        (
            NewTopic("t", 1, 0),
            ErrorCode.invalid_replication_factor,
            "Replication factor must be larger than 0, or -1 to use the default value.",
        ),
        (
            NewTopic("t", 0, -2),
            ErrorCode.invalid_replication_factor,
            "Replication factor must be larger than 0, or -1 to use the default value.",
        ),
        (
            NewTopic("t", 1, 5),
            ErrorCode.invalid_replication_factor,
            "Unable to replicate the partition 5 time(s): The target replication factor of 5 "
            "cannot be reached because only 1 broker(s) are registered or some brokers have all "
            "their log directories cordoned.",
        ),
        (
            NewTopic("t", configs={"retention.ms": None, "a": "b"}),
            ErrorCode.invalid_config,
            "Null value not supported for topic configs: retention.ms",
        ),
        (
            NewTopic("__cluster_metadata"),
            ErrorCode.invalid_request,
            "Creation of internal topic __cluster_metadata is prohibited.",
        ),
    ],
)
def test_invalid_requests_are_rejected(topic: NewTopic, code: ErrorCode, message: str) -> None:
    assert refusal(cluster(1), topic) == (code, message)


def test_validator_gets_all_configs() -> None:
    def refuse(kind: int, name: str, wanted: object, existing: object) -> None:
        assert (kind, name, wanted, existing) == (TOPIC, "t", {"a": "1", "b": "2"}, {})
        raise KafkaError(ErrorCode.invalid_config, "a and b do not go together")

    before = cluster(1)
    image, (response,) = create(
        before, NewTopic("t", configs={"a": "1", "b": "2"}), validate_config=refuse
    )
    assert response.error_code is ErrorCode.invalid_config
    assert response.error_message == "a and b do not go together"
    assert image == before


def test_error_of_one_topic_does_not_affect_others() -> None:
    image, responses = create(cluster(1), NewTopic("a"), NewTopic("b", 0), NewTopic("c"))
    assert [response.error_code for response in responses] == [0, ErrorCode.invalid_partitions, 0]
    assert sorted(image.topics_by_name) == ["a", "c"]


def test_duplicate_name_has_one_error() -> None:
    image, responses = create(cluster(1), NewTopic("a"), NewTopic("b"), NewTopic("a"))
    assert [(response.name, response.error_message) for response in responses] == [
        ("a", "Duplicate topic name."),
        ("b", None),
    ]
    assert list(image.topics_by_name) == ["b"]


def test_too_many_partitions_are_rejected() -> None:
    before = cluster(1)
    image, responses = create(before, NewTopic("a", MAX_RECORDS), NewTopic("b", 1))
    assert {response.error_code for response in responses} == {ErrorCode.policy_violation}
    assert responses[0].error_message == "Excessively large number of partitions per request."
    assert image == before


def test_too_many_records_are_rejected() -> None:
    before = cluster(1)
    image, responses = create(before, NewTopic("a", MAX_RECORDS))  # plus its TopicRecord
    assert responses[0].error_code is ErrorCode.policy_violation
    assert image == before


# Manual assignments


def test_manual_assignment() -> None:
    image, (response,) = create(cluster(), NewTopic("t", assignments={0: (2, 1), 1: (3, 2)}))
    assert (response.partitions, response.replication_factor) == (2, 2)
    assert partition(image, "t", 0).replicas == (2, 1)
    assert partition(image, "t", 1).leader == 3


@pytest.mark.parametrize(
    ("topic", "code", "message"),
    [
        (
            NewTopic("t", -1, 1, assignments={0: [1]}),
            ErrorCode.invalid_request,
            "A manual partition assignment was specified, but replication factor was not set to -1.",
        ),
        (
            NewTopic("t", 1, -1, assignments={0: [1]}),
            ErrorCode.invalid_request,
            "A manual partition assignment was specified, but numPartitions was not set to -1.",
        ),
        (
            NewTopic("t", assignments={0: [1, 1]}),
            ErrorCode.invalid_replica_assignment,
            "The manual partition assignment includes the broker 1 more than once.",
        ),
        (
            NewTopic("t", assignments={0: [7]}),
            ErrorCode.invalid_replica_assignment,
            "The manual partition assignment includes broker 7, but no such broker is registered.",
        ),
        (
            NewTopic("t", assignments={0: []}),
            ErrorCode.invalid_replica_assignment,
            "The manual partition assignment includes an empty replica list.",
        ),
        (
            NewTopic("t", assignments={1: [1]}),
            ErrorCode.invalid_replica_assignment,
            "partitions should be a consecutive 0-based integer sequence",
        ),
        (
            NewTopic("t", assignments={0: [1], 2: [1]}),
            ErrorCode.invalid_replica_assignment,
            "partitions should be a consecutive 0-based integer sequence",
        ),
        (
            NewTopic("t", assignments={-1: [1]}),
            ErrorCode.invalid_replica_assignment,
            "partitions should be a consecutive 0-based integer sequence",
        ),
        (
            NewTopic("t", assignments=[(0, [1]), (0, [1])]),
            ErrorCode.invalid_replica_assignment,
            "Found multiple manual partition assignments for partition 0",
        ),
        (
            NewTopic("t", assignments={0: [1], 1: [1, 2]}),
            ErrorCode.invalid_replica_assignment,
            "The manual partition assignment includes a partition with 2 replica(s), but this is "
            "not consistent with previous partitions, which have 1 replica(s).",
        ),
    ],
)
def test_invalid_manual_assignment_is_rejected(
    topic: NewTopic, code: ErrorCode, message: str
) -> None:
    assert refusal(cluster(2), topic) == (code, message)


# Fenced and cordoned brokers


def fenced(image: MetadataImage, *brokers: int) -> MetadataImage:
    for broker in brokers:
        image = committed(image, fence_broker(image, broker, image.brokers[broker].epoch).records)
    return image


def test_topic_without_brokers_is_rejected() -> None:
    code, message = refusal(formatted(), NewTopic("t", 1, 1))
    assert code is ErrorCode.invalid_replication_factor
    assert message == (
        "Unable to replicate the partition 1 time(s): All brokers are currently fenced, or have "
        "all their log directories cordoned."
    )


def test_fenced_brokers_get_replicas_but_do_not_lead() -> None:
    image, (response,) = create(fenced(cluster(3), 2), NewTopic("t", 5, 3))
    assert response.error_code is ErrorCode.none
    for each in image.topics_by_name["t"].partitions.values():
        assert sorted(each.replicas) == [1, 2, 3]
        assert sorted(each.isr) == [1, 3]
        assert each.leader == each.replicas[0] != 2


def test_assignment_to_only_fenced_brokers_is_rejected() -> None:
    assert refusal(fenced(cluster(3), 2, 3), NewTopic("t", assignments={0: [2, 3]})) == (
        ErrorCode.invalid_replica_assignment,
        "All brokers specified in the manual partition assignment for partition 0 are fenced or "
        "in controlled shutdown.",
    )


def test_cordoned_brokers_get_no_replicas() -> None:
    image = cluster(2)
    cordon = mark_directories_cordoned(image, 1, image.brokers[1].epoch, [directory(1)])
    image = committed(image, cordon.records)
    after, (response,) = create(image, NewTopic("t", 4, 1))
    assert response.error_code is ErrorCode.none
    assert {each.leader for each in after.topics_by_name["t"].partitions.values()} == {2}
    assert refusal(image, NewTopic("u", 1, 2))[0] is ErrorCode.invalid_replication_factor


# Placement


@given(
    brokers=st.integers(1, 6),
    partitions=st.integers(1, 30),
    factor=st.integers(1, 6),
    racks=st.sampled_from([None, ["a"], ["a", "b"], ["a", "b", "c"]]),
    seed=st.integers(0, 2**32),
)
def test_placement_is_even_and_spans_racks(
    brokers: int, partitions: int, factor: int, racks: list[str] | None, seed: int
) -> None:
    image, (response,) = create(
        cluster(brokers, racks=racks), NewTopic("t", partitions, factor), seed=seed
    )
    if factor > brokers:
        assert response.error_code is ErrorCode.invalid_replication_factor
        return
    where = {number: image.brokers[number].rack for number in image.brokers}
    racks_there = len(set(where.values()))
    for each in image.topics_by_name["t"].partitions.values():
        assert len(set(each.replicas)) == factor
        if racks is not None:
            assert len({where[replica] for replica in each.replicas}) == min(factor, racks_there)
    if racks is None and partitions >= brokers:
        leaders = [each.leader for each in image.topics_by_name["t"].partitions.values()]
        for start in range(0, partitions - brokers + 1, brokers):
            assert sorted(leaders[start : start + brokers]) == list(range(1, brokers + 1))
