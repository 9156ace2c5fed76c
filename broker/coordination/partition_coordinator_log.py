"""`CoordinatorLog` over the local partitions of an internal topic."""

from __future__ import annotations

from collections.abc import Callable

from odradek.protocol.records.batch import NO_SEQUENCE
from odradek.replication.controller.image import MetadataImage
from odradek.replication.errors import NotLeader
from odradek.replication.partition.partition import ACKS_ALL, Partition, PartitionChangeWatcher
from odradek.seams.files import Buffer
from odradek.seams.offload import Offload
from odradek.storage.log.append import AppendOrigin
from odradek.storage.log.transaction_verification import VerificationGuard


class PartitionCoordinatorLog:
    """Appends to and reads from the partitions of `topic`. Also implements the group coordinator's
    `OffsetsLog`."""

    def __init__(
        self,
        topic: str,
        opened: Callable[[str, int], Partition | None],
        image: Callable[[], MetadataImage],
        offload: Offload,
    ) -> None:
        self._topic = topic
        self._opened = opened
        self._image = image
        self._offload = offload

    def _partition(self, index: int) -> Partition:
        partition = self._opened(self._topic, index)
        if partition is None:
            raise NotLeader(f"{self._topic}-{index} is not open on this broker")
        return partition

    def partition_count(self) -> int:
        topic = self._image().topics_by_name.get(self._topic)
        return 0 if topic is None else len(topic.partitions)

    def batch_bytes_max(self, partition: int) -> int:
        return self._partition(partition).log.config.max_message_bytes

    def append(self, partition: int, batch: bytearray, now_ms: int) -> int:
        return self._append(partition, batch, now_ms)

    def begin_verification(
        self, partition: int, producer_id: int, producer_epoch: int, *, adds_partitions: bool
    ) -> VerificationGuard | None:
        return self._partition(partition).begin_verification(
            producer_id, producer_epoch, NO_SEQUENCE, adds_partitions=adds_partitions
        )

    def append_in_transaction(
        self, partition: int, batch: bytearray, now_ms: int, guard: VerificationGuard | None
    ) -> int:
        return self._append(partition, batch, now_ms, guard=guard)

    def append_marker(
        self, partition: int, batch: bytearray, now_ms: int, transaction_version: int
    ) -> int:
        return self._append(partition, batch, now_ms, transaction_version=transaction_version)

    def _append(
        self,
        partition: int,
        batch: bytearray,
        now_ms: int,
        *,
        guard: VerificationGuard | None = None,
        transaction_version: int = 0,
    ) -> int:
        local = self._partition(partition)
        appended = local.append(
            memoryview(batch),
            acks=ACKS_ALL,
            now_ms=now_ms,
            origin=AppendOrigin.COORDINATOR,
            transaction_version=transaction_version,
            guard=guard,
        )
        return appended.first_offset

    def is_committed(self, partition: int, offset: int) -> bool:
        return self._partition(partition).log.high_watermark > offset

    async def wait_committed(self, partition: int, offset: int) -> None:
        local = self._partition(partition)
        while local.log.high_watermark <= offset:
            local.check_leader()
            await PartitionChangeWatcher.wait([local])

    def start_offset(self, partition: int) -> int:
        return self._partition(partition).log.log_start_offset

    def end_offset(self, partition: int) -> int:
        return self._partition(partition).log.end_offset

    async def read(self, partition: int, offset: int, max_bytes: int) -> Buffer:
        log = self._partition(partition).log
        return await self._offload.run(
            self._read, partition, offset, max_bytes, lane=str(log.directory.parent)
        )

    def _read(self, partition: int, offset: int, max_bytes: int) -> Buffer:
        log = self._partition(partition).log
        log_read = log.read(offset, max_bytes, limit=log.end_offset)
        if log_read.slice is None:
            return b""
        try:
            return log_read.slice.read()
        except OSError as error:
            raise log.handle_io_error(error) from error
        finally:
            log_read.slice.file.unpin()
