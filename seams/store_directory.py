"""A directory that is a remote store, told from whatever lies in its place while it is unmounted.

Who uses a directory first puts a mark into it, a random text that no other store has. A node remembers
in a file of its own which mark the directory had; from then on it takes no other directory for it, and
makes none: the store is away until the mark is there. Where the node keeps no memory (tools), it is the
directory that was there when it was opened.

Order: the mark is synced before it is remembered, and remembered before the first object is put. A
crash in between leaves a mark that the next start finds.

A node whose configs name another place than it remembers takes that, and says so: it may be meant, and what
was copied to the other place is not found there.
"""

from __future__ import annotations

import json
import logging
import os
from contextlib import suppress
from pathlib import Path as OsPath
from uuid import uuid4

from odradek.seams.objects import ObjectsUnavailable

log = logging.getLogger("odradek.tiered")

MARK = ".odradek-store"


class StoreDirectory:
    """`check` before each use. Any thread."""

    def __init__(self, root: OsPath, memory: OsPath | None = None) -> None:
        """Makes the directory, unless it was there before. OSError where that cannot be done."""
        self.root = root
        self._memory = memory
        self._identity: tuple[int, int] | None = None
        self._mark = None if memory is None else _remembered(memory, root)
        self.is_remembered = self._mark is not None
        if self._mark is None:
            root.mkdir(parents=True, exist_ok=True)
            self._mark = _read_mark(root) if memory is None else _begin(root, memory)
            self._identity = _identity(root)

    def check(self) -> None:
        """Raises ObjectsUnavailable where it is not that directory."""
        here = _identity(self.root)
        if here is not None and here == self._identity:
            return
        if here is not None and self._mark is not None and _read_mark(self.root) == self._mark:
            self._identity = here
            return
        anew = f", or remove {self._memory} to begin a new one" if self._memory is not None else ""
        raise ObjectsUnavailable(
            f"{self.root} is not the directory that it was: mount it again{anew}"
        )


def _identity(path: OsPath) -> tuple[int, int] | None:
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_dev, found.st_ino


def _begin(root: OsPath, memory: OsPath) -> str | None:
    """The mark, of whoever was first, remembered. None where that cannot be: a read-only store."""
    before, mark_before = _said(memory)
    try:
        mark = _read_mark(root) or _put_mark(root)
        if mark != mark_before:  # else the same one, mounted elsewhere
            _warn_of_another(before, str(root))
        _remember(memory, str(root), mark)
    except OSError:
        return None
    return mark


def remember_url(memory: OsPath, url: str) -> None:
    """As for a directory, of a store that has no mark."""
    before, _ = _said(memory)
    if before != url:
        _warn_of_another(before, url)
        with suppress(OSError):
            _remember(memory, url, "")


def _warn_of_another(before: str | None, now: str) -> None:
    if before not in (None, now):
        log.warning(
            "this node's remote store was %s, and is %s now, by its configs: what it copied there is not"
            " found here, unless it was moved",
            before,
            now,
        )


def _read_mark(root: OsPath) -> str | None:
    try:
        return (root / MARK).read_text()
    except (OSError, UnicodeDecodeError):
        return None


def _put_mark(root: OsPath) -> str:
    """Whole or not at all, and of several nodes one; named as an unfinished upload until then."""
    mark = f"{uuid4()}\n"
    unfinished = root / f"{MARK}#{uuid4().int}"
    _write(unfinished, mark)
    try:
        with suppress(FileExistsError):
            os.link(unfinished, root / MARK)
    finally:
        unfinished.unlink()
    sync(root)
    return (root / MARK).read_text()


def _remembered(memory: OsPath, root: OsPath) -> str | None:
    """The mark of `root`; None if this memory is of another directory, or of none."""
    place, mark = _said(memory)
    return mark if place == str(root) else None


def _said(memory: OsPath) -> tuple[str | None, str | None]:
    """Which place is remembered, and its mark."""
    try:
        said = json.loads(memory.read_text())
        return str(said["directory"]), str(said["mark"])
    except (OSError, ValueError, KeyError, TypeError):
        return None, None


def _remember(memory: OsPath, place: str, mark: str) -> None:
    unfinished = memory.with_name(f"{memory.name}.tmp")
    _write(unfinished, json.dumps({"directory": place, "mark": mark}))
    unfinished.replace(memory)
    sync(memory.parent)


def _write(path: OsPath, text: str) -> None:
    path.write_text(text)
    sync(path)


def sync(path: OsPath) -> None:
    """A file's bytes, or a directory's names."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
