"""DeleteTopics (KIP-516), CreatePartitions (KIP-195), AssignReplicasToDirs (KIP-858), AllocateProducerIds (KIP-730)."""

from __future__ import annotations

from uuid import UUID

import pytest

from odradek.protocol.errors import ErrorCode, KafkaError
from odradek.replication.controller.broker_directories import (
    assign_directories,
    mark_directories_offline,
)
from odradek.replication.controller.broker_fencing import fence_broker
from odradek.replication.controller.controller_result import MAX_RECORDS
from odradek.replication.controller.create_partitions import (
    NewPartitions,
    PartitionsResult,
    create_partitions,
)
from odradek.replication.controller.image import TOPIC, MetadataImage
from odradek.replication.controller.producer_ids import (
    MAX_PRODUCER_ID,
    ProducerIdBlock,
    allocate_producer_ids,
)
from odradek.replication.controller.topics import NewTopic, delete_topics
from tests.support.cluster_images import (
    cluster,
    committed,
    create,
    directory,
    entropy,
    partition,
    perform,
)

# DeleteTopics


def two_topics() -> MetadataImage:
    return create(cluster(1), NewTopic("a", configs={"x": "1"}), NewTopic("b.c"))[0]


def test_deleted_topic_loses_partitions_and_configs() -> None:
    image = two_topics()
    topic_id = image.topics_by_name["a"].id
    image, (response,) = perform(image, delete_topics(image, ["a"]))
    assert (response.name, response.topic_id, response.error_code) == (
        "a",
        topic_id,
        ErrorCode.none,
    )
    assert list(image.topics_by_name) == ["b.c"]
    assert topic_id not in image.topics_by_id
    assert (TOPIC, "a") not in image.configs


def test_topic_is_deleted_by_id() -> None:
    image = two_topics()
    topic_id = image.topics_by_name["b.c"].id
    image, (response,) = perform(image, delete_topics(image, ids=[topic_id]))
    assert (response.name, response.topic_id, response.error_code) == (
        "b.c",
        topic_id,
        ErrorCode.none,
    )
    _, (response,) = create(image, NewTopic("b_c"), seed=1)
    assert response.error_code is ErrorCode.none, "it collides with nothing any more"


def test_unknown_topics_are_rejected() -> None:
    image = two_topics()
    after, responses = perform(image, delete_topics(image, ["nope"], [UUID(int=77)]))
    assert [(each.name, each.topic_id, each.error_code) for each in responses] == [
        (None, UUID(int=77), ErrorCode.unknown_topic_id),
        ("nope", None, ErrorCode.unknown_topic_or_partition),
    ]
    assert after == image


def test_duplicate_topics_are_not_deleted() -> None:
    image = two_topics()
    a = image.topics_by_name["a"].id
    for names, ids in ((["a", "a"], []), ([], [a, a]), (["a"], [a])):
        after, responses = perform(image, delete_topics(image, names, ids))
        assert [each.error_code for each in responses] == [ErrorCode.invalid_request]
        assert after == image


# CreatePartitions


def grow(
    image: MetadataImage, *wanted: NewPartitions, validate_only: bool = False
) -> tuple[MetadataImage, list[PartitionsResult]]:
    plan = create_partitions(image, wanted, entropy=entropy(), validate_only=validate_only)
    return perform(image, plan)


def test_new_partitions_have_the_next_indexes() -> None:
    image, _ = create(cluster(3), NewTopic("t", 2, 2))
    before = dict(image.topics_by_name["t"].partitions)
    image, responses = grow(image, NewPartitions("t", 5))
    assert responses == [PartitionsResult("t")]
    partitions = image.topics_by_name["t"].partitions
    assert list(partitions) == [0, 1, 2, 3, 4]
    assert {index: partitions[index] for index in before} == before
    assert all(len(each.replicas) == 2 for each in partitions.values())


def test_new_partitions_with_manual_assignment() -> None:
    image, _ = create(cluster(3), NewTopic("t", 1, 2))
    image, responses = grow(image, NewPartitions("t", 3, [(3, 1), (2, 3)]))
    assert responses == [PartitionsResult("t")]
    assert partition(image, "t", 1).replicas == (3, 1)
    assert partition(image, "t", 2).leader == 2


@pytest.mark.parametrize(
    ("wanted", "code", "message"),
    [
        (NewPartitions("nope", 3), ErrorCode.unknown_topic_or_partition, None),
        (
            NewPartitions("t", 3),
            ErrorCode.invalid_partitions,
            "Topic already has 3 partition(s).",
        ),
        (
            NewPartitions("t", 2),
            ErrorCode.invalid_partitions,
            "The topic t currently has 3 partition(s); 2 would not be an increase.",
        ),
        (
            NewPartitions("t", 5, [(1,)]),
            ErrorCode.invalid_replica_assignment,
            "Attempted to add 2 additional partition(s), but only 1 assignment(s) were specified.",
        ),
        (
            NewPartitions("t", 4, [(1, 1)]),
            ErrorCode.invalid_replica_assignment,
            "The manual partition assignment includes the broker 1 more than once.",
        ),
        (
            NewPartitions("t", 4, [(9,)]),
            ErrorCode.invalid_replica_assignment,
            "The manual partition assignment includes broker 9, but no such broker is registered.",
        ),
        (
            NewPartitions("t", 4, [()]),
            ErrorCode.invalid_replica_assignment,
            "The manual partition assignment includes an empty replica list.",
        ),
        (
            NewPartitions("t", 4, [(1, 2)]),
            ErrorCode.invalid_replica_assignment,
            "The manual partition assignment includes a partition with 2 replica(s), but this is "
            "not consistent with previous partitions, which have 1 replica(s).",
        ),
        (
            NewPartitions("t", MAX_RECORDS + 4),
            ErrorCode.policy_violation,
            "Unable to perform excessively large batch operation.",
        ),
    ],
)
def test_invalid_partition_count_is_rejected(
    wanted: NewPartitions, code: ErrorCode, message: str | None
) -> None:
    before, _ = create(cluster(2), NewTopic("t", 3, 1))
    image, (response,) = grow(before, wanted)
    assert (response.error_code, response.error_message) == (code, message)
    assert image == before


