"""Names of the files that a process reads in a directory, from the kernel's notifications (inotify). Tests
use it to see what a broker reads from remote storage, with Odradek or Apache Kafka.
"""

from __future__ import annotations

import ctypes
import os
import struct
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

IN_CLOSE_NOWRITE = 0x10
"""inotify event: a file that was opened for reading was closed."""
IN_ISDIR = 0x40000000
_EVENT = struct.Struct("iIII")
_BUFFER_BYTES = 1 << 20
_libc = ctypes.CDLL(None, use_errno=True)


class StoreWatch:
    """Context that records the files read under `root`. Directories that are created later are not
    watched.
    """

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
        """Files that were read so far; a file is listed once for each time that it was read."""
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
