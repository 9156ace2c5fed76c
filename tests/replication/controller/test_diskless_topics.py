"""Creation, growth and changes of diskless topics at the controller (KIP-1150, KIP-1164)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from functools import partial
from typing import Any

import pytest

from odradek.broker.config.alteration_validation import validate_resource_configs
from odradek.broker.config.server_config import ServerConfig
from odradek.protocol.errors import ErrorCode
from odradek.protocol.topics import DISKLESS_METADATA
from odradek.replication.controller.alter_partition import ProposedIsr, alter_partitions
from odradek.replication.controller.broker_fencing import fence_broker, unfence_broker
from odradek.replication.controller.configs import (
    AlterConfigOp,
    ConfigAlteration,
    alter_configs,
    incremental_alter_configs,
)
from odradek.replication.controller.create_partitions import NewPartitions, create_partitions
from odradek.replication.controller.diskless_topics import DisklessMetadataTopic
from odradek.replication.controller.image import TOPIC, MetadataImage
from odradek.replication.controller.leader_and_isr_updates import (
    electable_partitions,
    partitions_without_leader,
)
from odradek.replication.controller.leader_election import (
    ElectionType,
    balance_leaders,
    elect_leaders,
    elect_uncleanly,
)
from odradek.replication.controller.reassignments import Reassignment, alter_reassignments
from odradek.replication.controller.topics import (
    CreatedTopic,
    NewTopic,
    TopicDefaults,
    create_topics,
)
from tests.support.cluster_images import cluster, entropy, perform

CONFIG = ServerConfig.from_properties(
    {"diskless.storage.system.enable": "true", "diskless.storage.url": "/objects"}, test_node=True
)
VALIDATE = partial(validate_resource_configs, CONFIG)
METADATA_CONFIGS = {
    "cleanup.policy": "delete",
    "retention.ms": "-1",
    "retention.bytes": "-1",
    "unclean.leader.election.enable": "false",
    "min.insync.replicas": "2",
}
DEFAULTS = TopicDefaults(2, 3, DisklessMetadataTopic(4, 3, METADATA_CONFIGS))
DISKLESS = {"diskless.enable": "true"}


def create(
    image: MetadataImage, *topics: NewTopic, defaults: TopicDefaults = DEFAULTS, seed: int = 0
) -> tuple[MetadataImage, list[CreatedTopic]]:
    return perform(
        image,
        create_topics(
            image, topics, entropy=entropy(seed), defaults=defaults, validate_config=VALIDATE
        ),
    )


def events(**fields: Any) -> NewTopic:
    return NewTopic("events", configs=DISKLESS, **fields)


def created(image: MetadataImage, topic: NewTopic, **more: Any) -> MetadataImage:
    image, (response,) = create(image, topic, **more)
    assert response.error_code == ErrorCode.none, response.error_message
    return image


def coordinators(image: MetadataImage, topic: str = "events") -> list[int]:
    return [each.diskless_coordinator for each in image.topics_by_name[topic].partitions.values()]


def refusal(image: MetadataImage, topic: NewTopic, **more: Any) -> tuple[ErrorCode, str]:
    after, (response,) = create(image, topic, **more)
    assert after == image
    return response.error_code, response.error_message or ""


def test_first_diskless_topic_creates_metadata_topic_d13_d15() -> None:
    image, (response,) = create(cluster(), events())
    assert (response.partitions, response.replication_factor) == (2, 1)
    assert response.configs == DISKLESS
    metadata = image.topics_by_name[DISKLESS_METADATA]
    assert [len(each.replicas) for each in metadata.partitions.values()] == [3] * 4
    assert image.topic_configs(DISKLESS_METADATA) == METADATA_CONFIGS
    assert not metadata.is_diskless
    assert image.topics_by_name["events"].is_diskless
    assert list(image.diskless_topics.values()) == ["events"]


def test_diskless_partitions_have_no_replicas() -> None:
    for each in created(cluster(), events()).topics_by_name["events"].partitions.values():
        assert (each.replicas, each.isr, each.directories) == ((), (), ())
        assert (each.leader, each.leader_epoch, each.partition_epoch) == (-1, 0, 0)


def test_partitions_are_spread_over_coordinators_from_a_random_one_d14() -> None:
    firsts = set()
    for seed in range(20):
        found = coordinators(created(cluster(), events(partitions=10), seed=seed))
        assert found == [(found[0] + index) % 4 for index in range(10)]
        firsts.add(found[0])
    assert firsts == {0, 1, 2, 3}


def test_topics_of_one_request_share_new_metadata_topic() -> None:
    image, responses = create(
        cluster(), NewTopic("a", configs=DISKLESS), NewTopic("b", configs=DISKLESS)
    )
    assert [each.error_code for each in responses] == [ErrorCode.none] * 2
    assert len(image.topics_by_name) == 3


@pytest.mark.parametrize("is_first", [True, False])
def test_metadata_topic_in_the_same_request(is_first: bool) -> None:
    wanted = NewTopic(DISKLESS_METADATA, 7, 1, configs=METADATA_CONFIGS)
    topics = [wanted, events()] if is_first else [events(), wanted]
    image, responses = create(cluster(), *topics)
    by_name = {each.name: each.error_code for each in responses}
    assert by_name["events"] == ErrorCode.none
    assert by_name[DISKLESS_METADATA] == (
        ErrorCode.none if is_first else ErrorCode.topic_already_exists
    )
    assert len(image.topics_by_name[DISKLESS_METADATA].partitions) == (7 if is_first else 4)


def test_added_metadata_partitions_serve_new_partitions_only_d14() -> None:
    image = created(cluster(), events(partitions=8))
    before = coordinators(image)
    image, _ = perform(
        image, create_partitions(image, [NewPartitions(DISKLESS_METADATA, 5)], entropy=entropy())
    )
    image, (response,) = perform(
        image, create_partitions(image, [NewPartitions("events", 18)], entropy=entropy())
    )
    assert response.error_code == ErrorCode.none
    assert coordinators(image)[:8] == before
    assert Counter(coordinators(image)[8:]) == dict.fromkeys(range(5), 2)


@pytest.mark.parametrize(
    ("topic", "code", "text"),
    [
        (events(replication_factor=3), ErrorCode.invalid_replication_factor, "must be 1 or -1"),
        (events(replication_factor=0), ErrorCode.invalid_replication_factor, "must be 1 or -1"),
        (events(partitions=0), ErrorCode.invalid_partitions, "non-positive"),
        (events(assignments={0: [1]}), ErrorCode.invalid_replica_assignment, "no replicas"),
        (
            NewTopic("events", configs=DISKLESS | {"cleanup.policy": "compact"}),
            ErrorCode.invalid_config,
            "compacted",
        ),
        (
            NewTopic("events", configs=DISKLESS | {"remote.storage.enable": "true"}),
            ErrorCode.invalid_config,
            "remote.storage.enable",
        ),
        (
            NewTopic("events", configs={"diskless.enable": "maybe"}),
            ErrorCode.invalid_config,
            "diskless.enable",
        ),
        (
            NewTopic("__consumer_offsets", configs=DISKLESS),
            ErrorCode.invalid_config,
            "Internal topics",
        ),
        (
            NewTopic(DISKLESS_METADATA, configs={"cleanup.policy": "compact"}),
            ErrorCode.invalid_config,
            "cleanup.policy=delete",
        ),
    ],
)
def test_refused_creation_creates_no_metadata_topic(
    topic: NewTopic, code: ErrorCode, text: str
) -> None:
    error_code, message = refusal(cluster(), topic)
    assert error_code == code
    assert text in message


def test_metadata_topic_created_by_a_client_has_its_settings() -> None:
    image = created(cluster(), NewTopic(DISKLESS_METADATA, 5, 1, configs={"segment.ms": "5000"}))
    assert image.topic_configs(DISKLESS_METADATA) == METADATA_CONFIGS | {"segment.ms": "5000"}
    assert set(coordinators(created(image, events(partitions=9)))) == set(range(5))


def test_metadata_topic_is_refused_if_diskless_topics_are_disabled() -> None:
    code, message = refusal(cluster(), NewTopic(DISKLESS_METADATA), defaults=TopicDefaults())
    assert code == ErrorCode.invalid_config
    assert "diskless.storage.system.enable" in message


def test_too_few_brokers_for_metadata_topic() -> None:
    code, message = refusal(cluster(2), events())
    assert code == ErrorCode.invalid_replication_factor
    assert message.startswith("__diskless_metadata cannot be created: Unable to replicate")


def test_disabled_node_refuses_diskless_topic() -> None:
    disabled = ServerConfig.from_properties({}, test_node=True)
    image = cluster()
    _, (response,) = perform(
        image,
        create_topics(
            image,
            [events()],
            entropy=entropy(),
            defaults=TopicDefaults(1, 1),
            validate_config=partial(validate_resource_configs, disabled),
        ),
    )
    assert response.error_code == ErrorCode.invalid_config
    assert "diskless.storage.system.enable" in (response.error_message or "")


def altered(
    image: MetadataImage, topic: str, changes: Mapping[str, str | None]
) -> tuple[ErrorCode, str]:
    alterations = [
        ConfigAlteration(name, AlterConfigOp.DELETE if value is None else AlterConfigOp.SET, value)
        for name, value in changes.items()
    ]
    _, (response,) = perform(
        image,
        incremental_alter_configs(
            image, [((TOPIC, topic), alterations)], validate_config=VALIDATE, list_configs={}
        ),
    )
    return response.error_code, response.error_message or ""


@pytest.mark.parametrize("changes", [{"diskless.enable": "false"}, {"diskless.enable": None}])
def test_diskless_topic_cannot_become_classic(changes: Mapping[str, str | None]) -> None:
    code, message = altered(created(cluster(), events()), "events", changes)
    assert code == ErrorCode.invalid_config
    assert "topic events is diskless and cannot become classic" in message


def test_classic_topic_cannot_become_diskless() -> None:
    image = created(cluster(), NewTopic("orders"))
    code, message = altered(image, "orders", {"diskless.enable": "true"})
    assert code == ErrorCode.invalid_config
    assert "topic orders is classic and cannot become diskless" in message


def test_replacing_all_configs_must_keep_diskless_enable() -> None:
    image = created(cluster(), events())
    for configs, code in (
        ({"retention.ms": "1"}, ErrorCode.invalid_config),
        ({"retention.ms": "1", **DISKLESS}, ErrorCode.none),
    ):
        _, (response,) = perform(
            image, alter_configs(image, [((TOPIC, "events"), configs)], validate_config=VALIDATE)
        )
        assert response.error_code == code


@pytest.mark.parametrize("changes", [{"retention.ms": "5"}, {"diskless.enable": "true"}])
def test_other_configs_of_diskless_topic_can_change(changes: Mapping[str, str | None]) -> None:
    code, message = altered(created(cluster(), events()), "events", changes)
    assert (code, message) == (ErrorCode.none, "")


@pytest.mark.parametrize(
    ("topic", "changes"),
    [
        ("events", {"cleanup.policy": "compact"}),
        ("events", {"remote.storage.enable": "true"}),
        (DISKLESS_METADATA, {"cleanup.policy": "compact"}),
        (DISKLESS_METADATA, {"retention.ms": "1000"}),
        (DISKLESS_METADATA, {"retention.bytes": None}),
        (DISKLESS_METADATA, {"unclean.leader.election.enable": "true"}),
    ],
)
def test_alterations_that_would_lose_records_are_refused(
    topic: str, changes: Mapping[str, str | None]
) -> None:
    code, message = altered(created(cluster(), events()), topic, changes)
    assert code == ErrorCode.invalid_config
    assert message


def test_diskless_partitions_are_never_elected_or_offline() -> None:
    image = created(cluster(), events())
    events_id = image.topics_by_name["events"].id
    assert not list(partitions_without_leader(image))
    assert not list(electable_partitions(image))
    assert not balance_leaders(image).records
    assert not elect_uncleanly(image, unclean_election=True).records
    for broker in image.brokers:
        image, _ = perform(image, fence_broker(image, broker, image.brokers[broker].epoch))
    for broker in image.brokers:
        image, _ = perform(image, unfence_broker(image, broker, image.brokers[broker].epoch))
    assert all(
        each.partition_epoch == 0 for each in image.topics_by_id[events_id].partitions.values()
    )


@pytest.mark.parametrize("election", [ElectionType.PREFERRED, ElectionType.UNCLEAN])
def test_election_of_diskless_partition_is_not_needed(election: ElectionType) -> None:
    image = created(cluster(), events())
    (response,) = elect_leaders(image, election, [("events", 0)]).result
    assert response.error is not None
    assert response.error.code == ErrorCode.election_not_needed
    assert "no leader to elect" in response.error.message
    assert not any(each.topic == "events" for each in elect_leaders(image, election, None).result)


def test_diskless_partition_cannot_be_reassigned() -> None:
    image = created(cluster(), events())
    plan = alter_reassignments(
        image, [Reassignment("events", 0, [1]), Reassignment("events", 1, None)]
    )
    assert not plan.records
    begun, cancelled = plan.result
    assert begun is not None
    assert cancelled is not None
    assert begun.code == ErrorCode.invalid_replica_assignment
    assert "no replicas" in begun.message
    assert cancelled.code == ErrorCode.no_reassignment_in_progress


def test_added_partitions_cannot_be_assigned() -> None:
    image = created(cluster(), events())
    plan = create_partitions(image, [NewPartitions("events", 3, [[1]])], entropy=entropy())
    (response,) = plan.result
    assert response.error_code == ErrorCode.invalid_replica_assignment


def test_isr_of_diskless_partition_cannot_be_altered() -> None:
    image = created(cluster(), events())
    topic_id = image.topics_by_name["events"].id
    plan = alter_partitions(
        image, 1, image.brokers[1].epoch, [ProposedIsr(topic_id, 0, 0, 0, [(1, -1)])]
    )
    assert not plan.records
    assert plan.result[0].error_code == ErrorCode.invalid_request


def test_topic_with_name_that_collides_with_metadata_topic() -> None:
    image = created(cluster(), NewTopic("__diskless.metadata"))
    code, message = refusal(image, events())
    assert code == ErrorCode.invalid_topic_exception
    assert "collides" in message