def test_duplicate_topic_gets_no_partitions() -> None:
    before, _ = create(cluster(1), NewTopic("t"))
    image, responses = grow(before, NewPartitions("t", 2), NewPartitions("t", 3))
    assert responses == [PartitionsResult("t", ErrorCode.invalid_request, "Duplicate topic name.")]
    assert image == before


def test_create_partitions_validate_only() -> None:
    before, _ = create(cluster(1), NewTopic("t"))
    image, responses = grow(before, NewPartitions("t", 2), validate_only=True)
    assert responses == [PartitionsResult("t")]
    assert image == before


def test_create_partitions_without_active_broker_is_rejected() -> None:
    image, _ = create(cluster(2), NewTopic("t", assignments={0: [1]}))
    image = committed(image, fence_broker(image, 2, image.brokers[2].epoch).records)
    _, (response,) = grow(image, NewPartitions("t", 2, [(2,)]))
    assert response.error_code is ErrorCode.invalid_replica_assignment
    image = committed(image, fence_broker(image, 1, image.brokers[1].epoch).records)
    _, (response,) = grow(image, NewPartitions("t", 2))
    assert response.error_code is ErrorCode.invalid_replication_factor


# AssignReplicasToDirs


def test_broker_assigns_replicas_to_directories() -> None:
    image, _ = create(cluster(2, directories=2), NewTopic("t", assignments={0: (1,), 1: (2,)}))
    topic_id = image.topics_by_name["t"].id
    epoch = image.brokers[1].epoch
    where = {
        (topic_id, 0): directory(1, 1),
        (topic_id, 1): directory(1, 1),
        (topic_id, 2): directory(1, 1),
        (UUID(int=5), 0): directory(1, 1),
    }
    image, responses = perform(image, assign_directories(image, 1, epoch, where))
    assert list(responses.values()) == [
        ErrorCode.none,
        ErrorCode.not_leader_or_follower,
        ErrorCode.unknown_topic_or_partition,
        ErrorCode.unknown_topic_id,
    ]
    assert partition(image, "t").directory_of(1) == directory(1, 1)
    assert partition(image, "t").leader_epoch == 0
    assert not assign_directories(image, 1, epoch, {(topic_id, 0): directory(1, 1)}).records
    with pytest.raises(KafkaError) as refused:
        assign_directories(image, 1, epoch + 1, where)
    assert refused.value.code is ErrorCode.stale_broker_epoch


def test_leader_in_failed_directory_is_replaced() -> None:
    image, _ = create(cluster(2, directories=2), NewTopic("t", assignments={0: (1, 2)}))
    epoch = image.brokers[1].epoch
    image, _ = perform(image, mark_directories_offline(image, 1, epoch, [directory(1, 1)]))
    assert partition(image, "t").leader == 1, "the image did not have this directory"
    where = {(image.topics_by_name["t"].id, 0): directory(1, 1)}
    image, _ = perform(image, assign_directories(image, 1, epoch, where))
    found = partition(image, "t")
    assert (found.leader, found.isr, found.directory_of(1)) == (2, (2,), directory(1, 1))


def test_replica_in_online_directory_leads_again() -> None:
    """An operator moved or restored the log; no other replica has its records."""
    image, _ = create(cluster(1, directories=2), NewTopic("t", assignments={0: (1,)}))
    epoch = image.brokers[1].epoch
    replica = (image.topics_by_name["t"].id, 0)
    image, _ = perform(image, assign_directories(image, 1, epoch, {replica: directory(1, 1)}))
    image, _ = perform(image, mark_directories_offline(image, 1, epoch, [directory(1, 1)]))
    assert partition(image, "t").leader == -1
    image, _ = perform(image, assign_directories(image, 1, epoch, {replica: directory(1, 0)}))
    found = partition(image, "t")
    assert (found.leader, found.isr, found.directory_of(1)) == (1, (1,), directory(1, 0))


# AllocateProducerIds


def test_producer_id_blocks_are_consecutive() -> None:
    image = cluster(1)
    epoch = image.brokers[1].epoch
    image, first = perform(image, allocate_producer_ids(image, 1, epoch))
    image, second = perform(image, allocate_producer_ids(image, 1, epoch))
    assert (first, second) == (ProducerIdBlock(0), ProducerIdBlock(1000))
    assert image.next_producer_id == 2000


def test_producer_ids_require_a_registered_broker() -> None:
    with pytest.raises(KafkaError) as refused:
        allocate_producer_ids(cluster(1), 1, -5)
    assert refused.value.code is ErrorCode.stale_broker_epoch


def test_producer_ids_are_exhausted() -> None:
    from dataclasses import replace

    image = replace(cluster(1), next_producer_id=MAX_PRODUCER_ID - 999)
    with pytest.raises(KafkaError, match="Exhausted"):
        allocate_producer_ids(image, 1, image.brokers[1].epoch)
