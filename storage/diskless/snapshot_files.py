"""Files of the snapshots of a diskless coordinator's state in a log directory (KIP-1164, D-20).

    diskless-metadata-N.<offset>.snapshot        the state after the record at `offset`
    diskless-metadata-N.<offset>.snapshot.part   being downloaded from another replica
    diskless-metadata-N.<offset>.snapshot.tmp    being written

A file is renamed to `.snapshot` when its content is durable, so that a snapshot is always complete. A download
continues after a restart from the size of its file. Methods may block, and raise OSError.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Collection
from typing import Final

from odradek.seams.files import Files, Path
from odradek.seams.values import value_class

log = logging.getLogger("odradek.diskless")

SUFFIX: Final = ".snapshot"
PART: Final = ".part"
TEMPORARY: Final = ".tmp"


@value_class
class Snapshot:
    """A snapshot with the offset of the last record that it includes, and its size in bytes."""

    offset: int
    size_bytes: int


class SnapshotFiles:
    """Snapshots of one coordinator."""

    def __init__(self, files: Files, directory: Path, coordinator_id: int) -> None:
        self._files = files
        self._directory = directory
        self._coordinator_id = coordinator_id
        self._name = re.compile(
            rf"diskless-metadata-{coordinator_id}\.([0-9]+)\.snapshot(\.part|\.tmp|)"
        )

    def path(self, offset: int, suffix: str = "") -> Path:
        """Path of a snapshot, or of its incomplete file."""
        name = f"diskless-metadata-{self._coordinator_id}.{offset:020d}{SUFFIX}{suffix}"
        return self._directory / name

    def _list(self, suffix: str) -> list[int]:
        """Offsets of the files with a suffix, in order."""
        found = [self._name.fullmatch(name) for name in self._files.list(self._directory)]
        return sorted(int(match[1]) for match in found if match and match[2] == suffix)

    def newest(self) -> Snapshot | None:
        offsets = self._list("")
        return Snapshot(offsets[-1], self.size_bytes(offsets[-1])) if offsets else None

    def size_bytes(self, offset: int) -> int:
        """Size of a snapshot. Raises FileNotFoundError."""
        return self._files.file_size(self.path(offset))

    def temporary(self, offset: int) -> Path:
        """Path for a snapshot to be written, at which there is no file; removes older incomplete ones."""
        for each in self._list(TEMPORARY):
            self._files.remove(self.path(each, TEMPORARY), missing_ok=True)
        return self.path(offset, TEMPORARY)

    def publish(self, offset: int, suffix: str) -> Snapshot:
        """Make a complete file the snapshot at `offset`, durably."""
        source, target = self.path(offset, suffix), self.path(offset)
        file = self._files.open(source, write=True)
        try:
            file.sync()
        finally:
            file.close()
        self._files.rename(source, target)
        self._files.sync_directory(self._directory)
        return Snapshot(offset, self.size_bytes(offset))

    def remove_others(self, kept: Collection[int]) -> None:
        """Remove all snapshots except those at the offsets `kept`."""
        for offset in self._list(""):
            if offset not in kept:
                self.remove(offset)

    def remove_all(self) -> None:
        """Remove all snapshots and incomplete files."""
        for suffix in ("", PART, TEMPORARY):
            for offset in self._list(suffix):
                self._files.remove(self.path(offset, suffix), missing_ok=True)

    def remove(self, offset: int) -> None:
        self._files.remove(self.path(offset), missing_ok=True)

    def remove_from(self, offset: int) -> list[int]:
        """Remove the snapshots at `offset` and above; returns their offsets."""
        removed = [each for each in self._list("") if each >= offset]
        for each in removed:
            self.remove(each)
        return removed

    def read(self, offset: int, position: int, max_bytes: int) -> bytes:
        """Bytes of a snapshot from `position`; fewer than `max_bytes` at its end. Raises FileNotFoundError."""
        file = self._files.open(self.path(offset))
        try:
            return bytes(file.read_at(position, max_bytes))
        finally:
            file.close()

    # Downloads

    def start_download(self, snapshot: Snapshot) -> int:
        """Number of bytes that an earlier download of the same snapshot has; removes the other downloads."""
        for offset in self._list(PART):
            if offset != snapshot.offset:
                self.remove_download(offset)
        path = self.path(snapshot.offset, PART)
        if not self._files.exists(path):
            self._files.open(path, create=True, write=True).close()
            return 0
        size = self._files.file_size(path)
        if size > snapshot.size_bytes:
            self.remove_download(snapshot.offset)
            return self.start_download(snapshot)
        return size

    def write_part(self, offset: int, position: int, data: bytes) -> None:
        """Write bytes at the end of a download, which is at `position`."""
        file = self._files.open(self.path(offset, PART), write=True)
        try:
            file.write_at(position, data)
        finally:
            file.close()

    def remove_download(self, offset: int) -> None:
        self._files.remove(self.path(offset, PART), missing_ok=True)


def copy_file(files: Files, source: Path, target: Path) -> None:
    """Copy a file to a path at which there may be an older file."""
    files.remove(target, missing_ok=True)
    reader, writer = files.open(source), files.open(target, create=True, write=True)
    try:
        for position in range(0, reader.size, 1 << 20):
            writer.append_v([reader.read_at(position, 1 << 20)])
        writer.sync()
    finally:
        reader.close()
        writer.close()


def remove_damaged(snapshots: SnapshotFiles, offset: int, error: Exception) -> None:
    """Remove a snapshot that cannot be used."""
    log.warning("Removing the snapshot %s: %s", snapshots.path(offset), error)
    snapshots.remove(offset)
