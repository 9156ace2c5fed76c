"""Offset checkpoint files of a log directory: one offset per partition, as text.

    0
    2
    flights 0 4711
    flights 1 0

The first line is the version, the second the number of entries; an empty file has none. A file is replaced
atomically (`Files.write_new`: `.tmp`, sync, rename, sync of the directory), so a crash leaves the old or the new one.
A corrupt file was damaged by something else; the caller logs it and treats it as missing, which costs work:

| file | if it is missing |
|---|---|
| recovery-point-offset-checkpoint | after an unclean shutdown, every segment is read again, and missing offsets |
|                                  | before a segment of a compacted log are treated as a gap |
| log-start-offset-checkpoint | logs start at their first segment; deleted records may reappear |
| replication-offset-checkpoint | high watermarks start at the log start offset until the leader sends them |
| cleaner-offset-checkpoint | compaction starts from the beginning |

Kafka treats the first two as missing too, and takes the directory offline for the others. Odradek prefers
availability, because no record is lost without them.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from enum import Enum

from odradek.protocol.topics import TopicPartition

VERSION = 0


class Checkpoint(Enum):
    """Kind of a checkpoint; the value is the name of the file."""

    RECOVERY_POINT = "recovery-point-offset-checkpoint"
    HIGH_WATERMARK = "replication-offset-checkpoint"
    LOG_START = "log-start-offset-checkpoint"
    CLEANER = "cleaner-offset-checkpoint"


class CorruptCheckpoint(ValueError):
    """The text is not a valid checkpoint; the message contains the line and the reason."""


def format(offsets: Mapping[TopicPartition, int]) -> bytes:
    """Return the text of a checkpoint, in the order of the mapping."""
    lines = [f"{topic} {partition} {offset}\n" for (topic, partition), offset in offsets.items()]
    return f"{VERSION}\n{len(lines)}\n{''.join(lines)}".encode("ascii")


def parse(data: bytes) -> dict[TopicPartition, int]:
    """Parse a checkpoint. Of two entries for a partition the last one counts, as in Kafka.

    Raises CorruptCheckpoint.
    """
    try:
        lines = data.decode("utf-8").splitlines()
    except UnicodeDecodeError as error:
        raise CorruptCheckpoint(f"byte {error.start} is not text") from None
    if len(lines) < 2 and not any(lines[1:]) and lines in ([], ["0"]):
        return {}
    version = _number(lines[0], 1)
    if version != VERSION:
        raise CorruptCheckpoint(f"line 1: unrecognized version {version}, expected {VERSION}")
    if len(lines) < 2:
        raise CorruptCheckpoint("line 2: the number of entries is missing")
    expected = _number(lines[1], 2)
    if expected != len(lines) - 2:
        raise CorruptCheckpoint(f"line 2: expected {expected} entries, but found {len(lines) - 2}")
    return dict(_entry(line, number) for number, line in enumerate(lines[2:], 3))


def _entry(line: str, number: int) -> tuple[TopicPartition, int]:
    fields = line.split()
    if len(fields) != 3:
        raise CorruptCheckpoint(
            f"malformed line {number}: expected 'topic partition offset', found {line[:80]!r}"
        )
    topic, partition, offset = fields
    return TopicPartition(topic, _number(partition, number)), _number(offset, number)


def _number(text: str, line: int) -> int:
    number = text.strip()  # strips more characters than int() accepts, for example U+001F
    if not re.fullmatch(r"[0-9]{1,19}", number, re.ASCII):
        raise CorruptCheckpoint(f"line {line}: {text[:80]!r} is not a number")
    return int(number)
