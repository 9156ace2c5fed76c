"""Snapshots of the SQLite state, and their files (D-20)."""

from __future__ import annotations

import sqlite3
from pathlib import Path, PurePosixPath
from uuid import UUID

import pytest

from odradek.seams.files import Files
from odradek.seams.real_files import RealFiles
from odradek.storage.diskless.snapshot_files import PART, TEMPORARY, Snapshot, SnapshotFiles
from odradek.storage.diskless.sqlite_check import StateIdentity
from odradek.storage.diskless.sqlite_snapshot import SqliteSnapshot, install_snapshot
from odradek.storage.diskless.sqlite_state import SqliteDisklessState, database_path
from odradek.storage.diskless.state import SnapshotCancelled, StateDamaged
from odradek.testing.virtual_disk import VirtualDisk
from odradek.testing.virtual_files import VirtualFiles
from tests.support.diskless_states import (
    IDENTITY,
    TOPIC,
    apply,
    batch,
    committed,
    created,
    key,
    opened,
)


def contents(state: SqliteDisklessState) -> object:
    batches = state.find_batches(TOPIC, 0, 0, max_batches=0, max_bytes=1 << 40)
    return state.applied_offset, state.partitions(), state.files(), batches


def filled_state(directory: Path) -> SqliteDisklessState:
    state = opened(directory)
    apply(state, *created(), committed(key(1), *(batch(base, base) for base in range(900))))
    return state


# --- SQLite ---


def test_snapshot_has_the_state_at_one_time_while_records_are_applied(tmp_path: Path) -> None:
    state = filled_state(tmp_path)
    expected = contents(state)
    snapshot = SqliteSnapshot(state)
    apply(state, committed(key(2), *(batch(base, base) for base in range(900, 1800))))
    snapshot.write(PurePosixPath(tmp_path / "snapshot"))
    apply(state, committed(key(3), batch(1800, 1800)))
    snapshot.close()
    assert snapshot.offset == 1
    other = tmp_path / "other"
    other.mkdir()
    install_snapshot(
        RealFiles(), PurePosixPath(tmp_path / "snapshot"), database_path(other, 3), IDENTITY
    )
    installed = opened(other)
    assert contents(installed) == expected
    apply(installed, committed(key(2), *(batch(base, base) for base in range(900, 1800))))
    apply(installed, committed(key(3), batch(1800, 1800)))
    assert contents(installed)[0] == contents(state)[0] == 3  # type: ignore[index]
    assert installed.partitions() == state.partitions()
    installed.close()
    state.close()


def test_snapshot_of_a_damaged_state_is_refused(tmp_path: Path) -> None:
    """The records before a snapshot are deleted, so that it must be complete."""
    directory = tmp_path / "100% #?"
    directory.mkdir()
    state = filled_state(directory)
    connection = sqlite3.connect(str(state.path))
    with connection:
        connection.execute("DELETE FROM batches WHERE base_offset = 7")
    connection.close()
    snapshot = SqliteSnapshot(state)
    with pytest.raises(StateDamaged, match="do not have the expected batches"):
        snapshot.write(PurePosixPath(directory / "snapshot"))
    snapshot.close()
    state.close()
    assert {each.name for each in directory.iterdir()} == {"diskless-metadata-3.db", "snapshot"}


def test_cancelled_snapshot_ends(tmp_path: Path) -> None:
    state = filled_state(tmp_path)
    snapshot = SqliteSnapshot(state)
    snapshot.cancel()
    with pytest.raises(SnapshotCancelled):
        snapshot.write(PurePosixPath(tmp_path / "snapshot"))
    snapshot.close()
    state.close()


