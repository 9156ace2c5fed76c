"""One suite a seam, run over the real implementation and the virtual one."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path as OsPath

import pytest

from odradek.seams.files import Files, Path
from odradek.seams.real_files import RealFiles
from odradek.testing.virtual_disk import VirtualDisk
from odradek.testing.virtual_files import VirtualFiles


@pytest.fixture(params=["real", "virtual"])
def files(request: pytest.FixtureRequest) -> Iterator[Files]:
    if request.param == "real":
        yield RealFiles(max_open=64)
    else:
        yield VirtualFiles(VirtualDisk())


@pytest.fixture
def directory(files: Files, tmp_path: OsPath) -> Path:
    """An empty directory, on whichever disk the test runs."""
    made = Path(tmp_path) / "here"
    files.make_directory(made)
    return made
