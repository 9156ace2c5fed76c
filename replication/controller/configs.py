"""Altering configs, whole (KIP-133) and incrementally (KIP-339).

SKELETON of signatures, being filled in.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from odradek.protocol.errors import ErrorCode
from odradek.replication.controller.image import MetadataImage
from odradek.replication.controller.operations import ConfigValidator, Plan

Resource = tuple[int, str]  # resource type, resource name


class AlterOperation(enum.IntEnum):
    SET = 0
    DELETE = 1
    APPEND = 2
    SUBTRACT = 3


@dataclass(frozen=True, slots=True)
class Alteration:
    name: str
    operation: int  # an AlterOperation, as it came over the wire
    value: str | None


@dataclass(frozen=True, slots=True)
class AlteredResource:
    resource_type: int
    resource_name: str
    error_code: ErrorCode = ErrorCode.none
    error_message: str | None = None


def incremental_alter_configs(
    image: MetadataImage,
    wanted: Sequence[tuple[Resource, Sequence[Alteration]]],
    *,
    validate_config: ConfigValidator,
    list_configs: Mapping[int, Mapping[str, str]],
    validate_only: bool = False,
) -> Plan[list[AlteredResource]]:
    """One answer a resource, in the order asked.

    `list_configs`: of each resource type, the configs of type LIST and the text of their defaults
    (what APPEND and SUBTRACT start from where nothing is set).
    """
    raise NotImplementedError


def alter_configs(
    image: MetadataImage,
    wanted: Sequence[tuple[Resource, Mapping[str, str | None]]],
    *,
    validate_config: ConfigValidator,
    validate_only: bool = False,
) -> Plan[list[AlteredResource]]:
    """Replace all configs of each resource by those given (AlterConfigs)."""
    raise NotImplementedError
