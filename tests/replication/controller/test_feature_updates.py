"""UpdateFeatures: upgrades and downgrades by Kafka's rules, all of a request or none."""

from __future__ import annotations

from collections.abc import Sequence
from uuid import UUID

import pytest

from odradek.protocol.errors import ErrorCode, KafkaError
from odradek.protocol.schemas.topic_records import ConfigRecord
from odradek.replication.controller.broker_registration import register_controller
from odradek.replication.controller.controller_result import ControllerResult
from odradek.replication.controller.feature_updates import (
    SAFE_DOWNGRADE,
    UNSAFE_DOWNGRADE,
    UPGRADE,
    FeatureUpdate,
    update_features,
)
from odradek.replication.controller.features import DEFAULT_FEATURES, SUPPORTED_FEATURES
from odradek.replication.controller.image import BROKER, ControllerImage, MetadataImage
from tests.support.cluster_images import (
    cluster,
    committed,
    formatted,
    joined,
    perform,
    registration,
)

OLDER = {**DEFAULT_FEATURES, "metadata.version": 25, "eligible.leader.replicas.version": 0}


def updated(
    image: MetadataImage,
    *updates: FeatureUpdate,
    other_voters: Sequence[int] = (),
    validate_only: bool = False,
) -> ControllerResult[None]:
    return update_features(
        image,
        updates,
        kraft_version=1,
        min_insync_replicas=2,
        other_voters=other_voters,
        validate_only=validate_only,
    )


def refused(image: MetadataImage, *updates: FeatureUpdate, other_voters: Sequence[int] = ()) -> str:
    with pytest.raises(KafkaError) as raised:
        updated(image, *updates, other_voters=other_voters)
    assert raised.value.code is ErrorCode.invalid_update_version
    return raised.value.message


def test_feature_upgrade_and_downgrade() -> None:
    image = cluster(1)
    image, _ = perform(image, updated(image, FeatureUpdate("group.version", 0, SAFE_DOWNGRADE)))
    assert "group.version" not in image.features
    image, _ = perform(image, updated(image, FeatureUpdate("group.version", 1)))
    assert image.features["group.version"] == 1
    assert not updated(image, FeatureUpdate("group.version", 1), validate_only=True).records


def test_invalid_changes_are_rejected() -> None:
    image = cluster(1)
    assert "upgrade type" in refused(image, FeatureUpdate("group.version", 1, 9))
    assert "less than 0" in refused(image, FeatureUpdate("group.version", -1))
    assert "only supports" in refused(image, FeatureUpdate("group.version", 7))
    assert "does not support" in refused(image, FeatureUpdate("nonsense", 0, SAFE_DOWNGRADE))
    assert "downgrade" in refused(image, FeatureUpdate("group.version", 0))
    assert "newer" in refused(
        formatted({**DEFAULT_FEATURES, "group.version": 0}),
        FeatureUpdate("group.version", 1, SAFE_DOWNGRADE),
    )
    assert "Can't downgrade" in refused(image, FeatureUpdate("kraft.version", 0, SAFE_DOWNGRADE))
    updated(image, FeatureUpdate("kraft.version", 1))


def test_updates_are_applied_all_or_not_at_all() -> None:
    refused(
        cluster(1),
        FeatureUpdate("group.version", 0, SAFE_DOWNGRADE),
        FeatureUpdate("nonsense", 1),
    )


def test_level_must_be_supported_by_every_broker() -> None:
    old = {**SUPPORTED_FEATURES, "group.version": (0, 0)}
    image = joined(
        formatted({**DEFAULT_FEATURES, "group.version": 0}), registration(1, features=old)
    )
    assert "Broker 1 does not support" in refused(image, FeatureUpdate("group.version", 1))


def test_every_voter_must_be_registered() -> None:
    """Required from the metadata version on with which controllers register (KIP-919)."""
    down = FeatureUpdate("group.version", 0, SAFE_DOWNGRADE)
    image = cluster(1)
    assert "controller 2 has not registered" in refused(image, down, other_voters=[2])
    second = ControllerImage(2, UUID(int=2), (), SUPPORTED_FEATURES)
    image, _ = perform(image, register_controller(image, second))
    assert updated(image, down, other_voters=[2]).records
    ancient = formatted({**OLDER, "metadata.version": 14})
    assert updated(ancient, down, other_voters=[2]).records


@pytest.mark.parametrize("kind", [SAFE_DOWNGRADE, UNSAFE_DOWNGRADE])
def test_metadata_version_downgrade_that_loses_records_is_rejected(kind: int) -> None:
    image = formatted()
    assert "Unsupported" in refused(image, FeatureUpdate("metadata.version", 29, kind))
    plan = updated(formatted(OLDER), FeatureUpdate("metadata.version", 24, kind))
    assert [record.feature_level for record in plan.records] == [24]
    assert "Unsupported" in refused(formatted(OLDER), FeatureUpdate("metadata.version", 22, kind))


def test_elr_requires_metadata_version_and_cluster_min_insync_replicas() -> None:
    elr = FeatureUpdate("eligible.leader.replicas.version", 1)
    ancient = formatted({**OLDER, "metadata.version": 22})
    assert "depends" in refused(ancient, elr)
    updated(ancient, elr, FeatureUpdate("metadata.version", 23, UPGRADE))

    of_broker = ConfigRecord(
        resource_type=BROKER, resource_name="1", name="min.insync.replicas", value="1"
    )
    image = committed(formatted(OLDER), [of_broker])
    image, _ = perform(image, updated(image, elr))
    assert image.config(BROKER, "") == {"min.insync.replicas": "2"}
    assert image.config(BROKER, "1") == {}
