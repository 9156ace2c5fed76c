"""Changes of many partitions have the same result in small batches as in one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from odradek.protocol.schemas.topic_records import PartitionChangeRecord, RemoveTopicRecord
from odradek.replication.controller.broker_directories import mark_directories_offline
from odradek.replication.controller.broker_fencing import (
    begin_controlled_shutdown,
    fence_broker,
    unfence_broker,
)
from odradek.replication.controller.broker_registration import register_broker
from odradek.replication.controller.controller_result import ControllerResult
from odradek.replication.controller.image import LOST, MetadataImage
from odradek.replication.controller.partition_update_batches import (
    PARTITIONS_PER_BATCH,
    PartitionUpdateBatches,
    elect_for_electable_partitions,
    elect_for_leaderless_partitions,
    remove_from_isrs,
    remove_from_offline_directories,
    update_for_previous_incarnation,
)
from odradek.replication.controller.topics import NewTopic
from tests.support.cluster_images import (
    cluster,
    committed,
    create,
    directory,
    perform,
    registration,
)

ROUND = ((1, 2, 3), (2, 3, 1), (3, 1, 2))


@pytest.fixture
def image() -> MetadataImage:
    """100 partitions on three brokers, or on broker 1 only, in the only directory of broker 1."""
    wanted = {n: ROUND[n % len(ROUND)] for n in range(60)}
    alone = dict.fromkeys(range(40), (1,))
    return create(cluster(3), NewTopic("t", assignments=wanted), NewTopic("u", assignments=alone))[
        0
    ]


def stepped(image: MetadataImage, steps: PartitionUpdateBatches) -> MetadataImage:
    for operation in steps.operations():
        plan = operation(image)
        assert len(plan.records) <= PARTITIONS_PER_BATCH
        image, _ = perform(image, plan)
    return image


def state(image: MetadataImage) -> Any:
    """Return partitions and brokers without offsets and partition epochs, which may differ."""
    brokers = {each.id: (each.fenced, each.directories) for each in image.brokers.values()}
    return brokers, {
        (topic.name, index): (p.leader, p.leader_epoch, p.isr, p.elr, p.last_known_elr)
        for topic in image.topics_by_id.values()
        for index, p in topic.partitions.items()
    }


def fenced(image: MetadataImage, *brokers: int) -> MetadataImage:
    for broker in brokers:
        epoch = image.brokers[broker].epoch
        image = committed(image, fence_broker(image, broker, epoch).records)
    return image


Operation = Callable[[MetadataImage], ControllerResult[Any]]


def epoch_of(image: MetadataImage, broker: int = 1) -> int:
    return image.brokers[broker].epoch


def test_partitions_of_broker_to_be_fenced(image: MetadataImage) -> None:
    whole = fenced(image, 1)
    steps = remove_from_isrs(image, 1)
    assert len(steps.keys) == 100
    left = stepped(image, steps)
    assert not left.brokers[1].fenced, "the broker is fenced only after its partitions have moved"
    plan = fence_broker(left, 1, epoch_of(left))
    assert len(plan.records) == 1
    assert state(committed(left, plan.records)) == state(whole)


def test_partitions_of_failed_directory(image: MetadataImage) -> None:
    failed = [directory(1)]
    whole = committed(image, mark_directories_offline(image, 1, epoch_of(image), failed).records)
    left = stepped(image, remove_from_offline_directories(image, 1, failed))
    plan = mark_directories_offline(left, 1, epoch_of(left), failed)
    assert len([each for each in plan.records if hasattr(each, "partition_id")]) == 0
    assert state(committed(left, plan.records)) == state(whole)


@pytest.mark.parametrize("clean", [True, False])
def test_partitions_of_restarted_broker(image: MetadataImage, clean: bool) -> None:
    """For fenced and active brokers, and with the effect of an unclean shutdown on the ELR."""
    for before in (image, fenced(image, 1), fenced(image, 2, 3, 1)):
        epoch = epoch_of(before) if clean else -1
        who = registration(1, incarnation=5, previous_epoch=epoch)
        whole, _ = perform(before, register_broker(before, who, next_offset=before.offset + 1))
        left = stepped(before, update_for_previous_incarnation(before, who))
        plan = register_broker(left, who, next_offset=left.offset + 1)
        assert len(plan.records) == 1
        assert state(committed(left, plan.records)) == state(whole)


def test_same_incarnation_keeps_isr_and_elr(image: MetadataImage) -> None:
    assert update_for_previous_incarnation(image, registration(1)).keys == ()
    assert update_for_previous_incarnation(image, registration(9)).keys == ()


def test_unfenced_broker_leads_its_leaderless_partitions(image: MetadataImage) -> None:
    dark = fenced(image, 2, 3, 1)
    whole = committed(dark, unfence_broker(dark, 1, epoch_of(dark)).records)
    first = unfence_broker(dark, 1, epoch_of(dark), at_once=PARTITIONS_PER_BATCH)
    assert len(first.records) == 1 + PARTITIONS_PER_BATCH
    begun = committed(dark, first.records)
    steps = elect_for_leaderless_partitions(begun)
    assert state(stepped(begun, steps)) == state(whole)
    assert {each.leader for each in whole.topics_by_name["t"].partitions.values()} == {1}


def test_leaderless_partitions_with_eligible_replica(image: MetadataImage) -> None:
    dark = fenced(image, 2, 3, 1)
    assert elect_for_electable_partitions(dark).keys == []
    whole = committed(dark, unfence_broker(dark, 1, epoch_of(dark)).records)
    begun = committed(
        dark, unfence_broker(dark, 1, epoch_of(dark), at_once=PARTITIONS_PER_BATCH).records
    )
    steps = elect_for_electable_partitions(begun)
    assert len(steps.keys) == 100 - PARTITIONS_PER_BATCH
    assert state(stepped(begun, steps)) == state(whole)
    assert elect_for_electable_partitions(whole).keys == []
    topic = begun.topics_by_name["u"]
    lost = PartitionChangeRecord(topic_id=topic.id, partition_id=39, directories=(LOST,))
    left = elect_for_electable_partitions(committed(begun, [lost])).keys
    assert left == [key for key in steps.keys if key != (topic.id, 39)], "1 serves, but not that"


def test_partitions_of_controlled_shutdown(image: MetadataImage) -> None:
    whole = committed(image, begin_controlled_shutdown(image, 1, epoch_of(image)).records)
    first = begin_controlled_shutdown(image, 1, epoch_of(image), at_once=PARTITIONS_PER_BATCH)
    assert len(first.records) == 1 + PARTITIONS_PER_BATCH
    begun = committed(image, first.records)
    assert begun.brokers[1].in_controlled_shutdown
    assert state(stepped(begun, remove_from_isrs(begun, 1))) == state(whole)


def test_each_batch_uses_the_current_image(image: MetadataImage) -> None:
    """The topic was deleted, or the broker has left the ISR already."""
    steps = remove_from_isrs(image, 1)
    operations = list(steps.operations())
    once = committed(image, operations[0](image).records)
    assert operations[0](once).records == []
    topic = image.topics_by_name["t"]
    gone = committed(once, [RemoveTopicRecord(topic_id=topic.id)])
    assert operations[1](gone).records == []
