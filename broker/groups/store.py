"""Group state in `__consumer_offsets`: which partition, how records get there, how they come back."""

from __future__ import annotations

from typing import Protocol

from odradek.seams.files import Buffer


class CoordinatorLog(Protocol):
    """`__consumer_offsets`, as far as a coordinator sees it; the node connects it to its partitions.

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

        Empty at the end. More than `max_bytes` only where the first batch alone is larger.
        """
        ...
