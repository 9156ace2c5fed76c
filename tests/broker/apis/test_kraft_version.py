"""Test of UpdateFeatures for kraft.version: a static quorum becomes a dynamic one, with its voters in the log
(KIP-853)."""

from __future__ import annotations

from typing import Any

from odradek.protocol import apis
from odradek.protocol.schemas.cluster_records import FeatureLevelRecord
from odradek.protocol.schemas.serde import encode_metadata_record
from odradek.replication.raft.metadata_manager import MetadataManager
from tests.support.metadata_nodes import (
    DIRECTORY_ID,
    LOG_DIRECTORY,
    log_of,
    new_node,
    raw_log,
    started,
)


async def static_quorum() -> tuple[Any, MetadataManager]:
    """Static quorum of this node alone, from `controller.quorum.voters`."""
    node = new_node()
    node.files.make_directory(LOG_DIRECTORY)
    log = raw_log(node.disk, formatted=False)
    level = FeatureLevelRecord(name="metadata.version", feature_level=25)
    log.append([encode_metadata_record(level)], 1)
    log.close()
    return node, await started(node)


async def update(client: Any, level: int, *, upgrade_type: int = 1, dry_run: bool = False) -> str:
    update = {"feature": "kraft.version", "max_version_level": level, "upgrade_type": upgrade_type}
    response = await client.ask(
        apis.UPDATE_FEATURES, 2, feature_updates=[update], validate_only=dry_run
    )
    name: str = response.error_code.name
    return name


async def test_update_features_upgrades_quorum_to_dynamic(client: Any) -> None:
    node, metadata = await static_quorum()
    client.broker.metadata = metadata
    assert metadata.kraft_version == 0
    assert await update(client, 1, dry_run=True) == "none"
    assert metadata.kraft_version == 0
    assert await update(client, 1) == "none"
    assert metadata.kraft_version == 1
    assert ["KRAFT_VERSION", "KRAFT_VOTERS"] in log_of(node.files)
    assert [each.directory_id for each in metadata.quorum.voters] == [DIRECTORY_ID]
    assert await update(client, 0, upgrade_type=2) == "invalid_update_version"
    assert await update(client, 2) == "invalid_update_version"
    assert await update(client, 1) == "none"
    assert metadata.kraft_version == 1
