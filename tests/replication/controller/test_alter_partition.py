"""AlterPartition: accepted and rejected ISRs (KIP-497, KIP-841, KIP-903), and their effects (KIP-966)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from uuid import UUID

import pytest

from odradek.protocol.errors import ErrorCode, KafkaError
from odradek.protocol.schemas.topic_records import ClearElrRecord
from odradek.replication.controller.alter_partition import (
    AlteredPartition,
    ProposedIsr,
    alter_partitions,
)
from odradek.replication.controller.broker_fencing import (
    begin_controlled_shutdown,
    fence_broker,
    unfence_broker,
)
from odradek.replication.controller.broker_registration import register_broker, unregister_broker
from odradek.replication.controller.features import METADATA_VERSION
from odradek.replication.controller.image import MetadataImage
from odradek.replication.controller.leader_and_isr_updates import MIN_ISR, UNCLEAN_ELECTION
from odradek.replication.controller.reassignments import Reassignment, alter_reassignments
from odradek.replication.controller.topics import NewTopic
from tests.support.cluster_images import (
    cluster,
    committed,
    create,
    partition,
    perform,
    registration,
)


@pytest.fixture
def image() -> MetadataImage:
    """A topic on brokers 1, 2 and 3, which are in the ISR, led by 1. Broker 4 has no replica."""
    return on_brokers(1, 2, 3)


def on_brokers(*replicas: int, **configs: str) -> MetadataImage:
    configs = {name.replace("_", "."): value for name, value in configs.items()}
    made, _ = create(cluster(4), NewTopic("t", assignments={0: replicas}, configs=configs))
    return made


def proposal(image: MetadataImage, *isr: int, recovery: int = 0) -> ProposedIsr:
    """Return the proposal of a leader with the current image."""
    topic = image.topics_by_name["t"]
    now = topic.partitions[0]
    return ProposedIsr(
        topic.id,
        0,
        now.leader_epoch,
        now.partition_epoch,
        [(each, image.brokers[each].epoch if each in image.brokers else -1) for each in isr],
        recovery,
    )


def altered(
    image: MetadataImage, proposed: ProposedIsr, broker: int = 1
) -> tuple[MetadataImage, AlteredPartition]:
    epoch = image.brokers[broker].epoch
    image, (response,) = perform(image, alter_partitions(image, broker, epoch, [proposed]))
    return image, response


def fenced(image: MetadataImage, broker: int) -> MetadataImage:
    return committed(image, fence_broker(image, broker, image.brokers[broker].epoch).records)


def unfenced(image: MetadataImage, broker: int) -> MetadataImage:
    return committed(image, unfence_broker(image, broker, image.brokers[broker].epoch).records)


# Accepted proposals


def test_leader_shrinks_and_expands_isr(image: MetadataImage) -> None:
    image, response = altered(image, proposal(image, 1, 2))
    assert response.error_code is ErrorCode.none
    assert response.state == partition(image, "t")
    found = partition(image, "t")
    assert (found.isr, found.leader, found.leader_epoch, found.partition_epoch) == ((1, 2), 1, 0, 1)
    image, _ = altered(image, proposal(image, 1, 2, 3))
    found = partition(image, "t")
    assert (found.isr, found.leader_epoch, found.partition_epoch) == ((1, 2, 3), 0, 2)


def test_unchanged_isr_returns_no_records(image: MetadataImage) -> None:
    plan = alter_partitions(image, 1, image.brokers[1].epoch, [proposal(image, 1, 2, 3)])
    assert plan.records == []
    assert plan.result[0].state == partition(image, "t")


def test_duplicate_partition_has_invalid_update_version(image: MetadataImage) -> None:
    twice = [proposal(image, 1, 2), proposal(image, 1, 3)]
    plan = alter_partitions(image, 1, image.brokers[1].epoch, twice)
    codes = [response.error_code for response in plan.result]
    assert codes == [ErrorCode.none, ErrorCode.invalid_update_version]
    assert len(plan.records) == 1


@pytest.mark.parametrize("whose", ["t", ""])
def test_proposal_before_elr_was_cleared_is_rejected(whose: str) -> None:
    """KIP-966: a change of min.insync.replicas of the topic or the cluster clears the ELR."""
    image = fenced(fenced(on_brokers(1, 2, 3, min_insync_replicas="3"), 3), 2)
    assert partition(image, "t").elr == (2, 3)
    image = unfenced(image, 2)
    before = proposal(image, 1, 2)
    image = committed(image, [ClearElrRecord(topic_name=whose)])
    image, response = altered(image, before)
    assert response.error_code is ErrorCode.invalid_update_version
    assert (partition(image, "t").isr, partition(image, "t").elr) == ((1,), ())
    image, response = altered(image, proposal(image, 1, 2))
    assert response.error_code is ErrorCode.none


def test_shrinking_isr_before_3_6_increases_leader_epoch() -> None:
    """KAFKA-15021: older brokers ignore a change without a new leader epoch."""
    for level, epoch in ((11, 1), (12, 0)):
        image, _ = create(
            cluster(4, features={METADATA_VERSION: level}), NewTopic("t", assignments={0: (1, 2)})
        )
        image, response = altered(image, proposal(image, 1))
        assert response.error_code is ErrorCode.none
        assert partition(image, "t").leader_epoch == epoch
        image, _ = altered(image, proposal(image, 1, 2))
        assert partition(image, "t").leader_epoch == epoch, "growing never is one"


# Rejected proposals

Change = Callable[[ProposedIsr], ProposedIsr]
REFUSED: list[tuple[str, Change, ErrorCode]] = [
    ("an unknown topic", lambda p: replace(p, topic_id=UUID(int=5)), ErrorCode.unknown_topic_id),
    ("no topic id", lambda p: replace(p, topic_id=UUID(int=0)), ErrorCode.unknown_topic_id),
    ("no such partition", lambda p: replace(p, index=9), ErrorCode.unknown_topic_or_partition),
    ("a later leader epoch", lambda p: replace(p, leader_epoch=2), ErrorCode.not_controller),
    ("a later partition epoch", lambda p: replace(p, partition_epoch=2), ErrorCode.not_controller),
    ("both", lambda p: replace(p, leader_epoch=0, partition_epoch=2), ErrorCode.not_controller),
    ("an older leader epoch", lambda p: replace(p, leader_epoch=0), ErrorCode.fenced_leader_epoch),
    (
        "an older partition epoch",
        lambda p: replace(p, partition_epoch=0),
        ErrorCode.invalid_update_version,
    ),
    ("nobody", lambda p: replace(p, isr=[]), ErrorCode.invalid_request),
    ("without the leader", lambda p: replace(p, isr=[(3, -1)]), ErrorCode.invalid_request),
    ("no replica", lambda p: replace(p, isr=[(2, -1), (4, -1)]), ErrorCode.invalid_request),
    ("one twice", lambda p: replace(p, isr=[(2, -1), (2, -1)]), ErrorCode.invalid_request),
    ("recovers again", lambda p: replace(p, recovery_state=1), ErrorCode.invalid_request),
    ("no such state", lambda p: replace(p, recovery_state=7), ErrorCode.invalid_request),
]


@pytest.mark.parametrize(("change", "code"), [row[1:] for row in REFUSED], ids=lambda _: "")
def test_invalid_requests_are_rejected(
    image: MetadataImage, change: Change, code: ErrorCode
) -> None:
    """KIP-497, KIP-704. Broker 2 leads the partition with leader epoch 1 and partition epoch 1."""
    image = unfenced(fenced(image, 1), 1)
    assert (partition(image, "t").leader_epoch, partition(image, "t").partition_epoch) == (1, 1)
    epoch = image.brokers[2].epoch
    plan = alter_partitions(image, 2, epoch, [change(replace(proposal(image, 2)))])
    assert plan.result[0].error_code is code
    assert plan.result[0].state is None
    assert plan.records == []


def test_only_the_leader_may_alter_isr(image: MetadataImage) -> None:
    _, response = altered(image, proposal(image, 1, 2), broker=2)
    assert response.error_code is ErrorCode.invalid_request


def test_only_current_broker_epoch_may_alter_isr(image: MetadataImage) -> None:
    with pytest.raises(KafkaError) as refused:
        alter_partitions(image, 1, image.brokers[1].epoch - 1, [proposal(image, 1, 2)])
    assert refused.value.code is ErrorCode.stale_broker_epoch


def shutting_down(image: MetadataImage) -> MetadataImage:
    return committed(image, begin_controlled_shutdown(image, 3, image.brokers[3].epoch).records)


def unregistered(image: MetadataImage) -> MetadataImage:
    return committed(image, unregister_broker(image, 3).records)


@pytest.mark.parametrize("gone", [lambda image: fenced(image, 3), shutting_down, unregistered])
def test_fenced_replica_is_ineligible_for_isr(
    image: MetadataImage, gone: Callable[[MetadataImage], MetadataImage]
) -> None:
    """KIP-841, also if the leader does not know the broker epoch."""
    image = gone(image)
    for epoch in (-1, 0):
        proposed = proposal(image, 1, 2)
        proposed = replace(proposed, isr=[*proposed.isr, (3, epoch)])
        assert altered(image, proposed)[1].error_code is ErrorCode.ineligible_replica


def test_replica_with_old_broker_epoch_is_ineligible_for_isr(image: MetadataImage) -> None:
    """KIP-903: the leader received fetches of an earlier incarnation, whose log may be lost."""
    seen = image.brokers[3].epoch
    again = registration(3, incarnation=1)
    image, _ = perform(image, register_broker(image, again, next_offset=image.offset + 1))
    image = unfenced(image, 3)
    proposed = proposal(image, 1, 2)
    old = replace(proposed, isr=[*proposed.isr, (3, seen)])
    assert altered(image, old)[1].error_code is ErrorCode.ineligible_replica
    unchecked = replace(proposed, isr=[*proposed.isr, (3, -1)])
    assert altered(image, unchecked)[1].error_code is ErrorCode.none
    assert altered(image, proposal(image, 1, 2, 3))[1].error_code is ErrorCode.none


# Effects


def reassigned(image: MetadataImage, *replicas: int) -> MetadataImage:
    return perform(image, alter_reassignments(image, [Reassignment("t", 0, replicas)]))[0]


def test_reassignment_completes_when_added_replicas_are_in_sync(image: MetadataImage) -> None:
    image = reassigned(image, 1, 2, 4)
    image, response = altered(image, proposal(image, 1, 2, 3, 4))
    done = partition(image, "t")
    assert (done.replicas, done.isr, done.is_reassigning) == ((1, 2, 4), (1, 2, 4), False)
    assert done.leader_epoch == 1, "a removed replica must be fenced by a new leader epoch"
    assert response.state == done


def test_reassigned_leader_gets_new_leader_in_response(image: MetadataImage) -> None:
    image = reassigned(image, 2, 3, 4)
    image, response = altered(image, proposal(image, 1, 2, 3, 4))
    assert response.error_code is ErrorCode.new_leader_elected
    assert response.state is None
    done = partition(image, "t")
    assert (done.replicas, done.isr, done.leader) == ((2, 3, 4), (2, 3, 4), 2)


def test_reassignment_waits_for_added_replicas(image: MetadataImage) -> None:
    image = reassigned(image, 1, 4)
    image, response = altered(image, proposal(image, 1, 2))
    assert response.error_code is ErrorCode.none
    assert partition(image, "t").is_reassigning


def test_replica_leaving_isr_below_minimum_joins_elr() -> None:
    """KIP-966: nothing is committed below min.insync.replicas, so the replica still has all committed records."""
    image = on_brokers(1, 2, 3, min_insync_replicas="2")
    image, _ = altered(image, proposal(image, 1, 2))
    assert partition(image, "t").elr == ()
    image, _ = altered(image, proposal(image, 1))
    assert (partition(image, "t").isr, partition(image, "t").elr) == ((1,), (2,))
    image, _ = altered(image, proposal(image, 1, 3))
    assert (partition(image, "t").isr, partition(image, "t").elr) == ((1, 3), ())


def recovering() -> MetadataImage:
    """Broker 2 leads after an unclean election."""
    configs = {MIN_ISR: "1", UNCLEAN_ELECTION: "true"}
    image, _ = create(cluster(4), NewTopic("t", assignments={0: (1, 2)}, configs=configs))
    image, _ = altered(image, proposal(image, 1))
    image = fenced(image, 1)
    found = partition(image, "t")
    assert (found.leader, found.isr, found.leader_recovery_state) == (2, (2,), 1)
    return unfenced(image, 1)


def test_recovering_leader_is_alone_in_isr() -> None:
    """KIP-704."""
    image = recovering()
    _, response = altered(image, proposal(image, 2, 1, recovery=1), broker=2)
    assert response.error_code is ErrorCode.invalid_request
    image, response = altered(image, proposal(image, 2, recovery=1), broker=2)
    assert response.error_code is ErrorCode.none
    assert partition(image, "t").leader_recovery_state == 1
    image, response = altered(image, proposal(image, 2, 1), broker=2)
    assert response.error_code is ErrorCode.none
    found = partition(image, "t")
    assert (found.isr, found.leader_recovery_state, found.leader) == ((2, 1), 0, 2)
