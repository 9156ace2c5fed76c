"""Requests to the transaction coordinator, and ListTransactions and DescribeTransactions.

`broker.transactions` decides. Clients of versions without PRODUCER_FENCED get INVALID_PRODUCER_EPOCH (KIP-588).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import trio

from odradek.broker.apis.response_encoding import written
from odradek.broker.coordination.internal_topics import is_coordinator_topic, offsets_topic
from odradek.broker.coordination.regular_expressions import compile_expression
from odradek.broker.replicas.topic_creation import ensure_internal_topic
from odradek.broker.requests.context import RequestContext
from odradek.broker.requests.steps import in_steps
from odradek.broker.security.request_authorization import (
    TopicDenied,
    TransactionalIdDenied,
    check_cluster,
    check_group,
    check_transactional_id,
    may_topic,
    may_transactional_id,
)
from odradek.broker.transactions.coordinator_shard import TransactionFilter
from odradek.broker.transactions.messages import (
    NO_PRODUCER_EPOCH,
    NO_PRODUCER_ID,
    TRANSACTION_VERSION_2,
    ProducerIdAndEpoch,
)
from odradek.broker.transactions.transaction_states import TransactionState
from odradek.protocol import apis
from odradek.protocol.errors import ErrorCode, KafkaError
from odradek.protocol.messages import field, response_item_writer
from odradek.protocol.topics import TopicPartition
from odradek.replication.controller.acls import AclOperation

NO_ERROR = ErrorCode.none
FENCED_SINCE = 2
"""AddPartitionsToTxn, AddOffsetsToTxn, EndTxn: since this version PRODUCER_FENCED is used."""
BATCHED_SINCE = 4
"""AddPartitionsToTxn: since this version brokers send it, for several transactions (KIP-890)."""
BUMPED_SINCE = 5
"""EndTxn: since this version every EndTxn increases the producer epoch (KIP-890)."""
BEFORE_EPOCH_BUMP = 0
"""transaction.version of older clients."""

Errors = Mapping[TopicPartition, ErrorCode]
Values = dict[str, Any]


async def add_partitions_to_txn(request: Any, ctx: RequestContext) -> Mapping[str, Any]:
    if ctx.api_version < BATCHED_SINCE:
        results = await _add_partitions(
            request.v3_and_below_transactional_id,
            ProducerIdAndEpoch(
                request.v3_and_below_producer_id, request.v3_and_below_producer_epoch
            ),
            request.v3_and_below_topics,
            ctx,
        )
        return {"results_by_topic_v3_and_below": results}
    try:
        check_cluster(ctx, AclOperation.CLUSTER_ACTION)
    except KafkaError as error:
        return {"error_code": error.code, "results_by_transaction": []}
    transactions: list[Values] = [
        {"transactional_id": each.transactional_id, "topic_results": []}
        for each in request.transactions
    ]
    if len(transactions) == 1:
        await _respond_broker(request.transactions[0], ctx, transactions[0])
    else:  # concurrently: each waits for replication of the coordinator's log
        async with trio.open_nursery() as nursery:
            for requested, result in zip(request.transactions, transactions, strict=True):
                nursery.start_soon(_respond_broker, requested, ctx, result)
    return {"error_code": NO_ERROR, "results_by_transaction": transactions}


async def _respond_broker(requested: Any, ctx: RequestContext, result: Values) -> None:
    """Result of one transaction in a request of a broker."""
    result["topic_results"] = await _add_partitions(
        requested.transactional_id,
        ProducerIdAndEpoch(requested.producer_id, requested.producer_epoch),
        requested.topics,
        ctx,
        verify_only=requested.verify_only,
    )


async def _add_partitions(
    transactional_id: str,
    producer: ProducerIdAndEpoch,
    topics: Sequence[Any],
    ctx: RequestContext,
    *,
    verify_only: bool = False,
) -> list[Values]:
    """Add all partitions or none: if one fails, the others get OPERATION_NOT_ATTEMPTED.

    As in Kafka, the results of the coordinator and a denied transactional id have the topics of the request, and
    other results have one topic for the partitions of a name.
    """
    is_client = ctx.api_version < BATCHED_SINCE
    partitions = await _partitions(topics, ctx)
    if is_client and not may_transactional_id(ctx, transactional_id):
        return _as_requested(topics, dict.fromkeys(partitions, TransactionalIdDenied.code))
    refused = {
        each: code
        async for each in in_steps(partitions, ctx)
        if (code := _check_partition(each, ctx, is_client=is_client)) is not NO_ERROR
    }
    if refused:
        not_attempted = ErrorCode.operation_not_attempted
        return await _by_topic({each: refused.get(each, not_attempted) for each in partitions}, ctx)
    errors = await ctx.services.transactions.add_partitions(
        transactional_id,
        *producer,
        partitions,
        verify_only=verify_only,
        client_version=BEFORE_EPOCH_BUMP if is_client else TRANSACTION_VERSION_2,
    )
    known = {each: _known(code, ctx) for each, code in errors.items()}
    return await _by_topic(known, ctx) if verify_only else _as_requested(topics, known)


def _check_partition(
    partition: TopicPartition, ctx: RequestContext, *, is_client: bool
) -> ErrorCode:
    if is_client and (
        is_coordinator_topic(partition.topic)  # AddOffsetsToTxn adds partitions of this topic
        or not may_topic(ctx, partition.topic)
    ):
        return TopicDenied.code
    topic = ctx.services.metadata.image.topics_by_name.get(partition.topic)
    if topic is None or partition.partition not in topic.partitions:
        return ErrorCode.unknown_topic_or_partition
    if topic.is_diskless:  # without transactions; producers can abort after this error
        return ErrorCode.invalid_topic_exception
    return NO_ERROR


def _known(code: ErrorCode, ctx: RequestContext) -> ErrorCode:
    """Error code for the version of the request."""
    if code is ErrorCode.producer_fenced and ctx.api_version < FENCED_SINCE:
        return ErrorCode.invalid_producer_epoch
    return code


async def _partitions(topics: Iterable[Any], ctx: RequestContext) -> list[TopicPartition]:
    """Distinct partitions of the topics."""
    every = ((topic.name, index) for topic in topics for index in topic.partitions)
    return list({TopicPartition(*each): None async for each in in_steps(every, ctx)})


def _as_requested(topics: Iterable[Any], errors: Errors) -> list[Values]:
    return [
        {
            "name": topic.name,
            "results_by_partition": [
                {
                    "partition_index": index,
                    "partition_error_code": errors[TopicPartition(topic.name, index)],
                }
                for index in topic.partitions
            ],
        }
        for topic in topics
    ]


async def _by_topic(errors: Errors, ctx: RequestContext) -> list[dict[str, Any]]:
    topics: dict[str, list[dict[str, Any]]] = {}
    async for (topic, index), code in in_steps(errors.items(), ctx):
        result = {"partition_index": index, "partition_error_code": code}
        topics.setdefault(topic, []).append(result)
    return [{"name": name, "results_by_partition": found} for name, found in topics.items()]


async def add_offsets_to_txn(request: Any, ctx: RequestContext) -> Mapping[str, Any]:
    """AddOffsetsToTxn: add the group's partition of `__consumer_offsets` to the transaction (KIP-98)."""
    services = ctx.services
    try:
        check_transactional_id(ctx, request.transactional_id)
        check_group(ctx, request.group_id)
        wanted = offsets_topic(services.config)
        try:
            await ensure_internal_topic(services, wanted)
        except KafkaError:  # for example too few brokers: retriable, as in FindCoordinator
            return {"error_code": ErrorCode.coordinator_not_available}
        index = services.groups.runtime.partition_for(request.group_id)
    except KafkaError as error:
        return {"error_code": error.code}
    partition = TopicPartition(wanted.name, index)
    errors = await services.transactions.add_partitions(
        request.transactional_id,
        request.producer_id,
        request.producer_epoch,
        [partition],
        client_version=BEFORE_EPOCH_BUMP,
    )
    return {"error_code": _known(errors[partition], ctx)}


