"""Getting what does not come with us: programs on PATH, builds, and the cache they are kept in.

What is built or resolved is kept under a name made of its sources, so that a changed source is a new
entry and nothing has to be invalidated.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

from odradek.bench.model import PeerUnavailable


def cache_directory() -> Path:
    """`ODRADEK_CACHE`, or the user's cache directory."""
    if named := os.environ.get("ODRADEK_CACHE"):
        return Path(named)
    home = os.environ.get("XDG_CACHE_HOME")
    return (Path(home) if home else Path.home() / ".cache") / "odradek"


def needed_program(program: str, what: str) -> str:
    """Where `program` is; PeerUnavailable says that it belongs to `what`, which is to be installed."""
    if found := shutil.which(program):
        return found
    raise PeerUnavailable(f"needs {what}: no program {program!r} on PATH")


def digest(*files: Path) -> str:
    """A name for what is made of these files."""
    sums = hashlib.sha256()
    for file in files:
        sums.update(file.name.encode() + b"\0" + file.read_bytes() + b"\0")
    return sums.hexdigest()[:16]


def kept(name: str, make: Callable[[Path], None]) -> Path:
    """The cache's entry `name` (a file or a directory), made by `make(path)` if it is not there.

    `make` works in a directory of its own, and the result is renamed into place: an entry that
    exists is whole.
    """
    entry = cache_directory() / name
    if entry.exists():
        return entry
    entry.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=entry.parent) as directory:
        made = Path(directory) / entry.name
        make(made)
        try:
            made.rename(entry)
        except OSError:  # somebody else was faster
            if not entry.exists():
                raise
    return entry


def run_build(command: Sequence[str], what: str, cwd: Path | None = None) -> None:
    """Run a build step; PeerUnavailable has the end of what it said if it fails."""
    done = subprocess.run(
        command, cwd=cwd, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False
    )
    if done.returncode != 0:
        raise PeerUnavailable(f"{what} failed:\n{done.stdout[-4000:]}")
