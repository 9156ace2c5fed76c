"""Answers to slow readers, put aside on a disk, so that they don't hold the memory that others read in.

What a reader is sent is pinned until its socket has taken it, and a consumer may take minutes for that:
while it works on what it has, it reads nothing. Once answers hold half of the memory of all pieces,
those that follow go through files. A file's name is gone before it is sent: it takes room for as long as
it is pinned, and not a crash longer (but for one that is being written, which `RemoteIndexCache.open`
removes). Where the disk has no room, or answers enough, they stay in memory.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from contextlib import suppress

from odradek.seams.files import File, Files, FileSlice, Path
from odradek.seams.offload import Offload
from odradek.storage.directories.names import REMOTE_INDEX_CACHE
from odradek.storage.tiered.segment_range_cache import SegmentRangeCache

log = logging.getLogger("odradek.remote")

BYTES_MAX = 1 << 30
"""Of all files."""


class ResponseSpill:
    """See the module. Called on the loop."""

    def __init__(
        self,
        files: Files,
        log_directory: Path,
        offload: Offload,
        pieces: SegmentRangeCache,
        *,
        bytes_max: int = BYTES_MAX,
    ) -> None:
        self._files = files
        self._directory = log_directory / REMOTE_INDEX_CACHE
        self._lane = str(log_directory)
        self._offload = offload
        self._pieces = pieces
        self._bytes_max = bytes_max
        self._out: list[tuple[File, int]] = []
        self._count = 0
        self._is_disk_well = True

    @property
    def total_bytes(self) -> int:
        """Not sent yet."""
        self._out = [each for each in self._out if each[0].pins]
        return sum(size for _, size in self._out)

    async def settle(self, records: Sequence[FileSlice]) -> Sequence[FileSlice]:
        """The slices to be sent: `records`, or what takes their place, and their pins."""
        size = sum(each.size for each in records)
        if not size or not self._pieces.is_short or self.total_bytes + size > self._bytes_max:
            return records
        self._count += 1
        path = self._directory / f"answer-{self._count}.tmp"
        try:
            file = await self._offload.run(self._write, path, records, lane=self._lane)
        except OSError as error:
            if self._is_disk_well:
                log.warning("slow readers of the remote tier hold memory: %s", error)
            self._is_disk_well = False
            return records
        self._is_disk_well = True
        self._out.append((file, size))
        for each in records:
            each.file.unpin()
        return (FileSlice(file, 0, size),)

    def _write(self, path: Path, records: Sequence[FileSlice]) -> File:
        """In a thread. Pinned, closed, without a name. Raises OSError."""
        file = self._files.open(path, create=True)
        try:
            file.append_v([each.file.read_at(each.position, each.size) for each in records])
            file.pin()
            try:
                self._files.remove(path)
            except OSError:
                file.unpin()
                raise
        except OSError:
            with suppress(OSError):
                self._files.remove(path, missing_ok=True)
            raise
        finally:
            file.close()
        return file
