"""Replacement of segments by the segment that compaction made from them.

The new segment's files are durable under `.cleaned` names at the beginning. After a crash the next start
completes or discards the replacement (log/loader.py):

1. `rename_to_swap`, in a worker thread: `.cleaned` files of other passes are removed, those of this one
   are renamed to `.swap`, and the directory is synced. A crash before: the old segments are the log. A
   crash after: the `.swap` files replace the old segments.
2. `replace_files`, in a worker thread, while readers wait: the old segments are renamed to `.deleted`,
   `.swap` files to their real names, and the directory is synced. A crash before: as after step 1.
3. `replace_in_segment_list`, on the loop: the segment list is replaced. Readers with the old list find
   the old segments under their `.deleted` names; these are unlinked after `file.delete.delay.ms`, and
   pinned slices stay readable.

The caller holds the directory's file lock in steps 1 to 3. If the log changed before step 2, `undo_swap`
undoes step 1. If step 2 or `undo_swap` fails in the middle, the log goes offline, and the next start
proceeds as after a crash: otherwise the log would have segments that are `.deleted` already, or a
`.swap` file that replaces later appends. Appends and rolls continue meanwhile: they change only the
active segment, the end of the list and new snapshots.
"""

from __future__ import annotations

from collections.abc import Sequence

from odradek.seams.files import Path
from odradek.storage.compaction.compaction_plan import SegmentReplacement
from odradek.storage.log.file_names import (
    CLEANED,
    INDEX_FILES,
    LOG,
    SEGMENT_FILES,
    SWAP,
    file_name,
)
from odradek.storage.log.segment import Segment
from odradek.storage.log.state import LogState, offline_on_failure


def cleaned_segment(log: LogState, old: Sequence[Segment], made: SegmentReplacement) -> Segment:
    """The new segment under its `.cleaned` names; no file is opened yet."""
    return Segment(
        log.files,
        log.directory,
        made.replaced[0],
        index_interval_bytes=log.config.index_interval_bytes,
        created_ms=old[-1].created_ms,
        has_transaction_index=made.has_transaction_index,
        suffix=CLEANED,
    )


def rename_to_swap(log: LogState, fresh: Segment) -> None:
    """Step 1: rename the new files to `.swap`, durably. Raises OSError."""
    new_names = {file_name(fresh.base_offset, kind) + CLEANED for kind in SEGMENT_FILES}
    # Files of a killed worker. A start that found one at a lower offset would discard this swap.
    for name in log.files.list(log.directory):
        if name.endswith(CLEANED) and name not in new_names:
            log.files.remove(log.directory / name, missing_ok=True)
    fresh.rename(SWAP)
    log.files.sync_directory(log.directory)


def replace_files(log: LogState, old: Sequence[Segment], fresh: Segment) -> None:
    """Step 2: rename the old segments to `.deleted` and the new one to its real name. Raises
    LogFailed."""
    due_ms = log.clock.wall_ms() + log.config.file_delete_delay_ms
    with offline_on_failure(log):
        with log.replacing():
            for segment in old:
                # The producer snapshot at the start of the new segment stays; those in between are removed.
                is_first = segment.base_offset == fresh.base_offset
                log.deletions.add(segment, None if is_first else log.snapshots, due_ms)
            fresh.rename("")
        log.files.sync_directory(log.directory)


def replace_in_segment_list(log: LogState, old: Sequence[Segment], fresh: Segment) -> None:
    """Step 3: replace `old`, adjacent segments of the log, by the new segment."""
    gone = set(map(id, old))
    kept = [segment for segment in log.segment_list.all if id(segment) not in gone]
    with log.replacing():
        log.segment_list.replace((*kept, fresh))
    log.needs_clean_close = True


def undo_swap(log: LogState, fresh: Segment) -> None:
    """Remove the new segment's `.cleaned` or `.swap` files, the data last.

    An index without its data would be treated as the old segment's; data without an index gets a new
    one. Raises OSError if only `.cleaned` files exist, which the next `rename_to_swap` or start removes;
    otherwise LogFailed.
    """
    fresh.close()
    with offline_on_failure(log):
        is_renamed = any(
            log.files.exists(log.directory / (file_name(fresh.base_offset, kind) + SWAP))
            for kind in SEGMENT_FILES
        )
        if is_renamed:
            remove_files(log, fresh.base_offset)
    if not is_renamed:
        remove_files(log, fresh.base_offset)


def remove_files(log: LogState, base_offset: int) -> None:
    """Remove the `.cleaned` and `.swap` files of a new segment at `base_offset`. Raises OSError."""
    for suffix in (CLEANED, SWAP):
        for kind in (*INDEX_FILES, LOG):
            path: Path = log.directory / (file_name(base_offset, kind) + suffix)
            log.files.remove(path, missing_ok=True)
