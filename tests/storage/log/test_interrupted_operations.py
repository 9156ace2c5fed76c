"""Files that interrupted operations left, and their treatment by the loader."""

from __future__ import annotations

import dataclasses

import pytest

from odradek.seams.files import Path
from odradek.storage.log.index_file import replace_file
from tests.support.partition_logs import (
    DIRECTORY,
    FOREVER,
    LogWorld,
    batch,
    check_indexes,
    idempotent,
    marker,
    offsets_in,
)

CONFIG = dataclasses.replace(FOREVER, internal_segment_bytes=700, index_interval_bytes=100)


@pytest.fixture
def world() -> LogWorld:
    """A cleanly closed log with offsets 0 to 29 in segments that begin at 0, 6, 12, 18, 24."""
    world = LogWorld(CONFIG)
    for n in range(30):
        world.append(idempotent(7, n, size=40))
    world.log.close(True)
    return world


def name(offset: int, kind: str) -> str:
    return f"{offset:020d}.{kind}"


def put(world: LogWorld, file_name: str, data: bytes = b"x") -> None:
    world.files.open(DIRECTORY / file_name, create=True).append_v([data])


@pytest.mark.parametrize("clean", [True, False])
def test_deleted_and_cleaned_files_are_removed(world: LogWorld, clean: bool) -> None:
    for kind in (
        "log.deleted",
        "index.deleted",
        "snapshot.deleted",
        "log.cleaned",
        "index.cleaned",
    ):
        put(world, name(2, kind))
    put(world, "00000000000000000007-0000000001.checkpoint.deleted")
    put(world, "00000000000000000007-0000000001.checkpoint")
    put(world, "quorum-state")
    log = world.open(clean=clean)
    assert offsets_in(log) == list(range(30))
    names = world.files.list(DIRECTORY)
    assert not [each for each in names if each.endswith((".cleaned", "log.deleted"))]
    # A file of the Raft log.
    assert {each for each in names if "checkpoint" in each or "quorum" in each} == {
        "00000000000000000007-0000000001.checkpoint",
        "00000000000000000007-0000000001.checkpoint.deleted",
        "leader-epoch-checkpoint",
        "quorum-state",
    }


@pytest.mark.parametrize("clean", [True, False])
def test_indexes_without_data_are_removed(world: LogWorld, clean: bool) -> None:
    for kind in ("index", "timeindex", "txnindex"):
        put(world, name(3, kind))
    world.open(clean=clean)
    assert not [each for each in world.files.list(DIRECTORY) if each.startswith(name(3, ""))]


def compacted(world: LogWorld) -> dict[str, bytes]:
    """Files of a segment with offsets 6 to 17, as the log cleaner makes it of two."""
    other = LogWorld(dataclasses.replace(CONFIG, internal_segment_bytes=5000))
    for n in range(18):
        other.append(idempotent(7, n, size=40))
    other.log.truncate_fully_and_start_at(6)
    for n in range(6, 18):
        other.append(idempotent(7, n, size=40))
    other.log.close(True)
    return {
        kind: other.files.read(DIRECTORY / name(6, kind)) for kind in ("log", "index", "timeindex")
    }


@pytest.mark.parametrize("clean", [True, False])
@pytest.mark.parametrize("renamed", [(), ("log",), ("log", "index"), ("log", "index", "timeindex")])
def test_complete_swap_replaces_old_segments(
    world: LogWorld, clean: bool, renamed: tuple[str, ...]
) -> None:
    for kind, data in compacted(world).items():
        if kind in renamed:
            world.files.remove(DIRECTORY / name(6, kind))
            put(world, name(6, kind), data)
        else:
            put(world, name(6, f"{kind}.swap"), data)
    if renamed:  # the old segments were renamed to `.deleted` before
        for kind in ("log", "index", "timeindex"):
            world.files.rename(DIRECTORY / name(12, kind), DIRECTORY / name(12, f"{kind}.deleted"))
    log = world.open(clean=clean)
    world.log = log
    assert [segment.base_offset for segment in log.segments] == [0, 6, 18, 24]
    assert offsets_in(log) == list(range(30))
    assert not [
        each for each in world.files.list(DIRECTORY) if each.endswith((".swap", ".deleted"))
    ]
    world.append(batch())
    check_indexes(world)


