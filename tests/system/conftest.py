"""Tests with broker processes on the machine's own disks."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest


@pytest.fixture
def open_path() -> Iterator[Path]:
    """Temporary directory that every user can access; pytest's own directories are private."""
    with tempfile.TemporaryDirectory(prefix="odradek-") as name:
        path = Path(name)
        path.chmod(0o755)
        yield path
