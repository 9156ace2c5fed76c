"""WriteTxnMarkers and DescribeProducers: transaction markers and producer state of partitions."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import trio

from odradek.broker.apis.topic_view import check_topic_name
from odradek.broker.requests.context import RequestContext
from odradek.broker.requests.steps import in_steps
from odradek.broker.security.request_authorization import ClusterDenied, check_topic, may_cluster
from odradek.broker.transactions.markers import TransactionMarker
from odradek.protocol import apis
from odradek.protocol.errors import ErrorCode, KafkaError
from odradek.protocol.messages import field
from odradek.protocol.topics import TopicPartition
from odradek.replication.controller.acls import AclOperation
from odradek.replication.errors import NotLeader
from odradek.storage.log.producer_state import ProducerEntry

Values = dict[str, Any]

PRODUCERS_BEFORE_YIELD = 500


async def write_txn_markers(request: Any, ctx: RequestContext) -> Mapping[str, Any]:
    """WriteTxnMarkers: append markers, for transaction coordinators (KIP-98) and to abort a hanging transaction
    (KIP-664)."""
    markers = [
        TransactionMarker(
            each.producer_id,
            each.producer_epoch,
            each.coordinator_epoch,
            each.transaction_result,
            tuple(
                dict.fromkeys(
                    TopicPartition(topic.name, index)
                    for topic in each.topics
                    for index in topic.partition_indexes
                )
            ),
            field(each, "transaction_version", 0),
        )
        for each in request.markers
    ]
    if may_cluster(ctx) or may_cluster(ctx, AclOperation.CLUSTER_ACTION):
        responses = await ctx.services.markers.write(markers)
    else:
        denied = ClusterDenied.code
        responses = [dict.fromkeys(marker.partitions, denied) for marker in markers]
    errors: dict[int, dict[TopicPartition, ErrorCode]] = {}
    for marker, written in zip(markers, responses, strict=True):
        if written:  # as in Kafka, a marker without partitions has no result
            errors.setdefault(marker.producer_id, {}).update(written)
    return {
        "markers": [
            {"producer_id": producer_id, "topics": _by_topic(written)}
            for producer_id, written in errors.items()
        ]
    }


def _by_topic(errors: Mapping[TopicPartition, ErrorCode]) -> list[Values]:
    topics: dict[str, list[Values]] = {}
    for (topic, index), error in errors.items():
        topics.setdefault(topic, []).append({"partition_index": index, "error_code": error})
    return [{"name": name, "partitions": partitions} for name, partitions in topics.items()]


async def describe_producers(request: Any, ctx: RequestContext) -> Mapping[str, Any]:
    """DescribeProducers: active producers and open transactions of partitions that this node leads (KIP-664)."""
    topics: list[Values] = [{"name": topic.name, "partitions": []} for topic in request.topics]
    every = (
        (values, index)
        for values, topic in zip(topics, request.topics, strict=True)
        for index in topic.partition_indexes
    )
    async for values, index in in_steps(every, ctx):
        values["partitions"].append(await _describe(values["name"], index, ctx))
    return {"topics": topics}


async def _describe(topic: str, index: int, ctx: RequestContext) -> Values:
    response: Values = {"partition_index": index, "error_message": None, "active_producers": []}
    try:
        check_topic_name(topic)
        check_topic(ctx, topic)
        partition = await ctx.services.partitions.get(topic, None, index)
        partition.check_epoch(-1)
        partition.log.check_online()
    except KafkaError as error:
        diskless = ctx.services.diskless
        if (
            diskless is not None
            and isinstance(error, NotLeader)
            and diskless.reader.topic_of(topic, None, index) is not None
        ):  # no transactions, so that none can hang
            return {**response, "error_code": ErrorCode.none}
        return {**response, "error_code": error.code, "error_message": error.message or None}
    found = response["active_producers"]
    for count, entry in enumerate(list(partition.log.producers.active.values())):
        found.append(_producer(entry))
        if count % PRODUCERS_BEFORE_YIELD == PRODUCERS_BEFORE_YIELD - 1:
            await trio.lowlevel.checkpoint()
    return {**response, "error_code": ErrorCode.none}


def _producer(entry: ProducerEntry) -> Values:
    return {
        "producer_id": entry.producer_id,
        "producer_epoch": entry.epoch,
        "last_sequence": entry.last_sequence,
        "last_timestamp": entry.last_timestamp,
        "coordinator_epoch": entry.coordinator_epoch,
        "current_txn_start_offset": entry.transaction_start,
    }


HANDLERS = {
    apis.WRITE_TXN_MARKERS: write_txn_markers,
    apis.DESCRIBE_PRODUCERS: describe_producers,
}
