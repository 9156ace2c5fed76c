"""The `__cluster_metadata-0` directory: batches in Kafka's framing, snapshots beside them.

The log underneath is a partition's like any other; what differs is who appends (this node, as the
leader of an epoch), what is deleted (segments below a snapshot, never by time or size alone), and
that each epoch begins with a control batch that names its leader. Everything here blocks or computes;
`metadata.py` decides when.

What is on the disk after recovery is what counts: a torn tail is cut by the log's own recovery, and the rest
is synced, with its names, before anybody is told of it. For the process before may have been killed with it in
memory: what this one said in votes and fetches, or counted as the leader, a power cut would take back. What
was durable before and is not whole now is damage (`recovery_point.py`): the only copy of a log is not cut. If
the newest snapshot ends past the log, or in a later epoch than any in it, the log is emptied and goes
on from there: the snapshot came from a leader, and a crash kept the log from following.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from itertools import takewhile
from typing import Any, Final
from uuid import UUID

from odradek.protocol.errors import CorruptBatch
from odradek.protocol.records.batch import Batch, batches
from odradek.protocol.records.control import ControlType, kraft_control_batch
from odradek.protocol.records.records import Record, build_batch
from odradek.replication.controller.image import InvalidMetadata
from odradek.replication.raft.errors import BatchTooLarge
from odradek.replication.raft.messages import EpochEndOffset
from odradek.replication.raft.quorum_state_store import QuorumStateStore
from odradek.replication.raft.snapshots import SnapshotDownload, SnapshotId, SnapshotStore
from odradek.seams.clock import Clock
from odradek.seams.files import Buffer, Files, Path
from odradek.seams.values import value_class
from odradek.storage.directories.checkpoints import Checkpoint, CorruptCheckpoint, format, parse
from odradek.storage.directories.failure import takes_offline
from odradek.storage.directories.names import TopicPartition
from odradek.storage.errors import DamagedLog, DiskFull, InconsistentTopicId, LogFailed
from odradek.storage.log.config import DAY_MS, INT64_MAX, LogConfig
from odradek.storage.log.file_names import LOG, METADATA
from odradek.storage.log.partition_log import AppendOrigin, PartitionLog
from odradek.storage.log.partition_metadata import CorruptMetadata

log = logging.getLogger("odradek.metadata")

TOPIC: Final = "__cluster_metadata"
TOPIC_ID: Final = UUID(int=1)
DIRECTORY: Final = f"{TOPIC}-0"
MAX_BATCH_BYTES: Final = 8 * 1024 * 1024
ID_REMEDY: Final = f"remove {METADATA}, which is the same everywhere and will be written anew"
DAMAGE_REMEDY: Final = (
    "bring the files back from a copy, or remove {} to go on with what is before the damage"
)
BOTH_REMEDY: Final = (
    "bring the files back from a copy, or, where other controllers have the metadata, begin anew with an "
    "empty directory, as another voter"
)
CHECKPOINT_S: Final = 10.0
"""How often it is written down, while the node runs, what is on the disk."""
RECOVERY_POINT: Final = Checkpoint.RECOVERY_POINT.value
READ_BYTES: Final = 1024 * 1024
READ_ON_LOOP_BYTES: Final = 64 * 1024
"""They are parsed there, too, and others wait."""


@value_class
class MetadataLogSettings:
    """Kafka's `metadata.log.*` and `metadata.max.*` configs, with its defaults."""

    segment_bytes: int = 1024 * 1024 * 1024
    segment_ms: int = 7 * DAY_MS
    snapshot_bytes: int = 20 * 1024 * 1024  # a snapshot after so many bytes of records …
    snapshot_interval_ms: int = 3_600_000  # … or after so long, if there were any
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
    """See the module. `directory` is the node's metadata log directory; `open` first."""

    _log: PartitionLog

    def __init__(
        self,
        files: Files,
        directory: Path,
        clock: Clock,
        settings: MetadataLogSettings,
        on_full: Callable[[OSError], None] = lambda error: None,
    ) -> None:
        """`on_full` is called, from any thread, when something is refused because the disk is full."""
        self._files = files
        self._clock = clock
        self._settings = settings
        self._on_full = on_full
        self.directory = directory / DIRECTORY
        self.snapshots = SnapshotStore(files, self.directory)
        self.quorum_state = QuorumStateStore(files, self.directory)
        self._recovery_point = RecoveryPointFile(files, self.directory, TopicPartition(TOPIC, 0))
        self._checkpoint_due_s = 0.0
        self.appended_ms = -1
        """The timestamp of the last batch that this node appended as the leader."""

    def open(self, is_only_copy: Callable[[Iterable[Batch]], bool] = lambda whole: False) -> None:
        """Recover the log and find the snapshots; durable when it returns.

        Where it is damaged below what was synced, `is_only_copy` is asked, of what is `whole` before that:
        nothing is cut then. Else it is cut there, and fetched again. Raises InvalidMetadata, OSError, LogFailed.
        """
        self.snapshots.load()
        self._recovery_point.load()
        synced, newest = self._recovery_point.offset, self.snapshots.newest
        if newest is not None and newest.end_offset >= synced:
            synced = 0  # the snapshot has it all
        try:
            self._log = self._recover(required_end_offset=synced)
        except DamagedLog as error:
            self._require_other_copy(error, is_only_copy)
            log.error("%s; they are fetched again", error.message)
            self._log = self._recover(required_end_offset=0)
        self._sync()
        start = self._log.log_start_offset
        if start > 0 and (newest is None or newest.end_offset < start):
            raise InvalidMetadata(
                f"{self.directory} begins at offset {start}, and no snapshot holds what was before"
            )
        latest = self._log.epochs.latest or 0
        if newest is not None and (
            newest.end_offset > self._log.end_offset
            or (newest.epoch > latest and newest.end_offset > start)
        ):
            self._log.truncate_fully_and_start_at(newest.end_offset)
        self._log.advance_high_watermark(self._log.end_offset)
        self._checkpoint()

    def _require_other_copy(
        self, damage: DamagedLog, is_only_copy: Callable[[Iterable[Batch]], bool]
    ) -> None:
        """Raises InvalidMetadata where nobody else has what would be cut, or nothing tells who has."""
        try:
            is_alone = is_only_copy(self._whole(damage.end_offset))
        except InvalidMetadata as error:
            raise InvalidMetadata(f"{damage.message}; and {error}: {BOTH_REMEDY}") from None
        if is_alone:
            remedy = DAMAGE_REMEDY.format(self._recovery_point.path)
            raise InvalidMetadata(f"{damage.message}: {remedy}")

    def _recover(self, required_end_offset: int) -> PartitionLog:
        """Raises DamagedLog, with nothing cut, if less is whole. Else as `open`."""
        try:
            return PartitionLog.open(
                self._files,
                self.directory,
                topic=TOPIC,
                partition=0,
                topic_id=TOPIC_ID,
                config=self._settings.log_config(),
                clock=self._clock,
                clean=False,
                on_full=lambda _, error: self._on_full(error),
                on_checkpoint_due=lambda log: self._recovery_point.write(log.recovery_point),
                required_end_offset=required_end_offset,
            )
        except (CorruptMetadata, InconsistentTopicId) as error:
            raise InvalidMetadata(f"{self.directory}: {error}: {ID_REMEDY}") from None

    def _whole(self, end_offset: int) -> Iterator[Batch]:
        """The newest snapshot, and what the log's files have from there to `end_offset`, where they are
        damaged. Raises InvalidMetadata, OSError."""
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
        """All that is here, whoever has written it."""
        with suppress(DiskFull):  # of the epochs' file alone, after the records, which say the same
            self._log.flush()
        for directory in (self.directory, self.directory.parent):
            self._files.sync_directory(directory)

    def _checkpoint(self) -> None:
        """Where there is no room, later. Raises LogFailed."""
        self._checkpoint_due_s = self._clock.monotonic() + CHECKPOINT_S
        try:
            self._recovery_point.write(self._log.recovery_point)
        except OSError as error:
            if takes_offline(error, undone=True):
                raise LogFailed(f"{self.directory} is offline: {error}") from error

    @property
    def end_offset(self) -> int:
        return self._log.end_offset

    @property
    def start_offset(self) -> int:
        return self._log.log_start_offset

    # The log as the quorum's state machine sees it (`log_view.py`)

    @property
    def last_epoch(self) -> int:
        latest, newest = self._log.epochs.latest, self.snapshots.newest
        if latest is not None:
            return latest
        return 0 if newest is None else newest.epoch

    @property
    def earliest_snapshot(self) -> SnapshotId | None:
        """Not those that are about to go (`forget`): the log does not follow on them any more."""
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
        """All batches from `offset` to the end, by the megabyte."""
        while offset < self._log.end_offset:
            found = self.batches_at(offset, self._log.end_offset)
            yield found
            offset = found[-1].next_offset

    def batches_at(self, offset: int, up_to: int, *, nowait: bool = False) -> list[Batch]:
        """A megabyte of batches from `offset` on, at least one, all below `up_to`; blocks. With `nowait`
        (on the loop) fewer of them, and WouldBlock if they are not in memory."""
        max_bytes = READ_ON_LOOP_BYTES if nowait else READ_BYTES
        read = self._log.read(offset, max_bytes, limit=up_to, nowait=nowait)
        part = read.slice
        if part is None:
            raise InvalidMetadata(f"{self.directory} holds nothing at offset {offset}")
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
            raise InvalidMetadata(f"{self.directory} holds no batch with offset {offset}")
        return found

    def append(self, values: Sequence[bytes], epoch: int) -> tuple[int, int]:
        """Encoded metadata records as one batch; the offset of the last, and the batch's bytes.

        Raises BatchTooLarge, and DiskFull or LogFailed of the log.
        """
        now_ms = self._clock.wall_ms()
        records = [Record(-1, now_ms, None, value) for value in values]
        batch = build_batch(records, base_offset=self._log.end_offset, leader_epoch=epoch)
        if len(batch) > MAX_BATCH_BYTES:
            raise BatchTooLarge(f"{len(batch)} bytes of records; at most {MAX_BATCH_BYTES} fit")
        return self._append(batch, epoch, now_ms), len(batch)

    def append_control(self, records: list[tuple[ControlType, Any]], epoch: int) -> int:
        """Control records as one batch; the offset of the last."""
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
        """Append what the leader of `epoch` sent, if it follows on the log's end; the batches.

        Batches of a later epoch are left out. Raises CorruptBatch, CorruptRecords, UnexpectedOffset,
        and DiskFull or LogFailed of the log.
        """
        view = memoryview(records)
        first = next(batches(view, allow_partial=True), None)
        if first is None or first.base_offset != self._log.end_offset:
            return []
        appended = self._log.append_as_follower(view, leader_epoch=epoch)
        given = batches(view, allow_partial=True)
        return list(takewhile(lambda each: each.last_offset <= appended.last_offset, given))

    def truncate(self, end_offset: int) -> None:
        """Cut the log to this end; blocks."""
        self._log.truncate_to(end_offset)

    def install(self, download: SnapshotDownload) -> None:
        """A snapshot that came from the leader takes the log's place; blocks.

        1. The snapshot, durably (`SnapshotStore.publish`). A crash: `open` goes on at 2.
        2. The log is empty, at the snapshot's end.
        3. Older snapshots go.
        """
        snapshot = download.snapshot
        self.snapshots.publish(snapshot, download)
        self._log.truncate_fully_and_start_at(snapshot.end_offset)
        for older in [each for each in self.snapshots.ids if each < snapshot]:
            self.snapshots.remove(older)

    def read(self, offset: int, max_bytes: int, *, nowait: bool = False) -> bytes:
        """Batches from `offset` to the end, committed or not, at least one if there is any.

        With `nowait` (on the loop) WouldBlock, if they are not in memory. Raises OffsetOutOfRange,
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
        """All that was appended before this call is durable when it returns; blocks."""
        self._log.flush()
        if self._clock.monotonic() >= self._checkpoint_due_s:
            self._checkpoint()

    def committed(self, high_watermark: int) -> None:
        self._log.advance_high_watermark(high_watermark)

    # Retention, in three steps; none beside a flush

    def snapshots_to_remove(self, now_ms: int) -> list[SnapshotId]:
        """The oldest snapshots, that retention does not keep; the newest always stays. Blocks."""
        return snapshots_to_drop(
            [(each, self.snapshots.sizes[each], self.timestamp_ms(each)) for each in self._ids()],
            log_bytes=self._log.size_bytes,
            now_ms=now_ms,
            settings=self._settings,
        )

    def forget(self, dropped: Sequence[SnapshotId], now_ms: int) -> None:
        """The log's start moves past the `dropped`, before they go: at any crash what is left of the
        log follows on a snapshot. On the loop, as appends."""
        if dropped:
            start = self.snapshots.ids[len(dropped)].end_offset
            self._log.advance_log_start(start, "snapshot")
            self._log.delete_expired(now_ms)

    def remove(self, dropped: Sequence[SnapshotId], now_ms: int) -> None:
        """Unlink them, and the segments that are due. Blocks."""
        for snapshot in dropped:
            self.snapshots.remove(snapshot)
        self._log.remove_deleted(now_ms)

    def _ids(self) -> list[SnapshotId]:
        return list(self.snapshots.ids)

    def timestamp_ms(self, snapshot: SnapshotId) -> int:
        """When the last record in a snapshot was written."""
        return self.snapshots.timestamp_ms(snapshot)

    def close(self) -> None:
        self._log.close(clean=True)
        self._checkpoint()


def snapshots_to_drop(
    snapshots: Sequence[tuple[SnapshotId, int, int]],
    *,
    log_bytes: int,
    now_ms: int,
    settings: MetadataLogSettings,
) -> list[SnapshotId]:
    """Which of the oldest snapshots go: (id, bytes, timestamp in ms) each, oldest first.

    By age first, then by the size of all together; never the newest.
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


class RecoveryPointFile:
    """The file in the metadata log's directory, `of` which partition's log it tells."""

    def __init__(self, files: Files, directory: Path, of: TopicPartition) -> None:
        self._files = files
        self._of = of
        self.path = directory / RECOVERY_POINT
        self.offset = 0
        """What the file says."""

    def load(self) -> None:
        """One that is not there, or makes no sense, says nothing. Raises OSError."""
        if not self._files.exists(self.path):
            return
        try:
            self.offset = parse(self._files.read(self.path)).get(self._of, 0)
        except CorruptCheckpoint as error:
            log.warning("%s: %s; it is written anew", self.path, error)

    def write(self, offset: int) -> None:
        """All below `offset` is durable; that is known durably when this returns. Raises OSError."""
        if offset != self.offset:
            self._files.write_new(self.path, format({self._of: offset}))
            self.offset = offset
