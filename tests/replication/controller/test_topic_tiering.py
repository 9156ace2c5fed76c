"""Disabling and enabling tiered storage of a topic (KIP-950): the state machine, the configs, and the records."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from uuid import UUID

import pytest

from odradek.protocol.errors import TIERED_STORAGE_DISABLEMENT_IN_PROGRESS, ErrorCode
from odradek.protocol.schemas.cluster_records import NoOpRecord
from odradek.protocol.schemas.serde import decode_metadata_record, encode_metadata_record
from odradek.protocol.schemas.topic_records import PartitionChangeRecord
from odradek.replication.controller import topic_tiering
from odradek.replication.controller.broker_registration import register_broker
from odradek.replication.controller.configs import (
    AlterConfigOp,
    AlteredConfigResource,
    ConfigAlteration,
    alter_configs,
    incremental_alter_configs,
)
from odradek.replication.controller.controller_result import ItemRefused
from odradek.replication.controller.image import (
    NEVER_DISABLED,
    NO_LEADER,
    TOPIC,
    DisablePolicy,
    InvalidMetadata,
    MetadataImage,
    TieredState,
    TopicTiering,
)
from odradek.replication.controller.image_builder import apply_records
from odradek.replication.controller.image_records import snapshot_records
from odradek.replication.controller.topic_tiering import (
    DisablementInProgress,
    DisablementProgress,
    complete,
    disable,
    enable,
    tiering_record,
)
from odradek.replication.controller.topics import NewTopic, delete_topics
from odradek.storage.log.config import LogConfig
from tests.support.cluster_images import (
    any_config,
    cluster,
    committed,
    create,
    perform,
    registration,
)

ENABLED, DISABLING, DISABLED = TieredState
RETAIN, DELETE = DisablePolicy
SET = AlterConfigOp.SET
PAGE = Path(__file__).parents[3] / "docs" / "tiered-storage.md"

STATES = {
    "enabled": TopicTiering(4, ENABLED, None, 2),
    "disabling, retain": TopicTiering(4, DISABLING, RETAIN, 2),
    "disabling, delete": TopicTiering(4, DISABLING, DELETE, 4),
    "disabled, retain": TopicTiering(4, DISABLED, RETAIN, 2),
    "disabled, delete": TopicTiering(4, DISABLED, DELETE, 4),
}
EVENTS: dict[str, Callable[[TopicTiering], TopicTiering]] = {
    "retain": lambda before: disable("t", before, RETAIN),
    "delete": lambda before: disable("t", before, DELETE),
    "enable": lambda before: enable("t", before),
    "complete": lambda before: complete(before, 4),
    "complete an older epoch": lambda before: complete(before, 3),
}
TO_RETAIN = TopicTiering(5, DISABLING, RETAIN, 2)
REFUSED = "DisablementInProgress"
INVALID = "INVALID_REQUEST"
UNCHANGED = "unchanged"
TABLE = {
    ("enabled", "retain"): TO_RETAIN,
    ("enabled", "delete"): TopicTiering(5, DISABLING, DELETE, 5),
    ("disabling, retain", "complete"): TopicTiering(4, DISABLED, RETAIN, 2),
    ("disabling, delete", "complete"): TopicTiering(4, DISABLED, DELETE, 4),
    ("disabled, retain", "delete"): TopicTiering(5, DISABLING, DELETE, 5),
    ("disabled, retain", "enable"): TopicTiering(5, ENABLED, None, 2),
    ("disabled, delete", "enable"): TopicTiering(5, ENABLED, None, 4),
    ("disabled, delete", "retain"): INVALID,
    **{
        (f"disabling, {policy}", event): REFUSED
        for policy in ("retain", "delete")
        for event in ("retain", "delete", "enable")
    },
}


@pytest.mark.parametrize("event", EVENTS)
@pytest.mark.parametrize("state", STATES)
def test_state_machine_of_tiering(state: str, event: str) -> None:
    """X-03, X-08, X-11, X-13: every state with every event."""
    before, expected = STATES[state], TABLE.get((state, event), UNCHANGED)
    if expected == REFUSED:
        with pytest.raises(DisablementInProgress):
            EVENTS[event](before)
    elif expected == INVALID:
        with pytest.raises(ItemRefused, match="was deleted and cannot be retained") as refused:
            EVENTS[event](before)
        assert refused.value.code is ErrorCode.invalid_request
    else:
        assert EVENTS[event](before) == (before if expected == UNCHANGED else expected)


def test_documented_table_is_that_of_the_module() -> None:
    page = PAGE.read_text(encoding="utf-8").replace("`", "")
    assert topic_tiering.__doc__ is not None
    table = [line for line in topic_tiering.__doc__.splitlines() if line.startswith("| ")]
    header = page.index(table[0])
    rows = page[header : page.index("\n\n", header)].splitlines()
    assert [row for row in rows if row.startswith("| ")] == table


# Configs


def tiered(brokers: int = 1, partitions: int = 1, **configs: str) -> MetadataImage:
    named = {"remote.storage.enable": "true"} | {
        name.replace("_", "."): text for name, text in configs.items()
    }
    topic = NewTopic("t", partitions, brokers, configs=named)
    return create(cluster(brokers), topic)[0]


def alter(
    image: MetadataImage, *, retain_on_disable: bool = False, **configs: str | None
) -> tuple[MetadataImage, AlteredConfigResource]:
    changes = [
        ConfigAlteration(
            name.replace("_", "."), SET if value is not None else AlterConfigOp.DELETE, value
        )
        for name, value in configs.items()
    ]
    image, (response,) = perform(
        image,
        incremental_alter_configs(
            image,
            [((TOPIC, "t"), changes)],
            validate_config=any_config,
            list_configs={},
            retain_on_disable=retain_on_disable,
        ),
    )
    return image, response


def disabled(image: MetadataImage, policy: str) -> MetadataImage:
    image, response = alter(image, remote_storage_enable="false", remote_log_disable_policy=policy)
    assert response.error_code is ErrorCode.none, response.error_message
    return image


def completed(image: MetadataImage) -> MetadataImage:
    (topic_id,) = image.topics_by_id
    tiering = image.tiering_of(topic_id)
    return committed(image, [tiering_record(topic_id, complete(tiering, tiering.epoch))])


def tiering(image: MetadataImage) -> TopicTiering:
    (topic_id,) = image.topics_by_id
    return image.tiering_of(topic_id)


@pytest.mark.parametrize("policy", ["retain", "delete"])
def test_disablement_with_policy_changes_configs_and_state_in_one_batch(policy: str) -> None:
    """X-01, X-02, X-03."""
    image = tiered()
    assert tiering(image) == NEVER_DISABLED
    image = disabled(image, policy)
    assert image.topic_configs("t") == {
        "remote.storage.enable": "false",
        "remote.log.disable.policy": policy,
    }
    first_epoch = 1 if policy == "delete" else 0
    assert tiering(image) == TopicTiering(1, DISABLING, DisablePolicy(policy), first_epoch)


def test_disablement_without_policy_has_no_state() -> None:
    """Apache Kafka's form; the validator refuses it without remote.log.delete.on.disable."""
    image, response = alter(tiered(), remote_storage_enable="false")
    assert response.error_code is ErrorCode.none
    image, _ = alter(image, remote_log_delete_on_disable="true")
    assert tiering(image) == NEVER_DISABLED


