"""Reset of an embedded broker to its state after start.

A base image of the metadata is kept at start. The records of a reset undo every later change that a client can
request: topics, configs of all resource types, ACLs, client quotas, SCRAM credentials, delegation tokens and features.
A broker that was unregistered registers itself again, and a reset waits for that. Coordinators' state and log levels
are not in the metadata and are removed separately.

The internal topics stay, because creating them again would take most of the time of a reset. One that a client has
changed is deleted, and created on its next use. Producer ids are not reused.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, Final

import trio

from odradek.broker.config import loggers
from odradek.broker.coordination.internal_topics import (
    InternalTopic,
    is_internal_topic,
    offsets_topic,
    transactions_topic,
)
from odradek.protocol.errors import ErrorCode, KafkaError
from odradek.replication.controller.controller_result import ControllerResult
from odradek.replication.controller.features import METADATA_VERSION
from odradek.replication.controller.image import TOPIC, MetadataImage, QuotaEntity, TopicImage

if TYPE_CHECKING:
    from odradek.broker.node import Node

REPORT_SECONDS: Final = 20.0
"""Longest wait until the broker has registered again, or has reported which log directories are cordoned."""

LOADING_PAUSE_SECONDS: Final = 0.01


async def reset_node(node: Node, base: MetadataImage) -> None:
    """Undo what clients changed since `base` was the node's image."""
    loggers.restore_levels()
    await _wait_until(_is_registered, node, base)
    with trio.fail_after(REPORT_SECONDS):
        while not await _coordinators_are_empty(node):  # noqa: ASYNC110 - loading sets no event
            await trio.sleep(LOADING_PAUSE_SECONDS)
    internal = (offsets_topic(node.config), transactions_topic(node.config))
    kept = {each.name: each for each in internal}
    if any(True for _ in reset_records(node.metadata.image, base, kept)):
        await node.metadata.perform(
            lambda image: ControllerResult(
                list(reset_records(image, base, kept)), None, atomic=False
            )
        )
    await _wait_until(_is_uncordoned, node, base)


async def _coordinators_are_empty(node: Node) -> bool:
    """Remove groups and transactional ids; False if a coordinator is loading."""
    try:
        await node.services.coordinators.remove_all_state()
    except KafkaError as error:
        if error.code is ErrorCode.coordinator_load_in_progress:
            return False
        raise
    return True


def _is_registered(image: MetadataImage, base: MetadataImage, broker_id: int) -> bool:
    """Whether the broker is registered and unfenced; one that was unregistered registers itself again."""
    return image.is_active(broker_id) or not base.is_active(broker_id)


def _is_uncordoned(image: MetadataImage, base: MetadataImage, broker_id: int) -> bool:
    """Whether the broker has reported the cordoned log directories of `base` (KIP-1066)."""
    now, was = image.brokers.get(broker_id), base.brokers.get(broker_id)
    if now is None or was is None:
        return True
    return (now.cordoned_directories or ()) == (was.cordoned_directories or ())


async def _wait_until(
    is_reported: Callable[[MetadataImage, MetadataImage, int], bool],
    node: Node,
    base: MetadataImage,
) -> None:
    """Wait for a report of the broker to the controller. Fails with a timeout after REPORT_SECONDS."""
    if is_reported(node.metadata.image, base, node.node_id):
        return
    changed = trio.Event()

    def set_changed(_: object) -> None:
        changed.set()

    unsubscribe = node.metadata.subscribe(set_changed)
    try:
        with trio.fail_after(REPORT_SECONDS):
            while not is_reported(node.metadata.image, base, node.node_id):
                await changed.wait()
                changed = trio.Event()
    finally:
        unsubscribe()


