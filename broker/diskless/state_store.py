"""Store of the coordinators' states: SQLite databases in the log directories, or in memory in a simulation (D-16, D-20).

A state is opened from its database, or from the newest snapshot in the same log directory if that has more records: the
database is missing, was damaged, or is an older copy. Snapshots are files in both implementations.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, cast
from uuid import UUID

from odradek.broker.diskless.coordinator import StateStore
from odradek.seams.files import Files, Path
from odradek.storage.diskless.snapshot_files import SnapshotFiles, remove_damaged
from odradek.storage.diskless.state import DisklessState, StateDamaged

if TYPE_CHECKING:
    from odradek.seams import Seams
    from odradek.storage.diskless.sqlite_snapshot import SqliteSnapshot
    from odradek.storage.diskless.sqlite_state import SqliteDisklessState


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


def new_state_store(seams: Seams, cluster_id: str, producer_expiration_ms: int) -> StateStore:
    """SQLite, or states in memory if the seams have databases: SQLite opens its files itself."""
    if seams.databases is None:
        return SqliteStateStore(seams.files, cluster_id, producer_expiration_ms)
    from odradek.broker.diskless.memory_state_store import MemoryStateStore

    return MemoryStateStore(seams.files, seams.databases, producer_expiration_ms)