def test_disablement_without_policy_retains_if_broker_config_is_set() -> None:
    """X-02: the default of the KIP, which a broker config enables."""
    image, _ = alter(tiered(), retain_on_disable=True, remote_storage_enable="false")
    assert image.topic_configs("t")["remote.log.disable.policy"] == "retain"
    assert tiering(image) == TopicTiering(1, DISABLING, RETAIN, 0)
    deleting, _ = alter(
        tiered(),
        retain_on_disable=True,
        remote_storage_enable="false",
        remote_log_delete_on_disable="true",
    )
    assert tiering(deleting) == NEVER_DISABLED


@pytest.mark.parametrize(
    ("configs", "reason"),
    [
        ({"enable": "false", "policy": "keep"}, "must be one of retain, delete"),
        ({"policy": "retain"}, "requires remote.storage.enable=false"),
        ({"enable": "true", "policy": "retain"}, "requires remote.storage.enable=false"),
        (
            {"enable": "false", "policy": "retain", "delete": "true"},
            "contradicts remote.log.delete.on.disable=true",
        ),
    ],
)
def test_invalid_disablement_is_refused(configs: dict[str, str], reason: str) -> None:
    """X-12."""
    names = {
        "enable": "remote_storage_enable",
        "policy": "remote_log_disable_policy",
        "delete": "remote_log_delete_on_disable",
    }
    image = tiered()
    after, response = alter(image, **{names[name]: text for name, text in configs.items()})
    assert response.error_code is ErrorCode.invalid_request
    assert response.error_message is not None
    assert reason in response.error_message
    assert after.topic_configs("t") == image.topic_configs("t")


