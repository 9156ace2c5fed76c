"""Putting a segment made by compaction in the place of those it was made from.

The new segment's files are durable under `.cleaned` names when this begins. In which order things
become durable, and what the next start does after a crash (log/leftovers.py):

1. `announce`, through offload: `.cleaned` files that are nobody's go, ours become `.swap`, and the
   directory is synced. Before: they are debris, the old segments are the log. After: the `.swap`
   files take over, whatever of the old ones is still there.
2. `take_over`, through offload, while readers wait: the old segments become `.deleted`, `.swap` the
   real name, and the directory is synced. A crash before that: the same as after 1.
3. `show`, on the loop: the list of segments changes. Whoever has the old list until then, or still
   reads, finds the old segments under their `.deleted` names; their files are unlinked after
   `file.delete.delay.ms`, and slices that pin them go on even then.

Nobody else may rename files of the log from 1 to 3: the caller holds the directory's `maintenance`.
If the log changed so that 2 is not to be done, `withdraw` undoes 1. What is done by half of 2, or of
that, takes the log offline, and the next start goes on as after a crash: else the log would go on with
segments that are `.deleted` already, or with a `.swap` that takes the place of what is appended later.
Appends and rolls go on meanwhile: they touch the active segment, the end of the list, and no snapshot but
a new one.
"""

from __future__ import annotations

from collections.abc import Sequence

from odradek.seams.files import Path
from odradek.storage.compaction.plan import Replacement
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


def cleaned_segment(log: LogState, old: Sequence[Segment], made: Replacement) -> Segment:
    """The new segment, under its `.cleaned` names; nothing is opened yet."""
    return Segment(
        log.files,
        log.directory,
        made.replaced[0],
        index_interval_bytes=log.config.index_interval_bytes,
        created_ms=old[-1].created_ms,
        has_transaction_index=made.has_transaction_index,
        suffix=CLEANED,
    )


def announce(log: LogState, fresh: Segment) -> None:
    """Step 1. Raises OSError."""
    ours = {file_name(fresh.base_offset, kind) + CLEANED for kind in SEGMENT_FILES}
    # Left by a worker that was killed. A start that found one below ours would not take ours over.
    for name in log.files.list(log.directory):
        if name.endswith(CLEANED) and name not in ours:
            log.files.remove(log.directory / name, missing_ok=True)
    fresh.rename(SWAP)
    log.files.sync_directory(log.directory)


def take_over(log: LogState, old: Sequence[Segment], fresh: Segment) -> None:
    """Step 2. Raises LogFailed."""
    due_ms = log.clock.wall_ms() + log.config.file_delete_delay_ms
    with offline_on_failure(log):
        with log.replacing():
            for segment in old:
                # The producers' snapshot at the new segment's start stays; those in between go.
                is_first = segment.base_offset == fresh.base_offset
                log.deletions.add(segment, None if is_first else log.snapshots, due_ms)
            fresh.rename("")
        log.files.sync_directory(log.directory)


def show(log: LogState, old: Sequence[Segment], fresh: Segment) -> None:
    """Step 3; `old` are neighbours in the log's list."""
    gone = set(map(id, old))
    kept = [segment for segment in log.segment_list.all if id(segment) not in gone]
    with log.replacing():
        log.segment_list.replace((*kept, fresh))
    log.needs_clean_close = True


def withdraw(log: LogState, fresh: Segment) -> None:
    """Remove the new segment's files, `.cleaned` or `.swap`; the data last. Raises OSError where they are
    `.cleaned` alone, which the next `announce` or start removes, else LogFailed.

    An index without its data would be taken for the old segment's; data without an index gets a
    new one.
    """
    fresh.close()
    with offline_on_failure(log):
        is_announced = any(
            log.files.exists(log.directory / (file_name(fresh.base_offset, kind) + SWAP))
            for kind in SEGMENT_FILES
        )
        if is_announced:
            remove_files(log, fresh.base_offset)
    if not is_announced:
        remove_files(log, fresh.base_offset)


def remove_files(log: LogState, base_offset: int) -> None:
    """What a pass left of a new segment at `base_offset`, however far it came. Raises OSError."""
    for suffix in (CLEANED, SWAP):
        for kind in (*INDEX_FILES, LOG):
            path: Path = log.directory / (file_name(base_offset, kind) + suffix)
            log.files.remove(path, missing_ok=True)