@pytest.mark.parametrize("damage", ["truncated", "flipped", "empty"])
def test_damaged_snapshot_is_not_installed(tmp_path: Path, damage: str) -> None:
    state = filled_state(tmp_path)
    before = contents(state)
    snapshot = SqliteSnapshot(state)
    path = tmp_path / "snapshot"
    snapshot.write(PurePosixPath(path))
    snapshot.close()
    state.close()
    data = bytearray(path.read_bytes())
    if damage == "truncated":
        del data[len(data) // 2 :]
    elif damage == "flipped":
        position = data.index(key(1).encode())
        data[position + 12] ^= 1
    else:
        data.clear()
    path.write_bytes(data)
    database = database_path(tmp_path, 3)
    with pytest.raises(StateDamaged):
        install_snapshot(RealFiles(), PurePosixPath(path), database, IDENTITY)
    state = opened(tmp_path)
    assert contents(state) == before
    state.close()
    assert sorted(each.name for each in tmp_path.iterdir()) == [
        "diskless-metadata-3.db",
        "snapshot",
    ]


def test_snapshot_of_another_coordinator_is_not_installed(tmp_path: Path) -> None:
    state = filled_state(tmp_path)
    snapshot = SqliteSnapshot(state)
    snapshot.write(PurePosixPath(tmp_path / "snapshot"))
    snapshot.close()
    state.close()
    identity = StateIdentity("cluster", UUID(int=5), 4)
    with pytest.raises(StateDamaged, match="it is of partition 3"):
        install_snapshot(
            RealFiles(), PurePosixPath(tmp_path / "snapshot"), database_path(tmp_path, 4), identity
        )


# --- files ---


@pytest.fixture(params=["real", "virtual"])
def files(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[Files, PurePosixPath]:
    if request.param == "real":
        return RealFiles(), PurePosixPath(tmp_path)
    directory = PurePosixPath("/data")
    virtual = VirtualFiles(VirtualDisk())
    virtual.make_directory(directory)
    return virtual, directory


@pytest.fixture
def snapshots(files: tuple[Files, PurePosixPath]) -> SnapshotFiles:
    return SnapshotFiles(files[0], files[1], 3)


def write(files: Files, path: PurePosixPath, data: bytes) -> None:
    file = files.open(path, create=True, write=True)
    file.append_v([data])
    file.close()


def test_published_snapshot_is_the_newest(
    files: tuple[Files, PurePosixPath], snapshots: SnapshotFiles
) -> None:
    assert snapshots.newest() is None
    for offset in (9, 100, 30):
        write(files[0], snapshots.temporary(offset), bytes(offset))
        assert snapshots.publish(offset, TEMPORARY) == Snapshot(offset, offset)
    write(files[0], snapshots.temporary(700), b"incomplete")
    write(files[0], SnapshotFiles(files[0], files[1], 33).path(500), b"of another one")
    assert snapshots.newest() == Snapshot(100, 100)
    snapshots.remove_others({9, 100})
    assert snapshots.newest() == Snapshot(100, 100)
    assert snapshots.read(9, 5, 100) == bytes(4)
    assert snapshots.remove_from(10) == [100]
    assert snapshots.newest() == Snapshot(9, 9)
    assert not files[0].exists(snapshots.path(30))
    with pytest.raises(FileNotFoundError):
        snapshots.read(30, 0, 10)
    assert not files[0].exists(snapshots.temporary(700))


def test_download_continues_from_its_size(
    files: tuple[Files, PurePosixPath], snapshots: SnapshotFiles
) -> None:
    snapshot = Snapshot(40, 10)
    assert snapshots.start_download(snapshot) == 0
    snapshots.write_part(40, 0, b"abc")
    snapshots.write_part(40, 3, b"defg")
    assert snapshots.start_download(snapshot) == 7
    snapshots.write_part(40, 7, b"hij")
    assert snapshots.start_download(snapshot) == 10
    assert snapshots.newest() is None
    snapshots.publish(40, PART)
    assert snapshots.read(40, 0, 99) == b"abcdefghij"


def test_other_downloads_are_removed(
    files: tuple[Files, PurePosixPath], snapshots: SnapshotFiles
) -> None:
    snapshots.start_download(Snapshot(40, 10))
    snapshots.write_part(40, 0, b"abc")
    assert snapshots.start_download(Snapshot(50, 10)) == 0
    assert not files[0].exists(snapshots.path(40, PART))
    snapshots.write_part(50, 0, bytes(20))
    assert snapshots.start_download(Snapshot(50, 10)) == 0
