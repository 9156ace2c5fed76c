"""Allocation of producer id blocks (KIP-730)."""

from __future__ import annotations

from odradek.protocol.errors import ErrorCode, KafkaError
from odradek.replication.controller.broker_registration import check_broker_epoch
from odradek.replication.controller.controller_result import ControllerResult
from odradek.replication.controller.image import MetadataImage
from odradek.seams.values import value_class

BLOCK_SIZE = 1000
MAX_PRODUCER_ID = 2**63 - 1


@value_class
class ProducerIdBlock:
    first: int
    size: int = BLOCK_SIZE


def allocate_producer_ids(
    image: MetadataImage, broker_id: int, broker_epoch: int
) -> ControllerResult[ProducerIdBlock]:
    """Allocate the next block to this broker.

    Raises KafkaError(stale_broker_epoch), or unknown_server_error when all ids are used.
    """
    from odradek.protocol.schemas.cluster_records import ProducerIdsRecord

    check_broker_epoch(image, broker_id, broker_epoch)
    first = max(image.next_producer_id, 0)
    if first > MAX_PRODUCER_ID - BLOCK_SIZE:
        raise KafkaError(
            ErrorCode.unknown_server_error,
            "Exhausted all producerIds as the next block's end producerId has exceeded the int64 "
            "type limit",
        )
    record = ProducerIdsRecord(
        broker_id=broker_id, broker_epoch=broker_epoch, next_producer_id=first + BLOCK_SIZE
    )
    return ControllerResult([record], ProducerIdBlock(first))
