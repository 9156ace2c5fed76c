"""The descriptor pool of `RealFiles`: 4,000 partitions have more files than the process has descriptors."""

from __future__ import annotations

import errno
import gc
import os
import random
import resource
import subprocess
import sys
import threading
from collections.abc import Sequence
from pathlib import Path as OsPath
from typing import Any

import pytest

from odradek.seams import real_files
from odradek.seams.files import OutOfDescriptors, Path, WouldBlock
from odradek.seams.real_files import RealFile, RealFiles
from tests.contracts.descriptors import descriptors_left, open_descriptors


def test_5000_files_need_256_descriptors(tmp_path: OsPath) -> None:
    files = RealFiles(max_open=256)
    opened = [files.open(Path(tmp_path) / str(n), create=True) for n in range(5000)]
    rng = random.Random(1)
    expected = [b""] * 5000
    for _ in range(10_000):
        n = rng.randrange(5000)
        part = b"%d." % rng.randrange(1000)
        opened[n].append_v([part])
        expected[n] += part
        if rng.random() < 0.3:
            assert bytes(opened[n].map_read(opened[n].size)) == expected[n]
    for file, data in zip(opened, expected, strict=True):
        assert file.read_at(0, 1 << 20) == data
    statistics = files.statistics()
    assert statistics.open_files + statistics.maps <= 256
    assert 0 < open_descriptors(tmp_path) <= 256
    assert statistics.evicted_files > 5000
    assert statistics.evicted_maps > 1000
    for file in opened:
        file.close()
    assert open_descriptors(tmp_path) == 0
    assert files.statistics().maps == 0


def test_least_recently_used_file_is_evicted_first(tmp_path: OsPath) -> None:
    files = RealFiles(max_open=6)  # four for files, two for maps
    opened = [files.open(Path(tmp_path) / str(n), create=True) for n in range(4)]
    opened[0].append_v([b"x"])
    files.open(Path(tmp_path) / "4", create=True)
    assert [file.fd >= 0 for file in opened] == [True, False, True, True]


def test_borrowed_descriptor_is_not_evicted(tmp_path: OsPath) -> None:
    files = RealFiles(max_open=3)
    first = files.open(Path(tmp_path) / "first", create=True)
    fd = first.borrow()
    for n in range(10):
        files.open(Path(tmp_path) / str(n), create=True).append_v([b"x"])
    assert first.fd == fd
    os.fstat(fd)
    first.close()
    os.fstat(fd)
    first.give_back()
    with pytest.raises(OSError):
        os.fstat(fd)


def test_mapping_with_a_view_is_not_evicted(tmp_path: OsPath) -> None:
    files = RealFiles(max_open=3)
    opened = [files.open(Path(tmp_path) / str(n), create=True) for n in range(5)]
    for file in opened:
        file.append_v([b"0123"])
    view = opened[0].map_read(4)
    for file in opened[1:]:
        assert bytes(file.map_read(4)) == b"0123"
    assert bytes(view) == b"0123"
    assert files.statistics().maps == 2


