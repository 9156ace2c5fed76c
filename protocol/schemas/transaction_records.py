"""Records of transactional ids in `__transaction_state`.

The value has version 0 with transaction.version 0, and version 1 (flexible, KIP-890) with later ones.
"""

from __future__ import annotations

from typing import ClassVar

from odradek.protocol.schemas.definition import RecordKey, StoredRecord, record, structs, wire


@record
class TransactionLogKey(RecordKey):
    """Key of the state of a transactional id (type 0)."""

    __api_key__: ClassVar[int] = 0
    transactional_id: str = wire("string")


@record
class TransactionPartitions:
    topic: str = wire("string")
    partition_ids: tuple[int, ...] = wire("[]int32")


@record
class TransactionLogValue(StoredRecord):
    """State of a transactional id, with times in ms.

    `transaction_status` is 0 Empty, 1 Ongoing, 2 PrepareCommit, 3 PrepareAbort, 4 CompleteCommit,
    5 CompleteAbort, 6 Dead, 7 PrepareEpochFence. Partitions are None in the states Empty and Complete.
    """

    __api_key__: ClassVar[int] = 0
    __versions__: ClassVar[range] = range(2)
    __flexible_from__: ClassVar[int] = 1
    producer_id: int = wire("int64")
    previous_producer_id: int = wire("int64", -1, since=1, tag=0)
    next_producer_id: int = wire("int64", -1, since=1, tag=1)
    producer_epoch: int = wire("int16")
    next_producer_epoch: int = wire("int16", -1, since=1, tag=3)
    transaction_timeout_ms: int = wire("int32")
    transaction_status: int = wire("int8")
    transaction_partitions: tuple[TransactionPartitions, ...] | None = structs(
        TransactionPartitions, nullable=True
    )
    transaction_last_update_timestamp_ms: int = wire("int64")
    transaction_start_timestamp_ms: int = wire("int64")
    client_transaction_version: int = wire("int16", since=1, tag=2)
