"""Metadata images of clusters with a few brokers, and controller operations on them."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeVar
from uuid import UUID

from odradek.protocol.schemas.cluster_records import FeatureLevelRecord
from odradek.replication.controller.acls import (
    Acl,
    AclOperation,
    AclResource,
    PatternType,
    Permission,
    create_acls,
)
from odradek.replication.controller.broker_fencing import unfence_broker
from odradek.replication.controller.broker_registration import BrokerRegistration, register_broker
from odradek.replication.controller.controller_result import ControllerResult
from odradek.replication.controller.features import DEFAULT_FEATURES, SUPPORTED_FEATURES
from odradek.replication.controller.image import Endpoint, MetadataImage, PartitionImage
from odradek.replication.controller.image_builder import apply_records
from odradek.replication.controller.topics import (
    CreatedTopic,
    NewTopic,
    TopicDefaults,
    create_topics,
)
from odradek.seams.entropy import SeededEntropy

T = TypeVar("T")


def entropy(seed: int = 0) -> SeededEntropy:
    return SeededEntropy(random.Random(seed))


def directory(broker: int, number: int = 0) -> UUID:
    return UUID(int=(1 << 127) + broker * 100 + number)


def registration(
    broker: int,
    *,
    rack: str | None = None,
    directories: int = 1,
    incarnation: int = 0,
    previous_epoch: int = -1,
    features: Mapping[str, tuple[int, int]] = SUPPORTED_FEATURES,
) -> BrokerRegistration:
    return BrokerRegistration(
        id=broker,
        incarnation_id=UUID(int=(1 << 126) + broker * 1000 + incarnation),
        endpoints=[Endpoint("PLAINTEXT", f"host{broker}", 9092, 0)],
        directories=[directory(broker, number) for number in range(directories)],
        features=features,
        rack=rack,
        previous_epoch=previous_epoch,
    )


def committed(image: MetadataImage, records: Sequence[Any]) -> MetadataImage:
    """Return the image after these records were committed."""
    return apply_records(image, records, offset=image.offset + len(records)).image


def perform(image: MetadataImage, plan: ControllerResult[T]) -> tuple[MetadataImage, T]:
    return committed(image, plan.records), plan.result


def formatted(features: Mapping[str, int] = DEFAULT_FEATURES) -> MetadataImage:
    """Return the image of a new cluster without brokers."""
    records = [
        FeatureLevelRecord(name=name, feature_level=level) for name, level in features.items()
    ]
    return committed(MetadataImage(), records)


def joined(image: MetadataImage, who: BrokerRegistration) -> MetadataImage:
    """Register and unfence a broker."""
    image, epoch = perform(image, register_broker(image, who, next_offset=image.offset + 1))
    return committed(image, unfence_broker(image, who.id, epoch).records)


def cluster(
    brokers: int = 3,
    *,
    racks: Sequence[str] | None = None,
    features: Mapping[str, int] = DEFAULT_FEATURES,
    directories: int = 1,
) -> MetadataImage:
    image = formatted(features)
    for number in range(brokers):
        rack = racks[number % len(racks)] if racks else None
        image = joined(image, registration(number + 1, rack=rack, directories=directories))
    return image


def any_config(*_: object) -> None:
    """Config validator that accepts every config."""


def create(
    image: MetadataImage,
    *topics: NewTopic,
    seed: int = 0,
    defaults: TopicDefaults | None = None,
    validate_only: bool = False,
    validate_config: Any = any_config,
) -> tuple[MetadataImage, list[CreatedTopic]]:
    plan = create_topics(
        image,
        topics,
        entropy=entropy(seed),
        defaults=defaults or TopicDefaults(),
        validate_config=validate_config,
        validate_only=validate_only,
    )
    return perform(image, plan)


def partition(image: MetadataImage, topic: str, index: int = 0) -> PartitionImage:
    found = image.partition(topic, index)
    assert found is not None
    return found


ENTROPY = SeededEntropy(random.Random(1))


READ = Acl(
    AclResource.TOPIC,
    "pay",
    PatternType.PREFIXED,
    "User:alice",
    "*",
    AclOperation.READ,
    Permission.ALLOW,
)


LITERAL = replace(READ, resource_name="payments", pattern_type=PatternType.LITERAL)


def with_acls(*acls: Acl) -> MetadataImage:
    image = MetadataImage()
    plan = create_acls(image, acls, entropy=ENTROPY)
    return apply_records(image, plan.records, offset=len(plan.records)).image
