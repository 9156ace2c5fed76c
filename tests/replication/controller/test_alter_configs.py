"""AlterConfigs and IncrementalAlterConfigs (KIP-133, KIP-339), and changes that ELR rejects (KIP-966)."""

from __future__ import annotations

from typing import Any

import pytest

from odradek.protocol.errors import ErrorCode, KafkaError
from odradek.replication.controller.configs import (
    AlterConfigOp,
    AlteredConfigResource,
    ConfigAlteration,
    Resource,
    alter_configs,
    incremental_alter_configs,
)
from odradek.replication.controller.image import (
    BROKER,
    CLIENT_METRICS,
    GROUP,
    TOPIC,
    MetadataImage,
)
from odradek.replication.controller.topics import NewTopic
from tests.support.cluster_images import any_config, cluster, create, perform

SET, DELETE, APPEND, SUBTRACT = AlterConfigOp
LISTS = {TOPIC: {"cleanup.policy": "delete", "empty.list": ""}}
ALPHA: Resource = (TOPIC, "alpha")


def alpha(**configs: str) -> MetadataImage:
    named = {name.replace("_", "."): value for name, value in configs.items()}
    return create(cluster(1), NewTopic("alpha", 1, 1, configs=named))[0]


def change(
    image: MetadataImage,
    *wanted: tuple[Resource, list[tuple[str, int, str | None]]],
    validate_config: Any = any_config,
    validate_only: bool = False,
) -> tuple[MetadataImage, list[AlteredConfigResource]]:
    plan = incremental_alter_configs(
        image,
        [(resource, [ConfigAlteration(*each) for each in changes]) for resource, changes in wanted],
        validate_config=validate_config,
        list_configs=LISTS,
        validate_only=validate_only,
    )
    return perform(image, plan)


def replace(
    image: MetadataImage, *wanted: tuple[Resource, dict[str, str | None]]
) -> tuple[MetadataImage, list[AlteredConfigResource]]:
    return perform(image, alter_configs(image, list(wanted), validate_config=any_config))


def refusal(responses: list[AlteredConfigResource]) -> tuple[ErrorCode, str | None]:
    (response,) = responses
    return response.error_code, response.error_message


def test_set_and_delete_config() -> None:
    image, responses = change(alpha(a="1"), (ALPHA, [("a", DELETE, None), ("b", SET, "2")]))
    assert responses == [AlteredConfigResource(*ALPHA)]
    assert image.topic_configs("alpha") == {"b": "2"}


def test_deleting_the_last_config_removes_the_resource() -> None:
    image, _ = change(alpha(a="1"), (ALPHA, [("a", DELETE, None)]))
    assert ALPHA not in image.configs


@pytest.mark.parametrize(
    ("present", "operation", "value", "after"),
    [
        (None, APPEND, "compact", "delete,compact"),
        ("compact", APPEND, "delete", "compact,delete"),
        ("compact", APPEND, "compact", "compact"),
        ("compact", APPEND, "delete,compact,delete", "compact,delete"),
        ("compact,delete", SUBTRACT, "delete", "compact"),
        ("compact", SUBTRACT, "compact,delete", ""),
        (None, SUBTRACT, "delete", ""),
        (None, SUBTRACT, "other", "delete"),
    ],
)
def test_append_and_subtract_change_lists(
    present: str | None, operation: int, value: str, after: str
) -> None:
    before = alpha() if present is None else alpha(cleanup_policy=present)
    image, responses = change(before, (ALPHA, [("cleanup.policy", operation, value)]))
    assert responses == [AlteredConfigResource(*ALPHA)]
    assert image.topic_configs("alpha").get("cleanup.policy", "delete") == after


def test_append_to_non_list_config_is_rejected() -> None:
    before = alpha()
    image, responses = change(before, (ALPHA, [("retention.ms", APPEND, "5")]))
    assert refusal(responses) == (
        ErrorCode.invalid_config,
        "Can't APPEND to key retention.ms because its type is not LIST.",
    )
    assert image == before


@pytest.mark.parametrize(
    ("changes", "code", "message"),
    [
        (
            [("a", SET, None)],
            ErrorCode.invalid_request,
            "Null value not supported for : a",
        ),
        (
            [("cleanup.policy", APPEND, None)],
            ErrorCode.invalid_request,
            "Null value not supported for : cleanup.policy",
        ),
        (
            [("a", SET, "1"), ("a", SET, "2")],
            ErrorCode.invalid_request,
            "Error due to duplicate config keys",
        ),
        ([("a", 7, "1")], ErrorCode.invalid_request, "Unknown operation type 7"),
        (
            [("a", SET, "x" * 32768)],
            ErrorCode.invalid_config,
            "The configuration value cannot be added because it exceeds the maximum value size of "
            "32767 bytes.",
        ),
        (  # above the maximum length of a string in a record
            [("cleanup.policy", APPEND, "\u00e9" * 16381)],
            ErrorCode.invalid_config,
            "The configuration value cannot be added because it exceeds the maximum value size of "
            "32767 bytes.",
        ),
    ],
)
def test_invalid_requests_are_rejected(
    changes: list[tuple[str, int, str | None]], code: ErrorCode, message: str
) -> None:
    before = alpha()
    image, responses = change(before, (ALPHA, changes))
    assert refusal(responses) == (code, message)
    assert image == before


