"""The six real seams together, and copies from file to file in the kernel."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path as OsPath

import pytest

from odradek.seams import zero_copy
from odradek.seams.real import real_seams


def test_real_seams_work_together() -> None:
    seams = real_seams(max_open=16)
    assert seams.clock.wall_ms() > 0
    assert seams.entropy.below(1) == 0


def test_real_seams_import_no_optional_modules() -> None:
    """`serve` imports obstore and sqlite3 only if it uses them."""
    code = (
        "import sys, odradek.seams.real\n"
        "print([name for name in ('obstore', 'sqlite3', 'asyncio') if name in sys.modules])"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout.strip() == "[]"


@pytest.mark.parametrize("first", range(len(zero_copy._WAYS)))
def test_zero_copy_methods_copy_the_same_bytes(
    tmp_path: OsPath, monkeypatch: pytest.MonkeyPatch, first: int
) -> None:
    """Each method, with the slower ones as fallbacks, copies exactly these bytes to their position."""
    monkeypatch.setattr(zero_copy, "_WAYS", zero_copy._WAYS[first:])
    content = bytes(range(256)) * 8192
    (tmp_path / "source").write_bytes(content)
    (tmp_path / "target").write_bytes(b"before")
    source = os.open(tmp_path / "source", os.O_RDONLY)
    target = os.open(tmp_path / "target", os.O_RDWR)
    try:
        size = len(content)
        assert zero_copy.copy(source, 100, target, 6, size) == size - 100
        zero_copy.write_out(target, 6, size, wait=True)
    finally:
        os.close(source)
        os.close(target)
    assert (tmp_path / "target").read_bytes() == b"before" + content[100:]


def test_zero_copy_error_of_either_file_is_raised(tmp_path: OsPath) -> None:
    (tmp_path / "source").write_bytes(b"x" * 100)
    source = os.open(tmp_path / "source", os.O_RDONLY)
    try:
        with pytest.raises(OSError, match="Bad file descriptor"):
            zero_copy.copy(source, 0, source, 0, 100)
    finally:
        os.close(source)
