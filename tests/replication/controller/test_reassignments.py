"""Reassignments and leader elections in a cluster of three brokers."""

from __future__ import annotations

import pytest

from odradek.protocol.errors import ErrorCode
from odradek.protocol.schemas.topic_records import PartitionChangeRecord
from odradek.replication.controller.broker_fencing import fence_broker, unfence_broker
from odradek.replication.controller.image import MetadataImage
from odradek.replication.controller.leader_election import elect_leaders
from odradek.replication.controller.partition_change_builder import ElectionType
from odradek.replication.controller.reassignments import (
    Reassignment,
    alter_reassignments,
    list_reassignments,
)
from odradek.replication.controller.topics import NewTopic
from tests.support.cluster_images import cluster, committed, create, partition, perform


@pytest.fixture
def image() -> MetadataImage:
    """A topic whose partition 0 is on brokers 1 and 2, led by 1."""
    made, _ = create(cluster(), NewTopic("t", assignments={0: [1, 2]}))
    return made


def reassigned(image: MetadataImage, *replicas: int) -> MetadataImage:
    image, (error,) = perform(image, alter_reassignments(image, [Reassignment("t", 0, replicas)]))
    assert error is None
    return image


def in_sync(image: MetadataImage, *isr: int) -> MetadataImage:
    topic = image.topics_by_name["t"]
    return committed(image, [PartitionChangeRecord(partition_id=0, topic_id=topic.id, isr=isr)])


def test_reassignment_adds_replicas_then_removes(image: MetadataImage) -> None:
    image = reassigned(image, 2, 3)
    moving = partition(image, "t")
    assert moving.replicas == (2, 3, 1)
    assert (moving.adding_replicas, moving.removing_replicas) == ((3,), (1,))
    assert [(name, list(found)) for name, found in list_reassignments(image, None)] == [("t", [0])]
    assert list_reassignments(image, [("t", [1]), ("gone", [0])]) == []


def test_reassignment_to_fewer_replicas_completes_at_once(image: MetadataImage) -> None:
    image = reassigned(image, 1)
    done = partition(image, "t")
    assert (done.replicas, done.isr, done.is_reassigning) == ((1,), (1,), False)


def test_removed_replica_leaves_elr() -> None:
    """An ELR member without a replica would prevent the election of the last known leader (KIP-966)."""
    configs = {"min.insync.replicas": "2"}
    image, _ = create(cluster(), NewTopic("t", assignments={0: [1, 2, 3]}, configs=configs))
    image = reassigned(image, 1)
    done = partition(image, "t")
    assert (done.replicas, done.isr, done.elr) == ((1,), (1,), ())


def test_reordered_replicas_change_preferred_leader(image: MetadataImage) -> None:
    image = reassigned(image, 2, 1)
    turned = partition(image, "t")
    assert (turned.replicas, turned.leader, turned.is_reassigning) == ((2, 1), 1, False)


def test_unchanged_assignment_returns_no_record(image: MetadataImage) -> None:
    assert not alter_reassignments(image, [Reassignment("t", 0, [1, 2])]).records


def test_cancelled_reassignment_restores_replicas(image: MetadataImage) -> None:
    moving = reassigned(image, 2, 3)
    plan = alter_reassignments(moving, [Reassignment("t", 0, None)])
    after, (error,) = perform(moving, plan)
    assert error is None
    back = partition(after, "t")
    assert sorted(back.replicas) == [1, 2]
    assert not back.is_reassigning


def test_cancel_that_requires_unclean_election_is_rejected(image: MetadataImage) -> None:
    moving = in_sync(reassigned(image, 2, 3), 3)
    cancel = [Reassignment("t", 0, None)]
    (error,) = alter_reassignments(moving, cancel).result
    assert error is not None
    assert error.code is ErrorCode.invalid_replica_assignment
    plan = alter_reassignments(moving, cancel, unclean_election=True)
    assert plan.result == [None]
    assert len(plan.records) == 1


def test_invalid_partitions_are_rejected_one_by_one(image: MetadataImage) -> None:
    wanted = [
        Reassignment("gone", 0, [1]),
        Reassignment("t", 5, [1]),
        Reassignment("t", 0, [9]),
        Reassignment("t", 0, None),
        Reassignment("t", 0, [1]),
    ]
    plan = alter_reassignments(image, wanted, allow_replication_factor_change=False)
    assert [error and error.code for error in plan.result] == [
        ErrorCode.unknown_topic_or_partition,
        ErrorCode.unknown_topic_or_partition,
        ErrorCode.invalid_replica_assignment,
        ErrorCode.no_reassignment_in_progress,
        ErrorCode.invalid_replication_factor,
    ]
    assert not plan.records


# Leader elections


def fenced(image: MetadataImage, broker: int) -> MetadataImage:
    return committed(image, fence_broker(image, broker, image.brokers[broker].epoch).records)


def unfenced(image: MetadataImage, broker: int) -> MetadataImage:
    return committed(image, unfence_broker(image, broker, image.brokers[broker].epoch).records)


def code(image: MetadataImage, election: ElectionType, index: int = 0) -> ErrorCode | None:
    (response,) = elect_leaders(image, election, [("t", index)]).result
    return None if response.error is None else response.error.code


def test_preferred_leader_election(image: MetadataImage) -> None:
    assert code(image, ElectionType.PREFERRED) is ErrorCode.election_not_needed
    image = fenced(image, 1)
    assert partition(image, "t").leader == 2
    assert code(image, ElectionType.PREFERRED) is ErrorCode.preferred_leader_not_available
    image = in_sync(unfenced(image, 1), 2, 1)
    image, responses = perform(image, elect_leaders(image, ElectionType.PREFERRED, None))
    assert [(each.topic, each.partition, each.error) for each in responses] == [("t", 0, None)]
    assert partition(image, "t").leader == 1
    assert elect_leaders(image, ElectionType.PREFERRED, None).result == []


def test_unclean_election_requires_leaderless_partition(image: MetadataImage) -> None:
    assert code(image, ElectionType.UNCLEAN) is ErrorCode.election_not_needed
    assert code(image, ElectionType.UNCLEAN, 9) is ErrorCode.unknown_topic_or_partition
    image = fenced(fenced(image, 1), 2)
    assert partition(image, "t").leader == -1
    assert code(image, ElectionType.UNCLEAN) is ErrorCode.eligible_leaders_not_available
