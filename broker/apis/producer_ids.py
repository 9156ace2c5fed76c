"""InitProducerId: ids for idempotent producers (KIP-98)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from odradek.broker.apis.authorized import check_producer
from odradek.broker.context import RequestContext
from odradek.protocol import apis
from odradek.protocol.errors import ErrorCode, KafkaError
from odradek.protocol.messages import field

NO_PRODUCER_ID = -1
NO_PRODUCER_EPOCH = -1


async def init_producer_id(request: Any, ctx: RequestContext) -> Mapping[str, Any]:
    """A fresh producer id at epoch 0. Transactional ids are refused: see docs/compatibility.md."""
    try:
        check_producer(ctx, request.transactional_id)
        has_id = field(request, "producer_id", NO_PRODUCER_ID) != NO_PRODUCER_ID
        has_epoch = field(request, "producer_epoch", NO_PRODUCER_EPOCH) != NO_PRODUCER_EPOCH
        if has_id != has_epoch:
            raise KafkaError(ErrorCode.invalid_request, "a producer id and its epoch go together")
        if request.transactional_id is not None:
            raise KafkaError(
                ErrorCode.invalid_request, "this broker has no transaction coordinator"
            )
        producer_id = await ctx.broker.producer_ids.next()
    except KafkaError as error:
        return {
            "error_code": error.code,
            "producer_id": NO_PRODUCER_ID,
            "producer_epoch": NO_PRODUCER_EPOCH,
        }
    return {"error_code": ErrorCode.none, "producer_id": producer_id, "producer_epoch": 0}


HANDLERS = {apis.INIT_PRODUCER_ID: init_producer_id}
