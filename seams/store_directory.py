"""A directory used as an object store, and its identification while it may be unmounted.

Before the first object, a node writes a marker file with a random id into the directory, and stores the id in a local
file. From then on it accepts only a directory with that marker and does not create one: the store is unavailable until
the marker is found. Without a marker, the directory that is mounted at the path is the store. A tool that has no local
file accepts the directory that it found when it opened the store.

Order: the marker is synced before its id is stored locally, and the id is stored before the first object is put. After a
crash in between, the next start finds the marker.

If a store is lost, an operator declares a directory its replacement (`declare_replacement`). The marker records it, and
each node that expects another marker at that path accepts this one.

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

from odradek.seams.files import Files, Path
from odradek.seams.objects import ObjectsUnavailable
from odradek.seams.system_calls import sync_all

log = logging.getLogger("odradek.tiered")

MARKER_FILE = ".odradek-store"
_REPLACEMENT_SUFFIX = " instead\n"
"""Suffix of the marker of a replacement, which nodes accept instead of the marker that they expect."""


class StoreDirectory:
    """Identity of a store directory: call `check` before each use and `ensure_marker` before each put. Thread-safe."""

    def __init__(self, root: OsPath, identity_file: OsPath | None = None) -> None:
        """Create the directory unless its marker is known already. Raises OSError if that fails."""
        self.root = root
        self._identity_file = identity_file
        self._device_and_inode: tuple[int, int] | None = None
        self._marker_lock = threading.Lock()
        self._marker = None if identity_file is None else _recorded_marker(identity_file, root)
        self.has_recorded_marker = self._marker is not None
        if self._marker is None:
            root.mkdir(parents=True, exist_ok=True)
            self._marker = (
                _read_marker(root) if identity_file is None else _adopt_marker(root, identity_file)
            )
            self._device_and_inode = _device_and_inode(root)

    @property
    def _needs_marker(self) -> bool:
        return self._marker is None and self._identity_file is not None

    def check(self) -> None:
        """Raises ObjectsUnavailable if the directory is missing or is another one."""
        here = _device_and_inode(self.root)
        if here is not None and self._needs_marker:
            self._find_marker(here)
            return
        if here is not None and here == self._device_and_inode:
            return
        if here is not None and self._marker is not None:
            marker = _read_marker(self.root)
            if marker == self._marker or (marker is not None and self._accepts_replacement(marker)):
                self._device_and_inode = here
                return
        hint = ""
        if self._identity_file is not None:
            url = shlex.quote(f"file://{quote(str(self.root))}")
            hint = f", or if it is lost for good: odradek remote give-up --url {url}"
        raise ObjectsUnavailable(
            f"{self.root} is not the directory that it was: mount it again{hint}"
        )

    def ensure_marker(self) -> None:
        """Ensure that the directory has a marker and its id is stored. Raises ObjectsUnavailable on failure."""
        with self._marker_lock:
            if not self._needs_marker:
                return
            assert self._identity_file is not None
            try:
                marker = _read_marker(self.root) or _create_marker(self.root)
                _write_identity(self._identity_file, str(self.root), marker)
            except OSError as error:
                raise ObjectsUnavailable(f"{self.root} cannot be made a store: {error}") from error
            self._device_and_inode, self._marker = _device_and_inode(self.root), marker

    def _accepts_replacement(self, marker: str) -> bool:
        """Whether the marker is that of a replacement; its id is then stored instead of the old one."""
        if self._identity_file is None or not marker.endswith(_REPLACEMENT_SUFFIX):
            return False
        with self._marker_lock:
            if marker != self._marker:
                self._marker = marker
                log.warning(
                    "%s is the object store from now on, in place of one that was given up",
                    self.root,
                )
                with suppress(OSError):  # on a full disk the next start accepts the marker again
                    _write_identity(self._identity_file, str(self.root), marker)
        return True

    def _find_marker(self, here: tuple[int, int]) -> None:
        """Read a marker that another node has written, or that appeared when the store was mounted."""
        with self._marker_lock:
            self._device_and_inode = here
            if self._needs_marker and _read_marker(self.root) is not None:
                assert self._identity_file is not None
                self._marker = _adopt_marker(self.root, self._identity_file)


def has_marker(root: OsPath) -> bool:
    """Whether the directory has a marker, because a node used it as a store."""
    return _read_marker(root) is not None


def declare_replacement(root: OsPath) -> None:
    """Declare a directory, created if missing, the replacement of a lost store. Raises OSError."""
    root.mkdir(parents=True, exist_ok=True)
    marker = (_read_marker(root) or str(uuid4())).removesuffix(_REPLACEMENT_SUFFIX).strip()
    unfinished = root / f"{MARKER_FILE}#{uuid4().int}"
    _write(unfinished, f"{marker}{_REPLACEMENT_SUFFIX}")
    unfinished.replace(root / MARKER_FILE)
    sync(root)


def _device_and_inode(path: OsPath) -> tuple[int, int] | None:
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_dev, found.st_ino


def _adopt_marker(root: OsPath, identity_file: OsPath) -> str | None:
    """Read the marker of the directory and store its id locally.

    Returns None if there is no marker, or if its id cannot be stored, as on a read-only disk.
    """
    before, marker_before = _read_identity(identity_file)
    marker = _read_marker(root)
    if (
        marker is None or marker != marker_before
    ):  # otherwise it is the same store, mounted elsewhere
        _warn_of_other_store(before, str(root))
    try:
        if (before, marker_before) != (str(root), marker or ""):
            _write_identity(identity_file, str(root), marker or "")
    except OSError:
        return None
    return marker


def recorded_location(files: Files, identity_file: Path) -> str | None:
    """Return the stored location of the node's object store, a directory or a URL; None if none can be read."""
    return recorded_store(files, identity_file)[0]


