"""The log of a coordinator: an internal topic whose partitions hold the state of the keys that hash
to them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Protocol, TypeAlias

from odradek.broker.java_hash import java_string_hash
from odradek.protocol.errors import ErrorCode, KafkaError
from odradek.protocol.records import records as log_records
from odradek.protocol.records.batch import HEADER_SIZE
from odradek.seams.files import Buffer

RECORD_OVERHEAD_MAX = 32
"""Upper bound of a record's overhead in a batch, in bytes, excluding key and value."""

KeyAndValue: TypeAlias = tuple[bytes, bytes | None]
"""Key and value of a record; a value of None is a tombstone."""


class CoordinatorLog(Protocol):
    """Interface of a coordinator to its internal topic.

    Raises KafkaError: not_leader_or_follower, not_enough_replicas, kafka_storage_error,
    record_too_large (message_too_large), unknown_topic_or_partition.
    """

    def partition_count(self) -> int:
        """Number of partitions; 0 while the topic does not exist."""
        ...

    def batch_bytes_max(self, partition: int) -> int:
        """The largest batch that `append` takes (the topic's max.message.bytes)."""
        ...

    def append(self, partition: int, batch: bytearray, now_ms: int) -> int:
        """Append one batch as leader and return its first offset. The batch is stamped in place.

        Synchronous: when it returns, the batch is in the local log; after an error nothing was appended. Requires
        min.insync.replicas but does not wait for replicas.
        """
        ...

    def is_committed(self, partition: int, offset: int) -> bool:
        """Whether all in-sync replicas have the record at `offset` (it is below the high watermark)."""
        ...

    async def wait_committed(self, partition: int, offset: int) -> None:
        """Wait until `is_committed`. Raises KafkaError when this node is no longer the leader."""
        ...

    def start_offset(self, partition: int) -> int: ...

    def end_offset(self, partition: int) -> int:
        """Log end offset of the partition."""
        ...

    async def read(self, partition: int, offset: int, max_bytes: int) -> Buffer:
        """Read whole batches from the one that holds `offset`, at least one.

        Empty at the log end. Exceeds `max_bytes` only if the first batch does. NoDescriptors is a
        temporary error.
        """
        ...


class RecordsTooLarge(KafkaError):
    """Records that must be in one batch exceed the maximum batch size."""

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
    """Build batches of these records in order, each with the slice of records in it.

    With a producer's id and epoch the batches are transactional. Raises RecordsTooLarge if `atomic`
    records need more than one batch.
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
