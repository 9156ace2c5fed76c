"""A plain installation in an environment of its own: its size, its packages, and that a broker works with them."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.install.smoke_program import PARTS

HERE = Path(__file__).parent
REPOSITORY = HERE.parents[1]
SIZE_MAX = 80_000_000
"""Maximum size of the installed files in bytes, with bytecode; the README names it."""
NOT_INSTALLED = {"numpy", "re2", "pyarrow", "pyspark", "pytest"}
NOT_COPIED = (".*", "build", "*.egg-info", "*.so", "__pycache__", "odradek-data")
TIMEOUT_S = 300


def run(*command: str | Path, **environment: str) -> str:
    done = subprocess.run(
        [str(part) for part in command],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def size_bytes(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


@pytest.mark.slow
@pytest.mark.parametrize("has_compiler", [True, False])
def test_plain_installation_is_small_and_complete(tmp_path: Path, has_compiler: bool) -> None:
    run(sys.executable, "-m", "venv", tmp_path / "venv")
    python = tmp_path / "venv" / "bin" / "python"
    (packages,) = (tmp_path / "venv" / "lib").glob("python3*/site-packages")
    before = size_bytes(packages)
    # pip builds in the folder that it installs.
    source = shutil.copytree(
        REPOSITORY, tmp_path / "source", ignore=shutil.ignore_patterns(*NOT_COPIED)
    )
    compiler = {} if has_compiler else {"CC": "false"}
    run(
        python,
        "-m",
        "pip",
        "install",
        "-q",
        "-c",
        source / "constraints.txt",
        source,
        **compiler,
    )
    assert size_bytes(packages) - before <= SIZE_MAX
    assert not {path.name for path in packages.iterdir()} & NOT_INSTALLED
    assert len(list((packages / "odradek").rglob("*.so"))) == (2 if has_compiler else 0)
    printed = run(python, HERE / "smoke_program.py", tmp_path / "data", PYTHONPATH="")
    assert printed.split() == PARTS
