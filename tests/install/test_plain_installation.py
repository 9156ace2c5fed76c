"""A plain installation in an environment of its own: its size, its packages, and that a broker works with them."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.install.environments import HERE, copy_source, new_environment, run, site_packages
from tests.install.smoke_program import PARTS

SIZE_MAX = 80_000_000
"""Maximum size of the installed files in bytes, with bytecode; the README names it."""
NOT_INSTALLED = {"numpy", "re2", "pyarrow", "pyspark", "pytest"}


def size_bytes(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


@pytest.mark.slow
@pytest.mark.parametrize("has_compiler", [True, False])
def test_plain_installation_is_small_and_complete(tmp_path: Path, has_compiler: bool) -> None:
    python = new_environment(tmp_path / "venv")
    packages = site_packages(python)
    before = size_bytes(packages)
    source = copy_source(tmp_path / "source")
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
