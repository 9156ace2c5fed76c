"""A full disk raises an exception and changes no file; the process continues."""

from __future__ import annotations

import errno
import resource
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path as OsPath

import pytest

from odradek.seams.files import Files, Path
from odradek.seams.real_files import RealFiles
from odradek.testing.virtual_disk import VirtualDisk
from odradek.testing.virtual_files import VirtualFiles

MIB = 1 << 20


@pytest.fixture(params=["tmpfs", "virtual"])
def small(request: pytest.FixtureRequest, tmp_path: OsPath) -> Iterator[tuple[Files, Path]]:
    """A directory on a disk of one MiB."""
    path = tmp_path / "small"
    if request.param == "virtual":
        disk = VirtualDisk()
        disk.mount(Path(path), MIB)
        yield VirtualFiles(disk), Path(path)
        return
    path.mkdir()
    mount = shutil.which("mount")
    if (
        mount is None
        or subprocess.run(
            [mount, "-t", "tmpfs", "-o", "size=1m", "tmpfs", path], capture_output=True, check=False
        ).returncode
    ):
        pytest.skip("mounting a tmpfs needs root")
    try:
        yield RealFiles(max_open=16), Path(path)
    finally:
        subprocess.run(["umount", "-l", path], check=True)


def no_space(caught: pytest.ExceptionInfo[OSError]) -> bool:
    return caught.value.errno == errno.ENOSPC


def test_failed_append_on_full_disk_keeps_the_file(small: tuple[Files, Path]) -> None:
    files, path = small
    file = files.open(path / "f", create=True)
    file.append_v([b"a" * 1000])
    with pytest.raises(OSError) as caught:
        file.append_v([b"b" * 1000, bytes(2 * MIB)])
    assert no_space(caught)
    assert file.size == 1000
    file.truncate(1000)
    assert files.file_size(path / "f") == 1000
    assert file.append_v([b"c" * 1000]) == 1000
    assert file.read_at(990, 20) == b"a" * 10 + b"c" * 10


def test_append_after_failed_append_overwrites_it(small: tuple[Files, Path]) -> None:
    files, path = small
    file = files.open(path / "f", create=True)
    file.append_v([b"a" * 1000])
    with pytest.raises(OSError):
        file.append_v([b"b" * (2 * MIB)])
    assert file.append_v([b"c" * 1000]) == 1000
    assert file.read_at(1000, 1000) == b"c" * 1000


def test_failed_preallocation_changes_nothing(small: tuple[Files, Path]) -> None:
    files, path = small
    file = files.open(path / "f", create=True)
    file.append_v([b"a" * 1000])
    with pytest.raises(OSError) as caught:
        file.preallocate(2 * MIB)
    assert no_space(caught)
    assert (file.size, files.file_size(path / "f")) == (1000, 1000)
    file.preallocate(MIB // 2)
    assert bytes(file.map_read(MIB // 2)[-1:]) == b"\0"


def test_failed_replacement_keeps_the_old_file(small: tuple[Files, Path]) -> None:
    files, path = small
    files.write_new(path / "checkpoint", b"old")
    with pytest.raises(OSError) as caught:
        files.write_new(path / "checkpoint", bytes(2 * MIB))
    assert no_space(caught)
    assert files.read(path / "checkpoint") == b"old"
    assert files.list(path) == ["checkpoint"]


def test_removal_frees_space(small: tuple[Files, Path]) -> None:
    files, path = small
    file = files.open(path / "f", create=True)
    file.append_v([bytes(MIB * 3 // 4)])
    other = files.open(path / "g", create=True)
    with pytest.raises(OSError):
        other.append_v([bytes(MIB // 2)])
    file.close()
    files.remove(path / "f")
    other.append_v([bytes(MIB // 2)])
    usage = files.disk_usage(path)
    assert usage.total_bytes == MIB
    assert usage.free_bytes <= MIB // 2


def test_append_over_the_file_size_limit_fails(tmp_path: OsPath) -> None:
    """RLIMIT_FSIZE causes a short write and an error without a separate disk."""
    files = RealFiles(max_open=16)
    file = files.open(Path(tmp_path) / "f", create=True)
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (10_000, before[1]))
    try:
        with pytest.raises(OSError) as caught:
            file.append_v([b"x" * 6_000, b"y" * 6_000])
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert caught.value.errno == errno.EFBIG
    assert file.size == 0
    assert file.append_v([b"x" * 6_000, b"y" * 6_000]) == 0
    assert files.read(Path(tmp_path) / "f") == b"x" * 6_000 + b"y" * 6_000