def recorded_store(files: Files, identity_file: Path) -> tuple[str | None, str]:
    """Return the stored location of the node's object store, and the marker of a directory, "" for another store."""
    with suppress(OSError, ValueError, KeyError, TypeError):
        return _decode_identity(files.read(identity_file))
    return None, ""


def record_store_url(identity_file: OsPath, url: str) -> None:
    """Store the URL of an object store that is not a directory, and warn if it has changed."""
    before, _ = _read_identity(identity_file)
    if before != url:
        _warn_of_other_store(before, url)
        with suppress(OSError):
            _write_identity(identity_file, url, "")


def _warn_of_other_store(before: str | None, now: str) -> None:
    if before not in (None, now):
        log.warning(
            "this node's object store was %s, and is %s now, by its configs: what it copied there is not"
            " found here, unless it was moved",
            before,
            now,
        )


def _read_marker(root: OsPath) -> str | None:
    try:
        return (root / MARKER_FILE).read_text()
    except (OSError, UnicodeDecodeError):
        return None


def _create_marker(root: OsPath) -> str:
    """Write a marker atomically, so that only one of several nodes does; until then it has the name of an upload."""
    marker = f"{uuid4()}\n"
    unfinished = root / f"{MARKER_FILE}#{uuid4().int}"
    _write(unfinished, marker)
    try:
        with suppress(FileExistsError):
            os.link(unfinished, root / MARKER_FILE)
    finally:
        unfinished.unlink()
    sync(root)
    return (root / MARKER_FILE).read_text()


def _recorded_marker(identity_file: OsPath, root: OsPath) -> str | None:
    """The stored marker of `root`, or None if there is none or the file is about another directory."""
    location, marker = _read_identity(identity_file)
    return marker or None if location == str(root) else None


def _read_identity(identity_file: OsPath) -> tuple[str | None, str | None]:
    """The stored location of the object store, and its marker."""
    try:
        return _decode_identity(identity_file.read_bytes())
    except (OSError, ValueError, KeyError, TypeError):
        return None, None


def _decode_identity(data: bytes) -> tuple[str, str]:
    """Decode the location and the marker. Raises ValueError, KeyError or TypeError for another file."""
    stored = json.loads(data)
    return str(stored["directory"]), str(stored["mark"])


def _write_identity(identity_file: OsPath, location: str, marker: str) -> None:
    unfinished = identity_file.with_name(f"{identity_file.name}.tmp")
    _write(unfinished, json.dumps({"directory": location, "mark": marker}))
    unfinished.replace(identity_file)
    sync(identity_file.parent)


def _write(path: OsPath, text: str) -> None:
    path.write_text(text)
    sync(path)


def sync(path: OsPath) -> None:
    """Flush the bytes of a file, or the entries of a directory, to disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        sync_all(descriptor)
    finally:
        os.close(descriptor)