async def end_txn(request: Any, ctx: RequestContext) -> Mapping[str, Any]:
    try:
        check_transactional_id(ctx, request.transactional_id)
        response = await ctx.services.transactions.end(
            request.transactional_id,
            ProducerIdAndEpoch(request.producer_id, request.producer_epoch),
            is_commit=request.committed,
            client_version=(
                TRANSACTION_VERSION_2 if ctx.api_version >= BUMPED_SINCE else BEFORE_EPOCH_BUMP
            ),
        )
    except KafkaError as error:
        return {
            "error_code": error.code,
            "producer_id": NO_PRODUCER_ID,
            "producer_epoch": NO_PRODUCER_EPOCH,
        }
    return {
        "error_code": _known(response.error, ctx),
        "producer_id": response.producer_id,
        "producer_epoch": response.epoch,
    }


async def list_transactions(request: Any, ctx: RequestContext) -> Mapping[str, Any]:
    """ListTransactions: the pattern, in RE2 syntax, must match the whole transactional id (KIP-1152)."""
    by_name = {state.value: state for state in TransactionState}
    names = tuple(dict.fromkeys(request.state_filters))
    unknown = [each for each in names if each not in by_name]
    states = None if not names else [by_name[each] for each in names if each in by_name]
    try:
        found = ctx.services.transactions.list_transactions(
            TransactionFilter(
                request.producer_id_filters, states, field(request, "duration_filter", -1)
            )
        )
        expression = field(request, "transactional_id_pattern")
        pattern = compile_expression(expression) if expression else None
    except KafkaError as error:
        return {
            "error_code": error.code,
            "unknown_state_filters": [],
            "transaction_states": [],
        }
    return {
        "error_code": NO_ERROR,
        "unknown_state_filters": unknown,
        "transaction_states": await written(
            (
                {
                    "transactional_id": each.transactional_id,
                    "producer_id": each.metadata.producer_id,
                    "transaction_state": each.metadata.state.value,
                }
                if (pattern is None or pattern.fullmatch(each.transactional_id))
                and may_transactional_id(ctx, each.transactional_id)
                else None
                for each in found
            ),
            response_item_writer(ctx.api.key, ctx.api_version, "transaction_states"),
            ctx.services.seams.clock,
        ),
    }


