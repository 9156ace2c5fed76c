"""Transaction markers, and the interface to write them (KIP-98, KIP-890).

A marker that is written twice is harmless because it carries the epoch of its transaction. The
coordinator therefore retries a marker whose result it does not know.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

from odradek.protocol.errors import ErrorCode
from odradek.protocol.records.control import end_marker
from odradek.protocol.topics import TopicPartition
from odradek.seams.values import value_class


@value_class
class TransactionMarker:
    """Commit or abort of one producer's transaction in some partitions."""

    producer_id: int
    producer_epoch: int
    coordinator_epoch: int
    """Leader epoch of the coordinator's `__transaction_state` partition."""
    is_commit: bool
    partitions: tuple[TopicPartition, ...]
    transaction_version: int = 0
    """From version 2 on the marker's epoch is greater than the transaction's (KIP-890)."""

    def batch(self, now_ms: int) -> bytearray:
        """The control batch of this marker."""
        return end_marker(
            commit=self.is_commit,
            producer_id=self.producer_id,
            producer_epoch=self.producer_epoch,
            coordinator_epoch=self.coordinator_epoch,
            timestamp_ms=now_ms,
        )


MarkerErrors = Mapping[TopicPartition, ErrorCode]


class TransactionMarkerWriter(Protocol):
    """Interface to write markers to local partitions."""

    async def write(self, markers: Sequence[TransactionMarker]) -> list[MarkerErrors]:
        """Append each marker to its partitions; for each marker an error code per partition.

        NONE means that all in-sync replicas have the marker, and for `__consumer_offsets` that
        the group coordinator has applied or discarded the pending offsets. Raises nothing.

        The transaction coordinator handles the other errors as follows:
        - retry: unknown_topic_or_partition, not_leader_or_follower, not_enough_replicas,
          not_enough_replicas_after_append, request_timed_out, kafka_storage_error;
        - stop, because a newer coordinator exists: invalid_producer_epoch,
          transaction_coordinator_fenced.
        """
        ...