def test_policy_of_topic_without_tiered_storage_is_refused() -> None:
    plain = create(cluster(1), NewTopic("t", 1, 1))[0]
    for configs in ({}, {"remote_storage_enable": "false"}):
        _, response = alter(plain, remote_log_disable_policy="retain", **configs)
        assert response.error_code is ErrorCode.invalid_request
    _, (created,) = create(
        cluster(1), NewTopic("new", 1, 1, configs={"remote.log.disable.policy": "retain"})
    )
    assert created.error_code is ErrorCode.invalid_request


@pytest.mark.parametrize(
    "configs",
    [
        {"remote_storage_enable": "false", "remote_log_disable_policy": "retain"},
        {"remote_storage_enable": "false", "remote_log_disable_policy": "delete"},
        {"remote_storage_enable": "true"},
        {"remote_log_disable_policy": None},
    ],
)
def test_change_while_disabling_is_refused(configs: dict[str, str | None]) -> None:
    """X-11. Other configs may be changed."""
    image = disabled(tiered(), "retain")
    after, response = alter(image, **configs)
    assert response.error_code == TIERED_STORAGE_DISABLEMENT_IN_PROGRESS == 20_950
    assert response.error_message is not None
    assert response.error_message.startswith("Tiered storage of topic t is being disabled.")
    assert tiering(after) == tiering(image)
    after, response = alter(image, retention_ms="1")
    assert response.error_code is ErrorCode.none


@pytest.mark.parametrize("policy", ["retain", "delete"])
def test_enabling_again_takes_no_policy_and_increases_the_epoch(policy: str) -> None:
    """X-13: from either end state; the policy is removed."""
    image, response = alter(completed(disabled(tiered(), policy)), remote_storage_enable="true")
    assert response.error_code is ErrorCode.none
    assert image.topic_configs("t") == {"remote.storage.enable": "true"}
    assert tiering(image) == TopicTiering(2, ENABLED, None, 1 if policy == "delete" else 0)


def test_retained_data_can_be_deleted_later_but_not_forgotten() -> None:
    image = completed(disabled(tiered(), "retain"))
    _, response = alter(image, remote_log_disable_policy=None)
    assert response.error_code is ErrorCode.invalid_request
    image, response = alter(image, remote_log_disable_policy="delete")
    assert response.error_code is ErrorCode.none
    assert tiering(image) == TopicTiering(2, DISABLING, DELETE, 2)
    _, response = alter(completed(image), remote_log_disable_policy="retain")
    assert response.error_code is ErrorCode.invalid_request


def test_replacing_all_configs_follows_the_same_rules() -> None:
    """AlterConfigs with the present values is no second disablement."""
    wanted: dict[str, str | None] = {
        "remote.storage.enable": "false",
        "remote.log.disable.policy": "delete",
    }
    image = tiered()
    for expected in (1, 1):
        plan = alter_configs(image, [((TOPIC, "t"), wanted)], validate_config=any_config)
        image, (response,) = perform(image, plan)
        assert response.error_code is ErrorCode.none
        assert tiering(image).epoch == expected
    plan = alter_configs(image, [((TOPIC, "t"), {})], validate_config=any_config)
    assert plan.result[0].error_code == TIERED_STORAGE_DISABLEMENT_IN_PROGRESS


def test_log_of_retained_topic_reads_the_remote_tier_and_copies_nothing() -> None:
    """X-06: what brokers do with `retain` and `delete` (X-05)."""
    configs = {"remote.storage.enable": "false", "local.retention.ms": "5"}
    retained = LogConfig.from_topic_configs(configs | {"remote.log.disable.policy": "retain"})
    assert retained.remote_storage_enable
    assert retained.remote_log_copy_disable
    assert retained.local_limits == (retained.retention_bytes, retained.retention_ms)
    deleted = LogConfig.from_topic_configs(configs | {"remote.log.disable.policy": "delete"})
    assert not deleted.remote_storage_enable
    assert deleted.remote_log_delete_on_disable


# Records and images


def test_tiering_record_is_a_no_op_record_with_tagged_fields() -> None:
    """X-03: Kafka has no such record and skips the tagged fields; the bytes are fixed."""
    (topic_id,) = tiered().topics_by_id
    record = tiering_record(topic_id, TopicTiering(7, DISABLING, DELETE, 6))
    data = encode_metadata_record(record, 0)
    assert data.hex() == (
        "01140005"
        + "c65510"
        + topic_id.hex
        + "c7550400000007"
        + "c8550101"
        + "c95507"
        + "07"
        + b"delete".hex()
        + "ca550400000006"
    )
    assert decode_metadata_record(data) == record
    assert encode_metadata_record(NoOpRecord(), 0).hex() == "01140000"


