"""Adding partitions to topics, and changes to the partitions there are.

SKELETON of signatures, being filled in.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from uuid import UUID

from odradek.protocol.errors import ErrorCode
from odradek.replication.controller.image import MetadataImage
from odradek.replication.controller.operations import Plan
from odradek.seams.entropy import Entropy


@dataclass(frozen=True, slots=True)
class MorePartitions:
    """`count` is the new total; `assignments` the replicas of each new one, or None."""

    topic: str
    count: int
    assignments: Sequence[Sequence[int]] | None = None


@dataclass(frozen=True, slots=True)
class PartitionsResult:
    topic: str
    error_code: ErrorCode = ErrorCode.none
    error_message: str | None = None


def create_partitions(
    image: MetadataImage,
    wanted: Sequence[MorePartitions],
    *,
    entropy: Entropy,
    validate_only: bool = False,
) -> Plan[list[PartitionsResult]]:
    """One answer a topic, in the order asked (KIP-195)."""
    raise NotImplementedError


def assign_directories(
    image: MetadataImage,
    broker_id: int,
    assignments: Mapping[tuple[UUID, int], UUID],
) -> Plan[Mapping[tuple[UUID, int], ErrorCode]]:
    """In which of its log directories a broker keeps its replicas (KIP-858)."""
    raise NotImplementedError
