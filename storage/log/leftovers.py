"""What an interrupted operation left in a partition's directory, and what becomes of it.

| file                                      | means                              | on opening      |
|-------------------------------------------|------------------------------------|-----------------|
| `*.deleted`, not `*.checkpoint.deleted`   | was to be unlinked later           | unlinked        |
| `*.cleaned`                               | a replacement, not finished        | unlinked        |
| `*.swap` at or past the first `*.cleaned` | one of several, not all finished   | unlinked        |
| other `*.swap`                            | finished, was about to take over   | takes over      |
| segments that a `*.log.swap` covers       | replaced by it                     | unlinked        |
| an index without its `*.log`              | rest of a deleted segment          | unlinked        |
| `*.cleaned`, `*.swap` without an offset   | nothing of a log's                 | left            |

As in Kafka's LogLoader, so that either can finish what the other began. All of it may be done any
number of times: a crash in the middle leaves a case of the same table.
"""

from __future__ import annotations

from odradek.protocol.errors import KafkaError
from odradek.seams.files import Files, Path
from odradek.storage.log.names import (
    CLEANED,
    DELETED,
    INDEX_FILES,
    LOG,
    RAFT_SNAPSHOT_DELETED,
    SEGMENT_FILES,
    SWAP,
    offset_of,
)
from odradek.storage.log.segment import Segment


def clear_leftovers(files: Files, directory: Path) -> list[str]:
    """Do as the table says; the names that are in the directory now. Raises OSError."""
    names = files.list(directory)
    kept = _settle(files, directory, names)
    if kept != names:
        files.sync_directory(directory)
    return kept


def _settle(files: Files, directory: Path, names: list[str]) -> list[str]:
    doomed = [
        name
        for name in names
        if name.endswith(DELETED) and not name.endswith(RAFT_SNAPSHOT_DELETED)
    ]
    cleaned = [name for name in names if name.endswith(CLEANED) and offset_of(name) is not None]
    swaps = [name for name in names if name.endswith(SWAP) and offset_of(name) is not None]
    first_cleaned = min((offset_of(name) or 0 for name in cleaned), default=None)
    if first_cleaned is not None:
        unfinished = [name for name in swaps if (offset_of(name) or 0) >= first_cleaned]
        # Before the `.cleaned` ones, or the next start would take these for finished.
        _remove(files, directory, unfinished)
        doomed += unfinished
        swaps = [name for name in swaps if name not in unfinished]
    _remove(files, directory, [name for name in doomed + cleaned if name not in swaps])
    kept = [name for name in names if name not in {*doomed, *cleaned}]
    if swaps:
        kept = _take_over(files, directory, kept, swaps)
    logs = {name.removesuffix(LOG) for name in kept if name.endswith(LOG)}
    orphans = [
        name for name in kept if name.endswith(INDEX_FILES) and name.partition(".")[0] not in logs
    ]
    _remove(files, directory, orphans)
    return [name for name in kept if name not in set(orphans)]


def _take_over(files: Files, directory: Path, names: list[str], swaps: list[str]) -> list[str]:
    """Remove the segments that the finished replacements cover, then put these in their places."""
    # Of one without a record it can't be told how far it reaches: it replaces the one at its own offset.
    replaced = [
        range(offset, max(_next_offset(files, directory, offset), offset + 1))
        for name in swaps
        if name.endswith(LOG + SWAP) and (offset := offset_of(name)) is not None
    ]
    covered = [
        name
        for name in names
        if name.endswith(SEGMENT_FILES) and any((offset_of(name) or 0) in each for each in replaced)
    ]
    # The data first: an index without it is a case of the table.
    _remove(files, directory, sorted(covered, key=lambda name: not name.endswith(LOG)))
    kept = [name for name in names if name not in {*covered, *swaps}]
    for name in sorted(swaps, key=lambda name: (offset_of(name), not name.endswith(LOG + SWAP))):
        final = name.removesuffix(SWAP)
        files.rename(directory / name, directory / final)
        kept.append(final)
    return sorted(set(kept))


def _next_offset(files: Files, directory: Path, offset: int) -> int:
    segment = Segment(
        files, directory, offset, index_interval_bytes=1 << 31, created_ms=0, suffix=SWAP
    )
    try:
        # By the data alone: its index may have taken its place already.
        return segment.next_offset(indexed=False)
    except KafkaError:
        return offset
    finally:
        segment.close()


def _remove(files: Files, directory: Path, names: list[str]) -> None:
    for name in names:
        files.remove(directory / name, missing_ok=True)
