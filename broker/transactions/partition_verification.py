"""Interface to add partitions to a transaction or verify them (KIP-890).

A leader appends the first batch of a transaction only after the coordinator confirmed the
partition; otherwise no marker would end it. Clients up to Produce v11 and TxnOffsetCommit v4 add
partitions themselves, and the leader verifies. For later versions the leader adds them.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping, Sequence
from typing import Protocol

from odradek.protocol.errors import ErrorCode
from odradek.protocol.topics import TopicPartition


class AddPartitionsToTransaction(Protocol):
    """AddPartitionsToTxn v4-5 for one transaction."""

    async def add_partitions(
        self,
        transactional_id: str,
        producer_id: int,
        producer_epoch: int,
        partitions: Sequence[TopicPartition],
        *,
        verify_only: bool,
    ) -> Mapping[TopicPartition, ErrorCode]:
        """Add `partitions`, or with `verify_only` check them; an error code for each.

        NONE means that the addition is committed. Errors: invalid_producer_id_mapping,
        producer_fenced, concurrent_transactions, invalid_txn_state, transaction_abortable
        (`verify_only`: not in the transaction), not_coordinator, coordinator_load_in_progress,
        coordinator_not_available. Raises nothing.
        """
        ...


class TransactionSupportedOperation(enum.Enum):
    """Operation that a client's request version supports (Kafka's
    TransactionSupportedOperation)."""

    OLD = "supports neither"
    GENERIC_ERROR_SUPPORTED = "supports TRANSACTION_ABORTABLE"
    ADD_PARTITION = "adds partitions implicitly by writing to them"

    @property
    def adds_partitions(self) -> bool:
        return self is TransactionSupportedOperation.ADD_PARTITION

    @classmethod
    def of_produce(cls, version: int) -> TransactionSupportedOperation:
        return cls._of(version, abortable_since=11)

    @classmethod
    def of_offset_commit(cls, version: int) -> TransactionSupportedOperation:
        """Operation for a TxnOffsetCommit version."""
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
    """Add or verify partitions, depending on the client's version; errors are mapped for the
    client."""
    errors = await coordinator.add_partitions(
        transactional_id,
        producer_id,
        producer_epoch,
        partitions,
        verify_only=not support.adds_partitions,
    )
    return {partition: writer_error(error, support) for partition, error in errors.items()}


def writer_error(error: ErrorCode, support: TransactionSupportedOperation) -> ErrorCode:
    """Map an AddPartitionsToTxn error to the one returned to the writer."""
    if error is ErrorCode.producer_fenced:
        return ErrorCode.invalid_producer_epoch
    if error is ErrorCode.transaction_abortable and support is TransactionSupportedOperation.OLD:
        return ErrorCode.invalid_txn_state
    return error
