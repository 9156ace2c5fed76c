"""TxnOffsetCommit: offsets that take effect when the transaction commits (KIP-98, KIP-447)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from odradek.broker.apis.group_offsets import to_commit
from odradek.broker.groups.coordinator_shard import OffsetCommit, OffsetToCommit
from odradek.broker.groups.messages import NO_ERROR, NO_GENERATION, NO_MEMBER_ID
from odradek.broker.groups.transactional_commit import TransactionalCommit
from odradek.broker.requests.context import RequestContext
from odradek.broker.requests.steps import in_steps
from odradek.broker.security.request_authorization import (
    GroupDenied,
    TopicDenied,
    TransactionalIdDenied,
    may_group,
    may_topic,
    may_transactional_id,
)
from odradek.broker.transactions.partition_verification import TransactionSupportedOperation
from odradek.protocol import apis
from odradek.protocol.errors import ErrorCode, KafkaError
from odradek.protocol.messages import field

LOADING_SINCE = 2
"""Older clients do not know COORDINATOR_LOAD_IN_PROGRESS (KAFKA-7296)."""

Values = dict[str, Any]


async def txn_offset_commit(request: Any, ctx: RequestContext) -> Mapping[str, Any]:
    """TxnOffsetCommit: commit the offsets of existing partitions; others get an error each."""
    image = ctx.services.metadata.image
    denied = _denied(request, ctx)
    topics: dict[str, Values] = {}
    """Response of each topic: two entries for a topic have one response, as in Kafka."""
    offsets: list[OffsetToCommit] = []
    responses: list[Values] = []
    """One result for each of `offsets`, whose error is set after the commit."""
    async for topic in in_steps(request.topics, ctx):
        found = image.topics_by_name.get(topic.name)
        refused = denied
        if refused is None and not may_topic(ctx, topic.name):
            refused = TopicDenied.code
        if refused is None and found is not None and not topic.partitions:
            continue  # as in Kafka
        of_topic = topics.setdefault(topic.name, {"name": topic.name, "partitions": []})
        async for each in in_steps(topic.partitions, ctx):
            response = {"partition_index": each.partition_index, "error_code": NO_ERROR}
            of_topic["partitions"].append(response)
            if refused is not None:
                response["error_code"] = refused
                continue
            if found is None or each.partition_index not in found.partitions:
                response["error_code"] = ErrorCode.unknown_topic_or_partition
                continue
            offsets.append(to_commit(found, each))
            responses.append(response)
    if offsets:
        errors = await _commit(request, tuple(offsets), ctx)
        for response, error in zip(responses, errors, strict=True):
            response["error_code"] = _as_version(error, ctx.api_version)
    return {"topics": list(topics.values())}


def _denied(request: Any, ctx: RequestContext) -> ErrorCode | None:
    """Error of the whole request, if it is denied."""
    if not may_transactional_id(ctx, request.transactional_id):
        return TransactionalIdDenied.code
    return None if may_group(ctx, request.group_id) else GroupDenied.code


async def _commit(
    request: Any, offsets: tuple[OffsetToCommit, ...], ctx: RequestContext
) -> Sequence[ErrorCode]:
    commit = OffsetCommit(
        request.group_id,
        field(request, "member_id", NO_MEMBER_ID),
        field(request, "group_instance_id"),
        field(request, "generation_id", NO_GENERATION),
        offsets,
    )
    services = ctx.services
    transaction = TransactionalCommit(
        request.transactional_id,
        request.producer_id,
        request.producer_epoch,
        TransactionSupportedOperation.of_offset_commit(ctx.api_version),
        services.transaction_partitions,
        services.config.get_bool("transaction.partition.verification.enable"),
    )
    try:
        response = await services.groups.commit_transactional_offsets(commit, transaction)
    except KafkaError as error:
        return [error.code] * len(offsets)
    return [error for _, _, error in response.partitions]


def _as_version(error: ErrorCode, version: int) -> ErrorCode:
    if error is ErrorCode.stale_member_epoch:
        return ErrorCode.illegal_generation
    if error is ErrorCode.coordinator_load_in_progress and version < LOADING_SINCE:
        return ErrorCode.coordinator_not_available
    return error


HANDLERS = {apis.TXN_OFFSET_COMMIT: txn_offset_commit}
