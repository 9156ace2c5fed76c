"""Log of a coordinator in memory."""

from __future__ import annotations

import trio

from odradek.broker.groups import record_serde as records
from odradek.protocol.errors import ErrorCode, KafkaError
from odradek.protocol.records import records as log_records
from odradek.protocol.records.batch import batches
from odradek.storage.log.producer_state import ProducerStates
from odradek.storage.log.transaction_verification import VerificationGuard


class NotLeader(KafkaError):
    code = ErrorCode.not_leader_or_follower


class MemoryLog:
    """`CoordinatorLog` in memory, with a high watermark that a test can hold back."""

    def __init__(self, partitions: int = 1) -> None:
        self.data: dict[int, bytearray] = {index: bytearray() for index in range(partitions)}
        self.ends = dict.fromkeys(range(partitions), 0)
        self.producers = [
            ProducerStates("o", expiration_ms=lambda: 1 << 40) for _ in range(partitions)
        ]
        self.high_watermarks: dict[int, int] | None = None
        """High watermarks that are held; None follows the log end offset."""
        self.changed = trio.Event()
        self.fail_with: KafkaError | None = None
        self.reads = 0
        self.reading_may_go_on = trio.Event()
        self.reading_may_go_on.set()
        self.limit = 1 << 20

    def partition_count(self) -> int:
        return len(self.data)

    def batch_bytes_max(self, partition: int) -> int:
        return self.limit

    def append(self, partition: int, batch: bytearray, now_ms: int) -> int:
        return self._append(partition, batch)

    def begin_verification(
        self, partition: int, producer_id: int, producer_epoch: int, *, adds_partitions: bool
    ) -> VerificationGuard | None:
        return self.producers[partition].begin_verification(
            producer_id, producer_epoch, -1, adds_partitions=adds_partitions, now_ms=0
        )

    def append_in_transaction(
        self, partition: int, batch: bytearray, now_ms: int, guard: VerificationGuard | None
    ) -> int:
        return self._append(partition, batch, guard)

    def append_marker(
        self, partition: int, batch: bytearray, now_ms: int, transaction_version: int
    ) -> int:
        return self._append(partition, batch, version=transaction_version)

    def _append(
        self,
        partition: int,
        batch: bytearray,
        guard: VerificationGuard | None = None,
        version: int = 0,
    ) -> int:
        if self.fail_with is not None:
            raise self.fail_with
        (header,) = batches(memoryview(batch), check=True)
        first = self.ends[partition]
        if header.producer_id >= 0:
            states = self.producers[partition]
            states.check(header, from_client=False, transaction_version=version, guard=guard)
        header.stamp(first, 0)
        if header.producer_id >= 0:
            completed = states.apply(header)
            if completed is not None:
                states.complete(completed)
        self.data[partition] += batch
        self.ends[partition] = first + header.record_count
        return first

    def is_committed(self, partition: int, offset: int) -> bool:
        marks = self.ends if self.high_watermarks is None else self.high_watermarks
        return marks[partition] > offset

    async def wait_committed(self, partition: int, offset: int) -> None:
        while not self.is_committed(partition, offset):
            await self.changed.wait()
        await trio.lowlevel.checkpoint()

    def hold(self) -> None:
        self.high_watermarks = dict(self.ends)

    def move_to(self, partition: int, high_watermark: int) -> None:
        """Set the high watermark of a log that is held."""
        assert self.high_watermarks is not None
        self.high_watermarks[partition] = high_watermark
        self._describe()

    def move_on(self) -> None:
        self.high_watermarks = None
        self._describe()

    def _describe(self) -> None:
        self.changed.set()
        self.changed = trio.Event()

    def start_offset(self, partition: int) -> int:
        return 0

    def end_offset(self, partition: int) -> int:
        return self.ends[partition]

    async def read(self, partition: int, offset: int, max_bytes: int) -> bytes:
        self.reads += 1
        await self.reading_may_go_on.wait()
        found = bytearray()
        for batch in batches(memoryview(self.data[partition])):
            if batch.last_offset < offset:
                continue
            if found and len(found) + batch.size > max_bytes:
                break
            found += batch.view
        return bytes(found)

    def keys(self, partition: int = 0) -> list[object]:
        return [
            records.decode_key(each.key)
            for batch in batches(memoryview(self.data[partition]))
            for each in log_records.decode(batch)
            if each.key is not None
        ]
