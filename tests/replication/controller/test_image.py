"""Metadata images: effects of records, contradicting records, deltas, and snapshots."""

from __future__ import annotations

from dataclasses import replace
from typing import Any
from uuid import UUID

import pytest

from odradek.protocol.schemas import cluster_records as cluster_schemas
from odradek.protocol.schemas import security_records as security
from odradek.protocol.schemas import topic_records as topics
from odradek.protocol.schemas.serde import decode_metadata_record, encode_metadata_record
from odradek.replication.controller.features import (
    CORDONED_DIRECTORIES,
    DIRECTORY_ASSIGNMENT,
    ELR_SUPPORT,
    METADATA_VERSION,
    record_version,
)
from odradek.replication.controller.image import (
    BROKER,
    MIGRATING,
    TOPIC,
    InvalidMetadata,
    MetadataDelta,
    MetadataImage,
)
from odradek.replication.controller.image_builder import apply_records
from odradek.replication.controller.image_records import snapshot_records
from odradek.replication.controller.topics import NewTopic, delete_topics
from tests.support.cluster_images import cluster, committed, create, partition

ALPHA, BETA = UUID(int=1 << 100), UUID(int=2 << 100)


def delta(image: MetadataImage, *records: Any) -> MetadataDelta:
    return apply_records(image, records, offset=image.offset + len(records))


def after(image: MetadataImage, *records: Any) -> MetadataImage:
    return delta(image, *records).image


def topic(name: str = "alpha", topic_id: UUID = ALPHA) -> Any:
    return topics.TopicRecord(name=name, topic_id=topic_id)


def new_partition(index: int = 0, topic_id: UUID = ALPHA, **fields: Any) -> Any:
    values: dict[str, Any] = {
        "replicas": (1, 2),
        "isr": (1, 2),
        "leader": 1,
        "leader_epoch": 0,
        "partition_epoch": 0,
        "directories": (UUID(int=1001), UUID(int=1002)),
        **fields,
    }
    return topics.PartitionRecord(partition_id=index, topic_id=topic_id, **values)


def one_partition() -> MetadataImage:
    return after(MetadataImage(), topic(), new_partition())


def change(**fields: Any) -> Any:
    return topics.PartitionChangeRecord(partition_id=0, topic_id=ALPHA, **fields)


# Immutability


def test_image_is_immutable() -> None:
    before = cluster(1)
    copy = replace(before)
    first, _ = create(before, NewTopic("a", 2, configs={"x": "1"}))
    second = after(first, topics.ConfigRecord(resource_type=TOPIC, resource_name="a", name="y"))
    second = committed(second, delete_topics(second, ["a"]).records)
    assert before == copy
    assert list(first.topics_by_name) == ["a"]
    assert first.topic_configs("a") == {"x": "1"}
    assert second.topics_by_name == {}


def test_unchanged_tables_are_shared() -> None:
    before, _ = create(cluster(1), NewTopic("a"), NewTopic("b"))
    later = after(before, topics.ConfigRecord(resource_type=BROKER, name="x", value="1"))
    assert later.topics_by_name is before.topics_by_name
    assert later.brokers is before.brokers
    grown, _ = create(before, NewTopic("c"), seed=1)
    assert grown.topics_by_name["a"] is before.topics_by_name["a"]


# Partitions


def test_partition_change_increases_partition_and_leader_epoch() -> None:
    image = after(one_partition(), change(isr=(1,)))
    found = partition(image, "alpha")
    assert (found.isr, found.leader_epoch, found.partition_epoch) == ((1,), 0, 1)
    image = after(image, change(leader=1))
    found = partition(image, "alpha")
    assert (found.leader, found.leader_epoch, found.partition_epoch) == (1, 1, 2)


def test_every_field_of_a_partition_change() -> None:
    changed = after(
        one_partition(),
        change(
            isr=(2,),
            leader=2,
            replicas=(2, 3),
            removing_replicas=(2,),
            adding_replicas=(3,),
            leader_recovery_state=1,
            directories=(UUID(int=1002), UUID(int=1003)),
            eligible_leader_replicas=(3,),
            last_known_elr=(1,),
        ),
    )
    found = partition(changed, "alpha")
    assert found.replicas == (2, 3)
    assert (found.isr, found.leader, found.leader_recovery_state) == ((2,), 2, 1)
    assert (found.removing_replicas, found.adding_replicas) == ((2,), (3,))
    assert (found.elr, found.last_known_elr) == ((3,), (1,))
    assert found.directory_of(3) == UUID(int=1003)
    assert found.is_reassigning
    unchanged = partition(after(changed, change()), "alpha")
    assert unchanged == replace(found, partition_epoch=2)


