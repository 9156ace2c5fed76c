"""Alters configs: AlterConfigs (KIP-133) and IncrementalAlterConfigs (Kafka's
`ConfigurationControlManager`; KIP-339).

The changes of a resource are applied all or not at all. An injected validator checks the values. This
module checks what depends on the cluster's state: whether topics and nodes exist, whether
metadata.version supports cordoned directories (KIP-1066), and the rules of ELR (KIP-966): a change of
`min.insync.replicas` clears the ELR of the affected topics, and brokers cannot have their own value.
"""

from __future__ import annotations

import enum
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any, Final

from odradek.protocol.codec.primitives import MAX_STRING_BYTES
from odradek.protocol.errors import ErrorCode, KafkaError
from odradek.replication.controller.controller_result import (
    ConfigValidator,
    ControllerResult,
    ItemRefused,
    check_size,
)
from odradek.replication.controller.diskless_topics import check_unchanged
from odradek.replication.controller.features import elr_enabled, knows_cordoned
from odradek.replication.controller.image import BROKER, TOPIC, MetadataImage, Resource
from odradek.replication.controller.leader_and_isr_updates import MIN_ISR
from odradek.replication.controller.topic_tiering import change_tiering
from odradek.seams.values import value_class

__all__ = [
    "AlterConfigOp",
    "ConfigAlteration",
    "AlteredConfigResource",
    "Resource",
    "alter_configs",
    "config_records",
    "incremental_alter_configs",
]

CORDONED: Final = "cordoned.log.dirs"


class AlterConfigOp(enum.IntEnum):
    SET = 0
    DELETE = 1
    APPEND = 2
    SUBTRACT = 3


@value_class
class ConfigAlteration:
    name: str
    operation: int  # an AlterConfigOp, as it came over the wire
    value: str | None


@value_class
class TieringOptions:
    """Inputs of `change_tiering`: the names of the configs in the request, and the default of the policy."""

    retain_on_disable: bool = False
    requested: Collection[str] = ()


@value_class
class AlteredConfigResource:
    resource_type: int
    resource_name: str
    error_code: ErrorCode = ErrorCode.none
    error_message: str | None = None


def incremental_alter_configs(
    image: MetadataImage,
    wanted: Sequence[tuple[Resource, Sequence[ConfigAlteration]]],
    *,
    validate_config: ConfigValidator,
    list_configs: Mapping[int, Mapping[str, str]],
    past_brokers: bool = False,
    validate_only: bool = False,
    retain_on_disable: bool = False,
) -> ControllerResult[list[AlteredConfigResource]]:
    """Apply alterations; one result per resource, in request order.

    `list_configs` maps each resource type to its configs of type LIST and their defaults, to which
    APPEND and SUBTRACT apply if no value is set. `past_brokers`: the client sent the request to the
    controller, so that no broker has validated its own configs. `retain_on_disable`: the default of
    `remote.log.disable.policy` is "retain" (KIP-950).
    """

    def decide(resource: Resource, alterations: Sequence[ConfigAlteration]) -> list[Any]:
        names = [each.name for each in alterations]
        if len(set(names)) != len(names):
            raise _invalid_request("Error due to duplicate config keys")
        present = image.config(*resource)
        lists = list_configs.get(resource[0], {})
        changes = {each.name: _altered(present.get(each.name), each, lists) for each in alterations}
        _check_cordoned(resource, changes, present, past_brokers)
        tiering = TieringOptions(retain_on_disable, names)
        return _resource_records(image, resource, changes, (), validate_config, tiering)

    return _each_resource(wanted, decide, validate_only)


def alter_configs(
    image: MetadataImage,
    wanted: Sequence[tuple[Resource, Mapping[str, str | None]]],
    *,
    validate_config: ConfigValidator,
    past_brokers: bool = False,
    validate_only: bool = False,
    retain_on_disable: bool = False,
) -> ControllerResult[list[AlteredConfigResource]]:
    """Replace all configs of each resource (AlterConfigs); the options are as above."""

    def decide(resource: Resource, configs: Mapping[str, str | None]) -> list[Any]:
        _check_no_nulls(name for name, value in configs.items() if value is None)
        present = image.config(*resource)
        _check_cordoned(resource, configs, present, past_brokers)
        left_out = [name for name in present if name not in configs]
        tiering = TieringOptions(retain_on_disable)
        return _resource_records(image, resource, configs, left_out, validate_config, tiering)

    return _each_resource(wanted, decide, validate_only)


