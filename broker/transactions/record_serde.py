"""Encodes and decodes `__transaction_state` records.

Values have version 1 from `transaction.version` 1 on, and version 0 below (KIP-890).
"""

from __future__ import annotations

from odradek.broker.transactions.messages import TransactionMetadata
from odradek.broker.transactions.transaction_states import (
    PERSISTENT_STATES,
    STATE_BY_CODE,
    TransactionState,
)
from odradek.protocol.errors import ErrorCode
from odradek.protocol.schemas import serde
from odradek.protocol.schemas.serde import InvalidRecord
from odradek.protocol.schemas.transaction_records import (
    TransactionLogKey,
    TransactionLogValue,
    TransactionPartitions,
)
from odradek.protocol.topics import TopicPartition
from odradek.seams.files import Buffer

FLEXIBLE_SINCE = 1
"""The transaction.version from which values use the flexible version 1."""


def encode(
    transactional_id: str, metadata: TransactionMetadata | None, transaction_version: int
) -> tuple[bytes, bytes | None]:
    """Key and value; None is a tombstone."""
    key = serde.encode_coordinator_key(TransactionLogKey(transactional_id=transactional_id))
    if metadata is None:
        return key, None
    value = TransactionLogValue(
        producer_id=metadata.producer_id,
        previous_producer_id=metadata.previous_producer_id,
        next_producer_id=metadata.next_producer_id,
        producer_epoch=metadata.epoch,
        transaction_timeout_ms=metadata.timeout_ms,
        transaction_status=metadata.state.code,
        transaction_partitions=None
        if metadata.state is TransactionState.EMPTY
        else _by_topic(metadata),
        transaction_last_update_timestamp_ms=metadata.updated_ms,
        transaction_start_timestamp_ms=metadata.started_ms,
        client_transaction_version=metadata.client_version,
    )
    version = 1 if transaction_version >= FLEXIBLE_SINCE else 0
    return key, serde.encode_coordinator_value(value, version)


def _by_topic(metadata: TransactionMetadata) -> tuple[TransactionPartitions, ...]:
    topics: dict[str, list[int]] = {}
    for topic, partition in metadata.partitions:
        topics.setdefault(topic, []).append(partition)
    return tuple(
        TransactionPartitions(topic=topic, partition_ids=tuple(indexes))
        for topic, indexes in topics.items()
    )


def decode_key(data: Buffer) -> str:
    """Decode the transactional id. Raises UnknownRecord for a key type that Kafka 4.3 does not have."""
    transactional_id: str = serde.decode_transaction_key(data).transactional_id
    return transactional_id


def decode_value(data: Buffer) -> TransactionMetadata:
    """Decode a value. Raises InvalidRecord, and UnknownRecord for a version that Kafka 4.3 does not have."""
    value: TransactionLogValue = serde.decode_transaction_value(data)
    state = STATE_BY_CODE.get(value.transaction_status)
    if state not in PERSISTENT_STATES:
        raise InvalidRecord(
            ErrorCode.corrupt_message, f"invalid transaction state {value.transaction_status}"
        )
    return TransactionMetadata(
        producer_id=value.producer_id,
        epoch=value.producer_epoch,
        timeout_ms=value.transaction_timeout_ms,
        state=state,
        updated_ms=value.transaction_last_update_timestamp_ms,
        partitions=tuple(
            TopicPartition(each.topic, index)
            for each in value.transaction_partitions or ()
            for index in each.partition_ids
        ),
        started_ms=value.transaction_start_timestamp_ms,
        previous_producer_id=value.previous_producer_id,
        next_producer_id=value.next_producer_id,
        client_version=value.client_transaction_version,
    )