def test_partition_without_directories() -> None:
    image = after(MetadataImage(), topic(), new_partition(directories=()))
    assert partition(image, "alpha").directories == (MIGRATING, MIGRATING)


def test_clear_elr_of_one_topic_or_all() -> None:
    """A partition without ELR is unchanged; a changed partition has a new partition epoch."""
    image = after(
        MetadataImage(),
        topic(),
        new_partition(eligible_leader_replicas=(3,), last_known_elr=(4,)),
        topic("beta", BETA),
        new_partition(topic_id=BETA, eligible_leader_replicas=(3,)),
        new_partition(1, topic_id=BETA),
    )
    one = after(image, topics.ClearElrRecord(topic_name="alpha"))
    assert (partition(one, "alpha").elr, partition(one, "alpha").last_known_elr) == ((), ())
    assert partition(one, "alpha").partition_epoch == 1
    assert partition(one, "beta").elr == (3,)
    assert partition(one, "beta").partition_epoch == 0
    both = after(one, topics.ClearElrRecord())
    assert partition(both, "beta").elr == ()
    assert [partition(both, name).partition_epoch for name in ("alpha", "beta")] == [1, 1]
    assert partition(both, "beta", 1).partition_epoch == 0


def test_snapshot_contains_elr_after_feature_was_disabled() -> None:
    """The ELR stays until the partition changes, and may have the only replicas that can lead (KIP-966)."""
    image = after(
        MetadataImage(),
        cluster_schemas.FeatureLevelRecord(name=METADATA_VERSION, feature_level=ELR_SUPPORT),
        topic(),
        new_partition(isr=(), leader=-1, eligible_leader_replicas=(2,), last_known_elr=(1,)),
    )
    again = after(MetadataImage(), *read_back(image))
    assert partition(again, "alpha") == partition(image, "alpha")


def read_back(image: MetadataImage) -> list[Any]:
    """Return the records of a snapshot after encoding and decoding."""
    return [
        decode_metadata_record(
            encode_metadata_record(record, record_version(record, image.features))
        )
        for record in snapshot_records(image)
    ]


# Contradicting records


@pytest.mark.parametrize(
    "record",
    [
        topic("alpha", BETA),
        topic("beta", ALPHA),
        topics.RemoveTopicRecord(topic_id=BETA),
        new_partition(topic_id=BETA),
        new_partition(1, directories=(UUID(int=1001),)),
        topics.PartitionChangeRecord(topic_id=ALPHA, partition_id=7),
        topics.PartitionChangeRecord(topic_id=BETA, partition_id=0),
        topics.ClearElrRecord(topic_name="beta"),
        cluster_schemas.BrokerRegistrationChangeRecord(broker_id=1, broker_epoch=1),
        cluster_schemas.UnregisterBrokerRecord(broker_id=1, broker_epoch=1),
        cluster_schemas.FenceBrokerRecord(id=1, epoch=1),
        cluster_schemas.FeatureLevelRecord(name=METADATA_VERSION, feature_level=31),
        cluster_schemas.FeatureLevelRecord(name=METADATA_VERSION, feature_level=6),
        security.RemoveAccessControlEntryRecord(id=UUID(int=9)),
        "no record at all",
    ],
    ids=str,
)
def test_contradicting_records_raise_invalid_metadata(record: Any) -> None:
    with pytest.raises(InvalidMetadata):
        after(one_partition(), record)


def test_producer_ids_do_not_decrease() -> None:
    image = after(MetadataImage(), cluster_schemas.ProducerIdsRecord(next_producer_id=2000))
    with pytest.raises(InvalidMetadata):
        after(image, cluster_schemas.ProducerIdsRecord(next_producer_id=2000))


# Other records


def test_old_fencing_records() -> None:
    image = cluster(1)
    epoch = image.brokers[1].epoch
    image = after(image, cluster_schemas.FenceBrokerRecord(id=1, epoch=epoch))
    assert not image.is_active(1)
    image = after(image, cluster_schemas.UnfenceBrokerRecord(id=1, epoch=epoch))
    assert image.is_active(1)


def test_features_are_set_and_removed() -> None:
    level = cluster_schemas.FeatureLevelRecord
    image = after(MetadataImage(), level(name="group.version", feature_level=1))
    assert image.features == {"group.version": 1}
    assert after(image, level(name="group.version", feature_level=0)).features == {}
    assert after(image, level(name="kraft.version", feature_level=1)).features == image.features


