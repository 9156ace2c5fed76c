"""The metadata log: the directory `__cluster_metadata-0` with its segments and snapshots (Kafka's
`KafkaRaftLog`).

It is a partition log with three differences: this node appends as the leader of an epoch, segments are
only deleted below a snapshot, and each epoch starts with a LeaderChangeMessage. Methods block unless
called with `nowait`; the callers decide when to run them.

- `open` flushes the log after recovery, before its end offset is reported in votes and fetches: the
  previous process may have left records in the page cache only.
- Recovery truncates a torn tail. Missing records below the recovery point are damage. They are only
  truncated if another voter has a copy.
- A log that ends before `acknowledged_end` has lost synced records. Until they are fetched again, this voter
  starts no election, and votes only for logs that end at or after it (`raft_log.election_end`).
- If the newest snapshot ends after the log, or has a later epoch, the log restarts at the snapshot's end.
  A crash during `install` leaves this state.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from itertools import takewhile
from typing import Any, Final
from uuid import UUID

from odradek.protocol.errors import CorruptBatch
from odradek.protocol.records.batch import Batch, batches
from odradek.protocol.records.control import ControlType, kraft_control_batch
from odradek.protocol.records.records import Record, build_batch
from odradek.protocol.topics import TopicPartition
from odradek.replication.controller.image import InvalidMetadata
from odradek.replication.raft.durable_ends import AcknowledgedEndFile, RecoveryPointFile
from odradek.replication.raft.election_state import OffsetAndEpoch
from odradek.replication.raft.errors import BatchTooLarge
from odradek.replication.raft.messages import EpochEndOffset
from odradek.replication.raft.quorum_state_store import QuorumStateStore
from odradek.replication.raft.snapshots import SnapshotDownload, SnapshotId, SnapshotStore
from odradek.seams.clock import Clock
from odradek.seams.files import Buffer, Files, Path
from odradek.seams.values import value_class
from odradek.storage.directories.io_errors import takes_offline
from odradek.storage.errors import DamagedLog, DiskFull, InconsistentTopicId, LogFailed
from odradek.storage.log.config import DAY_MS, INT64_MAX, LogConfig
from odradek.storage.log.file_names import LOG, METADATA
from odradek.storage.log.partition_log import (
    AppendOrigin,
    LogEnvironment,
    PartitionLog,
    RecoveryOptions,
)
from odradek.storage.log.partition_metadata import CorruptMetadata

log = logging.getLogger("odradek.metadata")

TOPIC: Final = "__cluster_metadata"
TOPIC_ID: Final = UUID(int=1)
DIRECTORY: Final = f"{TOPIC}-0"
MAX_BATCH_BYTES: Final = 8 * 1024 * 1024
ID_REMEDY: Final = f"remove {METADATA}; it is the same on every node and is created again"
DAMAGE_REMEDY: Final = (
    "restore the files from a copy, or remove {} to continue with the records before the damage"
)
BOTH_REMEDY: Final = (
    "restore the files from a copy, or, if other controllers have the metadata, start with an empty "
    "directory, as another voter"
)
CHECKPOINT_S: Final = 10.0
"""Interval between checkpoints of the recovery point, in seconds."""
READ_BYTES: Final = 1024 * 1024
READ_ON_LOOP_BYTES: Final = 64 * 1024
"""Read size on the event loop, where the batches are parsed as well."""


@value_class
class MetadataLogSettings:
    """Kafka's `metadata.log.*` and `metadata.max.*` configs, with its defaults."""

    segment_bytes: int = 1024 * 1024 * 1024
    segment_ms: int = 7 * DAY_MS
    snapshot_bytes: int = 20 * 1024 * 1024  # a snapshot after this many bytes of records
    snapshot_interval_ms: int = 3_600_000  # or after this time, if there are new records
    retention_bytes: int = 100 * 1024 * 1024  # of log and snapshots; -1 is no limit
    retention_ms: int = 7 * DAY_MS  # of snapshots but the newest; -1 is no limit

    def log_config(self) -> LogConfig:
        return LogConfig(
            segment_bytes=self.segment_bytes,
            segment_ms=self.segment_ms,
            max_message_bytes=MAX_BATCH_BYTES,
            retention_bytes=-1,
            retention_ms=-1,
            message_timestamp_after_max_ms=INT64_MAX,
        )


