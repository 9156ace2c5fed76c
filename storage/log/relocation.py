"""Relocation of a log's files while it is in use: renaming of its directory, or a switch to another
directory.

Readers and writers keep their log object. Slices pinned before keep their content. Runs on the loop,
between two appends.
"""

from __future__ import annotations

from collections.abc import Iterable

from odradek.seams.files import Path
from odradek.storage.log.leader_epoch_cache import EpochStart
from odradek.storage.log.producer_snapshots import ProducerSnapshots
from odradek.storage.log.read import LogEnd
from odradek.storage.log.segment import Segment
from odradek.storage.log.segment_deletion import PendingDeletions
from odradek.storage.log.state import LogState


def rename(log: LogState, new: Path) -> None:
    """Rename the directory; open files stay open. The rename is not durable yet.

    Raises OSError with nothing changed.
    """
    with log.replacing():
        log.files.rename(log.directory, new)
        log.directory = new
        log.epochs.move_to(new)
        for segment in log.segment_list:
            segment.move_to(new)
        log.snapshots.move_to(new)
        log.deletions.move_to(new)


def switch(
    log: LogState,
    directory: Path,
    segments: Iterable[Segment],
    snapshots: ProducerSnapshots,
    epochs: tuple[EpochStart, ...],
    recovery_point: int,
) -> None:
    """Continue in `directory`, with files of the same content; the old files are closed.

    `epochs` is the content of the checkpoint there; everything below `recovery_point` is durable there.
    No disk access.
    """
    with log.replacing():
        old_segments, old_snapshots, old_deletions = log.segment_list, log.snapshots, log.deletions
        position = log.log_end.position
        log.directory = directory
        log.segment_list = type(old_segments)(segments)
        log.snapshots = snapshots
        log.deletions = PendingDeletions(log.files)
        log.epochs.move_to(directory, epochs)
        log.log_end = LogEnd(log.log_end.end_offset, log.segment_list.active, position)
        log.recovery_point = recovery_point
        log.directory_needs_sync = log.needs_clean_close = True
        for segment in old_segments:
            segment.close()
        old_snapshots.close()
        old_deletions.close()
