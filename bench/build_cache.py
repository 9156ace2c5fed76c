"""Getting what does not come with us: programs on PATH, builds, and the cache they are kept in.

What is built or resolved is kept under a name made of its sources, so that a changed source is a new
entry and nothing has to be invalidated.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
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
    exists is whole. Of several processes that miss something, one makes it and the others wait;
    `make` itself must not ask for an entry.
    """
    entry = cache_directory() / name
    if entry.exists():
        return entry
    entry.parent.mkdir(parents=True, exist_ok=True)
    with _alone(entry.parent), tempfile.TemporaryDirectory(dir=entry.parent) as directory:
        if not entry.exists():
            made = Path(directory) / entry.name
            make(made)
            made.rename(entry)
    return entry


@contextmanager
def _alone(directory: Path) -> Iterator[None]:
    """Hold the directory's own lock, which leaves no file; what a killed process held is free."""
    descriptor = os.open(directory, os.O_RDONLY | os.O_CLOEXEC)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def run_build(command: Sequence[str], what: str, cwd: Path | None = None) -> None:
    """Run a build step; PeerUnavailable has the end of what it said if it fails."""
    done = subprocess.run(
        command, cwd=cwd, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False
    )
    if done.returncode != 0:
        raise PeerUnavailable(f"{what} failed:\n{done.stdout[-4000:]}")
