"""Who coordinates transactions where there is one node: itself."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from odradek.broker.transactions.verification import TransactionPartitions
from odradek.protocol.errors import ErrorCode
from odradek.storage.directories.names import TopicPartition


class LocalCoordinator:
    """`TransactionPartitions` of this node, whose coordinator is made when it is first asked."""

    def __init__(self, coordinator: Callable[[], TransactionPartitions]) -> None:
        self._coordinator = coordinator

    async def add_partitions(
        self,
        transactional_id: str,
        producer_id: int,
        producer_epoch: int,
        partitions: Sequence[TopicPartition],
        *,
        verify_only: bool,
    ) -> Mapping[TopicPartition, ErrorCode]:
        """See `TransactionPartitions`."""
        return await self._coordinator().add_partitions(
            transactional_id, producer_id, producer_epoch, partitions, verify_only=verify_only
        )
