"""A coordinator that keeps every accepted batch in lists and applies every operation at once.

It decides by searching the whole history, and shares no code with the state machine.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any
from uuid import UUID

from odradek.protocol.schemas.diskless_apis import DisklessCommitBatch, DisklessCommitFileRequest

Result = tuple[str, int, int, int, bool]
"""Error, base offset, append time, log start offset, and whether it is a duplicate."""


@dataclass
class AcceptedBatch:
    key: str
    byte_offset: int
    base: int
    last: int
    append_ms: int
    producer: tuple[int, int, int, int]
    """Id, epoch, first and last sequence."""


@dataclass
class NaivePartition:
    start: int = 0
    end: int = 0
    accepted: list[AcceptedBatch] = field(default_factory=list)


@dataclass
class NaiveCoordinator:
    coordinator_id: int
    window_ms: int
    expiration_ms: int
    partitions: dict[tuple[UUID, int], NaivePartition] = field(default_factory=dict)
    files: dict[str, bool] = field(default_factory=dict)
    """Tracked files, and whether the coordinator owns them."""

    def _unknown(self, topic_id: UUID) -> str:
        known = any(each[0] == topic_id for each in self.partitions)
        return "unknown_topic_or_partition" if known else "unknown_topic_id"

    def commit(
        self, request: DisklessCommitFileRequest, uploaded_ms: int, now_ms: int
    ) -> list[Result]:
        key = request.object_key
        if now_ms - uploaded_ms > self.window_ms:
            return [("invalid_timestamp", -1, -1, -1, False) for _ in request.batches]
        was_known = key in self.files
        self.files.setdefault(key, request.owner_ids[0] == self.coordinator_id)
        return [self._commit(key, was_known, each, now_ms) for each in request.batches]

    def _commit(self, key: str, was_known: bool, batch: DisklessCommitBatch, now_ms: int) -> Result:
        partition = self.partitions.get((batch.topic_id, batch.partition_index))
        if partition is None:
            return self._unknown(batch.topic_id), -1, -1, -1, False
        for earlier in partition.accepted:
            same = earlier.key == key and earlier.byte_offset == batch.byte_offset
            if same and earlier.last >= partition.start:
                return "none", earlier.base, earlier.append_ms, partition.start, True
        producer = (
            batch.producer_id,
            batch.producer_epoch,
            batch.base_sequence,
            batch.last_sequence,
        )
        if batch.producer_id >= 0:
            error, duplicate = self._check_sequence(partition, producer, now_ms)
            if duplicate is not None:
                return "none", duplicate.base, duplicate.append_ms, partition.start, True
            if error:
                start = partition.start if error == "unknown_producer_id" else -1
                return error, -1, -1, start, False
        elif was_known and partition.start > 0:
            return "invalid_request", -1, -1, -1, False
        base = partition.end
        last = base + batch.last_offset - batch.base_offset
        partition.end = last + 1
        partition.accepted.append(
            AcceptedBatch(key, batch.byte_offset, base, last, now_ms, producer)
        )
        return "none", base, now_ms, partition.start, False

    def _check_sequence(
        self, partition: NaivePartition, producer: tuple[int, int, int, int], now_ms: int
    ) -> tuple[str, AcceptedBatch | None]:
        producer_id, epoch, first, _ = producer
        known: list[AcceptedBatch] = []
        """Batches of the newest epoch since the producer expired the last time."""
        for each in partition.accepted:
            if each.producer[0] != producer_id:
                continue
            if known and (
                each.producer[1] != known[-1].producer[1]
                or each.append_ms - known[-1].append_ms >= self.expiration_ms
            ):
                known.clear()
            known.append(each)
        if not known or now_ms - known[-1].append_ms >= self.expiration_ms:
            return ("unknown_producer_id" if first else ""), None
        current = known[-1].producer[1]
        if epoch < current:
            return "invalid_producer_epoch", None
        if epoch > current:
            return ("out_of_order_sequence_number" if first else ""), None
        for each in known[-5:]:
            if each.producer == producer:
                return "", each
        expected = (known[-1].producer[3] + 1) % (1 << 31)
        return ("" if first == expected else "out_of_order_sequence_number"), None

    def delete_records(self, topic_id: UUID, index: int, offset: int) -> tuple[str, int]:
        partition = self.partitions.get((topic_id, index))
        if partition is None:
            return self._unknown(topic_id), -1
        if offset == -1:
            offset = partition.end
        if offset > partition.end or offset < 0:
            return "offset_out_of_range", -1
        partition.start = max(partition.start, offset)
        return "none", partition.start

    def create(self, topic_id: UUID, indexes: list[int]) -> None:
        for index in indexes:
            self.partitions.setdefault((topic_id, index), NaivePartition())

    def delete_topic(self, topic_id: UUID) -> str:
        if not any(key[0] == topic_id for key in self.partitions):
            return "unknown_topic_id"
        self.partitions = {
            key: value for key, value in self.partitions.items() if key[0] != topic_id
        }
        return "none"

    def take_ownership(self, key: str) -> None:
        self.files[key] = True

    def live_batches(self, key: str) -> int:
        return sum(
            each.key == key and each.last >= partition.start
            for partition in self.partitions.values()
            for each in partition.accepted
        )

    def remove_file(self, key: str, uploaded_ms: int, now_ms: int) -> bool:
        if key not in self.files:
            return True
        if self.live_batches(key) or now_ms - uploaded_ms <= self.window_ms:
            return False
        del self.files[key]
        return True

    def summary(self) -> Any:
        """Offsets of the partitions, and owned and live batches of the files."""
        partitions = {key: (each.start, each.end) for key, each in self.partitions.items()}
        files = {key: (owned, self.live_batches(key)) for key, owned in self.files.items()}
        return partitions, files
