"""What the quorum's decisions do to the log and its snapshots, on this node's disk.

Each returns what is among the appended records about kraft.version and voters, as the state machine
wants to be told. One of them at a time, in the order decided (`driver.py`); what a leader appends of
its own comes in between, on the loop. Nothing is cut or installed beside a flush (`flushing`).

What cannot be appended (a broken answer, a full disk) is left out, after a pause: it is fetched again.
What has to be on the disk before anything else is done waits until there is room, and descriptors, for it.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Final

from odradek.protocol.errors import CorruptBatch
from odradek.protocol.records.control import ControlType
from odradek.replication.raft.actions import AppendFetched, AppendVoters, StartEpoch
from odradek.replication.raft.bootstrap import quorum_records
from odradek.replication.raft.errors import WrongState
from odradek.replication.raft.metadata_batch_loader import control_changes
from odradek.replication.raft.metadata_log import MetadataLog
from odradek.replication.raft.snapshots import SnapshotDownload, SnapshotId
from odradek.replication.raft.voter_history import ControlChange
from odradek.replication.raft.voters import Voter
from odradek.seams import Seams
from odradek.seams.files import OutOfDescriptors
from odradek.seams.locks import PromptLock
from odradek.storage.directories.failure import takes_offline
from odradek.storage.errors import (
    CorruptRecords,
    DiskFull,
    NoDescriptors,
    StorageError,
    UnexpectedOffset,
)

log = logging.getLogger("odradek.metadata")

RETRY_SECONDS: Final = 0.1

_NOT_APPENDABLE: Final = (CorruptBatch, CorruptRecords, UnexpectedOffset, DiskFull, NoDescriptors)

_NOT_APPENDED: Final = "what was fetched cannot be appended to %s: %s"

Blocking = Callable[..., Awaitable[Any]]
"""Run a call off the loop, in the metadata directory's lane."""


class MetadataLogWriter:
    """See the module."""

    def __init__(self, seams: Seams, metadata_log: MetadataLog, blocking: Blocking) -> None:
        self._seams = seams
        self._log = metadata_log
        self._blocking = blocking
        self._download: SnapshotDownload | None = None
        self._is_abandoned = False
        """The snapshot that was begun last: there was no room for it."""
        self._last_error: str | None = None
        """What was wrong with what was fetched or written last: said once."""
        self.flushing = PromptLock()
        self.publishing = PromptLock()
        """Held while a snapshot gets its name: this node's own, or one that was sent."""
        self.retries = False
        """The node runs, and what lacks room is waited for."""
        self.durable_end = metadata_log.end_offset
        """All below is on the disk: recovery flushed what it found."""

    async def retry_until_written(
        self, change: Callable[..., None], *args: Any, retry_if_full: bool = True
    ) -> None:
        """What does nothing where room or descriptors are lacking: once there are some. Not while the node
        starts or ends, when nobody could wait."""
        while True:
            try:
                await self._blocking(change, *args)
            except (OSError, StorageError) as error:
                if not (self.retries and _is_retriable(error, retry_if_full=retry_if_full)):
                    raise
                await self._pause("nothing can be written to %s: %s", error)
            else:
                return

    # The leader's own

    def start_epoch(self, start: StartEpoch, leader_id: int) -> list[ControlChange]:
        """The epoch's first batch: who leads, and what it must say of the quorum."""
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

    def append_voters(self, action: AppendVoters, kraft_version: int) -> list[ControlChange]:
        level = action.kraft_version
        records = quorum_records(kraft_version if level is None else level, action.voters)
        first = self._log.end_offset
        if level is None:  # the level stays what it is
            records = records[-1:]
        self._log.append_control(records, action.epoch)
        return _changes(first, level, action.voters)

    async def flush(
        self, epoch: Callable[[], int], up_to: int, *, retry_if_full: bool = False
    ) -> tuple[int, int] | None:
        """Make all below `up_to` durable: where the log ended and in which `epoch` when that began;
        None if somebody else has done it. Raises DiskFull, unless it waits `retry_if_full`, and LogFailed."""
        async with self.flushing:
            if self.durable_end >= up_to:
                return None
            end_offset, now_in = self._log.end_offset, epoch()
            await self.retry_until_written(self._log.flush, retry_if_full=retry_if_full)
            self.durable_end = end_offset
            return end_offset, now_in

    # What a leader sent

    async def append_fetched(self, action: AppendFetched) -> list[ControlChange]:
        """Raises what a flush does: the next fetch would tell that all of this is on the disk."""
        try:
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
                "%s is cut from %d to %d", self._log.directory, self._log.end_offset, end_offset
            )
            await self.retry_until_written(self._log.truncate, end_offset)
            self.durable_end = min(self.durable_end, self._log.end_offset)

    async def _pause(self, complaint: str, error: Exception) -> None:
        if self._last_error != str(error):
            self._last_error = str(error)
            log.error(complaint, self._log.directory, error)
        await self._seams.clock.sleep(RETRY_SECONDS)

    async def begin_snapshot(self, snapshot: SnapshotId) -> bool:
        """False if there is no room for it: it is given up."""
        await self._abandon_download()
        self._is_abandoned = False
        return await self._write_download(self._begin, snapshot)

    def _begin(self, snapshot: SnapshotId) -> None:
        self._download = self._log.snapshots.download(snapshot)

    async def append_snapshot(self, position: int, data: bytes) -> bool:
        """False if there is no room for it: all of the snapshot is given up."""
        return await self._write_download(self._current_download().append, position, data)

    async def _write_download(self, write: Callable[..., None], *args: Any) -> bool:
        try:
            await self._blocking(write, *args)
        except OSError as error:
            if takes_offline(error, undone=True):
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
        """Check it, and put it in the log's place; None if it was given up. Raises InvalidMetadata if it
        is not whole."""
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
            "%s goes on from the snapshot %s", self._log.directory, download.snapshot.file_name
        )
        return [_at(each, end_offset - 1) for each in changes]

    def _changes_in(self, download: SnapshotDownload) -> list[ControlChange]:
        return control_changes(self._log.snapshots.downloaded(download).batches())

    def _current_download(self) -> SnapshotDownload:
        if self._download is None:
            raise WrongState("no snapshot has been begun")
        return self._download


def _is_retriable(error: OSError | StorageError, *, retry_if_full: bool) -> bool:
    """Whether nothing was done, and another try may do it."""
    if isinstance(error, StorageError):
        return isinstance(error, NoDescriptors) or (retry_if_full and isinstance(error, DiskFull))
    lacks_descriptors = isinstance(error, OutOfDescriptors)
    return lacks_descriptors or (retry_if_full and not takes_offline(error, undone=True))


def _changes(first: int, level: int | None, voters: Sequence[Voter]) -> list[ControlChange]:
    """Those of a batch that says the level, if there is one, at offset `first`; then the voters."""
    if level is None:
        return [ControlChange(first, voters=tuple(voters))]
    return [
        ControlChange(first, kraft_version=level),
        ControlChange(first + 1, voters=tuple(voters)),
    ]


def _at(change: ControlChange, offset: int) -> ControlChange:
    return ControlChange(offset, voters=change.voters, kraft_version=change.kraft_version)