async def describe_transactions(request: Any, ctx: RequestContext) -> Mapping[str, Any]:
    ids = in_steps(request.transactional_ids, ctx)
    return {"transaction_states": [_describe(each, ctx) async for each in ids]}


def _describe(transactional_id: str, ctx: RequestContext) -> dict[str, Any]:
    values = {
        "error_code": NO_ERROR,
        "transactional_id": transactional_id,
        "transaction_state": "",
        "transaction_timeout": 0,
        "transaction_start_time": 0,
        "producer_id": 0,
        "producer_epoch": 0,
        "topics": [],
    }
    if not may_transactional_id(ctx, transactional_id):
        return {**values, "error_code": TransactionalIdDenied.code}
    if not transactional_id:
        return {**values, "error_code": ErrorCode.invalid_request}
    try:
        metadata = ctx.services.transactions.describe(transactional_id)
    except KafkaError as error:
        return {**values, "error_code": error.code}
    topics: dict[str, list[int]] = {}
    for topic, index in metadata.partitions:
        if may_topic(ctx, topic):
            topics.setdefault(topic, []).append(index)
    return {
        **values,
        "transaction_state": metadata.state.value,
        "transaction_timeout": metadata.timeout_ms,
        "transaction_start_time": metadata.started_ms,
        "producer_id": metadata.producer_id,
        "producer_epoch": metadata.epoch,
        "topics": [{"topic": name, "partitions": found} for name, found in topics.items()],
    }


HANDLERS = {
    apis.ADD_PARTITIONS_TO_TXN: add_partitions_to_txn,
    apis.ADD_OFFSETS_TO_TXN: add_offsets_to_txn,
    apis.END_TXN: end_txn,
    apis.LIST_TRANSACTIONS: list_transactions,
    apis.DESCRIBE_TRANSACTIONS: describe_transactions,
}