def config_records(
    image: MetadataImage,
    resource: Resource,
    configs: Mapping[str, str],
    validate_config: ConfigValidator,
) -> list[Any]:
    """Records of the configs of a new resource. Raises KafkaError."""
    if not configs:
        return []
    records = _resource_records(image, resource, configs, (), validate_config, is_new=True)
    return [*records, *_elr_clearing(image, records)]


def _each_resource(
    wanted: Sequence[tuple[Resource, Any]],
    decide: Callable[[Resource, Any], list[Any]],
    validate_only: bool,
) -> ControllerResult[list[AlteredConfigResource]]:
    counts = Counter(resource for resource, _ in wanted)
    records: list[Any] = []
    responses: dict[Resource, AlteredConfigResource] = {}
    clear: list[Any] = []
    for resource, changes in wanted:
        try:
            if counts[resource] > 1:
                raise _invalid_request("Each resource must appear at most once.")
            decided = decide(resource, changes)
        except KafkaError as error:
            responses[resource] = AlteredConfigResource(
                *resource, error.code, error.message or None
            )
            continue
        responses[resource] = AlteredConfigResource(*resource)
        clear += [each for each in decided if type(each).__name__ == "ClearElrRecord"]
        records += [each for each in decided if type(each).__name__ != "ClearElrRecord"]
    records += clear
    check_size(records)
    return ControllerResult([] if validate_only else records, list(responses.values()))


def _altered(now: str | None, wanted: ConfigAlteration, lists: Mapping[str, str]) -> str | None:
    """The value after one alteration; None if none is set then. Raises KafkaError."""
    match wanted.operation:
        case AlterConfigOp.DELETE:
            return None
        case AlterConfigOp.SET:
            _check_no_nulls([wanted.name] if wanted.value is None else [])
            return wanted.value
        case AlterConfigOp.APPEND | AlterConfigOp.SUBTRACT:
            return _altered_list(now, wanted, lists)
        case _:
            raise _invalid_request(f"Unknown operation type {wanted.operation}")


def _altered_list(now: str | None, wanted: ConfigAlteration, lists: Mapping[str, str]) -> str:
    operation = AlterConfigOp(wanted.operation)
    if wanted.name not in lists:
        raise ItemRefused(
            ErrorCode.invalid_config,
            f"Can't {operation.name} to key {wanted.name} because its type is not LIST.",
        )
    _check_no_nulls([wanted.name] if wanted.value is None else [])
    items = [item for item in (lists[wanted.name] if now is None else now).split(",") if item]
    for item in (wanted.value or "").split(","):
        if operation is AlterConfigOp.SUBTRACT:
            if item in items:
                items.remove(item)
        elif item not in items:
            items.append(item)
    return ",".join(items)


def _resource_records(
    image: MetadataImage,
    resource: Resource,
    changes: Mapping[str, str | None],
    left_out: Iterable[str],
    validate_config: ConfigValidator,
    tiering: TieringOptions = TieringOptions(),  # noqa: B008 # a value
    *,
    is_new: bool = False,
) -> list[Any]:
    """Records of one resource's changes, ClearElrRecords last. Raises KafkaError.

    Unchanged broker configs are written as well, so that brokers reload key stores (KAFKA-14136).
    """
    from odradek.protocol.schemas.topic_records import ConfigRecord

    resource_type, resource_name = resource
    present = image.config(resource_type, resource_name)
    wanted: dict[str, str | None] = {**changes, **dict.fromkeys(left_out)}
    tiering_records: list[Any] = []
    if resource_type == TOPIC:
        more, tiering_records = change_tiering(
            image,
            resource_name,
            present,
            _merged(present, wanted),
            requested=tiering.requested,
            retain_on_disable=tiering.retain_on_disable,
        )
        wanted.update(more)
    records = [
        ConfigRecord(
            resource_type=resource_type, resource_name=resource_name, name=name, value=value
        )
        for name, value in wanted.items()
        if resource_type == BROKER or present.get(name) != value
    ]
    for record in records:
        _check_record(image, record)
    if resource_type == TOPIC and not is_new:
        check_unchanged(image, resource_name, _merged(present, wanted))
    validate_config(resource_type, resource_name, _merged(present, wanted), present)
    if is_new:
        return list(records)
    _check_exists(image, resource)
    return [*records, *tiering_records, *_elr_clearing(image, records)]


