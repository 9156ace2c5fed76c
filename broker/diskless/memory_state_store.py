"""`StateStore` of states in memory, for virtual files: a simulation uses it instead of SQLite (D-16, D-20).

The content of a state is stored after each transaction through the Databases seam. As with SQLite, it may be missing or
an older copy after a crash. Snapshots are files.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Sequence
from typing import cast
from uuid import UUID

from odradek.seams.databases import Databases
from odradek.seams.files import Files, Path
from odradek.storage.diskless.memory_state import MemoryDisklessState
from odradek.storage.diskless.snapshot_files import SnapshotFiles, remove_damaged
from odradek.storage.diskless.state import DisklessState, LogEntry, StateDamaged

TOPIC_ID_BYTES = 16


class StoredMemoryState(MemoryDisklessState):
    """State that is stored after each transaction, with its applied offset."""

    def __init__(
        self, coordinator_id: int, producer_expiration_ms: int, store: Callable[[bytes], None]
    ) -> None:
        super().__init__(coordinator_id, producer_expiration_ms=producer_expiration_ms)
        self._store = store

    def apply(self, entries: Sequence[LogEntry], through_offset: int) -> None:
        super().apply(entries, through_offset)
        self._store(self.snapshot())


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
    """An opened state has the stored content, or that of the newest snapshot if it has more records."""

    def __init__(self, files: Files, databases: Databases, producer_expiration_ms: int) -> None:
        self._files = files
        self._databases = databases
        self._producer_expiration_ms = producer_expiration_ms

    def open(self, coordinator_id: int, topic_id: UUID, directory: str) -> DisklessState:
        state = self._open(coordinator_id, topic_id, directory)
        snapshots = SnapshotFiles(self._files, Path(directory), coordinator_id)
        newest = snapshots.newest()
        if newest is None or newest.offset <= state.applied_offset:
            return state
        try:
            self.install(coordinator_id, topic_id, directory, snapshots.path(newest.offset))
        except StateDamaged as error:
            remove_damaged(snapshots, newest.offset, error)
        return self._open(coordinator_id, topic_id, directory)

    def _open(self, coordinator_id: int, topic_id: UUID, directory: str) -> MemoryDisklessState:
        path = database_path(coordinator_id, directory)

        def store(content: bytes) -> None:
            self._databases.store(path, topic_id.bytes + content)

        state = StoredMemoryState(coordinator_id, self._producer_expiration_ms, store)
        stored = self._databases.load(path)
        if stored is not None and stored[:TOPIC_ID_BYTES] == topic_id.bytes:
            state.restore(stored[TOPIC_ID_BYTES:])
        return state

    def remove(self, coordinator_id: int, directory: str) -> None:
        self._databases.remove(database_path(coordinator_id, directory))

    def begin_snapshot(self, state: DisklessState) -> MemorySnapshot:
        return MemorySnapshot(self._files, cast("MemoryDisklessState", state))

    def install(self, coordinator_id: int, topic_id: UUID, directory: str, snapshot: Path) -> None:
        content = self._files.read(snapshot)
        if zlib.crc32(content[4:]).to_bytes(4, "big") != content[:4]:
            raise StateDamaged("the snapshot has a wrong CRC")
        path = database_path(coordinator_id, directory)
        self._databases.store(path, topic_id.bytes + content[4:])


def database_path(coordinator_id: int, directory: str) -> str:
    return f"{directory}/diskless-metadata-{coordinator_id}.db"


def stored_state(coordinator_id: int, content: bytes) -> MemoryDisklessState:
    """The state with a stored content."""
    state = MemoryDisklessState(coordinator_id)
    state.restore(content[TOPIC_ID_BYTES:])
    return state