def test_file_renamed_during_open_is_read(
    tmp_path: OsPath, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another thread renames it after its name is read and before the file is opened."""
    files = RealFiles(max_open=3)
    old, new = Path(tmp_path) / "old", Path(tmp_path) / "new"
    pinned = files.open(old, create=True)
    pinned.append_v([b"0123456789"])
    pinned.pin()
    for n in range(10):
        files.open(Path(tmp_path) / str(n), create=True).append_v([b"x"])
    assert pinned.fd < 0
    real = pinned.pool.open_path

    def renamed_first(*of: Any) -> int:
        monkeypatch.undo()
        files.rename(old, new)
        return real(*of)

    monkeypatch.setattr(pinned.pool, "open_path", renamed_first)
    assert pinned.read_at(0, 10) == b"0123456789"


def test_pin_survives_eviction(tmp_path: OsPath) -> None:
    files = RealFiles(max_open=3)
    pinned = files.open(Path(tmp_path) / "pinned", create=True)
    pinned.append_v([b"0123456789"])
    pinned.pin()
    for n in range(10):
        files.open(Path(tmp_path) / str(n), create=True).append_v([b"x"])
    assert pinned.fd < 0
    pinned.close()
    files.remove(Path(tmp_path) / "pinned")
    for n in range(10):
        files.open(Path(tmp_path) / str(n)).read_at(0, 1)
    assert pinned.read_at(0, 10) == b"0123456789"
    pinned.unpin()
    assert pinned.fd < 0
    assert files.statistics().pinned_files == 0


@pytest.mark.parametrize("when", ["before it is opened", "after"])
def test_last_pin_is_released_during_removal(
    tmp_path: OsPath, monkeypatch: pytest.MonkeyPatch, when: str
) -> None:
    """A reader in another thread releases the pin; the owner has closed the file before."""
    files = RealFiles(max_open=3)
    path = Path(tmp_path) / "pinned"
    pinned = files.open(path, create=True)
    pinned.append_v([b"0123456789"])
    pinned.pin()
    for n in range(10):
        files.open(Path(tmp_path) / str(n), create=True).append_v([b"x"])
    assert pinned.fd < 0
    pinned.close()
    real = pinned.borrow

    def beside_its_reader() -> int:
        if when == "after":
            fd = real()
        pinned.unpin()
        return fd if when == "after" else real()

    monkeypatch.setattr(RealFile, "borrow", lambda file: beside_its_reader())
    files.remove(path)
    assert pinned.fd < 0
    assert files.statistics().pinned_files == 0


def test_close_error_is_raised_by_sync_of_the_file(
    tmp_path: OsPath, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = RealFiles(max_open=3)
    first, pinned = (files.open(Path(tmp_path) / name, create=True) for name in "fp")
    first.append_v([b"0123"])
    pinned.pin()
    pinned.close()
    close = os.close

    def failing(fd: int) -> None:
        close(fd)
        raise OSError(errno.EIO, "written back in vain")

    monkeypatch.setattr(os, "close", failing)
    pinned.unpin()
    others = [files.open(Path(tmp_path) / str(n), create=True) for n in range(3)]
    monkeypatch.undo()
    assert first.fd < 0
    others[-1].sync()
    for _ in range(2):
        with pytest.raises(OSError, match="in vain"):
            first.sync()


def test_descriptor_exhaustion_evicts_and_retries(tmp_path: OsPath) -> None:
    """The kernel's limit is below the pool's limit, because sockets use more than half of the descriptors."""
    files = RealFiles(max_open=3000)
    for n in range(100):
        files.open(Path(tmp_path) / str(n), create=True).append_v([b"0123"])
    opened = [files.open(Path(tmp_path) / str(n)) for n in range(100)]
    with descriptors_left(8):
        for file in opened:
            assert file.read_at(0, 4) == b"0123"
            assert bytes(file.map_read(4)) == b"0123"


def test_descriptor_exhaustion_without_evictable_file_is_back_pressure(tmp_path: OsPath) -> None:
    files = RealFiles(max_open=64)
    path = Path(tmp_path) / "f"
    file = files.open(path, create=True)
    file.append_v([b"0123"])
    lazy = files.open(path)
    file.borrow()
    with descriptors_left(0):
        for use in (
            lambda: lazy.read_at(0, 1),
            lambda: file.map_read(1),
            lambda: files.open(Path(tmp_path) / "new", create=True),
            lambda: files.read(path),
            lambda: files.sync_directory(path.parent),
            lambda: files.list(path.parent),
            lambda: files.remove_tree(path.parent),
            lambda: files.lock(Path(tmp_path) / ".lock"),
        ):
            with pytest.raises(OutOfDescriptors) as caught:
                use()
            assert caught.value.errno == errno.EMFILE
    assert lazy.read_at(0, 4) == b"0123"
    file.give_back()


def test_soft_limit_is_raised(tmp_path: OsPath) -> None:
    soft, hard = before = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(soft, 1024), hard))
    try:
        RealFiles()
        assert resource.getrlimit(resource.RLIMIT_NOFILE) == (hard, hard)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)


def test_garbage_collected_files_close_their_descriptors(tmp_path: OsPath) -> None:
    files = RealFiles(max_open=64)
    opened = [files.open(Path(tmp_path) / str(n), create=True) for n in range(20)]
    assert open_descriptors(tmp_path) == 20
    del files, opened
    gc.collect()
    assert open_descriptors(tmp_path) == 0


def test_reads_in_threads_survive_evictions(tmp_path: OsPath) -> None:
    """Threads read and sync while others open files; each read returns bytes of its own file."""
    files = RealFiles(max_open=5)
    opened: list[RealFile] = []
    for n in range(40):
        file = files.open(Path(tmp_path) / str(n), create=True)
        file.append_v([b"%08d" % n * 8])
        opened.append(file)
    wrong: list[object] = []

    def work(seed: int) -> None:
        rng = random.Random(seed)
        try:
            for _ in range(400):
                n = rng.randrange(40)
                if opened[n].read_at(0, 64) != b"%08d" % n * 8:
                    wrong.append(n)
                if bytes(opened[n].map_read(64)) != b"%08d" % n * 8:
                    wrong.append(n)
                if rng.random() < 0.02:
                    opened[n].sync()
        except BaseException as error:
            wrong.append(error)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


@pytest.mark.parametrize("fails", [False, True])
def test_second_sync_waits_for_the_first(
    tmp_path: OsPath, monkeypatch: pytest.MonkeyPatch, fails: bool
) -> None:
    file = RealFiles(max_open=8).open(Path(tmp_path) / "f", create=True)
    file.append_v([b"0123"])
    begun, may_end = threading.Event(), threading.Event()
    ends: list[str] = []

    def slow(fd: int) -> None:
        begun.set()
        may_end.wait(10)
        ends.append("the disk")
        if fails:
            raise OSError(errno.EIO, "gone")

    def sync() -> None:
        try:
            file.sync()
            ends.append("good")
        except OSError:
            ends.append("failed")

    monkeypatch.setattr(real_files, "sync_data", slow)
    first, second = threading.Thread(target=sync), threading.Thread(target=sync)
    first.start()
    assert begun.wait(10)
    second.start()
    second.join(0.1)
    may_end.set()
    first.join(10)
    second.join(10)
    end = "failed" if fails else "good"
    assert ends == ["the disk", end, end]  # once, and no call before it


def test_nowait_read_of_cold_pages_raises_would_block(tmp_path: OsPath) -> None:
    asked, read = _colds(tmp_path, 4 << 20, 0, 4 << 20)
    try:
        read.read_at(0, 4 << 20, nowait=True)
    except WouldBlock:
        assert not asked.is_in_memory(0, 4 << 20)
        warm = read.read_at(0, 4 << 20)
        assert read.read_at(0, 4 << 20, nowait=True) == warm
        assert read.is_in_memory(0, 4 << 20)
    else:
        pytest.skip("this file system keeps its pages, or cannot tell")


def test_nowait_read_with_cold_page_in_the_middle_raises_would_block(tmp_path: OsPath) -> None:
    """The kernel evicts pages at any time; a read of them would block on the disk."""
    read, asked = _colds(tmp_path, 4 << 20, 3 << 19, 1 << 20)
    try:
        read.read_at(2 << 20, 1, nowait=True)
    except WouldBlock:
        assert not asked.is_in_memory(7, (4 << 20) - 9)
        asked.read_at(0, 4 << 20)
        assert asked.is_in_memory(7, (4 << 20) - 9)
    else:
        pytest.skip("this file system keeps its pages, or cannot tell")


def _colds(path: OsPath, size: int, position: int, cold: int) -> list[RealFile]:
    """Return two files of `size` bytes, of which `cold` bytes at `position` are not in memory.

    The kernel reads ahead after a failed nowait read, so a second call needs the second file.
    """
    files = RealFiles(max_open=8)
    made = [files.open(Path(path) / name, create=True) for name in ("one", "other")]
    for file in made:
        file.append_v([os.urandom(size)])
        file.sync()
        os.posix_fadvise(file.borrow(), position, cold, os.POSIX_FADV_DONTNEED)
        file.give_back()
    return made


@pytest.mark.parametrize("cold", ["the beginning", "the end"])
def test_range_is_in_memory_if_both_ends_are(
    tmp_path: OsPath, monkeypatch: pytest.MonkeyPatch, cold: str
) -> None:
    file = RealFiles(max_open=8).open(Path(tmp_path) / "f", create=True)
    file.append_v([bytes(1 << 20)])
    cold_byte = {"the beginning": 3, "the end": 1 << 19}[cold]

    def preadv(fd: int, rooms: Sequence[bytearray], position: int, flags: int) -> int:
        if position <= cold_byte < position + len(rooms[0]):
            raise BlockingIOError(errno.EAGAIN, "it would wait")
        return len(rooms[0])

    monkeypatch.setattr(os, "preadv", preadv)
    assert not file.is_in_memory(3, (1 << 19) - 2)
    assert file.is_in_memory(4, (1 << 19) - 4)
    file.close()


def test_nowait_read_on_tmpfs_returns_data() -> None:
    """tmpfs returns EOPNOTSUPP. Its pages are in memory, so the read is done without nowait."""
    if not os.access("/dev/shm", os.W_OK):
        pytest.skip("no tmpfs to write to")
    files = RealFiles(max_open=8)
    path = Path("/dev/shm") / f"odradek-test-{os.getpid()}"
    file = files.open(path, create=True)
    try:
        file.append_v([b"0123456789"])
        assert file.is_in_memory(2, 3)
        assert file.read_at(2, 3, nowait=True) == b"234"
        assert file.read_at(9, 3, nowait=True) == b"9"
    finally:
        files.remove(path)
        file.close()


HOLD_AS_A_JVM_DOES = """
import fcntl, sys
held = open(sys.argv[1], "r+b")
try:
    fcntl.lockf(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
except OSError:
    print("refused", flush=True)
else:
    print("held", flush=True)
    sys.stdin.read()
"""


def test_file_lock_and_lock_of_a_jvm_exclude_each_other(tmp_path: OsPath) -> None:
    """Kafka locks `.lock` with Java's FileChannel.tryLock, which takes a POSIX lock on the bytes."""
    files = RealFiles(max_open=8)
    path = Path(tmp_path) / ".lock"
    command = [sys.executable, "-c", HOLD_AS_A_JVM_DOES, str(path)]
    lock = files.lock(path)
    refused = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, check=True)
    assert refused.stdout == b"refused\n"
    lock.release()
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == b"held\n"
        with pytest.raises(BlockingIOError):
            files.lock(path)
        holder.communicate()
    files.lock(path).release()
