"""Replays committed records of the metadata log into the image (Kafka's `MetadataLoader`).

Runs on followers, on observers, and on a new leader until it becomes the active controller. If the
log no longer contains the next offset, the newest snapshot is loaded and published as one delta.
The work is split into small chunks, so that other tasks run in between.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator
from typing import Final

import trio

from odradek.protocol.records.batch import Batch
from odradek.replication.controller.image import image_delta
from odradek.replication.raft.metadata_batch_loader import MetadataBatchLoader, MetadataTransaction
from odradek.replication.raft.metadata_log import MetadataLog
from odradek.replication.raft.metadata_log_writer import Blocking
from odradek.replication.raft.metadata_state import MetadataState
from odradek.replication.raft.snapshots import SnapshotId
from odradek.seams.files import OutOfDescriptors, WouldBlock
from odradek.storage.errors import NoDescriptors, OffsetOutOfRange

log = logging.getLogger("odradek.metadata")

RECORDS_A_CHANGE: Final = 50
"""Records per published delta; a larger batch is not split."""
RETRY_SECONDS: Final = 1.0
"""Retry interval when no file descriptors are available."""


async def catch_up(
    state: MetadataState, metadata_log: MetadataLog, high_watermark: int, blocking: Blocking
) -> None:
    """Apply all committed records. Raises InvalidMetadata, LogFailed."""
    while (offset := state.image.offset + 1) < high_watermark:
        try:
            if offset < metadata_log.start_offset:
                await _load_newest(state, metadata_log, blocking)
            else:
                await _apply(state, metadata_log, offset, high_watermark, blocking)
        except OffsetOutOfRange:
            await trio.lowlevel.checkpoint()  # a snapshot has replaced the log since
        except (NoDescriptors, OutOfDescriptors) as error:
            log.warning("committed records cannot be read, retrying: %s", error)
            await trio.sleep(RETRY_SECONDS)


async def _apply(
    state: MetadataState,
    metadata_log: MetadataLog,
    offset: int,
    high_watermark: int,
    blocking: Blocking,
) -> None:
    for some in _group_batches(await _read(metadata_log, offset, high_watermark, blocking)):
        replay = MetadataBatchLoader(
            state.image, keep_records=True, transactions=state.transactions.copy()
        )
        for batch in some:
            await run_in_chunks(replay.batch_in_steps(batch))
        # Changes together with the image, which may be snapshotted
        state.transactions = replay.transactions
        state.publish(replay.finish(), sum(batch.size for batch in some))
        await trio.lowlevel.checkpoint()


async def _read(
    metadata_log: MetadataLog, offset: int, high_watermark: int, blocking: Blocking
) -> list[Batch]:
    """Read from memory if possible: recently committed records usually are there."""
    try:
        return metadata_log.batches_at(offset, high_watermark, nowait=True)
    except WouldBlock:
        found: list[Batch] = await blocking(metadata_log.batches_at, offset, high_watermark)
        return found


def _group_batches(found: Iterable[Batch]) -> Iterator[list[Batch]]:
    some: list[Batch] = []
    records = 0
    for batch in found:
        some.append(batch)
        records += batch.record_count
        if records >= RECORDS_A_CHANGE:
            yield some
            some, records = [], 0
    if some:
        yield some


async def _load_newest(state: MetadataState, metadata_log: MetadataLog, blocking: Blocking) -> None:
    newest = metadata_log.snapshots.newest
    assert newest is not None, "the newest snapshot ends at or after the log start"
    try:
        replay = await read_snapshot(metadata_log, newest, blocking)
    except FileNotFoundError:
        if newest == metadata_log.snapshots.newest:
            raise
        return  # a newer one has been installed
    state.transactions = MetadataTransaction()
    state.publish(image_delta(state.image, replay.finish().image), 0)


async def read_snapshot(
    metadata_log: MetadataLog, snapshot: SnapshotId, blocking: Blocking
) -> MetadataBatchLoader:
    """Load a snapshot. Raises InvalidMetadata, OSError."""
    contents = await blocking(metadata_log.snapshots.read, snapshot)
    replay = MetadataBatchLoader()
    await run_in_chunks(
        replay.snapshot_in_steps(
            contents.batches(), end_offset=snapshot.end_offset, epoch=snapshot.epoch
        )
    )
    return replay


async def run_in_chunks(steps: Iterator[None]) -> None:
    for _ in steps:
        await trio.lowlevel.checkpoint()
