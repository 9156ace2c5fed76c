"""Lifecycle of brokers: registration, fencing, shutdown and restart (KIP-631, KIP-841, KIP-966).

The records of a single broker are compared with those in the metadata log of Apache Kafka 4.3.0.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any
from uuid import UUID

import pytest

from odradek.protocol.errors import ErrorCode, KafkaError
from odradek.replication.controller.broker_directories import (
    assign_directories,
    mark_directories_cordoned,
    mark_directories_offline,
)
from odradek.replication.controller.broker_fencing import (
    begin_controlled_shutdown,
    fence_broker,
    start_broker,
    unfence_broker,
)
from odradek.replication.controller.broker_registration import register_broker, unregister_broker
from odradek.replication.controller.features import (
    DEFAULT_FEATURES,
    ELIGIBLE_LEADER_REPLICAS,
    METADATA_VERSION,
    SUPPORTED_FEATURES,
)
from odradek.replication.controller.image import LOST, UNASSIGNED, MetadataImage
from odradek.replication.controller.reassignments import Reassignment, alter_reassignments
from odradek.replication.controller.topics import NewTopic
from tests.support.cluster_images import (
    cluster,
    committed,
    create,
    directory,
    formatted,
    partition,
    perform,
    registration,
)

WITHOUT_ELR = {**DEFAULT_FEATURES, ELIGIBLE_LEADER_REPLICAS: 0}


def reported(records: Sequence[Any]) -> list[str]:
    """Format records as lines without their unchanged fields."""
    lines = []
    for record in records:
        defaults = type(record)()
        fields = {
            name: getattr(record, name)
            for name in record.__dataclass_fields__
            if getattr(record, name) != getattr(defaults, name)
            and name not in ("topic_id", "broker_epoch", "incarnation_id", "end_points")
            and name not in ("features", "log_dirs", "broker_id", "partition_id")
        }
        lines.append(f"{type(record).__name__} {fields}")
    return lines


def one_topic() -> MetadataImage:
    return create(cluster(1), NewTopic("alpha", 1, 1))[0]


def epoch_of(image: MetadataImage, broker: int = 1) -> int:
    return image.brokers[broker].epoch


def registered_again(
    image: MetadataImage, broker: int = 1, **changes: Any
) -> tuple[MetadataImage, Sequence[Any]]:
    plan = register_broker(
        image, registration(broker, incarnation=1, **changes), next_offset=image.offset + 1
    )
    return committed(image, plan.records), plan.records


# Records of Kafka


def test_clean_restart_has_the_records_of_kafka() -> None:
    image = one_topic()
    epoch = epoch_of(image)
    stopping = begin_controlled_shutdown(image, 1, epoch).records
    assert reported(stopping) == [
        "BrokerRegistrationChangeRecord {'in_controlled_shutdown': 1}",
        "PartitionChangeRecord {'isr': (), 'leader': -1, 'eligible_leader_replicas': (1,), "
        "'last_known_elr': (1,)}",
    ]
    image = committed(image, stopping)
    fencing = fence_broker(image, 1, epoch).records
    assert reported(fencing) == ["BrokerRegistrationChangeRecord {'fenced': 1}"]
    image = committed(image, fencing)

    image, registering = registered_again(image, previous_epoch=epoch)
    assert [type(record).__name__ for record in registering] == ["RegisterBrokerRecord"]
    unfencing = unfence_broker(image, 1, epoch_of(image)).records
    assert reported(unfencing) == [
        "BrokerRegistrationChangeRecord {'fenced': -1}",
        "PartitionChangeRecord {'isr': (1,), 'leader': 1, 'eligible_leader_replicas': (), "
        "'last_known_elr': ()}",
    ]
    after = partition(committed(image, unfencing), "alpha")
    assert (after.leader, after.leader_epoch, after.partition_epoch) == (1, 2, 2)
    assert after.leader_recovery_state == 0


def test_unclean_restart_has_the_records_of_kafka() -> None:
    image = one_topic()
    expiring = fence_broker(image, 1, epoch_of(image)).records
    assert reported(expiring) == [
        "PartitionChangeRecord {'isr': (), 'leader': -1, 'eligible_leader_replicas': (1,), "
        "'last_known_elr': (1,)}",
        "BrokerRegistrationChangeRecord {'fenced': 1}",
    ]
    image, registering = registered_again(committed(image, expiring))
    assert reported(registering[:1]) == ["PartitionChangeRecord {'eligible_leader_replicas': ()}"]
    unfencing = unfence_broker(image, 1, epoch_of(image)).records
    assert reported(unfencing) == [
        "BrokerRegistrationChangeRecord {'fenced': -1}",
        "PartitionChangeRecord {'isr': (1,), 'leader': 1, 'leader_recovery_state': 1, "
        "'last_known_elr': ()}",
    ]


# A broker in the process of the controller


@pytest.mark.parametrize("clean", [True, False])
def test_start_broker_registers_and_unfences(clean: bool) -> None:
    image = one_topic()
    who = registration(1, incarnation=1, previous_epoch=epoch_of(image) if clean else -1)
    plan = start_broker(image, who, next_offset=image.offset + 1)
    after = committed(image, plan.records)
    assert plan.result == epoch_of(after) == image.offset + 1
    assert after.brokers[1].active
    assert after.brokers[1].cordoned_directories == ()
    found = partition(after, "alpha")
    assert (found.leader, found.isr, found.elr, found.last_known_elr) == (1, (1,), (), ())
    assert found.leader_epoch == 2, "the leader epoch increases"
    assert found.leader_recovery_state == (0 if clean else 1)


def test_first_registration() -> None:
    image = formatted()
    plan = start_broker(image, registration(1), next_offset=image.offset + 1)
    assert [type(record).__name__ for record in plan.records] == [
        "RegisterBrokerRecord",
        "BrokerRegistrationChangeRecord",
        "BrokerRegistrationChangeRecord",
    ]


# Registration


def test_broker_registers_fenced_with_record_offset_as_epoch() -> None:
    image = formatted()
    plan = register_broker(image, registration(1), next_offset=41)
    broker = committed(image, plan.records).brokers[1]
    assert (plan.result, broker.epoch) == (41, 41)
    assert broker.fenced
    assert not broker.active
    assert broker.directories == (directory(1),)
    assert broker.endpoint("PLAINTEXT") is not None
    assert broker.endpoint("OTHER") is None


def test_same_incarnation_updates_its_registration() -> None:
    image = cluster(1)
    plan = register_broker(
        image, registration(1, rack="r"), next_offset=image.offset + 1, has_session=True
    )
    after = committed(image, plan.records)
    assert after.brokers[1].epoch == epoch_of(image)
    assert after.brokers[1].rack == "r"
    assert after.brokers[1].active


def test_new_incarnation_waits_for_session_expiration() -> None:
    image = cluster(1)
    with pytest.raises(KafkaError) as refused:
        register_broker(image, registration(1, incarnation=1), next_offset=9, has_session=True)
    assert refused.value.code is ErrorCode.duplicate_broker_registration


def test_registration_validates_directories() -> None:
    image = cluster(2)
    for directories in ([], [UUID(int=7)], [directory(3), directory(3)], [directory(2)]):
        who = registration(1)
        bad = type(who)(
            who.id, who.incarnation_id, who.endpoints, directories, who.features, who.rack
        )
        with pytest.raises(KafkaError) as refused:
            register_broker(image, bad, next_offset=99)
        assert refused.value.code is ErrorCode.invalid_registration


def test_broker_must_support_finalized_features() -> None:
    image = formatted()
    old = {**SUPPORTED_FEATURES, METADATA_VERSION: (7, 29)}
    with pytest.raises(KafkaError, match=r"finalized version 30 of metadata\.version") as refused:
        register_broker(image, registration(1, features=old), next_offset=1)
    assert refused.value.code is ErrorCode.unsupported_version
    unaware = {METADATA_VERSION: (7, 30)}
    with pytest.raises(KafkaError, match="finalized version 1"):
        register_broker(image, registration(1, features=unaware), next_offset=1)
    with pytest.raises(KafkaError, match="do not contain"):
        register_broker(image, registration(1, features={}), next_offset=1)


def test_old_broker_epoch_is_stale() -> None:
    image = cluster(1)
    for operation in (fence_broker, unfence_broker, begin_controlled_shutdown):
        with pytest.raises(KafkaError) as refused:
            operation(image, 1, epoch_of(image) + 1)
        assert refused.value.code is ErrorCode.stale_broker_epoch
        with pytest.raises(KafkaError, match="No broker registration found for broker id 9"):
            operation(image, 9, 0)


# Leaders and ISRs


def three_replicas(**features: Any) -> MetadataImage:
    image, _ = create(cluster(3, **features), NewTopic("t", assignments={0: (1, 2, 3)}))
    return image


def test_next_replica_leads_when_leader_is_fenced() -> None:
    image = three_replicas()
    image = committed(image, fence_broker(image, 1, epoch_of(image)).records)
    found = partition(image, "t")
    assert (found.leader, found.isr, found.leader_epoch) == (2, (2, 3), 1)
    assert found.elr == (), "min.insync.replicas is 1: two in sync are more than enough"


def test_fencing_a_follower_keeps_the_leader() -> None:
    image = three_replicas()
    image = committed(image, fence_broker(image, 3, epoch_of(image, 3)).records)
    found = partition(image, "t")
    assert (found.leader, found.isr, found.leader_epoch) == (1, (1, 2), 0)


def test_last_isr_member_stays_without_elr() -> None:
    image = three_replicas(features=WITHOUT_ELR)
    for broker in (1, 2, 3):
        image = committed(image, fence_broker(image, broker, epoch_of(image, broker)).records)
    found = partition(image, "t")
    assert (found.leader, found.isr, found.elr, found.last_known_elr) == (-1, (3,), (), ())
    image = committed(image, unfence_broker(image, 1, epoch_of(image, 1)).records)
    assert partition(image, "t").leader == -1, "1 may have missed what 3 has"
    image = committed(image, unfence_broker(image, 3, epoch_of(image, 3)).records)
    assert (partition(image, "t").leader, partition(image, "t").isr) == (3, (3,))


def test_leaderless_partition_has_no_last_known_leader() -> None:
    image = three_replicas(features=WITHOUT_ELR)
    for broker in (1, 2, 3):
        image = committed(image, fence_broker(image, broker, epoch_of(image, broker)).records)
    image = replace(image, features=DEFAULT_FEATURES)
    image, (error,) = perform(image, alter_reassignments(image, [Reassignment("t", 0, (3,))]))
    assert error is None
    found = partition(image, "t")
    assert (found.replicas, found.leader, found.isr) == ((3,), -1, (3,))
    assert found.last_known_elr == ()


def test_unclean_election_without_elr_depends_on_topic_config() -> None:
    image = cluster(2, features=WITHOUT_ELR)
    unclean = {"unclean.leader.election.enable": "true"}
    image, _ = create(
        image,
        NewTopic("clean", assignments={0: (1, 2)}),
        NewTopic("unclean", assignments={0: (1, 2)}, configs=unclean),
    )
    for broker in (2, 1):
        image = committed(image, fence_broker(image, broker, epoch_of(image, broker)).records)
    image = committed(image, unfence_broker(image, 2, epoch_of(image, 2)).records)
    assert partition(image, "clean").leader == -1
    found = partition(image, "unclean")
    assert (found.leader, found.isr, found.leader_recovery_state) == (2, (2,), 1)


def test_elr_member_leads_with_empty_isr() -> None:
    image = cluster(3)
    image, _ = create(
        image,
        NewTopic("t", assignments={0: (1, 2, 3)}, configs={"min.insync.replicas": "3"}),
    )
    image = committed(image, fence_broker(image, 1, epoch_of(image, 1)).records)
    assert (partition(image, "t").isr, partition(image, "t").elr) == ((2, 3), (1,))
    image = committed(image, fence_broker(image, 2, epoch_of(image, 2)).records)
    image = committed(image, fence_broker(image, 3, epoch_of(image, 3)).records)
    found = partition(image, "t")
    assert (found.leader, found.isr, found.elr, found.last_known_elr) == (-1, (), (1, 2, 3), (3,))
    image = committed(image, unfence_broker(image, 1, epoch_of(image, 1)).records)
    found = partition(image, "t")
    assert (found.leader, found.isr, found.elr, found.last_known_elr) == (1, (1,), (2, 3), ())
    assert found.leader_recovery_state == 0, "1 was in the ISR when the last write was acknowledged"


def test_unclean_shutdown_removes_broker_from_elr() -> None:
    image = three_replicas()
    image, _ = registered_again(image, 2)
    found = partition(image, "t")
    assert (found.leader, found.isr, found.elr) == (1, (1, 3), ())


def test_unregistered_broker_is_removed_from_isr_and_elr() -> None:
    image = three_replicas()
    image = committed(image, unregister_broker(image, 1).records)
    assert 1 not in image.brokers
    assert (partition(image, "t").leader, partition(image, "t").isr) == (2, (2, 3))
    with pytest.raises(KafkaError) as refused:
        unregister_broker(image, 1)
    assert refused.value.code is ErrorCode.broker_id_not_registered


# Directories


def test_failed_directory_only_affects_its_replicas() -> None:
    image = cluster(2, directories=2)
    image, _ = create(
        image, NewTopic("a", assignments={0: (1, 2)}), NewTopic("b", assignments={0: (1, 2)})
    )

    where = {
        (image.topics_by_name[name].id, 0): directory(1, number)
        for number, name in enumerate(("a", "b"))
    }
    image = committed(image, assign_directories(image, 1, epoch_of(image), where).records)
    plan = mark_directories_offline(image, 1, epoch_of(image), [directory(1, 1)])
    image = committed(image, plan.records)
    assert image.brokers[1].directories == (directory(1, 0),)
    assert partition(image, "a").leader == 1
    assert (partition(image, "b").leader, partition(image, "b").isr) == (2, (2,))
    assert image.offline_replicas(partition(image, "a")) == ()
    assert image.offline_replicas(partition(image, "b")) == (1,)
    assert not mark_directories_offline(image, 1, epoch_of(image), [directory(1, 1)]).records


@pytest.mark.parametrize("replicas", [(1, 2), (1,)], ids=["others have it", "it is alone"])
def test_replica_in_new_directory_is_not_eligible(
    replicas: tuple[int, ...],
) -> None:
    """The failed directory was removed, and the broker restarted cleanly, so its replica is new and empty.

    If there is no other replica, it is not a new one: the log was moved to another directory.
    """
    image = cluster(2, directories=2)
    image, _ = create(
        image, NewTopic("t", assignments={0: replicas}, configs={"min.insync.replicas": "2"})
    )
    key, gone, left = (image.topics_by_name["t"].id, 0), directory(1, 0), directory(1, 1)
    image, _ = perform(image, assign_directories(image, 1, epoch_of(image), {key: gone}))
    image, _ = perform(image, mark_directories_offline(image, 1, epoch_of(image), [gone]))
    assert partition(image, "t").elr == (1,)
    epoch = epoch_of(image)
    image, _ = perform(image, fence_broker(image, 1, epoch))
    again = replace(
        registration(1, directories=2, incarnation=1, previous_epoch=epoch), directories=[left]
    )
    image, epoch = perform(image, register_broker(image, again, next_offset=image.offset + 1))
    image, _ = perform(image, unfence_broker(image, 1, epoch))
    assert partition(image, "t").elr == (1,)
    assert partition(image, "t").leader != 1
    image, _ = perform(image, assign_directories(image, 1, epoch, {key: left}))
    image, _ = perform(image, fence_broker(image, 2, image.brokers[2].epoch))
    expected = -1 if len(replicas) > 1 else 1
    assert partition(image, "t").leader == expected


def test_replicas_are_distinguished_by_directory() -> None:
    broker = cluster(1, directories=2).brokers[1]
    assert broker.has_online(directory(1, 1))
    assert broker.has_online(UNASSIGNED)
    assert not broker.has_online(LOST)
    assert not broker.has_online(directory(2, 0))


def test_cordoned_directories_are_written_on_change() -> None:
    image = cluster(1, directories=2)
    epoch = epoch_of(image)
    first = mark_directories_cordoned(image, 1, epoch, [])
    assert reported(first.records) == ["BrokerRegistrationChangeRecord {'cordoned_log_dirs': ()}"]
    image = committed(image, first.records)
    assert not mark_directories_cordoned(image, 1, epoch, []).records
    image, _ = perform(image, mark_directories_cordoned(image, 1, epoch, [directory(1, 1)]))
    assert image.brokers[1].has_uncordoned_directory
    image, _ = perform(
        image, mark_directories_cordoned(image, 1, epoch, [directory(1, 1), directory(1, 0)])
    )
    assert not image.brokers[1].has_uncordoned_directory
