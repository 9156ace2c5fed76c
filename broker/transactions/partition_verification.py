"""Whether a partition may be written to in a transaction: the partitions' question (KIP-890).

The first batch of a transaction in a partition is not appended before the transaction's coordinator
has said that it knows the partition to be in it; otherwise no marker would ever end what it begins.
Producers up to Produce v11 have added the partition themselves (AddPartitionsToTxn) and the leader
only asks; for those from v12 on it is added by asking. So it is for TxnOffsetCommit up to v4, from v5.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping, Sequence
from typing import Protocol

from odradek.protocol.errors import ErrorCode
from odradek.storage.directories.names import TopicPartition


class AddPartitionsToTransaction(Protocol):
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


class TransactionSupportedOperation(enum.Enum):
    """What the version of a client's request says that it can do."""

    OLD = "knows neither"
    GENERIC_ERROR_SUPPORTED = "knows TRANSACTION_ABORTABLE"
    ADD_PARTITION = "has its partitions added by writing to them"

    @property
    def adds_partitions(self) -> bool:
        return self is TransactionSupportedOperation.ADD_PARTITION

    @classmethod
    def of_produce(cls, version: int) -> TransactionSupportedOperation:
        return cls._of(version, abortable_since=11)

    @classmethod
    def of_offset_commit(cls, version: int) -> TransactionSupportedOperation:
        """TxnOffsetCommit's."""
        return cls._of(version, abortable_since=4)

    @classmethod
    def _of(cls, version: int, abortable_since: int) -> TransactionSupportedOperation:
        if version > abortable_since:
            return cls.ADD_PARTITION
        return cls.GENERIC_ERROR_SUPPORTED if version == abortable_since else cls.OLD


async def add_or_verify_partitions(
    coordinator: AddPartitionsToTransaction,
    transactional_id: str,
    producer_id: int,
    producer_epoch: int,
    partitions: Sequence[TopicPartition],
    support: TransactionSupportedOperation,
) -> Mapping[TopicPartition, ErrorCode]:
    """Add or verify, as the client's version wants it; the errors as its kind of client knows them."""
    errors = await coordinator.add_partitions(
        transactional_id,
        producer_id,
        producer_epoch,
        partitions,
        verify_only=not support.adds_partitions,
    )
    return {partition: writer_error(error, support) for partition, error in errors.items()}


def writer_error(error: ErrorCode, support: TransactionSupportedOperation) -> ErrorCode:
    """What one who writes in a transaction is told where AddPartitionsToTxn said `error`."""
    if error is ErrorCode.producer_fenced:
        return ErrorCode.invalid_producer_epoch
    if error is ErrorCode.transaction_abortable and support is TransactionSupportedOperation.OLD:
        return ErrorCode.invalid_txn_state
    return error
