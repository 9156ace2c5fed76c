"""What is kept of batches beside them, once they are written: epochs, producers, aborted transactions."""

from __future__ import annotations

from collections.abc import Sequence

from odradek.protocol.records.batch import Batch
from odradek.storage.log.segment import Segment
from odradek.storage.log.state import LogState
from odradek.storage.log.transaction_index import AbortedTransaction


def keep_books(log: LogState, segment: Segment, batches: Sequence[Batch]) -> None:
    """Of `batches`, which `segment` has now. Raises OSError, LogFailed, NoDescriptors."""
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
                    log.names_changed = True
                producers.complete(completed)
    producers.map_end = batches[-1].last_offset + 1
