"""Release versions of Kafka, and the feature levels of a new cluster (KIP-1022).

A release version is a level of `metadata.version`, which determines the default levels of other
features. The tables are those of Kafka 4.3.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

from odradek.replication.controller.feature_updates import DEPENDENCIES
from odradek.replication.controller.features import (
    ELIGIBLE_LEADER_REPLICAS,
    GROUP_VERSION,
    KRAFT_VERSION,
    LATEST_METADATA_VERSION,
    METADATA_VERSION,
    MINIMUM_METADATA_VERSION,
    SHARE_VERSION,
    STREAMS_VERSION,
    SUPPORTED_FEATURES,
    TRANSACTION_VERSION,
)

RELEASE_VERSIONS: Final[Mapping[int, str]] = dict(
    enumerate(
        (
            "3.3-IV3", "3.4-IV0", "3.5-IV0", "3.5-IV1", "3.5-IV2", "3.6-IV0", "3.6-IV1", "3.6-IV2",
            "3.7-IV0", "3.7-IV1", "3.7-IV2", "3.7-IV3", "3.7-IV4", "3.8-IV0", "3.9-IV0", "4.0-IV0",
            "4.0-IV1", "4.0-IV2", "4.0-IV3", "4.1-IV0", "4.1-IV1", "4.2-IV0", "4.2-IV1", "4.3-IV0",
        ),
        start=MINIMUM_METADATA_VERSION,
    )
)  # fmt: skip
"""Level of metadata.version to release version."""

DEFAULT_SINCE: Final[Mapping[str, tuple[int, ...]]] = {
    KRAFT_VERSION: (21,),
    TRANSACTION_VERSION: (24, 24),
    GROUP_VERSION: (22,),
    ELIGIBLE_LEADER_REPLICAS: (26,),
    SHARE_VERSION: (28,),
    STREAMS_VERSION: (29,),
}
"""Feature to the metadata.version from which its levels 1, 2 … are the default."""

SCRAM_SUPPORT: Final = 11  # 3.5-IV2


class UnknownReleaseVersion(ValueError):
    """Unknown release version or feature level; the message lists the known ones."""


def release_version_level(name: str) -> int:
    """The metadata.version of "4.3-IV0", or the last one of "4.3" or "4.3.1". Raises
    UnknownReleaseVersion."""
    short = ".".join(name.split(".")[:2])
    found = [
        level
        for level, release in RELEASE_VERSIONS.items()
        if short == release or short == release.partition("-")[0]
    ]
    if not found:
        raise UnknownReleaseVersion(
            f"Unknown metadata.version '{name}'. Supported metadata.version are: "
            f"{', '.join(RELEASE_VERSIONS.values())}"
        )
    return found[-1]


def default_level(feature: str, release: int) -> int:
    """Default level of a feature at a metadata.version."""
    return sum(since <= release for since in DEFAULT_SINCE[feature])


def parse_level(text: str) -> tuple[str, int]:
    """Parse `feature=level`. Raises UnknownReleaseVersion."""
    name, equals, level = text.partition("=")
    if not equals:
        raise UnknownReleaseVersion(
            f"Can't parse feature=level string {text}: equals sign not found."
        )
    if not re.fullmatch(r"[+-]?[0-9]{1,5}", level.strip()):
        raise UnknownReleaseVersion(
            f"Can't parse feature=level string {text}: unable to parse {level.strip()} as a short."
        )
    return name.strip(), int(level)


def dependencies(feature: str, level: int) -> Mapping[str, int]:
    """Required levels of other features. Raises UnknownReleaseVersion."""
    if feature == METADATA_VERSION:
        if level not in RELEASE_VERSIONS:
            raise UnknownReleaseVersion(f"Unknown metadata.version {level}")
        return {}
    if feature not in DEFAULT_SINCE:
        raise UnknownReleaseVersion(f"Unknown feature: {feature}")
    low, high = SUPPORTED_FEATURES[feature]
    if not low <= level <= high:
        raise UnknownReleaseVersion(f"Feature level {level} is not supported for feature {feature}")
    return DEPENDENCIES.get((feature, level), {})


def initial_levels(
    release: str | None, wanted: Mapping[str, int], *, is_dynamic: bool
) -> dict[str, int]:
    """Feature levels of a new cluster, including kraft.version.

    `release` is a release version, None for the newest; `wanted` are explicit levels; `is_dynamic`
    means that voters are in the log (kraft.version 1). Raises UnknownReleaseVersion for
    inconsistent levels.
    """
    unknown = [name for name in wanted if name not in (METADATA_VERSION, *DEFAULT_SINCE)]
    if unknown:
        raise UnknownReleaseVersion(
            f"Unsupported feature: {unknown[0]}. Supported features are: "
            f"{', '.join(sorted(DEFAULT_SINCE))}"
        )
    level = _metadata_version(release, wanted)
    levels = {METADATA_VERSION: level}
    for name in sorted(DEFAULT_SINCE):
        if name == KRAFT_VERSION:
            levels[name] = _kraft_version(wanted.get(name), is_dynamic=is_dynamic)
        else:
            levels[name] = wanted.get(name, default_level(name, level))
    for name, each in levels.items():
        _check(name, each, levels)
    return levels


def _metadata_version(release: str | None, wanted: Mapping[str, int]) -> int:
    if METADATA_VERSION not in wanted:
        return LATEST_METADATA_VERSION if release is None else release_version_level(release)
    if release is not None:
        raise UnknownReleaseVersion(
            f"Use --release-version instead of --feature {METADATA_VERSION}=X to avoid ambiguity."
        )
    level = wanted[METADATA_VERSION]
    if level not in RELEASE_VERSIONS:
        raise UnknownReleaseVersion(
            f"No MetadataVersion with feature level {level}. Valid feature levels are from "
            f"{MINIMUM_METADATA_VERSION} to {LATEST_METADATA_VERSION}."
        )
    return level


def _kraft_version(wanted: int | None, *, is_dynamic: bool) -> int:
    if wanted is None:
        return int(is_dynamic)
    if wanted == 0 and is_dynamic:
        raise UnknownReleaseVersion(
            "Cannot set kraft.version to 0 if controller.quorum.voters is empty: leave out the "
            "--feature flag for kraft.version."
        )
    if wanted != 0 and not is_dynamic:
        raise UnknownReleaseVersion(
            f"Cannot set kraft.version to {wanted} unless controller.quorum.voters is empty and one of "
            "the flags --standalone, --initial-controllers, or --no-initial-controllers is used."
        )
    return wanted


def _check(name: str, level: int, levels: Mapping[str, int]) -> None:
    low, high = SUPPORTED_FEATURES[name]
    if not low <= level <= high:
        raise UnknownReleaseVersion(f"No feature:{name} with feature level {level}")
    for other, needed in DEPENDENCIES.get((name, level), {}).items():
        if levels.get(other, 0) < needed:
            raise UnknownReleaseVersion(
                f"{name} could not be set to {level} because it depends on {other} level {needed}"
            )
