"""A WAL file: batches of many partitions that one object stores (KIP-1163, D-05).

Batches are added in the order of their arrival. The object has them sorted by topic id and partition, and the
batches of one partition in the order of their arrival, so that a reader of several batches of a partition needs one
range of the object. There is no header and no index: the coordinators have the position of each batch.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from typing import Final
from uuid import UUID

from odradek.protocol.records.batch import Batch
from odradek.protocol.schemas.diskless_apis import DisklessCommitBatch
from odradek.seams.values import value_class

WRITE_AHEAD_MULTI_SEGMENT: Final = 1
"""Value of ObjectFormat: batches of several partitions."""

BATCHES_PER_STEP: Final = 200
"""Batches that are laid out before other tasks run: about 1 ms."""

PartitionKey = tuple[UUID, int]
"""Topic id and partition index."""


@value_class
class WalObject:
    """The bytes of a WAL file, and the batches of its commit request.

    `batches` is in the order of the bytes. `arrivals[n]` is the number of batch n in the order of arrival, which
    `WalFile.add` returned.
    """

    data: bytes
    batches: tuple[DisklessCommitBatch, ...]
    arrivals: tuple[int, ...]

    @property
    def size_bytes(self) -> int:
        return len(self.data)


class WalFile:
    """Batches that were added since the last rotation."""

    def __init__(self) -> None:
        self._by_partition: dict[PartitionKey, list[_AddedBatch]] = {}
        self.batch_count = 0
        self.size_bytes = 0

    def __bool__(self) -> bool:
        return self.batch_count > 0

    @property
    def partitions(self) -> Sequence[PartitionKey]:
        return list(self._by_partition)

    def add(self, topic_id: UUID, index: int, batch: Batch, *, request_id: int = -1) -> int:
        """Add a validated batch; return its number in this file. The bytes are copied.

        `request_id` identifies the Produce request in the commit.
        """
        number = self.batch_count
        added = _AddedBatch(number, request_id, batch, bytes(batch.view))
        self._by_partition.setdefault((topic_id, index), []).append(added)
        self.batch_count += 1
        self.size_bytes += len(added.data)
        return number

    def build(self) -> WalObject:
        """Lay out the batches. Call it once, after the last `add`."""
        steps = self.build_in_steps()
        while True:
            try:
                next(steps)
            except StopIteration as done:
                built: WalObject = done.value
                return built

    def build_in_steps(self) -> Generator[None, None, WalObject]:
        """Lay out the batches as `build` does, and yield every `BATCHES_PER_STEP` batches."""
        data: list[bytes] = []
        batches: list[DisklessCommitBatch] = []
        arrivals: list[int] = []
        position = 0
        for topic_id, index in sorted(self._by_partition, key=_sort_key):
            for added in self._by_partition[topic_id, index]:
                data.append(added.data)
                batches.append(added.describe(topic_id, index, position))
                arrivals.append(added.number)
                position += len(added.data)
                if not len(data) % BATCHES_PER_STEP:
                    yield
        return WalObject(b"".join(data), tuple(batches), tuple(arrivals))


def _sort_key(partition: PartitionKey) -> tuple[bytes, int]:
    topic_id, index = partition
    return topic_id.bytes, index


class _AddedBatch:
    """One batch: its own bytes, and the fields of its header that the commit needs."""

    __slots__ = (
        "base_sequence",
        "data",
        "last_offset_delta",
        "last_sequence",
        "magic",
        "max_timestamp",
        "number",
        "producer_epoch",
        "producer_id",
        "request_id",
        "timestamp_type",
    )

    def __init__(self, number: int, request_id: int, batch: Batch, data: bytes) -> None:
        self.number = number
        self.request_id = request_id
        self.data = data
        self.magic = batch.magic
        self.last_offset_delta = batch.last_offset_delta
        self.max_timestamp = batch.max_timestamp
        self.timestamp_type = batch.timestamp_type
        self.producer_id = batch.producer_id
        self.producer_epoch = batch.producer_epoch
        self.base_sequence = batch.base_sequence
        self.last_sequence = batch.last_sequence

    def describe(self, topic_id: UUID, index: int, position: int) -> DisklessCommitBatch:
        return DisklessCommitBatch(
            magic=self.magic,
            request_id=self.request_id,
            topic_id=topic_id,
            partition_index=index,
            byte_offset=position,
            size=len(self.data),
            base_offset=0,
            last_offset=self.last_offset_delta,
            batch_max_timestamp=self.max_timestamp,
            timestamp_type=self.timestamp_type,
            producer_id=self.producer_id,
            producer_epoch=self.producer_epoch,
            base_sequence=self.base_sequence,
            last_sequence=self.last_sequence,
        )
