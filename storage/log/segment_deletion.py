"""Deletion of segments: renamed to `.deleted` now, unlinked after `file.delete.delay.ms`.

Reads in progress continue meanwhile. After a crash the `.deleted` files are unlinked when the log is
opened (loader.py). Pinned slices stay readable after the unlinking.
"""

from __future__ import annotations

from collections import deque

from odradek.seams.files import Files, Path
from odradek.seams.values import state_class
from odradek.storage.log.file_names import DELETED
from odradek.storage.log.producer_snapshots import ProducerSnapshots
from odradek.storage.log.segment import Segment


@state_class
class _PendingDeletion:
    at_ms: int
    segment: Segment
    snapshot: Path | None


class PendingDeletions:
    """Segments of a log that were renamed to `.deleted`, in the order of their deletion time."""

    def __init__(self, files: Files) -> None:
        self._files = files
        self._to_delete: deque[_PendingDeletion] = deque()

    def __len__(self) -> int:
        return len(self._to_delete)

    def add(self, segment: Segment, snapshots: ProducerSnapshots | None, at_ms: int) -> None:
        """Rename the segment's files and its snapshot, to be unlinked at `at_ms`. Raises OSError.

        Without `snapshots` the snapshot stays, because another segment has the same base offset. After an
        error both files have their old names, and the caller may repeat the call.
        """
        aside = None if snapshots is None else snapshots.rename_to_deleted(segment.base_offset)
        try:
            segment.rename(DELETED)
        except OSError:
            if snapshots is not None and aside is not None:
                snapshots.undo_rename_to_deleted(segment.base_offset, aside)
            raise
        self._to_delete.append(_PendingDeletion(at_ms, segment, aside))

    def remove_due(self, now_ms: int) -> int:
        """Unlink the segments that are due; their number. Raises OSError."""
        count = 0
        while self._to_delete and self._to_delete[0].at_ms <= now_ms:
            to_delete = self._to_delete[0]
            to_delete.segment.remove()
            if to_delete.snapshot is not None:
                self._files.remove(to_delete.snapshot, missing_ok=True)
            self._to_delete.popleft()
            count += 1
        return count

    def move_to(self, directory: Path) -> None:
        for to_delete in self._to_delete:
            to_delete.segment.move_to(directory)
            if to_delete.snapshot is not None:
                to_delete.snapshot = directory / to_delete.snapshot.name

    def close(self) -> None:
        for to_delete in self._to_delete:
            to_delete.segment.close()
