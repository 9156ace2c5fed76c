"""Brokers register, and are fenced and unfenced (KIP-631).

SKELETON of signatures, being filled in.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from uuid import UUID

from odradek.replication.controller.image import Endpoint, MetadataImage
from odradek.replication.controller.operations import Plan


@dataclass(frozen=True, slots=True)
class BrokerRegistration:
    id: int
    incarnation_id: UUID
    endpoints: Sequence[Endpoint]
    directories: Sequence[UUID]
    features: Mapping[str, tuple[int, int]]
    rack: str | None = None


def register_broker(
    image: MetadataImage, registration: BrokerRegistration, *, next_offset: int
) -> Plan[int]:
    """Register, fenced; the result is the broker's epoch: the offset of its record."""
    raise NotImplementedError


def unfence_broker(image: MetadataImage, broker_id: int, broker_epoch: int) -> Plan[None]:
    """Let it serve, and lead what only it can lead."""
    raise NotImplementedError
