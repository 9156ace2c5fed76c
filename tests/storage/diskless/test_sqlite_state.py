"""Opening, damage and migrations of the SQLite state of a diskless coordinator, and its deletions in steps (D-16)."""

from __future__ import annotations

import logging
import shutil
import sqlite3
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest

from odradek.protocol.schemas.diskless_records import (
    DisklessFileRemovedRecord,
    DisklessTopicDeletedRecord,
)
from odradek.seams.real_files import RealFiles
from odradek.storage.diskless import sqlite_state
from odradek.storage.diskless.sqlite_check import StateIdentity
from odradek.storage.diskless.sqlite_schema import MIGRATIONS, migrate
from odradek.storage.diskless.sqlite_state import (
    SqliteDisklessState,
    database_path,
    remove_database,
)
from odradek.storage.diskless.state import LogEntry, StateDamaged
from tests.support.diskless_states import (
    IDENTITY,
    TOPIC,
    apply,
    batch,
    committed,
    created,
    deleted,
    from_producer,
    key,
    opened,
    owned,
)

MAX = 1 << 62


def filled(directory: Path, batches: int = 3) -> Path:
    """Close a database with batches, and return its path."""
    state = opened(directory)
    apply(state, *created(), committed(key(1), *(batch(base, base) for base in range(batches))))
    state.close()
    return state.path


def query(path: Path, statement: str) -> None:
    connection = sqlite3.connect(path)
    with connection:
        connection.execute(statement)
    connection.close()


def test_reopened_state_continues_from_its_applied_offset(tmp_path: Path) -> None:
    filled(tmp_path)
    state = opened(tmp_path)
    assert state.applied_offset == 1
    apply(state, committed(key(2), batch(3, 3)))
    found = state.find_batches(TOPIC, 0, 0, max_batches=0, max_bytes=999)
    assert [each.batch_id >> 20 for each in found] == [1, 1, 1, 2]
    state.close()


