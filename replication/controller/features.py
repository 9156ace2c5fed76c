"""Feature names and levels (KIP-584), and the record versions that a metadata.version implies.

The levels are those of Kafka 4.3. `metadata.version` limits record versions, so that all nodes can
read them during a rolling upgrade. `kraft.version` is stored in control records of the log
(KIP-853).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

METADATA_VERSION: Final = "metadata.version"
KRAFT_VERSION: Final = "kraft.version"
ELIGIBLE_LEADER_REPLICAS: Final = "eligible.leader.replicas.version"
GROUP_VERSION: Final = "group.version"
SHARE_VERSION: Final = "share.version"
STREAMS_VERSION: Final = "streams.version"
TRANSACTION_VERSION: Final = "transaction.version"

# Levels of metadata.version that change records or their effect
MINIMUM_METADATA_VERSION: Final = 7  # 3.3-IV3
MIGRATION_SUPPORT: Final = 8  # 3.4-IV0: RegisterBrokerRecord v2
SHRINKING_KEEPS_LEADER_EPOCH: Final = 12  # 3.6-IV0: shrinking the ISR keeps the leader epoch
TRANSACTIONS_SUPPORT: Final = 13  # 3.6-IV1: metadata transactions (KIP-868)
CONTROLLER_REGISTRATION: Final = 15  # 3.7-IV0 (KIP-919)
DIRECTORY_ASSIGNMENT: Final = 17  # 3.7-IV2 (KIP-858)
ELR_SUPPORT: Final = 23  # 4.0-IV1 (KIP-966)
CORDONED_DIRECTORIES: Final = 30  # 4.3-IV0
LATEST_METADATA_VERSION: Final = 30  # 4.3-IV0

SUPPORTED_FEATURES: Final[Mapping[str, tuple[int, int]]] = {
    GROUP_VERSION: (0, 1),
    KRAFT_VERSION: (0, 1),
    METADATA_VERSION: (MINIMUM_METADATA_VERSION, LATEST_METADATA_VERSION),
    SHARE_VERSION: (0, 1),
    STREAMS_VERSION: (0, 1),
    TRANSACTION_VERSION: (0, 2),
    ELIGIBLE_LEADER_REPLICAS: (0, 1),
}
"""Supported features: name to (lowest, highest) level."""

DEFAULT_FEATURES: Final[Mapping[str, int]] = {
    METADATA_VERSION: LATEST_METADATA_VERSION,
    ELIGIBLE_LEADER_REPLICAS: 1,
    GROUP_VERSION: 1,
    SHARE_VERSION: 1,
    STREAMS_VERSION: 1,
    TRANSACTION_VERSION: 2,
}
"""Levels of a newly formatted cluster, in write order."""


def metadata_version(features: Mapping[str, int]) -> int:
    """Level of `metadata.version`; the oldest supported one before it is set."""
    return features.get(METADATA_VERSION, MINIMUM_METADATA_VERSION)


def elr_enabled(features: Mapping[str, int]) -> bool:
    """Whether eligible leader replicas are enabled (KIP-966)."""
    return features.get(ELIGIBLE_LEADER_REPLICAS, 0) >= 1


def knows_cordoned(features: Mapping[str, int]) -> bool:
    """Whether registrations contain cordoned log directories (KIP-1066)."""
    return metadata_version(features) >= CORDONED_DIRECTORIES


def record_version(record: Any, features: Mapping[str, int]) -> int:
    """Version of a metadata record at these feature levels."""
    kind = type(record).__name__
    if kind in ("PartitionRecord", "PartitionChangeRecord"):
        level = metadata_version(features)
        return 2 if level >= ELR_SUPPORT else 1 if level >= DIRECTORY_ASSIGNMENT else 0
    if kind == "RegisterBrokerRecord":
        return _registration_version(metadata_version(features))
    if kind == "BrokerRegistrationChangeRecord":
        return _registration_change_version(record)
    return 0


def _registration_version(level: int) -> int:
    if level >= CORDONED_DIRECTORIES:
        return 4
    if level >= DIRECTORY_ASSIGNMENT:
        return 3
    return 2 if level >= MIGRATION_SUPPORT else 1


def _registration_change_version(record: Any) -> int:
    """Lowest version that has the fields that are set, as in Kafka."""
    if record.cordoned_log_dirs is not None:
        return 3
    if record.log_dirs:
        return 2
    return 1 if record.in_controlled_shutdown else 0