def test_tiering_survives_a_snapshot_and_ends_with_the_topic() -> None:
    image = disabled(tiered(), "delete")
    loaded = apply_records(MetadataImage(), list(snapshot_records(image)), offset=9).image
    assert loaded.tiering == image.tiering
    assert not perform(image, delete_topics(image, ["t"]))[0].tiering


def test_change_of_tiering_is_a_change_of_the_topic_configs() -> None:
    image = disabled(tiered(), "delete")
    (topic_id,) = image.topics_by_id
    record = tiering_record(topic_id, complete(image.tiering_of(topic_id), 1))
    assert apply_records(image, [record], offset=99).changed_configs == {(TOPIC, "t")}


def test_tiering_record_without_topic_or_with_unknown_state_contradicts_the_image() -> None:
    image = tiered()
    (topic_id,) = image.topics_by_id
    invalid = [
        tiering_record(registration(1).directories[0], TopicTiering()),
        NoOpRecord(tiered_topic_id=topic_id, tiered_state=9),
        NoOpRecord(tiered_topic_id=topic_id, tiered_policy="keep"),
    ]
    for record in invalid:
        with pytest.raises(InvalidMetadata):
            apply_records(image, [record], offset=99)


# Responses of brokers


def progress(image: MetadataImage) -> DisablementProgress:
    (topic_id,) = image.topics_by_id
    return DisablementProgress(topic_id, image.tiering_of(topic_id).epoch)


def leader_change(topic_id: UUID, leader: int) -> PartitionChangeRecord:
    return PartitionChangeRecord(topic_id=topic_id, partition_id=0, leader=leader)


def test_disablement_waits_for_every_registered_broker() -> None:
    """X-07, X-08."""
    image = disabled(tiered(3, 2), "delete")
    waiting = progress(image)
    for broker in (2, 1):
        waiting.responded(broker, image)
        waiting.responded(broker, image)
    assert (waiting.missing(image), waiting.is_complete(image)) == ([3], False)
    waiting.responded(3, image)
    assert (waiting.missing(image), waiting.is_complete(image)) == ([], True)
    assert waiting.is_current(image)
    assert not waiting.is_current(completed(image))


def test_restarted_broker_responds_again() -> None:
    image = disabled(tiered(3), "delete")
    waiting = progress(image)
    for broker in (1, 2, 3):
        waiting.responded(broker, image)
    restarted = register_broker(image, registration(2, incarnation=1), next_offset=image.offset + 1)
    image, _ = perform(image, restarted)
    assert image.topics_by_name["t"].partitions[0].leader == 3
    assert waiting.missing(image) == [2, 3]  # 3 is the new leader


def test_broker_may_copy_until_it_reports_the_end_in_its_broker_epoch() -> None:
    """X-05: the incomplete copies of all others may be deleted."""
    image = disabled(tiered(3), "delete")
    waiting = progress(image)
    assert waiting.copying(image) == [1, 2, 3]
    assert waiting.ended_copies(2, image)
    assert not waiting.ended_copies(2, image)
    waiting.responded(3, image)
    assert (waiting.copying(image), waiting.missing(image)) == ([1], [1, 2])
    restarted = register_broker(image, registration(2, incarnation=1), next_offset=image.offset + 1)
    later, _ = perform(image, restarted)
    assert waiting.copying(later) == [1, 2]
    assert not waiting.ended_copies(2, image)  # it was sent before the restart
    assert waiting.copying(later) == [1, 2]


def test_new_leader_responds_again_and_partition_without_leader_is_not_complete() -> None:
    image = disabled(tiered(3), "delete")
    waiting = progress(image)
    for broker in (1, 2, 3):
        waiting.responded(broker, image)
    (topic,) = image.topics_by_id.values()
    old = topic.partitions[0].leader
    new = next(broker for broker in (1, 2, 3) if broker != old)
    moved = committed(image, [leader_change(topic.id, new)])
    assert waiting.missing(moved) == [new]
    waiting.responded(new, image)  # it was sent before the election
    assert waiting.missing(moved) == [new]
    waiting.responded(new, moved)
    assert waiting.is_complete(moved)
    headless = committed(moved, [leader_change(topic.id, NO_LEADER)])
    assert not waiting.is_complete(headless)


def test_new_controller_starts_without_responses() -> None:
    """X-09."""
    image = disabled(tiered(3), "retain")
    assert progress(image).missing(image) == [1, 2, 3]
