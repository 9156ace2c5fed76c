"""Creating and deleting topics.

SKELETON of signatures, being filled in.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from uuid import UUID

from odradek.protocol.errors import ErrorCode
from odradek.replication.controller.image import MetadataImage
from odradek.replication.controller.operations import ConfigValidator, Plan
from odradek.seams.entropy import Entropy


@dataclass(frozen=True, slots=True)
class TopicDefaults:
    """The controller's `num.partitions` and `default.replication.factor`."""

    partitions: int = 1
    replication_factor: int = 1


@dataclass(frozen=True, slots=True)
class NewTopic:
    """As asked for; -1 stands for the default. `assignments`: partition to replicas, or empty."""

    name: str
    partitions: int = -1
    replication_factor: int = -1
    assignments: Mapping[int, Sequence[int]] = field(default_factory=dict)
    configs: Mapping[str, str | None] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class CreatedTopic:
    """The answer for one topic; the values are those of a success, or the defaults."""

    name: str
    error_code: ErrorCode = ErrorCode.none
    error_message: str | None = None
    topic_id: UUID | None = None
    partitions: int = -1
    replication_factor: int = -1
    configs: Mapping[str, str] = field(default_factory=dict)  # those set on the topic


@dataclass(frozen=True, slots=True)
class DeletedTopic:
    name: str | None
    topic_id: UUID | None
    error_code: ErrorCode = ErrorCode.none
    error_message: str | None = None


def create_topics(
    image: MetadataImage,
    wanted: Sequence[NewTopic],
    *,
    entropy: Entropy,
    defaults: TopicDefaults,
    validate_config: ConfigValidator,
    validate_only: bool = False,
) -> Plan[list[CreatedTopic]]:
    """One answer a topic, in the order asked (KIP-4, KIP-464, KIP-525)."""
    raise NotImplementedError


def delete_topics(
    image: MetadataImage, names: Sequence[str] = (), ids: Sequence[UUID] = ()
) -> Plan[list[DeletedTopic]]:
    """Delete by name and by id (KIP-516)."""
    raise NotImplementedError
