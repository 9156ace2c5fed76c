"""A coordinator's log: a topic whose partitions hold the state of the keys that hash to them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Protocol, TypeAlias

from odradek.broker.java_hash import java_string_hash
from odradek.protocol.errors import ErrorCode, KafkaError
from odradek.protocol.records import records as log_records
from odradek.protocol.records.batch import HEADER_SIZE
from odradek.seams.files import Buffer

RECORD_OVERHEAD_MAX = 32
"""Bytes that a record in a batch may take beside its key and value."""

KeyAndValue: TypeAlias = tuple[bytes, bytes | None]
"""A record as it goes into the log; no value is a tombstone."""


class CoordinatorLog(Protocol):
    """The topic, as far as its coordinator sees it; the node connects it to its partitions.

    Errors are KafkaErrors: not_leader_or_follower, not_enough_replicas, kafka_storage_error,
    record_too_large (message_too_large), unknown_topic_or_partition.
    """

    def partition_count(self) -> int:
        """How many partitions the topic has; 0 while it does not exist."""
        ...

    def batch_bytes_max(self, partition: int) -> int:
        """The largest batch that `append` takes (the topic's max.message.bytes)."""
        ...

    def append(self, partition: int, batch: bytearray, now_ms: int) -> int:
        """Append one record batch as leader, stamped in place; the offset of its first record.

        Synchronous: when it returns the batch is in the log of this node, when it raises no byte of
        it is. Needs min.insync.replicas as acks=all does, but waits for none.
        """
        ...

    def is_committed(self, partition: int, offset: int) -> bool:
        """Whether all in-sync replicas have the record at `offset` (it is below the high watermark)."""
        ...

    async def wait_committed(self, partition: int, offset: int) -> None:
        """Return once `is_committed`; raise KafkaError when this node does not lead any more."""
        ...

    def start_offset(self, partition: int) -> int: ...

    def end_offset(self, partition: int) -> int:
        """The offset that the next record gets."""
        ...

    async def read(self, partition: int, offset: int, max_bytes: int) -> Buffer:
        """Whole batches from the one that holds `offset` on, at least one, up to the end of the log.

        Empty at the end. More than `max_bytes` only where the first batch alone is larger. NoDescriptors
        says nothing of the log: it may be read a moment later.
        """
        ...


class RecordsTooLarge(KafkaError):
    """Records that have to stand in one batch do not fit into one."""

    code: ErrorCode = ErrorCode.record_list_too_large


def partition_for(key: str, partitions: int) -> int:
    """The partition of an internal topic that a group or transactional id belongs to."""
    hashed = java_string_hash(key)
    return 0 if hashed == -(1 << 31) else abs(hashed) % partitions


def build_batches(
    records: Sequence[KeyAndValue],
    *,
    now_ms: int,
    compression: int,
    batch_bytes_max: int,
    atomic: bool,
    producer: tuple[int, int] | None = None,
) -> Iterator[tuple[bytearray, slice]]:
    """The batches that hold these records, in order, each with which records those are.

    With a `producer`'s id and epoch they are in its transaction. Raises RecordsTooLarge if `atomic`
    ones would need more than one.
    """
    producer_id, producer_epoch = producer or (-1, -1)
    sizes = [len(key) + len(value or b"") + RECORD_OVERHEAD_MAX for key, value in records]
    if atomic and HEADER_SIZE + sum(sizes) > batch_bytes_max and len(records) > 1:
        raise RecordsTooLarge(f"{len(records)} records of {sum(sizes)} bytes")
    start = 0
    while start < len(records):
        end, size = start, HEADER_SIZE
        while end < len(records) and (end == start or size + sizes[end] <= batch_bytes_max):
            size += sizes[end]
            end += 1
        batch = log_records.build_batch(
            [
                log_records.Record(position, now_ms, key, value)
                for position, (key, value) in enumerate(records[start:end])
            ],
            compression=compression,
            producer_id=producer_id,
            producer_epoch=producer_epoch,
            transactional=producer is not None,
        )
        yield batch, slice(start, end)
        start = end
