"""Real disks for tests: small, read-only, unmounted while a broker runs, or failing.

A failing disk is an ext4 file system on a loop device. Its image is in a tmpfs that is too small for it: data
that does not fit is an I/O error at writeback, and truncating the image causes I/O errors at reads. All of
this needs a privileged user on Linux; without one, the tests are skipped with a message.
"""

from __future__ import annotations

import contextlib
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest


def run(*words: object) -> str:
    done = subprocess.run(
        [str(word) for word in words], capture_output=True, text=True, check=True, timeout=60
    )
    return done.stdout.strip()


def need(*programs: str) -> None:
    for program in programs:
        if shutil.which(program) is None:
            pytest.skip(f"this machine has no {program}")


@contextlib.contextmanager
def mounted(what: object, path: Path, *options: str) -> Iterator[None]:
    """Mount a file system for the duration of a context; skips the test if mounting is not permitted."""
    need("mount", "umount")
    path.mkdir(parents=True, exist_ok=True)
    try:
        run("mount", *options, what, path)
    except subprocess.CalledProcessError as error:
        pytest.skip(f"mounting is not permitted on this machine: {error.stderr.strip()}")
    try:
        yield
    finally:
        subprocess.run(["umount", "-l", str(path)], capture_output=True, check=False)


@contextlib.contextmanager
def small_disk(path: Path, size: str) -> Iterator[None]:
    with mounted("none", path, "-t", "tmpfs", "-o", f"size={size}"):
        yield


def fill(path: Path) -> Path:
    """Allocate all free space; removing the returned file frees it."""
    ballast = path / "ballast"
    with ballast.open("wb", buffering=0) as file:
        for size in (1 << 20, 1 << 12, 1):
            with contextlib.suppress(OSError):
                while True:
                    file.write(b"x" * size)
    return ballast


class FailingDisk:
    """A disk on which tests cause I/O errors."""

    def __init__(self, image: Path, path: Path, device: str) -> None:
        self.image = image
        self.path = path
        self._trigger = Path("/sys/fs/ext4") / Path(device).name / "trigger_fs_error"

    def turn_read_only(self) -> None:
        """Trigger the kernel's reaction to an ext4 error: the file system becomes read-only while files
        are open.
        """
        if not self._trigger.exists():
            pytest.skip("this kernel does not support triggering an ext4 error")
        self._trigger.write_text("as if")

    def fail_writes(self) -> None:
        """Make writes to new blocks fail at writeback."""
        fill(self.image.parent)

    def fail_reads(self) -> None:
        """Make reads of data outside the page cache fail."""
        run("sync", "-f", self.path)
        Path("/proc/sys/vm/drop_caches").write_text("1")
        with self.image.open("r+b") as image:
            image.truncate(1 << 20)
        Path("/proc/sys/vm/drop_caches").write_text("3")


@contextlib.contextmanager
def failing_disk(path: Path, backing: Path) -> Iterator[FailingDisk]:
    need("losetup", "mkfs.ext4")
    with small_disk(backing, "48m"):
        image = backing / "image"
        with image.open("wb") as file:
            file.truncate(256 << 20)
        run("mkfs.ext4", "-q", "-O", "^has_journal", "-E", "lazy_itable_init=0", image)
        try:
            device = run("losetup", "-f", "--show", image)
        except subprocess.CalledProcessError as error:
            pytest.skip(f"this machine has no loop device: {error.stderr.strip()}")
        try:
            with mounted(device, path, "-o", "errors=remount-ro"):
                yield FailingDisk(image, path, device)
        finally:
            run("losetup", "-d", device)
