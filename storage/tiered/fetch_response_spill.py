"""Moves fetch responses for slow consumers from memory to files.

The bytes of a response stay pinned until the socket has sent them, which takes minutes if the
consumer does not read. When responses hold half of the range cache, later ones are written to a
file first. The file is unlinked before it is sent, so its disk space is free after the send or a
crash. `RemoteIndexCache.open` deletes files of a crash during the write. If the disk is full or the
limit is reached, responses stay in memory.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from contextlib import suppress

from odradek.seams.files import File, Files, FileSlice, Path
from odradek.seams.offload import Offload
from odradek.storage.directories.names import REMOTE_INDEX_CACHE
from odradek.storage.tiered.segment_range_cache import SegmentRangeCache

_logger = logging.getLogger("odradek.tiered")

BYTES_MAX = 1 << 30
"""Limit for all files together."""


class FetchResponseSpill:
    """Spills responses to unlinked files. Runs on the event loop."""

    def __init__(
        self,
        files: Files,
        log_directory: Path,
        offload: Offload,
        ranges: SegmentRangeCache,
        *,
        bytes_max: int = BYTES_MAX,
    ) -> None:
        self._files = files
        self._directory = log_directory / REMOTE_INDEX_CACHE
        self._lane = str(log_directory)
        self._offload = offload
        self._ranges = ranges
        self._bytes_max = bytes_max
        self._out: list[tuple[File, int]] = []
        self._count = 0
        self._is_disk_writable = True

    @property
    def total_bytes(self) -> int:
        """Bytes in files that are not sent yet."""
        self._out = [each for each in self._out if each[0].pins]
        return sum(size for _, size in self._out)

    async def spill_if_needed(self, records: Sequence[FileSlice]) -> Sequence[FileSlice]:
        """Slices to send: `records`, or a slice of a file that replaces them and their pins."""
        size = sum(each.size for each in records)
        if not size or not self._ranges.is_half_pinned or self.total_bytes + size > self._bytes_max:
            return records
        self._count += 1
        path = self._directory / f"response-{self._count}.tmp"
        try:
            file = await self._offload.run(self._write, path, records, lane=self._lane)
        except OSError as error:
            if self._is_disk_writable:
                _logger.warning(
                    "cannot spill remote fetch responses to disk, they stay in memory: %s", error
                )
            self._is_disk_writable = False
            return records
        self._is_disk_writable = True
        self._out.append((file, size))
        for each in records:
            each.file.unpin()
        return (FileSlice(file, 0, size),)

    def _write(self, path: Path, records: Sequence[FileSlice]) -> File:
        """Write a file; it is pinned, closed and unlinked. Runs in a thread. Raises OSError."""
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
