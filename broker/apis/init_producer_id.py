"""InitProducerId: producer ids of idempotent and transactional producers (KIP-98)."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta
from typing import Any

from odradek.broker.requests.context import RequestContext
from odradek.broker.security.request_authorization import check_producer
from odradek.broker.transactions.messages import ProducerIdAndEpoch
from odradek.protocol import apis
from odradek.protocol.errors import ErrorCode, KafkaError
from odradek.protocol.messages import field

NO_PRODUCER_ID = -1
NO_PRODUCER_EPOCH = -1
FENCED_SINCE = 4
"""Since this version PRODUCER_FENCED replaces INVALID_PRODUCER_EPOCH (KIP-588)."""
MILLISECOND = timedelta(milliseconds=1)


async def init_producer_id(request: Any, ctx: RequestContext) -> Mapping[str, Any]:
    """InitProducerId: a new producer id with epoch 0, or the result of the transaction coordinator."""
    try:
        check_producer(ctx, request.transactional_id)
        has_id = field(request, "producer_id", NO_PRODUCER_ID) != NO_PRODUCER_ID
        has_epoch = field(request, "producer_epoch", NO_PRODUCER_EPOCH) != NO_PRODUCER_EPOCH
        if has_id != has_epoch:
            raise KafkaError(
                ErrorCode.invalid_request, "producer id and epoch must both be set or both be unset"
            )
        if request.transactional_id is not None:
            return await _transactional(request, ctx)
        producer_id = await ctx.services.producer_ids.next()
    except KafkaError as error:
        return {
            "error_code": error.code,
            "producer_id": NO_PRODUCER_ID,
            "producer_epoch": NO_PRODUCER_EPOCH,
        }
    return {"error_code": ErrorCode.none, "producer_id": producer_id, "producer_epoch": 0}


async def _transactional(request: Any, ctx: RequestContext) -> Mapping[str, Any]:
    """Producer id and epoch of a transactional id; the coordinator fences the previous producer."""
    producer_id = field(request, "producer_id", NO_PRODUCER_ID)
    expected = None
    if producer_id != NO_PRODUCER_ID:
        expected = ProducerIdAndEpoch(producer_id, request.producer_epoch)
    response = await ctx.services.transactions.init_producer_id(
        request.transactional_id, request.transaction_timeout // MILLISECOND, expected
    )
    error = response.error
    if error is ErrorCode.producer_fenced and ctx.api_version < FENCED_SINCE:
        error = ErrorCode.invalid_producer_epoch
    return {
        "error_code": error,
        "producer_id": response.producer_id,
        "producer_epoch": response.epoch,
    }


HANDLERS = {apis.INIT_PRODUCER_ID: init_producer_id}
