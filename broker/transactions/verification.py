"""Whether a partition may be written to in a transaction: the partitions' question (KIP-890).

The first batch of a transaction in a partition is not appended before the transaction's coordinator
has said that it knows the partition to be in it; otherwise no marker would ever end what it begins.
Producers up to Produce v11 have added the partition themselves (AddPartitionsToTxn) and the leader
only asks; for those from v12 on it is added by asking.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

from odradek.protocol.errors import ErrorCode
from odradek.storage.directories.names import TopicPartition


class TransactionPartitions(Protocol):
    """The coordinator's end: what AddPartitionsToTxn v4-5 does for one transaction."""

    async def add_partitions(
        self,
        transactional_id: str,
        producer_id: int,
        producer_epoch: int,
        partitions: Sequence[TopicPartition],
        *,
        verify_only: bool,
    ) -> Mapping[TopicPartition, ErrorCode]:
        """Add `partitions` to the transaction that goes on, or (`verify_only`) say whether they are
        in it: an error for each, as AddPartitionsToTxn answers it.

        When `none` is answered the addition is on all in-sync replicas of `__transaction_state`.
        Errors are: invalid_producer_id_mapping, producer_fenced, concurrent_transactions,
        invalid_txn_state, transaction_abortable (of `verify_only`: not in the transaction),
        not_coordinator, coordinator_load_in_progress, coordinator_not_available. Raises nothing.
        """
        ...
