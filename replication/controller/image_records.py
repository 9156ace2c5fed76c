"""Records of a snapshot of an image, in Kafka's order.

`metadata.version` comes first, because it determines how the others are read.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from odradek.replication.controller.features import (
    CONTROLLER_REGISTRATION,
    CORDONED_DIRECTORIES,
    METADATA_VERSION,
    metadata_version,
)
from odradek.replication.controller.image import (
    BrokerImage,
    ControllerImage,
    MetadataImage,
    TopicImage,
)
from odradek.replication.controller.partition_registration import partition_record
from odradek.replication.controller.topic_tiering import tiering_record


def snapshot_records(image: MetadataImage) -> Iterator[Any]:
    """Records that produce `image` from an empty one."""
    yield from _features(image)
    for broker in image.brokers.values():
        yield broker_record(broker, metadata_version(image.features))
    if metadata_version(image.features) >= CONTROLLER_REGISTRATION:
        for controller in image.controllers.values():
            yield controller_record(controller)
    for topic in image.topics_by_id.values():
        yield from _topic(topic)
    for topic_id, tiering in image.tiering.items():
        yield tiering_record(topic_id, tiering)
    yield from _configs(image)
    yield from _quotas(image)
    yield from _producer_ids(image)
    yield from image.acls.values()
    yield from image.scram.values()
    yield from image.delegation_tokens.values()


def _features(image: MetadataImage) -> Iterator[Any]:
    from odradek.protocol.schemas.cluster_records import FeatureLevelRecord

    if METADATA_VERSION in image.features:
        level = image.features[METADATA_VERSION]
        yield FeatureLevelRecord(name=METADATA_VERSION, feature_level=level)
    for name, level in image.features.items():
        if name != METADATA_VERSION:
            yield FeatureLevelRecord(name=name, feature_level=level)


def broker_record(broker: BrokerImage, level: int) -> Any:
    """RegisterBrokerRecord of a broker; fields that this metadata.version lacks are omitted."""
    from odradek.protocol.schemas.cluster_records import (
        BrokerEndpoint,
        BrokerFeature,
        RegisterBrokerRecord,
    )

    return RegisterBrokerRecord(
        broker_id=broker.id,
        incarnation_id=broker.incarnation_id,
        broker_epoch=broker.epoch,
        end_points=tuple(
            BrokerEndpoint(
                name=each.name,
                host=each.host,
                port=each.port,
                security_protocol=each.security_protocol,
            )
            for each in broker.endpoints
        ),
        features=tuple(
            BrokerFeature(name=name, min_supported_version=low, max_supported_version=high)
            for name, (low, high) in broker.features.items()
        ),
        rack=broker.rack,
        fenced=broker.fenced,
        in_controlled_shutdown=broker.in_controlled_shutdown,
        log_dirs=broker.directories,
        cordoned_log_dirs=broker.cordoned_directories if level >= CORDONED_DIRECTORIES else None,
    )


def controller_record(controller: ControllerImage) -> Any:
    """RegisterControllerRecord of a controller (KIP-919)."""
    from odradek.protocol.schemas.cluster_records import (
        ControllerEndpoint,
        ControllerFeature,
        RegisterControllerRecord,
    )

    return RegisterControllerRecord(
        controller_id=controller.id,
        incarnation_id=controller.incarnation_id,
        zk_migration_ready=controller.zk_migration_ready,
        end_points=tuple(
            ControllerEndpoint(
                name=each.name,
                host=each.host,
                port=each.port,
                security_protocol=each.security_protocol,
            )
            for each in controller.endpoints
        ),
        features=tuple(
            ControllerFeature(name=name, min_supported_version=low, max_supported_version=high)
            for name, (low, high) in controller.features.items()
        ),
    )


def _topic(topic: TopicImage) -> Iterator[Any]:
    from odradek.protocol.schemas.topic_records import TopicRecord

    yield TopicRecord(name=topic.name, topic_id=topic.id)
    for index, partition in topic.partitions.items():
        yield partition_record(topic.id, index, partition)


def _configs(image: MetadataImage) -> Iterator[Any]:
    from odradek.protocol.schemas.topic_records import ConfigRecord

    for (resource_type, resource_name), values in image.configs.items():
        for name, value in values.items():
            yield ConfigRecord(
                resource_type=resource_type, resource_name=resource_name, name=name, value=value
            )


def _quotas(image: MetadataImage) -> Iterator[Any]:
    for entity, values in image.quotas.items():
        from odradek.protocol.schemas.security_records import ClientQuotaEntity, ClientQuotaRecord

        parts = tuple(
            ClientQuotaEntity(entity_type=entity_type, entity_name=name)
            for entity_type, name in entity
        )
        for key, value in values.items():
            yield ClientQuotaRecord(entity=parts, key=key, value=value)


def _producer_ids(image: MetadataImage) -> Iterator[Any]:
    if image.next_producer_id >= 0:
        from odradek.protocol.schemas.cluster_records import ProducerIdsRecord

        yield ProducerIdsRecord(
            broker_id=-1, broker_epoch=-1, next_producer_id=image.next_producer_id
        )
