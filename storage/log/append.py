"""Results of an append, and the changes that follow from it: leader epochs and producer state."""

from __future__ import annotations

import enum
from collections.abc import Sequence
from typing import NamedTuple

from odradek.protocol.records.batch import Batch
from odradek.storage.log.segment import Segment
from odradek.storage.log.state import LogState
from odradek.storage.log.transaction_index import AbortedTransaction


class AppendOrigin(enum.Enum):
    """Origin of an append (Kafka's AppendOrigin); it determines the validation."""

    CLIENT = "client"
    COORDINATOR = "coordinator"
    """Group and transaction coordinators: control batches are allowed, sequence numbers are not checked."""
    RAFT = "raft"
    """Leader of the metadata log: the batches already contain offsets and epochs."""


class AppendResult(NamedTuple):
    """Result of an append. Offsets are inclusive; `log_append_time_ms` is -1 for CreateTime.

    `size_bytes` is the number of bytes written. `data` is the batch as the leader wrote it: a view of
    the caller's buffer, to be copied by whatever keeps it.
    """

    first_offset: int
    last_offset: int
    log_append_time_ms: int
    log_start_offset: int
    duplicate: bool
    size_bytes: int
    data: memoryview | None = None


def update_epochs_and_producers(log: LogState, segment: Segment, batches: Sequence[Batch]) -> None:
    """Apply `batches`, which were written to `segment`, to the epoch cache, the producer state and the
    transaction index. Raises OSError, LogFailed, NoDescriptors."""
    epochs, producers = log.epochs, log.producers
    for batch in batches:
        if batch.leader_epoch != epochs.latest and batch.leader_epoch >= 0:
            epochs.assign(batch.leader_epoch, batch.base_offset)
        if batch.producer_id >= 0:
            completed = producers.apply(batch)
            if completed is not None:
                if completed.is_aborted:
                    segment.transaction_index.append(
                        AbortedTransaction(
                            completed.producer_id,
                            completed.first_offset,
                            completed.last_offset,
                            producers.stable_offset_after(completed),
                        )
                    )
                    log.directory_needs_sync = True
                producers.complete(completed)
    producers.map_end_offset = batches[-1].last_offset + 1