def test_interrupted_rebuild_of_an_index_does_not_discard_a_complete_swap(world: LogWorld) -> None:
    for kind, data in compacted(world).items():
        put(world, name(6, f"{kind}.swap"), data)
        world.files.remove(DIRECTORY / name(6, kind), missing_ok=True)
        world.files.remove(DIRECTORY / name(12, kind), missing_ok=True)
    index = DIRECTORY / name(0, "index")

    def power_fails(*_: object) -> None:
        raise OSError

    rename, world.files.rename = world.files.rename, power_fails  # type: ignore[method-assign]
    with pytest.raises(OSError):
        replace_file(world.files, index, [b"new"])
    world.files.rename = rename  # type: ignore[method-assign]
    assert name(0, "index.cleaned") not in world.names()
    log = world.open(clean=True)
    assert [segment.base_offset for segment in log.segments] == [0, 6, 18, 24]
    assert not [each for each in world.names() if each.endswith(".deleted")]


def test_incomplete_swap_is_discarded(world: LogWorld) -> None:
    for kind, data in compacted(world).items():
        put(world, name(6, f"{kind}.swap"), data)
    put(world, name(0, "log.cleaned"), b"half")
    log = world.open(clean=True)
    assert [segment.base_offset for segment in log.segments] == [0, 6, 12, 18, 24]
    assert offsets_in(log) == list(range(30))


@pytest.mark.parametrize("clean", [True, False])
def test_swap_without_records_replaces_segment_at_its_offset(clean: bool) -> None:
    """All its records were compacted away. Its transaction index may list transactions whose
    markers are gone too, so readers would treat later committed records as aborted."""
    world = LogWorld(CONFIG)
    world.append(idempotent(7, 0, transactional=True))
    world.coordinate(marker(7, commit=False))
    world.log.roll()
    world.append()
    world.flush()
    world.log.close(True)
    assert name(0, "txnindex") in world.names()
    for kind in ("log", "index", "timeindex"):
        put(world, name(0, f"{kind}.swap"), b"")
    world.log = world.open(clean=clean)
    assert [segment.base_offset for segment in world.log.segments] == [0, 2]
    assert offsets_in(world.log) == [2]
    assert world.log.aborted_transactions(0, 3) == []
    assert name(0, "txnindex") not in world.names()


@pytest.mark.parametrize("clean", [True, False])
def test_invalid_names_do_not_affect_swap(world: LogWorld, clean: bool) -> None:
    """The old segments are removed already: discarding the swap would lose records."""
    for kind, data in compacted(world).items():
        put(world, name(6, f"{kind}.swap"), data)
        for offset in (6, 12):
            world.files.remove(DIRECTORY / name(offset, kind))
    put(world, "notes.cleaned")
    put(world, "notes.swap")
    log = world.open(clean=clean)
    assert offsets_in(log) == list(range(30))
    assert [each for each in world.files.list(DIRECTORY) if "notes" in each] == [
        "notes.cleaned",
        "notes.swap",
    ]


@pytest.mark.parametrize("clean", [True, False])
def test_swap_replaces_only_segments_within_its_offsets(world: LogWorld, clean: bool) -> None:
    for offset in (0, 24):
        put(world, name(offset, "log.swap"), world.files.read(DIRECTORY / name(offset, "log")))
    log = world.open(clean=clean)
    assert [segment.base_offset for segment in log.segments] == [0, 6, 12, 18, 24]
    assert offsets_in(log) == list(range(30))


def test_snapshots_without_segment_are_removed_except_latest(world: LogWorld) -> None:
    for offset in (3, 29):
        world.files.rename(
            DIRECTORY / name(offset + 3 if offset == 3 else 30, "snapshot"),
            DIRECTORY / name(offset, "snapshot"),
        )
    log = world.open(clean=True)
    assert [each for each in world.files.list(DIRECTORY) if each.endswith("snapshot")] == [
        name(offset, "snapshot") for offset in (12, 18, 24, 29)
    ]
    assert Path(log.directory) == DIRECTORY