def test_unknown_topics_and_brokers_are_rejected() -> None:
    before = alpha()
    image, responses = change(
        before,
        ((TOPIC, "nope"), [("a", SET, "1")]),
        ((BROKER, "7"), [("a", SET, "1")]),
        ((BROKER, "x"), [("a", SET, "1")]),
    )
    assert [(each.error_code, each.error_message) for each in responses] == [
        (ErrorCode.unknown_topic_or_partition, "The topic 'nope' does not exist."),
        (ErrorCode.broker_id_not_registered, "No node with id 7 found."),
        (ErrorCode.invalid_request, "Invalid broker name x"),
    ]
    assert image == before


def test_unknown_groups_and_subscriptions_are_accepted() -> None:
    image, responses = change(
        alpha(), ((GROUP, "g"), [("a", SET, "1")]), ((CLIENT_METRICS, "m"), [("b", SET, "2")])
    )
    assert {each.error_code for each in responses} == {ErrorCode.none}
    assert image.config(GROUP, "g") == {"a": "1"}
    assert image.config(CLIENT_METRICS, "m") == {"b": "2"}


def test_error_of_one_resource_does_not_affect_others() -> None:
    image, responses = change(
        alpha(),
        ((BROKER, ""), [("a", SET, "1")]),
        (ALPHA, [("b", SET, "1"), ("c", SET, None)]),
    )
    assert [each.error_code for each in responses] == [0, ErrorCode.invalid_request]
    assert image.config(BROKER, "") == {"a": "1"}
    assert image.topic_configs("alpha") == {}, "all of a resource's changes are made, or none"


def test_duplicate_resource_is_rejected() -> None:
    before = alpha()
    image, responses = change(before, (ALPHA, [("a", SET, "1")]), (ALPHA, [("b", SET, "1")]))
    assert refusal(responses) == (
        ErrorCode.invalid_request,
        "Each resource must appear at most once.",
    )
    assert image == before


def test_unchanged_configs_are_only_written_for_brokers() -> None:
    image, _ = change(alpha(a="1"), ((BROKER, "1"), [("a", SET, "1")]))
    for resource, records in ((ALPHA, 0), ((BROKER, "1"), 1)):
        plan = incremental_alter_configs(
            image,
            [(resource, [ConfigAlteration("a", SET, "1")])],
            validate_config=any_config,
            list_configs=LISTS,
        )
        assert len(plan.records) == records


def test_validator_gets_new_and_present_configs() -> None:
    seen = []

    def validate(*args: Any) -> None:
        seen.append(args)
        if args[2].get("a") == "bad":
            raise KafkaError(ErrorCode.invalid_config, "no")

    before = alpha(a="1", b="2")
    image, responses = change(
        before, (ALPHA, [("a", SET, "bad"), ("b", DELETE, None)]), validate_config=validate
    )
    assert seen == [(TOPIC, "alpha", {"a": "bad"}, {"a": "1", "b": "2"})]
    assert refusal(responses) == (ErrorCode.invalid_config, "no")
    assert image == before


def test_validate_only_returns_no_records() -> None:
    before = alpha()
    image, responses = change(before, (ALPHA, [("a", SET, "1")]), validate_only=True)
    assert responses == [AlteredConfigResource(*ALPHA)]
    assert image == before


# AlterConfigs


def test_alter_configs_removes_missing_configs() -> None:
    image, responses = replace(alpha(a="1", b="2"), (ALPHA, {"b": "3", "c": "4"}))
    assert responses == [AlteredConfigResource(*ALPHA)]
    assert image.topic_configs("alpha") == {"b": "3", "c": "4"}
    image, _ = replace(image, (ALPHA, {}))
    assert ALPHA not in image.configs


def test_null_values_are_rejected() -> None:
    before = alpha(a="1")
    image, responses = replace(before, (ALPHA, {"a": None}))
    assert refusal(responses) == (ErrorCode.invalid_request, "Null value not supported for : a")
    assert image == before


# min.insync.replicas with ELR

MIN_ISR = "min.insync.replicas"


def test_elr_rejects_min_insync_replicas_of_brokers() -> None:
    image, responses = change(alpha(), ((BROKER, "1"), [(MIN_ISR, SET, "1")]))
    assert refusal(responses) == (
        ErrorCode.invalid_config,
        "Broker-level min.insync.replicas cannot be altered while ELR is enabled.",
    )
    image, _ = change(image, ((BROKER, ""), [(MIN_ISR, SET, "1")]))
    assert image.config(BROKER, "") == {MIN_ISR: "1"}
    for _, responses in (
        change(image, ((BROKER, ""), [(MIN_ISR, DELETE, None)])),
        replace(image, ((BROKER, ""), {})),
    ):
        assert refusal(responses) == (
            ErrorCode.invalid_config,
            "Cluster-level min.insync.replicas cannot be removed while ELR is enabled.",
        )


@pytest.mark.parametrize(("resource", "cleared"), [(ALPHA, "alpha"), ((BROKER, ""), "")])
def test_change_of_min_insync_replicas_clears_elr(resource: Resource, cleared: str) -> None:
    plan = incremental_alter_configs(
        alpha(),
        [(resource, [ConfigAlteration(MIN_ISR, SET, "1"), ConfigAlteration("a", SET, "1")])],
        validate_config=any_config,
        list_configs=LISTS,
    )
    assert [type(record).__name__ for record in plan.records] == [
        "ConfigRecord",
        "ConfigRecord",
        "ClearElrRecord",
    ]
    assert plan.records[-1].topic_name == cleared
