"""Writes transaction markers to the partitions of this node.

Markers of `__consumer_offsets` go through the group coordinator, which applies them to pending
offsets. Each partition has its own result.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence

import trio

from odradek.broker.coordination.internal_topics import OFFSETS_TOPIC
from odradek.broker.replicas.partition_table import PartitionTable
from odradek.broker.transactions.markers import MarkerErrors, TransactionMarker
from odradek.protocol.errors import ErrorCode, KafkaError
from odradek.protocol.topics import TopicPartition
from odradek.replication.partition.partition import ACKS_ALL, Partition, PartitionChangeWatcher
from odradek.seams.clock import Clock
from odradek.storage.log.append import AppendOrigin

CompleteTransaction = Callable[[int, TransactionMarker], Awaitable[None]]
"""Writes a marker to a partition of `__consumer_offsets` and applies it. Raises KafkaError."""

UNKNOWN_TRANSACTION_VERSION = -1
"""Kafka's TV_UNKNOWN, with which only followers append markers."""

LEADER_ERROR_BY_COORDINATOR_ERROR = {
    ErrorCode.coordinator_not_available: ErrorCode.not_leader_or_follower,
    ErrorCode.coordinator_load_in_progress: ErrorCode.not_leader_or_follower,
    ErrorCode.not_coordinator: ErrorCode.not_leader_or_follower,
}
"""Error codes of the group coordinator, and the codes that WriteTxnMarkers returns for them."""


class LocalMarkerWriter:
    """Writes markers locally; waits at most `timeout_ms` (request.timeout.ms) for replication."""

    def __init__(
        self,
        partitions: Callable[[], PartitionTable],
        complete_transaction: CompleteTransaction,
        clock: Clock,
        timeout_ms: int,
    ) -> None:
        self._partitions = partitions
        self._complete_transaction = complete_transaction
        self._clock = clock
        self._timeout_ms = timeout_ms

    async def write(self, markers: Sequence[TransactionMarker]) -> list[MarkerErrors]:
        """Append markers to local partitions; see `TransactionMarkerWriter`."""
        responses: list[dict[TopicPartition, ErrorCode]] = [{} for _ in markers]
        async with trio.open_nursery() as nursery:
            for marker, errors in zip(markers, responses, strict=True):
                for partition in marker.partitions:
                    nursery.start_soon(self._write, marker, partition, errors)
        return list(responses)

    async def _write(
        self,
        marker: TransactionMarker,
        target: TopicPartition,
        errors: dict[TopicPartition, ErrorCode],
    ) -> None:
        try:
            partition = await self._partitions().get(target.topic, None, target.partition)
            if marker.producer_id < 0 or marker.producer_epoch < 0:
                raise KafkaError(
                    ErrorCode.unknown_server_error, "the producer id or epoch is negative"
                )
            if marker.transaction_version == UNKNOWN_TRANSACTION_VERSION:
                raise KafkaError(
                    ErrorCode.unknown_server_error, "the transaction version is unknown (-1)"
                )
            if target.topic == OFFSETS_TOPIC:
                await self._complete_transaction(target.partition, marker)
            else:
                await self._append(marker, partition)
        except KafkaError as error:
            errors[target] = LEADER_ERROR_BY_COORDINATOR_ERROR.get(error.code, error.code)
        else:
            errors[target] = ErrorCode.none

    async def _append(self, marker: TransactionMarker, partition: Partition) -> None:
        partition.check_leader()
        now_ms = self._clock.wall_ms()
        appended = partition.append(
            memoryview(marker.batch(now_ms)),
            acks=ACKS_ALL,
            now_ms=now_ms,
            origin=AppendOrigin.COORDINATOR,
            transaction_version=marker.transaction_version,
        )
        epoch = partition.leader_epoch
        if not partition.is_replicated(appended.last_offset, epoch):
            await self._wait_until_replicated(partition, appended.last_offset, epoch)

    async def _wait_until_replicated(self, partition: Partition, offset: int, epoch: int) -> None:
        with trio.move_on_after(self._timeout_ms / 1000):
            while not partition.is_replicated(offset, epoch):
                partition.check_leader()
                await PartitionChangeWatcher.wait([partition])
            return
        raise KafkaError(ErrorCode.request_timed_out, "the marker was not replicated in time")