def test_security_and_quota_records() -> None:
    acl = security.AccessControlEntryRecord(id=UUID(int=7), principal="User:a", operation=3)
    scram = security.UserScramCredentialRecord(name="a", mechanism=1, iterations=4096)
    token = security.DelegationTokenRecord(token_id="t", owner="User:a")
    who = (
        security.ClientQuotaEntity(entity_type="user", entity_name="a"),
        security.ClientQuotaEntity(entity_type="client-id", entity_name=None),
    )
    quota = security.ClientQuotaRecord(entity=who, key="producer_byte_rate", value=1.5)
    image = after(MetadataImage(), acl, scram, token, quota)
    assert image.acls == {UUID(int=7): acl}
    assert image.scram == {(1, "a"): scram}
    assert image.delegation_tokens == {"t": token}
    assert image.quotas == {
        (("client-id", None), ("user", "a")): {"producer_byte_rate": 1.5},
    }
    image = after(
        image,
        security.RemoveAccessControlEntryRecord(id=UUID(int=7)),
        security.RemoveUserScramCredentialRecord(name="a", mechanism=1),
        security.RemoveDelegationTokenRecord(token_id="t"),
        replace(quota, remove=True),
        cluster_schemas.NoOpRecord(),
        cluster_schemas.ZkMigrationStateRecord(),
    )
    assert replace(image, offset=-1, epoch=-1) == MetadataImage()


# Deltas


def test_delta_contains_changes() -> None:
    before, _ = create(cluster(1), NewTopic("a", configs={"x": "1"}), NewTopic("b"))
    a, b = before.topics_by_name["a"], before.topics_by_name["b"]
    config = topics.ConfigRecord(resource_type=BROKER, resource_name="1", name="y", value="2")
    step = delta(
        before,
        topics.RemoveTopicRecord(topic_id=a.id),
        topic("a"),
        new_partition(),
        new_partition(1, topic_id=b.id),
        config,
        cluster_schemas.FeatureLevelRecord(name="group.version", feature_level=0),
    )
    assert step.before is before
    assert step.deleted_topics == {a.id: a}
    assert list(step.created_topics) == [ALPHA]
    assert step.created_topics[ALPHA] is step.image.topics_by_name["a"]
    assert list(step.changed_partitions) == [(ALPHA, 0), (b.id, 1)]
    assert step.changed_configs == {(TOPIC, "a"), (BROKER, "1")}
    assert step.changed_features == {"group.version"}
    assert step.changed_brokers == frozenset()
    assert len(step.records) == 6


def test_topic_created_and_deleted_in_one_delta_is_omitted() -> None:
    step = delta(
        MetadataImage(), topic(), new_partition(), topics.RemoveTopicRecord(topic_id=ALPHA)
    )
    assert (step.created_topics, step.deleted_topics, step.changed_partitions) == ({}, {}, {})
    assert step.image.topics_by_id == {}


def test_unchanged_registration_is_not_in_delta() -> None:
    image = cluster(1)
    record = cluster_schemas.BrokerRegistrationChangeRecord(
        broker_id=1, broker_epoch=image.brokers[1].epoch, fenced=-1
    )
    assert delta(image, record).changed_brokers == frozenset()


# Versions of records


@pytest.mark.parametrize(
    ("level", "partition_version", "broker_version"),
    [
        (7, 0, 1),
        (8, 0, 2),
        (DIRECTORY_ASSIGNMENT - 1, 0, 2),
        (DIRECTORY_ASSIGNMENT, 1, 3),
        (ELR_SUPPORT, 2, 3),
        (CORDONED_DIRECTORIES, 2, 4),
    ],
)
def test_record_fields_depend_on_metadata_version(
    level: int, partition_version: int, broker_version: int
) -> None:
    """J-25: records have directories once metadata.version is upgraded, when every node supports them.

    Kafka 4.x does the same, so no second rolling restart is needed.
    """
    features = {METADATA_VERSION: level}
    assert record_version(new_partition(), features) == partition_version
    assert record_version(change(), features) == partition_version
    assert record_version(cluster_schemas.RegisterBrokerRecord(), features) == broker_version
    assert record_version(topic(), features) == 0


@pytest.mark.parametrize(
    ("fields", "version"),
    [
        ({"fenced": 1}, 0),
        ({"in_controlled_shutdown": 1}, 1),
        ({"log_dirs": (UUID(int=101),)}, 2),
        ({"cordoned_log_dirs": ()}, 3),
    ],
)
def test_broker_change_record_version_depends_on_fields(
    fields: dict[str, Any], version: int
) -> None:
    record = cluster_schemas.BrokerRegistrationChangeRecord(**fields)
    assert record_version(record, {}) == version
    assert decode_metadata_record(encode_metadata_record(record, version)) == record