class MetadataLog:
    """Log of the partition `__cluster_metadata-0` in `directory`; call `open` first."""

    _log: PartitionLog

    def __init__(
        self,
        files: Files,
        directory: Path,
        clock: Clock,
        settings: MetadataLogSettings,
        on_full: Callable[[OSError], None] = lambda error: None,
    ) -> None:
        """`on_full` is called, from any thread, when a write fails because the disk is full."""
        self._files = files
        self._clock = clock
        self._settings = settings
        self._on_full = on_full
        self.directory = directory / DIRECTORY
        self.snapshots = SnapshotStore(files, self.directory)
        self.quorum_state = QuorumStateStore(files, self.directory)
        self._recovery_point = RecoveryPointFile(files, self.directory, TopicPartition(TOPIC, 0))
        self._acknowledged_end = AcknowledgedEndFile(files, self.directory)
        self._started_with_loss = False
        """Whether records were lost at the start and have not been fetched again."""
        self._checkpoint_due_s = 0.0
        self.appended_ms = -1
        """Timestamp of the last batch that this node appended as leader, in ms."""

    def open(self, is_only_copy: Callable[[Iterable[Batch]], bool] = lambda intact: False) -> None:
        """Recover the log and list the snapshots; everything is durable when this returns.

        If the log is damaged below the recovery point, `is_only_copy` is called with the intact
        batches. If it returns True, this raises InvalidMetadata. Otherwise the log is truncated at
        the damage, and the leader's copy is fetched. Raises InvalidMetadata, OSError, LogFailed.
        """
        self.snapshots.load()
        self._recovery_point.load()
        self._acknowledged_end.load()
        synced, newest = self._recovery_point.offset, self.snapshots.newest
        if newest is not None and newest.end_offset >= synced:
            synced = 0  # the snapshot contains these records
        try:
            self._log = self._recover(required_end_offset=synced)
        except DamagedLog as error:
            self._require_other_copy(error, is_only_copy)
            log.error("%s; they are fetched from the leader again", error.message)
            self._log = self._recover(required_end_offset=0)
            self._remember_loss(synced)
        self._sync()
        start = self._log.log_start_offset
        if start > 0 and (newest is None or newest.end_offset < start):
            raise InvalidMetadata(
                f"{self.directory} starts at offset {start}, and no snapshot contains the records before it"
            )
        latest = self._log.epochs.latest or 0
        if newest is not None and (
            newest.end_offset > self._log.end_offset
            or (newest.epoch > latest and newest.end_offset > start)
        ):
            self._log.truncate_fully_and_start_at(newest.end_offset)
        self._log.advance_high_watermark(self._log.end_offset)
        self._started_with_loss = self.has_lost_records
        self._checkpoint()

    def _remember_loss(self, synced: int) -> None:
        """Remember that the log ended at `synced`, if the file of the acknowledged end is missing. The epoch is at
        least that of the last remaining record."""
        with self._tolerate_full_disk():
            self._acknowledged_end.remember(OffsetAndEpoch(self.last_epoch, synced))

    def _require_other_copy(
        self, damage: DamagedLog, is_only_copy: Callable[[Iterable[Batch]], bool]
    ) -> None:
        """Raise InvalidMetadata if no other voter has the damaged records, or the voters are unknown."""
        try:
            is_only = is_only_copy(self._intact_batches(damage.end_offset))
        except InvalidMetadata as error:
            raise InvalidMetadata(f"{damage.message}; and {error}: {BOTH_REMEDY}") from None
        if is_only:
            remedy = DAMAGE_REMEDY.format(self._recovery_point.path)
            raise InvalidMetadata(f"{damage.message}: {remedy}")

    def _recover(self, required_end_offset: int) -> PartitionLog:
        """Open the log; raise DamagedLog without truncation if it is damaged below
        `required_end_offset`."""
        try:
            partition_log = PartitionLog.open(
                LogEnvironment(self._files, self._clock),
                self.directory,
                TopicPartition(TOPIC, 0),
                self._settings.log_config(),
                topic_id=TOPIC_ID,
                recovery=RecoveryOptions(clean=False, required_end_offset=required_end_offset),
            )
        except (CorruptMetadata, InconsistentTopicId) as error:
            raise InvalidMetadata(f"{self.directory}: {error}: {ID_REMEDY}") from None
        partition_log.on_full = lambda error: self._on_full(error)
        partition_log.on_checkpoint_due = lambda: self._recovery_point.write(
            partition_log.recovery_point
        )
        return partition_log

    def _intact_batches(self, end_offset: int) -> Iterator[Batch]:
        """Batches of the newest snapshot, then those of the log up to the damage at `end_offset`.

        Raises InvalidMetadata, OSError.
        """
        newest, start = self.snapshots.newest, 0
        if newest is not None:
            start = newest.end_offset
            yield from self.snapshots.read(newest).batches()
        with suppress(CorruptBatch):
            for name in self._files.list(self.directory):
                if name.endswith(LOG):
                    data = memoryview(self._files.read(self.directory / name))
                    for batch in batches(data, check=True):
                        if start <= batch.last_offset < end_offset:
                            yield batch

    def _sync(self) -> None:
        """Make the log, its files and their directory entries durable."""
        # DiskFull is only raised for the leader epoch file, which can be rebuilt from the records
        with suppress(DiskFull):
            self._log.flush()
        for directory in (self.directory, self.directory.parent):
            self._files.sync_directory(directory)

    def _checkpoint(self) -> None:
        """Write the recovery point; skipped while the disk is full. Raises LogFailed."""
        self._checkpoint_due_s = self._clock.monotonic() + CHECKPOINT_S
        with self._tolerate_full_disk():
            self._advance_acknowledged_end()
            self._acknowledged_end.sync()
        with self._tolerate_full_disk():
            self._recovery_point.write(self._log.recovery_point)

    @contextmanager
    def _tolerate_full_disk(self) -> Iterator[None]:
        """Ignore a full disk, at which the files keep earlier offsets. Raises LogFailed for other errors."""
        try:
            yield
        except OSError as error:
            if takes_offline(error, files_unchanged=True):
                raise LogFailed(f"{self.directory} is offline: {error}") from error

    # Synced records

    @property
    def acknowledged_end(self) -> OffsetAndEpoch:
        """Largest log end that this node has reported as durable. The log ends before it if records were lost."""
        return self._acknowledged_end.end

    @property
    def has_lost_records(self) -> bool:
        return self.acknowledged_end > self._log_end

    @property
    def _log_end(self) -> OffsetAndEpoch:
        return OffsetAndEpoch(self.last_epoch, self.end_offset)

    def _advance_acknowledged_end(self) -> None:
        """Store the end of the flushed log. Raises OSError."""
        offset = self._log.recovery_point
        if offset > self.start_offset:
            self._acknowledged_end.advance(OffsetAndEpoch(self._epoch_before(offset), offset))
        if self._started_with_loss and not self.has_lost_records:
            self._started_with_loss = False
            log.info("%s has fetched the lost records, up to offset %d", self.directory, offset)

    def _epoch_before(self, offset: int) -> int:
        """Epoch of the record before `offset`, or of the snapshot that ends there; 0 if there is neither."""
        epoch = self._log.epochs.epoch_for(offset - 1)
        if epoch is not None:
            return epoch
        newest = self.snapshots.newest
        return 0 if newest is None or newest.end_offset != offset else newest.epoch

    def accept_loss(self) -> None:
        """Continue without the lost records, because there is no other voter. Raises OSError, LogFailed."""
        with self._tolerate_full_disk():
            self._acknowledged_end.limit(self._log_end)

    @property
    def end_offset(self) -> int:
        return self._log.end_offset

    @property
    def start_offset(self) -> int:
        return self._log.log_start_offset

    # Read access for the state machine (`RaftLog`)

    @property
    def last_epoch(self) -> int:
        latest, newest = self._log.epochs.latest, self.snapshots.newest
        if latest is not None:
            return latest
        return 0 if newest is None else newest.epoch

    @property
    def earliest_snapshot(self) -> SnapshotId | None:
        """Oldest snapshot that the log continues. Those that `forget` has dropped end before its start."""
        start = self.start_offset
        return next((each for each in self.snapshots.ids if each.end_offset >= start), None)

    @property
    def latest_snapshot(self) -> SnapshotId | None:
        return self.snapshots.newest

    def snapshot_size(self, snapshot_id: SnapshotId) -> int | None:
        return self.snapshots.sizes.get(snapshot_id)

    def end_of_epoch(self, epoch: int) -> EpochEndOffset:
        found = self._log.epochs.end_offset_for(epoch)
        if found.epoch < 0:
            return EpochEndOffset(self.last_epoch, self.end_offset)
        return EpochEndOffset(found.epoch, found.end_offset)

    @property
    def size_bytes(self) -> int:
        return self._log.size_bytes

    def batches(self, offset: int) -> Iterator[list[Batch]]:
        """All batches from `offset` to the log end, in lists of about 1 MiB."""
        while offset < self._log.end_offset:
            found = self.batches_at(offset, self._log.end_offset)
            yield found
            offset = found[-1].next_offset

    def batches_at(self, offset: int, up_to: int, *, nowait: bool = False) -> list[Batch]:
        """About 1 MiB of batches from `offset` on, at least one, all below `up_to`; blocks.

        With `nowait`, about 64 KiB; raises WouldBlock if they are not in memory.
        """
        max_bytes = READ_ON_LOOP_BYTES if nowait else READ_BYTES
        read = self._log.read(offset, max_bytes, limit=up_to, nowait=nowait)
        part = read.slice
        if part is None:
            raise InvalidMetadata(f"{self.directory} has no records at offset {offset}")
        try:
            data = part.file.read_at(part.position, part.size, nowait=nowait)
        finally:
            part.file.unpin()
        found = [
            batch
            for batch in batches(memoryview(data), allow_partial=True)
            if offset <= batch.last_offset < up_to
        ]
        if not found:
            raise InvalidMetadata(f"{self.directory} has no batch with offset {offset}")
        return found

    def append(self, values: Sequence[bytes], epoch: int) -> tuple[int, int]:
        """Append encoded metadata records as one batch; returns its last offset and size in bytes.

        Raises BatchTooLarge, DiskFull, LogFailed.
        """
        now_ms = self._clock.wall_ms()
        records = [Record(-1, now_ms, None, value) for value in values]
        batch = build_batch(records, base_offset=self._log.end_offset, leader_epoch=epoch)
        if len(batch) > MAX_BATCH_BYTES:
            raise BatchTooLarge(
                f"{len(batch)} bytes of records; the maximum batch size is {MAX_BATCH_BYTES}"
            )
        return self._append(batch, epoch, now_ms), len(batch)

    def append_control(self, records: list[tuple[ControlType, Any]], epoch: int) -> int:
        """Append control records as one batch; returns its last offset. Raises DiskFull, LogFailed."""
        now_ms = self._clock.wall_ms()
        batch = kraft_control_batch(
            records, timestamp_ms=now_ms, base_offset=self._log.end_offset, leader_epoch=epoch
        )
        return self._append(batch, epoch, now_ms)

    def _append(self, batch: bytearray, epoch: int, now_ms: int) -> int:
        appended = self._log.append_as_leader(
            memoryview(batch), leader_epoch=epoch, now_ms=now_ms, origin=AppendOrigin.RAFT
        )
        self.appended_ms = now_ms
        return appended.last_offset

    def append_fetched(self, records: Buffer, epoch: int) -> list[Batch]:
        """Append records that the leader of `epoch` sent; returns the appended batches.

        Nothing is appended unless they start at the log end. Batches of a later epoch are skipped.
        Raises CorruptBatch, CorruptRecords, UnexpectedOffset, DiskFull, LogFailed.
        """
        view = memoryview(records)
        first = next(batches(view, allow_partial=True), None)
        if first is None or first.base_offset != self._log.end_offset:
            return []
        appended = self._log.append_as_follower(view, leader_epoch=epoch)
        given = batches(view, allow_partial=True)
        return list(takewhile(lambda each: each.last_offset <= appended.last_offset, given))

    def truncate(self, end_offset: int) -> None:
        """Truncate the log to `end_offset`, because the leader's log diverges there; blocks.

        The leader has all committed records, so the acknowledged end is lowered too. It is lowered first: a crash in
        between must not look like a loss. Raises OSError, DiskFull and NoDescriptors with nothing changed, LogFailed.
        """
        self._acknowledged_end.limit(OffsetAndEpoch(self._epoch_before(end_offset), end_offset))
        self._log.truncate_to(end_offset)
        self._acknowledged_end.limit(self._log_end)  # a whole batch may have been removed

    def install(self, download: SnapshotDownload) -> None:
        """Replace the log by a snapshot of the leader; blocks.

        1. Publish the snapshot durably. After a crash, `open` continues with 2.
        2. Truncate the log fully, and start it at the snapshot's end.
        3. Remove older snapshots.
        """
        snapshot = download.snapshot
        self.snapshots.publish(snapshot, download)
        self._log.truncate_fully_and_start_at(snapshot.end_offset)
        for older in [each for each in self.snapshots.ids if each < snapshot]:
            self.snapshots.remove(older)

    def read(self, offset: int, max_bytes: int, *, nowait: bool = False) -> bytes:
        """Batches from `offset` on, uncommitted ones included: at least one, empty at the log end.

        With `nowait`, raises WouldBlock if they are not in memory. Raises OffsetOutOfRange,
        CorruptRecords, LogFailed.
        """
        end = self._log.end_offset
        if offset >= end:
            return b""
        read = self._log.read(offset, max_bytes, limit=end, nowait=nowait)
        if read.slice is None:
            return b""
        try:
            part = read.slice
            return bytes(part.file.read_at(part.position, part.size, nowait=nowait))
        finally:
            read.slice.file.unpin()

    def flush(self) -> None:
        """Make all records appended before this call durable; blocks. Raises DiskFull, LogFailed."""
        self._log.flush()
        with self._tolerate_full_disk():
            self._advance_acknowledged_end()
        if self._clock.monotonic() >= self._checkpoint_due_s:
            self._checkpoint()

    def committed(self, high_watermark: int) -> None:
        self._log.advance_high_watermark(high_watermark)

    # Retention in three steps, none during a flush

    def snapshots_to_remove(self, now_ms: int) -> list[SnapshotId]:
        """Oldest snapshots that exceed the retention; never the newest. Blocks."""
        return snapshots_to_drop(
            [(each, self.snapshots.sizes[each], self.timestamp_ms(each)) for each in self._ids()],
            log_bytes=self._log.size_bytes,
            now_ms=now_ms,
            settings=self._settings,
        )

    def forget(self, dropped: Sequence[SnapshotId], now_ms: int) -> None:
        """Advance the log start offset to the oldest snapshot that is kept.

        This precedes `remove`, so that the log continues a snapshot after any crash. Runs on the
        event loop, like appends.
        """
        if dropped:
            start = self.snapshots.ids[len(dropped)].end_offset
            self._log.advance_log_start(start, "snapshot")
            self._log.delete_expired(now_ms)

    def remove(self, dropped: Sequence[SnapshotId], now_ms: int) -> None:
        """Delete the snapshots and the deleted segments. Blocks."""
        for snapshot in dropped:
            self.snapshots.remove(snapshot)
        self._log.remove_deleted(now_ms)

    def _ids(self) -> list[SnapshotId]:
        return list(self.snapshots.ids)

    def timestamp_ms(self, snapshot: SnapshotId) -> int:
        """Timestamp of the last record in a snapshot, in ms."""
        return self.snapshots.timestamp_ms(snapshot)

    def close(self) -> None:
        self._log.close(clean=True)
        self._checkpoint()
        self._acknowledged_end.close()


def snapshots_to_drop(
    snapshots: Sequence[tuple[SnapshotId, int, int]],
    *,
    log_bytes: int,
    now_ms: int,
    settings: MetadataLogSettings,
) -> list[SnapshotId]:
    """Ids of the oldest snapshots to remove, given (id, bytes, timestamp in ms) of each, oldest first.

    A snapshot is removed if it is older than `retention_ms`, or if the log and the remaining snapshots
    exceed `retention_bytes`. The newest is never removed.
    """
    dropped = []
    total = log_bytes + sum(size for _, size, _ in snapshots)
    for snapshot, size, timestamp_ms in snapshots[:-1]:
        too_old = 0 <= settings.retention_ms < now_ms - timestamp_ms
        too_large = 0 <= settings.retention_bytes < total
        if not (too_old or too_large):
            break
        dropped.append(snapshot)
        total -= size
    return dropped
