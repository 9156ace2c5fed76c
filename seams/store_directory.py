"""A directory that is a remote store, told from whatever lies in its place while it is unmounted.

Who puts something into a directory first puts a mark there, a random text that no other store has. A node
remembers in a file of its own which mark the directory had; from then on it takes no other directory for
it, and makes none: the store is away until the mark is there. Until there is one, whatever is mounted there
is the store. Where the node keeps no memory (tools), it is the directory that was there when it was opened.

Order: the mark is synced before it is remembered, and remembered before the first object is put. A
crash in between leaves a mark that the next start finds.

Where a store is lost for good, somebody says of a directory that it is the store from now on
(`begin_instead`): its mark says so too, and each node that remembers another one there takes it.

A node whose configs name another place than it remembers takes that, and says so: it may be meant, and what
was copied to the other place is not found there.
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
"""How a mark ends that is taken in place of another one."""


class StoreDirectory:
    """`check` before each use, `begin` before what is put. Any thread."""

    def __init__(self, root: OsPath, memory: OsPath | None = None) -> None:
        """Makes the directory, unless it was there before. OSError where that cannot be done."""
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
        """Raises ObjectsUnavailable where it is not that directory."""
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
        anew = ""
        if self._memory is not None:
            url = shlex.quote(f"file://{quote(str(self.root))}")
            anew = f", or if it is lost for good: odradek remote give-up --url {url}"
        raise ObjectsUnavailable(
            f"{self.root} is not the directory that it was: mount it again{anew}"
        )

    def begin(self) -> None:
        """It has a mark, and is remembered by it. Raises ObjectsUnavailable where that cannot be."""
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
        """Whether it stands for the one that is remembered; then it is remembered itself."""
        if self._memory is None or not mark.endswith(_INSTEAD):
            return False
        with self._beginning:
            if mark != self._mark:
                self._mark = mark
                log.warning(
                    "%s is the remote store from now on, in place of one that was given up",
                    self.root,
                )
                with suppress(OSError):  # a full disk: the next start takes it again
                    _remember(self._memory, str(self.root), mark)
        return True

    def _look_for_a_mark(self, here: tuple[int, int]) -> None:
        """Another node may have put one there, or the store was mounted."""
        with self._beginning:
            self._identity = here
            if self._is_to_begin and _read_mark(self.root) is not None:
                assert self._memory is not None
                self._mark = _meet(self.root, self._memory)


def has_mark(root: OsPath) -> bool:
    """Whether anybody has used it as a store."""
    return _read_mark(root) is not None


def begin_instead(root: OsPath) -> None:
    """Say that this directory, which is made if it is missing, is the store in place of a lost one. OSError."""
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
    """The mark that is there, remembered. None where there is none yet, or no memory of it can be kept: a
    read-only disk."""
    before, mark_before = _said(memory)
    mark = _read_mark(root)
    if mark is None or mark != mark_before:  # else the same one, mounted elsewhere
        _warn_of_another(before, str(root))
    try:
        if (before, mark_before) != (str(root), mark or ""):
            _remember(memory, str(root), mark or "")
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
    """The mark of `root`; None if it had none yet, or this memory is of another directory, or of none."""
    place, mark = _said(memory)
    return mark or None if place == str(root) else None


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