def _merged(present: Mapping[str, str], changes: Mapping[str, str | None]) -> dict[str, str]:
    """The configs after the changes, of which None removes one."""
    merged = {**present, **changes}
    return {name: value for name, value in merged.items() if value is not None}


def _check_cordoned(
    resource: Resource,
    changes: Mapping[str, str | None],
    present: Mapping[str, str],
    past_brokers: bool,
) -> None:
    """Only allow the removal of cordoned directories, because the broker has not validated new ones
    (KIP-1066)."""
    if resource[0] != BROKER or not past_brokers:
        return
    before, after = (
        {each.strip() for each in (text or "").split(",")}
        for text in (present.get(CORDONED), changes.get(CORDONED))
    )
    if not after - {""} <= before:
        raise ItemRefused(
            ErrorCode.invalid_config,
            f"When updating {CORDONED} via controllers,  the new value must be a subset of the current "
            "configuration value.",
        )


def _check_record(image: MetadataImage, record: Any) -> None:
    if record.name == MIN_ISR and record.resource_type == BROKER and elr_enabled(image.features):
        if record.resource_name:
            raise ItemRefused(
                ErrorCode.invalid_config,
                f"Broker-level {MIN_ISR} cannot be altered while ELR is enabled.",
            )
        if record.value is None:
            raise ItemRefused(
                ErrorCode.invalid_config,
                f"Cluster-level {MIN_ISR} cannot be removed while ELR is enabled.",
            )
    is_cordoned = record.name == CORDONED and record.resource_type == BROKER
    if is_cordoned and not knows_cordoned(image.features):
        raise ItemRefused(
            ErrorCode.invalid_config,
            f"The {CORDONED} configuration value cannot be set because it requires "
            "metadata.version >= 4.3-IV0",
        )
    if record.value is not None and len(record.value.encode()) > MAX_STRING_BYTES:
        raise ItemRefused(
            ErrorCode.invalid_config,
            "The configuration value cannot be added because it exceeds the maximum value size of "
            f"{MAX_STRING_BYTES} bytes.",
        )


def _elr_clearing(image: MetadataImage, records: Sequence[Any]) -> list[Any]:
    """ClearElrRecords for changes of min.insync.replicas."""
    from odradek.protocol.schemas.topic_records import ClearElrRecord

    if not elr_enabled(image.features):
        return []
    return [
        ClearElrRecord(topic_name=each.resource_name if each.resource_type == TOPIC else "")
        for each in records
        if each.name == MIN_ISR
    ]


def _check_exists(image: MetadataImage, resource: Resource) -> None:
    resource_type, name = resource
    if resource_type == TOPIC and name not in image.topics_by_name:
        raise ItemRefused(
            ErrorCode.unknown_topic_or_partition, f"The topic '{name}' does not exist."
        )
    if resource_type == BROKER and name:
        try:
            node = int(name)
        except ValueError:
            raise _invalid_request(f"Invalid broker name {name}") from None
        if node not in image.brokers and node not in image.controllers:
            raise ItemRefused(ErrorCode.broker_id_not_registered, f"No node with id {node} found.")


def _check_no_nulls(names: Iterable[str]) -> None:
    if missing := list(names):
        raise _invalid_request(f"Null value not supported for : {','.join(missing)}")


def _invalid_request(reason: str) -> ItemRefused:
    return ItemRefused(ErrorCode.invalid_request, reason)
