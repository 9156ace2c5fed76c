"""Sends transaction markers to the leaders of their partitions (KIP-98).

Markers for local partitions are written directly. Those of other brokers are batched: one
WriteTxnMarkers request per broker at a time. Per partition the
result is that the marker was written, has to be retried, or is not needed. No state is kept between
calls.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Protocol

import trio

from odradek.broker.network.request_batcher import RequestBatcher
from odradek.broker.transactions.markers import (
    MarkerErrors,
    TransactionMarker,
    TransactionMarkerWriter,
)
from odradek.broker.transactions.messages import MarkerResult
from odradek.client.errors import ClientError
from odradek.protocol.apis import WRITE_TXN_MARKERS, Api
from odradek.protocol.errors import ErrorCode
from odradek.protocol.topics import TopicPartition
from odradek.replication.controller.image import MetadataImage

log = logging.getLogger("odradek.transactions")

NO_LEADER = -1

MARKER_RESULT_BY_ERROR: Mapping[ErrorCode, MarkerResult] = {
    ErrorCode.none: MarkerResult.WRITTEN,
    ErrorCode.unsupported_for_message_format: MarkerResult.GONE,
    ErrorCode.unsupported_version: MarkerResult.GONE,
    ErrorCode.invalid_producer_epoch: MarkerResult.FENCED,
    ErrorCode.transaction_coordinator_fenced: MarkerResult.FENCED,
}
"""Result for an error code; all other errors are retried."""


class MarkerChannel(Protocol):
    """Interface through which the coordinator sends markers."""

    async def send(self, marker: TransactionMarker) -> Mapping[TopicPartition, MarkerResult]:
        """Send a marker to the leaders of its partitions; a result for each. Raises nothing."""
        ...


class SendMarkersRequest(Protocol):
    """Signature of `BrokerConnections.request` for WriteTxnMarkers."""

    async def __call__(
        self, broker_id: int, api: Api, values: Mapping[str, Any], *, timeout_s: float
    ) -> Any: ...


class TransactionMarkerChannelManager:
    """Writes markers of local partitions with `writer`, and sends WriteTxnMarkers to other leaders.

    Partitions without a leader, or whose leader does not respond, are retried.
    """

    def __init__(
        self,
        image: Callable[[], MetadataImage],
        node_id: int,
        writer: TransactionMarkerWriter,
        request: SendMarkersRequest,
        nursery: trio.Nursery,
        *,
        timeout_s: float,
    ) -> None:
        """`timeout_s` is request.timeout.ms in seconds; `nursery` runs the requests."""
        self._image = image
        self._node_id = node_id
        self._writer = writer
        self._request = request
        self._timeout_s = timeout_s
        self._batcher = RequestBatcher[TransactionMarker, MarkerErrors](self._send_request, nursery)

    async def send(self, marker: TransactionMarker) -> Mapping[TopicPartition, MarkerResult]:
        """Send a marker; see `MarkerChannel`. Partitions that are not in the metadata were deleted."""
        results: dict[TopicPartition, MarkerResult] = {}
        by_leader: dict[int, list[TopicPartition]] = {}
        for each in marker.partitions:
            leader = self._leader(each)
            if leader is None:
                results[each] = MarkerResult.GONE
            elif leader == NO_LEADER:
                results[each] = MarkerResult.RETRY
            else:
                by_leader.setdefault(leader, []).append(each)
        parts = {
            leader: replace(marker, partitions=tuple(partitions))
            for leader, partitions in by_leader.items()
        }
        if set(parts) == {self._node_id}:
            results.update(await self._send_to(self._node_id, marker=parts[self._node_id]))
        elif parts:
            async with trio.open_nursery() as nursery:
                for leader, part in parts.items():
                    nursery.start_soon(self._collect, leader, part, results)
        return results

    async def _collect(
        self, leader: int, marker: TransactionMarker, into: dict[TopicPartition, MarkerResult]
    ) -> None:
        into.update(await self._send_to(leader, marker=marker))

    async def _send_to(
        self, leader: int, *, marker: TransactionMarker
    ) -> Mapping[TopicPartition, MarkerResult]:
        try:
            if leader == self._node_id:
                (errors,) = await self._writer.write([marker])
            else:
                errors = await self._batcher.send(leader, marker.producer_id, marker)
        except ClientError as error:
            log.info(
                "sending the transaction marker of producer %d failed: %s",
                marker.producer_id,
                error,
            )
            return dict.fromkeys(marker.partitions, MarkerResult.RETRY)
        results = {}
        for each in marker.partitions:
            code = errors.get(each, ErrorCode.unknown_server_error)
            results[each] = MARKER_RESULT_BY_ERROR.get(code, MarkerResult.RETRY)
            if code is not ErrorCode.none:
                log.info(
                    "writing the transaction marker of producer %d to %s failed: %s",
                    marker.producer_id,
                    each,
                    code.name,
                )
        return results

    async def _send_request(
        self, broker_id: int, markers: Sequence[TransactionMarker]
    ) -> list[MarkerErrors]:
        """Send WriteTxnMarkers with one marker per producer. Raises ClientError."""
        response = await self._request(
            broker_id,
            WRITE_TXN_MARKERS,
            {"markers": [_as_request(each) for each in markers]},
            timeout_s=self._timeout_s,
        )
        errors_by_producer: dict[int, dict[TopicPartition, ErrorCode]] = {}
        for each in response.markers:
            errors = errors_by_producer.setdefault(each.producer_id, {})
            for topic in each.topics:
                for partition in topic.partitions:
                    target = TopicPartition(topic.name, partition.partition_index)
                    errors[target] = ErrorCode(partition.error_code)
        return [errors_by_producer.get(each.producer_id, {}) for each in markers]

    def _leader(self, partition: TopicPartition) -> int | None:
        topic = self._image().topics_by_name.get(partition.topic)
        partition_image = None if topic is None else topic.partitions.get(partition.partition)
        return None if partition_image is None else partition_image.leader


def _as_request(marker: TransactionMarker) -> dict[str, Any]:
    topics: dict[str, list[int]] = {}
    for name, index in marker.partitions:
        topics.setdefault(name, []).append(index)
    return {
        "producer_id": marker.producer_id,
        "producer_epoch": marker.producer_epoch,
        "transaction_result": marker.is_commit,
        "topics": [
            {"name": name, "partition_indexes": indexes} for name, indexes in topics.items()
        ],
        "coordinator_epoch": marker.coordinator_epoch,
        "transaction_version": marker.transaction_version,
    }
