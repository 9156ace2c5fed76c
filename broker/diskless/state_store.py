"""Store of the coordinators' states: SQLite databases in the log directories, or in memory in a simulation (D-16, D-20).

A state is opened from its database, or from the newest snapshot in the same log directory if that has more records: the
database is missing, was damaged, or is an older copy. Snapshots are files in both implementations.
"""

from __future__ import annotations

import logging
import zlib
from typing import TYPE_CHECKING, cast
from uuid import UUID

from odradek.broker.diskless.coordinator import StateStore
from odradek.seams.files import Files, Path
from odradek.seams.real_files import RealFiles
from odradek.storage.diskless.snapshot_files import SnapshotFiles
from odradek.storage.diskless.state import DisklessState, StateDamaged

if TYPE_CHECKING:
    from odradek.seams import Seams
    from odradek.storage.diskless.memory_state import MemoryDisklessState
    from odradek.storage.diskless.sqlite_snapshot import SqliteSnapshot
    from odradek.storage.diskless.sqlite_state import SqliteDisklessState

log = logging.getLogger("odradek.diskless")


class MemorySnapshot:
    """Pickled state with its CRC."""

    def __init__(self, files: Files, state: MemoryDisklessState) -> None:
        self._files = files
        self._data = state.snapshot()
        self.offset = state.applied_offset

    def write(self, path: Path) -> None:
        self._files.write_new(path, zlib.crc32(self._data).to_bytes(4, "big") + self._data)

    def cancel(self) -> None:
        """Do nothing: `write` does not take long."""

    def close(self) -> None:
        """Do nothing: no file is open."""


class MemoryStateStore:
    """`StateStore` in memory: an opened state has the records of the newest snapshot."""

    def __init__(self, files: Files, producer_expiration_ms: int) -> None:
        self._files = files
        self._producer_expiration_ms = producer_expiration_ms

    def open(self, coordinator_id: int, topic_id: UUID, directory: str) -> DisklessState:
        snapshots = SnapshotFiles(self._files, Path(directory), coordinator_id)
        newest = snapshots.newest()
        if newest is not None:
            try:
                return self._restored(coordinator_id, snapshots.path(newest.offset))
            except StateDamaged as error:
                remove_damaged(snapshots, newest.offset, error)
        return self._empty(coordinator_id)

    def _empty(self, coordinator_id: int) -> MemoryDisklessState:
        from odradek.storage.diskless.memory_state import MemoryDisklessState

        return MemoryDisklessState(
            coordinator_id, producer_expiration_ms=self._producer_expiration_ms
        )

    def _restored(self, coordinator_id: int, snapshot: Path) -> MemoryDisklessState:
        content = self._files.read(snapshot)
        if zlib.crc32(content[4:]).to_bytes(4, "big") != content[:4]:
            raise StateDamaged("the snapshot has a wrong CRC")
        state = self._empty(coordinator_id)
        state.restore(content[4:])
        return state

    def remove(self, coordinator_id: int, directory: str) -> None:
        """Do nothing: a closed state is not stored."""

    def begin_snapshot(self, state: DisklessState) -> MemorySnapshot:
        return MemorySnapshot(self._files, cast("MemoryDisklessState", state))

    def install(self, coordinator_id: int, topic_id: UUID, directory: str, snapshot: Path) -> None:
        """Check the snapshot, which the next `open` uses."""
        self._restored(coordinator_id, snapshot)


class SqliteStateStore:
    """`StateStore` of SQLite databases, which are plain files in the log directories."""

    def __init__(self, files: Files, cluster_id: str, producer_expiration_ms: int) -> None:
        self._files = files
        self._cluster_id = cluster_id
        self._producer_expiration_ms = producer_expiration_ms

    def open(self, coordinator_id: int, topic_id: UUID, directory: str) -> DisklessState:
        state = self._open(coordinator_id, topic_id, directory)
        snapshots = SnapshotFiles(self._files, Path(directory), coordinator_id)
        newest = snapshots.newest()
        if newest is None or newest.offset <= state.applied_offset:
            return state
        state.close()
        try:
            self.install(coordinator_id, topic_id, directory, snapshots.path(newest.offset))
        except StateDamaged as error:
            remove_damaged(snapshots, newest.offset, error)
        return self._open(coordinator_id, topic_id, directory)

    def _open(self, coordinator_id: int, topic_id: UUID, directory: str) -> SqliteDisklessState:
        from odradek.storage.diskless.sqlite_check import StateIdentity
        from odradek.storage.diskless.sqlite_state import database_path, open_state

        return open_state(
            self._files,
            database_path(Path(directory), coordinator_id),
            StateIdentity(self._cluster_id, topic_id, coordinator_id),
            producer_expiration_ms=self._producer_expiration_ms,
        )

    def remove(self, coordinator_id: int, directory: str) -> None:
        from odradek.storage.diskless.sqlite_state import database_path, remove_database

        remove_database(self._files, database_path(Path(directory), coordinator_id))

    def begin_snapshot(self, state: DisklessState) -> SqliteSnapshot:
        from odradek.storage.diskless.sqlite_snapshot import SqliteSnapshot

        return SqliteSnapshot(cast("SqliteDisklessState", state))

    def install(self, coordinator_id: int, topic_id: UUID, directory: str, snapshot: Path) -> None:
        from odradek.storage.diskless.sqlite_check import StateIdentity
        from odradek.storage.diskless.sqlite_snapshot import install_snapshot
        from odradek.storage.diskless.sqlite_state import database_path

        identity = StateIdentity(self._cluster_id, topic_id, coordinator_id)
        path = database_path(Path(directory), coordinator_id)
        install_snapshot(self._files, snapshot, path, identity)


def remove_damaged(snapshots: SnapshotFiles, offset: int, error: StateDamaged) -> None:
    """Remove a snapshot that cannot be used."""
    log.warning("Removing the snapshot %s: %s", snapshots.path(offset), error)
    snapshots.remove(offset)


def new_state_store(seams: Seams, cluster_id: str, producer_expiration_ms: int) -> StateStore:
    """SQLite on real files. SQLite opens its files itself, so that virtual files have states in memory."""
    if isinstance(seams.files, RealFiles):
        return SqliteStateStore(seams.files, cluster_id, producer_expiration_ms)
    return MemoryStateStore(seams.files, producer_expiration_ms)
