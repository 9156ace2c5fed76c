"""Virtual environments with an installation of this repository."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).parent
REPOSITORY = HERE.parents[1]
NOT_COPIED = (".*", "build", "tests", "*.egg-info", "*.so", "__pycache__", "odradek-data")
TIMEOUT_S = 300


def run(*command: str | Path, cwd: Path | None = None, **environment: str) -> str:
    """Run a command and return what it prints. Raises AssertionError if it fails."""
    done = subprocess.run(
        [str(part) for part in command],
        cwd=cwd,
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def new_environment(directory: Path) -> Path:
    """Create a virtual environment and return its Python."""
    run(sys.executable, "-m", "venv", directory)
    return directory / "bin" / "python"


def site_packages(python: Path) -> Path:
    (found,) = python.parents[1].glob("lib/python3*/site-packages")
    return found


def copy_source(directory: Path) -> Path:
    """Copy what a build needs, because pip builds in the folder that it installs."""
    return shutil.copytree(REPOSITORY, directory, ignore=shutil.ignore_patterns(*NOT_COPIED))
