"""DescribeConfigs, AlterConfigs, IncrementalAlterConfigs and ListConfigResources.

`broker.config` defines and validates the configs. Changes are written to the metadata log by the controller. As
in Kafka, a broker first validates changes of its own configs and log levels itself (KIP-226, KIP-412), and then
forwards the rest to the active controller (KIP-590).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from odradek.broker.apis.topic_view import check_topic_name
from odradek.broker.config import config_description, loggers
from odradek.broker.config.all_configs import BROKER
from odradek.broker.config.alteration_validation import (
    broker_id,
    list_configs,
    validate_broker,
    validate_resource_configs,
)
from odradek.broker.config.config_description import ConfigEntry
from odradek.broker.config.types import ConfigSource, ConfigType, ResourceType
from odradek.broker.requests.context import RequestContext
from odradek.broker.requests.forwarding import forward_values
from odradek.broker.requests.steps import in_steps
from odradek.broker.security.request_authorization import (
    ClusterDenied,
    check_cluster,
    check_group,
    check_topic,
    may_cluster,
)
from odradek.protocol import apis
from odradek.protocol.errors import ErrorCode, KafkaError
from odradek.protocol.messages import field
from odradek.replication.controller import configs as operations
from odradek.replication.controller.configs import (
    AlterConfigOp,
    AlteredConfigResource,
    ConfigAlteration,
    Resource,
)
from odradek.replication.controller.controller_result import ControllerResult
from odradek.replication.controller.image import MetadataImage

Values = dict[str, Any]

_UNKNOWN_TYPE = 0
_DESCRIBED = frozenset(ResourceType) - {ResourceType.UNKNOWN}
_LISTED_IN_0 = (ResourceType.CLIENT_METRICS,)
_LISTED = (
    ResourceType.GROUP,
    ResourceType.CLIENT_METRICS,
    ResourceType.BROKER_LOGGER,
    ResourceType.BROKER,
    ResourceType.TOPIC,
)


# DescribeConfigs


async def describe_configs(request: Any, ctx: RequestContext) -> Mapping[str, Any]:
    strange = [each for each in request.resources if each.resource_type not in _DESCRIBED]
    if strange:
        error = KafkaError(
            ErrorCode.invalid_request, f"Unsupported resource type: {strange[0].resource_type}"
        )
        return {"results": [_not_described(each, error) for each in request.resources]}
    with_docs = field(request, "include_documentation", False)
    return {
        "results": [
            _described(each, request.include_synonyms, with_docs, ctx)
            async for each in in_steps(request.resources, ctx)
        ]
    }


def _described(resource: Any, with_synonyms: bool, with_docs: bool, ctx: RequestContext) -> Values:
    try:
        _check_allowed(resource, ctx)
        entries = _entries(resource, ctx)
    except KafkaError as error:
        return _not_described(resource, error)
    return {
        "error_code": ErrorCode.none,
        "error_message": "",
        "resource_type": resource.resource_type,
        "resource_name": resource.resource_name,
        "configs": [_entry(each, with_synonyms, with_docs) for each in entries],
    }


def _check_allowed(resource: Any, ctx: RequestContext) -> None:
    """Check that the client may access the configs of the resource. Raises KafkaError."""
    match resource.resource_type:
        case ResourceType.TOPIC:
            check_topic(ctx, resource.resource_name)
        case ResourceType.GROUP:
            check_group(ctx, resource.resource_name)
        case _:
            check_cluster(ctx)


def _not_described(resource: Any, error: KafkaError) -> Values:
    return {
        "error_code": error.code,
        "error_message": error.message,
        "resource_type": resource.resource_type,
        "resource_name": resource.resource_name,
        "configs": [],
    }


def _entries(resource: Any, ctx: RequestContext) -> list[ConfigEntry]:
    name, keys = resource.resource_name, resource.configuration_keys
    image, config = ctx.services.metadata.image, ctx.services.config
    match resource.resource_type:
        case ResourceType.TOPIC:
            check_topic_name(name)
            if name not in image.topics_by_name:
                raise KafkaError(ErrorCode.unknown_topic_or_partition)
            return config_description.describe_topic(config, image.topic_configs(name), keys)
        case ResourceType.BROKER:
            if not name:
                return config_description.describe_cluster(config, keys)
            _check_this_broker(name, ctx)
            return config_description.describe_broker(config, keys)
        case ResourceType.BROKER_LOGGER:
            if not name:
                raise KafkaError(ErrorCode.invalid_request, "Broker id must not be empty")
            _check_this_broker(name, ctx)
            return _logger_entries(keys)
        case ResourceType.CLIENT_METRICS:
            _check_named(name, "Client metrics subscription name")
            overrides = image.config(ResourceType.CLIENT_METRICS, name)
            return config_description.describe_client_metrics(overrides, keys)
        case _:
            _check_named(name, "Group name")
            overrides = image.config(ResourceType.GROUP, name)
            return config_description.describe_group(config, overrides, keys)


def _check_this_broker(name: str, ctx: RequestContext) -> None:
    if broker_id(name) != ctx.services.node_id:
        raise KafkaError(
            ErrorCode.invalid_request,
            f"Unexpected broker id, expected {ctx.services.node_id}, but received {name}",
        )


def _check_named(name: str, what: str) -> None:
    if not name:
        raise KafkaError(ErrorCode.invalid_request, f"{what} must not be empty")


def _logger_entries(keys: Sequence[str] | None) -> list[ConfigEntry]:
    source = ConfigSource.DYNAMIC_BROKER_LOGGER_CONFIG
    return [
        ConfigEntry(name, level, source, None, (), None)
        for name, level in loggers.loggers().items()
        if not keys or name in keys
    ]


def _entry(entry: ConfigEntry, with_synonyms: bool, with_docs: bool) -> Values:
    return {
        "name": entry.name,
        "value": entry.value,
        "read_only": entry.read_only,
        "config_source": int(entry.source),
        "is_sensitive": entry.sensitive,
        "synonyms": [
            {"name": each.name, "value": each.value, "source": int(each.source)}
            for each in entry.synonyms
        ]
        if with_synonyms
        else [],
        "config_type": entry.type.value if entry.type is not None else _UNKNOWN_TYPE,
        "documentation": entry.doc if with_docs else None,
    }


# AlterConfigs and IncrementalAlterConfigs

Check = Callable[[Any, RequestContext], bool]
"""Handles one resource on this broker; returns True if nothing is left for the controller. Raises KafkaError."""


async def alter_configs(request: Any, ctx: RequestContext) -> Mapping[str, Any]:
    """AlterConfigs: replace all configs of the resources (KIP-133)."""
    responses, wanted = await _preprocess(request, ctx, _check_replacement)

    def operation(image: MetadataImage) -> ControllerResult[list[AlteredConfigResource]]:
        return operations.alter_configs(
            image,
            [
                (_key(resource), {each.name: each.value for each in resource.configs})
                for resource in wanted
            ],
            validate_config=partial(validate_resource_configs, ctx.services.config),
            past_brokers=_is_past_brokers(ctx),
            validate_only=request.validate_only,
            retain_on_disable=_retains_on_disable(ctx),
        )

    altered = await _perform(operation, request, wanted, ctx)
    return await _responses(request, responses, altered, ctx)


async def incremental_alter_configs(request: Any, ctx: RequestContext) -> Mapping[str, Any]:
    """IncrementalAlterConfigs: set, delete, append to or subtract from single configs (KIP-339)."""
    validate_only = request.validate_only
    responses, wanted = await _preprocess(
        request, ctx, lambda resource, ctx: _check_alteration(resource, ctx, validate_only)
    )

    def operation(image: MetadataImage) -> ControllerResult[list[AlteredConfigResource]]:
        return operations.incremental_alter_configs(
            image,
            [(_key(resource), _alterations(resource)) for resource in wanted],
            validate_config=partial(validate_resource_configs, ctx.services.config),
            list_configs=list_configs(),
            past_brokers=_is_past_brokers(ctx),
            validate_only=validate_only,
            retain_on_disable=_retains_on_disable(ctx),
        )

    altered = await _perform(operation, request, wanted, ctx)
    return await _responses(request, responses, altered, ctx)


def _retains_on_disable(ctx: RequestContext) -> bool:
    return ctx.services.config.get_bool("odradek.remote.log.retain.on.disable")


def _is_past_brokers(ctx: RequestContext) -> bool:
    """Whether the request came to a controller listener, so no broker has validated broker configs."""
    return ctx.endpoint.of_controller and not ctx.is_forwarded


async def _perform(
    operation: Callable[[MetadataImage], ControllerResult[list[AlteredConfigResource]]],
    request: Any,
    wanted: Sequence[Any],
    ctx: RequestContext,
) -> list[AlteredConfigResource]:
    if not wanted:
        return []
    if not (ctx.services.metadata.is_active or ctx.endpoint.of_controller):
        values = {"resources": wanted, "validate_only": request.validate_only}
        response = await forward_values(values, ctx)
        if response is not None:
            return [
                AlteredConfigResource(*_key(each), each.error_code, each.error_message)
                for each in response.responses
            ]
    try:
        return await ctx.services.metadata.perform(operation)
    except KafkaError as error:
        return [
            AlteredConfigResource(*_key(resource), error.code, error.message or None)
            for resource in wanted
        ]


def _key(resource: Any) -> Resource:
    return resource.resource_type, resource.resource_name


def _alterations(resource: Any) -> list[ConfigAlteration]:
    return [
        ConfigAlteration(each.name, each.config_operation, each.value) for each in resource.configs
    ]


async def _preprocess(
    request: Any, ctx: RequestContext, check: Check
) -> tuple[dict[Resource, AlteredConfigResource], list[Any]]:
    """Results of the resources that this broker handles itself, and the resources that are left for the
    controller."""
    counts = Counter(_key(resource) for resource in request.resources)
    responses: dict[Resource, AlteredConfigResource] = {}
    left: list[Any] = []
    async for resource in in_steps(request.resources, ctx):
        try:
            if counts[_key(resource)] > 1:
                raise KafkaError(
                    ErrorCode.invalid_request, "Each resource must appear at most once."
                )
            _check_names(resource)
            done = check(resource, ctx)
            if not done:
                _check_allowed(resource, ctx)
        except KafkaError as error:
            responses[_key(resource)] = AlteredConfigResource(
                *_key(resource), error.code, error.message or None
            )
            continue
        if done:
            responses[_key(resource)] = AlteredConfigResource(*_key(resource))
        else:
            left.append(resource)
    return responses, left


def _check_names(resource: Any) -> None:
    names = [each.name for each in resource.configs]
    if len(set(names)) != len(names):
        raise KafkaError(ErrorCode.invalid_request, "Error due to duplicate config keys")
    nulls = [
        each.name
        for each in resource.configs
        if each.value is None
        and field(each, "config_operation", AlterConfigOp.SET) != AlterConfigOp.DELETE
    ]
    if nulls:
        raise KafkaError(
            ErrorCode.invalid_request, f"Null value not supported for : {','.join(nulls)}"
        )


def _check_replacement(resource: Any, ctx: RequestContext) -> bool:
    match resource.resource_type:
        case ResourceType.BROKER if not ctx.endpoint.of_controller:
            name = resource.resource_name
            if name:
                _check_this_broker(name, ctx)
            configs = {each.name: each.value for each in resource.configs}
            validate_broker(ctx.services.config, configs, of_broker=bool(name))
        case ResourceType.TOPIC:
            _check_topic(resource.resource_name)
        case ResourceType.BROKER | ResourceType.GROUP | ResourceType.CLIENT_METRICS:
            pass  # the broker has validated its own
        case _:
            raise _not_alterable(resource)
    return False


def _check_alteration(resource: Any, ctx: RequestContext, validate_only: bool) -> bool:
    match resource.resource_type:
        case ResourceType.BROKER_LOGGER:
            if not may_cluster(ctx):
                raise KafkaError(ClusterDenied.code)
            _alter_loggers(resource, ctx, validate_only)
            return True
        case ResourceType.BROKER if not ctx.endpoint.of_controller:
            name = resource.resource_name
            if name:
                _check_this_broker(name, ctx)
            existing = ctx.services.metadata.image.config(ResourceType.BROKER, name)
            configs = altered_broker_configs(existing, _alterations(resource))
            validate_broker(ctx.services.config, configs, of_broker=bool(name))
        case ResourceType.TOPIC:
            _check_topic(resource.resource_name)
        case ResourceType.BROKER | ResourceType.GROUP | ResourceType.CLIENT_METRICS:
            pass  # the broker has validated its own
        case _:
            raise _not_alterable(resource)
    return False


def _check_topic(name: str) -> None:
    if not name:
        raise KafkaError(ErrorCode.invalid_request, "Default topic resources are not allowed.")
    check_topic_name(name)


def _not_alterable(resource: Any) -> KafkaError:
    return KafkaError(ErrorCode.invalid_request, f"Unknown resource type {resource.resource_type}")


def altered_broker_configs(
    existing: Mapping[str, str], alterations: Sequence[ConfigAlteration]
) -> dict[str, str]:
    """Dynamic configs of a broker after the alterations. Raises KafkaError."""
    configs = dict(existing)
    for each in alterations:
        match each.operation:
            case AlterConfigOp.SET:
                configs[each.name] = each.value or ""
            case AlterConfigOp.DELETE:
                configs.pop(each.name, None)
            case AlterConfigOp.APPEND | AlterConfigOp.SUBTRACT:
                configs[each.name] = _altered_list(configs, each)
            case _:
                raise KafkaError(
                    ErrorCode.invalid_request, f"Unknown operation type {each.operation}"
                )
    return configs


def _altered_list(configs: Mapping[str, str], alteration: ConfigAlteration) -> str:
    row = BROKER.get(alteration.name)
    if row is None or row.type is not ConfigType.LIST:
        operation = AlterConfigOp(alteration.operation).name.lower()
        raise KafkaError(
            ErrorCode.invalid_config,
            f"Config value {operation} is not allowed for config key: {alteration.name}",
        )
    old = [item for item in (configs.get(row.name) or row.default or "").split(",") if item]
    named = (alteration.value or "").split(",")
    if alteration.operation == AlterConfigOp.APPEND:
        return ",".join([*old, *(item for item in named if item not in old)])
    return ",".join(item for item in old if item not in named)


def _alter_loggers(resource: Any, ctx: RequestContext, validate_only: bool) -> None:
    _check_this_broker(resource.resource_name, ctx)
    levels: dict[str, str | None] = {}
    for each in resource.configs:
        if each.config_operation not in (AlterConfigOp.SET, AlterConfigOp.DELETE):
            raise KafkaError(
                ErrorCode.invalid_request,
                f"Operation {each.config_operation} is not allowed for the BROKER_LOGGER resource",
            )
        deleted = each.config_operation == AlterConfigOp.DELETE
        levels[each.name] = None if deleted else each.value
        loggers.check_level(each.name, levels[each.name])
    if not validate_only:
        for name, level in levels.items():
            loggers.set_level(name, level)


async def _responses(
    request: Any,
    responses: dict[Resource, AlteredConfigResource],
    altered: Sequence[AlteredConfigResource],
    ctx: RequestContext,
) -> Mapping[str, Any]:
    for each in altered:
        responses[each.resource_type, each.resource_name] = each
    return {
        "responses": [
            {
                "error_code": responses[_key(resource)].error_code,
                "error_message": responses[_key(resource)].error_message,
                "resource_type": resource.resource_type,
                "resource_name": resource.resource_name,
            }
            async for resource in in_steps(request.resources, ctx)
        ]
    }


# ListConfigResources


async def list_config_resources(request: Any, ctx: RequestContext) -> Mapping[str, Any]:
    """ListConfigResources: resources with configs; topics and brokers are listed even without any (KIP-1142)."""
    if not may_cluster(ctx):
        return {"error_code": ClusterDenied.code, "config_resources": []}
    possible = _LISTED_IN_0 if ctx.api_version == 0 else _LISTED
    wanted = tuple(field(request, "resource_types", ())) or possible
    if not set(wanted) <= set(possible):
        return {"error_code": ErrorCode.unsupported_version, "config_resources": []}
    image = ctx.services.metadata.image
    brokers = [str(broker) for broker in sorted(image.brokers)]
    names = {
        ResourceType.GROUP: _configured(image, ResourceType.GROUP),
        ResourceType.CLIENT_METRICS: _configured(image, ResourceType.CLIENT_METRICS),
        ResourceType.BROKER_LOGGER: brokers,
        ResourceType.BROKER: brokers,
        ResourceType.TOPIC: list(image.topics_by_name),
    }
    return {
        "error_code": ErrorCode.none,
        "config_resources": [
            {"resource_name": name, "resource_type": int(resource_type)}
            for resource_type in _LISTED
            if resource_type in wanted
            for name in names[resource_type]
        ],
    }


def _configured(image: MetadataImage, resource_type: ResourceType) -> list[str]:
    return [name for kind, name in image.configs if kind == resource_type]


HANDLERS = {
    apis.DESCRIBE_CONFIGS: describe_configs,
    apis.ALTER_CONFIGS: alter_configs,
    apis.INCREMENTAL_ALTER_CONFIGS: incremental_alter_configs,
    apis.LIST_CONFIG_RESOURCES: list_config_resources,
}