def test_failed_transaction_leaves_neither_records_nor_offset(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """D-16: the applied offset and the records are stored together."""
    filled(tmp_path)
    state = opened(tmp_path)
    before = state.partitions(), state.files(), state.applied_offset

    def fail(*_: object) -> None:
        raise OSError("disk")

    with monkeypatch.context() as patch:
        patch.setattr(state, "_replace_producers", fail)
        with pytest.raises(OSError, match="disk"):
            apply(state, committed(key(2), batch(3, 3)))
    assert (state.partitions(), state.files(), state.applied_offset) == before
    apply(state, committed(key(2), batch(3, 3)))
    assert state.applied_offset == 2
    state.close()
    opened(tmp_path).close()


@pytest.mark.parametrize(
    ("statement", "reason"),
    [
        ("UPDATE meta SET applied_offset = 7", "missing or outdated"),
        ("DELETE FROM batches WHERE base_offset = 1", "do not have the expected batches"),
        ("UPDATE partitions SET high_watermark = 99", "wrong CRC"),
        ("UPDATE files SET owner_ids = '1'", "wrong CRC"),
        ("DELETE FROM file_batches", "missing or outdated"),
        ("DELETE FROM meta", "no identity"),
        ("DROP TABLE producers", "no such table"),
        ("PRAGMA application_id = 1", "not the database"),
        ("PRAGMA user_version = 99", "version 99"),
        ("PRAGMA user_version = 0", "version 0"),
    ],
)
def test_database_that_cannot_be_used_is_replaced(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, statement: str, reason: str
) -> None:
    path = filled(tmp_path)
    query(path, statement)
    caplog.set_level(logging.WARNING)
    state = opened(tmp_path)
    assert state.applied_offset == -1
    assert state.partitions() == []
    (record,) = caplog.records
    assert reason in record.getMessage()
    state.close()


def test_changed_batch_is_found(tmp_path: Path) -> None:
    """The check sum of a row does not match after a change of its bytes on the disk."""
    path = filled(tmp_path)
    data = path.read_bytes()
    changed = data.replace(key(1).encode(), key(2).encode())
    assert changed != data
    path.write_bytes(changed)
    state = opened(tmp_path)
    assert state.applied_offset == -1
    state.close()


@pytest.mark.parametrize(
    "identity",
    [
        StateIdentity("other", UUID(int=5), 3),
        StateIdentity("cluster", UUID(int=6), 3),
        StateIdentity("cluster", UUID(int=5), 4),
    ],
)
def test_database_of_another_coordinator_is_replaced(
    tmp_path: Path, identity: StateIdentity, caplog: pytest.LogCaptureFixture
) -> None:
    filled(tmp_path)
    state = opened(tmp_path, identity)
    assert state.applied_offset == -1
    assert len(caplog.records) == 1
    state.close()
    state = opened(tmp_path, identity)
    assert len(caplog.records) == 1
    state.close()


def test_file_that_is_no_database_is_replaced(tmp_path: Path) -> None:
    database_path(tmp_path, 3).write_bytes(b"no database" * 1000)
    state = opened(tmp_path)
    assert state.applied_offset == -1
    state.close()


def test_damage_during_operation_is_reported(tmp_path: Path) -> None:
    filled(tmp_path)
    state = opened(tmp_path)
    query(state.path, "DROP TABLE batches")
    with pytest.raises(StateDamaged, match="no such table"):
        apply(state, committed(key(2), batch(3, 3)))
    with pytest.raises(StateDamaged, match="no such table"):
        state.find_batches(TOPIC, 0, 0, max_batches=0, max_bytes=1)
    state.close()
    state = opened(tmp_path)
    assert state.applied_offset == -1
    state.close()


def test_missing_directory_is_an_error_of_the_file_system(tmp_path: Path) -> None:
    with pytest.raises(OSError, match="unable to open"):
        opened(tmp_path / "missing")


def test_removed_database_leaves_no_files(tmp_path: Path) -> None:
    state = opened(tmp_path)
    apply(state, *created())
    remove_database(RealFiles(), state.path)
    assert list(tmp_path.iterdir()) == []
    state.close()


# --- migrations ---


def test_migrations_are_numbered_by_the_user_version() -> None:
    connection = sqlite3.connect(":memory:")
    migrate(connection)
    assert connection.execute("PRAGMA user_version").fetchone() == (len(MIGRATIONS),)
    later = [*MIGRATIONS, ["ALTER TABLE meta ADD COLUMN added INTEGER"]]
    migrate(connection, later)
    migrate(connection, later)
    assert connection.execute("PRAGMA user_version").fetchone() == (len(MIGRATIONS) + 1,)
    columns = [row[1] for row in connection.execute("PRAGMA table_info(meta)")]
    assert columns.count("added") == 1


# --- deletions in steps ---


def test_deleted_batches_are_hidden_at_once_and_removed_in_steps(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """D-25: a deletion of many batches is not one transaction."""
    monkeypatch.setattr(sqlite_state, "REMOVED_PER_APPLY", 10)
    state = opened(tmp_path)
    apply(state, *created(), committed(key(1), *(batch(base, base) for base in range(100))))
    apply(state, deleted(70), DisklessTopicDeletedRecord(topic_id=TOPIC))
    assert state.partitions() == []
    assert state.counts().batches == 0
    assert state.files()[0].live_batches == 80
    assert state.remove_deleted_batches(50)
    state.close()
    state = opened(tmp_path)
    assert state.files()[0].live_batches == 30
    assert state.remove_deleted_batches(30)
    assert not state.remove_deleted_batches(30)
    (file,) = state.files()
    assert (file.live_batches, file.live_bytes, file.unused_since_ms) == (0, 0, 1003)
    state.close()


def test_file_is_removed_before_the_steps_reach_its_batches(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The leader may have removed its batches in steps, and appended the removal of the file, before a follower has."""
    monkeypatch.setattr(sqlite_state, "REMOVED_PER_APPLY", 0)
    state = opened(tmp_path)
    apply(state, *created(), committed(key(1), batch(0, 0)), committed(key(2), batch(1, 1)))
    apply(state, deleted(2), DisklessFileRemovedRecord(object_key=key(2)))
    assert state.file(key(2)) is None
    assert state.file_batches(key(1)) == []
    while state.remove_deleted_batches(1):
        pass
    assert state.unused_files() == [state.file(key(1))]
    state.close()
    opened(tmp_path).close()


# --- crashes ---


def test_crash_at_every_statement_leaves_the_state_before_or_after(tmp_path: Path) -> None:
    """D-16: the records and the applied offset are one transaction, and so is each step of a removal."""
    live, image = tmp_path / "live", tmp_path / "image"
    live.mkdir()
    state = opened(live)
    apply(
        state, *created(partitions=2), committed(key(1), *(batch(base, base) for base in range(9)))
    )
    images: list[Path] = []
    execute = state._all

    def copying(statement: str, values: Sequence[Any] = ()) -> list[Any]:
        images.append(image / str(len(images)))
        shutil.copytree(live, images[-1], ignore=shutil.ignore_patterns("*-shm"))
        return execute(statement, values)

    state._all = copying  # type: ignore[method-assign]
    contents = [_contents(opened_copy(live, tmp_path / "first"))]
    last_offset = state.applied_offset
    entries = [
        LogEntry(last_offset + 1, 5000, committed(key(2), from_producer(9, 12, 0))),
        LogEntry(last_offset + 2, 5000, committed(key(3), batch(0, 3), index=1)),
        LogEntry(last_offset + 3, 5001, deleted(5)),
        LogEntry(last_offset + 4, 5001, owned(key(4))),
    ]
    state.apply(entries, last_offset + 4)
    state._all = execute  # type: ignore[method-assign]
    contents.append(_contents(state))
    state.close()
    found = [_contents(opened_copy(each, each.with_suffix(".copy"))) for each in images]
    assert len(images) > 10
    assert all(each in contents for each in found)
    assert found[0] == contents[0] != contents[1]


def opened_copy(source: Path, target: Path) -> SqliteDisklessState:
    shutil.copytree(source, target, ignore=shutil.ignore_patterns("*-shm"))
    return opened(target)


def _contents(state: SqliteDisklessState) -> tuple[Any, ...]:
    return (
        state.applied_offset,
        state.partitions(),
        state.files(),
        [state.find_batches(TOPIC, index, 0, max_batches=0, max_bytes=MAX) for index in (0, 1)],
        state.producer(TOPIC, 0, 77),
    )


def stored_producers(state: SqliteDisklessState) -> int:
    connection = sqlite3.connect(state.path)
    ((count,),) = connection.execute("SELECT count(*) FROM producers")
    connection.close()
    return int(count)


def test_rows_of_expired_producers_are_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """D-07: a client that starts often gets many producer ids, and the state does not keep all of them."""
    monkeypatch.setattr(sqlite_state, "PRODUCERS_PER_APPLY", 2)
    expiration_ms, producers = 10_000, 300
    path = database_path(tmp_path, 3)
    state = SqliteDisklessState(path, IDENTITY, producer_expiration_ms=expiration_ms)
    apply(state, *created())
    most = 0
    for number in range(producers):
        offset = state.applied_offset + 1
        added = batch(number, number, producer_id=number, producer_epoch=0, base_sequence=0)
        state.apply([LogEntry(offset, 1000 * number, committed(key(number), added))], offset)
        most = max(most, stored_producers(state))
    assert stored_producers(state) >= 10
    assert most <= 3 * expiration_ms / 1000
    assert state.producer(TOPIC, 0, producers - 10) is not None
    assert state.producer(TOPIC, 0, producers - 11) is None
    state.close()
    SqliteDisklessState(path, IDENTITY).close()  # checks the CRCs
