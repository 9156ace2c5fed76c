"""Which files of a directory are read, while somebody watches: what a broker fetches from remote storage
that lies in a directory shows in the kernel's notifications (inotify), whoever's broker it is."""

from __future__ import annotations

import ctypes
import os
import struct
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

IN_CLOSE_NOWRITE = 0x10
"""A file that was opened for reading is closed."""
IN_ISDIR = 0x40000000
_EVENT = struct.Struct("iIII")
_BUFFER_BYTES = 1 << 20
_libc = ctypes.CDLL(None, use_errno=True)


class StoreWatch:
    """A context: what is read under `root` meanwhile. Directories that are made later are not watched."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._directories: dict[int, Path] = {}
        self._read: list[Path] = []
        self._descriptor = -1

    def __enter__(self) -> StoreWatch:
        self._descriptor = _libc.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC)
        assert self._descriptor >= 0, os.strerror(ctypes.get_errno())
        for directory in (self._root, *(each for each in self._root.iterdir() if each.is_dir())):
            number = _libc.inotify_add_watch(
                self._descriptor, os.fsencode(directory), IN_CLOSE_NOWRITE
            )
            assert number >= 0, os.strerror(ctypes.get_errno())
            self._directories[number] = directory
        return self

    def __exit__(self, *exc: object) -> None:
        self.files()
        os.close(self._descriptor)
        self._descriptor = -1

    def files(self) -> list[Path]:
        """All that were read so far, as often as they were."""
        if self._descriptor >= 0:
            with suppress(BlockingIOError):
                while events := os.read(self._descriptor, _BUFFER_BYTES):
                    self._read += self._parse(events)
        return list(self._read)

    def _parse(self, events: bytes) -> Iterator[Path]:
        position = 0
        while position < len(events):
            watch, mask, _, size = _EVENT.unpack_from(events, position)
            position += _EVENT.size
            name = events[position : position + size].rstrip(b"\0")
            position += size
            if name and not mask & IN_ISDIR:
                yield self._directories[watch] / os.fsdecode(name)
