"""Starts after arbitrary changes to the files: a start serves what it can, and shuts down
cleanly."""

from __future__ import annotations

import contextlib
import errno

import pytest
import trio
from hypothesis import given, settings
from hypothesis import strategies as st

from odradek.seams.files import Path
from odradek.storage.directories import clean_shutdown
from odradek.storage.directories.log_directory import LogDirectory
from odradek.storage.errors import DirectoryError, LogFailed, StorageError, WrongDirectory
from odradek.storage.log.partition_log import PartitionLog
from odradek.testing.virtual_disk import FileNode
from tests.support.log_managers import ONE, A, B, LogManagerWorld, append, contents


async def run_with_failure(world: LogManagerWorld) -> None:
    async with world.running() as manager:
        for number in range(4):
            log = await manager.create("t", number, ONE)
            for at in range(12):
                append(log, f"{number}:{at}" + "x" * 40)
            log.advance_log_start(1, "asked to")


def damage(world: LogManagerWorld, data: st.DataObject) -> set[str]:
    """Change, truncate or remove a few files; returns their directories."""
    touched = set()
    files = [(path, node) for path, node in world.disk.walk() if isinstance(node, FileNode)]
    for _ in range(data.draw(st.integers(1, 4))):
        path, node = data.draw(st.sampled_from(files))
        touched.add(path[:2])
        match data.draw(st.sampled_from(["flip", "cut", "grow", "remove"])):
            case "flip" if node.content:
                at = data.draw(st.integers(0, len(node.content) - 1))
                node.content[at] ^= data.draw(st.integers(1, 255))
            case "cut":
                node.resize(data.draw(st.integers(0, len(node.content))))
            case "grow":
                node.resize(len(node.content) + data.draw(st.integers(1, 100)))
            case "remove":
                world.files.remove(Path(path), missing_ok=True)
    return touched


async def next_life(world: LogManagerWorld, touched: set[str]) -> None:
    try:
        manager = world.manager()
    except DirectoryError:
        return  # the owner of the directory is unknown
    await manager.load()
    for directory in manager.directories.all:
        # The ids in the metadata log directory apply, even if damaged.
        blamed = {str(directory.path)} | ({str(A)} if is_wrong(directory) else set())
        assert not directory.failed or blamed & touched
    for log in manager.logs():
        if str(log.directory.parent) not in touched:
            wanted = [f"{log.partition}:{at}" + "x" * 40 for at in range(1, 12)]
            assert contents(log)[: len(wanted)] == wanted
        # Corrupt bits of a cleanly closed log are served unchanged: clients check the CRC.
        with contextlib.suppress(StorageError):
            log.read(log.log_start_offset, 1 << 20, limit=log.end_offset)
            append(log, "later append")
    await manager.close()
    manager.directories.close()


def is_wrong(directory: LogDirectory) -> bool:
    return isinstance(directory.failure, WrongDirectory)


@settings(max_examples=80, deadline=None)
@given(data=st.data())
def test_damaged_log_directory_does_not_affect_others(data: st.DataObject) -> None:
    world = LogManagerWorld(paths=(A, B))
    trio.run(run_with_failure, world, clock=world.clock)
    touched = damage(world, data)
    if data.draw(st.booleans()):  # after an unclean shutdown too: everything is scanned
        for directory in (A, B):
            world.files.remove(directory / clean_shutdown.FILE_NAME, missing_ok=True)
    for _ in range(2):
        trio.run(next_life, world, touched, clock=world.clock)


def log_directory_of(world: LogManagerWorld, partition: int) -> Path:
    return next(path for path in (A, B) if f"t-{partition}" in world.names(path))


@pytest.mark.parametrize("name", ["odd.deleted", f"{40:020d}.log"])
async def test_directory_in_place_of_file_takes_only_the_log_offline(name: str) -> None:
    world = LogManagerWorld()
    await run_with_failure(world)
    path = log_directory_of(world, 0) / "t-0" / name
    world.files.make_directory(path)
    async with world.running() as manager:
        assert len(manager.online_directories()) == 2
        assert {log.partition for log in manager.logs()} >= {1, 2, 3}
        with pytest.raises(LogFailed):
            manager.get("t", 0)
    assert not world.failures


def use(log: PartitionLog) -> None:
    append(log, "new")
    contents(log)
    log.find_timestamp(0)
    log.check_online()


@pytest.mark.parametrize(
    ("suffix", "place"),
    [(".log", 0), (".log", -1), (".index", 0), (".timeindex", 0), (".snapshot", -1)],
)
async def test_directory_in_place_of_file_after_clean_start_takes_only_the_log_offline(
    suffix: str, place: int
) -> None:
    world = LogManagerWorld()
    await run_with_failure(world)
    log_directory = log_directory_of(world, 0) / "t-0"
    odd = (
        log_directory
        / [name for name in world.names(log_directory) if name.endswith(suffix)][place]
    )
    world.files.remove(odd)
    world.files.make_directory(odd)
    async with world.running() as manager:
        with pytest.raises(LogFailed):
            use(manager.get("t", 0))
        assert len(manager.online_directories()) == 2
        for number in range(1, 4):
            append(manager.get("t", number), "new")
    assert not world.failures


@pytest.mark.parametrize("name", ["odd", "t-0"])
async def test_symlink_loop_affects_only_its_log(name: str) -> None:
    world = LogManagerWorld()
    await run_with_failure(world)
    log_directory = log_directory_of(world, 0)
    world.files.make_directory(log_directory / name)
    world.disk.fail(str(log_directory / name), errno.ELOOP, {"stat"})
    async with world.running() as manager:
        assert len(manager.online_directories()) == 2
        assert {log.partition for log in manager.logs()} >= {1, 2, 3}
        if name == "odd":
            assert manager.get("t", 0) is not None
        else:
            with pytest.raises(LogFailed):
                manager.get("t", 0)
    assert not world.failures
