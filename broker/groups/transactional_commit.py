"""Verifies transactional offset commits with the transaction coordinator (KIP-890)."""

from __future__ import annotations

from odradek.broker.coordination.coordinator_runtime import COORDINATOR_ERROR_BY_LOG_ERROR
from odradek.broker.coordination.internal_topics import OFFSETS_TOPIC
from odradek.broker.groups.group_log import OffsetsLog
from odradek.broker.groups.messages import TransactionalProducer
from odradek.broker.transactions.partition_verification import (
    AddPartitionsToTransaction,
    TransactionSupportedOperation,
    add_or_verify_partitions,
)
from odradek.protocol.errors import ErrorCode, KafkaError
from odradek.protocol.topics import TopicPartition
from odradek.seams.values import value_class
from odradek.storage.log.transaction_verification import VERIFICATION_DISABLED

COORDINATOR_ERROR_BY_VERIFICATION_ERROR = {
    **COORDINATOR_ERROR_BY_LOG_ERROR,
    ErrorCode.network_exception: ErrorCode.coordinator_load_in_progress,
}
"""Codes for clients. COORDINATOR_LOAD_IN_PROGRESS is retried without another FindCoordinator."""


@value_class
class TransactionalCommit:
    """Transaction of a TxnOffsetCommit, and how to verify it.

    `is_verified` is the config `transaction.partition.verification.enable`.
    """

    transactional_id: str
    producer_id: int
    producer_epoch: int
    support: TransactionSupportedOperation
    coordinator: AddPartitionsToTransaction
    is_verified: bool = True


async def verify_transaction(
    transaction: TransactionalCommit, log: OffsetsLog, partition: int
) -> TransactionalProducer:
    """Verify that a partition of `__consumer_offsets` is in the transaction, or add it.

    Returns the producer with the guard for its append. Raises KafkaError.
    """
    producer_id, epoch = transaction.producer_id, transaction.producer_epoch
    support = transaction.support
    if not transaction.is_verified and not support.adds_partitions:
        if producer_id < 0 or epoch < 0:
            raise KafkaError(ErrorCode.unknown_server_error, "the producer id or epoch is negative")
        return TransactionalProducer(producer_id, epoch, VERIFICATION_DISABLED)
    try:
        guard = log.begin_verification(
            partition, producer_id, epoch, adds_partitions=support.adds_partitions
        )
    except KafkaError as error:
        raise KafkaError(
            COORDINATOR_ERROR_BY_VERIFICATION_ERROR.get(error.code, error.code)
        ) from error
    if guard is not None:
        wanted = TopicPartition(OFFSETS_TOPIC, partition)
        errors = await add_or_verify_partitions(
            transaction.coordinator,
            transaction.transactional_id,
            producer_id,
            epoch,
            [wanted],
            support,
        )
        code = errors[wanted]
        if code is not ErrorCode.none:
            raise KafkaError(
                COORDINATOR_ERROR_BY_VERIFICATION_ERROR.get(code, code),
                "the partition is not in the transaction",
            )
    return TransactionalProducer(
        producer_id, epoch, guard if transaction.is_verified else VERIFICATION_DISABLED
    )
