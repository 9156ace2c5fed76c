"""Generates snapshots of the metadata image and deletes old ones (KIP-630; Kafka's
`SnapshotGenerator`).

Every node takes its own snapshots of committed state. None is taken during a metadata transaction,
whose records are not in the image.
"""

from __future__ import annotations

import logging
from itertools import islice
from typing import Final

import trio

from odradek.protocol.errors import KafkaError
from odradek.protocol.schemas.serde import encode_metadata_record
from odradek.replication.controller.features import record_version
from odradek.replication.controller.image import MetadataImage
from odradek.replication.controller.image_records import snapshot_records
from odradek.replication.raft.bootstrap import quorum_records
from odradek.replication.raft.metadata_log import MetadataLog, MetadataLogSettings
from odradek.replication.raft.metadata_log_writer import Blocking, MetadataLogWriter
from odradek.replication.raft.metadata_state import MetadataState
from odradek.replication.raft.snapshots import SnapshotId, SnapshotWriter
from odradek.replication.raft.voter_history import VoterHistory
from odradek.seams.clock import Clock
from odradek.seams.containment import Containment

log = logging.getLogger("odradek.metadata")

BATCH_RECORDS: Final = 500
RECORDS_A_STEP: Final = 50  # encoded without a checkpoint
CHECK_SECONDS: Final = 60.0
RETRY_SECONDS: Final = 10.0
"""Retry interval after a failed snapshot."""


class SnapshotGenerator:
    """Takes snapshots by size and interval; excludes concurrent installs of fetched snapshots."""

    def __init__(
        self,
        state: MetadataState,
        metadata_log: MetadataLog,
        history: VoterHistory,
        settings: MetadataLogSettings,
        *,
        clock: Clock,
        blocking: Blocking,
        log_writer: MetadataLogWriter,
    ) -> None:
        self._state = state
        self._log = metadata_log
        self._history = history
        self._settings = settings
        self._clock = clock
        self._blocking = blocking
        self._log_writer = log_writer
        self._covered_bytes = 0  # bytes of the log that the newest snapshot contains
        self._last_at = clock.monotonic()
        self._wanted = trio.Event()
        self._containment: Containment[str] = Containment(
            "the metadata snapshot",
            consequence="another snapshot is attempted after a pause",
            expected=(OSError, KafkaError),
        )

    async def run(self) -> None:
        """Take snapshots when they are due, until cancelled."""
        while True:
            with trio.move_on_after(CHECK_SECONDS):
                await self._wanted.wait()
            self._wanted = trio.Event()
            if self._is_due():
                try:
                    await self._containment.run(str(self._log.directory), self.take)
                except (OSError, KafkaError) as error:
                    # the log has all records, and the next attempt may find more space
                    log.error(
                        "could not write a metadata snapshot in %s: %s",
                        self._log.directory.parent,
                        error,
                    )
                    await trio.sleep(RETRY_SECONDS)

    def log_has_grown(self) -> None:
        if self._is_due():
            self._wanted.set()

    def _is_due(self) -> bool:
        since_bytes = self._state.applied_bytes - self._covered_bytes
        if since_bytes == 0 or self._state.transactions.open:
            return False
        if since_bytes >= self._settings.snapshot_bytes:
            return True
        since = self._clock.monotonic() - self._last_at
        return since * 1000 >= self._settings.snapshot_interval_ms

    async def take(self) -> SnapshotId | None:
        """Write a snapshot of the committed image; None if a newer one exists."""
        image, covered = self._state.image, self._state.applied_bytes
        snapshot = SnapshotId(image.offset + 1, image.epoch)
        if self._is_superseded(snapshot) or self._state.transactions.open:
            return None
        writer = self._log.snapshots.writer(
            snapshot,
            now_ms=self._clock.wall_ms(),
            timestamp_ms=image.timestamp_ms,
            control=quorum_records(*self._history.at(snapshot.end_offset)),
        )
        try:
            await _write_image(writer, image)
            async with self._log_writer.publishing:
                if self._is_superseded(snapshot):  # a newer one was fetched from the leader
                    self._log.snapshots.discard(writer)
                    return None
                await self._blocking(self._log.snapshots.publish, snapshot, writer)
        except BaseException:
            self._log.snapshots.discard(writer)
            raise
        self._covered_bytes = covered
        self._last_at = self._clock.monotonic()
        await self._prune()
        return snapshot

    def _is_superseded(self, snapshot: SnapshotId) -> bool:
        newest = self._log.snapshots.newest
        return newest is not None and newest.end_offset >= snapshot.end_offset

    async def _prune(self) -> None:
        """Delete old snapshots and segments; excludes flushes, which would sync removed files."""
        now_ms = self._clock.wall_ms()
        with trio.CancelScope(shield=True):
            async with self._log_writer.flushing:
                dropped = await self._blocking(self._log.snapshots_to_remove, now_ms)
                self._log.forget(dropped, now_ms)
                self._history.compact(self._log.start_offset)
                await self._blocking(self._log.remove, dropped, now_ms)


async def _write_image(writer: SnapshotWriter, image: MetadataImage) -> None:
    """Write the records of an image in batches, with other tasks in between."""
    records = snapshot_records(image)
    values: list[bytes] = []
    while step := list(islice(records, RECORDS_A_STEP)):
        values += [
            encode_metadata_record(record, record_version(record, image.features))
            for record in step
        ]
        if len(values) >= BATCH_RECORDS:
            writer.append(values)
            values = []
        await trio.lowlevel.checkpoint()
    writer.append(values)
    writer.end()
