"""A directory used as a remote store, and its identification while it may be unmounted.

Before the first object, a node writes a marker file with a random id into the directory, and stores the id in a local
file. From then on it accepts only a directory with that marker and does not create one: the store is unavailable until
the marker is found. Without a marker, the directory that is mounted at the path is the store. A tool that has no local
file accepts the directory that it found when it opened the store.

Order: the marker is synced before its id is stored locally, and the id is stored before the first object is put. After a
crash in between, the next start finds the marker.

If a store is lost, an operator declares a directory its replacement (`begin_instead`). The marker records it, and each
node that expects another marker at that path accepts this one.

If a node's configs name another location than its local file, the node uses the configured one and logs a warning: the
change may be intended, but objects in the old location are not found in the new one.
"""

from __future__ import annotations

import json
import logging
import os
import shlex
import threading
from contextlib import suppress
from pathlib import Path as OsPath
from urllib.parse import quote
from uuid import uuid4

from odradek.seams.objects import ObjectsUnavailable

log = logging.getLogger("odradek.tiered")

MARK = ".odradek-store"
_INSTEAD = " instead\n"
"""Suffix of the marker of a replacement, which nodes accept instead of the marker that they expect."""


class StoreDirectory:
    """Identity of a store directory: call `check` before each use and `begin` before each put. Thread-safe."""

    def __init__(self, root: OsPath, memory: OsPath | None = None) -> None:
        """Create the directory unless its marker is known already. Raises OSError if that fails."""
        self.root = root
        self._memory = memory
        self._identity: tuple[int, int] | None = None
        self._beginning = threading.Lock()
        self._mark = None if memory is None else _remembered(memory, root)
        self.is_remembered = self._mark is not None
        if self._mark is None:
            root.mkdir(parents=True, exist_ok=True)
            self._mark = _read_mark(root) if memory is None else _meet(root, memory)
            self._identity = _identity(root)

    @property
    def _is_to_begin(self) -> bool:
        return self._mark is None and self._memory is not None

    def check(self) -> None:
        """Raises ObjectsUnavailable if the directory is missing or is another one."""
        here = _identity(self.root)
        if here is not None and self._is_to_begin:
            self._look_for_a_mark(here)
            return
        if here is not None and here == self._identity:
            return
        if here is not None and self._mark is not None:
            mark = _read_mark(self.root)
            if mark == self._mark or (mark is not None and self._is_taken_instead(mark)):
                self._identity = here
                return
        hint = ""
        if self._memory is not None:
            url = shlex.quote(f"file://{quote(str(self.root))}")
            hint = f", or if it is lost for good: odradek remote give-up --url {url}"
        raise ObjectsUnavailable(
            f"{self.root} is not the directory that it was: mount it again{hint}"
        )

    def begin(self) -> None:
        """Ensure that the directory has a marker and its id is stored. Raises ObjectsUnavailable on failure."""
        with self._beginning:
            if not self._is_to_begin:
                return
            assert self._memory is not None
            try:
                mark = _read_mark(self.root) or _put_mark(self.root)
                _remember(self._memory, str(self.root), mark)
            except OSError as error:
                raise ObjectsUnavailable(f"{self.root} cannot be made a store: {error}") from error
            self._identity, self._mark = _identity(self.root), mark

    def _is_taken_instead(self, mark: str) -> bool:
        """Whether the marker is that of a replacement; its id is then stored instead of the old one."""
        if self._memory is None or not mark.endswith(_INSTEAD):
            return False
        with self._beginning:
            if mark != self._mark:
                self._mark = mark
                log.warning(
                    "%s is the remote store from now on, in place of one that was given up",
                    self.root,
                )
                with suppress(OSError):  # on a full disk the next start accepts the marker again
                    _remember(self._memory, str(self.root), mark)
        return True

    def _look_for_a_mark(self, here: tuple[int, int]) -> None:
        """Read a marker that another node has written, or that appeared when the store was mounted."""
        with self._beginning:
            self._identity = here
            if self._is_to_begin and _read_mark(self.root) is not None:
                assert self._memory is not None
                self._mark = _meet(self.root, self._memory)


def has_mark(root: OsPath) -> bool:
    """Whether the directory has a marker, because a node used it as a store."""
    return _read_mark(root) is not None


def begin_instead(root: OsPath) -> None:
    """Declare a directory, created if missing, the replacement of a lost store. Raises OSError."""
    root.mkdir(parents=True, exist_ok=True)
    mark = (_read_mark(root) or str(uuid4())).removesuffix(_INSTEAD).strip()
    unfinished = root / f"{MARK}#{uuid4().int}"
    _write(unfinished, f"{mark}{_INSTEAD}")
    unfinished.replace(root / MARK)
    sync(root)


def _identity(path: OsPath) -> tuple[int, int] | None:
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_dev, found.st_ino


def _meet(root: OsPath, memory: OsPath) -> str | None:
    """Read the marker of the directory and store its id locally.

    Returns None if there is no marker, or if its id cannot be stored, as on a read-only disk.
    """
    before, mark_before = _read_memory(memory)
    mark = _read_mark(root)
    if mark is None or mark != mark_before:  # otherwise it is the same store, mounted elsewhere
        _warn_of_another(before, str(root))
    try:
        if (before, mark_before) != (str(root), mark or ""):
            _remember(memory, str(root), mark or "")
    except OSError:
        return None
    return mark


def remember_url(memory: OsPath, url: str) -> None:
    """Store the URL of a remote store that is not a directory, and warn if it has changed."""
    before, _ = _read_memory(memory)
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
    """Write a marker atomically, so that only one of several nodes does; until then it has the name of an upload."""
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
    """The stored marker of `root`, or None if there is none or the file is about another directory."""
    place, mark = _read_memory(memory)
    return mark or None if place == str(root) else None


def _read_memory(memory: OsPath) -> tuple[str | None, str | None]:
    """The stored location of the remote store, and its marker."""
    try:
        stored = json.loads(memory.read_text())
        return str(stored["directory"]), str(stored["mark"])
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
    """Flush the bytes of a file, or the entries of a directory, to disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