def reset_records(
    image: MetadataImage, base: MetadataImage, internal: Mapping[str, InternalTopic]
) -> Iterator[Any]:
    """Records that undo the changes between `base` and `image`; none if there are no changes.

    All topics are deleted, except internal topics as the coordinators created them (`internal`).
    """
    yield from _features(image, base)
    for topic in image.topics_by_id.values():
        if _is_deleted(topic, image, internal):
            from odradek.protocol.schemas.topic_records import RemoveTopicRecord

            yield RemoveTopicRecord(topic_id=topic.id)
    if image.configs is not base.configs:
        yield from _configs(image, base)
    if image.quotas is not base.quotas:
        yield from _quotas(image, base)
    if (image.acls, image.scram, image.delegation_tokens) != (
        base.acls,
        base.scram,
        base.delegation_tokens,
    ):
        yield from _security(image, base)


def _features(image: MetadataImage, base: MetadataImage) -> Iterator[Any]:
    """`metadata.version` comes first, because it determines the versions of the other records."""
    if image.features is base.features:
        return
    from odradek.protocol.schemas.cluster_records import FeatureLevelRecord

    names = sorted(image.features.keys() | base.features.keys(), key=METADATA_VERSION.__ne__)
    for name in names:
        level = base.features.get(name, 0)
        if image.features.get(name, 0) != level:
            yield FeatureLevelRecord(name=name, feature_level=level)


def _is_deleted(
    topic: TopicImage, image: MetadataImage, internal: Mapping[str, InternalTopic]
) -> bool:
    if not is_internal_topic(topic.name):
        return True
    created = internal.get(topic.name)
    if created is None:
        return False
    return (len(topic.partitions), image.topic_configs(topic.name)) != (
        created.partitions,
        created.configs,
    )


def _configs(image: MetadataImage, base: MetadataImage) -> Iterator[Any]:
    """Configs of brokers, groups and client metrics subscriptions; topics' are deleted with them."""
    from odradek.protocol.schemas.topic_records import ConfigRecord

    for resource in image.configs.keys() | base.configs.keys():
        kind, name = resource
        if kind == TOPIC:
            continue
        now, was = image.config(*resource), base.config(*resource)
        for key in now.keys() | was.keys():
            if now.get(key) != was.get(key):
                yield ConfigRecord(
                    resource_type=kind, resource_name=name, name=key, value=was.get(key)
                )


def _quotas(image: MetadataImage, base: MetadataImage) -> Iterator[Any]:
    from odradek.protocol.schemas.security_records import ClientQuotaEntity, ClientQuotaRecord

    nothing: Mapping[str, float] = {}
    entity: QuotaEntity
    for entity in image.quotas.keys() | base.quotas.keys():
        now, was = image.quotas.get(entity, nothing), base.quotas.get(entity, nothing)
        for key in now.keys() | was.keys():
            if now.get(key) != was.get(key):
                yield ClientQuotaRecord(
                    entity=tuple(
                        ClientQuotaEntity(entity_type=entity_type, entity_name=name)
                        for entity_type, name in entity
                    ),
                    key=key,
                    value=was.get(key, 0.0),
                    remove=key not in was,
                )


def _security(image: MetadataImage, base: MetadataImage) -> Iterator[Any]:
    """ACLs, SCRAM credentials and delegation tokens."""
    from odradek.protocol.schemas.security_records import (
        RemoveAccessControlEntryRecord,
        RemoveDelegationTokenRecord,
        RemoveUserScramCredentialRecord,
    )

    for acl_id in image.acls.keys() - base.acls.keys():
        yield RemoveAccessControlEntryRecord(id=acl_id)
    for acl_id in base.acls.keys() - image.acls.keys():
        yield base.acls[acl_id]
    for mechanism, user in image.scram.keys() - base.scram.keys():
        yield RemoveUserScramCredentialRecord(name=user, mechanism=mechanism)
    for key, credential in base.scram.items():
        if image.scram.get(key) != credential:
            yield credential
    for token_id in image.delegation_tokens.keys() - base.delegation_tokens.keys():
        yield RemoveDelegationTokenRecord(token_id=token_id)
    for token_id, token in base.delegation_tokens.items():
        if image.delegation_tokens.get(token_id) != token:
            yield token
