"""A node's state follows the log: what is committed is read back and replayed, a step at a time.

So it is on followers and observers, and on a new leader until it takes over. What lies below the
log's start came as a snapshot, and is loaded whole: listeners hear of it as one change. Others run
between the steps; the image moves at the end of each read, at most a megabyte of the log.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import trio

from odradek.replication.controller.image_difference import difference
from odradek.replication.raft.cluster_state import ClusterState
from odradek.replication.raft.log_changes import Blocking
from odradek.replication.raft.metadata_log import MetadataLog
from odradek.replication.raft.replay import Replay, Transactions
from odradek.replication.raft.snapshots import SnapshotId
from odradek.storage.errors import OffsetOutOfRange

BATCHES_A_STEP: Final = 10
"""Most have a few records."""


async def catch_up(
    state: ClusterState, metadata_log: MetadataLog, high_watermark: int, blocking: Blocking
) -> None:
    """Apply all that is committed. Raises InvalidMetadata, LogFailed."""
    while (offset := state.image.offset + 1) < high_watermark:
        try:
            if offset < metadata_log.start_offset:
                await _load_newest(state, metadata_log, blocking)
            else:
                await _apply(state, metadata_log, offset, high_watermark, blocking)
        except OffsetOutOfRange:
            await trio.lowlevel.checkpoint()  # a snapshot has taken the log's place meanwhile


async def _apply(
    state: ClusterState,
    metadata_log: MetadataLog,
    offset: int,
    high_watermark: int,
    blocking: Blocking,
) -> None:
    batches = await blocking(metadata_log.batches_at, offset, high_watermark)
    replay = Replay(state.image, keep_records=True, transactions=state.transactions)
    size_bytes = 0
    for number, batch in enumerate(batches, 1):
        await in_steps(replay.batch_in_steps(batch))
        size_bytes += batch.size
        if number % BATCHES_A_STEP == 0:
            await trio.lowlevel.checkpoint()
    state.publish(replay.finish(), size_bytes)


async def _load_newest(state: ClusterState, metadata_log: MetadataLog, blocking: Blocking) -> None:
    newest = metadata_log.snapshots.newest
    assert newest is not None, "a log does not begin later than its newest snapshot"
    replay = await read_snapshot(metadata_log, newest, blocking)
    state.transactions = Transactions()
    state.publish(difference(state.image, replay.finish().image), 0)


async def read_snapshot(
    metadata_log: MetadataLog, snapshot: SnapshotId, blocking: Blocking
) -> Replay:
    """A snapshot replayed. Raises InvalidMetadata, OSError."""
    contents = await blocking(metadata_log.snapshots.read, snapshot)
    replay = Replay()
    await in_steps(
        replay.snapshot_in_steps(
            contents.batches(), end_offset=snapshot.end_offset, epoch=snapshot.epoch
        )
    )
    return replay


async def in_steps(steps: Iterator[None]) -> None:
    for _ in steps:
        await trio.lowlevel.checkpoint()
