"""Snapshots of a state in SQLite: written by the backup API while the state changes, and installed (D-20)."""

from __future__ import annotations

import sqlite3
from typing import Final
from urllib.parse import quote

from odradek.seams.files import Files, Path
from odradek.storage.diskless.snapshot_files import copy_file
from odradek.storage.diskless.sqlite_check import StateIdentity, damage_of
from odradek.storage.diskless.sqlite_state import (
    SqliteDisklessState,
    remove_database,
    translated,
)
from odradek.storage.diskless.state import NO_OFFSET, SnapshotCancelled, StateDamaged

STEP_PAGES: Final = 256
"""Pages that are copied at once; between the steps, the copy can be cancelled."""


class SqliteSnapshot:
    """The state as it was when this object was created: a read transaction of its own in the database.

    Records are applied meanwhile. The write-ahead log cannot be reset until the object is closed.
    """

    def __init__(self, state: SqliteDisklessState) -> None:
        """Begin the transaction. Raises StateDamaged or OSError."""
        self._is_cancelled = False
        with translated():
            self._source = sqlite3.connect(
                str(state.path), isolation_level=None, check_same_thread=False
            )
            self._source.execute("BEGIN")
            (self.offset,) = self._source.execute("SELECT applied_offset FROM meta").fetchone()

    def write(self, path: Path) -> None:
        """Write the snapshot to a file that does not exist, and check it: the records before it will be deleted.

        Raises SnapshotCancelled, StateDamaged or OSError.
        """
        with translated():
            target = sqlite3.connect(str(path), isolation_level=None, check_same_thread=False)
            try:
                target.execute("PRAGMA journal_mode = OFF")
                target.execute("PRAGMA synchronous = OFF")
                self._source.backup(target, pages=STEP_PAGES, progress=self._progress, sleep=0)
            finally:
                target.close()
            copy = sqlite3.connect(
                f"file:{quote(str(path))}?immutable=1", uri=True, check_same_thread=False
            )
            try:
                damage = damage_of(copy)
            finally:
                copy.close()
        if damage:
            raise StateDamaged(damage)

    def _progress(self, status: int, remaining: int, total: int) -> None:
        if self._is_cancelled:
            raise SnapshotCancelled

    def cancel(self) -> None:
        """Let `write` end soon; another thread may call it."""
        self._is_cancelled = True

    def close(self) -> None:
        self._source.close()


def install_snapshot(files: Files, snapshot: Path, database: Path, identity: StateIdentity) -> None:
    """Replace a database that is not open by a checked copy of a snapshot.

    Raises StateDamaged if the snapshot cannot be used, and then leaves the database as it is; OSError.
    """
    copy = database.with_name(database.name + ".installing")
    remove_database(files, copy)
    copy_file(files, snapshot, copy)
    try:
        state = SqliteDisklessState(copy, identity)
        state.close()
        if state.applied_offset == NO_OFFSET:
            raise StateDamaged("it is empty")
    except BaseException:
        remove_database(files, copy)
        raise
    remove_database(files, database)
    files.rename(copy, database)
