"""Creation of topics on behalf of clients and coordinators, locally or through the active
controller.

If another node is the active controller, the caller waits until this node's image has the topics. A
client's automatic topic creation uses the client's principal and quota (KIP-590, KIP-599); a
coordinator's uses this broker's own.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import trio

from odradek.broker.config.topic_config_validation import is_true
from odradek.broker.coordination.internal_topics import (
    InternalTopic,
    diskless_metadata_topic,
    is_internal_topic,
)
from odradek.broker.quotas.partition_mutation_quota import mutations_of
from odradek.protocol import apis
from odradek.protocol.errors import ErrorCode, InvalidFrame, KafkaError
from odradek.replication.controller.controller_result import (
    ControllerResult,
    MutationCharge,
    no_mutation_quota,
)
from odradek.replication.controller.image import MetadataImage

if TYPE_CHECKING:
    from odradek.broker.config.server_config import ServerConfig
    from odradek.broker.requests.context import RequestContext
    from odradek.broker.services import Services
    from odradek.replication.controller.diskless_topics import DisklessMetadataTopic
    from odradek.replication.controller.topics import CreatedTopic, NewTopic
    from odradek.replication.raft.metadata_manager import MetadataManager

CREATE_SECONDS: Final = 30.0
KNOWN_SECONDS: Final = 5.0
"""How long to wait until this node has the topics that another node created."""


async def create_topics(
    services: Services,
    topics: Sequence[NewTopic],
    *,
    validate_only: bool,
    charge: MutationCharge = no_mutation_quota,
) -> list[CreatedTopic]:
    """Create topics as the active controller; one result each. Raises NotController."""
    from odradek.broker.config.alteration_validation import validate_resource_configs
    from odradek.replication.controller.topics import TopicDefaults, create_topics

    config = services.config
    is_enabled = config.get_bool("diskless.storage.system.enable")
    defaults = TopicDefaults(
        config.get_int("num.partitions"),
        config.get_int("default.replication.factor"),
        _diskless_metadata(config) if is_enabled else None,
    )
    if config.get_bool("log.diskless.enable"):
        topics = [diskless_by_default(config, topic) for topic in topics]

    def operation(image: MetadataImage) -> ControllerResult[list[CreatedTopic]]:
        return create_topics(
            image,
            topics,
            entropy=services.seams.entropy,
            defaults=defaults,
            validate_config=partial(validate_resource_configs, config),
            validate_only=validate_only,
            charge=charge,
        )

    return await services.metadata.perform(operation)


def _diskless_metadata(config: ServerConfig) -> DisklessMetadataTopic:
    from odradek.replication.controller.diskless_topics import DisklessMetadataTopic

    topic = diskless_metadata_topic(config)
    return DisklessMetadataTopic(topic.partitions, topic.replication_factor, topic.configs)


def diskless_by_default(config: ServerConfig, topic: NewTopic) -> NewTopic:
    """The topic with `diskless.enable=true`, if `log.diskless.enable` is true and its configs permit it."""
    given = topic.configs
    if is_internal_topic(topic.name) or "diskless.enable" in given:
        return topic
    policy = given.get("cleanup.policy") or config.topic_defaults()["cleanup.policy"]
    if "compact" in policy or is_true(given.get("remote.storage.enable")):
        return topic
    return replace(topic, configs={**given, "diskless.enable": "true"})


async def request_topics(ctx: RequestContext, topics: Sequence[NewTopic]) -> list[CreatedTopic]:
    """Create topics for a client, with its principal and quota; one result each.

    This node's image has the topics afterwards. Raises KafkaError if there is no active controller.
    """
    api = apis.CREATE_TOPICS
    ctx = replace(ctx, api=api, api_version=api.max_version)
    if ctx.services.metadata.is_active:
        is_free = all(is_internal_topic(topic.name) for topic in topics)
        charge = mutations_of(ctx, is_free=is_free).charge
        return await create_topics(ctx.services, topics, validate_only=False, charge=charge)
    response = None
    with trio.move_on_after(CREATE_SECONDS):
        response = await _forward(topics, ctx)
    if response is None:
        raise KafkaError(
            ErrorCode.request_timed_out, "no active controller created the topics in time"
        )
    return await _once_known(ctx.services, response)


async def _forward(topics: Sequence[NewTopic], ctx: RequestContext) -> Any:
    from odradek.broker.requests.forwarding import forward_values

    try:
        return await forward_values(_request(topics), ctx)
    except InvalidFrame as error:  # an error of this request; the client's connection stays open
        raise KafkaError(ErrorCode.unsupported_version, str(error)) from error


async def _request_as_broker(services: Services, topic: NewTopic) -> list[CreatedTopic]:
    if services.metadata.is_active:
        return await create_topics(services, [topic], validate_only=False)
    request = _request([topic])
    response = await services.controller_channel.request(
        apis.CREATE_TOPICS, request, timeout_s=CREATE_SECONDS
    )
    return await _once_known(services, response)


async def _once_known(services: Services, response: Any) -> list[CreatedTopic]:
    created = [_created(each) for each in response.topics]
    await _known(services.metadata, [each.name for each in created if not each.error_code])
    return created


def _request(topics: Sequence[NewTopic]) -> dict[str, Any]:
    return {
        "topics": [_values(topic) for topic in topics],
        "timeout": int(CREATE_SECONDS * 1000),
        "validate_only": False,
    }


def _values(topic: NewTopic) -> dict[str, Any]:
    return {
        "name": topic.name,
        "num_partitions": topic.partitions,
        "replication_factor": topic.replication_factor,
        "assignments": [
            {"partition_index": index, "broker_ids": list(replicas)}
            for index, replicas in topic.assignment_pairs
        ],
        "configs": [{"name": name, "value": value} for name, value in topic.configs.items()],
    }


def _created(response: Any) -> CreatedTopic:
    from odradek.replication.controller.topics import CreatedTopic

    return CreatedTopic(
        response.name,
        response.error_code,
        response.error_message,
        response.topic_id,
        response.num_partitions,
        response.replication_factor,
    )


async def _known(metadata: MetadataManager, names: Collection[str]) -> None:
    """Wait until this node's image has all of the topics, or the timeout."""
    changed = trio.Event()

    def set_changed(_: Any) -> None:
        changed.set()

    unsubscribe = metadata.subscribe(set_changed)
    try:
        with trio.move_on_after(KNOWN_SECONDS):
            while any(name not in metadata.image.topics_by_name for name in names):
                await changed.wait()
                changed = trio.Event()
    finally:
        unsubscribe()


async def ensure_topic(
    services: Services,
    name: str,
    partitions: int = -1,
    replication_factor: int = -1,
    configs: Mapping[str, str] | None = None,
) -> None:
    """Create the topic unless it exists. Raises KafkaError with the controller's error."""
    if name in services.metadata.image.topics_by_name:
        return
    from odradek.replication.controller.topics import NewTopic

    wanted = NewTopic(name, partitions, replication_factor, configs=dict(configs or {}))
    (created,) = await _request_as_broker(services, wanted)
    if created.error_code == ErrorCode.topic_already_exists:
        await _known(services.metadata, [name])
    elif created.error_code != ErrorCode.none:
        raise KafkaError(created.error_code, created.error_message or "")


async def ensure_internal_topic(services: Services, topic: InternalTopic) -> None:
    """Create a coordinator's topic unless it exists. Raises KafkaError with the controller's error."""
    await ensure_topic(
        services, topic.name, topic.partitions, topic.replication_factor, topic.configs
    )
