"""Executes the log and snapshot actions of the Raft state machine on the disk.

Methods that append return the kraft.version and voter changes among the appended records. The driver
runs one action at a time, in order. Truncation and snapshot installation never overlap a flush
(`flushing`).

Fetched records that cannot be appended (corrupt, disk full) are skipped after a pause and fetched again.
Writes that must be durable before the next action are retried until disk space and file descriptors are
available.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Final

from odradek.protocol.errors import CorruptBatch
from odradek.protocol.records.batch import batches
from odradek.protocol.records.control import ControlType
from odradek.replication.controller.image import InvalidMetadata
from odradek.replication.raft.actions import (
    AppendFetchedRecords,
    AppendLeaderChangeMessage,
    AppendVotersRecord,
)
from odradek.replication.raft.bootstrap import quorum_records
from odradek.replication.raft.errors import UnexpectedRaftEvent
from odradek.replication.raft.metadata_batch_loader import control_changes
from odradek.replication.raft.metadata_log import MetadataLog
from odradek.replication.raft.snapshots import SnapshotDownload, SnapshotId
from odradek.replication.raft.voter_history import ControlChange
from odradek.replication.raft.voters import Voter
from odradek.seams import Seams
from odradek.seams.files import OutOfDescriptors
from odradek.seams.locks import PromptLock
from odradek.storage.directories.io_errors import takes_offline
from odradek.storage.errors import (
    CorruptRecords,
    DiskFull,
    NoDescriptors,
    StorageError,
    UnexpectedOffset,
)

log = logging.getLogger("odradek.metadata")

RETRY_SECONDS: Final = 0.1

_NOT_APPENDABLE: Final = (
    CorruptBatch,
    CorruptRecords,
    UnexpectedOffset,
    DiskFull,
    InvalidMetadata,
    NoDescriptors,
)

_NOT_APPENDED: Final = "fetched records cannot be appended to %s: %s"

Blocking = Callable[..., Awaitable[Any]]
"""Runs a function in a worker thread, in the lane of the metadata log directory."""


class MetadataLogWriter:
    """Writes the metadata log and downloaded snapshots. See `RaftClientDriver`."""

    def __init__(self, seams: Seams, metadata_log: MetadataLog, blocking: Blocking) -> None:
        self._seams = seams
        self._log = metadata_log
        self._blocking = blocking
        self._download: SnapshotDownload | None = None
        self._is_abandoned = False
        """Whether the last snapshot download was abandoned because the disk is full."""
        self._last_error: str | None = None
        """Last logged error, so that repetitions are not logged."""
        self.flushing = PromptLock()
        self.publishing = PromptLock()
        """Held while a snapshot is renamed to its final name, generated or fetched."""
        self.retries = False
        """Whether `retry_until_written` retries: only while the node runs."""
        self.durable_end = metadata_log.end_offset
        """Offset below which the log is durable. Recovery has flushed the log."""

    async def retry_until_written(
        self, change: Callable[..., None], *args: Any, retry_if_full: bool = True
    ) -> None:
        """Call `change` until it succeeds; retries if file descriptors are lacking or, with
        `retry_if_full`, if the disk is full. `change` has no effect when it raises.

        There are no retries during start and shutdown.
        """
        while True:
            try:
                await self._blocking(change, *args)
            except (OSError, StorageError) as error:
                if not (self.retries and _is_retriable(error, retry_if_full=retry_if_full)):
                    raise
                await self._pause("%s cannot be written, retrying: %s", error)
            else:
                return

    # Appends of the leader

    def start_epoch(self, start: AppendLeaderChangeMessage, leader_id: int) -> list[ControlChange]:
        """Append the first batch of an epoch: LeaderChangeMessage, and kraft.version and voters if needed."""
        from odradek.protocol.schemas import control_records as schemas

        change = schemas.LeaderChangeMessage(
            version=0,
            leader_id=leader_id,
            voters=tuple(schemas.Voter(voter_id=each) for each in start.voters),
            granting_voters=tuple(schemas.Voter(voter_id=each) for each in start.granted),
        )
        records: list[tuple[ControlType, Any]] = [(ControlType.LEADER_CHANGE, change)]
        changes: list[ControlChange] = []
        if start.quorum is not None:
            version, voters = start.quorum
            records += quorum_records(version, voters)
            changes = _changes(self._log.end_offset + 1, version, voters)
        self._log.append_control(records, start.epoch)
        return changes

    def append_voters(self, action: AppendVotersRecord, kraft_version: int) -> list[ControlChange]:
        """Append a VotersRecord, after a KRaftVersionRecord if the action raises the level."""
        level = action.kraft_version
        records = quorum_records(kraft_version if level is None else level, action.voters)
        first = self._log.end_offset
        if level is None:  # kraft.version is unchanged
            records = records[-1:]
        self._log.append_control(records, action.epoch)
        return _changes(first, level, action.voters)

    async def flush(
        self, epoch: Callable[[], int], up_to: int, *, retry_if_full: bool = False
    ) -> tuple[int, int] | None:
        """Flush the log up to `up_to`. Returns the log end offset and epoch at the start of the flush;
        None if another flush has covered it.

        Raises DiskFull unless `retry_if_full`, and LogFailed.
        """
        async with self.flushing:
            if self.durable_end >= up_to:
                return None
            end_offset, now_in = self._log.end_offset, epoch()
            await self.retry_until_written(self._log.flush, retry_if_full=retry_if_full)
            self.durable_end = end_offset
            return end_offset, now_in

    # Records and snapshots of the leader

    async def append_fetched(self, action: AppendFetchedRecords) -> list[ControlChange]:
        """Append fetched records, and flush them if they must be durable before the next fetch.

        Raises what the flush raises.
        """
        try:
            # Before the append: an invalid control record of a faulty leader would be read at each start.
            control_changes(batches(memoryview(action.records), allow_partial=True))
            appended = self._log.append_fetched(action.records, action.epoch)
        except _NOT_APPENDABLE as error:
            await self._pause(_NOT_APPENDED, error)
            return []
        self._last_error = None
        if action.durable:
            await self.flush(lambda: action.epoch, self._log.end_offset, retry_if_full=True)
        return control_changes(appended)

    async def truncate(self, end_offset: int) -> None:
        async with self.flushing:
            log.info(
                "Truncating the log in %s to offset %d from log end offset %d",
                self._log.directory,
                end_offset,
                self._log.end_offset,
            )
            await self.retry_until_written(self._log.truncate, end_offset)
            self.durable_end = min(self.durable_end, self._log.end_offset)

    async def _pause(self, complaint: str, error: Exception) -> None:
        if self._last_error != str(error):
            self._last_error = str(error)
            log.error(complaint, self._log.directory, error)
        await self._seams.clock.sleep(RETRY_SECONDS)

    async def begin_snapshot(self, snapshot: SnapshotId) -> bool:
        """Create the file of a snapshot; returns False if the disk is full."""
        await self._abandon_download()
        self._is_abandoned = False
        return await self._write_download(self._begin, snapshot)

    def _begin(self, snapshot: SnapshotId) -> None:
        self._download = self._log.snapshots.download(snapshot)

    async def append_snapshot(self, position: int, data: bytes) -> bool:
        """Append bytes; returns False and abandons the download if the disk is full."""
        return await self._write_download(self._current_download().append, position, data)

    async def _write_download(self, write: Callable[..., None], *args: Any) -> bool:
        try:
            await self._blocking(write, *args)
        except OSError as error:
            if takes_offline(error, files_unchanged=True):
                raise
            await self._abandon_download()
            self._is_abandoned = True
            await self._pause(_NOT_APPENDED, error)
            return False
        return True

    async def _abandon_download(self) -> None:
        download, self._download = self._download, None
        if download is not None:
            await self._blocking(self._log.snapshots.discard, download)

    async def install_snapshot(self) -> list[ControlChange] | None:
        """Validate the downloaded snapshot and replace the log by it; None if it was abandoned.

        Raises InvalidMetadata if the snapshot is incomplete or corrupt.
        """
        if self._is_abandoned:
            return None
        download = self._current_download()
        end_offset = download.snapshot.end_offset
        changes = await self._blocking(self._changes_in, download)
        async with self.publishing, self.flushing:
            await self._blocking(self._log.install, download)
            self.durable_end = self._log.end_offset
        self._download = self._last_error = None
        log.info(
            "Fully truncated the log in %s after downloading snapshot %s",
            self._log.directory,
            download.snapshot.file_name,
        )
        return [_at(each, end_offset - 1) for each in changes]

    def _changes_in(self, download: SnapshotDownload) -> list[ControlChange]:
        return control_changes(self._log.snapshots.downloaded(download).batches())

    def _current_download(self) -> SnapshotDownload:
        if self._download is None:
            raise UnexpectedRaftEvent("no snapshot download is in progress")
        return self._download


def _is_retriable(error: OSError | StorageError, *, retry_if_full: bool) -> bool:
    """Whether the write had no effect and may succeed later."""
    if isinstance(error, StorageError):
        return isinstance(error, NoDescriptors) or (retry_if_full and isinstance(error, DiskFull))
    lacks_descriptors = isinstance(error, OutOfDescriptors)
    return lacks_descriptors or (retry_if_full and not takes_offline(error, files_unchanged=True))


def _changes(first: int, level: int | None, voters: Sequence[Voter]) -> list[ControlChange]:
    """Changes of a batch at offset `first`: the level, unless None, then the voters."""
    if level is None:
        return [ControlChange(first, voters=tuple(voters))]
    return [
        ControlChange(first, kraft_version=level),
        ControlChange(first + 1, voters=tuple(voters)),
    ]


def _at(change: ControlChange, offset: int) -> ControlChange:
    return ControlChange(offset, voters=change.voters, kraft_version=change.kraft_version)
