"""Names of the files in a partition's directory (Kafka's LogFileUtils).

A segment's file name is its base offset in 20 digits and a suffix; a second suffix marks a file that is
deleted later (`.deleted`), incomplete (`.cleaned`), or about to replace others (`.swap`).
"""

from __future__ import annotations

LOG = ".log"
OFFSET_INDEX = ".index"
TIME_INDEX = ".timeindex"
TRANSACTION_INDEX = ".txnindex"
SNAPSHOT = ".snapshot"

DELETED = ".deleted"
CLEANED = ".cleaned"
SWAP = ".swap"
RAFT_SNAPSHOT_DELETED = ".checkpoint.deleted"
"""Kept by the Raft log in the metadata partition's directory; a log does not remove it."""

EPOCHS = "leader-epoch-checkpoint"
METADATA = "partition.metadata"

SEGMENT_FILES = (LOG, OFFSET_INDEX, TIME_INDEX, TRANSACTION_INDEX)
INDEX_FILES = (OFFSET_INDEX, TIME_INDEX, TRANSACTION_INDEX)


def file_name(offset: int, suffix: str) -> str:
    return f"{offset:020d}{suffix}"


def offset_of(name: str) -> int | None:
    """The offset that a file's name begins with; None for a file that is no segment's."""
    digits, dot, _ = name.partition(".")
    if dot and digits.isascii() and digits.isdigit() and int(digits) < 1 << 63:
        return int(digits)
    return None
