"""Store of the coordinators' states: SQLite databases in the log directories, or in memory in a simulation (D-16)."""

from __future__ import annotations

from typing import TYPE_CHECKING
from uuid import UUID

from odradek.broker.diskless.coordinator import StateStore
from odradek.seams.files import Path
from odradek.seams.real_files import RealFiles
from odradek.storage.diskless.state import DisklessState

if TYPE_CHECKING:
    from odradek.seams import Seams


class MemoryStateStore:
    """`StateStore` in memory: an opened state is empty, and is rebuilt from the log."""

    def __init__(self, producer_expiration_ms: int) -> None:
        self._producer_expiration_ms = producer_expiration_ms

    def open(self, coordinator_id: int, topic_id: UUID, directory: str) -> DisklessState:
        from odradek.storage.diskless.memory_state import MemoryDisklessState

        return MemoryDisklessState(
            coordinator_id, producer_expiration_ms=self._producer_expiration_ms
        )

    def remove(self, coordinator_id: int, directory: str) -> None:
        """Do nothing: a closed state is not stored."""


class SqliteStateStore:
    """`StateStore` of SQLite databases, which are plain files in the log directories."""

    def __init__(self, files: RealFiles, cluster_id: str, producer_expiration_ms: int) -> None:
        self._files = files
        self._cluster_id = cluster_id
        self._producer_expiration_ms = producer_expiration_ms

    def open(self, coordinator_id: int, topic_id: UUID, directory: str) -> DisklessState:
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


def new_state_store(seams: Seams, cluster_id: str, producer_expiration_ms: int) -> StateStore:
    """SQLite on real files. SQLite opens its files itself, so that virtual files have states in memory."""
    if isinstance(seams.files, RealFiles):
        return SqliteStateStore(seams.files, cluster_id, producer_expiration_ms)
    return MemoryStateStore(producer_expiration_ms)
