"""Updates of finalized feature levels (KIP-584, KIP-778, KIP-1022).

Every node must support the new level. A downgrade must be requested explicitly, and
metadata.version is not lowered past a level that changed records. A request is applied completely
or not at all.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any, Final

from odradek.protocol.errors import ErrorCode, KafkaError
from odradek.replication.controller.controller_result import ControllerResult, ItemRefused
from odradek.replication.controller.features import (
    CONTROLLER_REGISTRATION,
    CORDONED_DIRECTORIES,
    DIRECTORY_ASSIGNMENT,
    ELIGIBLE_LEADER_REPLICAS,
    ELR_SUPPORT,
    KRAFT_VERSION,
    METADATA_VERSION,
    MIGRATION_SUPPORT,
    MINIMUM_METADATA_VERSION,
    SUPPORTED_FEATURES,
    TRANSACTIONS_SUPPORT,
    metadata_version,
)
from odradek.replication.controller.image import BROKER, MetadataImage
from odradek.replication.controller.leader_and_isr_updates import MIN_ISR
from odradek.seams.values import value_class

UPGRADE, SAFE_DOWNGRADE, UNSAFE_DOWNGRADE = 1, 2, 3

RECORDS_CHANGED_AT: Final = (
    MINIMUM_METADATA_VERSION,
    MIGRATION_SUPPORT,
    11,  # 3.5-IV2: delegation tokens
    TRANSACTIONS_SUPPORT,
    14,  # 3.6-IV2: delegation tokens
    CONTROLLER_REGISTRATION,
    DIRECTORY_ASSIGNMENT,
    ELR_SUPPORT,
    CORDONED_DIRECTORIES,
)
"""Levels of metadata.version that introduced records unknown to the level before."""
DEPENDENCIES: Final[Mapping[tuple[str, int], Mapping[str, int]]] = {
    (ELIGIBLE_LEADER_REPLICAS, 1): {METADATA_VERSION: ELR_SUPPORT},
}
"""(feature, level) to the levels required of other features."""


@value_class
class FeatureUpdate:
    name: str
    level: int
    upgrade_type: int = UPGRADE


def update_features(
    image: MetadataImage,
    updates: Sequence[FeatureUpdate],
    *,
    kraft_version: int,
    min_insync_replicas: int,
    other_voters: Collection[int],
    validate_only: bool = False,
) -> ControllerResult[None]:
    """Raise KafkaError (invalid_update_version) for the first invalid update.

    `kraft_version` is the quorum's. `min_insync_replicas` is the static config, which becomes the
    cluster's when ELR is enabled (KIP-966). `other_voters` are the other configured controllers.
    """
    latest = {each.name: each for each in updates}
    proposed = {
        **image.features,
        METADATA_VERSION: metadata_version(image.features),
        **{each.name: each.level for each in latest.values()},
    }
    records: list[Any] = []
    for each in latest.values():
        records += _update(image, each, proposed, kraft_version, other_voters)
    if ELIGIBLE_LEADER_REPLICAS in latest and latest[ELIGIBLE_LEADER_REPLICAS].level > 0:
        records = [*_min_isr_of_cluster(image, min_insync_replicas), *records]
    return ControllerResult([] if validate_only else records, None)


def _update(
    image: MetadataImage,
    update: FeatureUpdate,
    proposed: Mapping[str, int],
    kraft_version: int,
    other_voters: Collection[int],
) -> Iterator[Any]:
    from odradek.protocol.schemas.cluster_records import FeatureLevelRecord

    name, level, wanted = update.name, update.level, update.upgrade_type
    if wanted not in (UPGRADE, SAFE_DOWNGRADE, UNSAFE_DOWNGRADE):
        raise _invalid(update, "The controller does not support the given upgrade type.")
    if level < 0:
        raise _invalid(update, "A feature version cannot be less than 0.")
    _check_supported(image, update, other_voters)
    present = image.features.get(name, 0)
    if name == METADATA_VERSION:
        present = metadata_version(image.features)
    elif name == KRAFT_VERSION:
        present = kraft_version
    if level < present and wanted == UPGRADE:
        raise _invalid(
            update,
            "Can't downgrade the version of this feature without setting the upgrade type to either "
            "safe or unsafe downgrade.",
        )
    if level > present and wanted != UPGRADE:
        raise _invalid(update, "Can't downgrade to a newer version.")
    if name == KRAFT_VERSION:  # the quorum upgrades it; it is not a metadata record
        if level < present:
            raise _invalid(update, "Can't downgrade the version of this feature.")
        return
    if name == METADATA_VERSION:
        _check_metadata_version(update, present)
    for other, needed in DEPENDENCIES.get((name, level), {}).items():
        if proposed.get(other, 0) < needed:
            raise _invalid(update, f"It depends on {other} level {needed}")
    yield FeatureLevelRecord(name=name, feature_level=level)


def _check_supported(
    image: MetadataImage, update: FeatureUpdate, other_voters: Collection[int]
) -> None:
    """Raise unless all brokers and controllers support the level. An unregistered voter may not
    (KIP-919)."""
    if update.name not in SUPPORTED_FEATURES:
        raise _invalid(update, "Local controller does not support this feature.")
    nodes = [("Local controller", SUPPORTED_FEATURES)]
    nodes += [(f"Broker {each.id}", each.features) for each in image.brokers.values()]
    nodes += [(f"Controller {each.id}", each.features) for each in image.controllers.values()]
    for who, features in nodes:
        low, high = features.get(update.name, (0, 0))
        if low <= update.level <= high:
            continue
        if high == 0:
            raise _invalid(update, f"{who} does not support this feature.")
        raise _invalid(update, f"{who} only supports versions {low}-{high}")
    if metadata_version(image.features) >= CONTROLLER_REGISTRATION:
        for each in other_voters:
            if each not in image.controllers:
                reason = f"controller {each} has not registered, and may not support this feature"
                raise _invalid(update, reason)


def _check_metadata_version(update: FeatureUpdate, present: int) -> None:
    if any(update.level < changed <= present for changed in RECORDS_CHANGED_AT):
        reason = "Refusing to perform the requested downgrade because it might delete metadata information."
        if update.upgrade_type == UNSAFE_DOWNGRADE:
            reason = "Unsafe metadata downgrade is not supported in this version."
        raise ItemRefused(
            ErrorCode.invalid_update_version,
            f"Unsupported metadata.version downgrade from {present} to {update.level}. {reason}",
        )


def _min_isr_of_cluster(image: MetadataImage, static: int) -> Iterator[Any]:
    """Records that set min.insync.replicas for the cluster and remove it from brokers, as ELR requires."""
    from odradek.protocol.schemas.topic_records import ConfigRecord

    if MIN_ISR not in image.config(BROKER, ""):
        yield ConfigRecord(resource_type=BROKER, resource_name="", name=MIN_ISR, value=str(static))
    for (kind, name), configs in image.configs.items():
        if kind == BROKER and name and MIN_ISR in configs:
            yield ConfigRecord(resource_type=BROKER, resource_name=name, name=MIN_ISR, value=None)


def _invalid(update: FeatureUpdate, reason: str) -> KafkaError:
    return ItemRefused(
        ErrorCode.invalid_update_version,
        f"Invalid update version {update.level} for feature {update.name}. {reason}",
    )
