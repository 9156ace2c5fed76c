"""Writes and loads the records of `__consumer_offsets`.

The hash of a group id selects its partition. Records have Kafka's formats.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Protocol

from odradek.broker.coordination import coordinator_loader
from odradek.broker.coordination import coordinator_log as log
from odradek.broker.groups import record_serde as group_records
from odradek.broker.groups.messages import Record
from odradek.broker.groups.offset_store import NO_PRODUCER
from odradek.protocol.schemas.serde import UnknownRecord
from odradek.storage.log.transaction_verification import VerificationGuard


class OffsetsLog(log.CoordinatorLog, Protocol):
    """Interface of the group coordinator to `__consumer_offsets`, which has transactions."""

    def begin_verification(
        self, partition: int, producer_id: int, producer_epoch: int, *, adds_partitions: bool
    ) -> VerificationGuard | None:
        """Guard for the first batch of a transaction, or None if the transaction is verified already."""
        ...

    def append_in_transaction(
        self, partition: int, batch: bytearray, now_ms: int, guard: VerificationGuard | None
    ) -> int:
        """Append a transactional batch; the first one of a transaction needs the guard. See `CoordinatorLog.append`."""
        ...

    def append_marker(
        self, partition: int, batch: bytearray, now_ms: int, transaction_version: int
    ) -> int:
        """Append a transaction marker. See `CoordinatorLog.append`."""
        ...


class GroupRecordReplayer(Protocol):
    """State into which records are replayed."""

    def replay(self, record: Record, offset: int, producer_id: int = NO_PRODUCER) -> None: ...

    def complete_transaction(self, producer_id: int, *, committed: bool) -> None: ...


def build_batches(
    records: Sequence[Record],
    *,
    now_ms: int,
    compression: int,
    batch_bytes_max: int,
    atomic: bool,
    producer: tuple[int, int] | None = None,
) -> Iterator[tuple[bytearray, Sequence[Record]]]:
    """Build batches of these records in order, each with its records; see
    `coordinator_log.build_batches`.
    """
    for batch, part in log.build_batches(
        [group_records.encode(each) for each in records],
        now_ms=now_ms,
        compression=compression,
        batch_bytes_max=batch_bytes_max,
        atomic=atomic,
        producer=producer,
    ):
        yield batch, records[part]


class GroupLoader(coordinator_loader.CoordinatorLoader):
    """Replays the records of a partition into its groups and offsets."""

    def __init__(self, replayer: GroupRecordReplayer) -> None:
        super().__init__()
        self._replayer = replayer

    def replay(self, key: bytes, value: bytes | None, offset: int, producer_id: int) -> None:
        try:
            decoded = group_records.decode_key(key)
        except (group_records.UnsupportedGroupRecord, UnknownRecord) as error:
            self.skip(str(error))
            return
        replayed = None if value is None else group_records.decode_value(decoded, value)
        self._replayer.replay(Record(decoded, replayed), offset, producer_id)

    def has_pending(self, key: bytes) -> bool:
        return group_records.is_offset_key(key)

    def complete_transaction(self, producer_id: int, *, committed: bool) -> None:
        self._replayer.complete_transaction(producer_id, committed=committed)
