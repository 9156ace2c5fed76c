"""Blocks of producer ids (KIP-730).

SKELETON of signatures, being filled in.
"""

from __future__ import annotations

from dataclasses import dataclass

from odradek.replication.controller.image import MetadataImage
from odradek.replication.controller.operations import Plan

BLOCK_SIZE = 1000


@dataclass(frozen=True, slots=True)
class ProducerIdBlock:
    first: int
    size: int = BLOCK_SIZE


def allocate_producer_ids(
    image: MetadataImage, broker_id: int, broker_epoch: int
) -> Plan[ProducerIdBlock]:
    """The next block, for this broker alone. Raises KafkaError(stale_broker_epoch)."""
    raise NotImplementedError
