"""Cache of builds and downloads, and programs on PATH.

An entry has the digest of its sources in its name. A changed source is a new entry, so no entry is invalidated.
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
    """Return `ODRADEK_CACHE`, or `odradek` in the user's cache directory."""
    if named := os.environ.get("ODRADEK_CACHE"):
        return Path(named)
    home = os.environ.get("XDG_CACHE_HOME")
    return (Path(home) if home else Path.home() / ".cache") / "odradek"


def needed_program(program: str, what: str) -> str:
    """Return the path of `program`. Raises PeerUnavailable, with the name of the package `what`."""
    if found := shutil.which(program):
        return found
    raise PeerUnavailable(f"needs {what}: no program {program!r} on PATH")


def digest(*files: Path) -> str:
    """Return a digest of the names and contents of files."""
    sums = hashlib.sha256()
    for file in files:
        sums.update(file.name.encode() + b"\0" + file.read_bytes() + b"\0")
    return sums.hexdigest()[:16]


def kept(name: str, make: Callable[[Path], None]) -> Path:
    """Return the cache's entry `name` (a file or a directory), created by `make(path)` if it is missing.

    `make` writes to a temporary directory, and the result is renamed, so an entry is always complete. If several
    processes need the same entry, one creates it and the others wait. `make` must not request another entry.
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
    """Hold a lock on the directory itself. The kernel releases it if the process is killed."""
    descriptor = os.open(directory, os.O_RDONLY | os.O_CLOEXEC)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def run_build(command: Sequence[str], what: str, cwd: Path | None = None) -> None:
    """Run a build step. Raises PeerUnavailable, with the end of its output, if it fails."""
    done = subprocess.run(
        command, cwd=cwd, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False
    )
    if done.returncode != 0:
        raise PeerUnavailable(f"{what} failed:\n{done.stdout[-4000:]}")
